package rdma

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/wire"
)

// simulation is virtual time, two devices and the wire between them.
type simulation struct {
	t      testing.TB
	seed   uint64
	rand   *rand.Rand
	now    Time
	hosts  [2]*simHost
	lines  [2]*linksim.Link[[]byte] // by who sends
	trace  []string
	steps  int
	lossy  bool // a packet was lost, damaged or doubled, or may have overtaken another
	scarce bool // receives are posted rarely
	slow   bool // packets may wait longer than the timeout
}

const traceMax = 400 // lines

// ackHold is how long ACKs are held back at most.
const ackHold = Time(50 * time.Microsecond)

// simHost is a device and what its application has made of it.
type simHost struct {
	w     *simulation
	index int
	d     *Device

	heldUntil Time // ACKs are held back until then; Never: none is

	pd   *PD
	cqs  []*simCQ
	ends []*simEnd
	srq  *simReceives // nil: none

	// counter is a word that all queue pairs add to and swap.
	counter        *MR
	chain          []transition
	counterUnknown bool // an atomic on it has failed: it may have been executed or not
	lastCounter    uint64
}

// transition is what an atomic did to a word. If it is a failed comparison, from and to are equal.
type transition struct{ from, to uint64 }

// simCQ is a completion queue and how the application learns of completions.
type simCQ struct {
	cq      *CQ
	byEvent bool // it polls only after an event
	awake   bool
}

func newSimulation(t testing.TB, seed uint64, rules [2]linksim.Rule, mtu [2]int) *simulation {
	w := &simulation{t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 1)), now: Time(time.Second)}
	for i := range w.hosts {
		d := newDevice(byte(i+1), Config{LinkMTU: mtu[i], Rand: nil, Window: []int{0, 8, 64}[w.rand.IntN(3)]})
		h := &simHost{w: w, index: i, d: d, heldUntil: Never, pd: d.AllocPD()}
		h.counter = w.register(h, 8)
		for range 1 + w.rand.IntN(3) {
			c, err := d.CreateCQ(1 << 14)
			w.must(err)
			h.cqs = append(h.cqs, &simCQ{cq: c, byEvent: w.chance(2), awake: true})
		}
		w.hosts[i] = h
		w.lines[i] = linksim.NewLink[[]byte](seed+uint64(i)<<32, rules[i])
		w.lossy = w.lossy || rules[i].Reorder > 0
		w.slow = w.slow || rules[i].Rate > 0 || rules[i].Jitter > 0
	}
	return w
}

func (w *simulation) must(err error) {
	w.t.Helper()
	if err != nil {
		w.fatalf("%v", err)
	}
}

// register makes a region of n bytes with all access.
func (w *simulation) register(h *simHost, n int) *MR {
	mr, err := h.pd.RegMR(make([]byte, n), fullAccess)
	w.must(err)
	return mr
}

// chance is true once in n times.
func (w *simulation) chance(n int) bool { return w.rand.IntN(n) == 0 }

func (w *simulation) note(format string, args ...any) {
	if len(w.trace) > traceMax {
		w.trace = append(w.trace[:0], w.trace[traceMax/2:]...)
	}
	w.trace = append(w.trace, fmt.Sprintf("%v ", time.Duration(w.now))+fmt.Sprintf(format, args...))
}

func (w *simulation) fatalf(format string, args ...any) {
	w.t.Helper()
	for _, l := range w.trace {
		w.t.Log(l)
	}
	for i, h := range w.hosts {
		if h == nil {
			continue
		}
		for _, e := range h.ends {
			q := e.qp
			w.t.Logf("host %d: end %d, QP %#x, %v in %v, %d ops outstanding, %d left; requester %+v; responder %+v", i, e.index, q.num, q.typ, q.state, len(e.ops), e.left, q.req, q.resp)
		}
		h.d.EachCounter(func(name string, value uint64) {
			if value > 0 {
				w.t.Logf("host %d: %s %d", i, name, value)
			}
		})
	}
	w.t.Fatalf(format, args...)
}

func describe(h *wire.RoCE) string {
	s := fmt.Sprintf("%v to %#x PSN %#x, %d bytes", h.Opcode, h.DstQP, h.PSN, len(h.Payload))
	switch h.Opcode.Operation() {
	case wire.OpAck, wire.OpAtomicAck:
		s += fmt.Sprintf(", syndrome %#x MSN %d", h.Syndrome, h.MSN)
	case wire.OpReadRequest:
		s += fmt.Sprintf(", asks for %d bytes", h.DMALen)
	}
	if h.AckReq {
		s += ", AckReq"
	}
	return s
}

