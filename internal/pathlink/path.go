//go:build linux

package pathlink

import (
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/mempath"
	"github.com/unet-go/unet/internal/tagtable"
)

// path is a memory path in use. All but its ring is guarded by the stack's lock.
type path struct {
	id               uint64 // of the other endpoint
	granted          uint64 // endpoint.Path.ID
	epoch, peerEpoch uint64 // when it was made
	ring             *mempath.Path

	sending bool   // a frame was put in, or may be
	begun   bool   // a frame was seen in it, and the path is or was in Link.begun
	limit   uint64 // mayTake when the socket has lent so many frames, if it never gets empty
	mayTake bool   // what the other end has sent by the port before was taken in
	closing bool   // no frame is put in any more
	ended   bool   // it is not in the set any more
	dirty   bool   // it is in Link.dirty
	recent  bool   // it had frames since the last set.park

	addedAt  time.Time
	closedAt time.Time // when closing began
	used     bool      // since the last sweep
	idleAt   time.Time // when a sweep first found it unused; zero: it was used

	fullAt time.Time     // when a frame first found it full; zero: it has room
	waited time.Duration // for room, in the period that began at since
	since  time.Time
	heldAt time.Time // as fullAt, for a segment of TCP that waits without holding up others
}

// valid reports whether the mux has not ended the path.
func (p *path) valid(t *tagtable.View, own uint64) bool {
	return t.Epoch(own) == p.epoch && t.Epoch(p.id) == p.peerEpoch
}

// outOfPatience is called when the path is full; the wait for room begins with the first call. It reports whether frames for it are to be
// dropped: the writer has waited for patience in this period already. Others wait meanwhile.
func (p *path) outOfPatience() bool {
	now := time.Now()
	if p.fullAt.IsZero() {
		p.fullAt = now
		if now.Sub(p.since) > period {
			p.since, p.waited = now, 0
		}
	}
	return p.waited+now.Sub(p.fullAt) > patience
}

// hold is called when the path has no room for a segment of TCP.
func (p *path) hold() {
	if p.heldAt.IsZero() {
		p.heldAt = time.Now()
	}
}

// isFrozen reports whether the path has held segments up for too long.
func (p *path) isFrozen() bool { return !p.heldAt.IsZero() && time.Since(p.heldAt) > frozen }

// hasRoom is called when the path is not full any more.
func (p *path) hasRoom() {
	if !p.fullAt.IsZero() {
		p.waited += min(time.Since(p.fullAt), patience)
	}
	p.fullAt, p.heldAt = time.Time{}, time.Time{}
}

// sent is called after a frame was put in p.
func (l *Link) sent(p *path) {
	l.counts[pathSent]++
	p.used = true
	if !p.fullAt.IsZero() || !p.heldAt.IsZero() {
		p.hasRoom()
		l.drain(p) // the other end may have rung for room
	}
	l.mark(p)
}

// mark has the next Flush look after p.
func (l *Link) mark(p *path) {
	if !p.dirty {
		p.dirty = true
		l.dirty = append(l.dirty, p)
	}
}

// Add takes a path over that the mux has granted. If it cannot be used it is given back.
func (l *Link) Add(granted *endpoint.Path) {
	to := l.peers[granted.Peer]
	if to == nil {
		to = &peer{id: granted.Peer}
		l.peers[to.id] = to
	}
	if to.path != nil { // the mux has made another after that one had ended
		l.retire(to.path, 0)
	}
	to.asked = false
	ring, err := mempath.Open(granted)
	if err == nil {
		if err = l.socket.Watch(ring.Bell(), l.lookAtAll); err != nil {
			ring.Close()
		}
	}
	if err != nil {
		l.counts[pathBad]++
		to.again = time.Now().Add(refusedTime)
		l.giveBack(granted.ID)
		return
	}
	to.path = &path{id: granted.Peer, granted: granted.ID, epoch: granted.Epoch, peerEpoch: granted.PeerEpoch, ring: ring, addedAt: time.Now()}
	l.set.Store(l.set.Load().change(nil, to.path))
	l.socket.Wake() // a goroutine in Sleep does not look at this path yet
}

// retire ends the use of a path. No other is asked for to that endpoint within pause.
func (l *Link) retire(p *path, pause time.Duration) {
	if p.ended {
		return
	}
	p.ended = true
	l.socket.Unwatch(p.ring.Bell())
	p.ring.SetClosing()
	to := l.peers[p.id]
	to.path, to.again = nil, time.Now().Add(pause)
	l.set.Store(l.set.Load().change(p, nil))
	l.gone = append(l.gone, p)
	l.free()
	l.giveBack(p.granted)
}

// free closes the paths that have ended, unless a goroutine is in Sleep. One that begins to sleep later does not find them in the set.
func (l *Link) free() {
	if l.sleeping.Load() {
		l.socket.Wake()
		return
	}
	for _, p := range l.gone {
		p.ring.Close()
	}
	l.gone = l.gone[:0]
}

// giveBack has Run tell the mux that a path has ended.
func (l *Link) giveBack(id uint64) {
	l.over = append(l.over, id)
	l.hasWork()
}

// Close ends all paths, and closes the table. Nobody else uses the link any more, but Run may.
func (l *Link) Close() error {
	l.closed = true
	if s := l.set.Load(); s != nil {
		for _, p := range s.paths {
			l.retire(p, 0)
		}
	}
	return l.table.Close()
}
