package mux

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/unet-go/unet/internal/xsk"
)

// fillInterval is how long an owner who has won the race over its fill ring can
// keep a processor busy, about: ADR 11.
const fillInterval = 50 * time.Millisecond

const unsoundFill = "its fill ring had entries that are no frames of its segment"

// fillGuard looks at the fill rings of all ports now and then. The deliver
// programs look at a ring before each frame, but its owner can change it in the
// instant between that look and the kernel's own. The kernel then skips entries that
// are no frames, for as long as there are more; and it stops as soon as the guard
// writes a frame into one.
type fillGuard struct {
	mu    sync.Mutex
	rings map[*Lease]*guardedRing
	added chan struct{} // of capacity 1: rings is no longer empty
}

type guardedRing struct {
	*xsk.FillRing
	unsound bool // its owner is being revoked
}

func newFillGuard() fillGuard {
	return fillGuard{rings: map[*Lease]*guardedRing{}, added: make(chan struct{}, 1)}
}

// add begins to look at the fill ring of a port's socket.
func (g *fillGuard) add(l *Lease, sock *os.File) error {
	ring, err := xsk.MapFillRing(sock, l.fillSize, l.segmentBytes)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rings[l] = &guardedRing{FillRing: ring}
	select {
	case g.added <- struct{}{}:
	default:
	}
	return nil
}

// remove ends that. The mapping would hold the socket.
func (g *fillGuard) remove(l *Lease) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	ring := g.rings[l]
	if ring == nil {
		return nil
	}
	delete(g.rings, l)
	return ring.Unmap()
}

// look looks at all rings, and stops the kernel in those that are not sound. found
// are the leases whose rings were sound until now; busy says that some are not.
func (g *fillGuard) look() (found []*Lease, busy, empty bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for l, ring := range g.rings {
		if !ring.unsound && !ring.Sound(now) {
			ring.unsound = true
			found = append(found, l)
		}
		if ring.unsound {
			ring.Stop()
			busy = true
		}
	}
	return found, busy, len(g.rings) == 0
}

// guardFillRings runs until the mux is closed. Owners of unsound rings are revoked.
// Until one of them is, its ring is written again and again, for its owner may do so
// too.
func (m *Mux) guardFillRings() {
	for {
		found, busy, empty := m.fills.look()
		for _, l := range found {
			m.running.Go(func() { m.revoke(l, unsoundFill) })
		}
		switch {
		case m.ctx.Err() != nil:
			return
		case busy:
			runtime.Gosched()
		case empty:
			select {
			case <-m.fills.added:
			case <-m.ctx.Done():
			}
		default:
			select {
			case <-time.After(fillInterval):
			case <-m.ctx.Done():
			}
		}
	}
}

// revoke takes an endpoint back from an owner who harms others.
func (m *Mux) revoke(l *Lease, why string) {
	l.revoking.Do(func() {
		m.mu.Lock()
		o := l.owner
		m.users.bar(o.UID, time.Now().Add(barredFor))
		m.mu.Unlock()
		err := l.close(fmt.Errorf("%w: %s", ErrRevoked, why))
		m.log.Warn("endpoint revoked: "+why, "endpoint", l.id, "uid", o.UID, "pid", o.PID, "error", err)
	})
}
