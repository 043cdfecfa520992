package rdma

import (
	"bytes"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/wire"
)

// reader is a requester as the Linux kernel's is (rdma_rxe): it asks for a READ by one packet, however long it is.
// Of a gap in a response it learns when the next READ's response begins, or by its timeout, which
// every packet restarts. Then it asks again for all that is missing.
type reader struct {
	t       *testing.T
	d       *Device // the responder
	q       *QP
	mr      *MR
	now     Time
	line    *linksim.Link[[]byte] // from the responder
	got     []byte
	length  uint32 // bytes of a READ
	reads   uint32
	next    uint32 // PSN, from 0 on
	timeout Time
	retried bool // and nothing has arrived since
	sent    int  // responses
	b       [4096]byte
}

const readerTimeout = Time(67 * time.Millisecond)

// newReader connects a reader with a responder over a line.
func newReader(t *testing.T, rule linksim.Rule, length, reads uint32, change func(*QPAttr)) *reader {
	r := &reader{t: t, length: length, reads: reads, now: 1, got: make([]byte, length*reads), line: linksim.NewLink[[]byte](1, rule)}
	attr := QPAttr{AccessFlags: accessRemote, PathMTU: MTU1024, DestQPN: peerQPN, MaxDestRDAtomic: 16, MinRNRTimer: 14, Timeout: 14, RetryCnt: 7, MaxRDAtomic: 1}
	if change != nil {
		change(&attr)
	}
	r.q = testQP(t, RC, engineAddr, peerAddr, 0x42, attr)
	r.q.flow.TOS = wire.ECNCapable
	r.d = r.q.d
	r.mr = testutil.Value(r.q.pd.RegMR(make([]byte, length), AccessLocalWrite|accessRemote))
	fill(r.mr.Bytes(), 1)
	return r
}

func (r *reader) packets() uint32 { return r.length / r.q.mtu }

// send has a packet processed by the responder.
func (r *reader) send(h wire.RoCE) {
	h.PKey, h.DstQP = defaultPKey, r.q.num
	flow := wire.RoCEFlow{Src: peerAddr, Dst: engineAddr, SrcPort: 5000}
	n := wire.SealRoCE(r.b[:], &flow, wire.PutRoCE(r.b[:], &h, 0))
	r.d.Process(r.now, &Packet{IP: r.b[:n], Src: peerAddr, SrcPort: 5000, Data: r.b[wire.RoCEOffset:n]})
}

// ask asks for all that is missing.
func (r *reader) ask() {
	for i := r.next / r.packets(); i < r.reads; i++ {
		psn := max(r.next, i*r.packets())
		off := (psn - i*r.packets()) * r.q.mtu
		r.send(wire.RoCE{Opcode: wire.OpReadRequest, PSN: psn, VA: r.mr.Addr() + uint64(off), RKey: r.mr.RKey(), DMALen: r.length - off})
	}
	r.timeout = r.now + readerTimeout
}

// take takes a response.
func (r *reader) take(b []byte) {
	var h wire.RoCE
	if err := h.Parse(b[wire.RoCEOffset:]); err != nil {
		r.t.Fatal(err)
	}
	r.timeout = r.now + readerTimeout
	switch {
	case h.PSN == r.next:
		copy(r.got[r.next*r.q.mtu:], h.Payload)
		r.next, r.retried = r.next+1, false
	case h.PSN/r.packets() > r.next/r.packets() && !r.retried:
		r.retried = true
		r.ask()
	}
}

// step emits what is ready, and goes on to the next event.
func (r *reader) step() {
	for q := r.d.Ready(false); q != nil; q = r.d.Ready(false) {
		b := make([]byte, q.Room())
		b = b[:q.Emit(r.now, b)]
		r.sent++
		r.line.Send(time.Duration(r.now), linksim.Frame{Size: len(b), ECT: b[1]&wire.ECNMask != 0}, b)
	}
	at := min(r.timeout, r.d.Deadline())
	if next, ok := r.line.Next(); ok {
		at = min(at, Time(next))
	}
	r.now = max(r.now, at)
	for a, ok := r.line.Receive(time.Duration(r.now)); ok; a, ok = r.line.Receive(time.Duration(r.now)) {
		if a.Mark {
			r.send(wire.RoCE{Opcode: wire.OpCNP, BECN: true})
		}
		r.take(a.Item)
	}
	if r.now >= r.timeout {
		r.ask()
	}
	r.d.Expire(r.now)
}

