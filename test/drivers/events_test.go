//go:build linux

package drivers_test

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/guest"
	"github.com/unet-go/unet/test/internal/unetd"
)

// cardTest is unetd on a card with an endpoint on a port and, where all frames arrive on queue 0, one
// on that queue, all under traffic.
type cardTest struct {
	t     *testing.T // until its end unetd and the endpoints run
	g     *machine
	card  card
	mode  string
	d     *daemon
	echos []*echo
	flows []*traffic
}

// traffic is the traffic with one endpoint: a datagram and a piece of a stream in turns, as fast as
// they come back.
type traffic struct {
	returned atomic.Uint64 // datagrams
	streamed atomic.Uint64 // pieces
	reset    atomic.Bool   // connections may fail: a new one is opened
	stop     chan struct{}
	running  sync.WaitGroup
	failed   error // of the stream
}

// lostTimeout bounds how long a lost datagram is waited for.
const lostTimeout = 200 * time.Millisecond

func (g *machine) startTraffic(t *testing.T, e *echo) *traffic {
	f := &traffic{stop: make(chan struct{})}
	t.Cleanup(f.end)
	f.running.Go(func() {
		for !f.stopped() {
			if g.datagram(e.addr, 1000, 1, lostTimeout) == nil {
				f.returned.Add(1)
			} else { // the interface may be down
				f.pause()
			}
		}
	})
	f.running.Go(func() {
		for !f.stopped() {
			var c net.Conn
			err := g.Host.Do(func() (err error) { c, err = net.DialTimeout("tcp", e.addr.String(), 2*time.Second); return err })
			if err != nil {
				f.pause()
				continue
			}
			stopWatch := make(chan struct{})
			f.running.Go(func() {
				select {
				case <-f.stop: // a stream waits for long
				case <-stopWatch:
				}
				c.Close()
			})
			for err == nil {
				if err = stream(c, 20000); err == nil {
					f.streamed.Add(1)
				}
			}
			close(stopWatch)
			if !f.reset.Load() && !f.stopped() {
				f.failed = err
				return
			}
		}
	})
	return f
}

func (f *traffic) pause() {
	select {
	case <-f.stop:
	case <-time.After(lostTimeout):
	}
}

func (f *traffic) stopped() bool {
	select {
	case <-f.stop:
		return true
	default:
		return false
	}
}

func (f *traffic) end() {
	if !f.stopped() {
		close(f.stop)
	}
	f.running.Wait()
}

// wantProgress fails the test unless each flow continues: several datagrams and pieces are returned
// from now on.
func (s *cardTest) wantProgress(t *testing.T, after string) {
	t.Helper()
	for i, f := range s.flows {
		returned, streamed := f.returned.Load(), f.streamed.Load()
		if !testutil.Until(func() bool { return f.returned.Load() >= returned+3 && f.streamed.Load() >= streamed+2 }) {
			for _, show := range [][]string{{"unetd", "counters", "--socket", s.d.Socket}, {"unetd", "list", "--socket", s.d.Socket}, {"ip", "-s", "link", "show", s.nic()}} {
				out, err := s.g.Try(t, show...)
				t.Logf("%s: %v\n%s", strings.Join(show, " "), err, out)
			}
			t.Logf("stats: %s", s.echos[i].Ask(t, "stats"))
			t.Fatalf("after %s, endpoint %d of [port queue] got %d datagrams and %d pieces back", after, i, f.returned.Load()-returned, f.streamed.Load()-streamed)
		}
	}
}

func (s *cardTest) nic() string { return s.card.name }

// start starts unetd, the endpoints and the traffic.
func (s *cardTest) start() {
	s.t.Helper()
	s.d = s.g.Unetd(s.t, s.nic(), s.mode)
	s.endpoints()
}

// endpoints starts the endpoints and the traffic.
func (s *cardTest) endpoints() {
	t := s.t
	t.Helper()
	s.echos = []*echo{s.d.startEcho(t, 7000)}
	if s.card.oneQueue(s.mode) && s.nic() != "vmxnet3" { // see oneTable
		s.echos = append(s.echos, s.d.startEcho(t, 7001, "-queue", "0"))
	}
	s.flows = nil
	for _, e := range s.echos {
		e.await(t)
		s.flows = append(s.flows, s.g.startTraffic(t, e))
	}
	s.wantProgress(t, "the start")
}

// event is something that happens to a card or to unetd under traffic.
type event struct {
	name string
	on   func(s *cardTest) bool // nil: all
	run  func(t *testing.T, s *cardTest)
}

