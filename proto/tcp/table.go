package tcp

import (
	"cmp"
	"maps"
	"slices"
	"syscall"

	"github.com/unet-go/unet/internal/timerheap"
	"github.com/unet-go/unet/wire"
)

// Table is all the connections and listeners of one stack. Its methods, and
// those of its connections and listeners, are not safe for concurrent use.
//
// The driver looks at Ready, Deadline and NextEvent after each call that changes a connection:
// methods that take the time, Abort and Close.
type Table struct {
	// Ready is the connection that has been ready to send longest; nil if there is none. It
	// stays until [Conn.Emit] has nothing more to write, [Conn.Hold] or [Table.Postpone].
	// Only the engine sets it.
	Ready *Conn
	// Deadline is when Expire next has something to do, or [Never]. It may be too early, never
	// too late. Only the engine sets it.
	Deadline Time

	cfg        Config
	hash       sipHash
	conns      map[tuple]*Conn
	last       *Conn // the connection of the last segment; nil: none
	listeners  map[uint16]*Listener
	waits      timeWaits
	pool       pool
	spans      spanPool
	published  published
	outOfOrder list[oooQueue] // the queues that are not empty, the oldest first
	spareRuns  []run          // empty, for the next out-of-order queue
	timers     timerheap.Heap[Time, Conn]
	counts     [numberOfCounts]uint64
	partialAt  uint64 // SegmentsReceived at the last call of takesPartial; 0: none

	firstEvent, lastEvent *Conn
	lastReady             *Conn

	// Of the segment that is being processed.
	segment segment
	kept    bool
	reply   reply
	opening *Conn

	ports     [][]PortBlock         // Config.Ports
	portSteps [portSteps]uint32     // RFC 6056, see ports.go
	pairs     map[tuple]*pairUse    // for ChoosePort: by destination and block of local ports
	full      map[tuple]*fullBlocks // for ChoosePort: by destination; none if no block is full
}

// NewTable makes an empty table.
func NewTable(cfg Config) *Table {
	t := &Table{
		Deadline:  Never,
		cfg:       cfg.withDefaults(),
		hash:      newSipHash(cfg.Secret),
		conns:     make(map[tuple]*Conn),
		listeners: make(map[uint16]*Listener),
		pairs:     make(map[tuple]*pairUse),
		full:      make(map[tuple]*fullBlocks),
	}
	for _, r := range t.cfg.Ports {
		if blocks := r.blocks(); blocks != nil {
			t.ports = append(t.ports, blocks)
		}
	}
	t.pool.divide(t.cfg.Memory, 0)
	t.pool.release = t.cfg.ReturnFrame
	t.published.records = t.cfg.Connections
	t.published.changed.links = func(c *Conn) *links[Conn] { return &c.changed }
	t.outOfOrder.links = func(q *oooQueue) *links[oooQueue] { return &q.waiting }
	t.waits = newTimeWaits(&t.cfg)
	return t
}

// Len is the number of connections, those in TIME-WAIT left out.
func (t *Table) Len() int { return len(t.conns) }

// Uses reports whether a connection, perhaps in TIME-WAIT, has a local address.
func (t *Table) Uses(local wire.Addr) bool {
	for by := range t.conns {
		if by.local == local {
			return true
		}
	}
	for by := range t.waits.records {
		if by.local == local {
			return true
		}
	}
	return false
}

// TimeWaits is the number of connections in TIME-WAIT.
func (t *Table) TimeWaits() int { return len(t.waits.records) }

// MemoryInUse is how many bytes of Config.Memory are in use: chunks, and received data in
// memory of the Go heap.
func (t *Table) MemoryInUse() int { return t.pool.used }

// Dial begins a connection from local to remote: the SYN is ready to be
// emitted. Port 0 in local asks for an ephemeral one, see [Table.ChoosePort].
//
// If an earlier connection of the two ends is in TIME-WAIT, the new one replaces it at
// once. A peer in TIME-WAIT can distinguish them: the new initial sequence number is higher
// than any that the old one had, and the timestamps are not lower (RFC 6191, section 2, RFC
// 1122, section 4.2.2.13).
//
// Errors: EADDRINUSE if the two ends have a connection already, or are equal;
// EADDRNOTAVAIL if there is a connection to remote from every ephemeral port;
// EINVAL for an address that no host has, and for addresses of two families; ENOBUFS if the table's memory is used up.
func (t *Table) Dial(now Time, local, remote AddrPort, o Options) (*Conn, error) {
	if local.Addr.Is4() != remote.Addr.Is4() || !local.Addr.IsHost() || !remote.Addr.IsHost() || remote.Port == 0 {
		return nil, syscall.EINVAL
	}
	if local.Port == 0 {
		if local.Port = t.ephemeralPort(local.Addr, remote); local.Port == 0 {
			return nil, syscall.EADDRNOTAVAIL
		}
	}
	id := makeTuple(local, remote)
	if t.conns[id] != nil || id.toItself() {
		return nil, syscall.EADDRINUSE
	}
	if t.pool.exhausted() {
		t.counts[NotOpened]++
		return nil, syscall.ENOBUFS
	}
	iss := t.isn(now, id)
	if w := t.waits.records[id]; w != nil {
		iss = w.newer(iss)
		t.counts[TimeWaitUsed]++
		t.removeWait(w)
	}
	c := t.newConn(now, id, o.withDefaults(&t.cfg))
	c.begin(iss)
	c.state = SynSent
	c.waitAt = now.add(t.cfg.ConnectTimeout)
	t.insert(c)
	t.counts[ActiveOpens]++
	c.update(now)
	return c, nil
}

