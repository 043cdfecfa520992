package rdma

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/unet-go/unet/internal/timerheap"
	"github.com/unet-go/unet/wire"
)

const (
	psnMask     = 1<<24 - 1
	defaultPKey = 0xffff
	// packetOverhead is the most that stands around the payload of a packet of full length, in bytes.
	packetOverhead = wire.RoCEOffset + wire.MaxRoCEHeader + 3 + wire.ICRCLen
)

// psnDiff is a - b, from -1<<23 to 1<<23 - 1.
func psnDiff(a, b uint32) int32 { return int32((a-b)<<8) >> 8 }

func psnAdd(a, n uint32) uint32 { return (a + n) & psnMask }

// AHAttr is the address vector of packets (ibv_ah_attr).
type AHAttr struct {
	Dst          [4]byte // the GID is ::ffff:Dst
	TrafficClass uint8   // the IP type of service; with its ECN bits 2 (ECT(0)) routers may mark, and the peer must answer with CNPs
}

// AH is an address handle (ibv_ah): where a UD work request goes.
type AH struct {
	d    *Device
	pd   *PD // nil after Close
	flow wire.RoCEFlow
}

// CreateAH makes an address handle.
func (p *PD) CreateAH(a AHAttr) (*AH, error) {
	p.d.driver.Lock()
	defer p.d.driver.Unlock()
	if err := p.d.driver.Use("create AH", p.closed); err != nil {
		return nil, err
	}
	p.uses++
	return &AH{d: p.d, pd: p, flow: p.d.flow(a)}, nil
}

// Close ends the handle. Work requests that have been posted with it are sent all the same.
func (a *AH) Close() error {
	a.d.driver.Lock()
	defer a.d.driver.Unlock()
	if err := a.d.driver.Use("close AH", a.pd == nil); err != nil {
		return err
	}
	a.pd.uses--
	a.pd = nil
	return nil
}

func (d *Device) flow(a AHAttr) wire.RoCEFlow {
	return wire.RoCEFlow{Src: d.cfg.Addr, Dst: a.Dst, SrcPort: wire.RoCEPort, TOS: a.TrafficClass}
}

// QPCap are the sizes of a queue pair (ibv_qp_cap).
type QPCap struct {
	MaxSendWR     int
	MaxRecvWR     int // 0 with an SRQ
	MaxSendSGE    int
	MaxRecvSGE    int
	MaxInlineData int // bytes
}

// MaxInline is the greatest QPCap.MaxInlineData.
const MaxInline = 1024

// QPInit is what CreateQP needs (ibv_qp_init_attr).
type QPInit struct {
	Type     QPType
	SendCQ   *CQ
	RecvCQ   *CQ
	SRQ      *SRQ // nil: a receive queue of its own
	Cap      QPCap
	SqSigAll bool // every work request completes with a WC
}

// QPAttrMask names fields of a [QPAttr] (ibv_qp_attr_mask).
type QPAttrMask uint16

const (
	QPState QPAttrMask = 1 << iota
	QPEnSQDAsyncNotify
	QPAccessFlags
	QPQKey
	QPAV
	QPPathMTU
	QPTimeout
	QPRetryCnt
	QPRNRRetry
	QPRQPSN
	QPMaxQPRDAtomic
	QPMinRNRTimer
	QPSQPSN
	QPMaxDestRDAtomic
	QPDestQPN
)

var maskNames = [...]string{"QPState", "QPEnSQDAsyncNotify", "QPAccessFlags", "QPQKey", "QPAV", "QPPathMTU", "QPTimeout",
	"QPRetryCnt", "QPRNRRetry", "QPRQPSN", "QPMaxQPRDAtomic", "QPMinRNRTimer", "QPSQPSN", "QPMaxDestRDAtomic", "QPDestQPN"}

func (m QPAttrMask) String() (s string) {
	for i, n := range maskNames {
		if m&(1<<i) != 0 {
			s += "|" + n
		}
	}
	return s[min(1, len(s)):]
}

