package rdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/wire"
)

// count is how many packets of an operation a side has sent.
func (p *pair) counting(from int) map[wire.Opcode]int {
	m := map[wire.Opcode]int{}
	p.trace = func(f int, h *wire.RoCE) {
		if f == from {
			m[h.Opcode]++
		}
	}
	return m
}

func TestTimeoutRetries(t *testing.T) {
	for _, retries := range []uint8{0, 1, 7} {
		p, a, _ := connected(t, RC, func(q *QPAttr) { q.RetryCnt, q.Timeout = retries, 10 })
		p.drop = func(int, *wire.RoCE) bool { return true }
		sent := p.counting(0)
		start := p.now
		a.post(SendWR{WRID: 1, Opcode: WRSend}, SendWR{WRID: 2, Opcode: WRSend})
		p.run()
		a.expect(WC{WRID: 1, Status: StatusRetryExcErr}, WC{WRID: 2, Status: StatusWRFlushErr})
		// After a timeout the window is one packet.
		if n := sent[wire.OpSendOnly]; n != 2+int(retries) {
			t.Errorf("%d retries: %d packets", retries, n)
		}
		unit := 4096 * time.Nanosecond << 10
		if d := time.Duration(p.now - start); d < unit*time.Duration(retries+1) || d > 4*unit*time.Duration(retries+1) {
			t.Errorf("%d retries: gave up after %v, the timeout is %v", retries, d, unit)
		}
	}
}

// TestTimeoutAttributeZero: with the attribute 0 a lost packet is not repeated.
func TestTimeoutAttributeZero(t *testing.T) {
	p, a, _ := connected(t, RC, func(q *QPAttr) { q.Timeout = 0 })
	p.drop = func(int, *wire.RoCE) bool { return true }
	a.post(SendWR{Opcode: WRSend})
	p.run()
	a.expect()
	if p.host[0].counts[PacketsSent] != 1 {
		t.Error(p.host[0].counts[PacketsSent])
	}
}

func TestRNRRetries(t *testing.T) {
	for _, retries := range []uint8{0, 2} {
		p, a, _ := connected(t, RC, func(q *QPAttr) { q.RNRRetry = retries })
		sent := p.counting(0)
		start := p.now
		a.post(SendWR{WRID: 1, Opcode: WRSend})
		for a.cq.Len() == 0 && p.step() {
		}
		a.expect(WC{WRID: 1, Status: StatusRNRRetryExcErr})
		if n := sent[wire.OpSendOnly]; n != 1+int(retries) {
			t.Errorf("%d retries: %d packets", retries, n)
		}
		if d, want := time.Duration(p.now-start), RNRTime(12)*time.Duration(retries); d < want || d > want+time.Millisecond {
			t.Errorf("%d retries: gave up after %v, want %v", retries, d, want)
		}
	}
}

// TestRNRRetrySevenIsUnlimited: 7 stands for any number of retries.
func TestRNRRetrySevenIsUnlimited(t *testing.T) {
	p, a, b := connected(t, RC)
	a.post(SendWR{WRID: 1, Opcode: WRSend, Flags: SendSignaled})
	for n := 0; p.host[1].counts[NAKsSent] < 30; n++ {
		if !p.step() || n > 10000 {
			t.Fatal("gave up")
		}
	}
	b.recv(RecvWR{WRID: 2})
	p.run()
	a.expect(WC{WRID: 1})
	b.expect(WC{WRID: 2, Opcode: WCRecv})
	if p.host[0].counts[Timeouts] != 0 {
		t.Error("a timeout beside the RNR timer")
	}
}

// TestRNRWithLosses: losses between RNR NAKs do not add up to RetryCnt.
func TestRNRWithLosses(t *testing.T) {
	p, a, b := connected(t, RC)
	n := 0
	p.drop = func(from int, _ *wire.RoCE) bool {
		n++
		return from == 0 && n%5 == 0
	}
	a.post(SendWR{WRID: 1, Opcode: WRSend, Flags: SendSignaled})
	for p.host[0].counts[Timeouts] < 20 && a.qp.State() == StateRTS && p.step() {
	}
	b.recv(RecvWR{WRID: 2})
	p.run()
	a.expect(WC{WRID: 1})
}

func TestRemoteErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		wr     func(a, b *end) SendWR
		want   Status
		change func(*QPAttr)
	}{
		{"wrong key", func(a, b *end) SendWR {
			return SendWR{Opcode: WRRDMAWrite, RKey: b.mr.RKey() + 1, RemoteAddr: b.mr.Addr()}
		}, StatusRemAccessErr, nil},
		{"beyond the region", func(a, b *end) SendWR {
			return SendWR{Opcode: WRRDMARead, RKey: b.mr.RKey(), RemoteAddr: b.mr.Addr() + uint64(len(b.buf)) - 63}
		}, StatusRemAccessErr, nil},
		{"around the end of memory", func(a, b *end) SendWR {
			return SendWR{Opcode: WRRDMAWrite, RKey: b.mr.RKey(), RemoteAddr: ^uint64(0) - 10}
		}, StatusRemAccessErr, nil},
		{"WRITE forbidden", func(a, b *end) SendWR { return SendWR{Opcode: WRRDMAWrite, RKey: b.mr.RKey(), RemoteAddr: b.mr.Addr()} }, StatusRemInvReqErr, func(q *QPAttr) { q.AccessFlags = 0 }},
		{"misaligned atomic", func(a, b *end) SendWR {
			return SendWR{Opcode: WRAtomicFetchAndAdd, RKey: b.mr.RKey(), RemoteAddr: b.mr.Addr() + 4, SGList: []SGE{a.mr.SGE(0, 8)}}
		}, StatusRemInvReqErr, nil},
		{"receive too short", func(a, b *end) SendWR { return SendWR{Opcode: WRSend} }, StatusRemInvReqErr, nil},
	} {
		p, a, b := connected(t, RC)
		if c.change != nil {
			at := attrs
			c.change(&at)
			b.qp.Modify(p.now, &QPAttr{State: StateReset}, QPState)
			b.connect(a, at, 7, 0xfffffe)
		}
		b.recv(RecvWR{WRID: 8, SGList: []SGE{b.mr.SGE(0, 1)}}, RecvWR{WRID: 9})
		wr := c.wr(a, b)
		wr.WRID = 2
		if wr.SGList == nil {
			wr.SGList = []SGE{a.mr.SGE(0, 64)}
		}
		a.post(SendWR{WRID: 1, Opcode: WRSend, Flags: SendSignaled}, wr, SendWR{WRID: 3, Opcode: WRSend})
		b.recv(RecvWR{SGList: []SGE{b.mr.SGE(0, 1)}})
		if c.name == "receive too short" {
			b.qp.rq.ring[1].length = 1
		}
		p.run()
		a.expect(WC{WRID: 1}, WC{WRID: 2, Status: c.want}, WC{WRID: 3, Status: StatusWRFlushErr})
		if a.qp.State() != StateErr || b.qp.State() != StateErr {
			t.Errorf("%s: states %v, %v", c.name, a.qp.State(), b.qp.State())
		}
	}
}