// Close ends all listeners, all connections, each with a RST that is ready to be emitted,
// and the records of TIME-WAIT. A connection keeps the data that it has received until its
// owner closes it.
func (t *Table) Close() {
	// Sorted, so that the order does not depend on the map.
	conns := slices.SortedFunc(maps.Values(t.conns), func(a, b *Conn) int {
		return cmp.Or(a.Local().Netip().Compare(b.Local().Netip()), a.Remote().Netip().Compare(b.Remote().Netip()))
	})
	for _, c := range conns {
		c.abort(syscall.ECONNABORTED)
	}
	for _, l := range t.listeners {
		for ; l != nil; l = l.next {
			l.Close()
		}
	}
	for w := t.waits.first(); w != nil; w = t.waits.first() {
		t.removeWait(w)
	}
}

// insert adds c to the table.
func (t *Table) insert(c *Conn) {
	t.conns[c.id] = c
	c.inserted = true
	if !c.passive {
		c.pair = t.usePair(c.id)
	}
	t.pool.divide(t.pool.limit, 1)
}

func (t *Table) remove(c *Conn) {
	if !c.inserted {
		return
	}
	c.inserted = false
	t.pool.divide(t.pool.limit, -1)
	delete(t.conns, c.id)
	t.leavePair(c.pair, c.id, false)
	if t.last == c {
		t.last = nil
	}
}

// Knows reports whether there is a connection, a record of TIME-WAIT or a listener for a
// segment from remote to local.
func (t *Table) Knows(local, remote AddrPort) bool {
	id := makeTuple(local, remote)
	return t.conns[id] != nil || t.waits.records[id] != nil || t.listenerFor(id) != nil
}

// Events are what has happened to a connection since NextEvent last returned it.
type Events uint8

const (
	Readable    Events = 1 << iota // data, its end, or an error can be read; for data only after a Read that found nothing, or a Post
	Writable                       // there is room again; only after a Write that found too little
	Connected                      // the connection is established
	Returned                       // lent memory has been returned, see Conn.Lent
	Drained                        // all that was written, and the FIN after it, has been acknowledged: what SO_LINGER waits for
	PathChanged                    // the connection has found another PathMTU
	Finished                       // the engine is done with the connection: CLOSED or TIME-WAIT
	Acceptable                     // [Conn.Listener] has the connection to accept; the others follow when it has been accepted
)

// notify queues c for NextEvent. Until it has been accepted only Acceptable is an event.
func (c *Conn) notify(e Events) {
	if c.listener != nil && e != Acceptable {
		return
	}
	c.events |= e
	if c.onEvents {
		return
	}
	t := c.table
	c.onEvents = true
	if t.lastEvent == nil {
		t.firstEvent = c
	} else {
		t.lastEvent.eventNext = c
	}
	t.lastEvent = c
}

// NextEvent takes the next connection with events off the list. c is nil if there is none.
// e may be 0.
func (t *Table) NextEvent() (c *Conn, e Events) {
	c = t.firstEvent
	if c == nil {
		return nil, 0
	}
	if t.firstEvent = c.eventNext; t.firstEvent == nil {
		t.lastEvent = nil
	}
	e = c.events
	c.eventNext, c.onEvents, c.events = nil, false, 0
	return c, e
}

// setReady puts c at the end of the list that begins with Table.Ready, unless it is held, or
// takes it off. c.next is what it will send.
func (c *Conn) setReady(ready bool) {
	c.MaxLen = wire.MaxTCPHeaderLen + c.next.data
	if ready = ready && !c.held; ready == c.onReady {
		return
	}
	t := c.table
	c.onReady = ready
	if ready {
		if c.readyPrev = t.lastReady; c.readyPrev == nil {
			t.Ready = c
		} else {
			c.readyPrev.readyNext = c
		}
		t.lastReady = c
		return
	}
	if c.readyPrev == nil {
		t.Ready = c.readyNext
	} else {
		c.readyPrev.readyNext = c.readyNext
	}
	if c.readyNext == nil {
		t.lastReady = c.readyPrev
	} else {
		c.readyNext.readyPrev = c.readyPrev
	}
	c.readyNext, c.readyPrev = nil, nil
}

// Hold keeps c from being ready until Resume: the driver has no route for it yet, or no room.
func (c *Conn) Hold() {
	c.held = true
	c.setReady(false)
}

// Resume ends Hold.
func (c *Conn) Resume() {
	c.held = false
	c.setReady(c.next.action != nothing)
}

// InLine reports whether c is ready, which [Table.Ready] comes to in its turn.
func (c *Conn) InLine() bool { return c.onReady }

// Postpone puts c, if it is ready, behind the other connections that are.
func (t *Table) Postpone(c *Conn) {
	if c.onReady && c.readyNext != nil {
		c.setReady(false)
		c.setReady(true)
	}
}
