//go:build linux

package mux_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// openLastingDescriptors opens the descriptors that the runtime and the libraries never close, so that the numbers of
// descriptors before and after a test can be compared.
func openLastingDescriptors(t *testing.T) {
	t.Helper()
	l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}
	m := openMux(t, l.A)
	g, lease, err := m.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small})
	testutil.Must(t, err)
	testutil.Must(t, errors.Join(lease.Close(), g.Close(), m.Close(), l.Pair.Close()))
}

func openMux(t *testing.T, h *netlab.Host) (m *mux.Mux) {
	t.Helper()
	m, err := mux.Open(mux.Config{Interface: h.Interface, NetNS: h.NS})
	testutil.Must(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// Each way to end leaves no link, program, namespace or descriptor.
func TestEachWayToEndLeavesNothing(t *testing.T) {
	netlab.RequireXDP(t)
	openLastingDescriptors(t)
	p := netlab.RequirePair(t, netlab.Config{})
	empty := listObjects(t, p.A)
	if len(empty.programs) != 0 || len(empty.links) != 2 {
		t.Fatalf("the host has other devices than lo and the cable: %+v", empty)
	}
	l := &lab{t: t, Pair: p}
	ask := endpoint.Request{Geometry: small, Tags: []endpoint.Tag{udpTag("0.0.0.0:0"), endpoint.MessageTag(0)}}
	for name, fn := range map[string]func(){
		"lease, then grant": func() {
			l.mux = openMux(t, p.A)
			attached := listObjects(t, p.A)
			g, lease, err := l.mux.OpenEndpoint(t.Context(), ask)
			testutil.Must(t, err)
			if now := listObjects(t, p.A); len(now.links) != 3 || len(now.programs) != 2 {
				t.Errorf("with an endpoint there is %+v", now)
			}
			testutil.Must(t, errors.Join(lease.Close(), lease.Close(), g.Close()))
			wantObjects(t, p.A, attached)
		},
		"grant, then lease": func() {
			l.mux = openMux(t, p.A)
			attached := listObjects(t, p.A)
			g, lease, err := l.mux.OpenEndpoint(t.Context(), ask)
			testutil.Must(t, err)
			testutil.Must(t, errors.Join(g.Close(), lease.Close()))
			wantObjects(t, p.A, attached)
		},
		"the mux with a lease open": func() {
			l.mux = openMux(t, p.A)
			g, _, err := l.mux.OpenEndpoint(t.Context(), ask)
			testutil.Must(t, err)
			testutil.Must(t, errors.Join(l.mux.Close(), l.mux.Close(), g.Close()))
		},
		"a queue": func() {
			l.mux = openMux(t, p.A)
			attached := listObjects(t, p.A)
			for range 2 { // the queue is free again
				g, lease, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Attach: endpoint.AttachQueue, Geometry: small})
				testutil.Must(t, err)
				testutil.Must(t, errors.Join(lease.Close(), g.Close()))
			}
			wantObjects(t, p.A, attached)
		},
		"requests that fail": func() {
			l.mux = openMux(t, p.A)
			attached := listObjects(t, p.A)
			canceled, cancel := context.WithCancel(t.Context())
			cancel()
			for _, c := range []struct {
				ctx  context.Context
				req  endpoint.Request
				want error
			}{
				{t.Context(), endpoint.Request{Geometry: endpoint.Geometry{FrameSize: 17}}, endpoint.ErrGeometry},
				{t.Context(), endpoint.Request{Geometry: endpoint.Geometry{FrameCount: 1 << 30}}, endpoint.ErrGeometry},
				{t.Context(), endpoint.Request{Geometry: endpoint.Geometry{FrameCount: 1025}, Huge: true}, endpoint.ErrGeometry},
				{t.Context(), endpoint.Request{Geometry: small, Tags: []endpoint.Tag{addrTag("10.0.0.2")}}, endpoint.ErrTagHeld},
				{t.Context(), endpoint.Request{Geometry: small, Tags: []endpoint.Tag{{Kind: 99}}}, endpoint.ErrTagDenied},
				{t.Context(), endpoint.Request{Geometry: small, Attach: endpoint.AttachQueue, Tags: []endpoint.Tag{{Kind: 99}}}, endpoint.ErrTagDenied},
				{t.Context(), endpoint.Request{Geometry: small, Attach: endpoint.AttachQueue, Queue: 1}, mux.ErrNoQueue},
				{canceled, ask, context.Canceled},
			} {
				if _, _, err := l.mux.OpenEndpoint(c.ctx, c.req); !errors.Is(err, c.want) {
					t.Errorf("%+v: %v, want %v", c.req, err, c.want)
				}
			}
			if _, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Attach: 9, Geometry: small}); err == nil {
				t.Error("an unknown attachment was made")
			}
			if n, err := os.ReadFile("/proc/sys/vm/nr_hugepages"); err == nil && strings.TrimSpace(string(n)) == "0" {
				for _, attach := range []endpoint.Attachment{endpoint.AttachPort, endpoint.AttachQueue} { // fails when the port is half made
					if _, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Attach: attach, Huge: true}); !errors.Is(err, xsk.ErrHugePages) {
						t.Errorf("huge pages where there are none: %v", err)
					}
				}
			}
			wantObjects(t, p.A, attached)
		},
		"a port's name that is taken": func() {
			testutil.Must(t, p.A.Do(func() error {
				return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "unet1"}, PeerName: "end"})
			}))
			l.mux = openMux(t, p.A)
			g, lease, err := l.mux.OpenEndpoint(t.Context(), ask)
			testutil.Must(t, err)
			if g.ID != 2 {
				t.Errorf("endpoint number %d", g.ID)
			}
			testutil.Must(t, errors.Join(lease.Close(), g.Close()))
			onDevice(t, p.A, "unet1", netlink.LinkDel)
		},
	} {
		fn()
		testutil.Must(t, l.mux.Close())
		wantObjects(t, p.A, empty)
		if t.Failed() {
			t.Fatalf("%s", name)
		}
	}
	if _, _, err := l.mux.OpenEndpoint(t.Context(), ask); !errors.Is(err, mux.ErrClosed) {
		t.Errorf("endpoint of a closed mux: %v", err)
	}
	if _, err := l.mux.Counters(); !errors.Is(err, mux.ErrClosed) {
		t.Errorf("counters of a closed mux: %v", err)
	}
}

