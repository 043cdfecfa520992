package rdma

import (
	"bytes"
	"math"
	"testing"

	"github.com/unet-go/unet/wire"
)

// TestForgedPacketsAreCounted sends packets that do not come from the peer, or are damaged. None is answered or has
// an effect; each is in one counter.
func TestForgedPacketsAreCounted(t *testing.T) {
	good := wire.RoCE{Opcode: wire.OpSendOnly, PSN: 100, AckReq: true}
	for _, c := range []struct {
		name    string
		forge   func(p *peer, f *Packet)
		counter Counter
	}{
		{"a wrong ICRC", func(p *peer, f *Packet) { f.Data[len(f.Data)-1] ^= 1 }, BadICRC},
		{"changed data", func(p *peer, f *Packet) { f.Data[wire.BTHLen] ^= 1 }, BadICRC},
		{"a changed source port", func(p *peer, f *Packet) { f.IP[21] ^= 1 }, BadICRC},
		{"another address", func(p *peer, f *Packet) {
			p.flow.Src = [4]byte{10, 0, 0, 3}
			*f = *p.packet(good, 4, 0)
		}, BadSource},
		{"another partition", func(p *peer, f *Packet) {
			f.IP[wire.RoCEOffset+3] = 0
			wire.SealRoCE(p.b, &p.flow, len(f.IP)-wire.ICRCLen)
		}, BadPKey},
		{"another queue pair", func(p *peer, f *Packet) {
			p.q.num++
			*f = *p.packet(good, 4, 0)
			p.q.num--
		}, NoQP},
		{"another transport", func(p *peer, f *Packet) {
			p.q.transport = wire.TransportUC
			*f = *p.packet(good, 4, 0)
			p.q.transport = wire.TransportRC
		}, BadTransport},
		{"an unknown opcode", func(p *peer, f *Packet) { f.Data[0] = 0x1f }, BadHeader},
		{"half a packet", func(p *peer, f *Packet) { f.Data = f.Data[:8] }, BadHeader},
		{"nothing", func(p *peer, f *Packet) { f.Data, f.IP = nil, nil }, BadHeader},
		{"a queue pair that is not ready", func(p *peer, f *Packet) {
			if err := p.q.Modify(0, &QPAttr{State: StateReset}, QPState); err != nil {
				p.t.Fatal(err)
			}
		}, BadState},
	} {
		p := newPeer(t, RC, 2)
		f := p.packet(good, 4, 0)
		c.forge(p, f)
		p.q.d.Process(0, f)
		p.expect(c.name+": answers", p.answers(), "")
		p.expect(c.name+": completions", p.completions(), "")
		if n := p.q.d.counts[c.counter]; n != 1 {
			t.Errorf("%s: counter %s is %d", c.name, counterNames[c.counter], n)
		}
	}
}

