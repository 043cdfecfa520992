package tcp

import (
	"bytes"
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

// world is virtual time and the wire.
type world struct {
	t     testing.TB
	seed  uint64
	rand  *rand.Rand
	now   Time
	hosts [2]*simHost
	lines [2]*linksim.Link[[]byte] // by who sends
	link  linkModel                // what both lines are made with, unless impair has been called
	edges edges                    // of the windows
	lost  uint64                   // segments with data that the link has lost
	trace []string
	heard [2]bool // a host has received an ACK, undamaged and without a RST

	tooLarge func(from int, b []byte) // called for what was lost because of its size
	sent     func(from int, b []byte) // called for everything

	restless bool // the lines change while they are used
	quiet    bool // no trace, and invariants are checked now and then
	steps    int
}

// linkModel is a link as most simulations want it: what is delayed by jitter may
// overtake.
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
func (w *world) impair(from int, r linksim.Rule) { w.line(from).Set(time.Duration(w.now), r) }

// line is where a host's segments go.
func (w *world) line(from int) *linksim.Link[[]byte] {
	if w.lines[from] == nil {
		w.lines[from] = linksim.NewLink[[]byte](w.seed+uint64(from)<<32, w.link.rule())
	}
	return w.lines[from]
}

// underWay is how many segments are.
func (w *world) underWay() int { return w.line(0).InFlight() + w.line(1).InFlight() }

// simHost is one table and the frames that it holds.
type simHost struct {
	w       *world
	index   int
	addr    wire.Addr
	tab     *Table
	frames  map[uint64]bool // kept by the table
	frameID uint64
	memory  Memory
}

func newWorld(t testing.TB, seed uint64, cfg [2]Config) *world {
	w := &world{t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 1)), now: Time(time.Second)}
	w.link, w.edges = linkModel{delay: 20 * time.Microsecond}, edges{}
	for i := range w.hosts {
		h := &simHost{w: w, index: i, addr: []wire.Addr{hostA, hostB}[i], frames: map[uint64]bool{}, memory: MemoryFrame}
		cfg[i].Secret = testSecret
		cfg[i].Secret[0] = byte(i)
		cfg[i].ReleaseFrame = func(id uint64) {
			if !h.frames[id] {
				t.Fatalf("host %d: frame %d released that was not kept", i, id)
			}
			delete(h.frames, id)
		}
		h.tab = NewTable(cfg[i])
		w.hosts[i] = h
	}
	return w
}

// drain emits everything that is ready.
func (h *simHost) drain() {
	for i := 0; ; i++ {
		c := h.tab.Ready
		if c == nil {
			return
		}
		if i > 100000 {
			h.w.t.Fatalf("host %d: always ready: %+v", h.index, c.Info())
		}
		b := make([]byte, 9000)
		was, sndMax := c.next.action, c.sndMax
		n := c.Emit(h.w.now, b)
		if n == 0 {
			h.w.t.Fatalf("host %d: ready with nothing to send in %v", h.index, c.State())
		}
		h.checkSegment(c, was, sndMax, b[:n])
		h.w.send(h.index, b[:n], c.ECT)
		h.tab.Postpone(c)
	}
}

func (w *world) send(from int, b []byte, ect bool) {
	var s wire.TCP
	if err := s.Parse(b); err != nil || s.Checksum(w.hosts[from].addr, w.hosts[1-from].addr) != wire.ChecksumGood {
		w.t.Fatalf("host %d: emitted %x: %v", from, b, err)
	}
	if ect && len(s.Payload) == 0 {
		w.fatalf("host %d: %s may be marked", from, describe(b))
	}
	w.noteSegment("%d > %s", from, b)
	if w.edges.note(w.hosts[from].addr, w.hosts[1-from].addr, b) {
		w.fatalf("host %d: the window has shrunk", from)
	}
	if f := w.line(from).Send(time.Duration(w.now), linksim.Frame{Size: len(b), ECT: ect}, bytes.Clone(b)); f.Lost != linksim.Arrives {
		w.note("%d > lost", from)
		if len(s.Payload) > 0 {
			w.lost++
		}
		if f.Lost == linksim.BySize && w.tooLarge != nil {
			w.tooLarge(from, b)
		}
	}
	if w.sent != nil {
		w.sent(from, b)
	}
}