var events = []event{
	{name: "kill -9 of unetd", run: func(t *testing.T, s *cardTest) {
		s.d.Kill()
		s.wantProgress(t, "the kill")
		s.d = s.g.startUnetd(s.t, s.nic(), s.mode)
		if _, err := s.d.Await("msg=ready", 0, unetd.TestTimeout); err != nil {
			t.Fatal(err)
		}
		if !testutil.Until(func() bool {
			list := s.g.Run(t, "unetd", "list", "--socket", s.d.Socket)
			return strings.Count(list, " leased ") == len(s.echos)
		}) {
			t.Fatal("the endpoints are not presented to the next unetd")
		}
	}},
	{name: "link", on: opensAgain, run: func(t *testing.T, s *cardTest) {
		s.g.Run(t, "ip", "link", "set", s.nic(), "down")
		s.g.Run(t, "ip", "link", "set", s.nic(), "up")
	}},
	{name: "MTU", on: opensAgain, run: func(t *testing.T, s *cardTest) {
		s.g.setMTU(t, s.nic(), 1400)
		s.wantProgress(t, "the decrease")
		s.g.setMTU(t, s.nic(), 1500)
	}},
	// virtio_net replaces a ring while XDP frames are put into it: the queue stays unusable ("id 9 is not a
	// head!", Linux 7.3), or the kernel stops (BUG in virtqueue_detach_unused_buf, Linux 6.12).
	{name: "rings", on: func(s *cardTest) bool {
		return opensAgain(s) && (!strings.HasPrefix(s.nic(), "virtio") || s.mode != "native")
	}, run: func(t *testing.T, s *cardTest) {
		s.g.Run(t, "ethtool", "-G", s.nic(), "rx", "128", "tx", "128")
		s.wantProgress(t, "the decrease")
		s.g.Run(t, "ethtool", "-G", s.nic(), "rx", "256", "tx", "256")
	}},
	// With an XDP program virtio_net refuses it.
	{name: "channels", on: func(s *cardTest) bool { return s.card.channels > 1 && s.card.oneQueue(s.mode) }, run: func(t *testing.T, s *cardTest) {
		for _, f := range s.flows[1:] { // of queues: the kernel answers what comes in on another queue meanwhile, by a RST
			f.reset.Store(true)
		}
		s.g.Run(t, "ethtool", "-L", s.nic(), "combined", fmt.Sprint(s.card.channels))
		s.g.Run(t, "ethtool", "-L", s.nic(), "combined", "1")
	}},
}

// opensAgain reports whether a card works after its driver has closed and opened it. vmxnet3 in
// native mode then runs no XDP program until one is attached again (seen with Linux 7.3 and QEMU 10).
func opensAgain(s *cardTest) bool { return s.nic() != "vmxnet3" || s.mode != "native" }

// setMTU sets the MTU of both ends of a card's link.
func (g *machine) setMTU(t *testing.T, nic string, mtu int) {
	t.Helper()
	err := g.Host.Do(func() error {
		tap, err := netlink.LinkByName(tapOf(nic))
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(tap, mtu)
	})
	if err != nil {
		t.Fatal(err)
	}
	g.Run(t, "ip", "link", "set", nic, "mtu", fmt.Sprint(mtu))
}

// TestTrafficContinuesAfterEvents checks that endpoints go on after what happens to a card and to unetd under traffic,
// and that all frames return to the pool of their segment.
func TestTrafficContinuesAfterEvents(t *testing.T) {
	eachMode(t, bothKernels, 2, func(t *testing.T, g *machine, nic, mode string) {
		g.oneQueue(t, nic)
		s := &cardTest{t: t, g: g, card: cards[cardIndex(nic)], mode: mode}
		s.start()
		for _, e := range events {
			if e.on != nil && !e.on(s) {
				continue
			}
			if !t.Run(strings.ReplaceAll(e.name, " ", "_"), func(t *testing.T) {
				e.run(t, s)
				s.wantProgress(t, e.name)
			}) {
				t.FailNow()
			}
		}
		for _, f := range s.flows {
			f.end()
			if f.failed != nil {
				t.Errorf("a connection ended: %v", f.failed)
			}
		}
		for _, e := range s.echos {
			e.wantAllFramesFree(t)
		}
	})
}

// eachMode runs a test with each kernel, on each card, in the first modes of it.
func eachMode(t *testing.T, short withShort, first int, f func(t *testing.T, g *machine, nic, mode string)) {
	t.Helper()
	eachCard(t, short, cardNames(), func(t *testing.T, g *machine, nic string) {
		modes := cards[cardIndex(nic)].modes()
		if testing.Short() {
			first = 1
		}
		for _, mode := range modes[:min(first, len(modes))] {
			t.Run(mode, func(t *testing.T) { f(t, kernelOf(g).boot(t), nic, mode) })
		}
	})
}

// cardNames are the cards that tests run on.
func cardNames() (names []string) {
	for _, c := range cards[1:] {
		if c.name == "fixed" { // it has only tcx mode, and ports
			continue
		}
		if !testing.Short() || c.name == "virtio" || c.name == "igb" {
			names = append(names, c.name)
		}
	}
	return names
}

