package ports

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/unet-go/unet/endpoint"
)

// Lease is a lease whose Unclaim does not wait, so that the close of a socket does
// not wait for unetd. It queues the tag, and one goroutine releases the queued tags, one
// after the other. While no unetd runs they stay queued. The end of the lease releases all of
// them. No tag is in the queue twice.
type Lease struct {
	endpoint.Lease

	mu sync.Mutex
	// +checklocks:mu
	releasing []endpoint.Tag // the queue; the request for the first has been sent
	// +checklocks:mu
	released chan struct{} // closed, and replaced, when the first has been released
}

// NewLease makes a Lease of l.
func NewLease(l endpoint.Lease) *Lease {
	return &Lease{Lease: l, released: make(chan struct{})}
}

// Unclaim queues a tag to be released. It returns nil at once.
func (g *Lease) Unclaim(_ context.Context, t endpoint.Tag) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.releasing = append(g.releasing, t); len(g.releasing) == 1 {
		go g.releaseQueued()
	}
	return nil
}

func (g *Lease) releaseQueued() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.releasing) > 0 {
		t := g.releasing[0]
		g.mu.Unlock()
		g.release(t)
		g.mu.Lock()
		g.releasing = slices.Delete(g.releasing, 0, 1)
		close(g.released)
		g.released = make(chan struct{})
	}
}

// release asks unetd to release a tag. It repeats a request that unetd had no room for, as
// when it was stopped for some seconds. After another error the tag stays claimed until the
// lease ends.
func (g *Lease) release(t endpoint.Tag) {
	const longest = time.Second
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, longest) {
		if err := g.Lease.Unclaim(context.Background(), t); !errors.Is(err, endpoint.ErrBusy) {
			return
		}
		select {
		case <-time.After(pause):
		case <-g.Done():
			return
		}
	}
}

// Claim claims a tag. If t is in the queue and not the first, the host still holds it:
// Claim takes it out of the queue and returns it. If t is the first, or has a port in
// common with another queued tag, Claim waits until that one has been released. If the
// claim fails with [endpoint.ErrBusy] (the host has as many tags as it may have) and tags
// are queued, Claim tries again when the first has been released.
func (g *Lease) Claim(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	for {
		g.mu.Lock()
		i := slices.IndexFunc(g.releasing, func(o endpoint.Tag) bool { return overlap(t, o) })
		if i > 0 && g.releasing[i] == t {
			g.releasing = slices.Delete(g.releasing, i, i+1)
			g.mu.Unlock()
			return t, nil
		}
		released, any := g.released, len(g.releasing) > 0
		g.mu.Unlock()
		if i < 0 {
			tag, err := g.Lease.Claim(ctx, t)
			if !any || !errors.Is(err, endpoint.ErrBusy) {
				return tag, err
			}
		}
		select {
		case <-released:
		case <-ctx.Done():
			return endpoint.Tag{}, context.Cause(ctx)
		}
	}
}

// overlap reports whether two tags have a port in common.
func overlap(a, b endpoint.Tag) bool {
	return a.Kind == b.Kind && a.Addr == b.Addr && a.Port != 0 && a.Port <= b.LastPort() && b.Port <= a.LastPort()
}
