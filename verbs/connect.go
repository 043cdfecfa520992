package verbs

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/unet-go/unet/proto/rdma/cm"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// The most private data of the messages, in bytes. The peer sees zeros behind shorter data: the wire does
// not carry its length. A call with more returns an error, and has no other effect.
const (
	MaxDialPrivate   = wire.CMReqPrivate - wire.CMAddressLen // 56, of [Context.Dial]
	MaxAcceptPrivate = wire.CMRepPrivate                     // 196, of [Request.Accept]
	MaxRejectPrivate = wire.CMRejPrivate                     // 148, of [Request.Reject]
)

func checkPrivate(b []byte, most int) error {
	if len(b) > most {
		return fmt.Errorf("%w: %d bytes, %d at most", cm.ErrPrivateTooLong, len(b), most)
	}
	return nil
}

// ConnParam is what one side of a connection proposes: rdma_conn_param. 0 is 0: no READs, no
// retries. [DefaultConnParam] is what nil stands for in Dial.
type ConnParam struct {
	PrivateData        []byte // for the peer's application: up to MaxDialPrivate or MaxAcceptPrivate bytes
	ResponderResources uint8  // READs and atomics of the peer that are served at a time
	InitiatorDepth     uint8  // READs and atomics that are outstanding at a time
	RetryCount         uint8  // of the transport, 0 to 7; of Dial
	RNRRetryCount      uint8  // how often the peer repeats what finds no receive, 0 to 6; 7: without end
}

// DefaultConnParam is as many READs and atomics as a context permits, 7 retries, and retries without
// end while the peer has no receive.
func DefaultConnParam() ConnParam {
	return ConnParam{ResponderResources: 255, InitiatorDepth: 255, RetryCount: 7, RNRRetryCount: 7}
}

// RejectError is the error of a Dial that the peer has rejected, with the reason and the
// private data of its REJ.
type RejectError = cm.RejectError

// Conn is a connection that the connection manager has made: a queue pair in RTS whose peer
// is known.
type Conn struct {
	QP *QP

	ctx     *Context
	conn    *cm.Conn
	changed stack.Event
	state   connState
	private []byte
	cause   error // why it has ended
	done    chan struct{}
}

type connState uint8

const (
	connWaiting  connState = iota // for the answer to a REQ
	connAnswered                  // REP came
	connAccepted                  // REP was sent
	connOpen                      // established
	connEnded
)

// Dial connects a queue pair, in RESET or INIT, to a listener: rdma_connect with all that
// comes before. It returns with the queue pair in RTS. One in RESET passes INIT without any access for
// the peer: use [QP.Init] before to give it some. The errors wrap
// [*RejectError], [cm.ErrTimeout], or that of ctx, and are net.Errors that name both ends.
func (c *Context) Dial(ctx context.Context, remote netip.AddrPort, qp *QP, param *ConnParam) (*Conn, error) {
	addr := remote.Addr().Unmap()
	if !addr.Is4() {
		return nil, connError("dial", c.port.Local(), remote, errNotIPv4)
	}
	c.port.Lock()
	defer c.port.Unlock()
	conn, err := c.dial(ctx, wire.AddrPort4{Addr: addr.As4(), Port: remote.Port()}, qp, param)
	if err != nil {
		return nil, connError("dial", c.port.Local(), remote, err)
	}
	return conn, nil
}

func (c *Context) dial(ctx context.Context, to wire.AddrPort4, qp *QP, param *ConnParam) (*Conn, error) {
	if param == nil {
		param = new(DefaultConnParam())
	}
	if c.closing || c.port.Err() != nil {
		return nil, c.ended()
	}
	if err := checkPrivate(param.PrivateData, MaxDialPrivate); err != nil {
		return nil, err
	}
	if err := qp.prepare(c); err != nil {
		return nil, err
	}
	made, err := c.cm.Dial(cm.Time(c.port.Now()), to, qp.cmParam(param))
	if err != nil {
		return nil, err
	}
	conn := c.newConn(qp, made)
	c.port.Run()
	err = c.await(ctx, &conn.changed, func() bool { return conn.state != connWaiting })
	if err == nil && conn.state == connEnded {
		return nil, conn.cause
	}
	if err == nil {
		err = qp.toPeer(to.Addr, conn.conn.Attr())
	}
	if err == nil {
		conn.private = append([]byte(nil), conn.conn.Private()...)
		conn.state = connOpen
		err = conn.conn.Establish()
	}
	if err != nil {
		conn.close()
		return nil, err
	}
	c.port.Run()
	return conn, nil
}

