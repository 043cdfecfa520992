//go:build linux

package mux_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// The route to an owned address of this host has the uplink's MAC address, and a source of the same
// family.
func TestResolveOwnedAddresses(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	v4, v6 := netip.MustParseAddr("10.0.0.77"), netip.MustParseAddr("fd00::77")
	l.open(endpoint.AddrTag(v4), endpoint.AddrTag(v6))
	a := l.open()
	for dst, source := range map[netip.Addr]string{v4: "10.0.0.1", v6: "fd00::1"} {
		r, err := a.lease.Resolve(t.Context(), netip.Addr{}, dst)
		if want := (endpoint.Route{Source: netip.MustParseAddr(source), NextHop: dst, LinkAddr: l.A.LinkAddr, MTU: 1500}); err != nil || r != want {
			t.Errorf("%v: %+v, %v", dst, r, err)
		}
	}
}

// wantCounted waits until the mux counts n endpoints of a user, and their segments.
func (l *lab) wantCounted(uid uint32, n int64) {
	l.t.Helper()
	var endpoints, bytes int64
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) {
		endpoints, bytes = l.mux.Counted(uid)
		if endpoints == n && bytes == n*small.WithDefaults().SegmentSize() {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("of uid %d %d endpoints and %d bytes are counted, want %d endpoints", uid, endpoints, bytes, n)
		}
	}
}

// wantStillCounted checks that the count does not change within more than the longest time between two polls.
func (l *lab) wantStillCounted(n int64) {
	l.t.Helper()
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if endpoints, _ := l.mux.Counted(0); endpoints != n {
			l.t.Errorf("%d endpoints are counted, want %d", endpoints, n)
			return
		}
	}
}

// An endpoint counts until socket and segment are closed and unmapped, in any order.
func TestEndpointCountsUntilAllIsClosed(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	for kept, keep := range map[string]func(a *app) (release func() error){
		"nothing": func(a *app) func() error {
			testutil.Must(t, errors.Join(a.sock.Close(), xsk.UnmapSegment(a.mem), a.closeGrant()))
			return nil
		},
		"the socket": func(a *app) func() error {
			fd, err := unix.FcntlInt(a.grant.XSK.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			testutil.Must(t, errors.Join(err, a.sock.Close(), xsk.UnmapSegment(a.mem), a.closeGrant()))
			return func() error { return unix.Close(fd) }
		},
		"a ring": func(a *app) func() error {
			testutil.Must(t, errors.Join(a.grant.XSK.Close(), xsk.UnmapSegment(a.mem), a.closeGrant()))
			return a.sock.Detach
		},
		"the segment": func(a *app) func() error {
			testutil.Must(t, errors.Join(a.sock.Close(), xsk.UnmapSegment(a.mem)))
			return a.grant.Segment.Close
		},
		"a mapping of the segment": func(a *app) func() error {
			testutil.Must(t, errors.Join(a.sock.Close(), a.closeGrant()))
			return func() error { return xsk.UnmapSegment(a.mem) }
		},
		"a page of it, to read": func(a *app) func() error {
			page, err := unix.Mmap(int(a.grant.Segment.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
			testutil.Must(t, errors.Join(err, a.sock.Close(), xsk.UnmapSegment(a.mem), a.closeGrant()))
			return func() error { return unix.Munmap(page) }
		},
	} {
		for _, attach := range []endpoint.Attachment{endpoint.AttachPort, endpoint.AttachQueue} {
			t.Run(kept+", "+attach.String(), func(t *testing.T) {
				a := l.openRequest(endpoint.Request{Attach: attach, Tags: []endpoint.Tag{endpoint.MessageTag(7)}})
				before := l.mux.Endpoints()
				if len(before) != 1 {
					t.Fatalf("endpoints %+v", before)
				}
				release := keep(a)
				a.sock = nil
				l.wantCounted(0, 1)
				testutil.Must(t, a.lease.Close())
				if list := l.mux.Endpoints(); len(list) != 0 {
					t.Errorf("still listed: %+v", list)
				}
				if release != nil {
					l.wantStillCounted(1)
					testutil.Must(t, release())
				}
				l.wantCounted(0, 0)
			})
		}
	}
}

// A grant that its owner never received stops counting, and so does a failed request.
func TestUnusedGrantStopsCounting(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	g, lease, err := l.openAs(mux.Owner{PID: 42, UID: 1000}, mux.Terms{}, endpoint.Request{Geometry: small})
	testutil.Must(t, err)
	l.wantCounted(1000, 1)
	testutil.Must(t, errors.Join(lease.Close(), g.Close()))
	l.wantCounted(1000, 0)
	l.open(endpoint.MessageTag(7))
	for _, tags := range [][]endpoint.Tag{{endpoint.MessageTag(1), {Kind: 99}}, {{Kind: 99}}, {endpoint.MessageTag(1), endpoint.MessageTag(7)}} {
		if _, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: tags}); err == nil {
			t.Error("a request with an invalid or held tag succeeded")
		}
		l.wantCounted(0, 1)
	}
	g, lease, err = l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small})
	testutil.Must(t, err)
	testutil.Must(t, errors.Join(g.Close(), lease.Close()))
	l.wantCounted(0, 1)
}

