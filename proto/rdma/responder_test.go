package rdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/wire"
)

// peer is the other end of a queue pair of an engine. It sends what a test wants. The engine's
// queue pair expects PSN 100 first and has a path MTU of 256 bytes.
type peer struct {
	t    testing.TB
	q    *QP
	mr   *MR // 4096 bytes, all access
	flow wire.RoCEFlow
	b    []byte // of pkt
	pkt  Packet
}

var (
	engineAddr = [4]byte{10, 0, 0, 1}
	peerAddr   = [4]byte{10, 0, 0, 2}
)

const peerQPN = 0x77

func newPeer(t testing.TB, typ QPType, receives int) *peer {
	p := &peer{t: t, flow: wire.RoCEFlow{Src: peerAddr, Dst: engineAddr, SrcPort: 5000}, b: make([]byte, 9000)}
	p.q = testQP(t, typ, engineAddr, peerAddr, 0x42, QPAttr{AccessFlags: accessRemote, PathMTU: MTU256, RQPSN: 100, DestQPN: peerQPN,
		MaxDestRDAtomic: 4, MinRNRTimer: 14, QKey: 9})
	p.q.mtu = 256 // of UD, too
	mr, err := p.q.pd.RegMR(make([]byte, 4096), AccessLocalWrite|accessRemote|AccessMWBind)
	if err != nil {
		t.Fatal(err)
	}
	p.mr = mr
	for i := range mr.Bytes() {
		mr.Bytes()[i] = byte(i*7 + i>>8)
	}
	p.receive(receives, 1000)
	return p
}

// receive posts receives of size bytes, the k-th at offset 1024 k of the region.
func (p *peer) receive(n, size int) {
	for k := range n {
		if _, err := p.q.PostRecv([]RecvWR{{WRID: uint64(k), SGList: []SGE{p.mr.SGE(1024*k, size)}}}); err != nil {
			p.t.Fatal(err)
		}
	}
}

// packet makes a packet of n bytes of payload, all of them x. It is valid until the next.
func (p *peer) packet(h wire.RoCE, n int, x byte) *Packet {
	h.PKey, h.DstQP = defaultPKey, p.q.num
	h.Opcode |= p.q.transport
	off := wire.PutRoCE(p.b, &h, n)
	for i := range n {
		p.b[off+i] = x
	}
	b := p.b[:wire.SealRoCE(p.b, &p.flow, off+n)]
	p.pkt = Packet{IP: b, Src: p.flow.Src, SrcPort: p.flow.SrcPort, Data: b[wire.RoCEOffset:]}
	return &p.pkt
}

// send sends a request and returns the answers, "OPERATION PSN" or "NAK syndrome PSN".
func (p *peer) send(h wire.RoCE, n int) string {
	p.q.d.Process(0, p.packet(h, n, 0xaa))
	return p.answers()
}

func (p *peer) answers() string {
	var s []string
	for _, f := range drain(p.t, p.q.d, 0) {
		name := strings.TrimPrefix(f.h.Opcode.String(), "RC ")
		if f.h.Opcode == wire.OpAck && f.h.Syndrome != wire.SyndromeAck {
			name = fmt.Sprintf("NAK %#x", f.h.Syndrome)
		}
		s = append(s, fmt.Sprintf("%s %d", name, f.h.PSN))
	}
	return strings.Join(s, ", ")
}

// completions are the statuses and lengths of what has completed.
func (p *peer) completions() string {
	var s []string
	var wc [1]WC
	for p.q.recvCQ.Poll(wc[:]) > 0 {
		if wc[0].Status == StatusSuccess {
			s = append(s, fmt.Sprintf("%d: %d bytes", wc[0].WRID, wc[0].ByteLen))
		} else {
			s = append(s, fmt.Sprintf("%d: %v", wc[0].WRID, wc[0].Status))
		}
	}
	return strings.Join(s, ", ")
}

func (p *peer) events() (types []EventType) {
	for e, ok := p.q.d.NextEvent(); ok; e, ok = p.q.d.NextEvent() {
		types = append(types, e.Type)
	}
	return types
}

func (p *peer) expect(what string, got, want string) {
	p.t.Helper()
	if got != want {
		p.t.Fatalf("%s: %q, want %q", what, got, want)
	}
}

// request is a step of a test: a packet and the answers to it.
type request struct {
	h    wire.RoCE
	n    int
	want string
}

