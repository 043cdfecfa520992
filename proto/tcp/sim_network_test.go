package tcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

var (
	hostA = wire.AddrFrom4([4]byte{10, 0, 0, 1})
	hostB = wire.AddrFrom4([4]byte{10, 0, 0, 2})
)

// testSecret is a key that is not zero.
var testSecret = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

// network is two hosts, the lines between them, and virtual time.
type network struct {
	t      testing.TB
	seed   uint64
	rand   *rand.Rand
	now    Time
	hosts  [2]*simHost
	lines  [2]*linksim.Link[[]byte] // the index is the host that sends
	edges  edges                    // of the windows that both hosts have advertised
	lost   uint64                   // segments with data that the lines have lost
	trace  []traceEntry             // the last events, for the message of a failure
	gotAck [2]bool                  // a host has received an ACK, undamaged and without a RST

	onTooLarge func(from int, b []byte) // called with each segment that is lost because of its size
	onSend     func(from int, b []byte) // called with each segment that is sent

	rulesChange bool // runPair changes the rules of the lines at random times
	noTrace     bool // no trace is kept, and invariants are checked every 256 steps only
	steps       int
}

// linkModel is a link as most simulations want it. Segments that jitter delays may arrive after
// later ones.
type linkModel struct {
	loss, dup     float64
	delay, jitter time.Duration
}

func (l linkModel) rule() linksim.Rule {
	r := linksim.Rule{Loss: l.loss, Duplicate: l.dup, Delay: l.delay}
	if l.jitter > 0 {
		r.Reorder, r.HoldBack = 1, l.jitter
	}
	return r
}

// impair sets the rule for what a host sends from now on.
func (net *network) impair(from int, r linksim.Rule) { net.lines[from].Set(time.Duration(net.now), r) }

// setLink sets the rules of both lines from now on.
func (net *network) setLink(l linkModel) {
	for i := range net.lines {
		net.impair(i, l.rule())
	}
}

// inFlight is how many segments are on both lines.
func (net *network) inFlight() int { return net.lines[0].InFlight() + net.lines[1].InFlight() }

// simHost is a table and the frames that it has kept.
type simHost struct {
	net     *network
	index   int
	addr    wire.Addr
	tab     *Table
	frames  map[uint64]bool // kept by the table
	frameID uint64
	memory  Memory
	paths   bool        // it emits some segments with EmitLong, as if a path through memory came and went
	buf     [66000]byte // for Emit
}

func newNetwork(t testing.TB, seed uint64, cfg [2]Config) *network {
	net := &network{t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 1)), now: Time(time.Second)}
	net.edges = edges{}
	for i := range net.lines {
		net.lines[i] = linksim.NewLink[[]byte](seed+uint64(i)<<32, linksim.Rule{Delay: 20 * time.Microsecond})
	}
	for i := range net.hosts {
		h := &simHost{net: net, index: i, addr: []wire.Addr{hostA, hostB}[i], frames: map[uint64]bool{}, memory: MemoryFrame}
		cfg[i].Secret = testSecret
		cfg[i].Secret[0] = byte(i)
		cfg[i].ReturnFrame = func(id uint64) {
			if !h.frames[id] {
				t.Fatalf("host %d: frame %d released that was not kept", i, id)
			}
			delete(h.frames, id)
		}
		h.tab = NewTable(cfg[i])
		net.hosts[i] = h
	}
	return net
}

// listen returns a listener of the second host on port 80.
func (net *network) listen(o Options) *Listener {
	net.t.Helper()
	l, err := net.hosts[1].tab.Listen(AddrPort{Port: 80}, ListenOptions{Options: o})
	if err != nil {
		net.fatalf("listen: %v", err)
	}
	return l
}

// dial dials port 80 of the second host from the first one.
func (net *network) dial(o Options) *Conn {
	net.t.Helper()
	c, err := net.hosts[0].tab.Dial(net.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 80}, o)
	if err != nil {
		net.fatalf("dial: %v", err)
	}
	return c
}

