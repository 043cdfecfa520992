package rdma

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/wire"
)

// TestModify tries every change of state on every type, with the attributes that it needs.
func TestModify(t *testing.T) {
	legal := map[string]bool{}
	for _, s := range []string{"RESET INIT", "INIT INIT", "INIT RTR", "RTR RTS", "RTS RTS", "RTS SQD", "SQD RTS", "SQD SQD"} {
		legal[s] = true
	}
	path := []State{StateInit, StateRTR, StateRTS, StateSQD}
	for _, typ := range []QPType{RC, UC, UD} {
		for from := StateReset; from <= StateErr; from++ {
			for to := StateReset; to <= StateErr; to++ {
				p := newPair(t)
				e := p.end(0, typ)
				a := attrs
				a.AH.Dst = p.host[1].cfg.Addr
				step := func(to State) error {
					a.State = to
					mask := QPState
					for _, m := range moves {
						if m.from == e.qp.state && m.to == to {
							mask |= m.required[typ]
						}
					}
					return e.qp.Modify(p.now, &a, mask)
				}
				for _, s := range path {
					if e.qp.state == from || from >= StateSQE || from == StateReset {
						break
					}
					if err := step(s); err != nil {
						t.Fatal(err)
					}
				}
				if from >= StateSQE {
					e.qp.state = from
				}
				err := step(to)
				name := from.String() + " " + to.String()
				want := legal[name] || to == StateReset || to == StateErr || name == "SQE RTS" && typ != RC
				if (err == nil) != want {
					t.Errorf("%v %s: %v", typ, name, err)
				}
				if err != nil && (!errors.Is(err, syscall.EINVAL) || e.qp.state != from || !strings.Contains(err.Error(), fmt.Sprintf("%#x", e.qp.num))) {
					t.Errorf("%v %s: %v, state %v", typ, name, err, e.qp.state)
				}
				if err == nil && e.qp.Query().State != to {
					t.Errorf("%v %s: the state is %v", typ, name, e.qp.Query().State)
				}
			}
		}
	}
}

