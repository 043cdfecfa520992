//go:build linux

package control

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/notices"
	"github.com/unet-go/unet/internal/protocol"
)

// How long the application's end waits for unetd where no context bounds it.
const (
	requestTimeout = 5 * time.Second // to take a request off the socket
	reclaimTimeout = 2 * time.Second // to reclaim what a closed lease held
)

// rightsPause is how long the application's end waits before it sends a descriptor
// again that unetd does not take yet.
const rightsPause = time.Millisecond

// slotsForClaims is the number of a connection's MaxRequests slots that resolves do not use.
const slotsForClaims = 4

// errGone: the connection ended before the answer to a request. unetd may have acted on
// the request or not.
var errGone = errors.New("unetd closed the connection")

// connection is the application's end of one connection. One goroutine reads: it gives
// answers to the callers, by identifier, and notices to the watchers.
type connection struct {
	conn     *net.UnixConn
	watchers *notices.Watchers // get the notices that unetd sends; nil for an operator, who gets none
	paths    *notices.Paths    // gets the memory paths; nil for an operator

	// A request takes a slot before it is sent, and its answer frees the slot, also
	// when the caller no longer waits: unetd's limit is on requests in progress.
	slots chan struct{}
	// A resolve takes one of these too, so that some slots are left for claims: a resolve
	// may wait for a neighbour that does not answer.
	resolves chan struct{}

	writing        sync.Mutex // held around protocol.WriteRecord
	requestTimeout time.Duration

	mu sync.Mutex
	// +checklocks:mu
	calls map[uint64]*call // requests not answered yet
	// +checklocks:mu
	last uint64 // identifier of the last request

	done  chan struct{} // closed when the reader has ended
	cause error         // why the reader has ended; set before done is closed
	over  bool          // the lease has ended too, for this reason; set before done is closed

	tags []endpoint.Tag // that the endpoint had when it was presented on this connection
}

// call is a request in progress. Its answer is set before answered is closed.
type call struct {
	id       uint64
	op       string
	answered chan struct{}
	answer   protocol.Answer
}

// newConnection takes conn over.
func newConnection(conn *net.UnixConn, w *notices.Watchers, paths *notices.Paths) *connection {
	c := &connection{
		conn:     conn,
		watchers: w,
		paths:    paths,
		slots:    make(chan struct{}, protocol.MaxRequests),
		resolves: make(chan struct{}, protocol.MaxRequests-slotsForClaims),
		calls:    make(map[uint64]*call),
		done:     make(chan struct{}),

		requestTimeout: requestTimeout,
	}
	go c.read()
	return c
}

// ask sends a request and waits for its answer.
func (c *connection) ask(ctx context.Context, o protocol.Operation) (protocol.Answer, error) {
	call, err := c.send(ctx, o)
	if err != nil {
		return protocol.Answer{}, err
	}
	return c.wait(ctx, call)
}

