// Package memlink makes pairs of links in memory, on which a [stack.Stack] runs without a
// kernel, on any system. It is for tests, also those of other packages, and for examples.
//
// Each link has a number of frames, half of which wait to be filled by the peer. Flush
// copies what was sent into the peer's frames, one by one, and takes back the sender's, as a
// veth pair does in the sender's system call. Every frame has an owner, and misuse panics
// with "BUG:": a frame that is returned twice, or sent without being reserved. [Link.Audit]
// reports frames that were not given back; at the end of a test there must be none.
//
// A test can look at every frame and drop it ([Link.Filter]), and send any frame to a
// link ([Link.Inject]).
package memlink

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet/stack"
)

// Config of a pair of links. The zero value works.
type Config struct {
	FrameSize  int // bytes; default 2048
	FrameCount int // frames of each link; default 512
	TxSize     int // frames that may be sent before a Flush; default 64
}

// owner is the party that may access a frame.
type owner uint8

const (
	ownerFill   owner = iota // waits for the peer to fill it
	ownerPool                // may be reserved
	ownerRx                  // filled, not yet borrowed
	ownerReader              // borrowed
	ownerWriter              // reserved
	ownerTx                  // sent, not yet flushed
	owners
)

var ownerNames = [owners]string{"fill", "pool", "received", "borrowed", "reserved", "sent"}

// Link is one end of a pair. It implements [stack.Link]. Its own methods may be
// called from any goroutine.
type Link struct {
	peer *Link

	pending atomic.Int32 // len(rx)
	asleep  atomic.Bool
	sleeper atomic.Pointer[Link] // sleeps for this link, see SleepWith; nil: itself
	left    atomic.Bool          // Leave was called
	wake    chan struct{}

	mu     *sync.Mutex // of the pair
	cfg    Config
	memory []byte
	owner  []owner
	fill   []uint64 // stacks of frame numbers
	pool   []uint64
	tx     []stack.Frame
	rx     []stack.Frame // a queue from rxHead on
	rxHead int
	stuck  bool
	filter func(frame []byte) bool
	lost   uint64
	broken error
	kick   error
}

// Pair makes two links that are each other's peer.
func Pair(cfg Config) (a, b *Link) {
	cfg = Config{cmp.Or(cfg.FrameSize, 2048), cmp.Or(cfg.FrameCount, 512), cmp.Or(cfg.TxSize, 64)}
	mu := new(sync.Mutex)
	a, b = newLink(cfg, mu), newLink(cfg, mu)
	a.peer, b.peer = b, a
	return a, b
}

func newLink(cfg Config, mu *sync.Mutex) *Link {
	l := &Link{
		mu:     mu,
		wake:   make(chan struct{}, 1),
		cfg:    cfg,
		memory: make([]byte, cfg.FrameSize*cfg.FrameCount),
		owner:  make([]owner, cfg.FrameCount),
	}
	for i := range cfg.FrameCount {
		if i < cfg.FrameCount/2 {
			l.fill = append(l.fill, uint64(i))
		} else {
			l.owner[i] = ownerPool
			l.pool = append(l.pool, uint64(i))
		}
	}
	return l
}

func (l *Link) data(id uint64) []byte {
	at := int(id) * l.cfg.FrameSize
	return l.memory[at : at+l.cfg.FrameSize : at+l.cfg.FrameSize]
}

// pass moves a frame from one owner to another.
func (l *Link) pass(id uint64, from, to owner) {
	if id >= uint64(len(l.owner)) {
		panic(fmt.Sprintf("BUG: memlink: there is no frame %d", id))
	}
	if l.owner[id] != from {
		panic(fmt.Sprintf("BUG: memlink: frame %d is not %s but %s", id, ownerNames[from], ownerNames[l.owner[id]]))
	}
	l.owner[id] = to
}

// Borrow implements [stack.Link].
func (l *Link) Borrow(frames []stack.Frame) (n int) {
	if l.left.Load() {
		panic("BUG: memlink: Borrow after Leave")
	}
	if l.pending.Load() == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := l.rx[l.rxHead:]
	for n < len(rest) && n < len(frames) {
		whole := n + 1
		for whole < len(rest) && rest[whole-1].More {
			whole++
		}
		if whole > len(frames) {
			if n == 0 {
				panic("BUG: memlink: a packet has more parts than the batch has room for")
			}
			break
		}
		n += copy(frames[n:whole], rest[n:whole])
	}
	for _, f := range frames[:n] {
		l.pass(f.ID, ownerRx, ownerReader)
	}
	if l.rxHead += n; l.rxHead == len(l.rx) {
		l.rx, l.rxHead = l.rx[:0], 0
	}
	l.pending.Add(int32(-n))
	return n
}

// Return implements [stack.Link]. The frame goes to the frames that wait to be filled or
// to the pool, whichever has fewer.
func (l *Link) Return(f stack.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.home(f.ID, ownerReader)
}

func (l *Link) home(id uint64, from owner) {
	if len(l.fill) <= len(l.pool) {
		l.pass(id, from, ownerFill)
		l.fill = append(l.fill, id)
	} else {
		l.pass(id, from, ownerPool)
		l.pool = append(l.pool, id)
	}
}

// Cancel implements [stack.Link]. The frame goes where those from Return go.
func (l *Link) Cancel(f stack.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.home(f.ID, ownerWriter)
}

