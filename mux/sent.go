//go:build linux

package mux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/mux/internal/attach"
	"github.com/unet-go/unet/mux/internal/tables"
)

// The mux sends some frames for an endpoint itself, by packet sockets that no port program sees: the
// RSTs of its end and the answers after it (reset.go), the probes for an address before it is granted
// (route.Resolver.Vacant), and its announcements (announce.go). They are paid before they are sent, from the buckets of the endpoint and of its user, so that
// the rates of the policy bound all that is sent for them, and counted as mux_* (ADR 45).
//
// Each user, with or without rates, also has one bucket for these frames alone. It bounds what one user makes
// unetd do.

// ownRate and ownBurst are the bucket of each user, in frames a second and frames.
const (
	ownRate  = 16384
	ownBurst = 16384
)

// maxOwnUsers is the number of these buckets from which on full ones are deleted when one is added. A bucket is full a second
// after its user's last frame, so there are more only if more users make unetd send within a second.
const maxOwnUsers = 4096

// payTime is how long a claim waits for the rate of its user to permit the frames that it takes.
const payTime = 3 * time.Second

// clock is the present time of the programs' clock.
func clock() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(fmt.Sprintf("BUG: clock_gettime: %v", err))
	}
	return time.Duration(now.Nano())
}

// pay takes up to n frames of a number of bytes from what an endpoint and its user may send. It returns how
// many there is enough for. What a port program takes from a bucket between the read and the write here, a
// microsecond, is lost (ADR 41).
func (r *rates) pay(l *Lease, n, size int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	uid, now := l.uid, clock()
	own := r.ownOf(uid, now)
	try := *own
	n = try.Take(n, size, now)
	var limits [2]struct {
		table *ebpf.Map
		key   uint32
		limit bpf.Limit
	}
	found := 0
	for _, of := range []struct {
		rate  endpoint.Rate
		table *ebpf.Map
		key   uint32
	}{{l.rates.Endpoint, r.progs.Maps.PortLimits, l.at.owner.Port}, {l.rates.User, r.progs.Maps.UserLimits, uid}} {
		if of.rate == (endpoint.Rate{}) {
			continue
		}
		limit, there, err := tables.ReadLimit(of.table, of.key)
		if err != nil {
			r.log.Warn("rates of an endpoint", "endpoint", l.id, "uid", uid, "error", err)
			return 0
		}
		if !there { // as in src/limit.h
			continue
		}
		to := &limits[found]
		to.table, to.key, to.limit = of.table, of.key, limit
		n = limit.Take(n, size, now)
		found++
	}
	if n == 0 {
		return 0
	}
	for i := range limits[:found] {
		to := &limits[i]
		to.limit.Take(n, size, now)
		if err := tables.WriteLimit(to.table, to.key, &to.limit); err != nil {
			r.log.Warn("rates of an endpoint", "endpoint", l.id, "uid", uid, "error", err)
			return 0
		}
	}
	own.Take(n, size, now)
	return n
}

// ownOf is the bucket of a user for frames that the mux sends. mu is held.
//
// +checklocks:r.mu
func (r *rates) ownOf(uid uint32, now time.Duration) *bpf.Limit {
	if own := r.own[uid]; own != nil {
		return own
	}
	if len(r.own) >= maxOwnUsers {
		for of, own := range r.own {
			if own.FullAt() <= now {
				delete(r.own, of)
			}
		}
	}
	own := &bpf.Limit{Packets: bpf.NewBucket(ownRate, ownBurst), Last: uint64(now)}
	r.own[uid] = own
	return own
}

// payFor pays n frames of a number of bytes, and waits until there is enough for them. The error is
// endpoint.ErrBusy if that takes longer than payTime.
func (r *rates) payFor(ctx context.Context, l *Lease, n, size int) error {
	busy := fmt.Errorf("%w: the rate that the policy permits leaves no packets for it: send less, or try again", endpoint.ErrBusy)
	ctx, cancel := context.WithTimeoutCause(ctx, payTime, busy)
	defer cancel()
	for {
		if n -= r.pay(l, n, size); n == 0 {
			return nil
		}
		select {
		case <-time.After(10 * resetPause):
		case <-ctx.Done():
			r.sender.count(bpf.MuxRate, n)
			return context.Cause(ctx)
		}
	}
}

// A membership makes the kernel report: twice when it begins, and twice when it ends (RFC 3376, section 8.1, and RFC
// 3810, section 9.1).
const reportsOfMembership = 4

// pay pays the frames that a request for tags causes: the probes for owned addresses, their first announcements, and the kernel's
// reports of memberships. For an owned IPv6 address there are two memberships of its solicited-node group: during the probes,
// and while it is held.
func (c *claiming) pay(ctx context.Context) error {
	for _, t := range c.tags {
		frames := 0
		switch {
		case isGroup(t) && t.Addr.IsMulticast():
			frames = reportsOfMembership
		case t.Kind == endpoint.TagAddr && t.Addr.Is6():
			frames = route.VacantProbes + 1 + 2*reportsOfMembership
		case t.Kind == endpoint.TagAddr:
			frames = route.VacantProbes + 1
		}
		if frames == 0 {
			continue
		}
		if err := c.m.rates.payFor(ctx, c.l, frames, claimFrame); err != nil {
			return fmt.Errorf("claim %v: %w", t, err)
		}
	}
	return nil
}

// claimFrame is about the length of these frames, in bytes.
const claimFrame = 90

// sender sends the frames, and counts them.
type sender struct {
	fd    int // a packet socket that only sends
	progs *attach.Programs
	log   *slog.Logger

	mu     sync.Mutex // also guards the counters that count writes
	closed bool       // +checklocks:mu
}

// count adds n frames to one of the counters of frames that the mux sends, which only user space writes.
func (s *sender) count(c bpf.Counter, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed { // a probe that was in progress
		return
	}
	if err := s.progs.Maps.AddToCounter(c, n); err != nil {
		s.log.Warn("counter of frames sent by unetd", "counter", bpf.CounterName(c), "error", err)
	}
}

// stop ends the counting, before the tables are closed.
func (s *sender) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// send sends a frame by a device without waiting, and counts it. An error that is
// errFull: the device's queue is full.
func (s *sender) send(frame []byte, ifindex int, as bpf.Counter) error {
	err := unix.Sendto(s.fd, frame, unix.MSG_DONTWAIT, &unix.SockaddrLinklayer{Ifindex: ifindex})
	// ENOBUFS of a port: the backlog of its inner end was full, which is counted as lost_deliver_backlog. In
	// native mode the frame is not counted there.
	if err == nil || as == bpf.MuxLocal && err == unix.ENOBUFS && s.progs.Mode != ModeNative {
		s.count(as, 1)
	}
	if err == unix.EAGAIN || err == unix.ENOBUFS {
		return errFull
	}
	return err
}

var errFull = errors.New("the device's queue is full")