func (r *reader) run() time.Duration {
	start := r.now
	r.ask()
	for n := 0; r.next < r.reads*r.packets(); n++ {
		if n > 3e6 || r.q.state == StateErr {
			r.t.Fatalf("%d of %d packets have arrived, %d were sent", r.next, r.reads*r.packets(), r.sent)
		}
		r.step()
	}
	return time.Duration(r.now - start)
}

// TestReadResponsesArePaced has a peer READ more than its link carries at a time. Few responses are sent in vain.
// It is one goroutine, in which the race detector finds nothing.
func TestReadResponsesArePaced(t *testing.T) {
	if underRace {
		t.Skip("runs without the race detector")
	}
	const packet = 1024 + packetOverhead - 3 // bytes, about
	for _, c := range []struct {
		name string
		rule linksim.Rule
		most float64 // packets sent for each that is needed
	}{
		{"a slow peer behind a long queue", linksim.Rule{Rate: 8 * packet * 5000, Queue: 1000 * packet, Delay: 100 * us}, 1.6},
		{"a slow peer behind a short queue", linksim.Rule{Rate: 8 * packet * 5000, Queue: 64 * packet, Delay: 100 * us}, 1.5},
		{"100 Mbit/s", linksim.Rule{Rate: 100e6, Queue: 150_000, Delay: 200 * us}, 1.5},
		{"1 Gbit/s", linksim.Rule{Rate: 1e9, Queue: 150_000, Delay: 50 * us}, 1.5},
		{"10 Gbit/s", linksim.Rule{Rate: 10e9, Queue: 1_000_000, Delay: 20 * us}, 1},
		{"a link that marks", linksim.Rule{Rate: 100e6, Queue: 500_000, MarkAbove: 30_000, Delay: 100 * us}, 1.1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newReader(t, c.rule, 8<<20, 5, nil)
			took := r.run()
			for i := range r.reads {
				if !bytes.Equal(r.got[i*r.length:][:r.length], r.mr.Bytes()) {
					t.Errorf("the data of READ %d differs", i)
				}
			}
			needed := r.reads * r.packets()
			best := time.Duration(float64(needed) * 8 * packet / float64(c.rule.Rate) * 1e9)
			t.Logf("%d packets sent, %d needed, %d CNPs; %v, %v at best", r.sent, needed, r.d.counts[CNPsReceived], took, best)
			if float64(r.sent) > c.most*float64(needed) {
				t.Errorf("%d packets sent, %d needed", r.sent, needed)
			}
		})
	}
}

// TestCNPsSlowResponses: CNPs lower the rate of READ responses, once for what is in flight, and without them it rises again.
func TestCNPsSlowResponses(t *testing.T) {
	r := newReader(t, linksim.Rule{Delay: 100 * us}, 8<<20, 2, nil)
	r.ask()
	rate := func(d time.Duration) int { // packets in a time
		sent := r.sent
		for end := r.now + Time(d); r.now < end; {
			r.step()
		}
		return r.sent - sent
	}
	rate(20 * time.Millisecond) // the first window
	before := rate(20 * time.Millisecond)
	for range 1000 {
		r.send(wire.RoCE{Opcode: wire.OpCNP, BECN: true})
	}
	rate(20 * time.Millisecond) // what is in flight
	half := rate(20 * time.Millisecond)
	for range 40 {
		r.send(wire.RoCE{Opcode: wire.OpCNP, BECN: true})
		rate(20 * time.Millisecond)
	}
	slow := rate(20 * time.Millisecond)
	rate(2 * time.Second)
	after := rate(20 * time.Millisecond)
	if half < before*2/5 || half > before*3/5 || slow < 2 || slow > before/20 || after < 2*slow {
		t.Errorf("packets in 20 ms: %d, after a flood of CNPs %d, with CNPs %d, after them %d", before, half, slow, after)
	}
}

