//go:build linux

package pathlink

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/unet-go/unet/endpoint"
)

const (
	requestTimeout = 5 * time.Second
	refusedTime    = 5 * time.Second // no path is asked for again after a refusal
	failedTime     = time.Second     // the same after an error that was no refusal
	lieTime        = time.Hour       // the same after a lie of the other end
	sweepTime      = time.Second
	idleTime       = time.Minute     // a path without frames is given back
	absentTime     = 5 * time.Second // the same of one that the other end has not opened, or does not close
)

// Run asks for paths and gives them back, until ctx or the lease ends. do calls a function under the stack's lock.
func (l *Link) Run(ctx context.Context, lease endpoint.Lease, do func(func())) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	granted := make(chan *endpoint.Path)
	paths := lease.Paths(ctx)
	go func() {
		defer close(granted)
		for p := range paths {
			select {
			case granted <- p:
			case <-ctx.Done():
				p.Close()
			}
		}
	}()
	sweep := time.NewTicker(sweepTime)
	defer sweep.Stop()
	for {
		select {
		case p, more := <-granted:
			if !more {
				return
			}
			do(func() {
				if l.closed {
					p.Close()
				} else {
					l.Add(p)
				}
			})
		case <-l.work:
			l.request(ctx, lease, do)
		case now := <-sweep.C:
			do(func() {
				if !l.closed {
					l.sweep(now)
				}
			})
		}
	}
}

// request makes the requests that are wanted. Before a path can be asked for, the mux has to have the last one back.
func (l *Link) request(ctx context.Context, lease endpoint.Lease, do func(func())) {
	var over, asks []uint64
	do(func() {
		over, asks = slices.Clone(l.over), slices.Clone(l.asks)
		l.over, l.asks = l.over[:0], l.asks[:0]
	})
	for _, id := range over {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		// Without an answer the mux has it back later: while no unetd runs there are no paths.
		lease.ClosePath(ctx, id)
		cancel()
	}
	for _, id := range asks {
		l.open(ctx, lease, id, do)
	}
}

// open asks for a path. It comes by Paths.
func (l *Link) open(ctx context.Context, lease endpoint.Lease, id uint64, do func(func())) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := lease.OpenPath(ctx, id)
	do(func() {
		p := l.peers[id]
		if p == nil { // it was granted meanwhile, by the other end's request, and has ended
			return
		}
		p.asked = false
		switch {
		case err == nil:
			p.again = time.Now().Add(failedTime) // it is on its way
		case errors.Is(err, endpoint.ErrNoPath):
			l.counts[pathRefused]++
			p.again = time.Now().Add(refusedTime)
		default:
			p.again = time.Now().Add(failedTime)
		}
	})
}

// sweep ends paths that the mux or the other end has ended, gives idle ones back, and forgets endpoints.
func (l *Link) sweep(now time.Time) {
	l.free()
	if s := l.set.Load(); s != nil {
		l.park(s)
		for _, p := range s.paths {
			l.sweepPath(p, now)
		}
	}
	for id, p := range l.peers {
		if p.path == nil && !p.asked && now.After(p.again) {
			delete(l.peers, id)
			if l.last == p {
				l.last = nil
			}
		}
	}
}

// sweepPath gives a path back in two steps, so that no frame is lost: who wants to end it puts no frame in any more and says
// so, the other end answers the same, and each ends it when it has taken what is left. Of an end that does not answer nothing is awaited.
func (l *Link) sweepPath(p *path, now time.Time) {
	switch {
	case p.used:
		p.used, p.idleAt = false, time.Time{}
	case p.idleAt.IsZero():
		p.idleAt = now
	}
	theirs := p.ring.Closing()
	absent := !p.ring.Ready() && !theirs && now.Sub(p.addedAt) > absentTime
	switch {
	case !p.valid(l.table, l.id) || absent:
		l.retire(p, 0)
	case p.closing:
		if theirs && !p.ring.Pending() || now.Sub(p.closedAt) > absentTime {
			l.retire(p, 0)
		}
	case theirs || !p.idleAt.IsZero() && now.Sub(p.idleAt) >= idleTime:
		p.closing, p.closedAt = true, now
		p.ring.SetClosing()
	}
}
