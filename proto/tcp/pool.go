package tcp

import "sync"

// Queued bytes lie in blocks. A block either owns a chunk of the table's memory or refers
// to other bytes: a received frame, which goes back to the link with the block, or memory
// that the application has lent. A connection that has nothing queued has no block.

// ChunkSize is the unit in which a table hands out memory, in bytes.
const ChunkSize = 4096

// maxFreeChunks bounds the free chunks that a table keeps: as many as the send queue of one
// bulk connection, which fills and empties all the time. maxFreeBare bounds the free blocks
// without a chunk. The rest is left to the garbage collector.
const (
	maxFreeChunks = DefaultMaxSendBuffer / ChunkSize
	maxFreeBare   = 4096
)

// guaranteed is the size, in bytes, up to which a queue may use reserved memory. The reserve
// is that much for both queues of each connection, and at most half of all memory.
const guaranteed = 4 * ChunkSize

type blockKind uint8

const (
	chunkBlock blockKind = iota // data is part of mem
	frameBlock                  // data is part of a frame
	lentBlock                   // data is the application's
	heapBlock                   // data is the garbage collector's
	spaceBlock                  // data is part of space
)

type block struct {
	next  *block
	data  []byte // the queued bytes; the rest of the capacity is free
	kind  blockKind
	cost  int32 // bytes counted in pool.used; a chunk counts ChunkSize instead
	frame uint64
	mem   *[ChunkSize]byte
	space *Space
}

// Space is memory that an application fills and gives to a send queue: see [Conn.Commit]. Those
// that nobody uses are kept in common by all tables.
type Space [64 << 10]byte

var spaces = sync.Pool{New: func() any { return new(Space) }}

// ReserveSpace returns a Space, whose contents are arbitrary.
func ReserveSpace() *Space { return spaces.Get().(*Space) }

// Cancel gives a Space back that no queue has.
func (s *Space) Cancel() { spaces.Put(s) }

// room is how many bytes can still be appended.
func (b *block) room() int { return cap(b.data) - len(b.data) }

// pool is the memory of a table. Blocks with a chunk and blocks without are
// kept apart.
type pool struct {
	chunks, bare *block
	free, bares  int // on the lists
	used, limit  int // bytes handed out, and how many may be
	conns        int // connections that share it
	shared       int // bytes of limit that queues with more than guaranteed may use
	tight        int // used bytes above which buffers do not grow and windows shrink
	release      func(frame uint64)
}

// take reserves n bytes for a queue that has held bytes, and reports whether there were as
// many.
func (p *pool) take(n, held int) bool {
	limit := p.limit
	if held+n > guaranteed {
		limit = p.shared
	}
	if p.used+n > limit {
		return false
	}
	p.used += n
	return true
}

// divide sets the limit, in bytes, and adds n to the number of connections.
func (p *pool) divide(limit, n int) {
	p.limit = limit
	p.conns += n
	p.shared = limit - min(p.conns*2*guaranteed, limit/2)
	p.tight = p.shared / 4 * 3
}

// pressed reports whether the memory is under pressure.
func (p *pool) pressed() bool { return p.used > p.tight }

// exhausted reports whether there is too little memory for another connection.
func (p *pool) exhausted() bool { return p.used > p.limit-p.limit/16 }

// chunk returns a block with ChunkSize bytes of room for a queue that has held bytes, or
// nil if the memory is used up.
func (p *pool) chunk(held int) *block {
	if !p.take(ChunkSize, held) {
		return nil
	}
	b := p.chunks
	if b == nil {
		b = &block{mem: new([ChunkSize]byte)}
	} else {
		p.chunks = b.next
		p.free--
		b.next = nil
	}
	b.data = b.mem[:0]
	return b
}

// refer returns a block that refers to data, which is not copied.
func (p *pool) refer(data []byte, kind blockKind, frame uint64) *block {
	b := p.bare
	if b == nil {
		b = new(block)
	} else {
		p.bare = b.next
		p.bares--
		b.next = nil
	}
	b.data, b.kind, b.frame = data[:len(data):len(data)], kind, frame
	return b
}

// put takes a block back, and the frame that it refers to.
func (p *pool) put(b *block) {
	if b.kind == chunkBlock {
		p.used -= ChunkSize
		if p.free < maxFreeChunks {
			p.free++
			b.next, b.data = p.chunks, nil
			p.chunks = b
		}
		return
	}
	switch b.kind {
	case frameBlock:
		p.release(b.frame)
	case spaceBlock:
		b.space.Cancel()
		b.space = nil
	}
	p.used -= int(b.cost)
	b.data, b.frame, b.cost = nil, 0, 0
	if p.bares < maxFreeBare {
		p.bares++
		b.next, p.bare = p.bare, b
	}
}

// queue is blocks in order.
type queue struct {
	head, tail *block
	bytes      int
}

func (q *queue) push(b *block) {
	b.next = nil
	if q.tail == nil {
		q.head = b
	} else {
		q.tail.next = b
	}
	q.tail = b
	q.bytes += len(b.data)
}

// write appends a copy of data and returns how many bytes there was memory for.
func (q *queue) write(p *pool, data []byte) (n int) {
	for n < len(data) {
		b := q.tail
		if b == nil || b.kind != chunkBlock || len(b.data) == cap(b.data) {
			if b = p.chunk(q.bytes + n); b == nil {
				break
			}
			q.push(b)
		}
		old := len(b.data)
		b.data = b.data[:min(cap(b.data), old+len(data)-n)]
		n += copy(b.data[old:], data[n:])
	}
	q.bytes += n
	return n
}

// read moves bytes from the head of the queue to dst and returns how many.
func (q *queue) read(p *pool, dst []byte) (n int) {
	for n < len(dst) && q.head != nil {
		k := copy(dst[n:], q.head.data)
		n += k
		q.head.data = q.head.data[k:]
		if len(q.head.data) == 0 {
			p.put(q.pop())
		}
	}
	q.bytes -= n
	return n
}

// pop unlinks the head. The caller updates q.bytes.
func (q *queue) pop() *block {
	b := q.head
	if q.head = b.next; q.head == nil {
		q.tail = nil
	}
	b.next = nil
	return b
}

func (q *queue) clear(p *pool) {
	for q.head != nil {
		p.put(q.pop())
	}
	q.bytes = 0
}