// connect dials, and returns both ends when the listener has accepted the connection.
func (net *network) connect(l *Listener, o Options) (client, server *Conn) {
	net.t.Helper()
	client = net.dial(o)
	for server == nil {
		net.step(Never)
		server = l.Accept()
	}
	return client, server
}

// patternBytes are n bytes of what host sends, from byte first on.
func patternBytes(host, first, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = pattern(host, first+i)
	}
	return p
}

// checkPattern fails unless p is what host sends from byte first on.
func checkPattern(t testing.TB, host, first int, p []byte) {
	t.Helper()
	for i, b := range p {
		if want := pattern(host, first+i); b != want {
			t.Fatalf("byte %d is %#x, want %#x", first+i, b, want)
		}
	}
}

// drain emits everything that is ready.
func (h *simHost) drain() {
	for i := 0; ; i++ {
		c := h.tab.Ready
		if c == nil {
			return
		}
		if i > 100000 {
			h.net.t.Fatalf("host %d: always ready: %+v", h.index, c.Info())
		}
		b := h.buf[:]
		was, sndMax := c.next.action, c.sndMax
		var n int
		if h.paths && h.net.rand.IntN(2) == 0 {
			n = h.emitLong(c, b)
		} else {
			n = c.Emit(h.net.now, b[:9000])
		}
		if n == 0 {
			h.net.t.Fatalf("host %d: ready with nothing to send in %v", h.index, c.State())
		}
		h.checkSegment(c, was, sndMax, b[:n])
		h.net.send(h.index, b[:n], c.ECT)
		h.tab.Postpone(c)
	}
}

// emitLong is EmitLong into some room, and adds the checksum, since the lines damage segments.
func (h *simHost) emitLong(c *Conn, b []byte) int {
	most, again := c.LongLen(), c.next.action != sendData || c.sndNxt != c.sndMax
	n := c.EmitLong(h.net.now, b[:100+h.net.rand.IntN(len(b)-100)])
	s := view(b[:n])
	if n > most || again && len(s.Payload) > c.mss {
		h.net.fatalf("host %d: a segment of %d bytes, want at most %d, sent again %v: %+v", h.index, n, most, again, c.Info())
	}
	b[16], b[17] = 0, 0
	sum := wire.PseudoHeader(h.addr, h.net.hosts[1-h.index].addr, wire.ProtocolTCP, uint16(n))
	binary.BigEndian.PutUint16(b[16:], ^wire.Fold(wire.Sum(b[:n], sum)))
	return n
}

func (net *network) send(from int, b []byte, ect bool) {
	var s wire.TCP
	if err := s.Parse(b); err != nil || s.Checksum(net.hosts[from].addr, net.hosts[1-from].addr) != wire.ChecksumGood {
		net.t.Fatalf("host %d: emitted %x: %v", from, b, err)
	}
	if ect && len(s.Payload) == 0 {
		net.fatalf("host %d: %s may be marked", from, describe(b))
	}
	net.note(from, "sends", b)
	if net.edges.note(net.hosts[from].addr, net.hosts[1-from].addr, b) {
		net.fatalf("host %d: the window has shrunk", from)
	}
	if f := net.lines[from].Send(time.Duration(net.now), linksim.Frame{Size: len(b), ECT: ect}, bytes.Clone(b)); f.Lost != linksim.Arrives {
		net.note(from, "that segment is lost", nil)
		if len(s.Payload) > 0 {
			net.lost++
		}
		if f.Lost == linksim.BySize && net.onTooLarge != nil {
			net.onTooLarge(from, b)
		}
	}
	if net.onSend != nil {
		net.onSend(from, b)
	}
}

// traceEntry is an event of the simulation. It becomes text only if the test fails.
type traceEntry struct {
	at     Time
	host   int
	what   string
	header []byte // of the segment, if there is one
	size   int    // of the segment
}