// QPAttr are the attributes of a queue pair (ibv_qp_attr).
type QPAttr struct {
	State            State
	EnSQDAsyncNotify bool   // EventSQDrained when the send queue has drained
	AccessFlags      Access // what the peer may do: remote write, read, atomic
	QKey             uint32 // UD
	AH               AHAttr
	PathMTU          MTU
	Timeout          uint8 // ACK timeout of at least 4.096 µs << Timeout; 0: none. 0 to 31
	RetryCnt         uint8 // 0 to 7
	RNRRetry         uint8 // 0 to 7; 7: without end
	RQPSN            uint32
	MaxRDAtomic      uint8 // READs and atomics of this side in flight
	MinRNRTimer      uint8 // code of the time for which the peer is to wait, see [RNRTime]. 0 to 31
	SQPSN            uint32
	MaxDestRDAtomic  uint8 // READs and atomics of the peer in flight
	DestQPN          uint32

	// Query only.
	SQDraining bool
	Cap        QPCap
}

// rnrTimes are in units of 10 µs, but for code 0.
var rnrTimes = [32]uint16{0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
	1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152}

// RNRTime is the time of an RNR timer code: 10 µs (1) to 491.52 ms (31), 655.36 ms (0) (IBA,
// table 45).
func RNRTime(code uint8) time.Duration {
	if code &= 31; code == 0 {
		return 655360 * time.Microsecond
	}
	return time.Duration(rnrTimes[code]) * 10 * time.Microsecond
}

// QP is a queue pair.
type QP struct {
	Data any // the driver's

	d              *Device
	pd             *PD
	typ            QPType
	transport      wire.Opcode
	state          State
	num            uint32
	attr           QPAttr
	mtu            uint32 // bytes
	flow           wire.RoCEFlow
	sendCQ, recvCQ *CQ
	srq            *SRQ
	sqSigAll       bool
	established    bool // a packet has arrived since RTR
	drained        bool // in SQD: EventSQDrained has been raised, or is not wanted
	closed         bool

	sq   sendQueue
	rq   recvQueue
	req  requester
	resp responder

	cnpDue    bool
	cnpAt     Time // the last CNP was sent then
	responded bool // a response was emitted last: requests have their turn
	overtaken bool // a request was emitted since the ACK is due

	sendable             bool // requestReady, as of the last change
	ready                bool
	nextReady            *QP
	timer                timerheap.Timer[Time, QP] // at deadline or before
	errSQFull, errRQFull error
	events
}

