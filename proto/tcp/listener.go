package tcp

import (
	"syscall"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// ListenOptions of a listener. The zero value works.
type ListenOptions struct {
	Owner       any // see [Listener.Owner]
	SynQueue    int // connections that have not been established
	AcceptQueue int // connections that have not been accepted: the backlog
	NoCookies   bool
	Options     Options // of the connections
}

// Listener is the state LISTEN, and the connections that have come from it until
// they are accepted.
type Listener struct {
	// Owner is for the driver of the engine. The engine never reads it.
	Owner any

	table *Table
	local AddrPort
	opts  ListenOptions
	next  *Listener // on the same port

	// The SYN queue is the connections in SYN-RECEIVED, the accept queue those
	// that came out of it.
	syns, accepts connList
	cookiesAt     Time // when a cookie was last sent
	cookies       bool // one ever was
	closed        bool
	onNotified    bool
	notifyNext    *Listener
}

// Listen makes a listener. The zero address is the wildcard, and port 0 asks for
// an ephemeral port.
//
// Errors: EADDRINUSE if a listener has that port at an overlapping address, or
// no ephemeral port is free.
func (t *Table) Listen(local AddrPort, o ListenOptions) (*Listener, error) {
	if local.Port == 0 {
		if local.Port = t.listenerPort(); local.Port == 0 {
			return nil, syscall.EADDRINUSE
		}
	}
	for l := t.listeners[local.Port]; l != nil; l = l.next {
		if l.local.Addr == local.Addr || l.local.Addr == [4]byte{} || local.Addr == [4]byte{} {
			return nil, syscall.EADDRINUSE
		}
	}
	o.Options = o.Options.withDefaults(&t.cfg)
	o.SynQueue = or(o.SynQueue, DefaultSynQueue)
	o.AcceptQueue = or(o.AcceptQueue, DefaultAcceptQueue)
	l := &Listener{Owner: o.Owner, table: t, local: local, opts: o, next: t.listeners[local.Port]}
	t.listeners[local.Port] = l
	return l, nil
}

// Addr is where the listener listens; its Addr may be the wildcard.
func (l *Listener) Addr() AddrPort { return l.local }

// listenerFor finds the listener for the local end of a tuple: bound to the
// address, or else to the wildcard.
func (t *Table) listenerFor(id tuple) *Listener {
	var wildcard *Listener
	for l := t.listeners[id.localPort()]; l != nil; l = l.next {
		if l.local.Word() == id.local {
			return l
		}
		if l.local.Addr == [4]byte{} {
			wildcard = l
		}
	}
	return wildcard
}

// Len is the number of connections that wait to be accepted.
func (l *Listener) Len() int { return l.accepts.n }

// Accept takes the connection that has waited longest off the accept queue; nil
// if there is none. Its owner is to look at once whether there is something to
// read: events from before it was accepted have gone nowhere. It may even be over
// already.
func (l *Listener) Accept() *Conn {
	c := l.accepts.first
	if c != nil {
		l.accepts.remove(c)
		c.listener = nil
	}
	return c
}

// Close ends the listener. Connections that have not been accepted get a RST.
func (l *Listener) Close() {
	if l.closed {
		return
	}
	l.closed = true
	t := l.table
	for at := t.listeners[l.local.Port]; at != nil; at = at.next {
		if at.next == l {
			at.next = l.next
		}
	}
	if t.listeners[l.local.Port] == l {
		if t.listeners[l.local.Port] = l.next; l.next == nil {
			delete(t.listeners, l.local.Port)
		}
	}
	for _, list := range []*connList{&l.syns, &l.accepts} {
		for list.first != nil {
			c := list.first
			c.closed = true
			c.abort(syscall.ECONNABORTED)
			c.discard()
			if list.first == c { // in the accept queue it stays when it ends
				list.remove(c)
			}
		}
	}
}

// full reports whether no more connections can wait to be accepted.
func (l *Listener) full() bool { return l.accepts.n >= l.opts.AcceptQueue }

// listen is the state LISTEN (RFC 9293, section 3.10.7.2). newer raises the
// initial sequence number above that of an old connection.
func (l *Listener) listen(now Time, s *segment, newer func(seq.Number) seq.Number) {
	t := l.table
	// First, check for a RST.
	if s.has(wire.TCPRst) {
		t.counts[ResetsIgnored]++
		return
	}
	// Second, check for an ACK. It is bad, unless it answers a SYN cookie.
	if s.has(wire.TCPAck) {
		if s.has(wire.TCPSyn) || !l.acceptCookie(now, s) {
			t.closed(s)
		}
		return
	}
	// Third, check for a SYN.
	if !s.has(wire.TCPSyn) {
		t.counts[NoAck]++
		return
	}
	t.counts[SynsReceived]++
	if t.pool.exhausted() {
		t.counts[NotOpened]++
		return
	}
	if l.full() {
		// As Linux does without tcp_abort_on_overflow: the peer tries again
		// while the application catches up.
		t.counts[SynDropped]++
		return
	}
	if l.syns.n >= l.opts.SynQueue {
		if l.opts.NoCookies {
			t.counts[SynDropped]++
			return
		}
		l.sendCookie(now, s)
		return
	}
	c := l.child(now, s, newer(t.isn(now, s.id)))
	c.agree(now, s)
	c.update(now)
	t.opening = c
	// Text and a FIN in the SYN are not acknowledged, so they come again.
}

// child makes a connection in SYN-RECEIVED.
func (l *Listener) child(now Time, s *segment, iss seq.Number) *Conn {
	t := l.table
	o := l.opts.Options
	c := t.newConn(now, s.id, o)
	c.listener, c.passive = l, true
	c.begin(iss)
	c.state = SynReceived
	c.irs = s.seq
	c.rcvNxt = s.seq.Add(1)
	c.lastAckSent = c.rcvNxt
	c.rcvAdv = c.rcvNxt.Add(c.synWindow())
	c.sndWnd, c.maxSndWnd = s.window, s.window
	c.sndWL1, c.sndWL2 = s.seq, iss
	l.syns.push(c)
	t.insert(c)
	t.counts[PassiveOpens]++
	return c
}

// established moves a connection from the SYN queue to the accept queue.
func (l *Listener) established(c *Conn) {
	l.syns.remove(c)
	l.accepts.push(c)
	if !l.onNotified {
		l.onNotified = true
		t := l.table
		l.notifyNext, t.notified = t.notified, l
	}
}

// connList is a queue of connections that any can leave.
type connList struct {
	first, last *Conn
	n           int
}

func (l *connList) push(c *Conn) {
	c.listNext, c.listPrev = nil, l.last
	if l.last == nil {
		l.first = c
	} else {
		l.last.listNext = c
	}
	l.last = c
	l.n++
}

func (l *connList) remove(c *Conn) {
	if c.listPrev == nil {
		l.first = c.listNext
	} else {
		c.listPrev.listNext = c.listNext
	}
	if c.listNext == nil {
		l.last = c.listPrev
	} else {
		c.listNext.listPrev = c.listPrev
	}
	c.listNext, c.listPrev = nil, nil
	l.n--
}
