package rdma

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/internal/soak"
)

// The simulation: two devices in virtual time, a network between them that loses, duplicates,
// damages, delays, marks and reorders packets, and applications that post everything in random
// order. After every step the invariants are checked; at the end, that each operation has
// completed once and in order, that each message was received once (RC), that memory is what a
// model says, that atomics happened once, and that nothing is left.

const us = time.Microsecond

// simLinks are the links: delay, loss and other faults.
var simLinks = []linksim.Rule{
	{Delay: 20 * us},
	{Delay: 20 * us},
	{Loss: 0.01, Delay: 50 * us},
	{Loss: 0.05, Duplicate: 0.02, Delay: 100 * us, Reorder: 0.1, HoldBack: 300 * us},
	{Loss: 0.1, Duplicate: 0.1, Delay: 300 * us, Reorder: 0.5, HoldBack: 2000 * us},
	{Duplicate: 0.3, Delay: 10 * us, Reorder: 0.5, HoldBack: 50 * us},
	{Burst: linksim.Burst{Enter: 0.01, Leave: 0.3, Keep: 0.5}, Delay: 200 * us, Jitter: 500 * us},
	{Corrupt: 0.05, Duplicate: 0.05, Delay: 100 * us, Reorder: 0.05, HoldBack: 1000 * us},
	{Rate: 100e6, Queue: 60_000, MarkAbove: 10_000, Delay: 100 * us},
	{Blackout: linksim.Blackout{After: 5 * time.Millisecond, Length: 20 * time.Millisecond, Every: 330 * time.Millisecond}, Delay: 100 * us},
}

// connect makes two ends of a random type.
func (w *simulation) connect() {
	typ := []QPType{RC, RC, RC, UC, UD}[w.rand.IntN(5)]
	mtu := min(w.hosts[0].d.ActiveMTU(), w.hosts[1].d.ActiveMTU())
	mtu = 1 + MTU(w.rand.IntN(int(mtu)))
	maxMessage := []int{64, 1500, 10_000, 70_000}[w.rand.IntN(4)]
	if typ == UD {
		maxMessage = min(maxMessage, mtu.Bytes())
	}
	var ends [2]*simEnd
	for i, h := range w.hosts {
		e := &simEnd{h: h, index: len(h.ends), typ: typ, maxMessage: maxMessage, reader: w.chance(3), left: w.rand.IntN(1 << (2 + w.rand.IntN(6)))}
		ends[i] = e
		h.ends = append(h.ends, e)
		e.sendCQ, e.recvCQ = h.cqs[w.rand.IntN(len(h.cqs))], h.cqs[w.rand.IntN(len(h.cqs))]
		e.local.mr = w.register(h, 3*maxMessage+64)
		e.region = w.register(h, maxMessage+64)
		e.model = make([]byte, len(e.region.mem))
		receives := 1 + w.rand.IntN(40)
		init := QPInit{Type: typ, SendCQ: e.sendCQ.cq, RecvCQ: e.recvCQ.cq, SqSigAll: w.chance(4),
			Cap: QPCap{MaxSendWR: 2 + w.rand.IntN(60), MaxRecvWR: receives, MaxSendSGE: 1 + w.rand.IntN(MaxSGE), MaxRecvSGE: 1 + w.rand.IntN(MaxSGE), MaxInlineData: w.rand.IntN(200)}}
		if h.srq != nil && w.chance(2) {
			e.recv = h.srq
			init.SRQ, init.Cap.MaxRecvWR = h.srq.srq, 0
		}
		q, err := h.d.CreateQP(h.pd, init)
		w.must(err)
		e.qp = q
		if e.recv == nil {
			e.recv = w.newReceives(h, receives, maxMessage+grhLen, init.Cap.MaxRecvSGE)
			e.recv.qp = q
		}
		if e.window.mw, err = h.pd.AllocMW(); err != nil {
			w.fatalf("%v", err)
		}
	}
	var psn [2]uint32
	for i := range psn {
		if psn[i] = w.rand.Uint32() & psnMask; w.chance(2) {
			psn[i] = uint32(-w.rand.IntN(50)) & psnMask // it wraps soon
		}
	}
	atomics := [2]uint8{uint8(1 + w.rand.IntN(1<<w.rand.IntN(4))), uint8(1 + w.rand.IntN(1<<w.rand.IntN(4)))} // in flight from each host
	timeout := uint8(8 + w.rand.IntN(6))                                                                      // 1 to 34 ms
	for i, e := range ends {
		e.peer, e.furthest = ends[1-i], psnAdd(psn[1-i], psnMask)
		at := AHAttr{Dst: e.peer.h.d.cfg.Addr, TrafficClass: []uint8{0, 2}[w.rand.IntN(2)]}
		var err error
		e.ah, err = e.h.pd.CreateAH(at)
		w.must(err)
		a := QPAttr{AccessFlags: accessRemote, QKey: 0x11111111 + uint32(e.index), AH: at, PathMTU: mtu, Timeout: timeout, RetryCnt: 7, RNRRetry: 7,
			SQPSN: psn[i], RQPSN: psn[1-i], MaxRDAtomic: atomics[i], MaxDestRDAtomic: atomics[1-i], MinRNRTimer: uint8(1 + w.rand.IntN(14)), DestQPN: e.peer.qp.num}
		for _, s := range []State{StateInit, StateRTR, StateRTS} {
			a.State = s
			var mask QPAttrMask
			for _, m := range moves {
				if m.from == e.qp.state && m.to == s {
					mask = m.required[min(typ, UD)]
				}
			}
			w.must(e.qp.Modify(w.now, &a, mask|QPState))
			if s == StateInit {
				e.recv.post(w.rand.IntN(20))
			}
		}
	}
	w.note("two ends of %v, path MTU %d, timeout %v, PSNs %#x", typ, mtu.Bytes(), time.Duration(4096)<<timeout, psn)
}

