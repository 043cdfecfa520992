//go:build linux

package drivers_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/test/internal/unetd"
)

// modes are those in which unetd is run on a card, the one that it chooses first.
func (c card) modes() []string {
	if c.native {
		return []string{"native", "tcx"}
	}
	return []string{"tcx"}
}

// TestTraffic exchanges datagrams of all sizes and two megabytes in both directions of a
// connection, over a port and over a queue at once, on each card in each mode. The kernel's own
// address answers pings meanwhile, and no frame is lost.
func TestTraffic(t *testing.T) { eachMode(t, bothKernels, 3, testTraffic) }

func testTraffic(t *testing.T, g *machine, nic, mode string) {
	g.oneQueue(t, nic)
	d := g.Unetd(t, nic, mode)
	g.oneTable(t, nic)
	ends := []*echo{d.startEcho(t, 7000)}
	if cards[cardIndex(nic)].oneQueue(mode) {
		ends = append(ends, d.startEcho(t, 7001, "-queue", "0"))
	}
	g.ping(t, nic)
	for _, e := range ends {
		e.await(t)
		t.Logf("%+v", e.Ready)
		g.exchange(t, e.addr)
	}
	done := make(chan error)
	for _, e := range ends {
		go func() { done <- g.stream(e.addr, 1<<19) }()
	}
	for range ends {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	g.datagrams(t, ends[0].addr, []int{1, 1472})
	g.ping(t, nic)
	for _, e := range ends {
		t.Logf("stats: %s", e.Ask(t, "stats"))
		e.wantGoodChecksums(t)
	}
	d.wantNoLoss(t)
}

// wantGoodChecksums fails the test if the endpoint has dropped packets for their checksums. GRO leaves partial
// ones, of which a host drops one in 16,384 segments (docs/tcp-engine.md).
func (e *echo) wantGoodChecksums(t *testing.T) {
	t.Helper()
	var counters map[string]uint64
	said := e.Ask(t, "protocols")
	if err := json.Unmarshal([]byte(said), &counters); err != nil {
		t.Fatalf("%q: %v", said, err)
	}
	t.Logf("protocols: %v", counters)
	if n := counters["tcp_bad_checksum"]; n > 1 || counters["udp_checksum"] != 0 {
		t.Errorf("%d segments and %d datagrams dropped for their checksums", n, counters["udp_checksum"])
	}
}

// TestJumbo exchanges datagrams and a stream in frames of 9,000 bytes, over a port and over a queue.
func TestJumbo(t *testing.T) {
	eachCard(t, newKernel, cardNames(), func(t *testing.T, g *machine, nic string) {
		g.oneQueue(t, nic)
		t.Cleanup(func() { g.setMTU(t, nic, 1500) })
		g.setMTU(t, nic, 9000)
		d := g.Unetd(t, nic, "tcx")
		g.oneTable(t, nic)
		for _, e := range []*echo{d.Echo(t, 7000), d.Echo(t, 7001, "-queue", "0")} {
			g.datagrams(t, e.addr, []int{8972, 8971, 4096, 4000, 2048, 1})
			if err := g.stream(e.addr, 2<<20); err != nil {
				t.Error(err)
			}
		}
		d.wantNoLoss(t)
	})
}

// oneQueue reports whether all frames arrive on queue 0 after [machine.oneQueue]. virtio_net in
// native mode adds a queue for each processor, and the device receives on these too (virtnet_xdp_set).
func (c card) oneQueue(mode string) bool { return c.name != "virtio" || mode != "native" }

// oneQueue has the driver of a card use one RX queue for the length of the test, so that all flows
// are on queue 0.
func (g *machine) oneQueue(t *testing.T, nic string) {
	t.Helper()
	if n := cards[cardIndex(nic)].channels; n > 1 {
		g.Run(t, "ethtool", "-L", nic, "combined", "1")
		g.Restore(t, "ethtool", "-L", nic, "combined", fmt.Sprint(n))
	}
	if nic == "vmxnet3" {
		g.oneTable(t, nic)
		g.Restore(t, "ethtool", "-X", nic, "default")
	}
}

// oneTable has vmxnet3, whose number of queues cannot be changed, put all flows on queue 0. The
// driver's default returns whenever it opens the device (vmxnet3_setup_driver_shared), as for an XDP
// program.
func (g *machine) oneTable(t *testing.T, nic string) {
	t.Helper()
	if nic == "vmxnet3" {
		g.Run(t, "ethtool", "-X", nic, "equal", "1")
	}
}

// ping has the test's kernel ping the guest's.
func (g *machine) ping(t *testing.T, nic string) {
	t.Helper()
	if err := g.Host.Ping(addrOf(nic)); err != nil {
		t.Error(err)
	}
}

// exchange sends datagrams of all sizes that fit a frame of Ethernet, and a stream, and has them
// returned.
func (g *machine) exchange(t *testing.T, to netip.AddrPort) {
	t.Helper()
	sizes := []int{1472, 1471, 1024, 1023}
	for n := 1; n < 1472; n += 16 + n/8 {
		sizes = append(sizes, n)
	}
	g.datagrams(t, to, sizes)
	if err := g.stream(to, 2<<20); err != nil {
		t.Error(err)
	}
}

// datagrams sends one datagram of each size, and has it returned.
func (g *machine) datagrams(t *testing.T, to netip.AddrPort, sizes []int) {
	t.Helper()
	for _, n := range sizes {
		if err := g.datagram(to, n, 1, 5*time.Second); err != nil {
			t.Errorf("datagram of %d bytes: %v", n, err)
		}
	}
}

// datagram sends a datagram up to so many times, and waits each time for its return.
func (g *machine) datagram(to netip.AddrPort, size, times int, wait time.Duration) error {
	c, err := g.Host.Dial("udp", to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	sent, got := pattern(size), make([]byte, 1<<16)
	for range times {
		if _, err = c.Write(sent); err == nil {
			c.SetReadDeadline(time.Now().Add(wait))
			var n int
			if n, err = c.Read(got); err == nil {
				if !bytes.Equal(got[:n], sent) {
					return fmt.Errorf("%d other bytes came back", n)
				}
				return nil
			}
		}
	}
	return err
}

// pattern is n bytes that differ from one another, and from those of other calls.
func pattern(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// stream sends n bytes on a connection, and has them returned.
func (g *machine) stream(to netip.AddrPort, n int) error {
	c, err := g.Host.Dial("tcp", to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	return stream(c, n)
}

func stream(c net.Conn, n int) error {
	c.SetDeadline(time.Now().Add(unetd.TestTimeout))
	sent := pattern(n)
	written := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		written <- err
	}()
	got := make([]byte, n)
	k, err := io.ReadFull(c, got)
	if err != nil {
		c.Close()
		return fmt.Errorf("stream: %d of %d bytes came back: %w", k, n, errors.Join(err, <-written))
	}
	if !bytes.Equal(sent, got) {
		return errors.New("stream: other bytes came back")
	}
	return <-written
}

// countersWithoutLoss are the counters that count no loss.
var countersWithoutLoss = []string{"rx_pass", "rx_port", "rx_queue", "rx_cut", "tx_uplink", "deliver_socket", "mux_uplink"}

// wantNoLoss fails the test if unetd has counted a loss.
func (d *daemon) wantNoLoss(t *testing.T) {
	t.Helper()
	all := d.Counters(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains(countersWithoutLoss, name) && !strings.HasPrefix(name, "lease_") {
			t.Errorf("counter %s is %d", name, all[name])
		}
	}
	t.Logf("counters: %v", all)
}