// When the owner of an endpoint dies while no mux has mapped its fill ring, as after the death of the mux's
// process, the kernel removes the port, and frames for it are counted.
func TestKernelRemovesPortOfClosedSocket(t *testing.T) {
	netlab.RequireXDP(t)
	openLastingDescriptors(t)
	l := openLab(t, mux.ModeAuto)
	before := listObjects(t, l.A)
	a := l.open(udpTag("10.0.0.1:7000"))
	b := kernelUDP(t, l.B, "10.0.0.2:9000")
	testutil.Must(t, l.mux.StopFillRingChecks())
	a.closeDescriptors()
	testutil.Eventually(t, "the port is gone", func() bool { return len(listObjects(t, l.A).links) == len(before.links) })
	l.wantIncrements("for a dead endpoint", "rx_port", func() {
		sendTo(t, b, "10.0.0.1:7000", "hello")
		l.await("rx_pass_port_gone", 1)
	}, "rx_pass_port_gone")
	testutil.Must(t, a.lease.Close())
	b.Close()
	wantObjects(t, l.A, before)
}

// If the program of a port is detached, its endpoint still cannot send to the host's kernel, because the
// mux has set rp_filter and others for the port (distrust).
func TestPortWithoutProgramCannotSendToKernel(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a := l.open(udpTag("10.0.0.1:7000"))
	k := kernelUDP(t, l.A, "10.0.0.1:53")
	testutil.Must(t, a.lease.DetachPortProgram())
	broadcast := [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	forged := func(text string) []byte { return datagram(broadcast, [6]byte{2}, "10.0.0.9:1", "10.0.0.1:53", text) }
	a.send(forged("forged"))
	// The kernel receives the datagram without these settings, so it is they that drop the one before.
	outer := fmt.Sprintf("unet%d", a.grant.ID)
	testutil.Must(t, l.A.Do(func() error { return mux.UndoDistrust(outer) }))
	a.send(forged("trusted"))
	readFrom(t, k, "trusted")
}

// After the end of an XSK on a queue its tags lead to no socket until the lease is closed. Until then
// no other endpoint gets the queue.
func TestQueueIsBusyUntilItsLeaseIsClosed(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	ask := endpoint.Request{Attach: endpoint.AttachQueue, Geometry: small, Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}}
	q := l.openRequest(ask)
	if _, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Attach: endpoint.AttachQueue, Geometry: small}); !errors.Is(err, mux.ErrQueueBusy) {
		t.Errorf("a second endpoint on the queue: %v", err)
	}
	b := kernelUDP(t, l.B, "10.0.0.2:9000")
	q.closeDescriptors()
	testutil.Eventually(t, "the kernel has unbound the socket", func() bool {
		sendTo(t, b, "10.0.0.1:7000", "hello")
		return l.count()["rx_queue_gone"] > 0
	})
	if _, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Attach: endpoint.AttachQueue, Geometry: small}); !errors.Is(err, mux.ErrQueueBusy) {
		t.Errorf("a second endpoint on the queue: %v", err)
	}
	testutil.Must(t, q.lease.Close())
	l.openRequest(ask)
}

