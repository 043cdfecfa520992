package rdma

import (
	"encoding/binary"
	"path/filepath"
	"testing"

	"github.com/unet-go/unet/wire"
)

// fuzzStates are the states that a queue pair can be in when packets arrive.
var fuzzStates = []State{StateRTR, StateRTS, StateSQD, StateErr, StateInit, StateReset}

// operands of an instruction of FuzzResponder, after its operation.
const operandLen = 8

// FuzzResponder sends requests of all kinds to a queue pair, their PSNs near the expected one, their
// addresses near the ends of a region. The application posts receives, takes regions away and changes
// the state meanwhile. No byte outside the region changes, what is owed is bounded, and every
// receive completes once.
//
// An instruction is an operation and 8 operands; see fuzzRequest and fuzzControl.
func FuzzResponder(f *testing.F) {
	seed := func(kind, state byte, steps ...[9]byte) {
		b := []byte{kind, state}
		for _, s := range steps {
			b = append(b, s[:]...)
		}
		f.Add(b)
	}
	post, drain := [9]byte{0x80}, [9]byte{0x81}
	for kind := range byte(3) {
		for state := range byte(len(fuzzStates)) {
			seed(kind, state, post, [9]byte{byte(wire.OpSendFirst), 0, 128, 0, 128}, [9]byte{byte(wire.OpSendLast), 0, 128, 0, 7}, drain,
				[9]byte{byte(wire.OpSendOnly), 255, 128, 0, 9}, post, [9]byte{byte(wire.OpSendOnlyImm), 0, 128, 0, 9}, drain)
			seed(kind, state, [9]byte{byte(wire.OpWriteFirst), 0, 200, 1, 128}, [9]byte{byte(wire.OpWriteLast), 0, 0, 0, 50},
				[9]byte{byte(wire.OpWriteOnly), 0, 127, 0, 4, 4}, drain, [9]byte{0x84}, [9]byte{byte(wire.OpWriteOnly), 0, 128, 0, 4, 4}, drain)
		}
	}
	read, add := [9]byte{byte(wire.OpReadRequest), 0, 130, 0, 0, 0, 3}, [9]byte{byte(wire.OpFetchAdd), 0, 136, 0}
	again := read
	again[1] = 253
	seed(0, 1, read, add, drain, again, drain, read, read, read, read, read, drain)
	seed(0, 1, add, add, [9]byte{byte(wire.OpCompareSwap), 254, 136, 0}, [9]byte{byte(wire.OpFetchAdd), 0, 137, 0}, drain)
	seed(0, 1, [9]byte{0x83}, [9]byte{byte(wire.OpWriteOnly), 0, 128, 0, 4, 4, 0, 1}, post, [9]byte{byte(wire.OpSendOnlyInv), 0, 0, 0, 4, 0, 0, 1},
		[9]byte{byte(wire.OpWriteOnly), 0, 128, 0, 4, 4, 0, 1}, drain)
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) < 2 || len(program) > 4096 {
			return
		}
		newFuzzer(t, QPType(program[0]%3), fuzzStates[int(program[1])%len(fuzzStates)]).run(program[2:])
	})
}

type fuzzer struct {
	*peer
	guarded []byte // the region's memory, with guardLen bytes before and behind it
	window  *MW
	posted  uint64 // receives
	done    uint64
}

const guardLen = 1024

