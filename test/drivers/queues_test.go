//go:build linux

package drivers_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/test/internal/unetd"
)

// dialFlow is a UDP socket of the test's kernel with an address of its own: some devices hash the
// addresses of a datagram only.
func (g *machine) dialFlow(t *testing.T, nic string, n int, to netip.AddrPort) (c net.Conn) {
	t.Helper()
	a := peerOf(nic).As4()
	a[3] = byte(10 + n)
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: a[:], Mask: net.CIDRMask(24, 32)}}
	change := func(do func(netlink.Link, *netlink.Addr) error) error {
		return g.Host.Do(func() error {
			tap, err := netlink.LinkByName(tapOf(nic))
			if err != nil {
				return err
			}
			return do(tap, addr)
		})
	}
	if err := change(netlink.AddrAdd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := change(netlink.AddrDel); err != nil {
			t.Error(err)
		}
	})
	err := g.Host.Do(func() (err error) {
		c, err = net.DialUDP("udp", &net.UDPAddr{IP: a[:]}, net.UDPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// numbered sends datagrams with numbers, some at a time, and has them returned, in their order if
// that is kept.
func numbered(c net.Conn, datagrams, atOnce int, kept bool) error {
	b := make([]byte, 64)
	for next := 0; next < datagrams; next += atOnce {
		missing := map[uint32]bool{}
		for i := range atOnce {
			missing[uint32(next+i)] = true
			binary.BigEndian.PutUint32(b, uint32(next+i))
			if _, err := c.Write(b); err != nil {
				return err
			}
		}
		c.SetReadDeadline(time.Now().Add(unetd.TestTimeout))
		for i := range atOnce {
			if _, err := c.Read(b); err != nil {
				return err
			}
			n := binary.BigEndian.Uint32(b)
			if !missing[n] || kept && n != uint32(next+i) {
				return fmt.Errorf("%v: datagram %d came back, want %d", c.LocalAddr(), n, next+i)
			}
			delete(missing, n)
		}
	}
	return nil
}

// dialFlows are 8 flows to an interface of the guest. Their addresses have numbers from first on.
func (g *machine) dialFlows(t *testing.T, nic string, first int, to netip.AddrPort) (list []net.Conn) {
	t.Helper()
	for n := range 8 {
		list = append(list, g.dialFlow(t, nic, first+n, to))
	}
	return list
}

// atOnce calls f with each, at the same time.
func atOnce[T any](list []T, f func(T) error) error {
	done := make(chan error)
	for _, one := range list {
		go func() { done <- f(one) }()
	}
	var err error
	for range list {
		err = errors.Join(err, <-done)
	}
	return err
}

// queueCount is a line of `ethtool -S` of igb or, for XDP, virtio_net.
var queueCount = regexp.MustCompile(`(?m)^\s*([rt]x)_?(?:queue_)?(\d+)_(?:packets|xdp_packets|xdp_tx): (\d+)`)

// packetsByQueue reads how many packets each queue has received or sent ("rx", "tx"), as the driver counts.
func (g *machine) packetsByQueue(t *testing.T, nic string) map[string]map[string]uint64 {
	t.Helper()
	n := map[string]map[string]uint64{"rx": {}, "tx": {}}
	for _, m := range queueCount.FindAllStringSubmatch(g.Run(t, "ethtool", "-S", nic), -1) {
		var count uint64
		fmt.Sscan(m[3], &count)
		n[m[1]][m[2]] += count
	}
	return n
}

// TestAllQueues loads all queues of a card at once. Endpoints on ports get the frames of every queue
// and send by several, and nothing is lost. igb keeps the order of a flow, which it hashes. The tap
// of virtio_net puts a flow on the queue by which the guest last sent it (tun_flow_update in
// drivers/net/tun.c), which is another one when the application has moved to another processor.
func TestAllQueues(t *testing.T) {
	eachCard(t, newKernel, []string{"virtio", "igb"}, func(t *testing.T, g *machine, nic string) {
		d := g.Unetd(t, nic, "native")
		ends := []*echo{d.startEcho(t, 7000), d.startEcho(t, 7001)}
		var flows []net.Conn
		for i, e := range ends {
			e.await(t)
			flows = append(flows, g.dialFlows(t, nic, 8*i, e.addr)...)
		}
		before := g.packetsByQueue(t, nic)
		if err := atOnce(flows, func(c net.Conn) error { return numbered(c, 200, 4, nic == "igb") }); err != nil {
			t.Error(err)
		}
		if err := atOnce(slices.Repeat(ends, 2), func(e *echo) error { return g.stream(e.addr, 1<<17) }); err != nil {
			t.Error(err)
		}
		for direction, counts := range g.packetsByQueue(t, nic) {
			used := 0
			for queue := range counts {
				if counts[queue] -= before[direction][queue]; counts[queue] > 0 {
					used++
				}
			}
			t.Logf("%s packets by queue: %v", direction, counts)
			if used < cards[cardIndex(nic)].channels {
				t.Errorf("%s on %d queues only", direction, used)
			}
		}
		d.wantNoLoss(t)
	})
}

// TestQueueEndpointNeedsAllFlows opens an endpoint on a queue of a card that spreads frames over two. None of
// these drivers has classification rules for it, so the tags are refused with what to do. If the
// RSS table has one queue, an endpoint there gets all frames.
func TestQueueEndpointNeedsAllFlows(t *testing.T) {
	eachCard(t, newKernel, []string{"virtio", "igb", "vmxnet3"}, func(t *testing.T, g *machine, nic string) {
		d := g.Unetd(t, nic, "tcx")
		refused := d.startEcho(t, 7001, "-queue", "0")
		line, err := refused.Await("ended ", 0, unetd.TestTimeout)
		for _, want := range []string{"tag not allowed: udp:", nic + " spreads received frames over 2 queues, and the endpoint is on queue 0", "attach to a port"} {
			if err != nil || !strings.Contains(line, want) {
				t.Errorf("%s %v, want %q", line, err, want)
			}
		}
		remedy := fmt.Sprintf("ethtool -X %s start 0 equal 1", nic)
		if nic == "virtio" { // it has no such table
			remedy = "ethtool -L virtio combined 1"
		}
		if !strings.Contains(line, remedy) {
			t.Errorf("%s, want %q", line, remedy)
		}
		queue := "0"
		switch nic {
		case "virtio":
			g.oneQueue(t, nic)
		case "igb":
			queue = "1"
			fallthrough
		default:
			g.Run(t, "ethtool", "-X", nic, "start", queue, "equal", "1")
			g.Restore(t, "ethtool", "-X", nic, "default")
		}
		e := d.Echo(t, 7001, "-queue", queue)
		if err := atOnce(g.dialFlows(t, nic, 0, e.addr), func(c net.Conn) error { return numbered(c, 40, 4, true) }); err != nil {
			t.Error(err)
		}
		if err := atOnce(make([]int, 4), func(int) error { return g.stream(e.addr, 1<<15) }); err != nil {
			t.Error(err)
		}
		d.wantNoLoss(t)
	})
}