func TestModifyAttributes(t *testing.T) {
	p := newPair(t)
	e := p.end(0, RC)
	toRTR := QPState | QPAV | QPPathMTU | QPDestQPN | QPRQPSN | QPMaxDestRDAtomic | QPMinRNRTimer
	good := attrs
	good.State = StateInit
	if err := e.qp.Modify(p.now, &good, QPState|QPAccessFlags); err != nil {
		t.Fatal(err)
	}
	good.State = StateRTR
	for name, change := range map[string]func(a *QPAttr, m *QPAttrMask){
		"missing": func(a *QPAttr, m *QPAttrMask) { *m &^= QPRQPSN },
		"extra":   func(a *QPAttr, m *QPAttrMask) { *m |= QPTimeout },
		"mtu":     func(a *QPAttr, m *QPAttrMask) { a.PathMTU = MTU2048 },
		"no mtu":  func(a *QPAttr, m *QPAttrMask) { a.PathMTU = 0 },
		"psn":     func(a *QPAttr, m *QPAttrMask) { a.RQPSN = 1 << 24 },
		"qpn":     func(a *QPAttr, m *QPAttrMask) { a.DestQPN = 1 << 24 },
		"atomics": func(a *QPAttr, m *QPAttrMask) { a.MaxDestRDAtomic = 17 },
		"timer":   func(a *QPAttr, m *QPAttrMask) { a.MinRNRTimer = 32 },
	} {
		a, m := good, toRTR
		change(&a, &m)
		if err := e.qp.Modify(p.now, &a, m); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := e.qp.Modify(p.now, &good, toRTR); err != nil {
		t.Fatal(err)
	}
}

// TestPostErrors lists what PostSend refuses.
func TestPostErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		typ  QPType
		wr   SendWR
		rule string
	}{
		{"READ on UC", UC, SendWR{Opcode: WRRDMARead}, "type"},
		{"WRITE on UD", UD, SendWR{Opcode: WRRDMAWrite}, "type"},
		{"no AH", UD, SendWR{Opcode: WRSend}, "address handle"},
		{"unknown", RC, SendWR{Opcode: 99}, "type"},
		{"long list", RC, SendWR{Opcode: WRSend, SGList: make([]SGE, 5)}, "MaxSendSGE"},
		{"long inline", RC, SendWR{Opcode: WRSend, Flags: SendInline, Inline: make([]byte, 129)}, "MaxInlineData"},
		{"inline READ", RC, SendWR{Opcode: WRRDMARead, Flags: SendInline}, "inline"},
		{"short atomic", RC, SendWR{Opcode: WRAtomicFetchAndAdd, SGList: make([]SGE, 1)}, "8 bytes"},
		{"3 GiB", RC, SendWR{Opcode: WRSend, SGList: []SGE{{Length: 3 << 30}}}, "2 GiB"},
		{"bind nothing", RC, SendWR{Opcode: WRBindMW}, "window"},
	} {
		_, a, _ := connected(t, c.typ)
		n, err := a.qp.PostSend(1, []SendWR{c.wr, {}})
		if n != 0 || !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), c.rule) {
			t.Errorf("%s: %d, %v", c.name, n, err)
		}
	}
	p := newPair(t)
	e := p.end(0, RC)
	if _, err := e.qp.PostSend(1, make([]SendWR, 1)); !errors.Is(err, syscall.EINVAL) {
		t.Error("in RESET:", err)
	}
	if _, err := e.qp.PostRecv(make([]RecvWR, 1)); !errors.Is(err, syscall.EINVAL) {
		t.Error("receive in RESET:", err)
	}
	_, a, _ := connected(t, RC)
	a.qp.state = StateSQD // nothing is sent
	wrs := make([]SendWR, 300)
	for i := range wrs {
		wrs[i].Opcode = WRSend
	}
	if n, err := a.qp.PostSend(1, wrs); n != 256 || !errors.Is(err, syscall.ENOMEM) {
		t.Error("full:", n, err)
	}
	if n, err := a.qp.PostRecv(make([]RecvWR, 300)); n != 256 || !errors.Is(err, syscall.ENOMEM) {
		t.Error("full receive queue:", n, err)
	}
}

func (p *pair) events(i int) (s []string) {
	for {
		e, ok := p.host[i].NextEvent()
		if !ok {
			return s
		}
		s = append(s, e.Type.String())
	}
}

func TestErrorFlushes(t *testing.T) {
	p, a, b := connected(t, RC)
	b.recv(RecvWR{WRID: 1}, RecvWR{WRID: 2})
	a.post(SendWR{WRID: 3, Opcode: WRSend}, SendWR{WRID: 4, Opcode: WRSend})
	for _, e := range []*end{a, b} {
		if err := e.qp.Modify(p.now, &QPAttr{State: StateErr}, QPState); err != nil {
			t.Fatal(err)
		}
	}
	a.post(SendWR{WRID: 5, Opcode: WRSend})
	b.recv(RecvWR{WRID: 6})
	a.expect(WC{WRID: 3, Status: StatusWRFlushErr}, WC{WRID: 4, Status: StatusWRFlushErr}, WC{WRID: 5, Status: StatusWRFlushErr})
	b.expect(WC{WRID: 1, Status: StatusWRFlushErr}, WC{WRID: 2, Status: StatusWRFlushErr}, WC{WRID: 6, Status: StatusWRFlushErr})
	p.run()
	if p.host[0].counts[PacketsSent] != 0 {
		t.Error("sends in ERR")
	}
	// From RESET the queue pairs can be connected again.
	for _, e := range []*end{a, b} {
		if err := e.qp.Modify(p.now, &QPAttr{State: StateReset}, QPState); err != nil {
			t.Fatal(err)
		}
	}
	a.connect(b, attrs, 1, 2)
	b.connect(a, attrs, 2, 1)
	b.recv(RecvWR{WRID: 1})
	a.post(SendWR{WRID: 3, Opcode: WRSend, Flags: SendSignaled})
	p.run()
	a.expect(WC{WRID: 3})
	b.expect(WC{WRID: 1, Opcode: WCRecv})
}

