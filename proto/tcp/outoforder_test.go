package tcp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/unet-go/unet/proto/tcp/seq"
)

// outOfOrderInvariant says what is wrong with the out-of-order queue.
func (c *Conn) outOfOrderInvariant() string {
	q := &c.outOfOrder
	end := c.rcvNxt
	chunks := 0
	for i, r := range q.runs {
		// The first may begin at RCV.NXT for a moment only: memory was used up.
		if r.left.Before(end) || i > 0 && r.left == end {
			return "runs overlap or touch"
		}
		end = r.left
		for b := r.head; b != nil; b = b.next {
			end = end.Add(uint32(len(b.data)))
			chunks++
			if b.kind != chunkBlock || len(b.data) == 0 || (b.next == nil) != (b == r.tail) {
				return "a block of the out-of-order queue"
			}
		}
		if end != r.right || r.left == r.right {
			return fmt.Sprintf("a run of the out-of-order queue: to %d, has %d", r.right.From(r.left), end.From(r.left))
		}
	}
	if len(q.runs) > maxRuns || chunks != q.chunks || end.After(c.rcvAdv) || q.runs != nil && len(q.runs) == 0 {
		return fmt.Sprintf("out-of-order queue: %d runs, %d chunks, counted %d", len(q.runs), chunks, q.chunks)
	}
	return ""
}

// The out-of-order queue is held against an array of bytes: whatever comes in whatever
// order, the runs are what has come, each byte as it came first, and each SACK block is
// a run, the one that was added to last before the others.
func TestOutOfOrderModel(t *testing.T) {
	const window = 20000
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		tab := NewTable(Config{})
		c := &Conn{table: tab, rcvNxt: seq.New(^uint32(0) - 5000)}
		c.rcvAdv = c.rcvNxt.Add(window)
		q := &c.outOfOrder
		var have, known [window]byte
		var mismatches uint64
		for range 300 {
			at := 1 + rnd.IntN(window-1)
			text := make([]byte, 1+rnd.IntN(min(window-at, []int{1, 50, 1460, 9000}[rnd.IntN(4)])))
			for i := range text {
				text[i] = byte(rnd.Uint32())
				if known[at+i] == 0 {
					known[at+i], have[at+i] = 1, text[i]
				} else if have[at+i] != text[i] {
					mismatches++
				}
			}
			q.insert(tab, 1<<20, c.rcvNxt.Add(uint32(at)), text)
			if msg := c.outOfOrderInvariant(); msg != "" {
				t.Fatalf("seed %d: %s", seed, msg)
			}
			next := 0
			for _, r := range q.runs {
				left, right := int(r.left.From(c.rcvNxt)), int(r.right.From(c.rcvNxt))
				var got []byte
				for b := r.head; b != nil; b = b.next {
					got = append(got, b.data...)
				}
				if bytes.IndexByte(known[next:left], 1) >= 0 || bytes.IndexByte(known[left:right], 0) >= 0 || !bytes.Equal(got, have[left:right]) {
					t.Fatalf("seed %d: run from %d to %d", seed, left, right)
				}
				next = right
			}
			if bytes.IndexByte(known[next:], 1) >= 0 {
				t.Fatalf("seed %d: something is missing behind %d", seed, next)
			}
			if r, ok := q.runAt(q.recent[0]); !ok || !c.rcvNxt.Add(uint32(at)).InWindow(r.left, r.right.From(r.left)) {
				t.Fatalf("seed %d: the run that was added to is not the latest", seed)
			}
		}
		if n := tab.Count(OverlapMismatch); n != mismatches {
			t.Errorf("seed %d: %d bytes that differ, counted %d", seed, mismatches, n)
		}
		q.clear(tab)
		if tab.MemoryInUse() != 0 {
			t.Errorf("seed %d: %d bytes in use", seed, tab.MemoryInUse())
		}
	}
}

// SegmentSmack (CVE-2018-5390): whatever the order of tiny segments, and however many
// there are already, none makes the queue look at more than a few blocks or move more
// than its runs once. What it swallows it looks at.
func TestOutOfOrderCost(t *testing.T) {
	const n = 4000
	orders := map[string]func(i int) int{
		"upward":   func(i int) int { return i },
		"downward": func(i int) int { return n - i },
		"random":   func(i int) int { return i * 1597 % n },
		"inward":   func(i int) int { return []int{i / 2, n - i/2}[i%2] },
	}
	for name, place := range orders {
		tab := NewTable(Config{})
		c := &Conn{table: tab, rcvAdv: seq.New(1 << 24)}
		q := &c.outOfOrder
		insert := func(at, length int) {
			before := q.moved
			q.insert(tab, 6<<20, seq.New(uint32(at)), make([]byte, length))
			if cost := q.moved - before; cost > 2*maxRuns+comparedBlocks {
				t.Fatalf("%s: a segment of %d bytes at %d cost %d steps", name, length, at, cost)
			}
		}
		for i := range n {
			insert(10+2*place(i), 1)
		}
		if len(q.runs) != maxRuns || q.chunks != maxRuns || tab.Count(OutOfOrderFull) != n-maxRuns {
			t.Errorf("%s: %d runs in %d chunks, %d segments dropped", name, len(q.runs), q.chunks, tab.Count(OutOfOrderFull))
		}
		for i := range n {
			insert(11+2*place(i), 1) // the holes are filled
		}
		insert(9, 9000)
		if len(q.runs) != 1 || q.chunks > 3+2 {
			t.Errorf("%s: then %d runs in %d chunks", name, len(q.runs), q.chunks)
		}
		q.clear(tab)
		if tab.MemoryInUse() != 0 {
			t.Errorf("%s: %d bytes in use", name, tab.MemoryInUse())
		}
	}
}