// CreateQP makes a queue pair of a domain, in RESET. Errors: EINVAL for sizes beyond the device's limits, or
// objects of another device or domain; ENOMEM beyond Config.MaxQP; EBUSY for a second GSI.
func (d *Device) CreateQP(p *PD, init QPInit) (*QP, error) {
	closed := p.d == d && (p.closed || init.SRQ != nil && init.SRQ.pd == p && init.SRQ.closed)
	if err := d.driver.Use("create QP", closed); err != nil {
		return nil, err
	}
	c, cfg := init.Cap, &d.cfg
	bad := func(rule string) (*QP, error) {
		return nil, fmt.Errorf("rdma: create QP: %s: %w", rule, syscall.EINVAL)
	}
	switch {
	case init.Type > GSI:
		return bad("unknown type")
	case p.d != d:
		return bad("the PD is of another device")
	case init.SendCQ == nil || init.RecvCQ == nil || init.SendCQ.d != d || init.RecvCQ.d != d:
		return bad("two CQs of the device are needed")
	case init.SRQ != nil && init.SRQ.pd != p:
		return bad("the SRQ is of another PD")
	case init.SRQ != nil && c.MaxRecvWR != 0:
		return bad("a receive queue of its own beside an SRQ")
	case c.MaxSendWR < 0 || c.MaxSendWR > cfg.MaxQPWR || c.MaxRecvWR < 0 || c.MaxRecvWR > cfg.MaxQPWR:
		return bad(fmt.Sprintf("%d sends and %d receives: at most %d are allowed", c.MaxSendWR, c.MaxRecvWR, cfg.MaxQPWR))
	case c.MaxSendSGE < 0 || c.MaxSendSGE > MaxSGE || c.MaxRecvSGE < 0 || c.MaxRecvSGE > MaxSGE:
		return bad(fmt.Sprintf("lists of %d and %d pieces: at most %d are allowed", c.MaxSendSGE, c.MaxRecvSGE, MaxSGE))
	case c.MaxInlineData < 0 || c.MaxInlineData > MaxInline:
		return bad(fmt.Sprintf("%d bytes of inline data: at most %d are allowed", c.MaxInlineData, MaxInline))
	}
	q := &QP{d: d, pd: p, typ: init.Type, sendCQ: init.SendCQ, recvCQ: init.RecvCQ, srq: init.SRQ, sqSigAll: init.SqSigAll}
	q.timer.Init(q)
	q.transport = [...]wire.Opcode{wire.TransportRC, wire.TransportUC, wire.TransportUD, wire.TransportUD}[init.Type]
	q.attr.Cap = c
	q.events.of.QP = q
	q.sq.init(c)
	q.rq.init(c.MaxRecvWR, c.MaxRecvSGE)
	if err := d.addQP(q); err != nil {
		return nil, err
	}
	q.errSQFull = fmt.Errorf("rdma: QP %#x: the send queue is full (%d work requests): %w", q.num, c.MaxSendWR, syscall.ENOMEM)
	q.errRQFull = fmt.Errorf("rdma: QP %#x: the receive queue is full (%d work requests): %w", q.num, c.MaxRecvWR, syscall.ENOMEM)
	p.uses++
	q.sendCQ.uses++
	q.recvCQ.uses++
	if q.srq != nil {
		q.srq.uses++
	}
	q.reset()
	return q, nil
}

// Num is the queue pair's number.
func (q *QP) Num() uint32 { return q.num }

// Type is the transport service.
func (q *QP) Type() QPType { return q.typ }

// State is the queue pair's state.
func (q *QP) State() State { return q.state }

// Close ends the queue pair. Its work requests have no completions. Windows that are bound on
// it are unbound.
func (q *QP) Close() {
	if q.closed {
		return
	}
	d := q.d
	q.reset()
	q.closed = true
	delete(d.qps, q.num)
	d.all = slices.DeleteFunc(d.all, func(o *QP) bool { return o == q })
	if d.last == q {
		d.last = nil
	}
	q.pending = 0
	for _, r := range d.keys {
		if r.qp == q {
			r.unbind()
		}
	}
	q.pd.uses--
	q.sendCQ.uses--
	q.recvCQ.uses--
	if q.srq != nil {
		q.srq.uses--
	}
}

// move is a legal change of state, with the attributes that it needs and may have, by type.
type move struct {
	from, to           State
	required, optional [3]QPAttrMask // RC, UC, UD
}

