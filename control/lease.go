package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
)

// How long the application's end waits for unetd where no context bounds it.
const (
	requestTimeout = 5 * time.Second // to take a request off the socket
	reclaimTimeout = 2 * time.Second // to reclaim what a closed lease held
)

// Lease is an endpoint's standing with unetd, and the connection that carries
// it. It implements [endpoint.Lease]. A request whose context ends leaves the
// lease as it was. Once the connection is gone every method returns an error
// that wraps [endpoint.ErrLeaseClosed].
//
// One goroutine reads answers and hands them to the callers by identifier.
type Lease struct {
	conn *net.UnixConn

	// A request takes a slot before it is sent and its answer gives it back,
	// also when the caller no longer waits: unetd's limit is on its own work.
	slots chan struct{}
	// Claims and unclaims happen one at a time, so that a claim which its
	// caller has given up on is undone before the same tag is claimed again.
	tags chan struct{}

	writing sync.Mutex // held around writeRecord

	mu    sync.Mutex
	calls map[uint64]*call // requests not answered yet
	last  uint64           // identifier given out last

	done  chan struct{} // closed when the reader has ended
	cause error         // why it has; set before done is closed

	closing sync.Once
}

// call is a request on its way. Its answer is set before answered is closed.
type call struct {
	id       uint64
	op       string
	answered chan struct{}
	answer   answer
}

var _ endpoint.Lease = (*Lease)(nil)

// Open connects to the unetd that listens at socket, and opens an endpoint.
// The context bounds the opening only. The grant's descriptors are the
// caller's to close, or to hand to [endpoint.Attach]; the lease lives until
// [Lease.Close], the end of this process or that of unetd.
func Open(ctx context.Context, socket string, req endpoint.Request) (*endpoint.Grant, *Lease, error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, nil, err
	}
	grant, lease, err := open(ctx, conn, req)
	if err != nil {
		return nil, nil, fmt.Errorf("unetd at %s: %w", socket, err)
	}
	return grant, lease, nil
}

// open asks for an endpoint on a fresh connection, which it takes over.
func open(ctx context.Context, conn *net.UnixConn, req endpoint.Request) (*endpoint.Grant, *Lease, error) {
	l := &Lease{
		conn:  conn,
		slots: make(chan struct{}, MaxRequests),
		tags:  make(chan struct{}, 1),
		calls: make(map[uint64]*call),
		done:  make(chan struct{}),
	}
	go l.read()
	c, err := l.send(ctx, operation{op: opOpen, open: req})
	if err == nil {
		err = l.wait(ctx, c)
	}
	if err == nil {
		return c.answer.Grant, l, nil
	}
	conn.Close()
	<-l.done
	answered := c != nil && c.isAnswered()
	if answered && c.answer.Grant != nil { // it came just after ctx had ended
		c.answer.Grant.Close()
	}
	if !answered && l.cause != nil {
		err = l.cause // there was no lease yet that could have closed
	}
	return nil, nil, err
}

// Claim adds a tag; see [endpoint.Lease]. If ctx ends first, a claim that
// succeeds nevertheless is given back.
func (l *Lease) Claim(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	var claimed endpoint.Tag
	err := l.changeTags(ctx, operation{op: opClaim, tag: t}, func(c *call) { claimed = *c.answer.Tag })
	return claimed, err
}

// Unclaim gives a tag back; see [endpoint.Lease]. It may take effect also when
// ctx ends first.
func (l *Lease) Unclaim(ctx context.Context, t endpoint.Tag) error {
	return l.changeTags(ctx, operation{op: opUnclaim, tag: t}, func(*call) {})
}

// Resolve asks the route service; see [endpoint.Lease].
func (l *Lease) Resolve(ctx context.Context, dst netip.Addr) (endpoint.Route, error) {
	if !dst.IsValid() {
		return endpoint.Route{}, fmt.Errorf("%w: no address given", endpoint.ErrUnreachable)
	}
	c, err := l.send(ctx, operation{op: opResolve, addr: dst})
	if err == nil {
		err = l.wait(ctx, c)
	}
	if err != nil {
		return endpoint.Route{}, err
	}
	return *c.answer.Route, nil
}

// Done is closed when the lease has ended, be it by Close or because unetd
// went away.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Close gives everything back, and returns when unetd has reclaimed it, or
// does not seem to: the end of the connection will tell it in any case.
func (l *Lease) Close() error {
	l.closing.Do(func() {
		if l.conn.CloseWrite() == nil {
			select {
			case <-l.done:
			case <-time.After(reclaimTimeout):
			}
		}
		l.conn.Close()
	})
	<-l.done
	return nil
}

