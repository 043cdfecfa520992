package mux_test

import (
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// wantNotFreed waits for longer than the mux waits between questions.
func wantNotFreed(t *testing.T, freed <-chan endpoint.Info) {
	t.Helper()
	select {
	case e := <-freed:
		t.Errorf("freed, and somebody holds it: %+v", e)
	case <-time.After(300 * time.Millisecond):
	}
}

// An endpoint whose lease has ended and whose socket somebody holds is known to every
// process that takes over, until the socket is closed.
func TestEndedIsTakenOver(t *testing.T) {
	l := newPinLab(t)
	c := l.serve(order{})
	a := l.openIn(c, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
	was := c.do(order{Do: "list"}).Endpoints[0]
	c.do(order{Do: "end", ID: a.grant.ID})
	c.kill()

	var adopted []endpoint.Info
	freed := make(chan endpoint.Info, 10)
	takeOver := func() {
		t.Helper()
		adopted = nil
		l.openConfig(mux.Config{Pin: l.pin, Adopted: func(e endpoint.Info) { adopted = append(adopted, e) },
			Freed: func(e endpoint.Info) { freed <- e }})
	}
	for range 2 {
		takeOver()
		if len(adopted) != 1 || adopted[0].ID != a.grant.ID || adopted[0].PID != was.PID || adopted[0].UID != was.UID || adopted[0].SegmentBytes != was.SegmentBytes {
			t.Fatalf("taken over %+v, was %+v", adopted, was)
		}
		if list := l.mux.Endpoints(); len(list) != 0 {
			t.Errorf("listed: %+v", list)
		}
		if _, _, err := l.mux.Present(t.Context(), me, a.grant.XSK, nil); !errors.Is(err, mux.ErrNotPresentable) {
			t.Errorf("present what has ended: %v", err)
		}
		wantNotFreed(t, freed)
		must(t, l.mux.Abandon())
	}
	takeOver()
	a.leave()
	if e := next(t, freed); e.ID != a.grant.ID {
		t.Errorf("freed %+v", e)
	}
	must(t, l.mux.Abandon())
	takeOver()
	if len(adopted) != 0 {
		t.Errorf("taken over after its end: %+v", adopted)
	}
}

// A mux that cannot ask because it has no descriptor left asks again.
func TestNotFreedWhenItCannotBeAsked(t *testing.T) {
	l, freed := freedLab(t)
	a := l.open()
	must(t, errors.Join(a.sock.Close(), xsk.UnmapSegment(a.mem), a.lease.Close()))
	a.sock = nil
	var usual unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &usual))
	restore := func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &usual)) }
	defer restore()
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: usual.Max}))
	wantNotFreed(t, freed)
	restore()
	wantNotFreed(t, freed)
	must(t, a.grant.Segment.Close())
	next(t, freed)
}

// An alarm that no process has read is not for whoever gets its slot: the next process
// does not act on it, and the next frame raises it again.
func TestOldAlarm(t *testing.T) {
	l := newPinLab(t)
	c := l.serve(order{})
	a := l.openIn(c, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
	b := kernelUDP(t, l.B, "10.0.0.2:0")
	l.echo(b, a, "while it behaves")
	c.kill()
	restore := a.runAway(1_000_000)
	sendTo(t, b, "10.0.0.1:7000", "an alarm that nobody reads")
	counters, err := ebpf.LoadPinnedMap(filepath.Join(l.onlyPins(), bpf.MuxMapCounters), nil)
	must(t, err)
	defer counters.Close()
	eventually(t, "the frame is dropped", func() bool {
		var perCPU []uint64
		must(t, counters.Lookup(uint32(bpf.MuxUnetCounterUNET_DELIVER_BAD_FILL), &perCPU))
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
	a.runAway(1_000_000)
	sendTo(t, b, "10.0.0.1:7000", "the next frame")
	eventually(t, "revoked", func() bool { return errors.Is(a.lease.Err(), mux.ErrRevoked) })
}

// A port of a request that failed is deleted as soon as it can be, and nobody is told
// that an endpoint was freed.
func TestPortOfAFailedRequest(t *testing.T) {
	l, freed := freedLab(t)
	before := look(t, l.A)
	restore := l.mux.FailDeletions(unix.EPERM)
	_, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: []endpoint.Tag{{Kind: 99}}})
	if !errors.Is(err, unix.EPERM) || !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("got %v", err)
	}
	if now := look(t, l.A); len(now.links) != len(before.links)+1 {
		t.Errorf("links %v, were %v", now.links, before.links)
	}
	restore()
	eventually(t, "the port is gone", func() bool { return slices.Equal(look(t, l.A).links, before.links) })
	if len(freed) != 0 {
		t.Errorf("freed: %+v", <-freed)
	}
}

// What a wildcard is said to stand for is what a claim gets.
func TestWildcardAddr(t *testing.T) {
	l := openLab6(t)
	a := l.open()
	for _, wildcard := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified(), {}} {
		addr, err := l.mux.WildcardAddr(wildcard)
		must(t, err)
		got, err := a.lease.Claim(t.Context(), endpoint.Tag{Kind: endpoint.TagUDP, Addr: wildcard})
		must(t, err)
		if got.Addr != addr || wildcard.IsValid() && addr.Is4() != wildcard.Is4() {
			t.Errorf("%v is said to be %v, claimed %v", wildcard, addr, got)
		}
	}
	l = openLab(t, mux.ModeGeneric)
	if addr, err := l.mux.WildcardAddr(netip.IPv6Unspecified()); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("without IPv6: %v, %v", addr, err)
	}
}

// On this kernel fill rings are looked at, and nobody is warned.
func TestFillRingsAreLookedAt(t *testing.T) {
	l := newPinLab(t)
	var log logBuffer
	l.openConfig(mux.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if s := log.String(); strings.Contains(s, "fill ring") {
		t.Errorf("log: %s", s)
	}
}