func (c *Context) newConn(qp *QP, made *cm.Conn) *Conn {
	conn := &Conn{QP: qp, ctx: c, conn: made, done: make(chan struct{})}
	made.Data, qp.conn = conn, conn
	c.conns[conn] = struct{}{}
	c.waited[&conn.changed] = struct{}{}
	return conn
}

// Listener takes connection requests to a port.
type Listener struct {
	ctx      *Context
	listener *cm.Listener
	requests []*Request
	arrived  stack.Event
	closed   bool
}

// Listen takes the connection requests to a port of the TCP port space of the RDMA
// connection manager, which has nothing to do with TCP's ports; 0: a free one. backlog
// bounds the connections that are not established yet; 0: 128.
func (c *Context) Listen(port uint16, backlog int) (*Listener, error) {
	c.port.Lock()
	defer c.port.Unlock()
	if err := c.use("listen", false); err != nil {
		return nil, err
	}
	l := &Listener{ctx: c}
	var err error
	if l.listener, err = c.cm.Listen(port, backlog); err != nil {
		return nil, c.opError("listen", err)
	}
	l.listener.Data = l
	c.waited[&l.arrived], c.listens[l] = struct{}{}, struct{}{}
	return l, nil
}

// Addr is the address to dial.
func (l *Listener) Addr() netip.AddrPort {
	return netip.AddrPortFrom(l.ctx.Addr(), l.listener.Port())
}

// Close ends the listener. Requests that have not been accepted are rejected.
func (l *Listener) Close() error {
	c := l.ctx
	c.port.Lock()
	defer c.port.Unlock()
	if l.closed {
		return c.opError("close", c.ended())
	}
	l.close()
	c.port.Run()
	return nil
}

func (l *Listener) close() {
	c := l.ctx
	l.closed = true
	l.listener.Close()
	delete(c.waited, &l.arrived)
	delete(c.listens, l)
	c.port.Broadcast(&l.arrived)
}

// Accept waits for a connection request. The errors are that of ctx, and net.ErrClosed if the listener, or its
// context, is closed. None comes from a peer.
func (l *Listener) Accept(ctx context.Context) (*Request, error) {
	c := l.ctx
	c.port.Lock()
	defer c.port.Unlock()
	err := c.await(ctx, &l.arrived, func() bool { return len(l.requests) > 0 || l.closed })
	if err == nil && l.closed {
		err = c.ended()
	}
	if err != nil {
		return nil, &net.OpError{Op: "accept", Net: "rdma", Addr: net.UDPAddrFromAddrPort(l.Addr()), Err: err}
	}
	r := l.requests[0]
	l.requests = l.requests[1:]
	if len(l.requests) > 0 {
		c.port.Signal(&l.arrived) // one signal may be for several requests
	}
	return r, nil
}

// Request is a connection request, to be accepted or rejected.
type Request struct {
	listener *Listener
	conn     *cm.Conn
	private  []byte
	answered bool
}

// Private is the peer's private data, with zeros up to 56 bytes.
func (r *Request) Private() []byte { return r.private }

// Peer is the address and the port that the request came from.
func (r *Request) Peer() netip.AddrPort { return r.conn.Peer().Netip() }

// Accept connects a queue pair, as [Context.Dial] does. If param is nil, what the peer has proposed is
// accepted. It does not wait for the peer: the queue pair is in RTS, receives, and serves
// the peer. Sends that are posted before the peer has confirmed the connection wait until it does, or until its first
// message. [Conn.Established] waits for the same. A peer that gives up is not an error here: [Conn.Done] is
// closed, and [Conn.Err] says why. An error is this side's: of the queue pair, the parameters, or a context that
// has ended. It names both ends.
func (r *Request) Accept(ctx context.Context, qp *QP, param *ConnParam) (*Conn, error) {
	c := r.listener.ctx
	c.port.Lock()
	defer c.port.Unlock()
	conn, err := r.accept(ctx, qp, param)
	if err != nil {
		return nil, connError("accept", r.listener.Addr(), r.Peer(), err)
	}
	return conn, nil
}

