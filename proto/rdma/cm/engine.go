package cm

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/unet-go/unet/internal/timerheap"
	"github.com/unet-go/unet/wire"
)

// Time is nanoseconds since an epoch of the driver's choice.
type Time int64

// Never is later than every other instant.
const Never Time = math.MaxInt64

// Defaults of [Config].
const (
	DefaultResponseTimeout = 20 // exponent, 4.3 s: as librdmacm
	DefaultPacketLifetime  = 16 // exponent, 0.27 s: as librdmacm on RoCE
	DefaultMaxRetries      = 15 // as librdmacm
	DefaultMaxHandshake    = 2 * time.Minute
	DefaultPathMTU         = 3 // 1024 bytes
	DefaultMaxConns        = 1 << 16
	DefaultMaxReplies      = 64
	DefaultBacklog         = 128

	ackDelay       = 15    // exponent, 134 ms: the longest time to acknowledge a packet, as rxe states it
	firstEphemeral = 32768 // as Linux
	lastEphemeral  = 60999
)

// Config is fixed when an engine is made. A field that is 0 has its default.
type Config struct {
	Addr [4]byte       // of this host
	GUID uint64        // of this host's adapter
	Rand func() uint64 // must be unpredictable: IDs and ports are made of it

	PathMTU uint8 // largest of the link, as on the wire: 1 = 256 bytes … 5 = 4096 bytes

	// ResponseTimeout and PacketLifetime are exponents n of 4.096 µs · 2^n, 31 at most. A
	// REQ or a DREQ is sent again after the former and twice the latter.
	ResponseTimeout uint8
	PacketLifetime  uint8
	MaxRetries      uint8 // of each message, 15 at most

	MaxHandshake time.Duration // bounds the times that a peer's REQ or MRA asks for
	MaxConns     int           // those being connected or disconnected included
	MaxReplies   int           // MADs waiting for Emit that belong to no connection
}

// Errors of the calls. Those of parameters out of range say which.
var (
	ErrPortInUse      = errors.New("cm: port has a listener")
	ErrTooManyConns   = errors.New("cm: too many connections")
	ErrState          = errors.New("cm: illegal in the connection's state")
	ErrPrivateTooLong = errors.New("cm: private data does not fit the message")
	// ErrDisconnected is the error of a connection whose peer has disconnected it. A [Conn] has it if that was
	// before it was established here.
	ErrDisconnected = errors.New("cm: disconnected by the peer")
	// ErrTimeout is the error of a connection whose peer has not answered.
	ErrTimeout = errors.New("cm: no answer from the peer")
)

// RejectError is the error of a connection that the peer has rejected.
type RejectError struct {
	Reason  wire.CMReason
	Info    []byte // additional information, by reason
	Private []byte // padded to wire.CMRejPrivate bytes; nil if this side found the connection stale
}

func (e *RejectError) Error() string { return "cm: rejected: " + e.Reason.String() }

// EventType is what has happened to a connection.
type EventType uint8

// The events have the names of rdma_cm. Rejected, Unreachable and Disconnected are the last of
// their connection. No event follows Reject, nor Close of a connection that was not established.
const (
	ConnectRequest  EventType = iota // a peer asks for a connection: call Accept, Reject or Close
	ConnectResponse                  // the peer has accepted: call Establish, Reject or Close
	Established                      // the peer is ready
	Rejected                         // Err is a RejectError
	Unreachable                      // Err is ErrTimeout
	Disconnected                     // by the peer, or Close is complete
)

func (t EventType) String() string {
	return [...]string{"connect request", "connect response", "established", "rejected", "unreachable", "disconnected"}[t]
}

// Event is an event of a connection.
type Event struct {
	Type EventType
	Conn *Conn
}

// Engine is the connections and listeners of one address.
type Engine struct {
	cfg       Config
	listeners map[uint16]*Listener
	conns     map[uint32]*Conn   // by local communication ID
	remotes   map[remoteID]*Conn // by the peer's
	qps       map[remoteQP]*Conn // by the peer's queue pair

	timers  timerheap.Heap[Time, Conn]
	ready   []*Conn // have a MAD for Emit
	replies []reply
	dropped [wire.MADLen]byte // a reply that is not sent
	events  []*Conn           // have events
	counts  [numberOfCounts]uint64
}