// Another program can have the queue.
func TestQueueOfOtherProgramIsBusy(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	g, lease, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Attach: endpoint.AttachQueue, Geometry: small})
	testutil.Must(t, err)
	testutil.Must(t, lease.Close()) // the socket stays bound
	defer g.Close()
	_, _, err = l.mux.OpenEndpoint(t.Context(), endpoint.Request{Attach: endpoint.AttachQueue, Geometry: small})
	if !errors.Is(err, mux.ErrQueueBusy) || !strings.Contains(err.Error(), "queue 0 of uplink") {
		t.Errorf("got %v", err)
	}
}

func TestErrorsOfOpen(t *testing.T) {
	netlab.RequireXDP(t)
	openLastingDescriptors(t)
	p := netlab.RequirePair(t, netlab.Config{})
	before := listObjects(t, p.A)
	for name, want := range map[string]error{"nonesuch": mux.ErrNoInterface, "": mux.ErrNoInterface, "lo": mux.ErrNotEthernet, strings.Repeat("x", 40): nil} {
		m, err := mux.Open(mux.Config{Interface: name, NetNS: p.A.NS})
		if m != nil || err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("open %q: %v, %v, want %v", name, m, err, want)
		}
	}
	wantObjects(t, p.A, before)

	// A foreign program, attached in either mode, by netlink or by a link.
	for _, flags := range []link.XDPAttachFlags{link.XDPGenericMode, link.XDPDriverMode} {
		testutil.Must(t, p.A.Do(func() error {
			uplink, err := netlink.LinkByName(p.A.Interface)
			testutil.Must(t, err)
			prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL",
				Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
			testutil.Must(t, err)
			defer prog.Close()
			held, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: uplink.Attrs().Index, Flags: flags})
			testutil.Must(t, err)
			if _, err := mux.Open(mux.Config{Interface: p.A.Interface, Mode: mux.ModeNative}); !errors.Is(err, mux.ErrForeignProgram) {
				t.Errorf("beside a foreign program: %v", err)
			}
			testutil.Must(t, held.Close())
			testutil.Must(t, netlink.LinkSetXdpFdWithFlags(uplink, prog.FD(), int(flags)))
			if _, err := mux.Open(mux.Config{Interface: p.A.Interface, Mode: mux.ModeNative}); !errors.Is(err, mux.ErrForeignProgram) {
				t.Errorf("beside a foreign program: %v", err)
			}
			// In tcx mode only endpoints on queues need XDP on the uplink.
			m, err := mux.Open(mux.Config{Interface: p.A.Interface, Mode: mux.ModeTCX})
			testutil.Must(t, err)
			if _, _, err := m.OpenEndpoint(t.Context(), endpoint.Request{Attach: endpoint.AttachQueue, Geometry: small}); !errors.Is(err, mux.ErrForeignProgram) {
				t.Errorf("queue beside a foreign program: %v", err)
			}
			g, _, err := m.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small})
			testutil.Must(t, err)
			testutil.Must(t, errors.Join(g.Close(), m.Close()))
			return netlink.LinkSetXdpFdWithFlags(uplink, -1, int(flags))
		}))
	}
	wantObjects(t, p.A, before)
	for _, first := range []struct {
		mode mux.Mode
		want error
	}{{mux.ModeNative, mux.ErrForeignProgram}, {mux.ModeTCX, mux.ErrInUse}} {
		m, err := mux.Open(mux.Config{Interface: p.A.Interface, NetNS: p.A.NS, Mode: first.mode})
		testutil.Must(t, err)
		for _, mode := range []mux.Mode{mux.ModeAuto, mux.ModeTCX, mux.ModeNative} {
			if _, err := mux.Open(mux.Config{Interface: p.A.Interface, NetNS: p.A.NS, Mode: mode}); !errors.Is(err, first.want) {
				t.Errorf("a mux in %v mode beside one in %v mode: %v", mode, first.mode, err)
			}
		}
		testutil.Must(t, m.Close())
		wantObjects(t, p.A, before)
	}
}

