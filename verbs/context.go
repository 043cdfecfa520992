package verbs

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/hoststack"
	"github.com/unet-go/unet/proto/rdma"
	"github.com/unet-go/unet/proto/rdma/cm"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// Config are the limits of a [Context]. A limit of 0, or less, means its default.
type Config struct {
	MaxQP       int // queue pairs; default 4096
	MaxKeys     int // memory regions and windows; default 65536
	MaxQPWR     int // work requests of a queue; default 16384
	MaxCQE      int // completions of a CQ; default 1 << 20
	MaxRDAtomic int // READs and atomics in flight of a queue pair, each way; default 16, at most 128
	Window      int // packets in flight of a queue pair; default 256
	MaxConns    int // connections that the connection manager knows; default 65536
}

// Context is the RDMA device of one address (ibv_context). Its methods, and those of its
// objects, may be called from any goroutine.
type Context struct {
	port *stack.UDPPort // the engines and all that follows are guarded by its lock
	dev  *rdma.Device
	cm   *cm.Engine

	packet   rdma.Packet
	polling  bool // the caller of Poll looks at its memory next
	acksHeld bool // acknowledgments wait for the application's next call

	waited  map[*stack.Event]struct{} // all that goroutines may wait for
	serving stack.Event
	happens stack.Event
	async   []Event
	missed  uint64 // events beyond maxAsync

	closing    bool        // Close has begun
	unanswered stack.Event // a connection has ended

	mad     [wire.MADLen]byte
	madTo   [4]byte
	madOut  bool // mad waits for the link
	madPSN  uint32
	badMADs uint64
	conns   map[*Conn]struct{}
	listens map[*Listener]struct{}
}

// nic is the [stack.UDPHandler] and the [rdma.Driver] of a Context.
type nic struct{ *Context }

// ErrClosed is the error of a call on an object that has been closed. It is a net.ErrClosed.
var ErrClosed = net.ErrClosed

var errNotIPv4 = errors.New("not an IPv4 address and port")

// ackHold is how long an acknowledgment waits at most for what the application sends, while a
// goroutine polls, in nanoseconds.
const ackHold = int64(50 * time.Microsecond)

// Open makes the RDMA device of a host's address, and claims UDP port 4791 of the address,
// which one endpoint can own. The error for a second one is EADDRINUSE, a *net.OpError with
// the address and, if unetd knows it, the owner.
func Open(ctx context.Context, host *unet.Host, cfg Config) (*Context, error) {
	return open(cfg, func(handler stack.UDPHandler) (*stack.UDPPort, error) {
		return hoststack.OpenUDPPort(ctx, host, netip.AddrPortFrom(host.Addr(), wire.RoCEPort), handler)
	})
}

// open is Open with a function that opens the port.
func open(cfg Config, openPort func(stack.UDPHandler) (*stack.UDPPort, error)) (*Context, error) {
	c := &Context{waited: make(map[*stack.Event]struct{}), conns: make(map[*Conn]struct{}), listens: make(map[*Listener]struct{})}
	for _, e := range []*stack.Event{&c.serving, &c.happens, &c.unanswered} {
		c.waited[e] = struct{}{}
	}
	port, err := openPort(nic{c})
	if err != nil {
		return nil, err
	}
	var seed [32]byte
	crand.Read(seed[:])
	random := rand.NewChaCha8(seed)
	addr := port.Local().Addr().As4()
	dev := rdma.New(rdma.Config{
		Addr: addr, LinkMTU: port.MTU(), Driver: nic{c}, Rand: random, Window: cfg.Window, MaxQP: cfg.MaxQP, MaxKeys: cfg.MaxKeys,
		MaxQPWR: cfg.MaxQPWR, MaxCQE: cfg.MaxCQE, MaxRDAtomic: cfg.MaxRDAtomic,
	})
	if dev.ActiveMTU() == 0 {
		port.Close()
		return nil, &net.OpError{Op: "open", Net: "rdma", Source: net.UDPAddrFromAddrPort(port.Local()), Err: errors.New("the link's MTU is too small for any path MTU")}
	}
	port.Lock()
	defer port.Unlock()
	c.port, c.dev = port, dev
	c.cm = cm.New(cm.Config{Addr: addr, GUID: random.Uint64(), Rand: random.Uint64, PathMTU: uint8(dev.ActiveMTU()), MaxConns: max(cfg.MaxConns, 0)})
	c.madPSN = uint32(random.Uint64())
	return c, nil
}

// A disconnection is repeated at the end of a context, since nobody is left to do so later.
const (
	closeInterval = 100 * time.Millisecond
	closeRepeats  = 2
)

