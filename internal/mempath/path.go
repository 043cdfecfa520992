//go:build linux

package mempath

import "sync/atomic"

// MaxScan is the most frames that Scan remembers.
const MaxScan = 64

// Path is one end of a memory path. One goroutine at a time may use it. Pending may be called
// from others, and SetAsleep from one other. Only Flush, Drain and Close make system calls.
type Path struct {
	writer
	reader
	own, other words
	err        error  // the first lie
	sleeps     uint64 // value of own.asleep
	sent       bool   // since the last Flush something was published
	freed      bool   // since the last Flush consumed was published
	rung       uint64 // value of other.asleep for which the bell was rung
	mem        [2][]byte
	ring, bell int // descriptors
	drained    [64]byte
}

// writer is the near end of the ring that this end fills.
type writer struct {
	out      []byte // the ring
	head     uint64 // offset of the next word
	written  uint64 // bytes of the ring used so far, ever
	seen     uint64 // the other end's consumed as last seen; never more than written
	reserved int    // bytes of the frame that Reserve gave out
	wants    bool   // own.wantsRoom is set
}

// reader is the near end of the ring that the other end fills.
type reader struct {
	in       []byte                 // the ring
	off      uint64                 // offset of the next word to scan
	end      uint64                 // bytes scanned so far, ever
	taken    uint64                 // bytes taken so far
	consumed uint64                 // bytes of taken that the other end was told of
	at       atomic.Pointer[uint64] // the word that is not 0 if a frame waits; for Pending
	frames   [MaxScan]frame
	next, n  int // frames[next:n] are scanned and not taken
}

// frame is a frame that was scanned.
type frame struct {
	off uint64 // of its first byte
	len uint64 // bytes
	end uint64 // reader.end after it
}

// newPath makes an end of a path over the memory of both.
func newPath(own, other []byte) *Path {
	p := &Path{
		writer: writer{out: own[pageSize:memorySize:memorySize]},
		reader: reader{in: other[pageSize:memorySize:memorySize]},
		own:    wordsOf(own), other: wordsOf(other),
		mem: [2][]byte{own, other},
	}
	p.at.Store(word(p.in, 0))
	return p
}

// Reserve returns room for a frame of n bytes, at most MaxFrame, in the ring. It returns nil if there
// is none now; then the other end rings the bell when there may be more, and the caller calls Flush before
// it waits for that. It also returns nil after a lie (Err). The next Reserve gives up what was reserved and
// not published.
func (p *Path) Reserve(n int) []byte {
	if n <= 0 || n > MaxFrame {
		panic("BUG: frame too short or too long for a memory path")
	}
	p.reserved = 0
	size := span(uint64(n))
	if p.head+size > ringSize {
		if !p.room(ringSize - p.head) {
			return nil
		}
		// The skip is published before there is room for the frame, which may need the whole ring.
		p.advance(skip, ringSize-p.head)
	}
	if !p.room(size) {
		return nil
	}
	p.reserved = n
	from := p.head + wordSize
	return p.out[from : from+uint64(n) : from+uint64(n)]
}

// Publish makes the first n bytes of what Reserve has returned the next frame of the other end.
func (p *Path) Publish(n int) {
	if n <= 0 || n > p.reserved {
		panic("BUG: frame published that was not reserved")
	}
	p.reserved = 0
	p.advance(tag|uint64(n), span(uint64(n)))
}

// advance publishes a word and the size bytes of the ring that begin with it.
func (p *Path) advance(w, size uint64) {
	next := p.head + size
	if next == ringSize {
		next = 0
	}
	*word(p.out, next) = 0 // the reader does not look there before it has seen w
	store(word(p.out, p.head), w)
	p.head = next
	p.written += size
	p.sent = true
}

// room reports whether size bytes and the next word fit in the ring. If not, the other end is asked to
// ring the bell.
func (p *Path) room(size uint64) bool {
	if p.err != nil {
		return false
	}
	need := p.written + size + line - ringSize // of consumed; the difference to seen is signed
	if int64(need-p.seen) > 0 && !p.look(need) {
		if p.wants || p.err != nil {
			return false
		}
		p.wants = true
		store(p.own.wantsRoom, 1)
		if !p.look(need) { // what was taken before the other end could see the word
			return false
		}
	}
	if p.wants {
		p.wants = false
		store(p.own.wantsRoom, 0)
	}
	return true
}