type remoteID struct {
	addr [4]byte
	id   uint32
}

type remoteQP struct {
	addr [4]byte
	qpn  uint32
}

// reply is a MAD that belongs to no connection.
type reply struct {
	to  [4]byte
	mad [wire.MADLen]byte
}

// New makes an engine. It panics if the configuration has no Rand or a value out of range.
func New(cfg Config) *Engine {
	cfg.PathMTU = cmp.Or(cfg.PathMTU, DefaultPathMTU)
	cfg.ResponseTimeout = cmp.Or(cfg.ResponseTimeout, DefaultResponseTimeout)
	cfg.PacketLifetime = cmp.Or(cfg.PacketLifetime, DefaultPacketLifetime)
	cfg.MaxRetries = cmp.Or(cfg.MaxRetries, DefaultMaxRetries)
	cfg.MaxHandshake = cmp.Or(cfg.MaxHandshake, DefaultMaxHandshake)
	cfg.MaxConns = cmp.Or(cfg.MaxConns, DefaultMaxConns)
	cfg.MaxReplies = cmp.Or(cfg.MaxReplies, DefaultMaxReplies)
	if cfg.Rand == nil || cfg.PathMTU > 5 || cfg.ResponseTimeout > 31 || cfg.PacketLifetime > 31 || cfg.MaxRetries > 15 ||
		cfg.MaxHandshake < 0 || cfg.MaxConns < 0 || cfg.MaxReplies < 0 {
		panic("BUG: cm: impossible configuration")
	}
	return &Engine{
		cfg:       cfg,
		listeners: make(map[uint16]*Listener),
		conns:     make(map[uint32]*Conn),
		remotes:   make(map[remoteID]*Conn),
		qps:       make(map[remoteQP]*Conn),
	}
}

// Len is the number of connections in any state.
func (e *Engine) Len() int { return len(e.conns) }

// Listener accepts connections to a port.
type Listener struct {
	Data any // the driver's

	e       *Engine
	port    uint16
	backlog int
	pending int // connections that are not established
}

// Listen accepts connections to port of the TCP port space, which is not TCP's own; 0 is a
// port that nobody listens on. backlog bounds the connections that are not yet established:
// further REQs are dropped. 0 is DefaultBacklog. The error is ErrPortInUse.
func (e *Engine) Listen(port uint16, backlog int) (*Listener, error) {
	if port == 0 {
		// A few attempts find a port unless nearly all have listeners.
		for try := 0; port == 0 && try < 1000; try++ {
			if p := e.ephemeral(); e.listeners[p] == nil {
				port = p
			}
		}
	}
	if port == 0 || e.listeners[port] != nil {
		return nil, ErrPortInUse
	}
	if backlog <= 0 {
		backlog = DefaultBacklog
	}
	l := &Listener{e: e, port: port, backlog: backlog}
	e.listeners[port] = l
	return l, nil
}

func (e *Engine) ephemeral() uint16 {
	return firstEphemeral + uint16(e.cfg.Rand()%(lastEphemeral-firstEphemeral+1))
}

func (l *Listener) Port() uint16 { return l.port }

// Close stops listening. Connections that have not been accepted are rejected.
func (l *Listener) Close() {
	if l.e.listeners[l.port] != l {
		return
	}
	delete(l.e.listeners, l.port)
	for _, id := range slices.Sorted(maps.Keys(l.e.conns)) {
		if c := l.e.conns[id]; c.listener == l && c.state == ReqReceived {
			c.reject(wire.CMRejConsumer, nil)
		}
	}
}