// drain emits everything that is ready. It holds ACKs back at random, for ackHold at most.
func (h *simHost) drain() {
	w := h.w
	hold := w.now < h.heldUntil
	if h.heldUntil == Never {
		hold = w.chance(2)
	}
	for i := 0; ; i++ {
		q := h.d.Ready(hold)
		if q == nil {
			break
		}
		if i > 100000 {
			w.fatalf("host %d: QP %#x is always ready", h.index, q.num)
		}
		b := make([]byte, q.Room())
		dst := q.Dst()
		begun := q.sq.begun
		n := q.Emit(w.now, b)
		switch {
		case n == 0:
			w.fatalf("host %d: QP %#x is ready and emits nothing", h.index, q.num)
		case q.state == StateSQD && q.sq.begun != begun:
			w.fatalf("host %d: QP %#x begins an operation in SQD", h.index, q.num)
		}
		h.send(b[:n], dst)
	}
	switch {
	case h.d.Ready(false) == nil:
		h.heldUntil = Never
	case h.heldUntil == Never:
		h.heldUntil = w.now + ackHold
	}
}

// send checks a packet and hands it to the wire.
func (h *simHost) send(b []byte, dst [4]byte) {
	w := h.w
	p, u, r, err := dissect(b)
	switch {
	case err != nil || len(p.Packet) != len(b):
		w.fatalf("host %d: emits %x: %v", h.index, b, err)
	case len(b) > h.d.cfg.LinkMTU:
		w.fatalf("host %d: emits %d bytes", h.index, len(b))
	case p.Dst != dst || p.Src != h.d.cfg.Addr || u.SrcPort != wire.RoCEPort || u.DstPort != wire.RoCEPort:
		w.fatalf("host %d: emits from %v to %v", h.index, p.Src, p.Dst)
	case !wire.CheckICRC(b):
		w.fatalf("host %d: emits a wrong ICRC: %x", h.index, b)
	}
	w.note("%d > %s", h.index, describe(&r))
	f := w.lines[h.index].Send(time.Duration(w.now), linksim.Frame{Size: len(b), ECT: p.TOS&wire.ECNMask != 0}, b)
	if f.Lost != linksim.Arrives {
		w.note("%d > lost", h.index)
		h.lost(r.DstQP)
	}
	w.lossy = w.lossy || f.Copies != 1
}

// lost records that a packet to a queue pair of the peer is lost.
func (h *simHost) lost(qpn uint32) {
	for _, e := range h.ends {
		if e.peer.qp.num != qpn {
			continue
		}
		for _, e := range []*simEnd{e, e.peer} {
			if e.lostAt != e.qp.req.una {
				e.losses, e.lostAt = 0, e.qp.req.una
			}
			e.losses++
		}
	}
}

// endAfterLosses ends what is to be done on connections that have ended because the network lost
// too many packets in succession. The first of them may have been lost before lostAt.
func (h *simHost) endAfterLosses() {
	for _, e := range h.ends {
		if !e.broken && e.qp.state == StateErr && e.losses >= int(e.qp.attr.RetryCnt) && e.lostAt == e.qp.req.una {
			h.w.note("%d QP %#x gives up after %d losses", h.index, e.qp.num, e.losses)
			e.endConnection()
		}
	}
}

// dissect parses a packet as the stack and the engine do, but for the ICRC.
func dissect(b []byte) (p wire.IPv4, u wire.UDP, r wire.RoCE, err error) {
	if err = p.Parse(b); err == nil {
		if u, err = wire.ParseUDP(p.Payload, wire.AddrFrom4(p.Src), wire.AddrFrom4(p.Dst), false); err == nil {
			err = r.Parse(u.Payload)
		}
	}
	return p, u, r, err
}

// receive takes a packet to its host.
func (h *simHost) receive(b []byte, mark bool) {
	p, u, r, err := dissect(b)
	if err == nil {
		h.w.note("%d < %s", h.index, describe(&r))
	}
	if p.Packet == nil || u.Payload == nil || u.DstPort != wire.RoCEPort || err == wire.ErrChecksum {
		return // the stack drops it
	}
	for _, e := range h.ends {
		switch {
		case err != nil || r.DstQP != e.qp.num || !wire.CheckICRC(p.Packet):
		case e.typ == UC:
			e.arrives(r.PSN)
		case e.typ == RC && r.Opcode == wire.OpAck && r.Syndrome&wire.SyndromeKind == wire.SyndromeRNR:
			e.losses = 0
		}
	}
	h.d.Process(h.w.now, &Packet{IP: p.Packet, Src: p.Src, SrcPort: u.SrcPort, CE: mark, Data: u.Payload})
	for i := range b { // its memory is lent until Process returns
		b[i] = 0xee
	}
}