// TestLocalErrors: what precedes a work request with a bad list completes.
func TestLocalErrors(t *testing.T) {
	for name, sge := range map[string]func(a *end) SGE{
		"no such key":    func(a *end) SGE { return SGE{Addr: a.mr.Addr(), Length: 64, LKey: a.mr.LKey() + 1} },
		"beyond the end": func(a *end) SGE { return a.mr.SGE(len(a.buf)-63, 64) },
		"other domain": func(a *end) SGE {
			mr := testutil.Value(a.d.AllocPD().RegMR(make([]byte, 64), 0))
			return mr.SGE(0, 64)
		},
		"window": func(a *end) SGE { return SGE{LKey: testutil.Value(a.pd.AllocMW()).RKey(), Length: 64} },
	} {
		p, a, b := connected(t, RC)
		b.recv(RecvWR{WRID: 8, SGList: []SGE{b.mr.SGE(0, 5000)}}, RecvWR{WRID: 9, SGList: []SGE{b.mr.SGE(0, 5000)}})
		a.post(SendWR{WRID: 1, Opcode: WRSend, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(0, 3000)}},
			SendWR{WRID: 2, Opcode: WRSend, SGList: []SGE{a.mr.SGE(0, 2000), sge(a)}}, SendWR{WRID: 3, Opcode: WRSend})
		p.run()
		t.Log(name)
		a.expect(WC{WRID: 1}, WC{WRID: 2, Status: StatusLocProtErr}, WC{WRID: 3, Status: StatusWRFlushErr})
		b.expect(WC{WRID: 8, Opcode: WCRecv, ByteLen: 3000})
	}
	// A READ into a region that may not be written.
	p, a, b := connected(t, RC)
	mr := testutil.Value(a.pd.RegMR(make([]byte, 64), 0))
	a.post(SendWR{WRID: 1, Opcode: WRRDMARead, SGList: []SGE{mr.SGE(0, 64)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	p.run()
	a.expect(WC{WRID: 1, Status: StatusLocProtErr})
}

// TestFence: what is fenced begins after the READ and the atomic before it.
func TestFence(t *testing.T) {
	for _, fence := range []SendFlags{0, SendFence} {
		p, a, b := connected(t, RC)
		read := SendWR{Opcode: WRRDMARead, SGList: []SGE{a.mr.SGE(0, 4000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		add := SendWR{Opcode: WRAtomicFetchAndAdd, SGList: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		write := SendWR{Opcode: WRRDMAWrite, Flags: fence | SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		var order []wire.Opcode
		p.trace = func(_ int, h *wire.RoCE) { order = append(order, h.Opcode) }
		a.post(read, add, write)
		p.run()
		a.expect(WC{Opcode: WCRDMAWrite})
		early := order[2] == wire.OpWriteOnly
		if early != (fence == 0) {
			t.Errorf("fence %d: %v", fence, order)
		}
	}
}

// TestMaxRDAtomic counts READs and atomics in flight.
func TestMaxRDAtomic(t *testing.T) {
	for _, limit := range []uint8{1, 3} {
		p, a, b := connected(t, RC, func(q *QPAttr) { q.MaxRDAtomic, q.MaxDestRDAtomic = limit, limit })
		out, most := 0, 0
		p.trace = func(from int, h *wire.RoCE) {
			switch h.Opcode {
			case wire.OpReadRequest, wire.OpFetchAdd:
				out++
			case wire.OpReadResponseOnly, wire.OpReadResponseLast, wire.OpAtomicAck:
				out--
			}
			most = max(most, out)
		}
		for range 10 {
			a.post(SendWR{Opcode: WRRDMARead, SGList: []SGE{a.mr.SGE(0, 3000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), Flags: SendSignaled},
				SendWR{Opcode: WRAtomicFetchAndAdd, SGList: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), Flags: SendSignaled})
		}
		p.run()
		if most != int(limit) || a.cq.Len() != 20 || p.host[0].counts[Retransmitted] != 0 {
			t.Errorf("limit %d: %d in flight, %d complete", limit, most, a.cq.Len())
		}
	}
	_, a, _ := connected(t, RC, func(q *QPAttr) { q.MaxRDAtomic = 0 })
	if _, err := a.qp.PostSend(1, []SendWR{{Opcode: WRRDMARead}}); err == nil {
		t.Error("a READ with MaxRDAtomic 0")
	}
}

// TestAckRequests: unsignaled work requests in a list are acknowledged together.
func TestAckRequests(t *testing.T) {
	p, a, b := connected(t, RC)
	a.qp.req.window = 128
	wrs := make([]SendWR, 32)
	for i := range wrs {
		wrs[i] = SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 64)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	}
	wrs[31].Flags = SendSignaled
	acks := p.counting(1)
	a.post(wrs...)
	p.run()
	a.expect(WC{Opcode: WCRDMAWrite})
	if acks[wire.OpAck] != 1 {
		t.Error("ACKs:", acks[wire.OpAck])
	}
	// An unsignaled one that is the last asks for an ACK.
	a.post(SendWR{Opcode: WRRDMAWrite, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	p.run()
	if acks[wire.OpAck] != 2 || a.qp.sq.len() != 0 || p.host[0].counts[Timeouts] != 0 {
		t.Error("ACKs:", acks[wire.OpAck], a.qp.sq.len())
	}
}

// TestConfigWindow: no more packets than Config.Window are in flight, from the start on.
func TestConfigWindow(t *testing.T) {
	p := newPair(t)
	p.host[0].cfg.Window = 4
	a, b := p.end(0, RC), p.end(1, RC)
	a.connect(b, attrs, 0xfffffe, 7)
	b.connect(a, attrs, 7, 0xfffffe)
	a.post(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 100_000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), Flags: SendSignaled})
	for p.step() {
		if n := a.qp.req.inFlight(); n > 4 {
			t.Fatalf("%d packets in flight", n)
		}
	}
	a.expect(WC{Opcode: WCRDMAWrite})
}

// TestWindow: slow start from 10 packets, half after a loss or a CNP, 1 after a timeout.
func TestWindow(t *testing.T) {
	p, a, b := connected(t, RC)
	write := SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 500_000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	read := write
	read.Opcode = WRRDMARead
	a.post(write)
	n := 0
	for q := p.host[0].Ready(false); q != nil; q = p.host[0].Ready(false) {
		var frame [2048]byte
		q.Emit(p.now, frame[:])
		n++
	}
	if n != firstWindow {
		t.Errorf("%d packets at first", n)
	}
	for _, wr := range []SendWR{write, read} {
		p, a, b = connected(t, RC)
		wr.SGList[0] = a.mr.SGE(0, 500_000)
		wr.RemoteAddr, wr.RKey = b.mr.Addr(), b.mr.RKey()
		a.post(wr)
		p.run()
		w := a.qp.req.window
		if w < 60 || w > 256 {
			t.Errorf("%v: window %d after 489 packets", wr.Opcode, w)
		}
		dropped := false
		p.drop = func(_ int, h *wire.RoCE) bool {
			if !dropped && (h.Opcode == wire.OpWriteMiddle || h.Opcode == wire.OpReadResponseMiddle) {
				dropped = true
				return true
			}
			return false
		}
		a.post(wr)
		p.run()
		if got := a.qp.req.threshold; got > w/2+10 || got < w/2 {
			t.Errorf("%v: threshold %d after a loss, the window was %d", wr.Opcode, got, w)
		}
		if p.host[0].counts[Timeouts] != 0 {
			t.Errorf("%v: a timeout", wr.Opcode)
		}
	}
}

// TestMarkedPacketsCauseCNPs: marked packets cause CNPs, and those halve the window.
func TestMarkedPacketsCauseCNPs(t *testing.T) {
	p, a, b := connected(t, RC, func(q *QPAttr) { q.AH.TrafficClass = wire.ECNCapable })
	p.mark = true
	a.post(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 500_000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), Flags: SendSignaled})
	p.run()
	a.expect(WC{Opcode: WCRDMAWrite})
	sent, received := p.host[1].counts[CNPsSent], p.host[0].counts[CNPsReceived]
	if sent < 10 || sent != received || a.qp.req.window > 20 {
		t.Errorf("%d CNPs sent, %d received, window %d", sent, received, a.qp.req.window)
	}
}

// TestBadResponses are forged: the peer breaks the protocol.
func TestBadResponses(t *testing.T) {
	for _, c := range []struct {
		name string
		wr   WROpcode
		h    wire.RoCE
		n    int
		want Status
	}{
		{"READ response to a SEND", WRSend, wire.RoCE{Opcode: wire.OpReadResponseOnly}, 8, StatusBadRespErr},
		{"atomic response to a READ", WRRDMARead, wire.RoCE{Opcode: wire.OpAtomicAck}, 0, StatusBadRespErr},
		{"READ response to an atomic", WRAtomicFetchAndAdd, wire.RoCE{Opcode: wire.OpReadResponseOnly}, 8, StatusBadRespErr},
		{"short READ response", WRRDMARead, wire.RoCE{Opcode: wire.OpReadResponseOnly}, 7, StatusBadRespErr},
		{"long READ response", WRRDMARead, wire.RoCE{Opcode: wire.OpReadResponseOnly}, 9, StatusBadRespErr},
		{"ACK of nothing sent", WRSend, wire.RoCE{Opcode: wire.OpAck, PSN: 1, Syndrome: wire.SyndromeAck}, 0, StatusSuccess},
		{"reserved syndrome", WRSend, wire.RoCE{Opcode: wire.OpAck, Syndrome: 0x40}, 0, StatusSuccess},
		{"reserved NAK", WRSend, wire.RoCE{Opcode: wire.OpAck, Syndrome: 0x7f}, 0, StatusSuccess},
	} {
		p, a, b := connected(t, RC, func(q *QPAttr) { q.SQPSN = 0 })
		a.post(SendWR{WRID: 1, Opcode: c.wr, SGList: []SGE{a.mr.SGE(0, 8)}})
		var frame [256]byte
		a.qp.Emit(p.now, frame[:])
		c.h.DstQP, c.h.PKey, c.h.PSN = a.qp.num, 0xffff, psnAdd(c.h.PSN, 0xfffffe)
		n := wire.SealRoCE(frame[:], &b.qp.flow, wire.PutRoCE(frame[:], &c.h, c.n)+c.n)
		p.host[0].Process(p.now, &Packet{IP: frame[:n], Src: p.host[1].cfg.Addr, Data: frame[wire.RoCEOffset:n]})
		t.Log(c.name)
		if c.want == StatusSuccess {
			a.expect()
			if a.qp.State() != StateRTS || a.qp.sq.len() != 1 {
				t.Error(a.qp.State())
			}
		} else {
			a.expect(WC{WRID: 1, Status: c.want})
		}
	}
}

// TestLossesInBothDirections loses every 37th packet of two streams, one each way.
func TestLossesInBothDirections(t *testing.T) {
	p, a, b := connected(t, RC)
	fill(a.buf, 1)
	fill(b.buf, 2)
	n := 0
	p.drop = func(int, *wire.RoCE) bool { n++; return n%37 == 5 }
	const size = 30_000
	for i := range 16 {
		for _, e := range [][2]*end{{a, b}, {b, a}} {
			e[1].recv(RecvWR{WRID: uint64(i), SGList: []SGE{e[1].mr.SGE(500_000+i*size, size)}})
			e[0].post(SendWR{WRID: uint64(i), Opcode: WRSend, Flags: SendSignaled, SGList: []SGE{e[0].mr.SGE(i*size, size)}})
		}
	}
	p.run()
	for _, e := range [][2]*end{{a, b}, {b, a}} {
		if got, want := fmt.Sprintf("%x", e[1].buf[500_000:500_000+16*size]), fmt.Sprintf("%x", e[0].buf[:16*size]); got != want {
			t.Error("the data differs")
		}
		if e[0].cq.Len() != 32 {
			t.Error(e[0].cq.Len(), "completions")
		}
	}
}

// TestFirstReadLosesAResponse: the responses behind the gap, which say the same, cost one retry.
func TestFirstReadLosesAResponse(t *testing.T) {
	p, a, b := connected(t, RC, func(q *QPAttr) { q.RetryCnt = 1 })
	lost := false
	p.drop = func(_ int, h *wire.RoCE) bool {
		if h.Opcode == wire.OpReadResponseFirst && !lost {
			lost = true
			return true
		}
		return false
	}
	a.post(SendWR{WRID: 1, Opcode: WRRDMARead, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(0, 9000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	p.run()
	a.expect(WC{WRID: 1, Opcode: WCRDMARead, ByteLen: 9000})
	if p.host[0].counts[Timeouts] != 0 {
		t.Error("a timeout")
	}
}

// TestAnswersAfterTimeout: answers that come after the timeout, before all has been sent again, end
// what they answer. It is not sent again with the PSN of what follows.
func TestAnswersAfterTimeout(t *testing.T) {
	p, a, b := connected(t, RC, func(q *QPAttr) { q.Timeout = 10 })
	p.delay = Time(10 * time.Millisecond)
	n := 0
	p.drop = func(from int, _ *wire.RoCE) bool {
		if from == 0 {
			n++
		}
		return from == 0 && n == 3 // what follows the atomic, the first time
	}
	b.recv(RecvWR{WRID: 1}, RecvWR{WRID: 2})
	a.post(SendWR{WRID: 3, Opcode: WRSend},
		SendWR{WRID: 4, Opcode: WRAtomicFetchAndAdd, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), CompareAdd: 2},
		SendWR{WRID: 5, Opcode: WRSend, Flags: SendSignaled})
	p.run()
	a.expect(WC{WRID: 4, Opcode: WCFetchAdd, ByteLen: 8}, WC{WRID: 5})
	b.expect(WC{WRID: 1, Opcode: WCRecv}, WC{WRID: 2, Opcode: WCRecv})
	if got := binary.NativeEndian.Uint64(b.buf); got != 2 {
		t.Errorf("the word is %d: the atomic was executed again", got)
	}
}

// TestRepeatedReadFitsResources: a part of a READ that is asked for again is not cut into more of them than
// the peer keeps resources for, whatever the window is.
func TestRepeatedReadFitsResources(t *testing.T) {
	p, a, b := connected(t, RC, func(q *QPAttr) { q.MaxRDAtomic, q.MaxDestRDAtomic = 1, 1 })
	fill(b.buf, 1)
	requests, responses := 0, 0
	p.drop = func(from int, h *wire.RoCE) bool {
		if from == 0 {
			requests++
			return requests == 1
		}
		responses++
		return responses == 3
	}
	n := 10 * a.qp.attr.PathMTU.Bytes()
	a.post(SendWR{WRID: 1, Opcode: WRRDMARead, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(0, n)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	p.run()
	a.expect(WC{WRID: 1, Opcode: WCRDMARead, ByteLen: uint32(n)})
	if !bytes.Equal(a.buf[:n], b.buf[:n]) {
		t.Error("the data differs")
	}
}