// Param is what the application says of its queue pair.
type Param struct {
	QPN uint32
	PSN uint32 // the first that the peer is to send, 24 bits

	// ResponderResources is the number of READs and atomics that the queue pair serves at
	// a time (max_dest_rd_atomic), InitiatorDepth the number it has outstanding
	// (max_rd_atomic). Each side uses the lesser of what it and its peer say.
	ResponderResources uint8
	InitiatorDepth     uint8
	RNRRetryCount      uint8 // how often the peer repeats what finds no receive, 0 to 7; 7: without end
	SRQ                bool
	Private            []byte // of the application, 56 bytes at most in Dial, 196 in Accept

	// Of Dial only; the passive side follows.
	Transport  wire.CMTransport
	PathMTU    uint8 // as on the wire; 0: that of Config
	RetryCount uint8 // of both queue pairs, 0 to 7
}

func (p *Param) check(private int) error {
	switch {
	case !validQPN(p.QPN):
		return fmt.Errorf("cm: %#x is not the number of a queue pair", p.QPN)
	case p.PSN >= 1<<24:
		return fmt.Errorf("cm: first PSN %#x has more than 24 bits", p.PSN)
	case p.RNRRetryCount > 7:
		return fmt.Errorf("cm: RNR retry count %d is more than 7", p.RNRRetryCount)
	case p.RetryCount > 7:
		return fmt.Errorf("cm: retry count %d is more than 7", p.RetryCount)
	case len(p.Private) > private:
		return fmt.Errorf("%w: %d bytes, %d at most", ErrPrivateTooLong, len(p.Private), private)
	}
	return nil
}

// validQPN reports whether a connection may have this queue pair: 0 and 1 are the management's,
// the highest is multicast.
func validQPN(qpn uint32) bool { return qpn > wire.GSIQPN && qpn < 1<<24-1 }

// Dial sends a REQ to a port. The event ConnectResponse, Rejected or Unreachable follows. Errors:
// ErrTooManyConns, ErrPrivateTooLong, or a parameter out of range.
func (e *Engine) Dial(now Time, to wire.AddrPort4, p Param) (*Conn, error) {
	if err := p.check(wire.CMReqPrivate - wire.CMAddressLen); err != nil {
		return nil, err
	}
	p.PathMTU = cmp.Or(p.PathMTU, e.cfg.PathMTU)
	if p.PathMTU > e.cfg.PathMTU {
		return nil, fmt.Errorf("cm: path MTU %d is more than the link's %d", p.PathMTU, e.cfg.PathMTU)
	}
	if p.Transport > wire.CMTransportUC {
		return nil, fmt.Errorf("cm: transport %d is neither RC nor UC", p.Transport)
	}
	if len(e.conns) >= e.cfg.MaxConns {
		return nil, ErrTooManyConns
	}
	c := e.newConn(now, ReqSent, to)
	c.tid, c.qpn = e.cfg.Rand(), p.QPN
	c.retries, c.timeout = e.cfg.MaxRetries, e.responseTimeout(e.cfg.ResponseTimeout)
	c.attr = Attr{
		Transport: p.Transport, RQPSN: p.PSN, PathMTU: p.PathMTU, RetryCount: p.RetryCount,
		MaxDestRdAtomic: p.ResponderResources, MaxRdAtomic: p.InitiatorDepth,
	}
	var private [wire.CMReqPrivate]byte
	src, dst := netip.AddrFrom4(e.cfg.Addr), netip.AddrFrom4(to.Addr)
	wire.PutCMAddress(private[:], &wire.CMAddress{SrcPort: e.ephemeral(), Src: src, Dst: dst})
	copy(private[wire.CMAddressLen:], p.Private)
	wire.PutCMReq(c.newMessage(), c.tid, c.local, &wire.CMReq{
		ServiceID: wire.ServiceTCP | uint64(to.Port), GUID: e.cfg.GUID, QPN: p.QPN, PSN: p.PSN,
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth, Transport: p.Transport,
		RemoteTimeout: e.cfg.ResponseTimeout, LocalTimeout: e.cfg.ResponseTimeout, MaxRetries: e.cfg.MaxRetries,
		RetryCount: p.RetryCount, RNRRetry: p.RNRRetryCount, SRQ: p.SRQ, PKey: wire.DefaultPKey, PathMTU: p.PathMTU,
		AckTimeout: ackTimeout(ackDelay, e.cfg.PacketLifetime), Src: src, Dst: dst, Private: private[:],
	})
	c.send(now)
	return c, nil
}