func newFuzzer(t testing.TB, typ QPType, state State) *fuzzer {
	x := &fuzzer{peer: newPeer(t, typ, 0)}
	x.guarded = make([]byte, 512+2*guardLen)
	for i := range x.guarded {
		x.guarded[i] = 0x55
	}
	mr, err := x.q.pd.RegMR(x.guarded[guardLen:guardLen+512], AccessLocalWrite|accessRemote|AccessMWBind)
	if err != nil {
		t.Fatal(err)
	}
	x.mr = mr
	if x.window, err = x.q.pd.AllocMW(); err != nil {
		t.Fatal(err)
	}
	// The states from INIT on; the others are set as Modify would.
	switch state {
	case StateRTR, StateInit:
		x.q.state = state
	case StateSQD, StateErr, StateReset:
		if err := x.q.Modify(0, &QPAttr{State: state}, QPState); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

func (x *fuzzer) run(program []byte) {
	for len(program) > operandLen {
		op, operands := program[0], program[1:1+operandLen]
		program = program[1+operandLen:]
		if op&0x80 != 0 {
			x.control(op&0x7f, operands)
		} else {
			x.request(wire.Opcode(op&0x1f), operands)
		}
		x.check()
	}
	drain(x.t, x.q.d, 0)
	if err := x.q.Modify(0, &QPAttr{State: StateErr}, QPState); err != nil {
		x.t.Fatal(err)
	}
	x.poll()
	if x.q.resp.failed && x.q.responseReady() || x.posted != x.done && !x.q.recvCQ.overrun {
		x.t.Fatalf("%d receives posted, %d done", x.posted, x.done)
	}
	x.q.Close()
	if x.q.d.Ready(false) != nil || x.q.d.Deadline() != Never {
		x.t.Fatal("something is left")
	}
}

// request sends a request. Operands: PSN (signed, from the expected one), address (from the
// begin of the region, 128 is 0), its high byte, bytes of payload / 2, length of RETH, 64 times
// as much, key, flags.
func (x *fuzzer) request(op wire.Opcode, b []byte) {
	h := wire.RoCE{Opcode: op, PSN: (x.q.resp.expected + uint32(int8(b[0]))) & psnMask, AckReq: b[7]&1 == 0, Solicited: b[7]&2 != 0, SwapAdd: uint64(b[7])}
	h.VA = x.mr.Addr() + uint64(int64(b[1])-128+int64(int8(b[2]))<<8)
	h.DMALen = uint32(b[4]) + uint32(b[5])<<6
	h.RKey, h.QKey, h.Imm = x.mr.RKey(), 9, 3
	if b[7]&4 != 0 {
		h.DMALen, h.VA = 1<<31-h.DMALen, -h.VA
	}
	switch b[6] % 4 {
	case 1:
		h.RKey = x.window.RKey()
	case 2:
		h.RKey ^= uint32(b[7])
	case 3:
		h.QKey = uint32(b[7])
	}
	n := 2*int(b[3]) + int(b[7]>>7)
	if op == 0x15 || op > wire.OpSendOnlyInv {
		return
	}
	h.Opcode |= x.q.transport
	if err := (&wire.RoCE{}).Parse(append([]byte{byte(h.Opcode)}, make([]byte, 63)...)); err == wire.ErrOpcode {
		return
	}
	if p := parts[op]; p.message == noMessage && (op < wire.OpReadResponseFirst || op > wire.OpReadResponseOnly) {
		n = 0
	}
	h.Opcode = op
	x.q.d.Process(0, x.packet(h, n, b[7]))
}

// control is what the application does.
func (x *fuzzer) control(op byte, b []byte) {
	q := x.q
	switch op % 8 {
	case 0:
		n, _ := q.PostRecv([]RecvWR{{WRID: 1, SGList: []SGE{x.mr.SGE(int(b[0]), int(b[1])), x.mr.SGE(3, int(b[2]))}}})
		x.posted += uint64(n)
	case 1:
		drain(x.t, q.d, 0)
	case 2:
		for q := q.d.Ready(false); q != nil; q = nil {
			q.Emit(0, x.b)
		}
	case 3:
		q.bind(x.window, MWBind{RKey: IncRKey(x.window.RKey()), MR: x.mr, Addr: x.mr.Addr() + uint64(b[0]), Length: uint64(b[1]), Access: accessRemote})
	case 4:
		q.invalidate(x.window.RKey())
	case 5:
		x.mr.Close()
	case 6:
		x.poll()
	case 7:
		q.attr.AccessFlags = Access(b[0]) & accessRemote
	}
}

func (x *fuzzer) poll() {
	var wc [16]WC
	for n := x.q.recvCQ.Poll(wc[:]); n > 0; n = x.q.recvCQ.Poll(wc[:]) {
		for _, c := range wc[:n] {
			if c.Opcode == WCRecv || c.Opcode == WCRecvRDMAWithImm {
				x.done++
			}
		}
	}
}

// check looks at what must always be true.
func (x *fuzzer) check() {
	r := &x.q.resp
	owed := 0
	for i := range r.resources {
		s := &r.resources[i]
		if s.owed {
			owed++
		}
		if s.begin > s.offset || s.offset > s.until || s.until > s.length {
			x.t.Fatalf("resource %+v", s)
		}
	}
	if owed != r.owed || owed > int(x.q.attr.MaxDestRDAtomic) && x.q.state != StateReset {
		x.t.Fatalf("%d resources are owed, the counter says %d", owed, r.owed)
	}
	if r.taken && uint64(r.filled) > r.recv.length {
		x.t.Fatalf("%d bytes in a receive of %d", r.filled, r.recv.length)
	}
	for i, g := range x.guarded {
		if g != 0x55 && (i < guardLen || i >= guardLen+512) {
			x.t.Fatalf("byte %d, outside the region, has changed", i-guardLen)
		}
	}
	if ready := x.q.d.Ready(false) != nil; ready != (x.q.responseReady() || x.q.requestReady() || x.q.cnpDue) {
		x.t.Fatalf("ready is %v", ready)
	}
}

// FuzzDevice feeds a device with queue pairs of all types and states, which have work requests
// outstanding, packets as the fuzzer makes them, with the right ICRC. Time goes on, and the application
// posts. Nothing panics, every emission ends, no more completes than was posted.
func FuzzDevice(f *testing.F) {
	paths, err := filepath.Glob("../../wire/testdata/*.pcap")
	if err != nil || len(paths) < 10 {
		f.Fatal(paths, err)
	}
	for _, path := range paths {
		var program []byte
		for _, fr := range readCapture(f, path) {
			if len(fr.packet.Data) < 250 && len(program) < 2000 {
				program = append(append(program, byte(len(fr.packet.Data))), fr.packet.Data...)
			}
		}
		f.Add(program)
	}
	ack := func(syndrome uint8, psn uint32) []byte {
		b := make([]byte, 200)
		n := wire.PutRoCE(b, &wire.RoCE{Opcode: wire.OpAck, PKey: defaultPKey, PSN: psn, Syndrome: syndrome}, 0)
		return append([]byte{byte(n + 4 - wire.RoCEOffset)}, b[wire.RoCEOffset:n+4]...)
	}
	for _, syndrome := range []uint8{wire.SyndromeAck, wire.SyndromeRNR | 3, wire.SyndromeNAKSequence, wire.SyndromeNAKInvalid, wire.SyndromeNAKAccess, 0x7f, 0x40} {
		f.Add(append(append([]byte{0xf0, 0xf1, 0xf2, 0xf4, 0xf8}, ack(syndrome, 0)...), append(ack(syndrome, 2), 0xfc, 0xf4)...))
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) > 8192 {
			return
		}
		w := newFuzzedDevice(t)
		for len(program) > 0 {
			op := program[0]
			program = program[1:]
			if op >= 0xf0 {
				w.step(op & 0x0f)
				continue
			}
			n := min(int(op), len(program))
			w.packet(program[:n])
			program = program[n:]
		}
		w.finish()
	})
}