// Reserve implements [stack.Link]. All frames have the same size.
func (l *Link) Reserve(int) (stack.Frame, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := len(l.pool) - 1
	if k < 0 {
		return stack.Frame{}, false
	}
	id := l.pool[k]
	l.pool = l.pool[:k]
	l.pass(id, ownerPool, ownerWriter)
	return stack.Frame{Data: l.data(id), ID: id}, true
}

// Send implements [stack.Link].
func (l *Link) Send(f stack.Frame) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.tx) == l.cfg.TxSize {
		return false
	}
	l.pass(f.ID, ownerWriter, ownerTx)
	l.tx = append(l.tx, f)
	return true
}

// Flush implements [stack.Link].
func (l *Link) Flush() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		return l.broken
	}
	if l.kick != nil {
		return l.kick
	}
	if l.stuck {
		return nil
	}
	for _, f := range l.tx {
		if l.filter != nil && !l.filter(f.Data) {
			l.lost++
		} else {
			l.peer.receive(f)
		}
		l.home(f.ID, ownerTx)
	}
	l.tx = l.tx[:0]
	l.peer.arrived()
	return nil
}

// receive copies f into a frame of l's own, or loses it if none waits. mu is
// held.
func (l *Link) receive(f stack.Frame) {
	k := len(l.fill) - 1
	if k < 0 || len(f.Data) > l.cfg.FrameSize {
		l.lost++
		return
	}
	id := l.fill[k]
	l.fill = l.fill[:k]
	l.pass(id, ownerFill, ownerRx)
	f.Data = l.data(id)[:copy(l.data(id), f.Data)]
	f.ID = id
	l.rx = append(l.rx, f)
	l.pending.Add(1)
}

// arrived wakes the goroutine that sleeps on l.
func (l *Link) arrived() {
	if !l.asleep.Load() {
		return
	}
	if other := l.sleeper.Load(); other != nil {
		other.Wake()
	} else {
		l.Wake()
	}
}

// Frames implements [stack.Link].
func (l *Link) Frames() int { return l.cfg.FrameCount }

// Pending implements [stack.Link].
func (l *Link) Pending() bool { return l.pending.Load() != 0 }

// Sleep implements [stack.Link].
func (l *Link) Sleep(until time.Time, _ bool) error {
	l.mu.Lock()
	err := l.broken
	l.mu.Unlock()
	if err != nil {
		return err
	}
	l.asleep.Store(true)
	defer l.asleep.Store(false)
	if l.Pending() {
		return nil
	}
	if until.IsZero() {
		<-l.wake
		return nil
	}
	// Two goroutines of a synctest bubble that wait at a time for timers that are due already
	// stop the race detector (Go 1.26, https://go.dev/issue/78156).
	pause := time.Until(until)
	if pause <= 0 {
		return nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-l.wake:
	case <-timer.C:
	}
	return nil
}

// SleepWith implements [stack.SharedLink].
func (l *Link) SleepWith(others []stack.SharedLink, until time.Time, again bool) error {
	if len(others) == 0 {
		return l.Sleep(until, again)
	}
	l.sleeper.Store(others[len(others)-1].(*Link))
	defer l.sleeper.Store(nil)
	l.asleep.Store(true)
	defer l.asleep.Store(false)
	if l.Pending() {
		return nil
	}
	return others[0].SleepWith(others[1:], until, again)
}

// Leave implements [stack.SharedLink]. A Borrow after it panics.
func (l *Link) Leave() { l.left.Store(true) }

// Wake implements [stack.Link].
func (l *Link) Wake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Inject puts frames on the wire to l, as if the peer had sent them: Data is
// copied, GSOSize and More are taken as they are. A packet of several parts must
// be injected whole.
func (l *Link) Inject(frames ...stack.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range frames {
		l.receive(f)
	}
	l.arrived()
}

// Filter makes Flush call f with every frame that l sends. Frames for which it returns
// false are lost. f is called under the link's lock and must not call the link; the bytes
// are valid until it returns. nil: all frames pass.
func (l *Link) Filter(f func(frame []byte) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.filter = f
}

// Stick sets whether Flush leaves the frames where they are, as a full device does.
func (l *Link) Stick(stuck bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stuck = stuck
}

// Break makes Flush and Sleep fail with err from now on.
func (l *Link) Break(err error) {
	l.mu.Lock()
	l.broken = err
	l.mu.Unlock()
	l.Wake()
}

// BreakKicks makes Flush fail with err, and leave the frames where they are, until
// BreakKicks is called with nil.
func (l *Link) BreakKicks(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kick = err
}

// Lost is the number of frames that a filter of l lost, or that came when no
// frame of l waited to be filled.
func (l *Link) Lost() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// Audit reports every frame that the stack has not given back. Frames that
// arrived and were not received, or were sent and not flushed, are not reported.
func (l *Link) Audit() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	for id, o := range l.owner {
		if o == ownerReader || o == ownerWriter {
			err = errors.Join(err, fmt.Errorf("memlink: frame %d was never given back", id))
		}
	}
	if n := len(l.fill) + len(l.pool) + len(l.tx) + len(l.rx) - l.rxHead; err == nil && n != len(l.owner) {
		err = fmt.Errorf("memlink: %d frames of %d are accounted for", n, len(l.owner))
	}
	return err
}
