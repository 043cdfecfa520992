package verbs

import (
	"fmt"
	"net/netip"
	"syscall"

	"github.com/unet-go/unet/proto/rdma"
	"github.com/unet-go/unet/proto/rdma/cm"
	"github.com/unet-go/unet/wire"
)

// QP is a queue pair (ibv_qp).
type QP struct {
	ctx    *Context
	qp     *rdma.QP
	srq    bool
	psn    uint32
	conn   *Conn // of the connection manager; nil: none
	closed bool
}

// QPInit is what CreateQP needs (ibv_qp_init_attr).
type QPInit struct {
	Type     QPType
	SendCQ   *CQ
	RecvCQ   *CQ
	SRQ      *SRQ // nil: a receive queue of its own
	Cap      QPCap
	SqSigAll bool // every work request completes with a WC
}

// CreateQP makes a queue pair of a domain, in RESET. Errors: EINVAL for a size beyond the context's
// limits, or objects of another context or domain; ENOMEM beyond Config.MaxQP.
func (c *Context) CreateQP(pd *PD, init QPInit) (*QP, error) {
	if init.SendCQ == nil || init.RecvCQ == nil {
		return nil, c.opError("create QP", fmt.Errorf("no SendCQ or no RecvCQ: %w", syscall.EINVAL))
	}
	c.port.Lock()
	defer c.port.Unlock()
	if err := c.use("create QP", init.SendCQ.closed || init.RecvCQ.closed); err != nil {
		return nil, err
	}
	qp, err := c.dev.CreateQP(pd, rdma.QPInit{
		Type: init.Type, SendCQ: init.SendCQ.cq, RecvCQ: init.RecvCQ.cq, SRQ: init.SRQ, Cap: init.Cap, SqSigAll: init.SqSigAll,
	})
	if err != nil {
		return nil, err
	}
	q := &QP{ctx: c, qp: qp, srq: init.SRQ != nil, psn: c.dev.RandomPSN()}
	qp.Data = q
	return q, nil
}

// Num is the queue pair's number, of 24 bits.
func (q *QP) Num() uint32 { return q.qp.Num() }

// PSN is an unpredictable first packet sequence number, which Connect and the connection
// manager use.
func (q *QP) PSN() uint32 { return q.psn }

// Modify sets the attributes that mask names, and the state if QPState is among them
// (ibv_modify_qp). The error for a change that is not legal is EINVAL with the rule.
func (q *QP) Modify(attr QPAttr, mask QPAttrMask) error {
	c := q.ctx
	c.port.Lock()
	defer c.port.Unlock()
	if err := c.use("modify QP", q.closed); err != nil {
		return err
	}
	c.release()
	err := q.modify(&attr, mask)
	c.port.Run()
	return err
}

func (q *QP) modify(attr *QPAttr, mask QPAttrMask) error {
	return q.qp.Modify(rdma.Time(q.ctx.port.Now()), attr, mask)
}

// Query is the queue pair's attributes (ibv_query_qp).
func (q *QP) Query() QPAttr {
	q.ctx.port.Lock()
	defer q.ctx.port.Unlock()
	return q.qp.Query()
}

// State is the queue pair's state.
func (q *QP) State() State {
	q.ctx.port.Lock()
	defer q.ctx.port.Unlock()
	return q.qp.State()
}

// Init moves a queue pair of RC or UC from RESET to INIT, in which receives can be posted.
// access is what the peer may do.
func (q *QP) Init(access Access) error {
	return q.Modify(QPAttr{State: StateInit, AccessFlags: access}, QPState|QPAccessFlags)
}

// Peer is the other end of a queue pair, as two programs exchange it by hand.
type Peer struct {
	Addr netip.Addr
	QPN  uint32
	PSN  uint32 // of its first packet
}

// Local is the Peer that the other end needs.
func (q *QP) Local() Peer { return Peer{q.ctx.Addr(), q.qp.Num(), q.psn} }

// Connect moves a queue pair of RC or UC from INIT to RTS, with the path MTU of the link and
// the usual timeouts: 67 ms for an acknowledgment, 7 retries, and retries without end
// while the peer has no receive.
func (q *QP) Connect(peer Peer) error {
	c := q.ctx
	to := peer.Addr.Unmap()
	if !to.Is4() {
		return c.opError("connect", errNotIPv4)
	}
	c.port.Lock()
	defer c.port.Unlock()
	if err := c.use("connect", q.closed); err != nil {
		return err
	}
	depth := uint8(min(c.dev.Config().MaxRDAtomic, 255))
	err := q.toRTS(&QPAttr{
		AH: AHAttr{Dst: to.As4()}, DestQPN: peer.QPN, RQPSN: peer.PSN, SQPSN: q.psn, PathMTU: c.dev.ActiveMTU(),
		Timeout: 14, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: minRNRTimer, MaxRDAtomic: depth, MaxDestRDAtomic: depth,
	})
	c.port.Run()
	return err
}