// step moves to the next thing that happens and reports whether there was one before limit.
func (w *simulation) step(limit Time) bool {
	for _, h := range w.hosts {
		h.drain()
	}
	const nothing, timer = -1, -2
	next, k := limit, nothing // k may be whose packet arrives
	for i := range w.lines {
		if at, ok := w.lines[i].Next(); ok && Time(at) < next {
			next, k = Time(at), i
		}
	}
	for _, h := range w.hosts {
		if at := min(h.d.Deadline(), h.heldUntil); at < next {
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
			w.note("%d < a packet with one bit flipped", 1-k)
			w.lossy = true
			if _, _, r, err := dissect(a.Item); err == nil {
				w.hosts[k].lost(r.DstQP)
			}
		}
		w.hosts[1-k].receive(b, a.Mark)
	} else {
		for _, h := range w.hosts {
			h.d.Expire(w.now)
			if h.d.Deadline() <= w.now {
				w.fatalf("host %d: due after Expire", h.index)
			}
		}
	}
	for _, h := range w.hosts {
		h.endAfterLosses()
		h.events()
	}
	if w.steps++; w.steps%16 == 0 {
		w.check()
	}
	return true
}

// check holds the invariants of the devices.
func (w *simulation) check() {
	for i, h := range w.hosts {
		d := h.d
		for _, q := range d.timers.Owners() {
			if at := q.timer.At(); q.closed || at == Never || at < d.timers.First() {
				w.fatalf("host %d: QP %#x is in the heap of timers at %d", i, q.num, at)
			}
		}
		ready := map[*QP]bool{}
		for q := d.firstReady; q != nil; q = q.nextReady {
			if ready[q] || q.nextReady == nil && q != d.lastReady {
				w.fatalf("host %d: the list of those that are ready", i)
			}
			ready[q] = true
		}
		for _, q := range d.all {
			if msg := q.invariant(); msg != "" {
				w.fatalf("host %d: QP %#x: %s", i, q.num, msg)
			}
			if q.ready != ready[q] {
				w.fatalf("host %d: QP %#x: ready %t, in the list %t", i, q.num, q.ready, ready[q])
			}
		}
	}
}

// invariant returns what is wrong with a queue pair, or "".
func (q *QP) invariant() string {
	r, s := &q.req, &q.sq
	in, out := psnDiff(r.next, r.una), psnDiff(r.max, r.next)
	switch {
	case int32(s.next-s.head) < 0, int32(s.begun-s.next) < 0, int32(s.tail-s.begun) < 0, s.len() > s.size:
		return fmt.Sprintf("the send queue: head %d, next %d, begun %d, tail %d", s.head, s.next, s.begun, s.tail)
	case q.ready != (q.cnpDue || q.responseReady() || q.requestReady()):
		return "readiness is out of date"
	case q.timer.At() > q.deadline():
		return "a timer before the heap's entry"
	case q.typ != RC || q.state != StateRTS && q.state != StateSQD:
		return ""
	case in < 0 || out < 0:
		return fmt.Sprintf("PSNs: una %#x, next %#x, max %#x", r.una, r.next, r.max)
	case r.una != r.next && q.attr.Timeout != 0 && r.timeoutAt == Never:
		return "something in flight and no timer"
	case r.una != r.max && r.timeoutAt == Never && r.waitAt == Never && !q.ready:
		return "something to be sent again that will not be"
	case int((r.max-r.una)&psnMask) > q.d.cfg.Window+1:
		return fmt.Sprintf("%d packets in flight, the window is at most %d", (r.max-r.una)&psnMask, q.d.cfg.Window)
	case len(r.parts) > int(q.attr.MaxRDAtomic):
		return fmt.Sprintf("%d READs and atomics outstanding, at most %d are allowed", len(r.parts), q.attr.MaxRDAtomic)
	}
	owed := 0
	for i := range q.resp.resources {
		if q.resp.resources[i].owed {
			owed++
		}
	}
	if owed != q.resp.owed {
		return fmt.Sprintf("%d responses owed, counted %d", owed, q.resp.owed)
	}
	owedFrom := func(i int) int {
		for !q.resp.resources[i].owed {
			i = (i + 1) % len(q.resp.resources)
		}
		return i
	}
	if owed > 0 && owedFrom(q.resp.serve) != owedFrom(q.resp.next) {
		return fmt.Sprintf("response %d is served before %d, which is older", owedFrom(q.resp.serve), owedFrom(q.resp.next))
	}
	return ""
}
