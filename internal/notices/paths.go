package notices

import (
	"context"
	"iter"
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
	loop chan *endpoint.Path // the paths that wait for the loop; nil if there is none
	// +checklocks:mu
	ended bool
}

// Paths is that of [endpoint.Lease]. A call takes the place of an earlier one, whose loop ends.
func (q *Paths) Paths(ctx context.Context) iter.Seq[*endpoint.Path] {
	loop := make(chan *endpoint.Path, maxPaths)
	q.mu.Lock()
	q.endLocked()
	if q.loop = loop; q.ended {
		q.endLocked()
	}
	q.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.loop == loop {
			q.endLocked()
		}
	})
	return func(yield func(*endpoint.Path) bool) {
		defer cancel()
		for p := range loop {
			if !yield(p) {
				return
			}
		}
	}
}

// Taken reports whether there is a loop with room for another path.
func (q *Paths) Taken() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.loop) < cap(q.loop)
}

// Give hands a path to the loop. If it returns false, there is no loop with room, and the path
// stays the caller's.
func (q *Paths) Give(p *endpoint.Path) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case q.loop <- p:
		return true
	default:
		return false
	}
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
	close(q.loop)
	for p := range q.loop {
		_ = p.Close()
	}
	q.loop = nil
}

// NoPaths are the methods of a lease that has no memory paths.
type NoPaths struct{}

func (NoPaths) OpenPath(context.Context, uint64) error  { return endpoint.ErrNoPath }
func (NoPaths) ClosePath(context.Context, uint64) error { return nil }

// Paths returns a loop that ends at once.
func (NoPaths) Paths(context.Context) iter.Seq[*endpoint.Path] {
	return func(func(*endpoint.Path) bool) {}
}