// TestRequestRules sends requests that break a rule, after ones that do not. A refused request
// changes no memory, ends the connection, and the receives with it.
func TestRequestRules(t *testing.T) {
	write := func(op wire.Opcode, psn, length uint32) wire.RoCE {
		return wire.RoCE{Opcode: op, PSN: psn, DMALen: length, AckReq: true}
	}
	op := func(op wire.Opcode, psn uint32) wire.RoCE { return wire.RoCE{Opcode: op, PSN: psn, AckReq: true} }
	long := request{op(wire.OpSendFirst, 100), 256, "ACK 100"}
	longWrite := request{write(wire.OpWriteFirst, 100, 600), 256, "ACK 100"}
	const invalid, access = "NAK 0x61 ", "NAK 0x62 "
	for _, c := range []struct {
		name  string
		steps []request
		done  string
		event EventType
	}{
		{"a MIDDLE without a FIRST", []request{{op(wire.OpSendMiddle, 100), 256, invalid + "100"}}, "", EventQPReqErr},
		{"a LAST without a FIRST", []request{{op(wire.OpWriteLast, 100), 100, invalid + "100"}}, "", EventQPReqErr},
		{"an ONLY within a message", []request{long, {op(wire.OpSendOnly, 101), 10, invalid + "101"}}, "0: remote invalid request error", EventQPReqErr},
		{"a WRITE within a SEND", []request{long, {op(wire.OpWriteMiddle, 101), 256, invalid + "101"}}, "0: remote invalid request error", EventQPReqErr},
		{"a READ within a SEND", []request{long, {op(wire.OpReadRequest, 101), 0, invalid + "101"}}, "0: remote invalid request error", EventQPReqErr},
		{"an atomic within a WRITE", []request{longWrite, {op(wire.OpFetchAdd, 101), 0, invalid + "101"}}, "", EventQPReqErr},
		{"a FIRST shorter than the path MTU", []request{{op(wire.OpSendFirst, 100), 252, invalid + "100"}}, "", EventQPReqErr},
		{"a MIDDLE shorter than the path MTU", []request{long, {op(wire.OpSendMiddle, 101), 252, invalid + "101"}}, "0: remote invalid request error", EventQPReqErr},
		{"an empty LAST", []request{long, {op(wire.OpSendLast, 101), 0, invalid + "101"}}, "0: remote invalid request error", EventQPReqErr},
		{"an ONLY longer than the path MTU", []request{{op(wire.OpSendOnly, 100), 257, invalid + "100"}}, "", EventQPReqErr},
		{"a WRITE FIRST of no more than a packet", []request{{write(wire.OpWriteFirst, 100, 256), 256, invalid + "100"}}, "", EventQPReqErr},
		{"a WRITE ONLY that says another length", []request{{write(wire.OpWriteOnly, 100, 9), 8, invalid + "100"}}, "", EventQPReqErr},
		{"a WRITE that is longer than it said", []request{longWrite, {op(wire.OpWriteMiddle, 101), 256, "ACK 101"}, {op(wire.OpWriteLast, 102), 100, invalid + "102"}}, "", EventQPReqErr},
		{"a WRITE that ends early", []request{longWrite, {op(wire.OpWriteLast, 101), 100, invalid + "101"}}, "", EventQPReqErr},
		{"a WRITE of more than 2 GiB", []request{{write(wire.OpWriteFirst, 100, 1<<31+1), 256, invalid + "100"}}, "", EventQPReqErr},
		{"a READ of more than 2 GiB", []request{{write(wire.OpReadRequest, 100, 1<<31+1), 0, invalid + "100"}}, "", EventQPReqErr},
		{"a SEND longer than its receive", []request{{op(wire.OpSendFirst, 100), 256, "ACK 100"}, {op(wire.OpSendMiddle, 101), 256, "ACK 101"},
			{op(wire.OpSendMiddle, 102), 256, "ACK 102"}, {op(wire.OpSendLast, 103), 233, invalid + "103"}}, "0: local length error", EventQPReqErr},
		{"a SEND that invalidates a region", []request{{op(wire.OpSendOnlyInv, 100), 4, access + "100"}}, "0: memory management operation error", EventQPAccessErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPeer(t, RC, 2)
			rkey, before := p.mr.RKey(), []byte(nil)
			for _, s := range c.steps {
				before = append(before[:0], p.mr.Bytes()[1000:]...)
				s.h.RKey = rkey
				if part := parts[s.h.Opcode]; part.message != sendMessage {
					s.h.VA = p.mr.Addr() + 1024
				}
				p.expect(s.h.Opcode.String(), p.send(s.h, s.n), s.want)
			}
			if !bytes.Equal(before, p.mr.Bytes()[1000:]) {
				t.Error("the refused request has changed memory")
			}
			if e := p.events(); !slices.Equal(e, []EventType{c.event}) || p.q.State() != StateErr {
				t.Errorf("events %v in state %v, want %v", e, p.q.State(), c.event)
			}
			done := "0: Work Request Flushed Error, 1: Work Request Flushed Error"
			if c.done != "" {
				done = c.done + ", 1: Work Request Flushed Error"
			}
			p.expect("completions", p.completions(), done)
			p.expect("after the end", p.send(wire.RoCE{Opcode: wire.OpSendOnly, PSN: 100}, 0), "")
		})
	}
}