// wantAllFramesFree fails the test unless all frames of an idle endpoint are in its pool or on its fill ring.
// A frame that was sent is back when the kernel has completed it, which the endpoint finds out when
// it sends again.
func (e *echo) wantAllFramesFree(t *testing.T) {
	t.Helper()
	var said string
	if !testutil.Until(func() bool {
		said = e.Ask(t, "audit")
		var pool, receive, stack, application, transmit int
		if _, err := fmt.Sscanf(said, "pool %d, kernel-receive %d, stack %d, application %d, kernel-transmit %d", &pool, &receive, &stack, &application, &transmit); err != nil {
			t.Fatalf("audit %q: %v", said, err)
		}
		return stack+application+transmit == 0 && pool+receive == int(e.Ready.FrameCount)
	}) {
		t.Errorf("frames are lost to the pool: %s", said)
	}
}

// TestCleanupAfterKill kills unetd, and then the processes with endpoints. `unetd cleanup` leaves the card
// as it was, and another unetd serves it.
func TestCleanupAfterKill(t *testing.T) {
	eachMode(t, newKernel, 1, func(t *testing.T, g *machine, nic, mode string) {
		g.oneQueue(t, nic)
		before := g.settings(t, nic)
		s := &cardTest{t: t, g: g, card: cards[cardIndex(nic)], mode: mode}
		s.start()
		for _, f := range s.flows {
			f.reset.Store(true)
		}
		s.d.Kill()
		for _, e := range s.echos {
			e.Kill()
		}
		// The kernel closes the sockets of killed processes a little later.
		if !testutil.Until(func() bool {
			return !strings.Contains(g.Run(t, "unetd", "cleanup", "--socket", s.d.Socket), "kept")
		}) {
			t.Error("an endpoint of a killed process is still in use")
		}
		if after := g.settings(t, nic); after != before {
			t.Errorf("before unetd:\n%s\nafter the cleanup:\n%s", before, after)
		}
		g.ping(t, nic)
		for _, f := range s.flows {
			f.end()
		}
		s.start()
	})
}

// settings are the network devices of the guest with their XDP programs, and the offloads of a card.
func (g *machine) settings(t *testing.T, nic string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(g.Run(t, "ip", "-o", "link", "show")) {
		name := strings.Fields(line)[1]
		fmt.Fprintln(&b, name, strings.Contains(line, "xdp"))
	}
	return b.String() + g.Run(t, "ethtool", "-k", nic)
}

// TestCardRemoval removes a card under traffic, by its driver. The owners of endpoints get the reason, and
// unetd goes on. When the card returns, the same unetd serves it again.
func TestCardRemoval(t *testing.T) {
	eachMode(t, newKernel, 1, func(t *testing.T, g *machine, nic, mode string) {
		if nic == "virtio" && mode == "native" {
			// The kernel never finishes the removal of a virtio_net device that has added queues for an XDP
			// program: it takes the program off when it can remove the queues' kobjects no more, and these
			// refer to the device (netif_set_real_num_rx_queues, in Linux 7.3).
			mode = "tcx"
		}
		g.oneQueue(t, nic)
		s := &cardTest{t: t, g: g, card: cards[cardIndex(nic)], mode: mode}
		s.start()
		for _, f := range s.flows {
			f.reset.Store(true)
		}
		device := g.Run(t, "readlink", "-f", "/sys/class/net/"+nic+"/device")
		driver := g.Run(t, "readlink", "-f", device+"/driver")
		id := device[strings.LastIndex(device, "/")+1:]
		from := s.d.Lines()
		g.Run(t, "sh", "-c", "echo "+id+" > "+driver+"/unbind")
		g.Restore(t, "/init")
		g.Restore(t, "sh", "-c", "test -e "+device+"/driver || echo "+id+" > "+driver+"/bind")
		for _, e := range s.echos {
			ended(e.Process)
			if line, err := e.Await("ended", 0, unetd.TestTimeout); err != nil || !strings.Contains(line, "lease") {
				t.Errorf("the endpoint's owner gets %q, %v", line, err)
			}
		}
		for _, f := range s.flows {
			f.end()
		}
		if uplinks := g.Run(t, "unetd", "uplinks", "--socket", s.d.Socket); !strings.Contains(uplinks, "unusable") {
			t.Errorf("while the card is gone, unetd uplinks shows:\n%s", uplinks)
		}
		g.Run(t, "sh", "-c", "echo "+id+" > "+driver+"/bind")
		g.Run(t, "/init")
		if _, err := s.d.Await("the interface is served again", from, unetd.TestTimeout); err != nil {
			t.Fatal(err)
		}
		g.oneQueue(t, nic)
		s.endpoints()
	})
}

// ended waits until a program ends.
func ended(p *guest.Process) {
	select {
	case <-p.Done:
	case <-time.After(unetd.TestTimeout):
	}
}