// look reads the other end's consumed, and reports whether it is at least need.
func (p *Path) look(need uint64) bool {
	c := load(p.other.consumed)
	if c-p.seen > p.written-p.seen {
		p.err = errConsumed
		return false
	}
	p.seen = c
	return int64(need-c) <= 0
}

// Scan looks for frames ahead until max of them, at most MaxScan, wait to be taken. It returns how many do. Frames
// that the other end publishes later are not among them. The error is an ErrLie, again with each
// later Scan; the frames before it can be taken.
func (p *Path) Scan(max int) (int, error) {
	r := &p.reader
	if r.next == r.n {
		r.next, r.n = 0, 0
	}
	for r.n < min(r.next+max, MaxScan) && p.err == nil {
		w := load(word(r.in, r.off))
		if w == 0 {
			break
		}
		n := w - tag // a word without the tag becomes a length that does not fit
		switch {
		case n == 0 && r.off > 0: // skip
			r.end += ringSize - r.off
			r.off = 0
		case n == 0 || n > min(ringSize-wordSize-r.off, MaxFrame):
			p.err = errWord
		default:
			r.frames[r.n] = frame{off: r.off + wordSize, len: n, end: r.end + span(n)}
			r.end += span(n)
			if r.off += span(n); r.off == ringSize {
				r.off = 0
			}
			r.n++
		}
	}
	if r.next == r.n {
		r.taken = r.end
		if r.taken != r.consumed {
			p.release()
		}
	}
	return r.n - r.next, p.err
}

// Len is the length in bytes of the frame that Take takes next; 0: none was scanned.
func (p *Path) Len() int {
	if p.next == p.reader.n {
		return 0
	}
	return int(p.frames[p.next].len)
}

// Take copies the next frame that Scan has counted to buf, as much of it as fits, and returns the length of the
// whole frame in bytes; 0: none was scanned.
func (p *Path) Take(buf []byte) int {
	r := &p.reader
	if r.next == r.n {
		return 0
	}
	f := &r.frames[r.next]
	copy(buf, r.in[f.off:f.off+f.len])
	r.next++
	r.taken = f.end
	switch {
	case r.taken-r.consumed >= ringSize/4:
		p.release()
	case r.next == r.n:
		r.at.Store(word(r.in, r.off))
	}
	return int(f.len)
}

// release lets the other end have the room of what was taken.
func (p *Path) release() {
	r := &p.reader
	at := r.off
	if r.next < r.n {
		at = r.frames[r.next].off - wordSize
	}
	r.at.Store(word(r.in, at)) // first: the other end overwrites the words of what was taken
	r.consumed = r.taken
	store(p.own.consumed, r.consumed)
	p.freed = true
}

// Pending reports whether a Scan would find something: a frame, a skip or a lie. It may be called from any
// goroutine until Close.
func (p *Path) Pending() bool { return load(p.at.Load()) != 0 }

// SetAsleep tells the other end whether it has to ring the bell when it publishes a frame. The
// caller that has set it looks at Pending before it sleeps. The other end rings once after each SetAsleep(true), however late, unless
// SetAsleep(false) comes first. So whoever takes a frame for which it may have rung calls Drain, and the next sleep needs another SetAsleep(true).
func (p *Path) SetAsleep(asleep bool) {
	p.sleeps++
	if (p.sleeps&1 == 1) != asleep {
		p.sleeps++
	}
	store(p.own.asleep, p.sleeps)
}

// Flush rings the other end's bell if it has to be woken for what was published or taken since the last Flush.
func (p *Path) Flush() {
	wake := false
	if p.sent {
		p.sent = false
		// One ring is enough for a sleep, however long the other end needs to wake up.
		if s := load(p.other.asleep); s&1 == 1 && s != p.rung {
			p.rung, wake = s, true
		}
	}
	if p.freed {
		p.freed = false
		wake = load(p.other.wantsRoom) != 0 || wake
	}
	if wake {
		p.wake()
	}
}

// Err is the ErrLie that has ended the use of the path, or nil.
func (p *Path) Err() error { return p.err }

// Ready reports whether the other end has opened the path and has not begun to close it.
func (p *Path) Ready() bool { return load(p.other.state) == stateOpen }

// SetClosing tells the other end that no more frames come. What is in the ring can still be taken.
func (p *Path) SetClosing() { store(p.own.state, stateClosing) }

// Closing reports whether the other end puts no more frames in: it has called SetClosing, or has closed the path.
func (p *Path) Closing() bool {
	s := load(p.other.state)
	return s == stateClosing || s == stateClosed
}