var moves = []move{
	{StateReset, StateInit, [3]QPAttrMask{QPAccessFlags, QPAccessFlags, QPQKey}, [3]QPAttrMask{}},
	{StateInit, StateInit, [3]QPAttrMask{}, [3]QPAttrMask{QPAccessFlags, QPAccessFlags, QPQKey}},
	{StateInit, StateRTR, [3]QPAttrMask{
		QPAV | QPPathMTU | QPDestQPN | QPRQPSN | QPMaxDestRDAtomic | QPMinRNRTimer,
		QPAV | QPPathMTU | QPDestQPN | QPRQPSN,
	}, [3]QPAttrMask{QPAccessFlags, QPAccessFlags, QPQKey}},
	{StateRTR, StateRTS, [3]QPAttrMask{
		QPTimeout | QPRetryCnt | QPRNRRetry | QPSQPSN | QPMaxQPRDAtomic, QPSQPSN, QPSQPSN,
	}, [3]QPAttrMask{QPAccessFlags | QPMinRNRTimer, QPAccessFlags, QPQKey}},
	{StateRTS, StateRTS, [3]QPAttrMask{}, [3]QPAttrMask{QPAccessFlags | QPMinRNRTimer, QPAccessFlags, QPQKey}},
	{StateRTS, StateSQD, [3]QPAttrMask{}, [3]QPAttrMask{QPEnSQDAsyncNotify, QPEnSQDAsyncNotify, QPEnSQDAsyncNotify}},
	{StateSQD, StateRTS, [3]QPAttrMask{}, [3]QPAttrMask{QPAccessFlags | QPMinRNRTimer, QPAccessFlags, QPQKey}},
	{StateSQD, StateSQD, [3]QPAttrMask{}, [3]QPAttrMask{
		QPAV | QPTimeout | QPRetryCnt | QPRNRRetry | QPMaxQPRDAtomic | QPAccessFlags | QPMinRNRTimer, QPAV | QPAccessFlags, QPQKey,
	}},
	{StateSQE, StateRTS, [3]QPAttrMask{}, [3]QPAttrMask{0, QPAccessFlags, QPQKey}},
}

// Modify sets the attributes that mask names, and the state if QPState is among them. The
// queue pair is as before if it returns an error: EINVAL for a change of state or an attribute
// that is not legal, with the rule.
func (q *QP) Modify(now Time, a *QPAttr, mask QPAttrMask) error {
	to := q.state
	if mask&QPState != 0 {
		to = a.State
	}
	mask &^= QPState
	bad := func(rule string, args ...any) error {
		return fmt.Errorf("rdma: modify QP %#x from %v to %v: %s: %w", q.num, q.state, to, fmt.Sprintf(rule, args...), syscall.EINVAL)
	}
	if q.closed {
		return bad("it is closed")
	}
	if to == StateReset || to == StateErr {
		if mask != 0 {
			return bad("attributes %v are not allowed", mask)
		}
		if to == StateReset {
			q.reset()
		} else {
			q.enterError()
		}
		q.update(now)
		return nil
	}
	i := slices.IndexFunc(moves, func(m move) bool { return m.from == q.state && m.to == to && !(m.from == StateSQE && q.typ == RC) })
	if i < 0 {
		return bad("no such move")
	}
	t := min(q.typ, UD)
	m := moves[i]
	if missing := m.required[t] &^ mask; missing != 0 {
		return bad("attributes %v are missing", missing)
	}
	if extra := mask &^ (m.required[t] | m.optional[t]); extra != 0 {
		return bad("attributes %v are not allowed", extra)
	}
	if m.from == StateSQD && m.to == StateSQD && mask&QPAV != 0 && !q.idle() {
		return bad("the send queue has not drained")
	}
	for _, c := range []struct {
		bit   QPAttrMask
		valid bool
		rule  string
	}{
		{QPAccessFlags, a.AccessFlags&^(accessRemote|AccessLocalWrite) == 0, "unknown access flags"},
		{QPPathMTU, a.PathMTU >= MTU256 && a.PathMTU <= q.d.ActiveMTU(), "the path MTU is beyond the link's"},
		{QPTimeout, a.Timeout < 32, "Timeout is beyond 31"},
		{QPRetryCnt, a.RetryCnt < 8, "RetryCnt is beyond 7"},
		{QPRNRRetry, a.RNRRetry < 8, "RNRRetry is beyond 7"},
		{QPMinRNRTimer, a.MinRNRTimer < 32, "MinRNRTimer is beyond 31"},
		{QPRQPSN, a.RQPSN <= psnMask, "RQPSN has more than 24 bits"},
		{QPSQPSN, a.SQPSN <= psnMask, "SQPSN has more than 24 bits"},
		{QPDestQPN, a.DestQPN <= psnMask, "DestQPN has more than 24 bits"},
		{QPMaxQPRDAtomic, int(a.MaxRDAtomic) <= q.d.cfg.MaxRDAtomic, "MaxRDAtomic is beyond the device's"},
		{QPMaxDestRDAtomic, int(a.MaxDestRDAtomic) <= q.d.cfg.MaxRDAtomic, "MaxDestRDAtomic is beyond the device's"},
	} {
		if mask&c.bit != 0 && !c.valid {
			return bad("%s", c.rule)
		}
	}
	q.set(a, mask)
	from := q.state
	q.state, q.attr.State = to, to
	switch {
	case to == StateRTR && from != to:
		q.established = false
		q.initResponder()
	case to == StateRTS && from == StateRTR:
		q.initRequester()
	case to == StateSQD && from == StateRTS:
		q.drained = mask&QPEnSQDAsyncNotify == 0 || !a.EnSQDAsyncNotify
	}
	q.update(now)
	return nil
}