// responseTimeout is how long an answer may take for which the peer needs the time of exponent n.
func (e *Engine) responseTimeout(n uint8) Time {
	return exponent(n) + 2*exponent(e.cfg.PacketLifetime)
}

func exponent(n uint8) Time { return 4096 << n }

// ackTimeout is the exponent of a queue pair's ACK timeout: twice the packet lifetime and the
// delay of the acknowledging side, rounded to a power of two as the kernel does.
func ackTimeout(delay, lifetime uint8) uint8 {
	n := lifetime + 1
	if n >= delay {
		if delay >= n-1 {
			n++
		}
	} else if n = delay; delay-1 <= lifetime+1 {
		n++
	}
	return min(n, 31)
}

// Hurry shortens the wait for the answers to DREQs that are under way: they are sent again after
// interval, retries times, and then given up. A driver that is about to end calls it.
func (e *Engine) Hurry(now Time, interval time.Duration, retries uint8) {
	for _, c := range e.conns {
		if c.state == DreqSent {
			c.timeout, c.retries = Time(interval), retries
			e.timers.Set(&c.timer, now+c.timeout)
		}
	}
}

// Ready reports whether Emit has a MAD to write.
func (e *Engine) Ready() bool {
	for len(e.ready) > 0 && e.ready[0].emit == 0 {
		e.popReady()
	}
	return len(e.ready)+len(e.replies) > 0
}

func (e *Engine) popReady() {
	e.ready[0].queued = false
	e.ready = pop(e.ready)
}

// Emit writes a MAD to the start of b, which has room for wire.MADLen bytes, and returns the
// host that it is to be sent to. ok is false if there is none.
func (e *Engine) Emit(b []byte) (to [4]byte, ok bool) {
	if !e.Ready() {
		return to, false
	}
	e.counts[MadsSent]++
	if len(e.replies) > 0 {
		r := e.replies[0]
		copy(b[:wire.MADLen], r.mad[:])
		e.replies = pop(e.replies)
		return r.to, true
	}
	c := e.ready[0]
	if c.emit&emitMessage != 0 {
		copy(b[:wire.MADLen], c.message[:])
		c.emit &^= emitMessage
	} else {
		wire.PutCM(b, wire.CMRtuAttr, c.tid, c.local, c.remote)
		c.emit = 0
	}
	if c.emit == 0 {
		e.popReady()
		if c.state == Closed {
			c.message = nil
		}
	}
	return c.peer.Addr, true
}

// pop removes the first element. An empty queue gives its memory back.
func pop[T any](q []T) []T {
	var zero T
	q[0] = zero
	if q = q[1:]; len(q) == 0 {
		return nil
	}
	return q
}

// reply queues a MAD without a connection and returns where it is to be written. If the queue is
// full, the MAD is dropped: the peer repeats what it answers.
func (e *Engine) reply(to [4]byte) []byte {
	if len(e.replies) >= e.cfg.MaxReplies {
		e.counts[RepliesDropped]++
		return e.dropped[:]
	}
	e.replies = append(e.replies, reply{to: to})
	return e.replies[len(e.replies)-1].mad[:]
}

// NextEvent returns the next event. ok is false if there is none.
func (e *Engine) NextEvent() (ev Event, ok bool) {
	for len(e.events) > 0 {
		c := e.events[0]
		for t := ConnectRequest; t <= Disconnected; t++ {
			if c.events&(1<<t) != 0 {
				c.events &^= 1 << t
				return Event{t, c}, true
			}
		}
		c.eventsQueued = false
		e.events = pop(e.events)
	}
	return Event{}, false
}

// Deadline is when Expire is to be called.
func (e *Engine) Deadline() Time { return e.timers.First() }

// Expire sends messages again whose answer is overdue, and gives up connections.
func (e *Engine) Expire(now Time) {
	for c := e.timers.Due(now); c != nil; c = e.timers.Due(now) {
		c.expire(now)
	}
}