// minRNRTimer is 0.64 ms, as in rdma-core's programs.
const minRNRTimer = 12

// toRTS moves a queue pair from INIT to RTS.
func (q *QP) toRTS(a *QPAttr) error {
	rtr, rts := QPState|QPAV|QPPathMTU|QPDestQPN|QPRQPSN, QPState|QPSQPSN
	if q.qp.Type() == RC {
		rtr |= QPMaxDestRDAtomic | QPMinRNRTimer
		rts |= QPTimeout | QPRetryCnt | QPRNRRetry | QPMaxQPRDAtomic
	}
	a.State = StateRTR
	if err := q.modify(a, rtr); err != nil {
		return err
	}
	a.State = StateRTS
	return q.modify(a, rts)
}

// PostSend adds work requests, in order, and returns how many (ibv_post_send). All of them
// are sent with one kick. The error names the queue pair and the rule: the queue is full
// (ENOMEM), the state, the list's length or the inline data's. What is wrong with memory
// comes as a completion.
func (q *QP) PostSend(wrs ...SendWR) (int, error) {
	p := q.ctx.port
	p.Lock()
	defer p.Unlock()
	if err := q.ctx.use("post send", q.closed); err != nil {
		return 0, err
	}
	n, err := q.qp.PostSend(rdma.Time(p.Now()), wrs)
	if n > 0 {
		p.Run()
	}
	return n, err
}

// PostRecv adds receives, in order, and returns how many (ibv_post_recv). The error is
// as with PostSend.
func (q *QP) PostRecv(wrs ...RecvWR) (int, error) {
	p := q.ctx.port
	p.Lock()
	defer p.Unlock()
	if err := q.ctx.use("post receive", q.closed); err != nil {
		return 0, err
	}
	return q.qp.PostRecv(wrs)
}

// Close ends the queue pair (ibv_destroy_qp). Its work requests get no completions. While its context is
// being closed, and after that, Close ends it too, and returns ErrClosed.
func (q *QP) Close() error {
	q.ctx.port.Lock()
	defer q.ctx.port.Unlock()
	err := q.ctx.use("close QP", q.closed)
	if q.closed {
		return err
	}
	q.closed = true
	q.ctx.release()
	if q.conn != nil {
		q.conn.close()
	}
	q.qp.Close()
	return err
}

// prepare moves a queue pair in RESET to INIT, for the connection manager.
func (q *QP) prepare(c *Context) error {
	rule := ""
	switch {
	case q.closed:
		return ErrClosed
	case q.ctx != c:
		rule = "it belongs to another context"
	case q.qp.Type() != RC && q.qp.Type() != UC:
		rule = "it is neither RC nor UC"
	case q.conn != nil:
		rule = "it is connected or being connected"
	case q.qp.State() == StateReset:
		return q.modify(&QPAttr{State: StateInit}, QPState|QPAccessFlags)
	case q.qp.State() != StateInit:
		rule = fmt.Sprintf("it is in %v, neither in RESET nor in INIT", q.qp.State())
	default:
		return nil
	}
	return fmt.Errorf("QP %#x: %s: %w", q.qp.Num(), rule, syscall.EINVAL)
}

// hold keeps what is posted, or sends it.
func (q *QP) hold(hold bool) { q.qp.HoldSends(rdma.Time(q.ctx.port.Now()), hold) }

// cmParam is what the connection manager says of the queue pair.
func (q *QP) cmParam(p *ConnParam) cm.Param {
	most := uint8(min(q.ctx.dev.Config().MaxRDAtomic, 255))
	transport := wire.CMTransport(wire.CMTransportRC)
	if q.qp.Type() == UC {
		transport = wire.CMTransportUC
	}
	return cm.Param{
		QPN: q.qp.Num(), PSN: q.psn, Transport: transport, SRQ: q.srq, Private: p.PrivateData,
		ResponderResources: min(p.ResponderResources, most), InitiatorDepth: min(p.InitiatorDepth, most),
		RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetryCount,
	}
}

// toPeer moves the queue pair to RTS with what the connection manager has agreed on.
func (q *QP) toPeer(to [4]byte, a cm.Attr) error {
	return q.toRTS(&QPAttr{
		AH: AHAttr{Dst: to}, DestQPN: a.DestQPN, RQPSN: a.RQPSN, SQPSN: a.SQPSN, PathMTU: MTU(a.PathMTU),
		Timeout: a.Timeout, RetryCnt: a.RetryCount, RNRRetry: a.RNRRetry, MinRNRTimer: minRNRTimer,
		MaxRDAtomic: a.MaxRdAtomic, MaxDestRDAtomic: a.MaxDestRdAtomic,
	})
}