func TestSimulation(t *testing.T) {
	seeds, delivered, sent := 0, 0, 0
	var counts [numberOfCounts]uint64
	n := uint64(80)
	if underRace {
		n = 10
	}
	soak.EachSeed(t, n, func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 77))
		var rules [2]linksim.Rule
		var mtu [2]int
		for i := range rules {
			rules[i] = simLinks[r.IntN(len(simLinks))]
			mtu[i] = []int{1500, 1500, 9000, 600}[r.IntN(4)]
		}
		mtu[1] = mtu[0]
		if r.IntN(6) == 0 {
			rules = [2]linksim.Rule{simLinks[0], simLinks[0]}
		}
		w := newSimulation(t, seed, rules, mtu)
		for _, h := range w.hosts {
			if r.IntN(2) == 0 {
				n := 5 + r.IntN(60) // an unreliable queue pair may keep one for a message that it has dropped
				h.srq = w.newReceives(h, n, 70_000+grhLen, MaxSGE)
				srq, err := h.pd.CreateSRQ(n, MaxSGE)
				w.must(err)
				h.srq.srq = srq
			}
		}
		for range 1 + r.IntN(4) {
			w.connect()
		}
		w.scarce = r.IntN(3) == 0
		breaks := r.IntN(4) == 0
		w.run(breaks)
		seeds++
		for _, h := range w.hosts {
			for c, n := range h.d.counts {
				counts[c] += n
			}
			for _, e := range h.ends {
				if e.typ != RC {
					delivered += e.delivered
					sent += int(e.peer.nextOp)
				}
			}
		}
	})
	if seeds < 80 {
		return
	}
	if delivered < sent/8 {
		t.Errorf("%d unreliable messages delivered, and %d operations", delivered, sent)
	}
	for _, c := range []Counter{BadICRC, BadState, Retransmitted, Timeouts, ResponsesOutside, ResponsesMissing, RNRNAKsReceived, SequenceNAKsReceived,
		SequenceGaps, Duplicates, ReceiverNotReady, MessagesDropped} {
		if counts[c] == 0 {
			t.Errorf("the counter %s is 0", counterNames[c])
		}
	}
}