// TestWrongKeys tries accesses that are not permitted. Each ends the connection with a NAK, changes no
// memory and returns none.
func TestWrongKeys(t *testing.T) {
	const size = 4096
	readOnly, noAtomic := AccessRemoteRead, AccessLocalWrite|AccessRemoteRead|AccessRemoteWrite
	for _, c := range []struct {
		name   string
		op     wire.Opcode
		off    uint64 // from the region's address
		length uint32
		access Access // of another region that is named; 0: all of the peer's region
		key    func(p *peer, key uint32) uint32
		want   string
	}{
		{"a WRITE past the end", wire.OpWriteOnly, size - 7, 8, 0, nil, "NAK 0x62 100"},
		{"a long WRITE past the end", wire.OpWriteFirst, size - 511, 512, 0, nil, "NAK 0x62 100"},
		{"a WRITE before the begin", wire.OpWriteOnly, math.MaxUint64, 8, 0, nil, "NAK 0x62 100"},
		{"a WRITE around the end of the address space", wire.OpWriteFirst, 1<<63 - 1, 1 << 31, 0, nil, "NAK 0x62 100"},
		{"a READ past the end", wire.OpReadRequest, 1, size, 0, nil, "NAK 0x62 100"},
		{"a READ of the end", wire.OpReadRequest, size, 1, 0, nil, "NAK 0x62 100"},
		{"an atomic past the end", wire.OpFetchAdd, size, 8, 0, nil, "NAK 0x62 100"},
		{"an atomic before the begin", wire.OpFetchAdd, 1<<64 - 8, 8, 0, nil, "NAK 0x62 100"},
		{"a misaligned FETCH_ADD", wire.OpFetchAdd, 4, 8, 0, nil, "NAK 0x61 100"},
		{"a misaligned COMPARE_SWAP", wire.OpCompareSwap, 1, 8, 0, nil, "NAK 0x61 100"},
		{"another key", wire.OpWriteOnly, 0, 8, 0, func(p *peer, key uint32) uint32 { return key ^ 0x100 }, "NAK 0x62 100"},
		{"the key's low bits", wire.OpReadRequest, 0, 8, 0, func(p *peer, key uint32) uint32 { return key ^ 1 }, "NAK 0x62 100"},
		{"a WRITE to what may be read", wire.OpWriteOnly, 0, 8, readOnly, nil, "NAK 0x62 100"},
		{"a READ of what is local", wire.OpReadRequest, 0, 8, AccessLocalWrite, nil, "NAK 0x62 100"},
		{"an atomic on what may be written", wire.OpCompareSwap, 0, 8, noAtomic, nil, "NAK 0x62 100"},
		{"a window that is not bound", wire.OpWriteOnly, 0, 8, 0, func(p *peer, key uint32) uint32 {
			w, err := p.q.pd.AllocMW()
			if err != nil {
				p.t.Fatal(err)
			}
			return w.RKey()
		}, "NAK 0x62 100"},
		{"a window that is bound on another queue pair", wire.OpWriteOnly, 0, 8, 0, func(p *peer, key uint32) uint32 {
			w, err := p.q.pd.AllocMW()
			if err != nil {
				p.t.Fatal(err)
			}
			other, err := p.q.d.CreateQP(p.q.pd, QPInit{Type: RC, SendCQ: p.q.sendCQ, RecvCQ: p.q.recvCQ})
			if err != nil {
				p.t.Fatal(err)
			}
			if !other.bind(w, MWBind{RKey: IncRKey(w.RKey()), MR: p.mr, Addr: p.mr.Addr(), Length: 8, Access: AccessRemoteWrite}) {
				p.t.Fatal("not bound")
			}
			return w.RKey()
		}, "NAK 0x62 100"},
		{"a region of another domain", wire.OpWriteOnly, 0, 8, 0, func(p *peer, key uint32) uint32 {
			mr, err := p.q.d.AllocPD().RegMR(p.mr.Bytes(), AccessLocalWrite|AccessRemoteWrite)
			if err != nil {
				p.t.Fatal(err)
			}
			return mr.RKey()
		}, "NAK 0x62 100"},
	} {
		p := newPeer(t, RC, 1)
		before := bytes.Clone(p.mr.Bytes())
		key := p.mr.RKey()
		if c.access != 0 {
			mr, err := p.q.pd.RegMR(p.mr.Bytes(), c.access)
			if err != nil {
				t.Fatal(err)
			}
			key = mr.RKey()
		}
		if c.key != nil {
			key = c.key(p, key)
		}
		h := wire.RoCE{Opcode: c.op, PSN: 100, VA: p.mr.Addr() + c.off, RKey: key, DMALen: c.length, SwapAdd: 1}
		n := min(int(c.length), 256)
		if parts[c.op].message == noMessage {
			n = 0
		}
		p.expect(c.name, p.send(h, n), c.want)
		if !bytes.Equal(before, p.mr.Bytes()) {
			t.Errorf("%s: memory has changed", c.name)
		}
		if p.q.State() != StateErr {
			t.Errorf("%s: the queue pair is in %v", c.name, p.q.State())
		}
		if n := p.q.d.counts[AccessesRefused] + p.q.d.counts[RequestsInvalid]; n != 1 || p.q.d.counts[NAKsSent] != 1 {
			t.Errorf("%s: %d accesses refused, %d NAKs", c.name, n, p.q.d.counts[NAKsSent])
		}
		p.expect(c.name+": completions", p.completions(), "0: Work Request Flushed Error")
	}
}

// TestQueuePairAccess uses operations that the queue pair's flags do not allow, whatever the
// region's are.
func TestQueuePairAccess(t *testing.T) {
	for _, op := range []wire.Opcode{wire.OpWriteOnly, wire.OpWriteOnlyImm, wire.OpReadRequest, wire.OpFetchAdd, wire.OpCompareSwap} {
		p := newPeer(t, RC, 1)
		p.q.attr.AccessFlags = 0
		p.expect(op.String(), p.send(wire.RoCE{Opcode: op, PSN: 100, VA: p.mr.Addr(), RKey: p.mr.RKey()}, 0), "NAK 0x61 100")
	}
}

