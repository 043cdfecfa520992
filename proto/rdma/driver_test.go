package rdma

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/wire"
)

// pair is two devices joined by a link in virtual time.
type pair struct {
	t     testing.TB
	now   Time
	delay Time
	host  [2]*Device
	drop  func(from int, h *wire.RoCE) bool // nil: no packet is lost
	trace func(from int, h *wire.RoCE)
	queue []delayedPacket
	mark  bool // CE on every ECN-capable packet
}

type delayedPacket struct {
	at Time
	to int
	b  []byte
}

func newDevice(host byte, cfg Config) *Device {
	cfg.Addr = [4]byte{10, 0, 0, host}
	if cfg.LinkMTU == 0 {
		cfg.LinkMTU = 1500
	}
	cfg.Rand = rand.NewChaCha8([32]byte{host})
	return New(cfg)
}

func newPair(t testing.TB) *pair {
	return &pair{t: t, now: 1, delay: Time(10 * time.Microsecond), host: [2]*Device{newDevice(1, Config{}), newDevice(2, Config{})}}
}

// step sends what is ready and delivers what has arrived, or lets time pass. It reports
// whether anything can still happen.
func (p *pair) step() bool {
	for i, d := range p.host {
		for q := d.Ready(false); q != nil; q = d.Ready(false) {
			b := make([]byte, q.Room())
			dst := q.Dst()
			n := q.Emit(p.now, b)
			if n == 0 {
				continue
			}
			if dst != p.host[1-i].cfg.Addr || [4]byte(b[16:20]) != dst {
				p.t.Fatalf("device %d sends to %v, Dst was %v", i, b[16:20], dst)
			}
			var h wire.RoCE
			if err := h.Parse(b[wire.RoCEOffset:n]); err != nil {
				p.t.Fatalf("device %d emits %x: %v", i, b[:n], err)
			}
			if p.trace != nil {
				p.trace(i, &h)
			}
			if p.drop == nil || !p.drop(i, &h) {
				p.queue = append(p.queue, delayedPacket{p.now + p.delay, 1 - i, b[:n]})
			}
		}
	}
	next := min(p.host[0].Deadline(), p.host[1].Deadline())
	if len(p.queue) > 0 {
		next = min(next, p.queue[0].at)
	}
	if next == Never {
		return false
	}
	p.now = max(p.now, next)
	for len(p.queue) > 0 && p.queue[0].at <= p.now {
		f := p.queue[0]
		p.queue = p.queue[1:]
		p.host[f.to].Process(p.now, &Packet{IP: f.b, Src: [4]byte(f.b[12:16]), SrcPort: wire.RoCEPort, CE: p.mark && f.b[1]&3 != 0, Data: f.b[wire.RoCEOffset:]})
	}
	for _, d := range p.host {
		d.Expire(p.now)
	}
	return true
}

// run steps until nothing can happen any more.
func (p *pair) run() {
	for n := 0; p.step(); n++ {
		if n > 1e6 {
			p.t.Fatal("the exchange does not end")
		}
	}
}

// end is one end of a connected pair.
type end struct {
	t   testing.TB
	p   *pair
	d   *Device
	pd  *PD
	cq  *CQ
	qp  *QP
	mr  *MR
	buf []byte
}

var fullAccess = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | AccessMWBind

func (p *pair) end(i int, typ QPType) *end {
	e := &end{t: p.t, p: p, d: p.host[i]}
	e.pd = e.d.AllocPD()
	e.cq = testutil.Value(e.d.CreateCQ(1024))
	e.buf = make([]byte, 1<<20)
	e.mr = testutil.Value(e.pd.RegMR(e.buf, fullAccess))
	e.qp = testutil.Value(e.d.CreateQP(e.pd, QPInit{Type: typ, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: QPCap{MaxSendWR: 256, MaxRecvWR: 256, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 128}}))
	return e
}

// attrs are what connect uses.
var attrs = QPAttr{AccessFlags: accessRemote, QKey: 0x1234, PathMTU: MTU1024, Timeout: 8, RetryCnt: 7, RNRRetry: 7,
	MaxRDAtomic: 4, MaxDestRDAtomic: 4, MinRNRTimer: 12}

func (e *end) connect(peer *end, a QPAttr, psn, peerPSN uint32) {
	e.t.Helper()
	a.SQPSN, a.RQPSN, a.DestQPN, a.AH = psn, peerPSN, peer.qp.Num(), AHAttr{Dst: peer.d.cfg.Addr, TrafficClass: a.AH.TrafficClass}
	t := min(e.qp.typ, UD)
	for _, s := range []State{StateInit, StateRTR, StateRTS} {
		a.State = s
		var mask QPAttrMask
		for _, m := range moves {
			if m.from == e.qp.state && m.to == s {
				mask = m.required[t]
			}
		}
		if err := e.qp.Modify(e.p.now, &a, mask|QPState); err != nil {
			e.t.Fatal(err)
		}
	}
}

// connected is two queue pairs in RTS.
func connected(t testing.TB, typ QPType, change ...func(*QPAttr)) (p *pair, a, b *end) {
	p = newPair(t)
	a, b = p.end(0, typ), p.end(1, typ)
	at := attrs
	for _, c := range change {
		c(&at)
	}
	a.connect(b, at, 0xfffffe, 7)
	b.connect(a, at, 7, 0xfffffe)
	return p, a, b
}

func (e *end) post(wrs ...SendWR) {
	e.t.Helper()
	if n, err := e.qp.PostSend(e.p.now, wrs); err != nil || n != len(wrs) {
		e.t.Fatal(n, err)
	}
}

func (e *end) recv(wrs ...RecvWR) {
	e.t.Helper()
	if n, err := e.qp.PostRecv(wrs); err != nil || n != len(wrs) {
		e.t.Fatal(n, err)
	}
}

// expect polls all completions and compares ids and statuses.
func (e *end) expect(want ...WC) {
	e.t.Helper()
	got := make([]WC, len(want)+10)
	got = got[:e.cq.Poll(got)]
	if len(got) != len(want) {
		e.t.Fatalf("completions %+v, want %+v", got, want)
	}
	for i, g := range got {
		w := want[i]
		if g.WRID != w.WRID || g.Status != w.Status || w.Status == StatusSuccess && (g.Opcode != w.Opcode || g.ByteLen != w.ByteLen || g.ImmData != w.ImmData || g.Flags != w.Flags || g.InvalidatedRKey != w.InvalidatedRKey) || g.QPNum != e.qp.num {
			e.t.Fatalf("completion %d is %+v, want %+v", i, g, w)
		}
	}
}

func fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
}