// TestSoak is part of `make soak`.
func TestSoak(t *testing.T) { soak.Run(t, "./proto/rdma", "TestSimulation") }

// run lets the applications act until all is done, and compares.
func (w *simulation) run(breaks bool) {
	var ends []*simEnd
	for _, h := range w.hosts {
		ends = append(ends, h.ends...)
	}
	interval := time.Duration(1) << (4 + w.rand.IntN(18)) // between two actions
	limit := w.now + Time(10*time.Minute)
	for steps := 0; !w.done(ends); steps++ {
		if steps > 1_000_000 || w.now > limit {
			w.fatalf("the simulation does not end")
		}
		if steps%10_000 == 9_999 { // they wait for a timer
			interval *= 2
		}
		if steps == 2000 { // a sender may repeat a window a hundred thousand times a second until a receive is posted
			w.scarce = false
		}
		for range w.rand.IntN(4) {
			ends[w.rand.IntN(len(ends))].step()
		}
		if breaks && w.chance(100) {
			breaks = false
			e := ends[w.rand.IntN(len(ends))]
			if w.chance(2) {
				e.reset()
			} else {
				w.note("%d moves QP %#x to ERR", e.h.index, e.qp.num)
				w.must(e.qp.Modify(w.now, &QPAttr{State: StateErr}, QPState))
				e.endConnection()
			}
		}
		until := w.now + 1 + Time(w.rand.Int64N(2*int64(interval)))
		for w.now < until && w.step(until) {
		}
	}
	// What is under way arrives, and no timer is left.
	for n := 0; w.step(Never); n++ {
		if n > 100_000 {
			w.fatalf("packets or timers are left after the end")
		}
	}
	w.check()
	w.compare(ends)
	w.end(ends)
}

// done reports whether all operations have completed.
func (w *simulation) done(ends []*simEnd) bool {
	for _, e := range ends {
		if e.left > 0 || len(e.ops) > 0 && !(e.broken && e.qp.sq.len() == 0 && e.sendCQ.cq.Len() == 0) {
			return false
		}
	}
	return true
}

// compare compares what has happened with the model.
func (w *simulation) compare(ends []*simEnd) {
	for _, e := range ends {
		e.recvCQ.awake = true // receives whose event was taken; their senders know already
		e.h.poll(e.recvCQ)
	}
	for _, e := range ends {
		h := e.h
		switch {
		case e.broken:
			for _, m := range e.peer.sent {
				if e.typ == RC && m.acked && m.copies == 0 {
					w.fatalf("host %d: message %#x was acknowledged, and not received", h.index, m.key)
				}
			}
		case e.typ == RC || !w.lossy && e.typ == UC && h.d.Count(ReceiverNotReady) == 0:
			if e.typ == RC && len(e.peer.sent) > 0 {
				w.fatalf("host %d: %d messages were not received", h.index, len(e.peer.sent))
			}
			if i := mismatch(e.region.mem, e.model); i >= 0 {
				w.fatalf("host %d: end %d: byte %d of the region is %#x, want %#x", h.index, e.index, i, e.region.mem[i], e.model[i])
			}
		case e.typ == UC:
			for i, b := range e.region.mem {
				ok := b == 0
				for _, x := range e.writes {
					ok = ok || i >= x.off && i < x.off+len(x.data) && x.data[i-x.off] == b
				}
				if !ok {
					w.fatalf("host %d: end %d: byte %d of the region is %#x, which nobody wrote", h.index, e.index, i, b)
				}
			}
		}
	}
	lossless := !w.lossy && !w.slow && !slices.ContainsFunc(ends, func(e *simEnd) bool { return e.broken })
	for _, e := range ends {
		// Those that were not signaled, and nothing after them: they were executed, or not.
		e.peer.h.counterUnknown = e.peer.h.counterUnknown || slices.ContainsFunc(e.ops, func(op *simOp) bool { return op.shared })
	}
	for _, h := range w.hosts {
		h.compareChain()
		if d := h.d; lossless && (d.Count(Timeouts) > 0 || d.Count(RNRNAKsReceived) == 0 && d.Count(Retransmitted) > 0) {
			w.fatalf("host %d: %d timeouts, %d packets sent again, and none was lost", h.index, d.Count(Timeouts), d.Count(Retransmitted))
		}
	}
}

