package unet

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/unet-go/unet/endpoint"
)

// givingLease is a lease whose Unclaim does not wait, so that the close of a socket does
// not wait for unetd. It queues the tag, and one goroutine gives the queued tags back, one
// after the other. While no unetd runs they stay queued. With the end of the lease all of
// them are given back. The queue has a tag once at most.
type givingLease struct {
	endpoint.Lease

	mu     sync.Mutex
	giving []endpoint.Tag // the queue; the request for the first has been sent
	given  chan struct{}  // closed, and replaced, when the first has been given back
}

func newGivingLease(l endpoint.Lease) *givingLease {
	return &givingLease{Lease: l, given: make(chan struct{})}
}

// Unclaim queues a tag to be given back. It returns nil at once.
func (g *givingLease) Unclaim(_ context.Context, t endpoint.Tag) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.giving = append(g.giving, t); len(g.giving) == 1 {
		go g.giveBack()
	}
	return nil
}

func (g *givingLease) giveBack() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.giving) > 0 {
		t := g.giving[0]
		g.mu.Unlock()
		g.Lease.Unclaim(context.Background(), t) // it fails only with the lease
		g.mu.Lock()
		g.giving = slices.Delete(g.giving, 0, 1)
		close(g.given)
		g.given = make(chan struct{})
	}
}

// Claim claims a tag. A queued tag other than the first still is the host's: Claim takes
// it out of the queue and returns it. If the tag is the first, or part of a queued block,
// Claim waits until that has been given back. If the claim fails with
// [endpoint.ErrBusy], because the host has as many tags as it may have, and tags are
// queued, Claim tries again when the first has been given back.
func (g *givingLease) Claim(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	for {
		g.mu.Lock()
		i := slices.IndexFunc(g.giving, func(o endpoint.Tag) bool { return overlap(t, o) })
		if i > 0 && g.giving[i] == t {
			g.giving = slices.Delete(g.giving, i, i+1)
			g.mu.Unlock()
			return t, nil
		}
		given, any := g.given, len(g.giving) > 0
		g.mu.Unlock()
		if i < 0 {
			tag, err := g.Lease.Claim(ctx, t)
			if !any || !errors.Is(err, endpoint.ErrBusy) {
				return tag, err
			}
		}
		select {
		case <-given:
		case <-ctx.Done():
			return endpoint.Tag{}, context.Cause(ctx)
		}
	}
}

// overlap reports whether two tags have a port in common.
func overlap(a, b endpoint.Tag) bool {
	return a.Kind == b.Kind && a.Addr == b.Addr && a.Port != 0 && a.Port <= b.LastPort() && b.Port <= a.LastPort()
}