// TestMessages sends messages that keep the rules, and looks at memory and completions.
func TestMessages(t *testing.T) {
	p := newPeer(t, RC, 3)
	want := bytes.Clone(p.mr.Bytes())
	for _, written := range [][]byte{want[:513], want[3000:3257]} {
		copy(written, bytes.Repeat([]byte{0xaa}, 600))
	}
	steps := []request{
		{wire.RoCE{Opcode: wire.OpSendFirst, PSN: 100}, 256, ""}, // no ACK unless it is asked for
		{wire.RoCE{Opcode: wire.OpSendMiddle, PSN: 101}, 256, ""},
		{wire.RoCE{Opcode: wire.OpSendLast, PSN: 102, AckReq: true}, 1, "ACK 102"},
		{wire.RoCE{Opcode: wire.OpSendOnly, PSN: 103}, 0, ""},
		{wire.RoCE{Opcode: wire.OpWriteOnly, PSN: 104, AckReq: true}, 0, "ACK 104"}, // no key needed
		{wire.RoCE{Opcode: wire.OpReadRequest, PSN: 105, AckReq: true}, 0, "READ_RESPONSE_ONLY 105"},
		{wire.RoCE{Opcode: wire.OpReadRequest, PSN: 106, DMALen: 513}, 0, "READ_RESPONSE_FIRST 106, READ_RESPONSE_MIDDLE 107, READ_RESPONSE_LAST 108"},
		{wire.RoCE{Opcode: wire.OpWriteFirst, PSN: 109, DMALen: 257}, 256, ""},
		{wire.RoCE{Opcode: wire.OpWriteLastImm, PSN: 110, Imm: 5, AckReq: true}, 1, "ACK 110"},
		{wire.RoCE{Opcode: wire.OpWriteOnlyImm, PSN: 111, DMALen: 3, AckReq: true}, 3, "NAK 0x2e 111"},
		{wire.RoCE{Opcode: wire.OpSendOnly, PSN: 112, AckReq: true}, 3, ""}, // after an RNR NAK nothing is answered
		{wire.RoCE{Opcode: wire.OpSendOnly, PSN: 113, AckReq: true}, 3, ""},
	}
	for _, s := range steps {
		if s.h.DMALen > 0 {
			s.h.VA, s.h.RKey = p.mr.Addr()+3000, p.mr.RKey()
		}
		p.expect(s.h.Opcode.String(), p.send(s.h, s.n), s.want)
	}
	p.expect("completions", p.completions(), "0: 513 bytes, 1: 0 bytes, 2: 257 bytes")
	if !bytes.Equal(p.mr.Bytes(), want) {
		t.Error("memory is not what was written")
	}
	if n := p.q.d.counts[ReceiverNotReady]; n != 1 {
		t.Errorf("%d receivers not ready", n)
	}
	// The receive comes, and the requester repeats.
	p.receive(1, 10)
	p.expect("repeated", p.send(wire.RoCE{Opcode: wire.OpWriteOnlyImm, PSN: 111, DMALen: 3, VA: p.mr.Addr(), RKey: p.mr.RKey(), AckReq: true}, 3), "ACK 111")
	p.expect("completions", p.completions(), "0: 3 bytes")
}