// When another endpoint has got a queue, the queue does not count for the endpoint before any more.
func TestQueueCountsForItsPresentEndpoint(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	ask := endpoint.Request{Attach: endpoint.AttachQueue}
	for range 5 {
		l.openRequest(ask).close()
	}
	last := l.openRequest(ask)
	l.wantCounted(0, 1)
	l.wantStillCounted(1)
	sendRaw(t, l.B, messageFrame(l.A.LinkAddr, l.B.LinkAddr, 9, 1, "to nobody"))
	_, err := last.lease.Claim(t.Context(), endpoint.MessageTag(9))
	testutil.Must(t, err)
	sendRaw(t, l.B, messageFrame(l.A.LinkAddr, l.B.LinkAddr, 9, 1, "to the last"))
	last.recv() // the polls for others did not change its entry
}

// An endpoint whose lease has ended counts also in each process that takes over, until its socket is closed.
func TestEndedLeaseIsTakenOver(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	c := l.serve(order{})
	a := l.openIn(c, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
	c.do(order{Do: "end", ID: a.grant.ID})
	c.kill()

	takeOver := func() {
		t.Helper()
		l.openConfig(mux.Config{Pin: l.pin})
	}
	for range 2 {
		takeOver()
		l.wantCounted(0, 1)
		if list := l.mux.Endpoints(); len(list) != 0 {
			t.Errorf("listed: %+v", list)
		}
		if _, _, err := l.mux.Present(t.Context(), me, a.grant.XSK, nil); !errors.Is(err, endpoint.ErrNotPresentable) {
			t.Errorf("present an endpoint that has ended: %v", err)
		}
		l.wantStillCounted(1)
		testutil.Must(t, l.mux.Abandon())
	}
	takeOver()
	a.closeDescriptors()
	l.wantCounted(0, 0)
	testutil.Must(t, l.mux.Abandon())
	takeOver()
	l.wantCounted(0, 0)
}

// A poll whether an endpoint's socket is closed needs a descriptor. If none is free it is repeated.
func TestFailedPollIsRepeated(t *testing.T) {
	l := openLab(t, mux.ModeAuto)
	a := l.open()
	testutil.Must(t, errors.Join(a.sock.Close(), xsk.UnmapSegment(a.mem), a.lease.Close()))
	a.sock = nil
	var usual unix.Rlimit
	testutil.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &usual))
	restore := func() { testutil.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &usual)) }
	defer restore()
	testutil.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: usual.Max}))
	l.wantStillCounted(1)
	restore()
	l.wantStillCounted(1)
	testutil.Must(t, a.grant.Segment.Close())
	l.wantCounted(0, 0)
}

// The next process ignores an alarm that no process has read, since the slot may have a new owner. The
// next frame raises the alarm again.
func TestAlarmThatNoProcessReadIsIgnored(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	c := l.serve(order{})
	a := l.openIn(c, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
	b := kernelUDP(t, l.B, "10.0.0.2:0")
	l.echo(b, a, "with a correct fill ring")
	c.kill()
	restore := a.advanceProducer(1_000_000)
	sendTo(t, b, "10.0.0.1:7000", "an alarm that no process reads")
	counters, err := ebpf.LoadPinnedMap(filepath.Join(l.onlyPins(), bpf.MuxMapCounters), nil)
	testutil.Must(t, err)
	defer counters.Close()
	testutil.Eventually(t, "the frame is dropped", func() bool {
		var perCPU []uint64
		testutil.Must(t, counters.Lookup(uint32(bpf.MuxUnetCounterUNET_DELIVER_BAD_FILL), &perCPU))
		return slices.Max(perCPU) == 1
	})
	restore()
	l.openConfig(mux.Config{Pin: l.pin})
	l.present(a)
	select {
	case <-a.lease.Done():
		t.Errorf("ended: %v", a.lease.Err())
	case <-time.After(100 * time.Millisecond):
	}
	a.advanceProducer(1_000_000)
	sendTo(t, b, "10.0.0.1:7000", "the next frame")
	testutil.Eventually(t, "revoked", func() bool { return errors.Is(a.lease.Err(), mux.ErrRevoked) })
}

// The port of a failed request is deleted as soon as possible, and does not count.
func TestPortOfFailedRequestIsDeleted(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	l.open(endpoint.MessageTag(7))
	before := listObjects(t, l.A)
	restore := l.mux.FailDeletions(unix.EPERM) // the kernel can still delete it, with its other end's namespace
	_, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: []endpoint.Tag{endpoint.MessageTag(7)}})
	if !errors.Is(err, unix.EPERM) || !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("got %v", err)
	}
	restore()
	testutil.Eventually(t, "the port is gone", func() bool { return slices.Equal(listObjects(t, l.A).links, before.links) })
	l.wantCounted(0, 1)
}