// TestDeregDuringAccess deregisters a region in the middle of a WRITE, and of a READ's response.
func TestDeregDuringAccess(t *testing.T) {
	p := newPeer(t, RC, 0)
	p.expect("FIRST", p.send(wire.RoCE{Opcode: wire.OpWriteFirst, PSN: 100, VA: p.mr.Addr(), RKey: p.mr.RKey(), DMALen: 512, AckReq: true}, 256), "ACK 100")
	if err := p.mr.Close(); err != nil {
		t.Fatal(err)
	}
	before := bytes.Clone(p.mr.Bytes())
	p.expect("LAST", p.send(wire.RoCE{Opcode: wire.OpWriteLast, PSN: 101}, 256), "NAK 0x62 101")
	if !bytes.Equal(before, p.mr.Bytes()) {
		t.Error("memory has changed")
	}

	p = newPeer(t, RC, 1)
	p.q.d.Process(0, p.packet(wire.RoCE{Opcode: wire.OpReadRequest, PSN: 100, VA: p.mr.Addr(), RKey: p.mr.RKey(), DMALen: 700}, 0, 0))
	p.q.d.Process(0, p.packet(wire.RoCE{Opcode: wire.OpReadRequest, PSN: 103, VA: p.mr.Addr(), RKey: p.mr.RKey(), DMALen: 7}, 0, 0))
	if n := p.q.d.Ready(false).Emit(0, p.b); n == 0 {
		t.Fatal("no FIRST")
	}
	if err := p.mr.Close(); err != nil {
		t.Fatal(err)
	}
	p.expect("the rest", p.answers(), "NAK 0x62 101")
	p.expect("completions", p.completions(), "0: Work Request Flushed Error")
}

// TestReadsBeyondResources asks for far more than was agreed on, without taking the answers, and for the same again and
// again: what is owed stays within the responder resources, and nothing is allocated.
func TestReadsBeyondResources(t *testing.T) {
	p := newPeer(t, RC, 0)
	read := func(psn uint32) *Packet {
		return p.packet(wire.RoCE{Opcode: wire.OpReadRequest, PSN: psn, VA: p.mr.Addr(), RKey: p.mr.RKey(), DMALen: 512}, 0, 0)
	}
	for i := range uint32(4) {
		p.q.d.Process(0, read(100+2*i))
	}
	again := read(102)
	if n := testing.AllocsPerRun(10000, func() { p.q.d.Process(0, again) }); n != 0 {
		t.Errorf("%v allocations for each request that comes again", n)
	}
	if n := len(drain(t, p.q.d, 0)); n != 8 {
		t.Errorf("%d packets of answers, want 8", n)
	}
	again = read(102)
	for range 10000 {
		p.q.d.Process(0, again)
	}
	p.expect("10,000 times the same", p.answers(), "READ_RESPONSE_FIRST 102, READ_RESPONSE_LAST 103")
	for i := range uint32(5) {
		p.q.d.Process(0, read(108+2*i))
	}
	p.expect("one too many", p.answers(), "READ_RESPONSE_FIRST 108, READ_RESPONSE_LAST 109, READ_RESPONSE_FIRST 110, READ_RESPONSE_LAST 111, "+
		"READ_RESPONSE_FIRST 112, READ_RESPONSE_LAST 113, READ_RESPONSE_FIRST 114, READ_RESPONSE_LAST 115, NAK 0x61 116")

	// Without responder resources there are no READs and no atomics.
	p = newPeer(t, RC, 0)
	p.q.resp.resources = nil
	p.expect("no resources", p.send(wire.RoCE{Opcode: wire.OpFetchAdd, PSN: 100, VA: p.mr.Addr(), RKey: p.mr.RKey()}, 0), "NAK 0x61 100")
}

// TestRepeatedRequestsAreExecutedOnce repeats everything that the peer has sent: nothing is executed twice, and 10,000
// duplicates get one answer.
func TestRepeatedRequestsAreExecutedOnce(t *testing.T) {
	p := newPeer(t, RC, 4)
	h := []wire.RoCE{
		{Opcode: wire.OpSendOnly, PSN: 100, AckReq: true},
		{Opcode: wire.OpWriteOnlyImm, PSN: 101, VA: p.mr.Addr() + 2048, DMALen: 8},
		{Opcode: wire.OpWriteOnly, PSN: 102, VA: p.mr.Addr() + 2048, DMALen: 8},
	}
	send := func(i int, x byte) {
		h[i].RKey = p.mr.RKey()
		p.q.d.Process(0, p.packet(h[i], 8, x))
	}
	for i := range h {
		send(i, 1)
	}
	p.expect("answers", p.answers(), "ACK 102")
	p.expect("completions", p.completions(), "0: 8 bytes, 1: 8 bytes")
	before := bytes.Clone(p.mr.Bytes())
	for i := range 10000 {
		send(i%len(h), 2)
	}
	p.expect("answers", p.answers(), "ACK 102")
	p.expect("completions", p.completions(), "")
	if !bytes.Equal(before, p.mr.Bytes()) {
		t.Error("memory has changed")
	}
	if n := p.q.d.counts[Duplicates]; n != 10000 {
		t.Errorf("%d duplicates", n)
	}
}

