//go:build linux

package mux_test

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// runAway adds entries to the producer index of an endpoint's fill ring, as its owner can, until
// restore.
func (a *app) runAway(entries uint32) (restore func()) {
	a.t.Helper()
	before := a.producer(func(p uint32) uint32 { return p + entries })
	if before < a.grant.Geometry.Prefilled() || before > 2*a.grant.Geometry.FillSize {
		a.t.Fatalf("this is not the producer's index: %d", before)
	}
	return func() { a.producer(func(uint32) uint32 { return before }) }
}

// producer changes the producer index of an endpoint's fill ring.
func (a *app) producer(change func(uint32) uint32) (before uint32) {
	a.t.Helper()
	ring, err := unix.Mmap(int(a.grant.XSK.Fd()), unix.XDP_UMEM_PGOFF_FILL_RING, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(a.t, err)
	before = binary.NativeEndian.Uint32(ring) // it comes first (struct xdp_ring, net/xdp/xsk_queue.h)
	binary.NativeEndian.PutUint32(ring, change(before))
	must(a.t, unix.Munmap(ring))
	return before
}

// An endpoint with more entries on its fill ring than its size is revoked at the next frame, before
// the kernel reads an entry, and no other endpoint is.
func TestOverfullFillRingIsRevokedAtNextFrame(t *testing.T) {
	t.Parallel()
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeGeneric, mux.ModeNative} {
		t.Run(mode.String(), func(t *testing.T) {
			l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}
			if mode == mux.ModeNative {
				listenGRO(t, l.B)
			}
			var log logBuffer
			l.openConfig(mux.Config{Mode: mode, Log: slog.New(slog.NewTextHandler(&log, nil))})
			good := l.open(udpTag("10.0.0.1:7001"))
			bad := l.open(udpTag("10.0.0.1:7000"), endpoint.MessageTag(7))
			b := kernelUDP(t, l.B, "10.0.0.2:0")
			l.echo(b, bad, "while it behaves")
			must(t, l.mux.LeaveFillRings()) // found at the next frame
			before := bad.sock.Fill.InFlight()
			bad.runAway(1_000_000)
			sendTo(t, b, "10.0.0.1:7000", "the next frame")
			eventually(t, "revoked", func() bool { return bad.lease.Err() != nil })
			if err := bad.lease.Err(); !errors.Is(err, mux.ErrRevoked) || !errors.Is(err, endpoint.ErrLeaseClosed) {
				t.Errorf("ended by %v", err)
			}
			if now := bad.sock.Fill.InFlight(); now > before {
				t.Errorf("the kernel went through the ring: of %d entries it has left %d", before, int32(now))
			}
			if c := l.count(); c["deliver_bad_fill"] != 1 {
				t.Errorf("counters: %v", c)
			}
			eventually(t, "it is in the log", func() bool { return strings.Contains(log.String(), "endpoint revoked") })
			bad.nothing("after the ring ran away")
			l.echo(b, good, "nothing happened to this one")
			if _, err := good.lease.Claim(t.Context(), udpTag("10.0.0.1:7000")); err != nil {
				t.Errorf("claim what was revoked: %v", err)
			}
			bad.close()
			l.wantCounted(0, 1)
		})
	}
}

// An endpoint whose fill ring has too many entries, or entries that are not frames, is revoked before
// a frame comes for it, and the others are not.
func TestInvalidFillRingIsRevokedWithoutFrame(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*app){
		"far ahead": func(a *app) { a.runAway(1_000_000) },
		"no frames": func(a *app) { a.litter(math.MaxUint64) },
	} {
		t.Run(name, func(t *testing.T) {
			l := openLab(t, mux.ModeAuto)
			good := l.open(udpTag("10.0.0.1:7001"))
			bad := l.open(udpTag("10.0.0.1:7000"))
			spoil(bad)
			<-bad.lease.Done()
			if err := bad.lease.Err(); !errors.Is(err, mux.ErrRevoked) || !errors.Is(err, endpoint.ErrLeaseClosed) {
				t.Errorf("ended by %v", err)
			}
			l.echo(kernelUDP(t, l.B, "10.0.0.2:0"), good, "nothing happened to this one")
		})
	}
}

// The fill ring of a presented endpoint is checked too.
func TestFillRingOfPresentedEndpointIsChecked(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	c := l.serve(order{})
	a := l.openIn(c, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
	c.kill()
	l.openConfig(mux.Config{Pin: l.pin})
	l.present(a)
	a.runAway(1_000_000)
	<-a.lease.Done()
	if err := a.lease.Err(); !errors.Is(err, mux.ErrRevoked) {
		t.Errorf("ended by %v", err)
	}
}

// If fill rings cannot be checked on the kernel, only trusted owners get ports, unless
// UncheckedFillRings is set.
func TestPortsWithoutFillRingChecksAreForTrustedOwners(t *testing.T) {
	defer mux.HideFillRings()()
	untrusted := func(l *lab) error {
		g, lease, err := l.openAs(me, mux.Terms{}, endpoint.Request{Geometry: small})
		if err == nil {
			must(t, errors.Join(g.Close(), lease.Close()))
		}
		return err
	}
	t.Run("refused", func(t *testing.T) {
		l := openLab(t, mux.ModeAuto)
		if err := untrusted(l); !errors.Is(err, mux.ErrFillRings) || !errors.Is(err, xsk.ErrNotSupported) {
			t.Errorf("a port for who is not trusted: %v", err)
		}
		l.open(udpTag("10.0.0.1:7000"))
	})
	t.Run("permitted", func(t *testing.T) {
		l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}
		l.openConfig(mux.Config{UncheckedFillRings: true})
		must(t, untrusted(l))
	})
}

// litter writes addr to all entries of an endpoint's fill ring.
func (a *app) litter(addr uint64) {
	a.t.Helper()
	const entries = 192 // offset of the entries, behind three cache lines of indices (struct xdp_umem_ring)
	size := entries + 8*int(a.grant.Geometry.FillSize)
	ring, err := unix.Mmap(int(a.grant.XSK.Fd()), unix.XDP_UMEM_PGOFF_FILL_RING, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(a.t, err)
	for at := entries; at < size; at += 8 {
		binary.NativeEndian.PutUint64(ring[at:], addr)
	}
	must(a.t, unix.Munmap(ring))
}