func TestSendQueueIsDrained(t *testing.T) {
	p, a, b := connected(t, RC)
	b.recv(RecvWR{WRID: 1, SGList: []SGE{b.mr.SGE(0, 5000)}}, RecvWR{WRID: 2})
	a.post(SendWR{WRID: 3, Opcode: WRSend, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(0, 5000)}}, SendWR{WRID: 4, Opcode: WRSend, Flags: SendSignaled})
	var frame [2048]byte
	a.qp.Emit(p.now, frame[:]) // is lost; the message has begun
	if err := a.qp.Modify(p.now, &QPAttr{State: StateSQD, EnSQDAsyncNotify: true}, QPState|QPEnSQDAsyncNotify); err != nil {
		t.Fatal(err)
	}
	if !a.qp.Query().SQDraining || p.events(0) != nil {
		t.Error("drained before the message was acknowledged")
	}
	p.run()
	a.expect(WC{WRID: 3})
	if got := fmt.Sprint(p.events(0)); got != "[send queue drained]" || a.qp.Query().SQDraining {
		t.Error(got)
	}
	if err := a.qp.Modify(p.now, &QPAttr{State: StateRTS}, QPState); err != nil {
		t.Fatal(err)
	}
	p.run()
	a.expect(WC{WRID: 4})
}

