//go:build linux

package mux_test

import (
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/account"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// statisticsLab compares the counters of a mux with those of the kernel: devices and sockets.
type statisticsLab struct {
	*lab
	apps     []*app
	received uint64 // by the uplink, before the mux was opened
}

// statistics are those of a device of host A; zero if there is none.
func (b *statisticsLab) statistics(name string) (s netlink.LinkStatistics) {
	b.t.Helper()
	testutil.Must(b.t, b.A.Do(func() error {
		l, err := netlink.LinkByName(name)
		if _, absent := err.(netlink.LinkNotFoundError); absent {
			return nil
		}
		testutil.Must(b.t, err)
		s = *l.Attrs().Statistics
		return nil
	}))
	return s
}

// sums are the pairs of sums that are compared, in frames. They are equal while no frame is on its way.
func (b *statisticsLab) sums() map[string][2]uint64 {
	c := b.count()
	total := func(prefix string, except ...string) (n uint64) {
		for name, v := range c {
			if strings.HasPrefix(name, prefix) {
				n += v
			}
		}
		for _, name := range except {
			n -= c[name]
		}
		return n
	}
	var sent, refused uint64
	for _, a := range b.apps {
		sent += b.statistics(fmt.Sprint("unet", a.grant.ID)).RxPackets
		s, err := a.sock.Statistics()
		testutil.Must(b.t, err)
		refused += s.RxDropped + s.RxRingFull
	}
	parts := uint64(0)
	for _, name := range listObjects(b.t, b.A).cutters {
		parts += b.statistics(name).TxPackets
	}
	ports := account.Check(b.counters())
	return map[string][2]uint64{
		"the uplink":            {b.statistics(b.A.Interface).RxPackets - b.received, total("rx_", "rx_host") - parts},
		"frames of endpoints":   {sent, total("tx_")},
		"the way to ports":      {ports.In, ports.Out},
		"the sockets' refusals": {refused, c["lost_deliver_redirect"] + c["lost_queue_redirect"]},
	}
}

// wantBalance waits until the sums of each pair are equal.
func (b *statisticsLab) wantBalance() {
	b.t.Helper()
	for deadline := time.Now().Add(testTimeout / 4); ; time.Sleep(time.Millisecond) {
		sums := b.sums()
		if !slices.ContainsFunc(slices.Collect(maps.Values(sums)), func(s [2]uint64) bool { return s[0] != s[1] }) {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("sums are not equal: %v, counters: %v", sums, b.count())
		}
	}
}

// parallel calls f in twice as many goroutines as there are processors.
func parallel(f func(i int)) {
	var all sync.WaitGroup
	for i := range 2 * runtime.NumCPU() {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

// Every frame that the devices and sockets of a mux have seen is in exactly one counter of each stage: with
// floods from several processors, full rings, super-frames, forged frames, and traffic of the same host.
func TestCountersMatchDeviceStatistics(t *testing.T) {
	t.Parallel()
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeNative} {
		t.Run(mode.String(), func(t *testing.T) {
			b := &statisticsLab{lab: &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}}
			if mode == mux.ModeNative {
				listenGRO(t, b.B)
			}
			b.received = b.statistics(b.A.Interface).RxPackets
			b.openMux(mode)
			trusted := b.open(udpTag("10.0.0.1:7000"))
			untrusted := b.openFor(mux.Terms{}, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7001")}})
			ports := []*app{trusted, untrusted}
			queue := b.openRequest(endpoint.Request{Attach: endpoint.AttachQueue, Tags: []endpoint.Tag{udpTag("10.0.0.1:7002")}})
			b.apps = append(ports, queue)

			const frames = 400 // more than the rings of an endpoint, which reads nothing
			far := make([]*sender, 2*runtime.NumCPU())
			near := make([]*sender, len(far))
			for i := range far {
				far[i], near[i] = openSender(t, b.B), openSender(t, b.A)
			}
			parallel(func(i int) {
				for n := range frames {
					to := []string{"10.0.0.1:7000", "10.0.0.1:7001", "10.0.0.1:7002", "10.0.0.1:9"}[n%4]
					far[i].send(t, to, "from the wire")
					if n%3 == 0 && n%4 != 2 { // no queue is for frames of this host
						near[i].send(t, to, "from this host")
					}
				}
			})
			b.wantBalance()

			// Super-frames: whole to the trusted owner, cut for the other, and too many parts.
			if mode != mux.ModeNative {
				for _, size := range []int{1200, 300} {
					far[0].segment(t, size)
					for range 20 {
						far[0].send(t, "10.0.0.1:7000", strings.Repeat("x", 30*size))
						far[0].send(t, "10.0.0.1:7001", strings.Repeat("x", 30*size))
					}
				}
				far[0].segment(t, 0)
				b.wantBalance()
				if c := b.count(); c["rx_cut"] == 0 {
					t.Errorf("nothing was cut: %v", c)
				}
			}

			// What endpoints send: to the wire, to each other, to the kernel, forged.
			A, B := b.A.LinkAddr, b.B.LinkAddr
			for range 50 {
				for _, a := range ports {
					from := fmt.Sprint("10.0.0.1:", a.grant.Tags[0].Port)
					a.send(datagram(B, A, from, "10.0.0.2:9", "to the wire"))
					a.send(datagram(A, A, from, "10.0.0.1:7000", "to an endpoint"))
					a.send(datagram(A, A, from, "10.0.0.1:7001", "to an endpoint"))
					a.send(datagram(A, A, from, "10.0.0.1:9", "to the kernel"))
					a.send(datagram(B, A, "10.0.0.1:6000", "10.0.0.2:9", "forged"))
					a.send(make([]byte, 60))
				}
			}
			b.wantBalance()
			c := b.count()
			for _, name := range []string{"rx_port", "rx_host", "rx_pass", "tx_uplink", "tx_local", "tx_host", "rx_queue", "tx_forged_addr", "tx_forged_link", "deliver_socket", "lost_deliver_redirect", "lost_queue_redirect"} {
				if c[name] == 0 {
					t.Errorf("no %s: %v", name, c)
				}
			}
		})
	}
}

// A frame that another program sends into a port was not redirected by the mux: the counters show one frame
// too many. Frames to a port that is down are counted as lost.
func TestCountersShowFramesOfOtherPrograms(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeTCX)
	a := l.open(udpTag("10.0.0.1:7000"))
	settled := func() account.Balance {
		v, err := account.Settle(t.Context(), l.mux.Counters)
		testutil.Must(t, err)
		return v.Balance
	}
	if b := settled(); b.Missing() != 0 {
		t.Errorf("%+v", b)
	}
	port := &netlab.Host{NS: l.A.NS, Interface: fmt.Sprint("unet", a.grant.ID)}
	sendRaw(t, port, datagram(l.A.LinkAddr, l.B.LinkAddr, "10.0.0.2:9", "10.0.0.1:7000", "not by the mux"))
	l.await("deliver_socket", 1)
	if b := settled(); b.Missing() != -1 {
		t.Errorf("%+v", b)
	}
	// A port whose inner end is down, as when its process has died.
	b := kernelUDP(t, l.B, "10.0.0.2:9000")
	inside, device := a.inside()
	onDevice(t, inside, device, netlink.LinkSetDown)
	for range 3 {
		sendTo(t, b, "10.0.0.1:7000", "to a port that is down")
	}
	l.await("rx_port", 3)
	l.await("lost_port_down", 3)
	if b := settled(); b.Missing() != -1 {
		t.Errorf("%+v", b)
	}
}

// sender is a UDP socket of a host's kernel that discards errors of the peer.
type sender struct{ fd int }

func openSender(t *testing.T, h *netlab.Host) *sender {
	t.Helper()
	s := &sender{}
	testutil.Must(t, h.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	t.Cleanup(func() { unix.Close(s.fd) })
	return s
}

func (s *sender) send(t *testing.T, to, payload string) {
	t.Helper()
	if err := s.trySend(to, payload); err != nil {
		t.Error(err)
	}
}

func (s *sender) trySend(to, payload string) error {
	ap := netip.MustParseAddrPort(to)
	err := unix.Sendto(s.fd, []byte(payload), 0, &unix.SockaddrInet4{Addr: ap.Addr().As4(), Port: int(ap.Port())})
	if err == unix.ECONNREFUSED { // the peer's error for an earlier datagram
		return nil
	}
	return err
}

// segment sets the size of the datagrams of which the next sends consist; 0: one.
func (s *sender) segment(t *testing.T, size int) {
	t.Helper()
	testutil.Must(t, unix.SetsockoptInt(s.fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, size))
}

// The counters add up also when processes die under load, while frames are on their way to ports that the
// kernel removes.
func TestCountersAddUpAfterDeathsUnderLoad(t *testing.T) {
	t.Parallel()
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeNative} {
		t.Run(mode.String(), func(t *testing.T) {
			l := openLab(t, mode)
			if mode == mux.ModeNative {
				listenGRO(t, l.B)
			}
			from := l.open(udpTag("10.0.0.1:7000"))
			peer, near := openSender(t, l.B), openSender(t, l.A)
			for range 8 {
				dying := l.open(udpTag("10.0.0.1:7001"))
				stop := make(chan struct{})
				var all sync.WaitGroup
				for _, send := range []func() error{
					func() error { return peer.trySend("10.0.0.1:7001", "from the wire") },
					func() error { return near.trySend("10.0.0.1:7001", "from this host") },
					func() error {
						return from.trySend(datagram(l.A.LinkAddr, l.A.LinkAddr, "10.0.0.1:7000", "10.0.0.1:7001", "from an endpoint"))
					},
				} {
					all.Go(func() {
						for {
							select {
							case <-stop:
								return
							default:
								if err := send(); err != nil {
									t.Error(err)
									return
								}
							}
						}
					})
				}
				flows := l.count()["deliver_socket"]
				testutil.Eventually(t, "traffic flows", func() bool { return l.count()["deliver_socket"] > flows+100 })
				dying.closeDescriptors()
				testutil.Must(t, dying.lease.Close())
				close(stop)
				all.Wait()
			}
			// A processor with a backlog can rest for longer than Settle waits.
			testutil.Eventually(t, "the counters add up", func() bool {
				v, err := account.Settle(t.Context(), l.mux.Counters)
				testutil.Must(t, err)
				return v.Balanced()
			})
		})
	}
}