// TestAcksCoalesce processes several packets before it emits: one ACK answers them all, and a
// READ's response those before it.
func TestAcksCoalesce(t *testing.T) {
	p := newPeer(t, RC, 4)
	for i := range uint32(3) {
		p.q.d.Process(0, p.packet(wire.RoCE{Opcode: wire.OpSendOnly, PSN: 100 + i, AckReq: true}, 4, 0))
	}
	p.expect("three SENDs", p.answers(), "ACK 102")
	p.q.d.Process(0, p.packet(wire.RoCE{Opcode: wire.OpSendOnly, PSN: 103, AckReq: true}, 4, 0))
	p.q.d.Process(0, p.packet(wire.RoCE{Opcode: wire.OpReadRequest, PSN: 104, DMALen: 300, VA: p.mr.Addr(), RKey: p.mr.RKey()}, 0, 0))
	p.q.d.Process(0, p.packet(wire.RoCE{Opcode: wire.OpWriteOnly, PSN: 106, AckReq: true}, 0, 0))
	p.expect("a SEND, a READ, a WRITE", p.answers(), "READ_RESPONSE_FIRST 104, READ_RESPONSE_LAST 105, ACK 106")
	p.q.d.Process(0, p.packet(wire.RoCE{Opcode: wire.OpReadRequest, PSN: 107, DMALen: 300, VA: p.mr.Addr(), RKey: p.mr.RKey()}, 0, 0))
	p.q.d.Process(0, p.packet(wire.RoCE{Opcode: wire.OpSendOnly, PSN: 110}, 0, 0))
	p.expect("a READ, a gap", p.answers(), "READ_RESPONSE_FIRST 107, READ_RESPONSE_LAST 108, NAK 0x60 109")
	p.q.d.Process(0, p.packet(wire.RoCE{Opcode: wire.OpReadRequest, PSN: 109, DMALen: 8, VA: p.mr.Addr(), RKey: p.mr.RKey()}, 0, 0))
	p.q.d.Process(0, p.packet(wire.RoCE{Opcode: wire.OpReadRequest, PSN: 110, DMALen: 8, VA: p.mr.Addr(), RKey: 1}, 0, 0))
	p.expect("a READ, and one that is refused", p.answers(), "READ_RESPONSE_ONLY 109, NAK 0x62 110")
}

// TestGaps loses packets: one NAK for each gap, until the expected request arrives.
func TestGaps(t *testing.T) {
	p := newPeer(t, RC, 9)
	send := func(psn uint32) string {
		return p.send(wire.RoCE{Opcode: wire.OpSendOnly, PSN: psn, AckReq: true}, 4)
	}
	for _, s := range []struct {
		psn  uint32
		want string
	}{{100, "ACK 100"}, {102, "NAK 0x60 101"}, {103, ""}, {104, ""}, {101, "ACK 101"}, {103, "NAK 0x60 102"}, {102, "ACK 102"}, {103, "ACK 103"},
		{103, "ACK 103"}, {100, "ACK 103"}, {104 + 1<<22, "NAK 0x60 104"}, {100 + 3<<22, "ACK 103"}} {
		p.expect(fmt.Sprint("PSN ", s.psn), send(s.psn&psnMask), s.want)
	}
	p.expect("completions", p.completions(), "0: 4 bytes, 1: 4 bytes, 2: 4 bytes, 3: 4 bytes")
}

// TestAtomics executes each atomic once, and replays the saved result of the last 4.
func TestAtomics(t *testing.T) {
	p := newPeer(t, RC, 0)
	word := p.mr.Bytes()[8:16]
	binary.NativeEndian.PutUint64(word, 40)
	atomic := func(op wire.Opcode, psn uint32, swapAdd, compare uint64) (original uint64, answers int) {
		p.q.d.Process(0, p.packet(wire.RoCE{Opcode: op, PSN: psn, VA: p.mr.Addr() + 8, RKey: p.mr.RKey(), SwapAdd: swapAdd, Compare: compare}, 0, 0))
		for _, f := range drain(t, p.q.d, 0) {
			if f.h.Opcode != wire.OpAtomicAck || f.h.PSN != psn {
				t.Fatalf("answer %v", f)
			}
			original = f.h.Original
			answers++
		}
		return original, answers
	}
	for i, c := range []struct {
		op               wire.Opcode
		psn              uint32
		swapAdd, compare uint64
		original, after  uint64
		answers          int
	}{
		{wire.OpFetchAdd, 100, 2, 0, 40, 42, 1},
		{wire.OpFetchAdd, 100, 2, 0, 40, 42, 1}, // again
		{wire.OpCompareSwap, 101, 7, 42, 42, 7, 1},
		{wire.OpCompareSwap, 102, 9, 42, 7, 7, 1},
		{wire.OpFetchAdd, 103, 1<<64 - 7, 0, 7, 0, 1},
		{wire.OpCompareSwap, 101, 7, 42, 42, 0, 1}, // again
		{wire.OpFetchAdd, 104, 5, 0, 0, 5, 1},
		{wire.OpFetchAdd, 100, 2, 0, 0, 5, 0},    // too old
		{wire.OpReadRequest, 102, 0, 0, 0, 5, 0}, // was an atomic
	} {
		original, n := atomic(c.op, c.psn, c.swapAdd, c.compare)
		if after := binary.NativeEndian.Uint64(word); original != c.original || after != c.after || n != c.answers {
			t.Errorf("%d: original %d, then %d, %d answers: %+v", i, original, after, n, c)
		}
	}
	if n := p.q.d.counts[DuplicatesUnanswered]; n != 2 {
		t.Errorf("%d duplicates without an answer, want 2", n)
	}
}

