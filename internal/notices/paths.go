package notices

import (
	"context"
	"iter"
	"slices"
	"sync"

	"github.com/unet-go/unet/endpoint"
)

// maxPaths bounds the memory paths that wait for a loop. Each has four descriptors.
const maxPaths = 16

// Paths hands the memory paths of one lease to the loop over them, so that the sender never
// waits. The zero value is ready to use.
type Paths struct {
	mu sync.Mutex
	// +checklocks:mu
	loop *pathLoop // nil if there is none
	// +checklocks:mu
	ended bool
}

type pathLoop struct {
	wake    chan struct{} // of capacity 1
	waiting []*endpoint.Path
}

// Paths is that of [endpoint.Lease]. A call takes the place of an earlier one, whose loop ends.
func (q *Paths) Paths(ctx context.Context) iter.Seq[*endpoint.Path] {
	one := &pathLoop{wake: make(chan struct{}, 1)}
	q.mu.Lock()
	q.endLocked()
	if q.loop = one; q.ended {
		q.endLocked()
	}
	q.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.loop == one {
			q.endLocked()
		}
	})
	return func(yield func(*endpoint.Path) bool) {
		defer cancel()
		for {
			p, more := q.take(ctx, one)
			switch {
			case p != nil && !yield(p), !more:
				return
			case p == nil:
				<-one.wake
			}
		}
	}
}

// take returns and removes the first path that waits for a loop; more is false if the loop has ended.
func (q *Paths) take(ctx context.Context, one *pathLoop) (p *endpoint.Path, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.loop != one || ctx.Err() != nil {
		return nil, false
	}
	if len(one.waiting) > 0 {
		p = one.waiting[0]
		one.waiting = slices.Delete(one.waiting, 0, 1)
	}
	return p, true
}

// Taken reports whether there is a loop with room for another path.
func (q *Paths) Taken() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.loop != nil && len(q.loop.waiting) < maxPaths
}

// Give hands a path to the loop, and closes an earlier one to the same endpoint that still
// waits. If it returns false, there is no loop with room, and the path stays the caller's.
func (q *Paths) Give(p *endpoint.Path) bool {
	q.Drop(p.Peer)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.loop == nil || len(q.loop.waiting) >= maxPaths {
		return false
	}
	q.loop.waiting = append(q.loop.waiting, p)
	q.loop.tell()
	return true
}

// Drop closes the path to an endpoint if it still waits for the loop.
func (q *Paths) Drop(peer uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.loop == nil {
		return
	}
	q.loop.waiting = slices.DeleteFunc(q.loop.waiting, func(p *endpoint.Path) bool {
		if p.Peer == peer {
			_ = p.Close()
		}
		return p.Peer == peer
	})
}

// End ends the loop and all later ones. It closes the paths that wait.
func (q *Paths) End() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.endLocked()
}

// endLocked ends the loop.
//
// +checklocks:q.mu
func (q *Paths) endLocked() {
	if q.loop == nil {
		return
	}
	for _, p := range q.loop.waiting {
		_ = p.Close()
	}
	q.loop.waiting = nil
	q.loop.tell()
	q.loop = nil
}

// tell wakes the loop.
func (one *pathLoop) tell() {
	select {
	case one.wake <- struct{}{}:
	default:
	}
}

// NoPaths are the methods of a lease that has no memory paths.
type NoPaths struct{}

func (NoPaths) OpenPath(context.Context, uint64) error  { return endpoint.ErrNoPath }
func (NoPaths) ClosePath(context.Context, uint64) error { return nil }

// Paths returns a loop that ends at once.
func (NoPaths) Paths(context.Context) iter.Seq[*endpoint.Path] {
	return func(func(*endpoint.Path) bool) {}
}