// TestLostResponsesSlowResponses: a READ that is asked for again halves the window, once for all READs in flight. One whose
// response is still to be sent does not, and is not answered twice.
func TestLostResponsesSlowResponses(t *testing.T) {
	p := newPeer(t, RC, 0)
	p.q.resp.window = 64
	read := func(psn, off, n uint32) *Packet {
		return p.packet(wire.RoCE{Opcode: wire.OpReadRequest, PSN: psn, VA: p.mr.Addr() + uint64(off), RKey: p.mr.RKey(), DMALen: n}, 0, 0)
	}
	p.q.d.Process(1, read(100, 0, 1024))
	p.q.d.Process(1, read(104, 0, 1024))
	for range 10 {
		p.q.d.Process(1, read(104, 0, 1024))
		p.q.d.Process(1, read(106, 512, 512))
	}
	if n := len(drain(t, p.q.d, 1)); n != 8 || p.q.resp.window != 64 {
		t.Errorf("repeated before the answer: %d packets, window %d", n, p.q.resp.window)
	}
	p.q.d.Process(2, read(101, 256, 768))
	p.q.d.Process(2, read(104, 0, 1024))
	if n := len(drain(t, p.q.d, 2)); n != 7 || p.q.resp.window != 32 {
		t.Errorf("repeated after the answer: %d packets, window %d", n, p.q.resp.window)
	}
}

// TestRequestsAndResponsesShare: both halves of a queue pair get their part of the link.
func TestRequestsAndResponsesShare(t *testing.T) {
	p, a, b := connected(t, RC, func(q *QPAttr) { q.Timeout = 14 })
	a.qp.req.window, a.qp.req.threshold = 16, 16
	a.qp.resp.window, a.qp.resp.turn, b.qp.req.window = 16, minTurn, 1024
	sent := p.counting(0)
	a.post(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 1<<20)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	b.post(SendWR{Opcode: WRRDMARead, SGList: []SGE{b.mr.SGE(0, 1<<20)}, RemoteAddr: a.mr.Addr(), RKey: a.mr.RKey(), Flags: SendSignaled})
	p.delay = Time(500 * us)
	for sent[wire.OpWriteMiddle]+sent[wire.OpReadResponseMiddle] < 600 {
		if !p.step() {
			t.Fatal("nothing is left")
		}
		if n := a.qp.req.inFlight(); a.qp.resp.owed > 0 && n > a.qp.req.window {
			t.Fatalf("%d requests in flight, the window is %d", n, a.qp.req.window)
		}
	}
	if w, r := sent[wire.OpWriteMiddle], sent[wire.OpReadResponseMiddle]; w < 150 || r < 150 {
		t.Errorf("%d packets of the WRITE, %d of the READ's response", w, r)
	}
	p.run()
	b.expect(WC{Opcode: WCRDMARead, ByteLen: 1 << 20})
}

// TestUCIsPaced: nothing acknowledges the packets of UC, so a long message leaves in parts that a receiver's queue holds.
func TestUCIsPaced(t *testing.T) {
	p, a, b := connected(t, UC)
	const n = 1 << 20 // bytes: four windows
	fill(a.buf, 1)
	b.recv(RecvWR{WRID: 1, SGList: []SGE{b.mr.SGE(0, n)}})
	var sent []Time
	p.trace = func(int, *wire.RoCE) { sent = append(sent, p.now) }
	a.post(SendWR{WRID: 2, Opcode: WRSend, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(0, n)}})
	p.run()
	a.expect(WC{WRID: 2, Opcode: WCSend})
	b.expect(WC{WRID: 1, Opcode: WCRecv, ByteLen: n})
	if !bytes.Equal(a.buf[:n], b.buf[:n]) {
		t.Error("the data differs")
	}
	const most = 2*256 + 64 // in a millisecond: a window at once, a window at its rate, a burst
	for i := most; i < len(sent); i++ {
		if d := sent[i] - sent[i-most]; d < minTurn {
			t.Fatalf("%d packets in %v", most, time.Duration(d))
		}
	}
	if took := time.Duration(sent[len(sent)-1] - sent[0]); took > 4*time.Millisecond {
		t.Errorf("%d packets in %v", len(sent), took)
	}
}