// Without privileges Open returns os.ErrPermission.
func TestOpenWithoutPrivileges(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{})
	testutil.Must(t, p.A.Do(func() error {
		// Capabilities are the thread's own; this one ends with its goroutine.
		return inThreadOfItsOwn(p.A, func() error {
			hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var none [2]unix.CapUserData
			if err := unix.Capset(&hdr, &none[0]); err != nil {
				return err
			}
			if _, err := mux.Open(mux.Config{Interface: p.A.Interface}); !errors.Is(err, os.ErrPermission) {
				t.Errorf("got %v", err)
			}
			return nil
		})
	}))
}

// inThreadOfItsOwn runs fn in h, on a thread that ends afterwards.
func inThreadOfItsOwn(h *netlab.Host, fn func() error) error {
	errs := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == syscall.Getpid() { // the first thread never ends
			go func() { errs <- inThreadOfItsOwn(h, fn) }()
			<-context.Background().Done()
		}
		if err := unix.Setns(int(h.NS), unix.CLONE_NEWNET); err != nil {
			errs <- err
			return
		}
		errs <- fn()
	}()
	return <-errs
}

// The mux works from many goroutines and threads at the same time.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	before := listObjects(t, l.A).links
	var wg sync.WaitGroup
	var ids sync.Map
	for i := range 8 {
		wg.Go(func() {
			g, lease, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: []endpoint.Tag{endpoint.MessageTag(0)}})
			if err != nil {
				t.Errorf("open: %v", err)
				return
			}
			if _, twice := ids.LoadOrStore(g.ID, true); twice {
				t.Errorf("endpoint number %d was given twice", g.ID)
			}
			for j := range 8 {
				tag, err := lease.Claim(t.Context(), udpTag(fmt.Sprintf("10.0.0.1:%d", 8000+i*8+j)))
				if err != nil {
					t.Errorf("claim: %v", err)
				}
				if j%2 == 0 {
					err = lease.Unclaim(t.Context(), tag)
				} else if r, e := lease.Resolve(t.Context(), netip.Addr{}, netip.MustParseAddr("10.0.0.2")); e != nil || r.LinkAddr != l.B.LinkAddr {
					err = fmt.Errorf("resolve: %+v, %w", r, e)
				}
				if err != nil {
					t.Error(err)
				}
			}
			if i%2 == 0 {
				if err := errors.Join(lease.Close(), g.Close()); err != nil {
					t.Error(err)
				}
			} else {
				t.Cleanup(func() { g.Close() })
			}
		})
	}
	wg.Wait()
	testutil.Must(t, l.mux.Close())
	if after := listObjects(t, l.A).links; len(after) != len(before) {
		t.Errorf("links %v, before %v", after, before)
	}
}

// Neither the end of a lease nor that of the mux waits for a Resolve of another lease.
func TestCloseEndsResolve(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	asked := func(addr string) bool { // the kernel has sent ARP for it, and waits for the answer
		return slices.ContainsFunc(neighbours(t, l.A), func(n netlink.Neigh) bool {
			return n.IP.String() == addr && n.State == netlink.NUD_INCOMPLETE
		})
	}
	for _, c := range []struct {
		addr string
		end  func(*app) error
	}{
		{"10.0.0.98", func(a *app) error { return a.lease.Close() }},
		{"10.0.0.99", func(*app) error { return l.mux.Close() }},
	} {
		a := l.open()
		failed := make(chan error, 1)
		go func() {
			_, err := a.lease.Resolve(context.Background(), netip.Addr{}, netip.MustParseAddr(c.addr))
			failed <- err
		}()
		testutil.Eventually(t, "the kernel asks for the MAC address", func() bool { return asked(c.addr) })
		testutil.Must(t, c.end(a))
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
}

func TestParseMode(t *testing.T) {
	for _, m := range []mux.Mode{mux.ModeAuto, mux.ModeTCX, mux.ModeNative} {
		if got, err := mux.ParseMode(m.String()); err != nil || got != m {
			t.Errorf("%v: %v, %v", m, got, err)
		}
	}
	for _, s := range []string{"fast", "generic"} {
		if _, err := mux.ParseMode(s); err == nil || err.Error() != fmt.Sprintf("mode %q: want auto, tcx or native", s) {
			t.Errorf("mode %s: %v", s, err)
		}
	}
}
