package mux_test

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
)

// runAway claims that so many more entries are on an endpoint's fill ring, in the ring as
// its owner may map it, until restore.
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

// Who says that its fill ring holds more than it can loses its endpoint at the next
// frame, before the kernel looks at an entry in its sender's stead, and nobody else's is
// touched.
func TestRunawayFillRing(t *testing.T) {
	for _, mode := range []mux.Mode{mux.ModeGeneric, mux.ModeNative} {
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
			must(t, l.mux.LeaveFillRings()) // the next frame is to reveal it
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
