package cm

import (
	"encoding/binary"
	"fmt"

	"github.com/unet-go/unet/internal/timerheap"
	"github.com/unet-go/unet/wire"
)

// State is the state of a connection. The names are those of the specification (section 12.9.5).
type State uint8

const (
	ReqSent          State = iota
	RepReceived            // the application has not called Establish
	ReqReceived            // the application has neither accepted nor rejected
	RepSent                // waits for the RTU
	StateEstablished       //
	DreqSent               // waits for the DREP
	Closed                 // the engine has forgotten the connection
)

func (s State) String() string {
	return [...]string{"REQ sent", "REP received", "REQ received", "REP sent", "established", "DREQ sent", "closed"}[s]
}

// Attr is what the local queue pair is set to (ibv_qp_attr).
type Attr struct {
	Transport       wire.CMTransport
	DestQPN         uint32
	RQPSN           uint32 // the first that the peer sends: Param.PSN
	SQPSN           uint32 // the first that this side sends
	PathMTU         uint8  // 1: 256 bytes … 5: 4096 bytes
	MaxDestRdAtomic uint8
	MaxRdAtomic     uint8
	Timeout         uint8 // ACK timeout, exponent n of 4.096 µs · 2^n; 0: none
	RetryCount      uint8
	RNRRetry        uint8
	PeerSRQ         bool // the peer's queue pair has a shared receive queue
}

// Conn is a connection or an attempt at one.
type Conn struct {
	Data any // the driver's

	e        *Engine
	listener *Listener
	peer     wire.AddrPort4
	state    State
	local    uint32 // communication IDs
	remote   uint32
	tid      uint64 // of the handshake
	dreqTID  uint64 // of our DREQ; before it, of our question whether the peer knows the connection, or 0
	qpn      uint32 // of the local queue pair
	attr     Attr
	private  []byte
	err      error

	message *[wire.MADLen]byte // REQ, REP or DREQ that has no answer yet; REJ to be sent
	retries uint8              // how often it may still be sent
	most    uint8              // retries of each message
	timeout Time               // for its answer
	giveUp  Time               // end of the handshake, or of the disconnection
	timer   timerheap.Timer[Time, Conn]

	emit         uint8
	queued       bool // in Engine.ready
	events       uint8
	eventsQueued bool // in Engine.events
}

const (
	emitMessage = 1 << iota
	emitRTU
)

func (e *Engine) newConn(now Time, s State, peer wire.AddrPort4) *Conn {
	c := &Conn{e: e, state: s, peer: peer, giveUp: now + Time(e.cfg.MaxHandshake)}
	c.timer.Init(c)
	for c.local == 0 || e.conns[c.local] != nil {
		c.local = uint32(e.cfg.Rand())
	}
	e.conns[c.local] = c
	return c
}

// Peer is what was dialed, or the address and the port that the peer's REQ states.
func (c *Conn) Peer() wire.AddrPort4 { return c.peer }

// Listener is nil on the active side.
func (c *Conn) Listener() *Listener { return c.listener }

func (c *Conn) State() State { return c.state }

// Private is the application's data in the peer's REQ (56 bytes) or REP (196 bytes), padded
// with zeros: the wire does not carry its length.
func (c *Conn) Private() []byte { return c.private }

// Attr is valid on the passive side from ConnectRequest on, with the depths that the REQ
// allows, which Accept may lessen; on the active side from ConnectResponse on.
func (c *Conn) Attr() Attr { return c.attr }

// Err is why the connection failed: a *RejectError, ErrTimeout, ErrDisconnected or, if it did not, nil.
func (c *Conn) Err() error { return c.err }

// Accept sends a REP. The queue pair is ready to receive: the peer's first packet may come before
// its RTU. The event Established, Rejected, Unreachable or Disconnected follows. Errors:
// ErrState, ErrPrivateTooLong, or a parameter out of range.
func (c *Conn) Accept(now Time, p Param) error {
	if c.state != ReqReceived {
		return fmt.Errorf("%w: Accept, %v", ErrState, c.state)
	}
	if err := p.check(wire.CMRepPrivate); err != nil {
		return err
	}
	c.qpn, c.attr.RQPSN = p.QPN, p.PSN
	c.attr.MaxDestRdAtomic = min(c.attr.MaxDestRdAtomic, p.ResponderResources)
	c.attr.MaxRdAtomic = min(c.attr.MaxRdAtomic, p.InitiatorDepth)
	wire.PutCMRep(c.newMessage(), c.tid, c.local, c.remote, &wire.CMRep{
		GUID: c.e.cfg.GUID, QPN: p.QPN, PSN: p.PSN, ResponderResources: c.attr.MaxDestRdAtomic, InitiatorDepth: c.attr.MaxRdAtomic,
		AckDelay: ackDelay, RNRRetry: p.RNRRetryCount, SRQ: p.SRQ, Private: p.Private,
	})
	c.state = RepSent
	c.send(now)
	return nil
}