// Close disconnects the connections of [Context.Listen] and [Context.Dial], gives the port
// back, and ends all objects. It waits until the peers have confirmed it, for 0.3 s at most.
// Peers of other queue pairs are told nothing. What is posted is flushed: [CQ.Poll] and [CQ.Wait] return its
// completions. Other calls, and those that are blocked, return ErrClosed.
func (c *Context) Close() error {
	c.port.Lock()
	if c.closing {
		defer c.port.Unlock()
		return c.opError("close", c.ended())
	}
	c.closing = true
	c.release()
	for l := range c.listens {
		l.close()
	}
	for conn := range c.conns {
		conn.close()
	}
	c.cm.Hurry(cm.Time(c.port.Now()), closeInterval, closeRepeats)
	c.port.Run()
	// A link that takes nothing now stops the timers of the connections, but not the clock.
	until := c.port.Now() + int64((closeRepeats+1)*closeInterval)
	for c.cm.Len() > 0 && c.port.Err() == nil && c.port.Now() < until {
		c.port.Wait(&c.unanswered, until)
	}
	c.port.Unlock()
	if err := c.port.Close(); err != nil {
		return c.opError("close", err)
	}
	return nil
}

// Err is why the context has ended, or nil: net.ErrClosed after Close, or what has happened to its host.
func (c *Context) Err() error {
	c.port.Lock()
	defer c.port.Unlock()
	if c.closing || c.port.Err() != nil {
		return c.ended()
	}
	return nil
}

// use returns the error of a call on an object of the context that is closed, or whose context has ended.
func (c *Context) use(op string, closed bool) error {
	if closed || c.closing || c.port.Err() != nil {
		return c.opError(op, c.ended())
	}
	return nil
}

// Lock, Unlock and Use implement [rdma.Driver].
func (n nic) Lock()                            { n.port.Lock() }
func (n nic) Unlock()                          { n.port.Unlock() }
func (n nic) Use(op string, closed bool) error { return n.use(op, closed) }

// AllocPD makes a protection domain.
func (c *Context) AllocPD() *PD {
	c.port.Lock()
	defer c.port.Unlock()
	return c.dev.AllocPD()
}

// Addr is the context's address.
func (c *Context) Addr() netip.Addr { return c.port.Local().Addr() }

// GID is the address as a GID, ::ffff:a.b.c.d, as programs exchange it.
func (c *Context) GID() [16]byte { return c.Addr().As16() }

// ActiveMTU is the greatest path MTU that the link carries.
func (c *Context) ActiveMTU() MTU { return c.dev.ActiveMTU() }

// Serve polls until ctx ends or the context is closed: the software NIC. Its goroutine waits
// as [unet.HostConfig].Wait says; with endpoint.WaitSpin it takes a processor and serves remote
// accesses at once. Without it they are served by whichever goroutine polls, see
// docs/rdma.md. The error is that of ctx, or says why the context has ended.
func (c *Context) Serve(ctx context.Context) error {
	c.port.Lock()
	defer c.port.Unlock()
	return c.await(ctx, &c.serving, func() bool { return false })
}

// Poll takes in what has arrived and sends what is ready. It does not wait. An application
// that polls its memory calls it in the loop.
func (c *Context) Poll() {
	c.port.Lock()
	c.poll()
	c.port.Unlock()
}

// release sends the acknowledgments that wait for the application's next call: this one.
func (c *Context) release() {
	if c.acksHeld {
		c.port.Run()
	}
}

// poll needs the lock.
func (c *Context) poll() {
	c.release()
	c.polling = true
	c.port.Poll()
	c.polling = false
}

// Event is an asynchronous event (ibv_async_event): one of CQ, QP and SRQ is set.
type Event struct {
	Type EventType
	CQ   *CQ
	QP   *QP
	SRQ  *SRQ
}

// maxAsync bounds the events that nobody has taken; later ones are dropped.
const maxAsync = 1024

// AsyncEvent waits for an asynchronous event (ibv_get_async_event).
func (c *Context) AsyncEvent(ctx context.Context) (Event, error) {
	c.port.Lock()
	defer c.port.Unlock()
	if err := c.await(ctx, &c.happens, func() bool { return len(c.async) > 0 }); err != nil {
		return Event{}, c.opError("wait", err)
	}
	e := c.async[0]
	c.async = c.async[1:]
	if len(c.async) > 0 {
		c.port.Signal(&c.happens)
	}
	return e, nil
}

// EachCounter calls f for the counters of the engines, in a fixed order.
func (c *Context) EachCounter(f func(name string, value uint64)) {
	c.port.Lock()
	defer c.port.Unlock()
	c.dev.EachCounter(f)
	c.cm.EachCounter(func(name string, value uint64) { f("cm_"+name, value) })
	f("bad_mads", c.badMADs)
	f("async_events_dropped", c.missed)
}

