//go:build linux

package pathlink

import (
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet/internal/mempath"
	"github.com/unet-go/unet/internal/tagtable"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// Socket is the link of an endpoint's socket.
type Socket interface {
	stack.Link
	// Watch makes Sleep return also when a descriptor becomes readable and pending reports true, which is the same for
	// all descriptors. Sleep calls it, in the goroutine that sleeps. Unwatch ends that.
	Watch(fd int, pending func() bool) error
	Unwatch(fd int) error
}

const (
	socketTurn = 8  // each such Borrow looks at the socket first, so that paths do not starve it
	parkTurn   = 16 // each such Borrow reads the clock
	visitTurn  = 8  // each such look or Borrow looks at the next of all paths, parked or not
	// parkTime is how long a path is looked at each time after its last frame, at least.
	parkTime = 5 * time.Millisecond
	// patience is how long a full path holds up its writer in a period, before frames for it are dropped.
	patience = 2 * time.Millisecond
	period   = 50 * time.Millisecond
	// frozen is how long a full path holds up the connections of TCP that use it. They hold up nobody else. Then their
	// segments are dropped, and they end as if the network had lost these.
	frozen = 200 * time.Millisecond
	// roomPause is how long a Sleep lasts at most while a frame waits for room in a path.
	roomPause = time.Millisecond
	// ownFrame marks the ID of a frame that was reserved to copy a received one into.
	ownFrame = 1 << 63
	// inPath is the ID of a frame whose memory is a path's ring, l.short or l.long: there is nothing to give back.
	inPath = 1 << 62
	// mostLong is the length in bytes of the longest frame of TCP in a path. Several fit in a ring, so that one is read
	// while the next is written.
	mostLong = 32 << 10
)

var (
	_ stack.PathLink   = (*Link)(nil)
	_ stack.SharedLink = (*Link)(nil)
)

// Link is one link over a socket and memory paths. It implements [stack.Link]; its other methods are called under the
// stack's lock, but Run.
type Link struct {
	socket Socket
	id     uint64 // of this endpoint
	addr   wire.LinkAddr
	table  *tagtable.View

	set      atomic.Pointer[set] // the paths; nil: none
	peers    map[uint64]*peer    // by endpoint
	last     *peer               // that a frame was sent to last
	reserved *path               // in which ReservePath has reserved room last
	room     []byte              // of the ring, if the frame is in short and Send copies it; nil: the frame is in the ring
	short    [2048]byte
	long     []byte    // of the frame that was borrowed last and is longer than the socket's
	turn     uint32    // counts calls of Borrow
	first    int       // path that frames are taken from first
	visited  int       // path that Borrow looks at in turn
	parkedAt time.Time // when park was called last
	borrowed uint64    // frames from the socket
	begun    []*path   // with frames that are not taken before fromSocket permits it
	dirty    []*path   // that Flush has to look after
	closed   bool

	full     atomic.Bool // a frame waits for room
	sleeping atomic.Bool // a goroutine is in Sleep, and may call SetAsleep of any path of the present set or the one before
	called   atomic.Bool // it is woken, since another goroutine takes frames
	gone     []*path     // that have ended while a goroutine was in Sleep

	asks []uint64      // endpoints that a path is wanted to, for Run
	over []uint64      // IDs of paths that have ended, for Run
	work chan struct{} // of capacity 1; there is something in asks or over

	counts [numCounters]uint64
}

// peer is an endpoint that frames were sent to.
type peer struct {
	id    uint64
	path  *path     // nil: none
	asked bool      // a path was asked for, and there is no answer yet
	again time.Time // not asked for before
}

// New makes a link over socket for the endpoint with that ID. Frames to addr, its own MAC address, are for this host.
func New(socket Socket, id uint64, addr wire.LinkAddr, table *tagtable.View) *Link {
	return &Link{socket: socket, id: id, addr: addr, table: table, peers: map[uint64]*peer{}, work: make(chan struct{}, 1)}
}

// Send implements [stack.Link]. A frame for a path is copied there before Send returns true, or dropped, and f is free.
func (l *Link) Send(f stack.Frame) bool {
	if f.ID == inPath {
		copy(l.room, f.Data)
		l.reserved.ring.Publish(len(f.Data))
		l.sent(l.reserved)
		return true
	}
	if len(f.Data) < wire.EthernetHeaderLen || wire.LinkAddr(f.Data[:6]) != l.addr {
		return l.socket.Send(f)
	}
	src, dst, ok := ends(f.Data)
	if !ok {
		return l.socket.Send(f)
	}
	p := l.pathFor(src, dst, len(f.Data))
	if p == nil {
		return l.socket.Send(f)
	}
	switch room := p.ring.Reserve(len(f.Data)); {
	case room != nil:
		copy(room, f.Data)
		p.ring.Publish(len(f.Data))
		l.sent(p)
	case p.ring.Err() != nil:
		l.counts[pathLies]++
		l.retire(p, lieTime)
		return l.socket.Send(f)
	case p.isFrozen() || p.outOfPatience():
		l.counts[pathStalled]++
	default:
		l.waitForRoom(p)
		return false
	}
	l.socket.Cancel(f)
	return true
}

// ReservePath implements [stack.PathLink].
func (l *Link) ReservePath(src, dst wire.AddrPort, n int) (f stack.Frame, ok bool) {
	n = min(n, mostLong)
	p := l.pathFor(end{src.Addr, wire.ProtocolTCP, src.Port}, end{dst.Addr, wire.ProtocolTCP, dst.Port}, n)
	if p == nil {
		return f, false
	}
	if room := p.ring.Reserve(n); room != nil {
		l.reserved, l.room = p, nil
		if n <= len(l.short) {
			// Headers are written in many small pieces, which is slow in memory that the other end's processor has.
			l.room, room = room, l.short[:n]
		}
		return stack.Frame{Data: room, ID: inPath}, true
	}
	p.hold()
	if p.ring.Err() != nil || p.isFrozen() { // Send ends the path, or drops the frame
		return f, false
	}
	l.waitForRoom(p)
	return f, true
}

// waitForRoom is called when a frame has to wait for room in a path.
func (l *Link) waitForRoom(p *path) {
	l.mark(p) // the other end may have to make room
	l.full.Store(true)
}

// pathFor is the path for a frame of n bytes to this host, nil if it goes by the port.
func (l *Link) pathFor(src, dst end, n int) *path {
	id := l.table.Holder(dst.addr, dst.protocol, dst.port)
	// The table may have had no room for the source, and then the reader would drop the frame.
	if id == 0 || id == l.id || l.table.Holder(src.addr, src.protocol, src.port) != l.id {
		return nil
	}
	if l.last == nil || l.last.id != id {
		p := l.peers[id]
		if p == nil {
			p = &peer{id: id}
			l.peers[id] = p
		}
		l.last = p
	}
	switch p := l.last.path; {
	case p == nil:
		l.ask(l.last)
	case p.closing || n > mempath.MaxFrame || !p.ring.Ready():
	case !p.valid(l.table, l.id):
		l.retire(p, 0)
	default:
		if !p.sending { // what goes there by the port is on its way before the first frame that goes by the path
			p.sending = true
			l.socket.Flush() // the next Flush reports an error
		}
		return p
	}
	return nil
}

// ask has Run ask for a path to a peer.
func (l *Link) ask(p *peer) {
	if p.asked {
		return
	}
	if !p.again.IsZero() && time.Now().Before(p.again) {
		return
	}
	p.asked = true
	l.asks = append(l.asks, p.id)
	l.hasWork()
}

// hasWork calls Run.
func (l *Link) hasWork() {
	select {
	case l.work <- struct{}{}:
	default:
	}
}

// Flush implements [stack.Link]: it kicks the socket, and wakes the peers that sleep.
func (l *Link) Flush() error {
	for _, p := range l.dirty {
		if p.dirty = false; !p.ended {
			p.ring.Flush()
		}
	}
	l.dirty = l.dirty[:0]
	return l.socket.Flush()
}

// Borrow implements [stack.Link].
func (l *Link) Borrow(frames []stack.Frame) int {
	if len(l.gone) > 0 {
		l.free()
	}
	s := l.set.Load()
	if s == nil {
		return l.socket.Borrow(frames)
	}
	if l.turn++; l.turn%parkTurn == 0 {
		l.park(s)
	}
	n := l.receive(s, frames)
	if l.turn%visitTurn == 0 {
		l.visited = s.visit(l.visited, n+1)
	}
	return n
}

// drain empties the bell of a path. It may have rung for a goroutine in Sleep, which would not see that, and the other end
// rings no more for it.
func (l *Link) drain(p *path) {
	p.ring.Drain()
	if l.sleeping.Load() && !l.called.Swap(true) {
		l.socket.Wake()
	}
}

// receive takes frames from the paths, or else from the socket.
func (l *Link) receive(s *set, frames []stack.Frame) int {
	if l.turn%socketTurn == 0 {
		if n := l.fromSocket(frames); n > 0 {
			return n
		}
	}
	if n := l.take(s, frames); n > 0 {
		return n
	}
	begun := len(l.begun) > 0
	n := l.fromSocket(frames)
	if s = l.set.Load(); n == 0 && begun && s != nil { // the first take may have ended paths
		n = l.take(s, frames)
	}
	return n
}

// fromSocket takes frames from the socket. It permits that frames are taken from the paths that had some before: by now the socket was
// empty, or it has lent as many frames as there were then.
func (l *Link) fromSocket(frames []stack.Frame) int {
	n := l.socket.Borrow(frames)
	l.borrowed += uint64(n)
	if len(l.begun) > 0 {
		l.begun = slices.DeleteFunc(l.begun, func(p *path) bool {
			p.mayTake = n == 0 || l.borrowed >= p.limit
			return p.mayTake
		})
	}
	return n
}

// take copies frames from the paths. If there are more than fit, the next call begins with the path behind.
func (l *Link) take(s *set, frames []stack.Frame) (n int) {
	for first, end := l.first, len(s.paths); ; first, end = 0, l.first {
		for w := first / 64; w*64 < end && w < len(s.active); w++ {
			m := s.active[w].Load()
			if w == first/64 {
				m &= ^uint64(0) << (uint(first) % 64)
			}
			for ; m != 0; m &= m - 1 {
				i := w*64 + bits.TrailingZeros64(m)
				if i >= end {
					break
				}
				if !s.paths[i].ring.Pending() {
					continue
				}
				n += l.takeNext(s, i, frames[n:])
				if n == len(frames) || n > 0 && frames[n-1].Volatile {
					l.first = i + 1
					return n
				}
			}
		}
		if first == 0 {
			return n
		}
	}
}

// takeNext takes frames from an active path that has some, or notes that it has.
func (l *Link) takeNext(s *set, i int, frames []stack.Frame) int {
	p := s.paths[i]
	p.recent = true
	if !p.mayTake {
		if !p.begun {
			p.begun, p.limit = true, l.borrowed+uint64(l.socket.Frames())
			l.begun = append(l.begun, p)
		}
		return 0
	}
	if s.armed.has(i) {
		s.armed.clear(i)
		l.drain(p)
	}
	return l.takeFrom(p, frames)
}

// park parks paths without frames, if the last call was long enough ago.
func (l *Link) park(s *set) {
	if now := time.Now(); now.Sub(l.parkedAt) >= parkTime {
		l.parkedAt = now
		s.park()
	}
}

func (l *Link) takeFrom(p *path, frames []stack.Frame) (n int) {
	if !p.valid(l.table, l.id) {
		l.retire(p, 0)
		return 0
	}
	waiting, err := p.ring.Scan(len(frames))
	for range min(waiting, len(frames)) { // more wait behind a frame that was the last of its batch
		f, ok := l.socket.Reserve(p.ring.Len())
		if !ok {
			p.ring.Take(nil)
			l.counts[pathNoFrame]++
			continue
		}
		f.ID |= ownFrame
		if len(f.Data) < p.ring.Len() {
			l.Return(f)
			if l.long == nil {
				l.long = make([]byte, mempath.MaxFrame)
			}
			f = stack.Frame{Data: l.long, ID: inPath, Volatile: true}
		}
		f.Data, f.NoChecksum = f.Data[:p.ring.Take(f.Data)], true
		if !l.permitted(p, f.Data) {
			l.counts[pathDenied]++
			l.Return(f)
			continue
		}
		frames[n] = f
		n++
		if f.Volatile {
			break
		}
	}
	l.counts[pathReceived] += uint64(n)
	p.used = p.used || n > 0
	p.ring.Flush() // the other end may wait for room
	if err != nil {
		l.counts[pathLies]++
		l.retire(p, lieTime)
	}
	return n
}

// permitted reports whether a frame is from this host to this host, and has a source that the peer holds and a destination that
// this endpoint holds. To the reader of a message, the source MAC address and the source tag are its sender's name.
func (l *Link) permitted(p *path, frame []byte) bool {
	src, dst, ok := ends(frame)
	return ok && wire.LinkAddr(frame[:6]) == l.addr && wire.LinkAddr(frame[6:12]) == l.addr && l.table.Holder(src.addr, src.protocol, src.port) == p.id && l.table.Holder(dst.addr, dst.protocol, dst.port) == l.id
}

// Return implements [stack.Link].
func (l *Link) Return(f stack.Frame) {
	switch {
	case f.ID == inPath:
	case f.ID&ownFrame == 0:
		l.socket.Return(f)
	default:
		f.ID &^= ownFrame
		l.socket.Cancel(f)
	}
}

// Cancel implements [stack.Link].
func (l *Link) Cancel(f stack.Frame) {
	if f.ID != inPath {
		l.socket.Cancel(f)
	}
}

// Reserve and Frames implement [stack.Link]: frames are the socket's.
func (l *Link) Reserve(n int) (stack.Frame, bool) { return l.socket.Reserve(n) }
func (l *Link) Frames() int                       { return l.socket.Frames() }

// Pending implements [stack.Link].
func (l *Link) Pending() bool {
	s := l.set.Load()
	if s == nil {
		return l.socket.Pending()
	}
	if s.looks++; s.looks%visitTurn == 0 {
		s.next = s.visit(s.next, 1)
	}
	return s.look() || l.socket.Pending()
}

// lookAtAll reports whether a frame waits in a path, also in one that is parked.
func (l *Link) lookAtAll() bool {
	s := l.set.Load()
	if s == nil {
		return false
	}
	if s.look() {
		return true
	}
	s.visit(0, len(s.paths))
	return s.look()
}

// Sleep implements [stack.Link]. Peers wake it by the bells of the paths, which the socket watches.
func (l *Link) Sleep(until time.Time, again bool) error { return l.SleepWith(nil, until, again) }

// SleepWith implements [stack.SharedLink], if the socket is such a link.
func (l *Link) SleepWith(others []stack.SharedLink, until time.Time, again bool) error {
	l.called.Store(false)
	l.sleeping.Store(true)
	defer l.sleeping.Store(false)
	s := l.set.Load()
	if s == nil {
		return l.sleep(others, until, again)
	}
	defer s.disarm()
	if s.arm() {
		return nil
	}
	if l.full.Swap(false) {
		if soon := time.Now().Add(roomPause); until.IsZero() || soon.Before(until) {
			until = soon
		}
	}
	return l.sleep(others, until, again)
}

// sleep sleeps on the socket.
func (l *Link) sleep(others []stack.SharedLink, until time.Time, again bool) error {
	if len(others) == 0 {
		return l.socket.Sleep(until, again)
	}
	return l.socket.(stack.SharedLink).SleepWith(others, until, again)
}

// Leave implements [stack.SharedLink], if the socket is such a link.
func (l *Link) Leave() { l.socket.(stack.SharedLink).Leave() }

// Wake implements [stack.Link].
func (l *Link) Wake() { l.socket.Wake() }