// TestSendQueueError: a local error of an unreliable queue pair stops its send queue only.
func TestSendQueueError(t *testing.T) {
	for _, typ := range []QPType{UC, UD} {
		p, a, b := connected(t, typ)
		ah := testutil.Value(a.pd.CreateAH(AHAttr{Dst: p.host[1].cfg.Addr}))
		wr := SendWR{WRID: 1, Opcode: WRSend, AH: ah, RemoteQPN: b.qp.num, RemoteQKey: attrs.QKey}
		bad := wr
		bad.WRID, bad.SGList = 2, []SGE{{Addr: 1, Length: 5, LKey: 77}}
		a.post(wr, bad, wr)
		p.run()
		a.expect(WC{WRID: 2, Status: StatusLocProtErr}, WC{WRID: 1, Status: StatusWRFlushErr})
		if a.qp.State() != StateSQE {
			t.Fatal(typ, a.qp.State())
		}
		a.recv(RecvWR{WRID: 9, SGList: []SGE{a.mr.SGE(0, 100)}})
		back := wr
		back.AH, back.RemoteQPN = testutil.Value(b.pd.CreateAH(AHAttr{Dst: p.host[0].cfg.Addr})), a.qp.num
		b.post(back)
		p.run()
		if a.cq.Len() != 1 {
			t.Errorf("%v: receives nothing in SQE", typ)
		}
		if err := a.qp.Modify(p.now, &QPAttr{State: StateRTS}, QPState); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDatagram(t *testing.T) {
	p, a, b := connected(t, UD)
	ah := testutil.Value(a.pd.CreateAH(AHAttr{Dst: p.host[1].cfg.Addr}))
	b.recv(RecvWR{WRID: 1, SGList: []SGE{b.mr.SGE(0, 1100)}})
	copy(a.buf, "datagram")
	a.post(SendWR{WRID: 2, Opcode: WRSendWithImm, ImmData: 5, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(0, 1024)}, AH: ah, RemoteQPN: b.qp.num, RemoteQKey: attrs.QKey})
	ah.Close()
	p.run()
	a.expect(WC{WRID: 2})
	var wc [1]WC
	if b.cq.Poll(wc[:]) != 1 || wc[0].SrcQP != a.qp.num || wc[0].ByteLen != 1064 || wc[0].ImmData != 5 || wc[0].Flags != WCGRH|WCWithImm {
		t.Errorf("%+v", wc)
	}
	if string(b.buf[40:48]) != "datagram" || [4]byte(b.buf[32:36]) != p.host[0].cfg.Addr {
		t.Errorf("%x", b.buf[:48])
	}
	if _, err := a.qp.PostSend(p.now, []SendWR{{Opcode: WRSend, AH: ah, SGList: []SGE{a.mr.SGE(0, 1025)}}}); !errors.Is(err, syscall.EINVAL) {
		t.Error("longer than the MTU:", err)
	}
}

func TestSRQ(t *testing.T) {
	p := newPair(t)
	a, b := p.end(0, RC), p.end(1, RC)
	srq := testutil.Value(b.pd.CreateSRQ(8, 1))
	b.qp.Close()
	b.qp = testutil.Value(b.d.CreateQP(b.pd, QPInit{SendCQ: b.cq, RecvCQ: b.cq, SRQ: srq}))
	a.connect(b, attrs, 1, 2)
	b.connect(a, attrs, 2, 1)
	if _, err := b.qp.PostRecv(make([]RecvWR, 1)); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	for i := range 3 {
		if _, err := srq.PostRecv(RecvWR{WRID: uint64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := srq.SetLimit(2); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		a.post(SendWR{Opcode: WRSend})
		p.run()
		got, want := fmt.Sprint(p.events(1)), [3]string{"[]", "[SRQ limit reached]", "[]"}[i]
		if got != want {
			t.Errorf("after %d: %s, want %s", i+1, got, want)
		}
	}
	b.expect(WC{WRID: 0, Opcode: WCRecv}, WC{WRID: 1, Opcode: WCRecv}, WC{WRID: 2, Opcode: WCRecv})
	srq.PostRecv(make([]RecvWR, 8)...)
	if n, err := srq.PostRecv(make([]RecvWR, 1)...); n != 0 || !errors.Is(err, syscall.ENOMEM) {
		t.Error("full:", n, err)
	}
	b.qp.Modify(p.now, &QPAttr{State: StateErr}, QPState)
	b.expect()
	if got := fmt.Sprint(p.events(1)); got != "[last WQE reached]" {
		t.Error(got)
	}
	if err := srq.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
}

func TestNotification(t *testing.T) {
	p, a, b := connected(t, RC)
	b.recv(RecvWR{}, RecvWR{}, RecvWR{}, RecvWR{})
	p.events(1)
	for i, c := range []struct {
		arm, solicitedOnly, solicited bool
		want                          string
	}{
		{false, false, true, "[]"}, {true, false, false, "[completion]"}, {true, true, false, "[]"}, {false, false, true, "[completion]"},
	} {
		if c.arm {
			b.cq.ReqNotify(c.solicitedOnly)
		}
		wr := SendWR{Opcode: WRSend}
		if c.solicited {
			wr.Flags = SendSolicited
		}
		a.post(wr)
		p.run()
		if got := fmt.Sprint(p.events(1)); got != c.want {
			t.Errorf("%d: %s, want %s", i, got, c.want)
		}
	}
}

func TestCQOverrun(t *testing.T) {
	for _, status := range []Status{StatusSuccess, StatusRemAccessErr} {
		p, a, b := connected(t, RC)
		a.qp.Close()
		a.cq = testutil.Value(a.d.CreateCQ(2))
		a.qp = testutil.Value(a.d.CreateQP(a.pd, QPInit{SendCQ: a.cq, RecvCQ: a.cq, Cap: QPCap{MaxSendWR: 8, MaxSendSGE: 1}, SqSigAll: true}))
		b.qp.Modify(p.now, &QPAttr{State: StateReset}, QPState)
		a.connect(b, attrs, 1, 2)
		b.connect(a, attrs, 2, 1)
		b.recv(RecvWR{}, RecvWR{}, RecvWR{}, RecvWR{})
		wr := SendWR{Opcode: WRSend}
		last := wr
		if status != StatusSuccess {
			last = SendWR{Opcode: WRRDMAWrite, RKey: 1, SGList: []SGE{a.mr.SGE(0, 1)}}
		}
		a.post(wr, wr, wr, last)
		p.run()
		if got := fmt.Sprint(p.events(0)); got != "[CQ error]" {
			t.Error(got)
		}
		if a.qp.State() != StateErr || a.cq.Len() != 2 || a.qp.sq.len() != 0 {
			t.Error(a.qp.State(), a.cq.Len(), a.qp.sq.len())
		}
	}
}

func TestDestroyInUse(t *testing.T) {
	p, a, _ := connected(t, RC)
	if err := a.cq.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	if err := a.pd.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	a.post(SendWR{Opcode: WRSend, Flags: SendSignaled})
	a.qp.Close()
	a.qp.Close()
	if p.host[0].Ready(false) != nil || p.host[0].Deadline() != Never || len(p.host[0].qps) != 0 {
		t.Error("a destroyed queue pair is ready or has a timer")
	}
	if err := errors.Join(a.cq.Close(), a.mr.Close(), a.pd.Close()); err != nil {
		t.Error(err)
	}
}

func TestLimits(t *testing.T) {
	d := newDevice(1, Config{MaxQP: 1, MaxKeys: 1, MaxCQE: 10, MaxQPWR: 10})
	pd := d.AllocPD()
	if _, err := d.CreateCQ(11); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	cq := testutil.Value(d.CreateCQ(10))
	for _, i := range []QPInit{{}, {Type: 9, SendCQ: cq, RecvCQ: cq}, {SendCQ: cq, RecvCQ: cq, Cap: QPCap{MaxSendWR: 11}},
		{SendCQ: cq, RecvCQ: cq, Cap: QPCap{MaxSendSGE: 5}}, {SendCQ: cq, RecvCQ: cq, Cap: QPCap{MaxInlineData: 1 << 20}}} {
		if _, err := d.CreateQP(pd, i); !errors.Is(err, syscall.EINVAL) {
			t.Error(err)
		}
	}
	testutil.Value(d.CreateQP(pd, QPInit{Type: GSI, SendCQ: cq, RecvCQ: cq}))
	if _, err := d.CreateQP(pd, QPInit{SendCQ: cq, RecvCQ: cq}); !errors.Is(err, syscall.ENOMEM) {
		t.Error(err)
	}
	testutil.Value(pd.RegMR(make([]byte, 1), 0))
	if _, err := pd.RegMR(make([]byte, 1), 0); !errors.Is(err, syscall.ENOMEM) {
		t.Error(err)
	}
}

func TestActiveMTU(t *testing.T) {
	for link, want := range map[int]MTU{100: 0, 576: MTU256, 1500: MTU1024, 9000: MTU4096} {
		if got := newDevice(1, Config{LinkMTU: link}).ActiveMTU(); got != want {
			t.Errorf("link of %d: MTU %d, want %d", link, got, want)
		}
	}
}

func TestRNRTime(t *testing.T) {
	for code, want := range map[uint8]time.Duration{0: 655360 * time.Microsecond, 1: 10 * time.Microsecond, 12: 640 * time.Microsecond, 14: 1280 * time.Microsecond, 31: 491520 * time.Microsecond} {
		if got := RNRTime(code); got != want {
			t.Errorf("code %d: %v, want %v", code, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		StatusRemAccessErr.String(): "remote access error", StatusWRFlushErr.String(): "Work Request Flushed Error",
		StatusRetryExcErr.String(): "transport retry counter exceeded", StatusGeneralErr.String(): "general error",
		StateRTS.String(): "RTS", WRSendWithInv.String(): "SEND_WITH_INV", CQOverruns.String(): "cq_overruns",
		(QPState | QPAV).String(): "QPState|QPAV", WCLocalInv.String(): "LOCAL_INV", WCRecv.String(): "RECV", WCRecvRDMAWithImm.String(): "RECV_RDMA_WITH_IMM", Status(99).String(): "unknown (99)", BadQKey.String(): "bad_qkey",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	n := 0
	newDevice(1, Config{}).EachCounter(func(string, uint64) { n++ })
	if n != int(numberOfCounts) || WCRecv != 128 || WCRecvRDMAWithImm != 129 || wire.OpCNP != 0x81 {
		t.Error(n, WCRecv, WCRecvRDMAWithImm)
	}
}