// Datagram implements [stack.UDPHandler].
func (n nic) Datagram(now int64, p *stack.UDPPacket) {
	c := n.Context
	switch b := p.Payload; {
	case c.dev == nil: // Open has not returned
	case len(b) >= wire.BTHLen && binary.BigEndian.Uint32(b[4:])&0xffffff == wire.GSIQPN:
		c.inputMAD(now, p)
	default:
		in := &c.packet
		in.IP, in.Src, in.SrcPort, in.Data = p.Packet, p.Src.Addr, p.Src.Port, b
		in.CE = p.ECN == wire.ECNMarked
		c.dev.Process(rdma.Time(now), in)
	}
}

// Run implements [stack.UDPHandler].
func (n nic) Run(now int64) (deadline int64) {
	c, at := n.Context, rdma.Time(now)
	if c.dev == nil {
		return stack.Never
	}
	if c.dev.Deadline() <= at {
		c.dev.Expire(at)
	}
	if c.cm.Deadline() <= cm.Time(now) {
		c.cm.Expire(cm.Time(now))
	}
	hold := c.events() || c.polling
	c.cmEvents()
	c.sendMADs()
	q := c.dev.Ready(hold)
	for ; q != nil; q = c.dev.Ready(hold) {
		b := c.port.Reserve(q.Dst(), q.Room())
		if b == nil {
			break
		}
		if n := q.Emit(at, b); n > 0 {
			c.port.Send(n)
		} else {
			c.port.Cancel()
		}
	}
	c.events() // sends of UC and UD complete when they leave
	deadline = min(int64(c.dev.Deadline()), int64(c.cm.Deadline()))
	if c.acksHeld = hold && q == nil && c.dev.Ready(false) != nil; c.acksHeld {
		deadline = min(deadline, now+ackHold)
	}
	return deadline
}

// events wakes goroutines for the device's events. It reports whether one of them is the
// goroutine that polls: then the application acts next, and acknowledgments leave with what
// it sends.
func (c *Context) events() (polls bool) {
	for e, ok := c.dev.NextEvent(); ok; e, ok = c.dev.NextEvent() {
		out := Event{Type: e.Type}
		switch {
		case e.CQ != nil:
			out.CQ = e.CQ.Data.(*CQ)
			if e.Type == rdma.EventCompletion {
				polls = out.CQ.notify() || polls
				continue
			}
		case e.QP != nil:
			out.QP = e.QP.Data.(*QP)
			if e.Type == rdma.EventCommEst && out.QP.conn != nil {
				out.QP.conn.conn.CommEstablished()
				continue
			}
		case e.SRQ != nil:
			out.SRQ = e.SRQ
		}
		if len(c.async) == maxAsync {
			c.missed++
			continue
		}
		c.async = append(c.async, out)
		c.port.Signal(&c.happens)
	}
	return polls
}

// Failed implements [stack.UDPHandler].
func (n nic) Failed(error) {
	if n.port == nil { // Open has not returned
		return
	}
	for conn := range n.conns {
		conn.end()
	}
	n.dev.Close()
	n.events()
	for e := range n.waited {
		n.port.Broadcast(e)
	}
}

// ended is the error of a call on an object that is closed: why the port has ended, if it has,
// or ErrClosed.
func (c *Context) ended() error {
	if err := c.port.Err(); err != nil {
		return err
	}
	return ErrClosed
}

// await waits for e until done returns true. Errors: why the port has ended, and that of
// ctx. The lock is held, and released meanwhile.
func (c *Context) await(ctx context.Context, e *stack.Event, done func() bool) error {
	stop := context.AfterFunc(ctx, func() {
		c.port.Lock()
		c.port.Broadcast(e)
		c.port.Unlock()
	})
	defer stop()
	for !done() {
		if err := c.port.Err(); err != nil {
			return err
		}
		if err := contextError(ctx); err != nil {
			return err
		}
		c.port.Wait(e, stack.Never)
	}
	return nil
}

// contextError is the error of a call whose context has ended, or nil.
func contextError(ctx context.Context) error {
	switch ctx.Err() {
	case nil:
		return nil
	case context.DeadlineExceeded:
		return timeout{}
	}
	return context.Cause(ctx)
}

// timeout is the error of a call whose context's deadline has passed.
type timeout struct{}

func (timeout) Error() string   { return "i/o timeout" }
func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }
func (timeout) Is(target error) bool {
	return target == context.DeadlineExceeded || target == os.ErrDeadlineExceeded
}

// opError is err as a net.Error with the context's address.
func (c *Context) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "rdma", Source: net.UDPAddrFromAddrPort(c.port.Local()), Err: err}
}

// connError is err as a net.Error with both ends of a connection. Of a remote address without a port only
// the local one is known.
func connError(op string, local, remote netip.AddrPort, err error) error {
	return &net.OpError{Op: op, Net: "rdma", Source: net.UDPAddrFromAddrPort(local), Addr: net.UDPAddrFromAddrPort(remote), Err: err}
}
