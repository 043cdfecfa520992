package tcp

import (
	"cmp"
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// ListenOptions of a listener. The zero value works.
type ListenOptions struct {
	Owner       any // see [Listener.Owner]
	SynQueue    int // connections that have not been established
	AcceptQueue int // connections that have not been accepted: the backlog
	NoCookies   bool
	// Shared: other listeners that are shared, too, may have the same port of the same
	// address. Each connection goes to one of them, by a hash of its addresses and ports.
	Shared  bool
	Options Options // of the connections
}

// Listener is the state LISTEN, and the connections that it has made until they are
// accepted.
type Listener struct {
	// Owner is for the driver of the engine. The engine never reads it.
	Owner any

	table *Table
	local AddrPort
	opts  ListenOptions
	next  *Listener // on the same port

	// The SYN queue has the connections in SYN-RECEIVED, the accept queue those whose
	// handshake is complete.
	syns, accepts list[Conn]
	cookiesAt     Time // when a cookie was last sent
	cookies       bool // a cookie was sent
	closed        bool
	record        *wire.Connection // the published record; nil: none
}

// Listen makes a listener. The address may be a wildcard, see [wire.Addr], and port 0
// asks for an ephemeral port.
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
		if l.local.Addr == local.Addr && l.opts.Shared && o.Shared {
			continue
		}
		if l.local.Addr.Overlaps(local.Addr) {
			return nil, syscall.EADDRINUSE
		}
	}
	o.Options = o.Options.withDefaults(&t.cfg)
	o.SynQueue = cmp.Or(o.SynQueue, DefaultSynQueue)
	o.AcceptQueue = cmp.Or(o.AcceptQueue, DefaultAcceptQueue)
	l := &Listener{Owner: o.Owner, table: t, local: local, opts: o, next: t.listeners[local.Port]}
	l.syns.links = func(c *Conn) *links[Conn] { return &c.waiting }
	l.accepts.links = l.syns.links
	t.listeners[local.Port] = l
	l.publish()
	return l, nil
}

// Addr is where the listener listens; its Addr may be a wildcard.
func (l *Listener) Addr() AddrPort { return l.local }

// listenerFor finds the listener for the local end of a tuple: bound to the
// address, or else to a wildcard.
func (t *Table) listenerFor(id tuple) *Listener {
	var wildcard *Listener
	for l := t.listeners[id.localPort()]; l != nil; l = l.next {
		if l.local.Addr == id.local {
			return l.share(id)
		}
		if wildcard == nil && l.local.Addr.Takes(id.local) {
			wildcard = l
		}
	}
	if wildcard == nil {
		return nil
	}
	return wildcard.share(id)
}

// share chooses the listener for a connection among l, the first, and those that share its
// port.
func (l *Listener) share(id tuple) *Listener {
	if !l.opts.Shared {
		return l
	}
	n := 0
	for o := l; o != nil; o = o.next {
		if o.local == l.local {
			n++
		}
	}
	nth := l.table.hashed(useShare, &id) % uint64(n)
	for o := l; ; o = o.next {
		if o.local != l.local {
			continue
		}
		if nth == 0 {
			return o
		}
		nth--
	}
}

// Len is the number of connections that wait to be accepted.
func (l *Listener) Len() int { return l.accepts.n }