func mismatch(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// compareChain brings the atomics on the counter into the one order in which they can have happened.
func (h *simHost) compareChain() {
	if h.counterUnknown {
		return
	}
	next := map[uint64]uint64{}
	values := map[uint64]bool{0: true}
	changes := 0
	for _, x := range h.chain {
		if x.from == x.to {
			continue
		}
		if _, twice := next[x.from]; twice {
			h.w.fatalf("host %d: two atomics found %#x in the counter", h.index, x.from)
		}
		next[x.from] = x.to
		changes++
	}
	at := uint64(0)
	for range changes {
		to, ok := next[at]
		if !ok {
			h.w.fatalf("host %d: no atomic has found %#x in the counter: %d of %d happened, or one of them twice", h.index, at, len(values)-1, changes)
		}
		at = to
		values[at] = true
	}
	if got := fetchAdd(h.counter.mem, 0); got != at {
		h.w.fatalf("host %d: the counter is %#x, want %#x", h.index, got, at)
	}
	for _, x := range h.chain {
		if !values[x.from] {
			h.w.fatalf("host %d: an atomic found %#x, which the counter never was", h.index, x.from)
		}
	}
}

// end ends all queue pairs. Their receives are flushed, and nothing is left.
func (w *simulation) end(ends []*simEnd) {
	for _, e := range ends {
		e.broken = true
		w.must(e.qp.Modify(w.now, &QPAttr{State: StateErr}, QPState))
	}
	for w.step(Never) {
	}
	for _, h := range w.hosts {
		h.events()
		for _, c := range h.cqs {
			c.byEvent = false
			h.poll(c)
		}
		if h.srq != nil {
			if _, posted, _ := h.srq.srq.Query(); posted+h.srq.gone != h.srq.posted {
				w.fatalf("host %d: %d receives of the SRQ have not completed, and %d are left", h.index, h.srq.posted, posted)
			}
		}
		for _, e := range h.ends {
			if e.recv != h.srq && e.recv.posted > 0 {
				w.fatalf("host %d: %d receives were not flushed", h.index, e.recv.posted)
			}
		}
		for _, e := range h.ends {
			e.qp.Close()
			e.ah.Close()
			e.window.mw.Close()
			w.must(e.region.Close())
			w.must(e.local.mr.Close())
			if e.recv != h.srq {
				w.must(e.recv.mr.Close())
			}
		}
		if h.srq != nil {
			w.must(h.srq.srq.Close())
			w.must(h.srq.mr.Close())
		}
		w.must(h.counter.Close())
		for _, c := range h.cqs {
			if c.cq.Len() > 0 {
				w.fatalf("host %d: completions are left", h.index)
			}
			w.must(c.cq.Close())
		}
		w.must(h.pd.Close())
		d := h.d
		if len(d.qps) != 0 || len(d.keys) != 0 || len(d.timers) != 0 || d.firstReady != nil || len(d.all) != 0 || d.Deadline() != Never || d.Count(CQOverruns) > 0 {
			w.fatalf("host %d: something is left: %d queue pairs, %d keys, %d timers", h.index, len(d.qps), len(d.keys), len(d.timers))
		}
	}
}