func (w *world) note(format string, args ...any) {
	if w.quiet {
		return
	}
	if len(w.trace) > 400 {
		w.trace = w.trace[200:]
	}
	w.trace = append(w.trace, fmt.Sprintf("%v ", time.Duration(w.now))+fmt.Sprintf(format, args...))
}

func (w *world) noteSegment(format string, host int, b []byte) {
	if !w.quiet {
		w.note(format, host, describe(b))
	}
}

func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	for _, l := range w.trace {
		w.t.Log(l)
	}
	for i, h := range w.hosts {
		for _, c := range h.tab.conns {
			w.t.Logf("host %d: %+v deadline %v", i, c.Info(), time.Duration(h.tab.Deadline))
		}
	}
	w.t.Fatalf(format, args...)
}

// describe is a segment as data.
func describe(b []byte) string {
	var s wire.TCP
	if err := s.Parse(b); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d>%d %v seq %d ack %d len %d win %d hdr %d", s.SrcPort, s.DstPort, s.Flags, s.Seq, s.Ack, len(s.Payload), s.Window, wire.TCPHeaderLen+len(s.Options))
}

// receive takes a packet to its host.
func (h *simHost) receive(b []byte) { h.receiveMarked(b, false) }

func (h *simHost) receiveMarked(b []byte, marked bool) {
	h.frameID++
	in := Inbound{Src: h.w.hosts[1-h.index].addr, Dst: h.addr, Data: b, Frame: h.frameID, Memory: h.memory}
	if marked {
		in.ECN = wire.ECNMarked
	}
	r := h.tab.Process(h.w.now, &in)
	if r.Kept {
		if h.memory != MemoryFrame {
			h.w.fatalf("kept what was not to be kept")
		}
		// It may have been released already, if what it held was read.
		h.frames[h.frameID] = true
	} else if h.memory == MemoryBorrowed {
		for i := range b {
			b[i] = 0xee
		}
	}
	if r.Reply {
		out := make([]byte, 60)
		n := h.tab.EmitReply(out)
		h.w.send(h.index, out[:n], false)
	}
}

// step moves to the next thing that happens and reports whether there was one
// before limit.
func (w *world) step(limit Time) bool {
	for _, h := range w.hosts {
		h.drain()
	}
	const nothing, timer = -1, -2
	next, k := limit, nothing // k may be whose segment arrives
	for i := range w.lines {
		if at, ok := w.line(i).Next(); ok && Time(at) < next {
			next, k = Time(at), i
		}
	}
	for _, h := range w.hosts {
		if at := h.tab.Deadline; at < next {
			if at < w.now {
				w.fatalf("host %d: deadline %v in the past", h.index, at)
			}
			next, k = at, timer
		}
	}
	if k == nothing {
		if limit != Never {
			w.now = limit
		}
		return false
	}
	w.now = max(w.now, next)
	if k >= 0 {
		a, _ := w.lines[k].Receive(time.Duration(next))
		b := bytes.Clone(a.Item) // another copy may be under way
		if a.Flip >= 0 {
			b[a.Flip/8] ^= 1 << (a.Flip % 8)
		}
		w.noteSegment("%d < %s", 1-k, b)
		if a.Flip < 0 && view(b).Flags&(wire.TCPAck|wire.TCPRst) == wire.TCPAck {
			w.heard[1-k] = true
		}
		w.hosts[1-k].receiveMarked(b, a.Mark)
	} else {
		for _, h := range w.hosts {
			h.tab.Expire(w.now)
			if h.tab.Deadline <= w.now {
				w.fatalf("host %d: due after Expire", h.index)
			}
		}
	}
	if w.steps++; !w.quiet || w.steps%256 == 0 {
		w.check()
	}
	return true
}