func (q *QP) set(a *QPAttr, mask QPAttrMask) {
	s := &q.attr
	for bit := QPEnSQDAsyncNotify; bit <= QPDestQPN; bit <<= 1 {
		switch mask & bit {
		case QPEnSQDAsyncNotify:
			s.EnSQDAsyncNotify = a.EnSQDAsyncNotify
		case QPAccessFlags:
			s.AccessFlags = a.AccessFlags
		case QPQKey:
			s.QKey = a.QKey
		case QPAV:
			s.AH = a.AH
			q.flow = q.d.flow(a.AH)
		case QPPathMTU:
			s.PathMTU = a.PathMTU
			q.mtu = uint32(a.PathMTU.Bytes())
		case QPTimeout:
			s.Timeout = a.Timeout
		case QPRetryCnt:
			s.RetryCnt = a.RetryCnt
		case QPRNRRetry:
			s.RNRRetry = a.RNRRetry
		case QPRQPSN:
			s.RQPSN = a.RQPSN
		case QPMaxQPRDAtomic:
			s.MaxRDAtomic = a.MaxRDAtomic
		case QPMinRNRTimer:
			s.MinRNRTimer = a.MinRNRTimer
		case QPSQPSN:
			s.SQPSN = a.SQPSN
		case QPMaxDestRDAtomic:
			s.MaxDestRDAtomic = a.MaxDestRDAtomic
		case QPDestQPN:
			s.DestQPN = a.DestQPN
		}
	}
}

// Query is the queue pair's attributes.
func (q *QP) Query() QPAttr {
	a := q.attr
	a.SQDraining = q.state == StateSQD && !q.idle()
	return a
}

// reset is RESET: the queues are empty, without completions.
func (q *QP) reset() {
	d, c := q.d, q.attr.Cap
	q.state = StateReset
	q.attr = QPAttr{Cap: c, PathMTU: d.ActiveMTU()}
	q.mtu = uint32(q.attr.PathMTU.Bytes())
	if q.typ == GSI {
		q.attr.QKey = wire.GSIQKey
	}
	q.sq.clear()
	q.rq.clear()
	q.req, q.resp = requester{}, responder{}
	q.req.clear()
	q.initPacing()
	q.cnpDue, q.cnpAt = false, 0
	q.changed()
	d.timers.Set(&q.timer, q.deadline())
}

// enterError is ERR: what is posted ends with StatusWRFlushErr.
func (q *QP) enterError() {
	if q.state == StateErr || q.state == StateReset {
		q.state = StateErr
		q.attr.State = StateErr
		return
	}
	q.state, q.attr.State = StateErr, StateErr
	q.req.clear()
	q.cnpDue = false
	q.stopResponder()
	q.flushSend()
	q.flushRecv()
}

// fatal is enterError for a reason that no work request can report.
func (q *QP) fatal(t EventType) {
	q.enterError()
	q.d.raise(&q.events, t)
}