func (r *Request) accept(ctx context.Context, qp *QP, param *ConnParam) (*Conn, error) {
	c := r.listener.ctx
	if c.closing || c.port.Err() != nil {
		return nil, c.ended()
	}
	if err := contextError(ctx); err != nil {
		return nil, err
	}
	if r.answered {
		return nil, cm.ErrState
	}
	attr := r.conn.Attr()
	if param == nil {
		param = &ConnParam{ResponderResources: attr.MaxDestRdAtomic, InitiatorDepth: attr.MaxRdAtomic, RNRRetryCount: DefaultConnParam().RNRRetryCount}
	}
	if err := checkPrivate(param.PrivateData, MaxAcceptPrivate); err != nil {
		return nil, err
	}
	if err := qp.prepare(c); err != nil {
		return nil, err
	}
	p := qp.cmParam(param)
	attr.RQPSN = p.PSN
	attr.MaxDestRdAtomic = min(attr.MaxDestRdAtomic, p.ResponderResources)
	attr.MaxRdAtomic = min(attr.MaxRdAtomic, p.InitiatorDepth)
	if err := qp.toPeer(r.conn.Peer().Addr, attr); err != nil {
		return nil, err
	}
	conn := c.newConn(qp, r.conn)
	conn.private, conn.state, r.answered = r.private, connAccepted, true
	if r.conn.State() == cm.Closed { // the peer has given up, or the listener was closed
		conn.end()
		return conn, nil
	}
	qp.hold(true)
	if err := conn.conn.Accept(cm.Time(c.port.Now()), p); err != nil {
		conn.close()
		return nil, err
	}
	c.port.Run()
	return conn, nil
}

// Reject refuses the request: the peer's Dial returns a [*RejectError] with the private
// data, at most MaxRejectPrivate bytes.
func (r *Request) Reject(private []byte) error {
	c := r.listener.ctx
	c.port.Lock()
	defer c.port.Unlock()
	if err := c.use("reject", false); err != nil {
		return err
	}
	err := r.conn.Reject(private)
	if err != nil {
		return connError("reject", r.listener.Addr(), r.Peer(), err)
	}
	r.answered = true
	c.port.Run()
	return nil
}

// Private is the peer's private data, with the zeros that it was sent with.
func (conn *Conn) Private() []byte { return conn.private }

// Peer is the other end's address.
func (conn *Conn) Peer() netip.AddrPort { return conn.conn.Peer().Netip() }

// Done is closed when the connection has ended: Close was called, or the peer has
// disconnected. Then the queue pair is in ERR, and its work requests are flushed.
func (conn *Conn) Done() <-chan struct{} { return conn.done }

// Established waits until the peer has confirmed the connection. That of Dial is confirmed. The errors are that of
// ctx, or why the connection has ended.
func (conn *Conn) Established(ctx context.Context) error {
	c := conn.ctx
	c.port.Lock()
	defer c.port.Unlock()
	err := c.await(ctx, &conn.changed, func() bool { return conn.state >= connOpen })
	if err == nil && conn.state == connEnded {
		err = conn.cause
	}
	if err != nil {
		op := "accept"
		if conn.conn.Listener() == nil {
			op = "dial"
		}
		return connError(op, conn.local(), conn.Peer(), err)
	}
	return nil
}

// local is this side's address, and its port if it has listened.
func (conn *Conn) local() netip.AddrPort {
	if l := conn.conn.Listener(); l != nil {
		return l.Data.(*Listener).Addr()
	}
	return conn.ctx.port.Local()
}

// Err is why the connection has ended, or nil: net.ErrClosed if this side has ended it, a [*RejectError], or
// [cm.ErrTimeout] or [cm.ErrDisconnected] of the peer.
func (conn *Conn) Err() error {
	conn.ctx.port.Lock()
	defer conn.ctx.port.Unlock()
	return conn.cause
}