// A wildcard of a family stands for its first address.
func TestWildcardIsFirstAddressOfFamily(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	a := l.open()
	for wildcard, want := range map[netip.Addr]string{netip.IPv4Unspecified(): "10.0.0.1", netip.IPv6Unspecified(): "fd00::1", {}: "10.0.0.1"} {
		got, err := a.lease.Claim(t.Context(), endpoint.Tag{Kind: endpoint.TagUDP, Addr: wildcard})
		testutil.Must(t, err)
		if got.Addr != netip.MustParseAddr(want) {
			t.Errorf("%v became %v, want %s", wildcard, got, want)
		}
	}
	l = openLab(t, mux.ModeAuto)
	if got, err := l.open().lease.Claim(t.Context(), udpTag("[::]:0")); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("without IPv6: %v, %v", got, err)
	}
}

// On this kernel fill rings can be checked, and no warning is logged.
func TestNoWarningIfFillRingsCanBeChecked(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	var log logBuffer
	l.openConfig(mux.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if s := log.String(); strings.Contains(s, "fill ring") {
		t.Errorf("log: %s", s)
	}
}

// objectExists reports whether an object exists, and whether it belongs to a unet_note_vlan, which all muxes
// of a machine share, so that it can exist for another mux.
func objectExists(o netlab.BPFObject) (exists, shared bool) {
	var err error
	switch o.Kind {
	case "map":
		var m *ebpf.Map
		if m, err = ebpf.NewMapFromID(ebpf.MapID(o.ID)); err == nil {
			defer m.Close()
			info, infoErr := m.Info()
			shared = infoErr == nil && info.Name == bpf.MuxMapVlanNote
		}
	case "prog":
		shared, err = isNote(ebpf.ProgramID(o.ID))
	case "link":
		var l link.Link
		if l, err = link.NewFromID(link.ID(o.ID)); err == nil {
			defer l.Close()
			if info, infoErr := l.Info(); infoErr == nil {
				shared, _ = isNote(info.Program) // an error: it is being removed; the caller tries again
			}
		}
	}
	return !errors.Is(err, os.ErrNotExist), shared
}

func isNote(id ebpf.ProgramID) (bool, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return false, err
	}
	defer p.Close()
	info, err := p.Info()
	return err == nil && info.Name == bpf.MuxProgUnetNoteVlan, nil
}

// bpfObjects are the BPF objects of a process's descriptors. (Other tests may run on this machine.)
func bpfObjects(t *testing.T, pid int) map[netlab.BPFObject]bool {
	t.Helper()
	held, err := netlab.HeldBPF(pid)
	testutil.Must(t, err)
	return held
}

// namespaces counts the network namespaces to which a host has links: its peer's and those of ports.
func namespaces(t *testing.T, h *netlab.Host) int {
	t.Helper()
	n, err := h.KnownNamespaces()
	testutil.Must(t, err)
	return n
}

// After many endpoints and some killed processes no device, descriptor, namespace or BPF object is left, also
// while another process has a mux of its own.
func TestManyEndpointsLeaveNothing(t *testing.T) {
	netlab.RequireXDP(t)
	openLastingDescriptors(t)
	other := newPinLab(t)
	other.serve(order{})
	l := newPinLab(t)
	empty, namespacesBefore := listObjects(t, l.A), namespaces(t, l.A)
	l.openConfig(mux.Config{Pin: l.pin})
	objects := bpfObjects(t, os.Getpid())
	if len(objects) < 10 {
		t.Fatalf("objects of a mux: %v", objects)
	}
	attached := listObjects(t, l.A)
	tags := []endpoint.Tag{udpTag("10.0.0.1:0"), endpoint.TCPTag(netip.MustParseAddrPort("10.0.0.1:0")).AsBlock(), endpoint.MessageTag(0)}
	for i := range 20 { // objects are compared exactly, so one that is left is found
		req := endpoint.Request{Geometry: small, Tags: tags}
		if i%5 == 0 {
			req.Attach = endpoint.AttachQueue
		}
		g, lease, err := l.mux.OpenEndpoint(t.Context(), req)
		testutil.Must(t, err)
		if i%2 == 0 {
			testutil.Must(t, errors.Join(g.Close(), lease.Close()))
		} else {
			testutil.Must(t, errors.Join(lease.Close(), g.Close()))
		}
	}
	wantObjects(t, l.A, attached)
	testutil.Must(t, l.mux.Abandon())
	for range 2 {
		c := l.serve(order{})
		for object := range bpfObjects(t, c.cmd.Process.Pid) {
			objects[object] = true
		}
		l.openIn(c, endpoint.Request{Tags: tags}).closeDescriptors()
		c.do(order{Do: "endpoint", Request: endpoint.Request{Geometry: small, Tags: tags}}).Grant.Close()
		a := l.openIn(c, endpoint.Request{Tags: tags})
		c.kill()
		a.closeDescriptors()
	}
	l.openConfig(mux.Config{Pin: l.pin})
	testutil.Must(t, l.mux.Close())
	wantObjects(t, l.A, empty)
	testutil.Eventually(t, "no namespace is left", func() bool { return namespaces(t, l.A) == namespacesBefore })
	for object := range objects {
		testutil.Eventually(t, fmt.Sprintf("%v is gone", object), func() bool {
			exists, shared := objectExists(object)
			return !exists || shared && !bpfObjects(t, os.Getpid())[object]
		})
	}
}