// changeTags does a claim or an unclaim, one at a time. On success it calls
// use with the answer.
func (l *Lease) changeTags(ctx context.Context, o operation, use func(*call)) error {
	select {
	case l.tags <- struct{}{}:
	case <-l.done:
		return l.closed()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	c, err := l.send(ctx, o)
	if err == nil {
		err = l.wait(ctx, c)
	}
	if err == nil {
		use(c)
	}
	if err == nil || c == nil || l.isDone() || c.isAnswered() && c.answer.Error != nil {
		<-l.tags
		return err
	}
	// The caller has gone, its request has not.
	go func() {
		defer func() { <-l.tags }()
		if l.wait(context.Background(), c) != nil || o.op != opClaim {
			return
		}
		if undo, err := l.send(context.Background(), operation{op: opUnclaim, tag: *c.answer.Tag}); err == nil {
			_ = l.wait(context.Background(), undo)
		}
	}()
	return err
}

// send puts a request on its way.
func (l *Lease) send(ctx context.Context, o operation) (*call, error) {
	if l.isDone() {
		return nil, l.closed()
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, l.closed()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	c := &call{op: o.op, answered: make(chan struct{})}
	l.mu.Lock()
	l.last++
	c.id = l.last
	l.calls[c.id] = c
	l.mu.Unlock()

	record, err := o.record(c.id)
	if err != nil { // what was asked for cannot be said
		l.forget(c)
		return nil, err
	}
	l.writing.Lock()
	err = writeRecord(l.conn, record, requestTimeout)
	l.writing.Unlock()
	if err != nil {
		// Unless unetd has hung up, and perhaps said why, it is stuck.
		if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
			l.conn.Close()
		}
		select {
		case <-l.done:
			return c, l.closed()
		case <-ctx.Done():
			return c, context.Cause(ctx)
		}
	}
	return c, nil
}

// wait waits for the answer to a request, and makes its error one.
func (l *Lease) wait(ctx context.Context, c *call) error {
	select {
	case <-c.answered:
	case <-l.done:
		if !c.isAnswered() {
			return l.closed()
		}
	case <-ctx.Done():
		if !c.isAnswered() {
			return context.Cause(ctx)
		}
	}
	if c.answer.Error != nil {
		return c.answer.Error
	}
	return nil
}

func (c *call) isAnswered() bool {
	select {
	case <-c.answered:
		return true
	default:
		return false
	}
}

func (l *Lease) isDone() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// closed is the error of a lease that has ended; done is closed.
func (l *Lease) closed() error {
	if l.cause == nil {
		return endpoint.ErrLeaseClosed
	}
	return fmt.Errorf("%w: %w", endpoint.ErrLeaseClosed, l.cause)
}

// forget takes a request back, or finishes it.
func (l *Lease) forget(c *call) {
	l.mu.Lock()
	delete(l.calls, c.id)
	l.mu.Unlock()
	<-l.slots
}

// read hands answers out until the connection ends.
func (l *Lease) read() {
	defer close(l.done)
	defer l.conn.Close()
	for {
		record, fds, err := readRecord(l.conn, grantDescriptors)
		if err == nil {
			err = l.deliver(record, fds)
		}
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed): // Close, or open that failed
			return
		case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
			l.cause = errors.New("unetd closed the connection")
			return
		default:
			l.cause = err
			return
		}
	}
}

// deliver hands one record to the caller it is for. It takes the descriptors
// over. An error ends the connection.
func (l *Lease) deliver(record []byte, fds []int) error {
	a, err := parseAnswer(record, len(fds))
	if err != nil {
		closeAll(fds)
		return err
	}
	if a.Event != "" {
		return nil
	}
	if a.ID == 0 {
		if a.Error == nil { // a nil *Error would be an error that is not nil
			closeAll(fds)
			return violation("an answer to no request")
		}
		return a.Error
	}
	l.mu.Lock()
	c := l.calls[a.ID]
	l.mu.Unlock()
	if c == nil || !a.answers(c.op) {
		closeAll(fds)
		return violation("an answer with id %d that answers no request", a.ID)
	}
	if a.Grant != nil {
		a.Grant.XSK = os.NewFile(uintptr(fds[0]), "unet-xsk")
		a.Grant.Segment = os.NewFile(uintptr(fds[1]), "unet-segment")
	}
	c.answer = a
	l.forget(c)
	close(c.answered)
	return nil
}

// answers reports whether a is what an answer to op looks like.
func (a answer) answers(op string) bool {
	if a.Error != nil {
		return true
	}
	switch op {
	case opOpen:
		return a.Grant != nil
	case opClaim:
		return a.Tag != nil
	case opResolve:
		return a.Route != nil
	}
	return a.Grant == nil && a.Tag == nil && a.Route == nil
}