// Close disconnects: rdma_disconnect. It does not wait for the peer's answer, without which the request is
// repeated, up to 15 times. What has not been completed is flushed. A connection that has ended already
// is no error.
func (conn *Conn) Close() error {
	c := conn.ctx
	c.port.Lock()
	defer c.port.Unlock()
	if c.closing {
		return c.opError("close", c.ended())
	}
	c.release()
	conn.close()
	return nil
}

func (conn *Conn) close() {
	if conn.state == connEnded {
		return
	}
	c := conn.ctx
	conn.cause = c.ended() // by this side
	conn.end()
	if c.port.Err() == nil {
		conn.conn.Close(cm.Time(c.port.Now()))
		c.port.Run()
	}
}

// end marks the end of the connection.
func (conn *Conn) end() {
	if conn.state == connEnded {
		return
	}
	c := conn.ctx
	if conn.cause == nil {
		if conn.cause = conn.conn.Err(); conn.cause == nil {
			conn.cause = c.ended()
		}
	}
	conn.state, conn.QP.conn = connEnded, nil
	conn.QP.modify(&QPAttr{State: StateErr}, QPState)
	c.port.Broadcast(&conn.changed)
	delete(c.waited, &conn.changed)
	delete(c.conns, conn)
	close(conn.done)
}

// cmEvents handles the events of the connection manager.
func (c *Context) cmEvents() {
	for e, ok := c.cm.NextEvent(); ok; e, ok = c.cm.NextEvent() {
		switch owner := e.Conn.Data.(type) {
		case nil:
			l := e.Conn.Listener().Data.(*Listener)
			r := &Request{listener: l, conn: e.Conn, private: append([]byte(nil), e.Conn.Private()...)}
			e.Conn.Data = r
			l.requests = append(l.requests, r)
			c.port.Signal(&l.arrived)
		case *Request: // the peer has given up
			l := owner.listener
			l.requests = slices.DeleteFunc(l.requests, func(r *Request) bool { return r == owner })
		case *Conn:
			switch e.Type {
			case cm.ConnectResponse:
				owner.state = connAnswered
				c.port.Broadcast(&owner.changed)
			case cm.Established:
				owner.state = connOpen
				owner.QP.hold(false)
				c.port.Broadcast(&owner.changed)
			default:
				if owner.cause == nil && e.Type == cm.Disconnected && e.Conn.Err() == nil {
					owner.cause = cm.ErrDisconnected
				}
				owner.end()
				c.port.Broadcast(&c.unanswered)
			}
		}
	}
}

// The length of a MAD's packet, and where the MAD is in it.
const (
	madHeader = wire.BTHLen + 8 // and DETH
	madPacket = wire.RoCEOffset + madHeader + wire.MADLen + wire.ICRCLen
)

// inputMAD takes a packet to queue pair 1.
func (c *Context) inputMAD(now int64, p *stack.UDPPacket) {
	var h wire.RoCE
	if h.Parse(p.Payload) != nil || h.Opcode != wire.TransportUD|wire.OpSendOnly || h.QKey != wire.GSIQKey ||
		len(h.Payload) != wire.MADLen || !wire.CheckICRC(p.Packet) {
		c.badMADs++
		return
	}
	c.cm.Input(cm.Time(now), p.Src.Addr, h.Payload)
}

// sendMADs sends what the connection manager has ready, until the link takes nothing.
func (c *Context) sendMADs() {
	for {
		if !c.madOut {
			if c.madTo, c.madOut = c.cm.Emit(c.mad[:]); !c.madOut {
				return
			}
		}
		b := c.port.Reserve(c.madTo, madPacket)
		if b == nil {
			return
		}
		c.madOut = false
		c.madPSN++
		n := wire.PutRoCE(b, &wire.RoCE{
			Opcode: wire.TransportUD | wire.OpSendOnly, AckReq: true, PKey: 0xffff, DstQP: wire.GSIQPN,
			PSN: c.madPSN & 0xffffff, QKey: wire.GSIQKey, SrcQP: wire.GSIQPN,
		}, wire.MADLen)
		n += copy(b[n:], c.mad[:])
		c.port.Send(wire.SealRoCE(b, &wire.RoCEFlow{Src: c.dev.Config().Addr, Dst: c.madTo, SrcPort: wire.RoCEPort}, n))
	}
}
