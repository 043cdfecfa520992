package tcp

import (
	"cmp"
	"maps"
	"slices"
	"syscall"
)

// Table is all the connections and listeners of one stack. Its methods, and
// those of its connections and listeners, are not safe for concurrent use.
type Table struct {
	cfg        Config
	hash       sipHash
	conns      map[tuple]*Conn
	last       *Conn // that the last segment was for; nil: none
	listeners  map[uint16]*Listener
	waits      timeWaits
	pool       pool
	spans      spanPool
	published  published
	outOfOrder oooList
	spareRuns  []run // empty, for the next out-of-order queue
	timers     timerHeap
	counts     [numberOfCounts]uint64

	firstEvent, lastEvent *Conn
	firstReady, lastReady *Conn
	notified              *Listener

	// Of the segment that is being processed.
	segment segment
	kept    bool
	reply   reply
	opening *Conn

	ports     [][]PortBlock         // Config.Ports
	portSteps [portSteps]uint32     // RFC 6056, see ports.go
	pairs     map[tuple]*pairUse    // what ChoosePort looks at: by destination and local block
	full      map[tuple]*fullBlocks // and by destination, if there are any
}

// NewTable makes an empty table.
func NewTable(cfg Config) *Table {
	t := &Table{
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
	t.pool.release = t.cfg.ReleaseFrame
	t.published.unused = t.cfg.Connections
	t.waits.records = make(map[tuple]*timeWait)
	return t
}

// Len is the number of connections, those in TIME-WAIT left out.
func (t *Table) Len() int { return len(t.conns) }

// TimeWaits is the number of connections in TIME-WAIT.
func (t *Table) TimeWaits() int { return len(t.waits.records) }

// MemoryInUse is how many bytes of Config.Memory connections have queued
// something in: chunks, and text in memory of the heap.
func (t *Table) MemoryInUse() int { return t.pool.used }

// Dial begins a connection from local to remote: the SYN is ready to be
// emitted. Port 0 in local asks for an ephemeral one, see [Table.ChoosePort].
//
// If what the two ends had before is in TIME-WAIT, the new connection takes its place
// at once. The peer, if it remembers anything, can tell it from the old one: its initial
// sequence number is higher than any that the old one had, and its timestamps are not
// lower (RFC 6191, section 2, RFC 1122, section 4.2.2.13).
//
// Errors: EADDRINUSE if the two ends have a connection already, or are one and the
// same; EADDRNOTAVAIL if there is a connection to remote from every ephemeral port;
// EINVAL for an address that no host has; ENOBUFS if the table's memory is used up.
func (t *Table) Dial(now Time, local, remote AddrPort, o Options) (*Conn, error) {
	if !usable(local.Addr) || !usable(remote.Addr) || remote.Port == 0 {
		return nil, syscall.EINVAL
	}
	if local.Port == 0 {
		if local.Port = t.ephemeralPort(local.Addr, remote); local.Port == 0 {
			return nil, syscall.EADDRNOTAVAIL
		}
	}
	id := makeTuple(local, remote)
	if t.conns[id] != nil || id.local == id.remote {
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

// Close ends everything: listeners, connections, each with a RST that is ready
// to be emitted, and what is left in TIME-WAIT. Connections that their owners
// have not closed keep what they have received until they are.
func (t *Table) Close() {
	// In an order that does not depend on the map's.
	conns := slices.SortedFunc(maps.Values(t.conns), func(a, b *Conn) int {
		return cmp.Or(cmp.Compare(a.id.local, b.id.local), cmp.Compare(a.id.remote, b.id.remote))
	})
	for _, c := range conns {
		c.abort(syscall.ECONNABORTED)
	}
	for _, l := range t.listeners {
		for ; l != nil; l = l.next {
			l.Close()
		}
	}
	for t.waits.oldest != nil {
		t.removeWait(t.waits.oldest)
	}
}

// insert makes c known to the table.
func (t *Table) insert(c *Conn) {
	t.conns[c.id] = c
	c.inTable = true
	if !c.passive {
		c.pair = t.usePair(c.id)
	}
	t.pool.divide(t.pool.limit, 1)
}

func (t *Table) remove(c *Conn) {
	if !c.inTable {
		return
	}
	c.inTable = false
	t.pool.divide(t.pool.limit, -1)
	delete(t.conns, c.id)
	t.leavePair(c.pair, c.id, false)
	if t.last == c {
		t.last = nil
	}
}

// Knows reports whether a segment from remote to local would meet somebody: a
// connection, what is left of one in TIME-WAIT, or a listener.
func (t *Table) Knows(local, remote AddrPort) bool {
	id := makeTuple(local, remote)
	return t.conns[id] != nil || t.waits.records[id] != nil || t.listenerFor(id) != nil
}

// lookup finds the connection of a tuple.
func (t *Table) lookup(id tuple) *Conn {
	if c := t.last; c != nil && c.id == id {
		return c
	}
	c := t.conns[id]
	if c != nil {
		t.last = c
	}
	return c
}
