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
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// advanceProducer adds entries to the producer index of an endpoint's fill ring, as its owner can, until
// restore.
func (a *app) advanceProducer(entries uint32) (restore func()) {
	a.t.Helper()
	before := a.changeProducer(func(p uint32) uint32 { return p + entries })
	if before < a.grant.Geometry.Prefilled() || before > 2*a.grant.Geometry.FillSize {
		a.t.Fatalf("producer index %d is not that of the ring", before)
	}
	return func() { a.changeProducer(func(uint32) uint32 { return before }) }
}

// changeProducer changes the producer index of an endpoint's fill ring.
func (a *app) changeProducer(change func(uint32) uint32) (before uint32) {
	a.t.Helper()
	ring, err := unix.Mmap(int(a.grant.XSK.Fd()), unix.XDP_UMEM_PGOFF_FILL_RING, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	testutil.Must(a.t, err)
	before = binary.NativeEndian.Uint32(ring) // it comes first (struct xdp_ring, net/xdp/xsk_queue.h)
	binary.NativeEndian.PutUint32(ring, change(before))
	testutil.Must(a.t, unix.Munmap(ring))
	return before
}

// If the producer index says that a fill ring has more entries than its size, its endpoint is revoked at the
// next frame, before the kernel reads an entry. Other endpoints are not revoked.
func TestOverfullFillRingIsRevokedAtNextFrame(t *testing.T) {
	t.Parallel()
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeNative} {
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
			l.echo(b, bad, "with a correct fill ring")
			testutil.Must(t, l.mux.StopFillRingChecks()) // found at the next frame
			before := bad.sock.Fill.InFlight()
			bad.advanceProducer(1_000_000)
			sendTo(t, b, "10.0.0.1:7000", "the next frame")
			testutil.Eventually(t, "revoked", func() bool { return bad.lease.Err() != nil })
			if err := bad.lease.Err(); !errors.Is(err, mux.ErrRevoked) || !errors.Is(err, endpoint.ErrLeaseClosed) {
				t.Errorf("ended by %v", err)
			}
			if now := bad.sock.Fill.InFlight(); now > before {
				t.Errorf("the kernel has read entries of the ring: %d were left before, %d are now", before, int32(now))
			}
			if c := l.count(); c["deliver_bad_fill"] != 1 {
				t.Errorf("counters: %v", c)
			}
			testutil.Eventually(t, "it is in the log", func() bool { return strings.Contains(log.String(), "endpoint revoked") })
			bad.wantNothing("with too many entries on its fill ring")
			l.echo(b, good, "to the other endpoint")
			if _, err := good.lease.Claim(t.Context(), udpTag("10.0.0.1:7000")); err != nil {
				t.Errorf("claim a tag of the revoked endpoint: %v", err)
			}
			bad.close()
			l.wantCounted(0, 1)
		})
	}
}

// An endpoint whose fill ring has too many entries, or entries that are not frames, is revoked although no
// frame comes for it. Other endpoints are not revoked.
func TestInvalidFillRingIsRevokedWithoutFrame(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*app){
		"too many entries":            func(a *app) { a.advanceProducer(1_000_000) },
		"entries that are not frames": func(a *app) { a.fillAllEntries(math.MaxUint64) },
	} {
		t.Run(name, func(t *testing.T) {
			l := openLab(t, mux.ModeAuto)
			good := l.open(udpTag("10.0.0.1:7001"))
			bad := l.open(udpTag("10.0.0.1:7000"))
			change(bad)
			<-bad.lease.Done()
			if err := bad.lease.Err(); !errors.Is(err, mux.ErrRevoked) || !errors.Is(err, endpoint.ErrLeaseClosed) {
				t.Errorf("ended by %v", err)
			}
			l.echo(kernelUDP(t, l.B, "10.0.0.2:0"), good, "to the other endpoint")
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
	a.advanceProducer(1_000_000)
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
			testutil.Must(t, errors.Join(g.Close(), lease.Close()))
		}
		return err
	}
	t.Run("refused", func(t *testing.T) {
		l := openLab(t, mux.ModeAuto)
		if err := untrusted(l); !errors.Is(err, mux.ErrFillRings) || !errors.Is(err, xsk.ErrNotSupported) {
			t.Errorf("a port for an untrusted owner: %v", err)
		}
		l.open(udpTag("10.0.0.1:7000"))
	})
	t.Run("permitted", func(t *testing.T) {
		l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}
		l.openConfig(mux.Config{UncheckedFillRings: true})
		testutil.Must(t, untrusted(l))
	})
}

// fillAllEntries writes addr to all entries of an endpoint's fill ring.
func (a *app) fillAllEntries(addr uint64) {
	a.t.Helper()
	const entries = 192 // offset of the entries, behind three cache lines of indices (struct xdp_umem_ring)
	size := entries + 8*int(a.grant.Geometry.FillSize)
	ring, err := unix.Mmap(int(a.grant.XSK.Fd()), unix.XDP_UMEM_PGOFF_FILL_RING, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	testutil.Must(a.t, err)
	for at := entries; at < size; at += 8 {
		binary.NativeEndian.PutUint64(ring[at:], addr)
	}
	testutil.Must(a.t, unix.Munmap(ring))
}