type fuzzedDevice struct {
	t            testing.TB
	d            *Device
	now          Time
	qps          []*QP
	mr           *MR
	cq           *CQ
	posted, done int
	b            []byte
}

func newFuzzedDevice(t testing.TB) *fuzzedDevice {
	w := &fuzzedDevice{t: t, now: 1e9, b: make([]byte, 9000)}
	for i := range 6 {
		typ := []QPType{RC, RC, RC, UC, UD, RC}[i]
		var q *QP
		if i == 0 {
			q = testQP(t, typ, engineAddr, peerAddr, 1000, QPAttr{})
			w.d, w.cq = q.d, q.recvCQ
			mr, err := q.pd.RegMR(make([]byte, 4096), AccessLocalWrite|accessRemote)
			if err != nil {
				t.Fatal(err)
			}
			w.mr = mr
			q.Close()
		}
		q, err := w.d.CreateQP(w.mr.pd, QPInit{Type: typ, SendCQ: w.cq, RecvCQ: w.cq, SqSigAll: true, Cap: QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}})
		if err != nil {
			t.Fatal(err)
		}
		delete(w.d.qps, q.num)
		q.num = uint32(2 + i)
		w.d.qps[q.num] = q
		a := QPAttr{AccessFlags: accessRemote, AH: AHAttr{Dst: peerAddr}, PathMTU: MTU256, DestQPN: 77, MaxDestRDAtomic: 2, MaxRDAtomic: 2, Timeout: 10, RetryCnt: 3,
			RNRRetry: 3, QKey: 0x11111111}
		last := []State{StateRTS, StateRTR, StateSQD, StateRTS, StateRTS, StateInit}[i]
		for _, m := range moves {
			if m.from == q.state && m.to == q.state+1 && m.to <= last {
				a.State = m.to
				if err := q.Modify(w.now, &a, m.required[min(typ, UD)]|QPState); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.qps = append(w.qps, q)
	}
	return w
}

// packet processes a datagram's payload, its destination and CRC put right.
func (w *fuzzedDevice) packet(data []byte) {
	if len(data) < wire.BTHLen+wire.ICRCLen || len(data)&3 != 0 {
		w.d.Process(w.now, &Packet{IP: data, Src: peerAddr, Data: data})
		return
	}
	b := make([]byte, wire.RoCEOffset+len(data))
	copy(b[wire.RoCEOffset:], data)
	bth := b[wire.RoCEOffset:]
	bth[1] &= 0xf0
	binary.BigEndian.PutUint16(bth[2:], defaultPKey)
	binary.BigEndian.PutUint32(bth[4:], uint32(bth[7]%8))
	if bth[9] != 0 { // most captures begin far from PSN 0
		bth[9], bth[10] = 0, 0
	}
	pad := int(bth[1] >> 4 & 3)
	if op := wire.Opcode(bth[0]).Operation(); len(data) >= 28+4 && (op >= wire.OpWriteFirst && op <= wire.OpReadRequest || op == wire.OpFetchAdd || op == wire.OpCompareSwap) {
		binary.BigEndian.PutUint64(bth[12:], w.mr.Addr()+binary.BigEndian.Uint64(bth[12:])&4095)
		binary.BigEndian.PutUint32(bth[20:], w.mr.RKey()^uint32(bth[20]&1))
	}
	before := bth[1]
	n := wire.SealRoCE(b, &wire.RoCEFlow{Src: peerAddr, Dst: engineAddr, SrcPort: 4791}, len(b)-wire.ICRCLen)
	if bth[1] != before || pad > 3 {
		w.t.Fatal("SealRoCE has changed the header")
	}
	w.d.Process(w.now, &Packet{IP: b[:n], Src: peerAddr, CE: data[0]&1 != 0, Data: b[wire.RoCEOffset:n]})
}

func (w *fuzzedDevice) step(op byte) {
	switch {
	case op < 4:
		q := w.qps[op%3]
		wr := SendWR{Opcode: []WROpcode{WRSend, WRRDMAWriteWithImm, WRRDMARead, WRAtomicFetchAndAdd}[op], SGList: []SGE{w.mr.SGE(0, 8)}, RemoteAddr: 8, RKey: 1}
		if op < 3 {
			wr.SGList[0].Length = 700
		}
		n, _ := q.PostSend(w.now, []SendWR{wr})
		w.posted += n
	case op < 8:
		for i := range w.qps {
			n, _ := w.qps[i].PostRecv([]RecvWR{{SGList: []SGE{w.mr.SGE(100*int(op), 90)}}})
			w.posted += n
		}
	case op < 12:
		for n := 0; n < 4*int(op); n++ {
			if q := w.d.Ready(false); q != nil {
				q.Emit(w.now, w.b)
			}
		}
	case op < 15:
		w.now += []Time{1e5, 1e7, 1e9}[op-12]
		w.d.Expire(w.now)
	default:
		w.poll()
	}
}

func (w *fuzzedDevice) poll() {
	var wc [32]WC
	for n := w.cq.Poll(wc[:]); n > 0; n = w.cq.Poll(wc[:]) {
		w.done += n
	}
}

func (w *fuzzedDevice) finish() {
	drain(w.t, w.d, w.now)
	for _, q := range w.qps {
		if err := q.Modify(w.now, &QPAttr{State: StateErr}, QPState); err != nil {
			w.t.Fatal(err)
		}
	}
	w.poll()
	if w.done != w.posted && !w.cq.overrun {
		w.t.Fatalf("%d work requests posted, %d done", w.posted, w.done)
	}
	for _, q := range w.qps {
		q.Close()
	}
	if w.d.Ready(false) != nil || w.d.Deadline() != Never {
		w.t.Fatal("something is left")
	}
}
