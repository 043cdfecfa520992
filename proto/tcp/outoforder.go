package tcp

import (
	"slices"
	"sort"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// oooQueue is data out of order: runs without a hole, sorted, with a hole between each two.
// Binary search finds a place among them, and data is added only at the end of a run
// or between two. So a segment costs at most a few dozen steps and one move of at most
// maxRuns runs (CVE-2018-5390).
//
// The window bounds its bytes, and oooChunks its chunks, since a chunk may hold only one
// byte.
type oooQueue struct {
	runs   []run
	chunks int
	moved  uint64 // runs that were moved, and blocks that were looked at, for tests
	// recent has a number in each of the runs that have changed last, the latest first: SACK
	// reports the runs in that order (RFC 2018, section 4).
	recent  [wire.MaxSACKBlocks]seq.Number
	recents uint8

	waiting links[oooQueue] // in the table's list
}

// run is data from the number left to before the number right, in blocks.
type run struct {
	left, right seq.Number
	head, tail  *block
}

const (
	// maxRuns is enough for a window of 6 MiB of which every fifth segment is lost.
	maxRuns = 1024
	// comparedBlocks is how many blocks of a run are compared with data that arrives twice.
	comparedBlocks = 16
)

// oooChunks is how many chunks a queue may have for a window: twice what its bytes
// need, and some for small segments.
func oooChunks(window int) int { return window/ChunkSize*2 + 16 }

func (q *oooQueue) empty() bool { return len(q.runs) == 0 }

// first is where the first run begins. There must be one.
func (q *oooQueue) first() seq.Number { return q.runs[0].left }

// search is the first run that ends at or after at.
func (q *oooQueue) search(at seq.Number) int {
	if n := len(q.runs); n > 0 && q.runs[n-1].right.Before(at) {
		return n
	}
	return sort.Search(len(q.runs), func(i int) bool { return q.runs[i].right.AtOrAfter(at) })
}

// insert adds data that begins at the number at. Bytes that are queued already are not
// replaced; new bytes that differ from them are counted.
func (q *oooQueue) insert(t *Table, window int, at seq.Number, data []byte) {
	limit := oooChunks(window)
	i := q.search(at)
	j := i // r contains the runs before j
	r := run{left: at, right: at}
	switch {
	case i < len(q.runs) && q.runs[i].left.AtOrBefore(at):
		r = q.runs[i]
		j++
		data = q.skip(t, &r, at, data)
	case len(q.runs) >= maxRuns && (i == len(q.runs) || at.Add(uint32(len(data))).Before(q.runs[i].left)):
		t.counts[OutOfOrderFull]++
		return
	}
	for len(data) > 0 {
		n := len(data)
		if j < len(q.runs) {
			n = min(n, int(q.runs[j].left.From(r.right)))
		}
		k := q.extend(t, &r, data[:n], limit)
		data = data[k:]
		if k < n {
			break
		}
		if j < len(q.runs) && q.runs[j].left == r.right {
			next := &q.runs[j]
			data = q.skip(t, next, next.left, data)
			q.join(&t.pool, &r, next)
			j++
		}
	}
	switch {
	case r.head == nil:
		return
	case i == j && len(q.runs) >= maxRuns: // it does not reach the next run: memory was used up
		t.counts[OutOfOrderFull]++
		q.free(&t.pool, &r)
		return
	case q.runs == nil:
		q.runs, t.spareRuns = t.spareRuns, nil
		t.outOfOrder.push(q)
	}
	if i+1 == j {
		q.runs[i] = r
	} else {
		q.moved += uint64(len(q.runs) - i)
		q.runs = slices.Replace(q.runs, i, j, r)
	}
	q.noteRecent(at)
}

// skip returns the part of data, which begins at the number at, that lies behind r.
func (q *oooQueue) skip(t *Table, r *run, at seq.Number, data []byte) []byte {
	n := min(len(data), int(r.right.From(at)))
	got, offset := data[:n], int(at.From(r.left))
	b := r.head
	for k := 0; len(got) > 0 && b != nil && k < comparedBlocks; k++ {
		q.moved++
		if offset < len(b.data) {
			have := b.data[offset:]
			m := min(len(have), len(got))
			for i, byte := range got[:m] {
				if byte != have[i] {
					t.counts[OverlapMismatch]++
				}
			}
			got, offset = got[m:], 0
		} else {
			offset -= len(b.data)
		}
		b = b.next
	}
	return data[n:]
}

// extend adds data at the end of r and returns how much of it there was room for.
func (q *oooQueue) extend(t *Table, r *run, data []byte, limit int) (n int) {
	for n < len(data) {
		b := r.tail
		if b == nil || b.room() == 0 {
			if b = q.chunk(t, limit); b == nil {
				break
			}
			if r.tail == nil {
				r.head = b
			} else {
				r.tail.next = b
			}
			r.tail = b
		}
		k := min(b.room(), len(data)-n)
		b.data = append(b.data, data[n:n+k]...)
		n += k
	}
	r.right = r.right.Add(uint32(n))
	return n
}

// join puts next, which begins where r ends, behind it.
func (q *oooQueue) join(p *pool, r, next *run) {
	head := next.head
	if n := len(head.data); n <= r.tail.room() { // so that small pieces do not keep a chunk each
		r.tail.data = append(r.tail.data, head.data...)
		if head == next.tail {
			next.tail = r.tail
		}
		r.tail.next = head.next
		head.next = nil
		q.chunks--
		p.put(head)
	} else {
		r.tail.next = head
	}
	r.tail, r.right = next.tail, next.right
}

// chunk returns a block; or nil, and counts the reason.
func (q *oooQueue) chunk(t *Table, limit int) *block {
	if q.chunks >= limit {
		t.counts[OutOfOrderFull]++
		return nil
	}
	// Half of the shared memory is enough for data out of order: it must not make windows
	// small.
	if t.pool.used+ChunkSize <= t.pool.shared/2 {
		if b := t.pool.chunk(guaranteed); b != nil {
			q.chunks++
			return b
		}
	}
	t.counts[NoMemory]++
	return nil
}

// pop takes the first run off. Its chunks are the caller's.
func (q *oooQueue) pop(t *Table) run {
	r := q.runs[0]
	q.moved += uint64(len(q.runs))
	q.runs = slices.Delete(q.runs, 0, 1)
	for b := r.head; b != nil; b = b.next {
		q.chunks--
	}
	q.emptied(t)
	return r
}

func (q *oooQueue) free(p *pool, r *run) {
	for b := r.head; b != nil; {
		next := b.next
		b.next = nil
		p.put(b)
		q.chunks--
		b = next
	}
}

func (q *oooQueue) clear(t *Table) {
	for i := range q.runs {
		q.free(&t.pool, &q.runs[i])
	}
	clear(q.runs)
	q.runs = q.runs[:0]
	q.emptied(t)
}

// emptied passes the memory of runs of an empty queue to the next queue that needs it.
func (q *oooQueue) emptied(t *Table) {
	if len(q.runs) > 0 {
		return
	}
	if cap(q.runs) > cap(t.spareRuns) {
		t.spareRuns = q.runs
	}
	q.runs, q.recents = nil, 0
	if t.outOfOrder.has(q) {
		t.outOfOrder.remove(q)
	}
}

// reclaim drops data out of order for a queue that has held bytes and needs memory: the
// last run of its own connection, own; else, if held is less than guaranteed, of the
// connection whose queue has been non-empty longest. The peer has received a SACK of that
// data and must still send it again (RFC 2018, section 8). It reports whether there was any.
func (t *Table) reclaim(own *oooQueue, held int) bool {
	q := own
	if q.empty() {
		if q = t.outOfOrder.first; q == nil || held >= guaranteed {
			return false
		}
	}
	r := &q.runs[len(q.runs)-1]
	t.counts[Reneged] += uint64(r.right.From(r.left))
	q.free(&t.pool, r)
	*r = run{}
	q.runs = q.runs[:len(q.runs)-1]
	q.emptied(t)
	return true
}

// noteRecent puts the run that contains the number at first in recent.
func (q *oooQueue) noteRecent(at seq.Number) {
	r, ok := q.runAt(at)
	if !ok {
		return
	}
	in := func(n seq.Number) bool { return n.InWindow(r.left, r.right.From(r.left)) }
	if q.recents > 0 && in(q.recent[0]) {
		return
	}
	// Other places in the same run are removed, then the oldest.
	kept := q.recent[:0]
	for _, n := range q.recent[:q.recents] {
		if !in(n) {
			kept = append(kept, n)
		}
	}
	k := min(len(kept), len(q.recent)-1)
	copy(q.recent[1:], q.recent[:k])
	q.recent[0] = at
	q.recents = uint8(k + 1)
}

// sackBlocks adds runs to a SACK option, up to limit blocks, those that have changed last
// first.
func (q *oooQueue) sackBlocks(o *wire.TCPOptions, limit int) {
	first := o.SACKBlocks
	for _, at := range q.recent[:q.recents] {
		if int(o.SACKBlocks) >= limit {
			return
		}
		r, ok := q.runAt(at)
		b := wire.SACKBlock{Left: r.left.Uint32(), Right: r.right.Uint32()}
		if ok && !slices.Contains(o.SACK[first:o.SACKBlocks], b) {
			o.SACK[o.SACKBlocks] = b
			o.SACKBlocks++
		}
	}
}

// overlap is the first part from at to end that is queued already; empty if there is none.
func (q *oooQueue) overlap(at, end seq.Number) (left, right seq.Number) {
	i := q.search(at.Add(1))
	if i == len(q.runs) || q.runs[i].left.AtOrAfter(end) {
		return at, at
	}
	return seq.Max(at, q.runs[i].left), seq.Min(end, q.runs[i].right)
}

// runAt is the run that contains at.
func (q *oooQueue) runAt(at seq.Number) (run, bool) {
	i := q.search(at.Add(1))
	if i == len(q.runs) || q.runs[i].left.After(at) {
		return run{}, false
	}
	return q.runs[i], true
}