func (e traceEntry) String() string {
	s := fmt.Sprintf("%v host %d %s", time.Duration(e.at), e.host, e.what)
	if e.header != nil {
		s += " " + describeHeader(e.header, e.size)
	}
	return s
}

// note adds an event to the trace, which has the last 200 at least. b is the segment, or nil.
func (net *network) note(host int, what string, b []byte) {
	if net.noTrace {
		return
	}
	if len(net.trace) > 400 {
		net.trace = append(net.trace[:0], net.trace[200:]...)
	}
	net.trace = append(net.trace, traceEntry{net.now, host, what, bytes.Clone(b[:min(len(b), maxHeader)]), len(b)})
}

const maxHeader = 60 // bytes of a TCP header

func (net *network) fatalf(format string, args ...any) {
	net.t.Helper()
	for _, e := range net.trace {
		net.t.Log(e)
	}
	for i, h := range net.hosts {
		for _, c := range h.tab.conns {
			net.t.Logf("host %d: %+v deadline %v", i, c.Info(), time.Duration(h.tab.Deadline))
		}
	}
	net.t.Fatalf(format, args...)
}

// describe is a segment in one line, for messages.
func describe(b []byte) string { return describeHeader(b, len(b)) }

// describeHeader is a segment of that size, of which b has the header at least.
func describeHeader(b []byte, size int) string {
	var s wire.TCP
	if err := s.Parse(b); err != nil {
		return err.Error()
	}
	header := wire.TCPHeaderLen + len(s.Options)
	return fmt.Sprintf("%d>%d %v seq %d ack %d len %d win %d hdr %d", s.SrcPort, s.DstPort, s.Flags, s.Seq, s.Ack, size-header, s.Window, header)
}

// receive gives a packet to the host.
func (h *simHost) receive(b []byte) { h.receiveMarked(b, false) }

func (h *simHost) receiveMarked(b []byte, marked bool) {
	h.frameID++
	in := Inbound{Src: h.net.hosts[1-h.index].addr, Dst: h.addr, Data: b, Frame: h.frameID, Memory: h.memory}
	if marked {
		in.ECN = wire.ECNMarked
	}
	r := h.tab.Process(h.net.now, &in)
	if r.Kept {
		if h.memory != MemoryFrame {
			h.net.fatalf("host %d: kept memory that is not a frame", h.index)
		}
		h.frames[h.frameID] = true
	} else if h.memory == MemoryBorrowed {
		for i := range b {
			b[i] = 0xee
		}
	}
	if r.Reply {
		out := make([]byte, 60)
		n := h.tab.EmitReply(out)
		h.net.send(h.index, out[:n], false)
	}
}

// step moves to the next arrival or timer, and reports whether there was one before limit.
func (net *network) step(limit Time) bool {
	for _, h := range net.hosts {
		h.drain()
	}
	const nothing, timer = -1, -2
	next, k := limit, nothing // k may be whose segment arrives
	for i := range net.lines {
		if at, ok := net.lines[i].Next(); ok && Time(at) < next {
			next, k = Time(at), i
		}
	}
	for _, h := range net.hosts {
		if at := h.tab.Deadline; at < next {
			if at < net.now {
				net.fatalf("host %d: deadline %v in the past", h.index, at)
			}
			next, k = at, timer
		}
	}
	if k == nothing {
		if limit != Never {
			net.now = limit
		}
		return false
	}
	net.now = max(net.now, next)
	if k >= 0 {
		a, _ := net.lines[k].Receive(time.Duration(next))
		b := bytes.Clone(a.Item) // another copy may be under way
		if a.Flip >= 0 {
			b[a.Flip/8] ^= 1 << (a.Flip % 8)
		}
		net.note(1-k, "receives", b)
		if a.Flip < 0 && view(b).Flags&(wire.TCPAck|wire.TCPRst) == wire.TCPAck {
			net.gotAck[1-k] = true
		}
		net.hosts[1-k].receiveMarked(b, a.Mark)
	} else {
		for _, h := range net.hosts {
			h.tab.Expire(net.now)
			if h.tab.Deadline <= net.now {
				net.fatalf("host %d: due after Expire", h.index)
			}
		}
	}
	if net.steps++; !net.noTrace || net.steps%256 == 0 {
		net.check()
	}
	return true
}