// TestGapFlood sends 10,000 packets from far ahead: one NAK.
func TestGapFlood(t *testing.T) {
	p := newPeer(t, RC, 1)
	far := p.packet(wire.RoCE{Opcode: wire.OpSendOnly, PSN: 100000, AckReq: true}, 8, 0)
	if n := testing.AllocsPerRun(10000, func() { p.q.d.Process(0, far) }); n != 0 {
		t.Errorf("%v allocations for each packet", n)
	}
	p.expect("answers", p.answers(), "NAK 0x60 100")
	p.expect("the expected", p.send(wire.RoCE{Opcode: wire.OpSendOnly, PSN: 100, AckReq: true}, 8), "ACK 100")
}

// TestRequestsAllocateNothing receives SENDs, WRITEs, READs and atomics.
func TestRequestsAllocateNothing(t *testing.T) {
	p := newPeer(t, RC, 0)
	psn := uint32(100)
	out := make([]byte, 1000)
	var wc [1]WC
	sg := []RecvWR{{SGList: []SGE{p.mr.SGE(0, 64)}}}
	n := testing.AllocsPerRun(100, func() {
		for _, op := range []wire.Opcode{wire.OpSendOnly, wire.OpWriteOnly, wire.OpWriteOnlyImm, wire.OpReadRequest, wire.OpFetchAdd} {
			if _, err := p.q.PostRecv(sg); err != nil {
				t.Fatal(err)
			}
			n := 64
			if parts[op].message == noMessage {
				n = 0
			}
			p.q.d.Process(0, p.packet(wire.RoCE{Opcode: op, PSN: psn, VA: p.mr.Addr(), RKey: p.mr.RKey(), DMALen: 64, AckReq: true}, n, 1))
			psn++
			for q := p.q.d.Ready(false); q != nil; q = p.q.d.Ready(false) {
				q.Emit(0, out)
			}
			p.q.recvCQ.Poll(wc[:])
			p.q.rq.clear()
		}
	})
	if n != 0 || p.q.State() != StateRTS {
		t.Errorf("%v allocations, state %v", n, p.q.State())
	}
}

// TestCNPFlood: CNPs without congestion halve the window once for all that is in flight, down
// to two packets. The transfer continues. CNPs from another address have no effect.
func TestCNPFlood(t *testing.T) {
	p, a, b := connected(t, RC)
	cnp := func(src [4]byte) *Packet {
		buf := make([]byte, 100)
		h := wire.RoCE{Opcode: wire.OpCNP, BECN: true, PKey: defaultPKey, DstQP: a.qp.num}
		flow := wire.RoCEFlow{Src: src, Dst: a.d.cfg.Addr, SrcPort: wire.RoCEPort}
		n := wire.SealRoCE(buf, &flow, wire.PutRoCE(buf, &h, 0))
		return &Packet{IP: buf[:n], Src: src, SrcPort: wire.RoCEPort, Data: buf[wire.RoCEOffset:n]}
	}
	a.post(SendWR{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 500_000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), Flags: SendSignaled})
	for a.qp.req.window < 50 || a.qp.req.una == a.qp.req.max {
		p.step()
	}
	w := a.qp.req.window
	for range 10000 {
		a.d.Process(p.now, cnp([4]byte{10, 0, 0, 3}))
	}
	if a.qp.req.window != w || a.d.counts[BadSource] != 10000 {
		t.Errorf("CNPs of another address: window %d, %d counted", a.qp.req.window, a.d.counts[BadSource])
	}
	for range 10000 {
		a.d.Process(p.now, cnp(b.d.cfg.Addr))
	}
	if a.qp.req.window != w/2 || a.d.counts[CNPsReceived] != 10000 {
		t.Errorf("CNPs of the peer: window %d, was %d, %d counted", a.qp.req.window, w, a.d.counts[CNPsReceived])
	}
	for p.step() {
		a.d.Process(p.now, cnp(b.d.cfg.Addr))
		if a.qp.req.window < minWindow {
			t.Fatalf("window %d", a.qp.req.window)
		}
	}
	a.expect(WC{Opcode: WCRDMAWrite})
}