// Establish sends the RTU: the queue pair is ready to receive and to send. The error is ErrState.
func (c *Conn) Establish() error {
	if c.state != RepReceived {
		return fmt.Errorf("%w: Establish, %v", ErrState, c.state)
	}
	c.established()
	c.ready(emitRTU)
	return nil
}

// CommEstablished says that the queue pair has received a packet, which shows that the peer is
// ready even if its RTU is lost. In other states than RepSent it does nothing.
func (c *Conn) CommEstablished() {
	if c.state == RepSent {
		c.established()
		c.event(Established)
	}
}

// Reject answers a ConnectRequest or a ConnectResponse by a REJ with the reason
// wire.CMRejConsumer and up to 148 bytes of private data. Errors: ErrState, ErrPrivateTooLong.
func (c *Conn) Reject(private []byte) error {
	if c.state != ReqReceived && c.state != RepReceived {
		return fmt.Errorf("%w: Reject, %v", ErrState, c.state)
	}
	if len(private) > wire.CMRejPrivate {
		return fmt.Errorf("%w: %d bytes, %d at most", ErrPrivateTooLong, len(private), wire.CMRejPrivate)
	}
	c.reject(wire.CMRejConsumer, private)
	return nil
}

// Close disconnects an established connection: a DREQ is sent, and the event Disconnected follows
// when it is answered or given up. Before that it is a rejection. In DreqSent and Closed it does
// nothing.
func (c *Conn) Close(now Time) {
	switch c.state {
	case ReqSent:
		c.reject(wire.CMRejTimeout, nil)
	case RepReceived, ReqReceived, RepSent:
		c.reject(wire.CMRejConsumer, nil)
	case StateEstablished:
		c.state, c.dreqTID = DreqSent, c.e.cfg.Rand()
		c.giveUp = now + Time(c.e.cfg.MaxHandshake)
		wire.PutCMDreq(c.newMessage(), c.dreqTID, c.local, c.remote, c.attr.DestQPN)
		c.send(now)
	}
}

// reject forgets the connection and sends a REJ.
func (c *Conn) reject(reason wire.CMReason, private []byte) {
	r, local := wire.CMRej{Rejected: wire.CMMessageOther, Reason: reason, Private: private}, c.local
	switch c.state {
	case ReqReceived:
		r.Rejected, local = wire.CMMessageReq, 0
	case RepReceived:
		r.Rejected = wire.CMMessageRep
	}
	if reason == wire.CMRejTimeout {
		r.Info = binary.BigEndian.AppendUint64(nil, c.e.cfg.GUID)
	}
	c.e.counts[RejectsSent]++
	c.forget()
	c.events = 0
	wire.PutCMRej(c.newMessage(), c.tid, local, c.remote, &r)
	c.ready(emitMessage)
}

func (c *Conn) newMessage() []byte {
	c.message = new([wire.MADLen]byte)
	c.most = c.retries
	return c.message[:]
}

// send sends the message and arms its timer.
func (c *Conn) send(now Time) {
	c.ready(emitMessage)
	c.e.timers.Set(&c.timer, min(now+c.timeout, c.giveUp))
}

func (c *Conn) ready(what uint8) {
	c.emit |= what
	if !c.queued {
		c.queued = true
		c.e.ready = append(c.e.ready, c)
	}
}

func (c *Conn) event(t EventType) {
	c.events |= 1 << t
	if !c.eventsQueued {
		c.eventsQueued = true
		c.e.events = append(c.e.events, c)
	}
}

// expire is called when the timer is due.
func (c *Conn) expire(now Time) {
	e := c.e
	if c.message != nil && c.retries > 0 && now < c.giveUp {
		c.retries--
		e.counts[Retransmits]++
		c.send(now)
		return
	}
	e.counts[Timeouts]++
	switch c.state {
	case DreqSent:
		c.end(Disconnected, nil)
	case ReqReceived:
		c.end(Unreachable, ErrTimeout)
	default:
		c.reject(wire.CMRejTimeout, nil)
		c.err = ErrTimeout
		c.event(Unreachable)
	}
}

// established enters that state.
func (c *Conn) established() {
	c.e.counts[Handshakes]++
	c.leaveBacklog()
	c.state, c.message, c.emit = StateEstablished, nil, 0
	c.retries = c.most
	c.e.timers.Set(&c.timer, Never)
}

func (c *Conn) leaveBacklog() {
	if c.listener != nil && (c.state == ReqReceived || c.state == RepSent) {
		c.listener.pending--
	}
}

// end forgets the connection and reports why.
func (c *Conn) end(t EventType, err error) {
	c.forget()
	c.err = err
	c.event(t)
}

// forget takes the connection out of all tables. What it has not sent is not sent.
func (c *Conn) forget() {
	e := c.e
	c.leaveBacklog()
	c.state, c.message, c.emit = Closed, nil, 0
	e.timers.Set(&c.timer, Never)
	delete(e.conns, c.local)
	if key := (remoteID{c.peer.Addr, c.remote}); e.remotes[key] == c {
		delete(e.remotes, key)
	}
	if key := (remoteQP{c.peer.Addr, c.attr.DestQPN}); e.qps[key] == c {
		delete(e.qps, key)
	}
}