// gaveUp reports whether a host has given up a handshake. It may do so if no acknowledgment has
// arrived for a minute, or for three minutes if this host has dialed. The other host may still
// have the connection open, without a peer.
func (net *network) gaveUp() bool {
	for i, h := range net.hosts {
		if h.tab.Count(Failed) == 0 || h.tab.Count(Handshakes) > 0 {
			continue
		}
		limit := 63 * time.Second
		if h.tab.Count(ActiveOpens) > 0 {
			limit = DefaultConnectTimeout
		}
		if net.gotAck[i] || net.now < Time(time.Second).add(limit) {
			net.fatalf("host %d has given up a handshake", i)
		}
		return true
	}
	return false
}

// orphanGaveUp reports whether a connection that the application has closed ended by a timeout. It
// may do so if its data or FIN was not acknowledged for five minutes.
func (net *network) orphanGaveUp(a *app) bool {
	if a.c == nil || !a.closed || a.c.Err() != syscall.ETIMEDOUT {
		return false
	}
	if net.now < a.c.progressAt.add(DefaultUserTimeout) || a.c.stat.timeouts < 5 {
		net.fatalf("host %d: a closed connection ended by a timeout too early", a.h.index)
	}
	return true
}

// check checks the invariants of the timers' heap, of every connection, and of the memory.
func (net *network) check() {
	for i, h := range net.hosts {
		for _, c := range h.tab.timers.Owners() {
			if at := c.timer.At(); !c.inserted || at == Never || at < h.tab.timers.First() {
				net.fatalf("host %d: a connection in %v is in the heap of timers at %d", i, c.state, at)
			}
		}
		used := 0
		for _, c := range h.tab.conns {
			for _, msg := range []string{c.invariant(), c.timerInvariant(), c.checkAgainstPeer(net.peerOf(i, c))} {
				if msg != "" {
					net.fatalf("host %d: %s: %+v", i, msg, c.Info())
				}
			}
			used += c.chunksHeld() * ChunkSize
		}
		if used > h.tab.pool.used {
			net.fatalf("host %d: connections hold %d bytes, the table has counted %d", i, used, h.tab.pool.used)
		}
	}
}

// chunksHeld is how many chunks of the table's memory are in the queues of the connection.
func (c *Conn) chunksHeld() (n int) {
	lists := []*block{c.send.head, c.recv.head}
	for _, r := range c.outOfOrder.runs {
		lists = append(lists, r.head)
	}
	for _, b := range lists {
		for ; b != nil; b = b.next {
			if b.kind == chunkBlock {
				n++
			}
		}
	}
	return n
}