// gaveUp reports whether a host has given up a handshake, which it may after a minute,
// or three if it has begun it, in which no acknowledgment has arrived. The other host
// may still have the connection open, without a peer.
func (w *world) gaveUp() bool {
	for i, h := range w.hosts {
		if h.tab.Count(Failed) == 0 || h.tab.Count(Handshakes) > 0 {
			continue
		}
		limit := 63 * time.Second
		if h.tab.Count(ActiveOpens) > 0 {
			limit = DefaultConnectTimeout
		}
		if w.heard[i] || w.now < Time(time.Second).add(limit) {
			w.fatalf("host %d has given up a handshake", i)
		}
		return true
	}
	return false
}

// orphanGaveUp reports whether a connection that the application has closed was given up
// with data or a FIN that nobody has acknowledged for five minutes, which it may.
func (w *world) orphanGaveUp(a *app) bool {
	if a.c == nil || !a.closed || a.c.Err() != syscall.ETIMEDOUT {
		return false
	}
	if w.now < a.c.progressAt.add(DefaultUserTimeout) || a.c.stat.timeouts < 5 {
		w.fatalf("host %d has given up what it has closed", a.h.index)
	}
	return true
}

// check holds the invariants of every connection.
func (w *world) check() {
	for i, h := range w.hosts {
		for k, e := range h.tab.timers {
			if e.conn.slot != int32(k+1) || e.at != e.conn.queuedAt || k > 0 && e.at < h.tab.timers[(k+1)/2-1].at {
				w.fatalf("host %d: entry %d of the heap of timers", i, k)
			}
		}
		used := 0
		for _, c := range h.tab.conns {
			for _, msg := range []string{c.invariant(), c.timerInvariant(), c.checkBelief(w.peerOf(i, c))} {
				if msg != "" {
					w.fatalf("host %d: %s: %+v", i, msg, c.Info())
				}
			}
			used += c.chunksHeld() * ChunkSize
		}
		if used > h.tab.pool.used {
			w.fatalf("host %d: connections hold %d bytes, the table has counted %d", i, used, h.tab.pool.used)
		}
	}
}

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
			return "empty block to send"
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
		return "SND.UNA, SND.NXT, sndMax out of order"
	case c.rcvNxt.After(c.rcvAdv):
		return "RCV.NXT after the window"
	case c.inserted && (c.state == Closed || c.state == TimeWait || c.state == Listen):
		return "in the table in " + c.state.String()
	case c.state.synchronized() && c.inserted && c.sndUna != c.sndMax && c.rtxAt == Never:
		return "something in flight and no timer"
	case c.state.synchronized() && c.inserted && c.sndUna == c.sndMax && c.rtxAt != Never && !c.persisting:
		return "nothing in flight and a timer"
	case c.inserted && c.queuedAt > c.earliestTimer():
		return "a timer before the heap's entry"
	case c.inserted && c.next != c.makePlan() || c.onReady != (c.next.action != nothing):
		return "ready list is wrong"
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
			return "an empty scoreboard that is not"
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
			return "a span is both lost and not"
		case s.marks&sacked != 0:
			nSacked += n
		case s.marks&lost != 0:
			nLost += n
		}
		if spans++; s.next == nil && (s != b.tail || s.end.After(c.sndNxt)) {
			return "the end of the scoreboard"
		}
	}
	switch {
	case spans != b.spans || spans > maxSpans+maxSpans/4:
		return fmt.Sprintf("%d spans, counted %d", spans, b.spans)
	case nSacked != b.sacked || nLost != b.lost:
		return fmt.Sprintf("%d sacked and %d lost, counted %d and %d", nSacked, nLost, b.sacked, b.lost)
	case b.guessed < 0 || b.guessed > 0 && c.sack:
		return fmt.Sprintf("%d guessed", b.guessed)
	case c.phase <= lossProbing && b.lost > 0:
		return "lost, and nothing is recovered"
	case c.phase > lossProbing && c.sndUna.AtOrAfter(c.recoverSeq):
		return "recovered, and it goes on"
	}
	return ""
}