// TestRepeatedReads asks again for READs, in whole and in part: they are executed again.
func TestRepeatedReads(t *testing.T) {
	p := newPeer(t, RC, 0)
	read := func(psn uint32, off uint64, n uint32) wire.RoCE {
		return wire.RoCE{Opcode: wire.OpReadRequest, PSN: psn, VA: p.mr.Addr() + off, RKey: p.mr.RKey(), DMALen: n}
	}
	const whole = "READ_RESPONSE_FIRST 100, READ_RESPONSE_MIDDLE 101, READ_RESPONSE_LAST 102"
	p.expect("READ", p.send(read(100, 0, 700), 0), whole)
	p.expect("the next", p.send(read(103, 1000, 8), 0), "READ_RESPONSE_ONLY 103")
	p.expect("again", p.send(read(100, 0, 700), 0), whole)
	p.expect("the rest", p.send(read(101, 256, 444), 0), "READ_RESPONSE_FIRST 101, READ_RESPONSE_LAST 102")
	p.expect("the last packet", p.send(read(102, 512, 188), 0), "READ_RESPONSE_ONLY 102")
	p.expect("the middle packet", p.send(read(101, 256, 256), 0), "READ_RESPONSE_ONLY 101")
	copy(p.mr.Bytes(), "changed")
	p.q.d.Process(0, p.packet(read(100, 0, 8), 0, 0))
	if f := drain(t, p.q.d, 0); len(f) != 1 || !bytes.HasPrefix(f[0].h.Payload, []byte("changed")) {
		t.Errorf("%v: not executed again", f)
	}
	for name, h := range map[string]wire.RoCE{
		"more than it was":  read(101, 256, 445),
		"another address":   read(101, 257, 10),
		"an older one":      read(98, 0, 10),
		"the next's length": read(103, 1000, 9),
	} {
		p.expect(name, p.send(h, 0), "")
	}
	h := read(100, 0, 700)
	h.RKey++
	p.expect("another key", p.send(h, 0), "")
	// A response that is being sent begins again, and one that is not yet sent stays in its place.
	emit := func() string {
		b := make([]byte, 1000)
		n := p.q.d.Ready(false).Emit(0, b)
		var h wire.RoCE
		if err := h.Parse(b[wire.RoCEOffset:n]); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(h.Opcode.String()[3:], " ", h.PSN)
	}
	p.q.d.Process(0, p.packet(read(104, 0, 700), 0, 0))
	p.q.d.Process(0, p.packet(read(107, 0, 8), 0, 0))
	p.expect("first", emit(), "READ_RESPONSE_FIRST 104")
	p.expect("second", emit(), "READ_RESPONSE_MIDDLE 105")
	p.q.d.Process(0, p.packet(read(107, 0, 8), 0, 0))
	p.q.d.Process(0, p.packet(read(105, 256, 444), 0, 0))
	p.expect("from the second on", p.answers(), "READ_RESPONSE_FIRST 105, READ_RESPONSE_LAST 106, READ_RESPONSE_ONLY 107")
}

// Responses of READs are in the order of the requests, also if a request arrives when the first response that
// was owed has been sent and others have not: its resource takes the place of the first one's. The
// simulation found that the youngest was answered before the others, since responses are paced; its
// requester took that for a loss.
func TestReadsAreAnsweredInOrder(t *testing.T) {
	for resources := 1; resources <= 5; resources++ {
		r := newReader(t, linksim.Rule{}, 1024, 1, func(a *QPAttr) { a.MaxDestRDAtomic = uint8(resources) })
		asked, answered := uint32(0), uint32(0)
		ask := func() {
			r.send(wire.RoCE{Opcode: wire.OpReadRequest, PSN: asked, VA: r.mr.Addr(), RKey: r.mr.RKey(), DMALen: 1024})
			asked++
		}
		answer := func() {
			q := r.d.Ready(false)
			if q == nil {
				t.Fatalf("%d resources: READ %d is not answered", resources, answered)
			}
			b := make([]byte, q.Room())
			b = b[:q.Emit(r.now, b)]
			var h wire.RoCE
			if err := h.Parse(b[wire.RoCEOffset:]); err != nil || h.PSN != answered || h.Opcode != wire.OpReadResponseOnly {
				t.Fatalf("%d resources: %v with PSN %d, %v; want the response to READ %d", resources, h.Opcode, h.PSN, err, answered)
			}
			answered++
		}
		for range resources {
			ask()
		}
		for range 4 * resources {
			answer()
			ask()
		}
		for answered < asked {
			answer()
		}
	}
}
