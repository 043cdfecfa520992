package tcp

import (
	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// oooQueue is the text that has come before what precedes it: chunks in order of
// their sequence numbers, which do not overlap. Nothing lies beyond the window,
// so its bytes are bounded by it; its chunks are bounded by oooChunks, or one
// byte in each would take a whole one.
type oooQueue struct {
	head, tail *block
	chunks     int
	// recent are places in the ranges that were added to last, the latest
	// first: SACK reports them in that order (RFC 2018, section 4).
	recent  [wire.MaxSACKBlocks]seq.Number
	recents uint8
	lastEnd seq.Number // where the text added last ends
}

// oooChunks is how many chunks a queue may have for a window: twice what its bytes
// need, and some for small segments.
func oooChunks(window int) int { return window/ChunkSize*2 + 16 }

// insert adds text that begins at the number at. Where text has come before, it
// stays (first data wins), and bytes that differ from it are counted.
func (q *oooQueue) insert(t *Table, window int, at seq.Number, text []byte) {
	limit := oooChunks(window)
	defer q.noteRecent(at, at.Add(uint32(len(text))))
	// prev is the last block that begins at or before at.
	var prev *block
	if q.tail != nil && q.tail.seq.AtOrBefore(at) {
		prev = q.tail
	} else {
		for b := q.head; b != nil && b.seq.AtOrBefore(at); b = b.next {
			prev = b
		}
	}
	for len(text) > 0 {
		// What of the text is there already.
		if prev != nil && prev.end().After(at) {
			have := prev.data[at.From(prev.seq):]
			n := min(len(have), len(text))
			t.countMismatch(have[:n], text[:n])
			at, text = at.Add(uint32(n)), text[n:]
			continue
		}
		next := q.head
		if prev != nil {
			next = prev.next
		}
		if next != nil && next.seq == at {
			prev = next
			continue
		}
		// A gap: up to the next block.
		n := len(text)
		if next != nil {
			n = min(n, int(next.seq.From(at)))
		}
		if prev == nil || prev.end() != at || prev.room() == 0 {
			b := q.chunk(t, limit)
			if b == nil {
				return
			}
			b.seq = at
			q.link(prev, b)
			prev = b
		}
		n = min(n, prev.room())
		prev.data = append(prev.data, text[:n]...)
		at, text = at.Add(uint32(n)), text[n:]
	}
}

// chunk returns a block, or nil and counts why not.
func (q *oooQueue) chunk(t *Table, limit int) *block {
	if q.chunks >= limit {
		t.counts[OutOfOrderFull]++
		return nil
	}
	b := t.pool.chunk()
	if b == nil {
		t.counts[NoMemory]++
		return nil
	}
	q.chunks++
	return b
}

// link puts b after prev, or first if that is nil.
func (q *oooQueue) link(prev, b *block) {
	if prev == nil {
		b.next, q.head = q.head, b
	} else {
		b.next, prev.next = prev.next, b
	}
	if b.next == nil {
		q.tail = b
	}
}

func (q *oooQueue) pop() *block {
	b := q.head
	if q.head = b.next; q.head == nil {
		q.tail = nil
		q.recents = 0
	}
	b.next = nil
	q.chunks--
	return b
}

func (q *oooQueue) clear(p *pool) {
	for q.head != nil {
		p.put(q.pop())
	}
}

func (t *Table) countMismatch(have, got []byte) {
	for i, b := range got {
		if b != have[i] {
			t.counts[OverlapMismatch]++
		}
	}
}

// noteRecent makes the range that text from at to end has been added to the
// latest.
func (q *oooQueue) noteRecent(at, end seq.Number) {
	goesOn := q.recents > 0 && q.lastEnd == at
	q.lastEnd = end
	if goesOn {
		return
	}
	r, ok := q.rangeAt(at)
	if !ok {
		return
	}
	// Others in the same range give way, then the oldest.
	kept := q.recent[:0]
	for _, n := range q.recent[:q.recents] {
		if !n.InWindow(seq.New(r.Left), r.Right-r.Left) {
			kept = append(kept, n)
		}
	}
	k := min(len(kept), len(q.recent)-1)
	copy(q.recent[1:], q.recent[:k])
	q.recent[0] = at
	q.recents = uint8(k + 1)
}

// sackBlocks adds blocks to a SACK option, up to limit of them: the range that was
// added to last, then others that were added to before.
func (q *oooQueue) sackBlocks(o *wire.TCPOptions, limit int) {
	first := o.SACKBlocks
	for _, at := range q.recent[:q.recents] {
		if int(o.SACKBlocks) >= limit {
			return
		}
		if b, ok := q.rangeAt(at); ok && !reported(o.SACK[first:o.SACKBlocks], b) {
			o.SACK[o.SACKBlocks] = b
			o.SACKBlocks++
		}
	}
}

// has reports whether all from at to end has come before.
func (q *oooQueue) has(at, end seq.Number) bool {
	b, ok := q.rangeAt(at)
	return ok && end.AtOrBefore(seq.New(b.Right))
}

func reported(blocks []wire.SACKBlock, b wire.SACKBlock) bool {
	for _, r := range blocks {
		if r == b {
			return true
		}
	}
	return false
}

// rangeAt is the largest range without a hole that contains at.
func (q *oooQueue) rangeAt(at seq.Number) (wire.SACKBlock, bool) {
	for b := q.head; b != nil; {
		left, right := b.seq, b.end()
		for b = b.next; b != nil && b.seq == right; b = b.next {
			right = b.end()
		}
		if at.AtOrAfter(left) && at.Before(right) {
			return wire.SACKBlock{Left: left.Uint32(), Right: right.Uint32()}, true
		}
	}
	return wire.SACKBlock{}, false
}