// invariant returns what is wrong with a connection, or "".
func (c *Conn) invariant() string {
	sum := 0
	for b := c.send.head; b != nil; b = b.next {
		if len(b.data) == 0 {
			return "an empty block in the send queue"
		}
		sum += len(b.data)
	}
	if sum != c.send.bytes {
		return fmt.Sprintf("%d bytes to send, counted %d", sum, c.send.bytes)
	}
	sum = 0
	for b := c.recv.head; b != nil; b = b.next {
		sum += len(b.data)
	}
	if sum != c.recv.bytes {
		return fmt.Sprintf("%d bytes to read, counted %d", sum, c.recv.bytes)
	}
	switch {
	case c.sndUna.After(c.sndNxt), c.sndNxt.After(c.sndMax):
		return "not SND.UNA <= SND.NXT <= sndMax"
	case c.rcvNxt.After(c.rcvAdv):
		return "RCV.NXT is beyond the advertised window"
	case c.inserted && (c.state == Closed || c.state == TimeWait || c.state == Listen):
		return "in the table in " + c.state.String()
	case c.state.synchronized() && c.inserted && c.sndUna != c.sndMax && c.rtxAt == Never:
		return "data in flight and no retransmission timer"
	case c.state.synchronized() && c.inserted && c.sndUna == c.sndMax && c.rtxAt != Never && !c.persisting:
		return "nothing in flight and a retransmission timer"
	case c.inserted && c.timer.At() > c.earliestTimer():
		return "a timer is earlier than the entry in the heap"
	case c.inserted && c.next != c.makePlan() || c.onReady != (c.next.action != nothing):
		return "the plan is out of date, or the ready list is wrong"
	}
	if c.state.synchronized() && c.inserted {
		in := int(c.sndNxt.From(c.sndUna))
		off := 0
		for b := c.send.head; b != nil && b != c.send.cursor; b = b.next {
			off += len(b.data)
		}
		if c.send.cursor != nil {
			off += c.send.offset
		}
		if off != min(in, c.send.bytes) {
			return fmt.Sprintf("cursor at %d, SND.NXT at %d", off, in)
		}
	}
	if msg := c.scoreboardInvariant(); msg != "" {
		return msg
	}
	return c.outOfOrderInvariant()
}

// scoreboardInvariant returns what is wrong with the scoreboard, or "".
func (c *Conn) scoreboardInvariant() string {
	b := &c.board
	if b.head == nil {
		if b.tail != nil || b.spans != 0 || b.sacked != 0 || b.lost != 0 {
			return "a scoreboard without spans, with bytes or a tail"
		}
		return ""
	}
	spans, nSacked, nLost := 0, 0, 0
	start := c.sndUna
	for s := b.head; s != nil; start, s = s.end, s.next {
		n := int(s.end.From(start))
		switch {
		case !start.Before(s.end):
			return "an empty span"
		case s.marks&(sacked|lost) == sacked|lost:
			return "a span is both lost and SACKed"
		case s.marks&sacked != 0:
			nSacked += n
		case s.marks&lost != 0:
			nLost += n
		}
		if spans++; s.next == nil && (s != b.tail || s.end.After(c.sndNxt)) {
			return "the scoreboard's tail is wrong, or beyond SND.NXT"
		}
	}
	switch {
	case spans != b.spans || spans > maxSpans+maxSpans/4:
		return fmt.Sprintf("%d spans, counted %d", spans, b.spans)
	case nSacked != b.sacked || nLost != b.lost:
		return fmt.Sprintf("%d sacked and %d lost, counted %d and %d", nSacked, nLost, b.sacked, b.lost)
	case b.guessed < 0 || b.guessed > 0 && c.sack:
		return fmt.Sprintf("%d bytes count as received by duplicate ACKs, SACK %t", b.guessed, c.sack)
	case c.phase <= lossProbing && b.lost > 0:
		return "lost bytes, and no recovery"
	case c.phase > lossProbing && c.sndUna.AtOrAfter(c.recoverSeq):
		return "recovery has not ended at its last sequence number"
	}
	return ""
}

// Beyond the invariants of one connection the simulation checks each segment that is sent, each
// timer, and what one end knows of the other.

// checkSegment checks a segment that c has just written: new data is within the peer's window and
// the congestion window. was and sndMax are c's planned action and c.sndMax before that.
func (h *simHost) checkSegment(c *Conn, was action, sndMax seq.Number, b []byte) {
	s := view(b)
	flags := s.Flags
	if flags&wire.TCPRst != 0 || c.state == Closed {
		return
	}
	if was != sendData || c.sndMax == sndMax {
		return
	}
	// The limit is the congestion window. Outside of recovery congestion control determines it, and
	// a loss probe or two segments of limited transmit may exceed it.
	end := c.sndMax
	if flags&wire.TCPFin != 0 {
		end = end.Back(1) // the FIN needs no room in the window
	}
	limit := c.window
	if c.phase == open {
		limit = min(limit, c.congestion.Window()+2*c.mss)
	}
	if in := int(end.From(c.sndUna)); in > int(c.sndWnd) || c.pipe() > limit+1 {
		h.net.fatalf("host %d: sends beyond the window: %d of %d in flight, pipe %d, congestion window %d: %+v", h.index, in, c.sndWnd, c.pipe(), limit, c.Info())
	}
}

