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

// An endpoint whose lease has ended and whose socket somebody holds is known to every
// process that takes over, until the socket is closed.
func TestEndedIsTakenOver(t *testing.T) {
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
			t.Errorf("present what has ended: %v", err)
		}
		l.wantStillCounted(1)
		must(t, l.mux.Abandon())
	}
	takeOver()
	a.leave()
	l.wantCounted(0, 0)
	must(t, l.mux.Abandon())
	takeOver()
	l.wantCounted(0, 0)
}

// A mux that cannot ask because it has no descriptor left asks again.
func TestNotFreedWhenItCannotBeAsked(t *testing.T) {
	l := openLab(t, mux.ModeGeneric)
	a := l.open()
	must(t, errors.Join(a.sock.Close(), xsk.UnmapSegment(a.mem), a.lease.Close()))
	a.sock = nil
	var usual unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &usual))
	restore := func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &usual)) }
	defer restore()
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: usual.Max}))
	l.wantStillCounted(1)
	restore()
	l.wantStillCounted(1)
	must(t, a.grant.Segment.Close())
	l.wantCounted(0, 0)
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

// A port of a request that failed is deleted as soon as it can be, and does not count.
func TestPortOfAFailedRequest(t *testing.T) {
	l := openLab(t, mux.ModeGeneric)
	l.open(endpoint.MessageTag(7))
	before := look(t, l.A)
	restore := l.mux.FailDeletions(unix.EPERM)
	_, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: []endpoint.Tag{endpoint.MessageTag(7)}})
	if !errors.Is(err, unix.EPERM) || !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("got %v", err)
	}
	if now := look(t, l.A); len(now.links) != len(before.links)+1 {
		t.Errorf("links %v, were %v", now.links, before.links)
	}
	restore()
	eventually(t, "the port is gone", func() bool { return slices.Equal(look(t, l.A).links, before.links) })
	l.wantCounted(0, 1)
}

// A wildcard of a family stands for the first address of it.
func TestWildcardAddr(t *testing.T) {
	l := openLab6(t)
	a := l.open()
	for wildcard, want := range map[netip.Addr]string{netip.IPv4Unspecified(): "10.0.0.1", netip.IPv6Unspecified(): "fd00::1", {}: "10.0.0.1"} {
		got, err := a.lease.Claim(t.Context(), endpoint.Tag{Kind: endpoint.TagUDP, Addr: wildcard})
		must(t, err)
		if got.Addr != netip.MustParseAddr(want) {
			t.Errorf("%v became %v, want %s", wildcard, got, want)
		}
	}
	l = openLab(t, mux.ModeGeneric)
	if got, err := l.open().lease.Claim(t.Context(), udpTag("[::]:0")); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("without IPv6: %v, %v", got, err)
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