// send sends a request. After an error the request was not sent, and unetd does not act on it.
func (c *connection) send(ctx context.Context, o protocol.Operation) (*call, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := c.reserve(ctx, o.Op); err != nil {
		return nil, err
	}
	request := &call{op: o.Op, answered: make(chan struct{})}
	c.mu.Lock()
	c.last++
	request.id = c.last
	c.calls[request.id] = request
	c.mu.Unlock()

	record, err := o.Record(request.id)
	if err == nil {
		c.writing.Lock()
		err = protocol.WriteRecord(c.conn, record, c.requestTimeout, o.Files...)
		// EPERM: the connection waits to be accepted by a listener that receives no
		// descriptors (SO_PASSRIGHTS).
		for end := time.Now().Add(c.requestTimeout); len(o.Files) > 0 && errors.Is(err, unix.EPERM) && time.Now().Before(end); {
			select {
			case <-time.After(rightsPause):
				err = protocol.WriteRecord(c.conn, record, c.requestTimeout, o.Files...)
			case <-c.done:
				err = net.ErrClosed
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		c.writing.Unlock()
	}
	switch {
	case err == nil:
		return request, nil
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET), errors.Is(err, net.ErrClosed):
		// The reader ends next, and may read the reason before.
		select {
		case <-c.done:
			err = errGone
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	case errors.Is(err, os.ErrDeadlineExceeded):
		// The lease goes on: unetd may be stopped (SIGSTOP) and continue, and the endpoint
		// works without it.
		err = protocol.Busy("unetd has not taken a request for %v", c.requestTimeout)
	case len(o.Files) > 0 && errors.Is(err, unix.EPERM):
		err = protocol.Busy("unetd has not taken a request with a descriptor for %v", c.requestTimeout)
	}
	c.free(request)
	return nil, err
}

// reserve waits for a slot for a request.
func (c *connection) reserve(ctx context.Context, op string) error {
	places := []chan struct{}{c.slots}
	if op == protocol.OpResolve {
		places = []chan struct{}{c.resolves, c.slots}
	}
	for i, place := range places {
		var err error
		select {
		case place <- struct{}{}:
			continue
		case <-c.done:
			err = errGone
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		for _, taken := range places[:i] {
			<-taken
		}
		return err
	}
	return nil
}

// wait waits for the answer to a request. It returns the error that the answer has.
func (c *connection) wait(ctx context.Context, request *call) (protocol.Answer, error) {
	select {
	case <-request.answered:
	case <-c.done:
		if !isClosed(request.answered) {
			return protocol.Answer{}, errGone
		}
	case <-ctx.Done():
		if !isClosed(request.answered) {
			return protocol.Answer{}, context.Cause(ctx)
		}
	}
	if request.answer.Error != nil {
		return protocol.Answer{}, request.answer.Error
	}
	return request.answer, nil
}

// end closes the connection.
func (c *connection) end() {
	c.conn.Close()
	<-c.done
}

// finish gives the lease of the connection back, and waits until unetd has reclaimed it, for
// reclaimTimeout at most: unetd reclaims it in any case when it reads the end of the stream.
func (c *connection) finish() {
	if c.conn.CloseWrite() == nil {
		select {
		case <-c.done:
		case <-time.After(reclaimTimeout):
		}
	}
	c.end()
}

// free removes a request that was answered, or not sent, and frees its slot.
func (c *connection) free(request *call) {
	c.mu.Lock()
	delete(c.calls, request.id)
	c.mu.Unlock()
	<-c.slots
	if request.op == protocol.OpResolve {
		<-c.resolves
	}
}

// read delivers records until the connection ends.
func (c *connection) read() {
	defer close(c.done)
	defer c.conn.Close()
	for {
		record, fds, err := protocol.ReadRecord(c.conn, protocol.PathDescriptors)
		if err != nil {
			protocol.CloseAll(fds)
			if errors.Is(err, protocol.ErrNoDescriptors) && c.refuse(record) {
				err = nil
			}
		} else {
			err = c.deliver(record, fds)
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, net.ErrClosed):
			if !c.over {
				c.cause = errGone
			}
		default:
			c.cause, c.over = err, true
		}
		return
	}
}

// refuse gives back the memory path of an event whose descriptors this process had no room for:
// another endpoint can ask for one at any time, and must not end the lease so. It returns false for other records.
func (c *connection) refuse(record []byte) bool {
	a, err := protocol.ParseIncoming(record, protocol.PathDescriptors)
	if err != nil || a.Path == nil {
		return false
	}
	c.unpath(a.Path.ID)
	return true
}

// unpath gives back a memory path that nobody takes. It does not wait.
func (c *connection) unpath(id uint64) {
	go func() { _, _ = c.ask(context.Background(), protocol.Operation{Op: protocol.OpUnpath, Path: id}) }()
}

// deliver gives one record to the caller that waits for it, or to the watchers. It takes the
// descriptors over. An error ends the connection and the lease.
func (c *connection) deliver(record []byte, fds []int) error {
	a, err := protocol.ParseIncoming(record, len(fds))
	if err != nil {
		protocol.CloseAll(fds)
		return err
	}
	switch {
	case a.Event == protocol.EventClosed:
		if a.Message == "" {
			return errors.New("unetd has ended it")
		}
		return errors.New(a.Message)
	case a.Path != nil && c.paths == nil:
		protocol.CloseAll(fds)
		return protocol.Violation("a memory path for an operator")
	case a.Path != nil:
		if a.Adopt(fds); !c.paths.Give(a.Path) {
			c.unpath(a.Path.ID)
			return a.Path.Close()
		}
		return nil
	case a.Event != "":
		if c.watchers != nil {
			c.watchers.Tell(a.Notices()...)
		}
		return nil
	case a.ID == 0:
		if a.Error == nil { // a nil *Error would be an error that is not nil
			protocol.CloseAll(fds)
			return protocol.Violation("an answer without id")
		}
		return a.Error
	}
	c.mu.Lock()
	request := c.calls[a.ID]
	c.mu.Unlock()
	if request == nil || !a.Answers(request.op) {
		protocol.CloseAll(fds)
		return protocol.Violation("an answer with id %d, which is not that of a request of its kind", a.ID)
	}
	if a.Error != nil && errors.Is(a.Error, protocol.ErrProtocol) {
		// unetd closes the connection after this, and reclaims the endpoint.
		c.cause, c.over = a.Error, true
	}
	// Before the next record, which may be an event about an address.
	switch {
	case a.Grant != nil:
		c.watchers.Granted(a.Grant.Identity.Addrs)
	case a.Lease != nil:
		c.watchers.Renew()
	}
	a.Adopt(fds)
	if before := request.answer.Lease; before != nil && a.Lease != nil {
		a.Lease.Tags = append(before.Tags, a.Lease.Tags...)
	}
	request.answer = a.Answer
	if a.Lease != nil && a.Lease.More {
		return nil
	}
	c.free(request)
	close(request.answered)
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