// Accept takes the connection that has waited longest off the accept queue; nil
// if there is none. The caller must check at once whether there is something to read: events
// before Accept are not reported. The connection may have ended already.
func (l *Listener) Accept() *Conn {
	c := l.accepts.first
	if c != nil {
		l.accepts.remove(c)
		l.publishQueue()
		c.listener = nil
		c.events &^= Acceptable
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
	t.published.records.Put(l.record)
	l.record = nil
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
	for _, queue := range []*list[Conn]{&l.syns, &l.accepts} {
		for queue.first != nil {
			c := queue.first
			c.closed = true
			c.abort(syscall.ECONNABORTED)
			c.discard()
			if queue.first == c { // abort does not remove it from the accept queue
				queue.remove(c)
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
	// Second, check for an ACK. It is invalid, unless it answers a SYN cookie.
	if s.has(wire.TCPAck) {
		if s.has(wire.TCPSyn) || !l.acceptCookie(now, s) {
			t.closed(s)
		}
		return
	}
	// Third, check for a SYN.
	if !s.has(wire.TCPSyn) {
		t.counts[NoSyn]++
		return
	}
	t.counts[SynsReceived]++
	if t.pool.exhausted() {
		t.counts[NotOpened]++
		return
	}
	if l.full() {
		// As Linux does without tcp_abort_on_overflow: the peer sends its SYN again.
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
	c.update(now)
	t.opening = c
	// Data and a FIN in the SYN are not acknowledged, so the peer sends them again.
}

// child makes a connection in SYN-RECEIVED for the SYN s.
func (l *Listener) child(now Time, s *segment, iss seq.Number) *Conn {
	t := l.table
	o := l.opts.Options
	c := t.newConn(now, s.id, o)
	c.listener, c.passive = l, true
	c.begin(iss)
	c.state = SynReceived
	c.agree(now, s)
	l.syns.push(c)
	t.insert(c)
	t.counts[PassiveOpens]++
	return c
}

// established moves a connection from the SYN queue to the accept queue.
func (l *Listener) established(c *Conn) {
	l.syns.remove(c)
	l.accepts.push(c)
	l.publishQueue()
	c.notify(Acceptable)
}

// SYN cookies (RFC 4987, section 3.6). When the SYN queue is full, the state of a new
// connection is encoded in the SYN,ACK, and the peer's ACK returns it:
//
//	sequence number:  5 bits time, 3 bits MSS, 24 bits MAC
//	timestamp value:  our clock, its last 6 bits replaced by the other options
//
// The MAC covers both ends, the peer's sequence number, the time and the MSS.
// Without timestamps there is no place for the options, so the connection has
// neither window scale nor SACK.

const (
	cookieTick   = 64 * time.Second
	cookieMaxAge = 2 // ticks

	cookieScaleMask = 0x0f // no window scale: all ones
	cookieSACK      = 0x10
	cookieECN       = 0x20
	cookieBits      = 6
)

// cookieMSS are the MSS values that three bits select: the usual ones.
var cookieMSS = [8]uint16{defaultMSS, 1200, 1300, 1400, 1440, 1460, 4312, 8960}

func (t *Table) cookie(id tuple, irs seq.Number, tick uint64, mss uint32) seq.Number {
	mac := t.hashed(useCookie, &id, uint64(irs.Uint32())<<32|uint64(mss), tick)
	return seq.New(uint32(tick&31)<<27 | mss<<24 | uint32(mac)&0xffffff)
}

// sendCookie answers a SYN and keeps no state.
func (l *Listener) sendCookie(now Time, s *segment) {
	t := l.table
	t.counts[CookiesSent]++
	l.cookies, l.cookiesAt = true, now
	mss, offered := uint32(0), cmp.Or(s.options.MSS, defaultMSS)
	for i, m := range cookieMSS {
		if m <= offered {
			mss = uint32(i)
		}
	}
	o := &l.opts.Options
	iss := t.cookie(s.id, s.seq, uint64(now)/uint64(cookieTick), mss)
	t.answer(s, wire.TCPSyn|wire.TCPAck, iss, s.seq.Add(1), uint16(min(o.ReceiveBuffer, 0xffff)))
	r := &t.reply.options
	r.MSS = uint16(o.MTU - s.id.headers())
	if !s.Timestamps || t.cfg.NoTimestamps {
		return
	}
	bits := uint32(cookieScaleMask)
	if s.options.HasWindowScale && !t.cfg.NoWindowScale {
		bits = uint32(min(s.options.WindowScale, 14))
		r.HasWindowScale, r.WindowScale = true, scaleFor(t.mostReceive(o))
	}
	if s.options.SACKPermitted && !t.cfg.NoSACK {
		bits |= cookieSACK
		r.SACKPermitted = true
	}
	if t.cfg.ECN != ECNOff && s.Flags&ecnSetup == ecnSetup && s.ecn == 0 {
		bits |= cookieECN
		t.reply.fields.Flags |= wire.TCPEce
	}
	// The bits make the timestamp at most 63 ms lower than the clock, and never higher: the
	// timestamps that follow must not be lower.
	clock := now.milliseconds()
	if clock&(1<<cookieBits-1) < bits {
		clock -= 1 << cookieBits
	}
	clock = clock&^(1<<cookieBits-1) | bits
	r.HasTimestamps, r.TSVal, r.TSEcr = true, clock+t.timestampOffset(s.id), s.TSVal
}

// acceptCookie makes a connection for an ACK that answers a cookie, and processes the
// segment. It reports false if the ACK is invalid and needs a RST.
func (l *Listener) acceptCookie(now Time, s *segment) bool {
	t := l.table
	if !l.cookies || now-l.cookiesAt > Time((cookieMaxAge+1)*cookieTick) {
		return false
	}
	iss, irs := s.ack.Back(1), s.seq.Back(1)
	tick := uint64(now) / uint64(cookieTick)
	age := (tick - uint64(iss.Uint32()>>27)) & 31
	mss := iss.Uint32() >> 24 & 7
	if age > cookieMaxAge || age > tick || t.cookie(s.id, irs, tick-age, mss) != iss {
		t.counts[CookiesBad]++
		return false
	}
	if t.pool.exhausted() {
		t.counts[NotOpened]++
		return true
	}
	if l.full() {
		t.counts[AcceptOverflows]++
		return true
	}
	t.counts[CookiesAccepted]++
	// The parts of the SYN that the cookie contains.
	syn := segment{TCP: wire.TCP{Window: s.Window}, id: s.id, seq: irs}
	syn.options.MSS = cookieMSS[mss]
	if s.Timestamps && !t.cfg.NoTimestamps {
		bits := (s.TSEcr - t.timestampOffset(s.id)) & (1<<cookieBits - 1)
		syn.options.HasTimestamps, syn.options.TSVal = true, s.TSVal
		syn.options.SACKPermitted = bits&cookieSACK != 0
		if scale := bits & cookieScaleMask; scale != cookieScaleMask {
			syn.options.HasWindowScale, syn.options.WindowScale = true, uint8(scale)
		}
		if bits&cookieECN != 0 {
			syn.Flags = ecnSetup
		}
	}
	c := l.child(now, &syn, iss)
	c.sndNxt = iss.Add(1)
	c.sndMax = c.sndNxt
	c.process(now, s)
	c.update(now)
	return true
}
