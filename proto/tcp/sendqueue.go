package tcp

import "github.com/unet-go/unet/wire"

// sendQueue is the retransmission buffer: the bytes from SND.UNA to the last one
// written. Those before the cursor have been sent, and wait to be acknowledged
// or, when the cursor is set back, to be sent again.
type sendQueue struct {
	queue
	cursor *block // holds the byte of SND.NXT; nil: all have been sent
	offset int    // of that byte in the block

	lends    uint64 // pieces of memory that were lent
	returned uint64 // those of them that are the application's again
}

// write appends a copy of data and returns how many bytes there was memory for.
func (q *sendQueue) write(p *pool, data []byte) int {
	tail := q.tail
	at := 0
	if tail != nil {
		at = len(tail.data)
		if tail.kind != chunkBlock || tail.room() == 0 {
			tail = nil
		}
	}
	before := q.tail
	n := q.queue.write(p, data)
	if n > 0 && q.cursor == nil {
		switch {
		case tail != nil:
			q.cursor, q.offset = tail, at
		case before != nil:
			q.cursor, q.offset = before.next, 0
		default:
			q.cursor, q.offset = q.head, 0
		}
	}
	return n
}

// lend appends memory of the application's.
func (q *sendQueue) lend(p *pool, data []byte) {
	b := p.refer(data, lentBlock, 0)
	q.push(b)
	q.lends++
	if q.cursor == nil {
		q.cursor, q.offset = b, 0
	}
}

// copyOut copies the next len(dst) bytes to dst, advances the cursor past them,
// and returns their unfolded sum. They must be there.
func (q *sendQueue) copyOut(dst []byte) (sum uint64) {
	odd := false
	for len(dst) > 0 {
		b := q.cursor
		src := b.data[q.offset:]
		if len(src) > len(dst) {
			src = src[:len(dst)]
		}
		if odd {
			sum = wire.SumOdd(sum, wire.SumCopy(dst, src, 0))
		} else {
			sum = wire.SumCopy(dst, src, sum)
		}
		odd = odd != (len(src)%2 == 1)
		dst = dst[len(src):]
		if q.offset += len(src); q.offset == len(b.data) {
			q.cursor, q.offset = b.next, 0
		}
	}
	return sum
}

// copyAt copies the len(dst) bytes that begin at the byte at and returns their unfolded
// sum. They must be there.
func (q *sendQueue) copyAt(dst []byte, at int) (sum uint64) {
	b := q.head
	for b != nil && at >= len(b.data) {
		at -= len(b.data)
		b = b.next
	}
	from := sendQueue{cursor: b, offset: at}
	return from.copyOut(dst)
}

// rewind sets the cursor back to the first byte.
func (q *sendQueue) rewind() { q.cursor, q.offset = q.head, 0 }

// acknowledge drops n bytes from the head. A cursor among them moves to the new
// head.
func (q *sendQueue) acknowledge(p *pool, n int) {
	q.bytes -= n
	for n > 0 {
		b := q.head
		if n < len(b.data) {
			b.data = b.data[n:]
			if q.cursor == b {
				q.offset = max(0, q.offset-n)
			}
			return
		}
		n -= len(b.data)
		if q.cursor == b {
			q.cursor, q.offset = b.next, 0
		}
		q.drop(p)
	}
}

func (q *sendQueue) drop(p *pool) {
	b := q.pop()
	if b.kind == lentBlock {
		q.returned++
	}
	p.put(b)
}

func (q *sendQueue) clear(p *pool) {
	for q.head != nil {
		q.drop(p)
	}
	q.bytes, q.cursor, q.offset = 0, nil, 0
}