// timerInvariant returns what is wrong with the connection's timers, or "".
func (c *Conn) timerInvariant() string {
	if !c.inserted {
		return ""
	}
	first := c.earliestTimer()
	unsent := c.send.bytes - int(c.sndNxt.From(c.sndUna))
	switch {
	case c.timer.At() > first:
		return "a timer runs, and the connection is not in the heap, or later"
	case c.state == SynSent || c.state == SynReceived:
		if c.next.action != sendSyn && c.rtxAt == Never {
			return "a handshake without a timer"
		}
		if !c.passive && c.waitAt == Never {
			return "a dial without the connect timeout"
		}
	case c.state == FinWait2:
		if c.closed && c.waitAt == Never {
			return "FIN-WAIT-2 of a closed connection without a timer"
		}
	case c.ackPending > 0 && !c.ackNow && c.ackAt == Never:
		return "an ACK waits without a timer"
	case c.next.corked != (c.corkAt != Never):
		return "corked data without a timer, or a cork timer without corked data"
	case c.next.action == nothing && !c.next.corked && c.rtxAt == Never && c.paceAt == Never && (unsent > 0 || c.finQueued && unsent == 0):
		return "unsent data or FIN, and no timer"
	case c.paced != (c.paceAt != Never):
		return "pacing without a timer, or a pacing timer without pacing"
	case c.phase > lossProbing && c.rtxAt == Never:
		return "recovery without a timer"
	case c.opts.KeepAlive.Enable && !c.closed && c.keepAt == Never:
		return "keepalive without a timer"
	}
	return ""
}

// checkAgainstPeer compares the scoreboard with the peer's data: the peer has received what is
// acknowledged, and has what is marked as SACKed, unless it has dropped some (Reneged). peer
// is nil if the connection has ended there.
func (c *Conn) checkAgainstPeer(peer *Conn) string {
	if peer == nil || peer.state < Established || c.state < Established {
		return ""
	}
	if c.sndUna.After(peer.rcvNxt) {
		return fmt.Sprintf("SND.UNA is %d, and RCV.NXT of the peer is %d", c.sndUna.Uint32(), peer.rcvNxt.Uint32())
	}
	if c.rcvNxt.After(peer.sndMax) {
		return "RCV.NXT is beyond what the peer has sent"
	}
	if edge := c.sndUna.Add(c.sndWnd); c.sndWL2 == c.sndUna && edge.After(peer.rcvAdv) {
		return fmt.Sprintf("the window ends at %d, the peer's at %d", edge.Uint32(), peer.rcvAdv.Uint32())
	}
	start := c.sndUna
	for s := c.board.head; s != nil; start, s = s.end, s.next {
		if s.marks&sacked == 0 || peer.table.counts[Reneged] > 0 {
			continue
		}
		at := seq.Max(start, peer.rcvNxt)
		for _, r := range peer.outOfOrder.runs {
			if r.left.AtOrBefore(at) && r.right.After(at) {
				at = r.right
			}
		}
		if at.Before(s.end) {
			return fmt.Sprintf("%d to %d counts as received, the peer lacks %d", start.Uint32(), s.end.Uint32(), at.Uint32())
		}
	}
	return ""
}

// peerOf is the other end of a connection, if it is in its table.
func (net *network) peerOf(from int, c *Conn) *Conn {
	id := makeTuple(AddrPort{Addr: net.hosts[1-from].addr, Port: c.Remote().Port}, AddrPort{Addr: net.hosts[from].addr, Port: c.Local().Port})
	for _, p := range net.hosts[1-from].tab.conns {
		if p.id == id {
			return p
		}
	}
	return nil
}