// What the simulation checks beyond the invariants of one connection: each segment that
// is sent, each timer, and what one end assumes of the other.

// checkSegment looks at a segment that c has just written. It was action and the number
// after the last that was sent was sndMax before.
func (h *simHost) checkSegment(c *Conn, was action, sndMax seq.Number, b []byte) {
	s := view(b)
	flags := s.Flags
	if flags&wire.TCPRst != 0 || c.state == Closed {
		return
	}
	if was != sendData || c.sndMax == sndMax {
		return
	}
	// What is new is within the peer's window and the congestion window, which is that of
	// congestion control, and a probe or two segments of limited transmit more.
	end := c.sndMax
	if flags&wire.TCPFin != 0 {
		end = end.Back(1) // it has no place in the window
	}
	limit := c.window
	if c.phase == open {
		limit = min(limit, c.congestion.Window()+2*c.mss)
	}
	if in := int(end.From(c.sndUna)); in > int(c.sndWnd) || c.pipe() > limit+1 {
		h.w.fatalf("host %d: sends beyond the window: %d of %d in flight, pipe %d, congestion window %d: %+v", h.index, in, c.sndWnd, c.pipe(), limit, c.Info())
	}
}

// timerInvariant returns which timer should run and does not, or "".
func (c *Conn) timerInvariant() string {
	if !c.inserted {
		return ""
	}
	first := c.earliestTimer()
	unsent := c.send.bytes - int(c.sndNxt.From(c.sndUna))
	switch {
	case (first != Never) != (c.slot != 0) && c.slot == 0:
		return "timers, and it is not in the heap"
	case c.state == SynSent || c.state == SynReceived:
		if c.next.action != sendSyn && c.rtxAt == Never {
			return "a handshake without a timer"
		}
		if !c.passive && c.waitAt == Never {
			return "a handshake for ever"
		}
	case c.state == FinWait2:
		if c.closed && c.waitAt == Never {
			return "FIN-WAIT-2 for ever"
		}
	case c.ackPending > 0 && !c.ackNow && c.ackAt == Never:
		return "data that will not be acknowledged"
	case c.next.corked != (c.corkAt != Never):
		return "the cork"
	case c.next.action == nothing && !c.next.corked && c.rtxAt == Never && c.paceAt == Never && (unsent > 0 || c.finQueued && unsent == 0):
		return "something to send that will not be"
	case c.paced != (c.paceAt != Never):
		return "pacing without a timer"
	case c.phase > lossProbing && c.rtxAt == Never:
		return "recovery without a timer"
	case c.opts.KeepAlive.Enable && !c.closed && c.keepAt == Never:
		return "keepalive without a timer"
	}
	return ""
}

// checkBelief compares the scoreboard with the peer's data: the peer has received what is
// acknowledged, and has what is marked as SACKed, unless it has dropped some (Reneged). peer
// is nil if the connection has ended there.
func (c *Conn) checkBelief(peer *Conn) string {
	if peer == nil || peer.state < Established || c.state < Established {
		return ""
	}
	if c.sndUna.After(peer.rcvNxt) {
		return fmt.Sprintf("%d is acknowledged, the peer wants %d", c.sndUna.Uint32(), peer.rcvNxt.Uint32())
	}
	if c.rcvNxt.After(peer.sndMax) {
		return "received what was never sent"
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
func (w *world) peerOf(from int, c *Conn) *Conn {
	id := makeTuple(AddrPort{Addr: w.hosts[1-from].addr, Port: c.Remote().Port}, AddrPort{Addr: w.hosts[from].addr, Port: c.Local().Port})
	for _, p := range w.hosts[1-from].tab.conns {
		if p.id == id {
			return p
		}
	}
	return nil
}
