package verbs

import (
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/rdma"
	"github.com/unet-go/unet/stack"
)

// CQ is a completion queue (ibv_cq).
type CQ struct {
	ctx     *Context
	cq      *rdma.CQ
	filled  stack.Event
	channel *CompChannel // nil: none
	queued  bool         // on the channel
	closed  bool
}

// CreateCQ makes a queue for cqe completions (ibv_create_cq). channel may be nil.
func (c *Context) CreateCQ(cqe int, channel *CompChannel) (*CQ, error) {
	c.port.Lock()
	defer c.port.Unlock()
	if err := c.use("create CQ", channel != nil && channel.closed); err != nil {
		return nil, err
	}
	cq, err := c.dev.CreateCQ(cqe)
	if err != nil {
		return nil, err
	}
	q := &CQ{ctx: c, cq: cq, channel: channel}
	if channel != nil {
		channel.queues++
	}
	cq.Data = q
	c.waited[&q.filled] = struct{}{}
	return q, nil
}

// Close ends the queue (ibv_destroy_cq), and drops its notification. The error is EBUSY if a queue pair uses it.
func (q *CQ) Close() error {
	q.ctx.port.Lock()
	defer q.ctx.port.Unlock()
	if err := q.ctx.use("close CQ", q.closed); err != nil {
		return err
	}
	if err := q.cq.Close(); err != nil {
		return err
	}
	q.closed = true
	q.ctx.port.Broadcast(&q.filled)
	delete(q.ctx.waited, &q.filled)
	if ch := q.channel; ch != nil {
		q.channel = nil
		ch.queues--
		ch.ready = slices.DeleteFunc(ch.ready, func(r *CQ) bool { return r == q })
	}
	return nil
}

// Poll moves completions into wcs, the oldest first, and returns how many (ibv_poll_cq). It
// does not wait. If there are none, it takes in what has arrived. After the end of the context it returns the
// completions of what was flushed, and then 0: see [Context.Err].
func (q *CQ) Poll(wcs []WC) int {
	c := q.ctx
	c.port.Lock()
	n := q.cq.Poll(wcs)
	if n == 0 && len(wcs) > 0 {
		c.poll()
		n = q.cq.Poll(wcs)
	}
	c.port.Unlock()
	return n
}

// Wait is Poll, but waits until there is a completion, or until a deadline: the zero time is
// none. It waits as the host's sockets do: it polls the network itself, unless another
// goroutine does. The errors are net.Errors: os.ErrDeadlineExceeded, and those with which
// the context has ended.
func (q *CQ) Wait(wcs []WC, deadline time.Time) (n int, err error) {
	c, at := q.ctx, stack.Never
	if len(wcs) == 0 {
		return 0, nil
	}
	c.port.Lock()
	if n = q.cq.Poll(wcs); n == 0 {
		if !deadline.IsZero() {
			at = c.port.Deadline(deadline)
		}
		n, err = q.wait(wcs, at)
	}
	c.port.Unlock()
	if err != nil {
		err = c.opError("wait", err)
	}
	return n, err
}

// wait waits until there is a completion.
func (q *CQ) wait(wcs []WC, deadline int64) (int, error) {
	c := q.ctx
	c.release()
	for {
		if q.closed || c.closing || c.port.Err() != nil {
			return 0, c.ended()
		}
		q.cq.ReqNotify(false)
		c.port.Wait(&q.filled, deadline)
		if c.closing || c.port.Err() != nil {
			continue // what was flushed is for the next call
		}
		if n := q.cq.Poll(wcs); n > 0 {
			if q.cq.Len() > 0 {
				c.port.Signal(&q.filled) // for another goroutine that waits
			}
			return n, nil
		}
		if deadline != stack.Never && c.port.Now() >= deadline {
			return 0, os.ErrDeadlineExceeded
		}
	}
}

// ReqNotify asks for a notification on the queue's channel of the next completion, or with
// solicitedOnly, of the next whose sender has asked for an event (ibv_req_notify_cq).
// Completions that are in the queue cause none: poll after the call.
func (q *CQ) ReqNotify(solicitedOnly bool) {
	q.ctx.port.Lock()
	q.cq.ReqNotify(solicitedOnly)
	q.ctx.port.Unlock()
}

// notify tells of a completion. It reports whether the goroutine that polls waits for it.
func (q *CQ) notify() (polls bool) {
	p := q.ctx.port
	polls = p.Signal(&q.filled)
	if ch := q.channel; ch != nil && !q.queued {
		q.queued = true
		ch.ready = append(ch.ready, q)
		polls = p.Signal(&ch.filled) || polls
	}
	return polls
}

// CompChannel is where goroutines wait for several completion queues
// (ibv_comp_channel).
type CompChannel struct {
	ctx    *Context
	ready  []*CQ
	queues int // that use it
	filled stack.Event
	closed bool
}

// CreateCompChannel makes a channel.
func (c *Context) CreateCompChannel() *CompChannel {
	c.port.Lock()
	defer c.port.Unlock()
	ch := &CompChannel{ctx: c}
	c.waited[&ch.filled] = struct{}{}
	return ch
}

// Close ends the channel (ibv_destroy_comp_channel). The error is EBUSY if a completion queue
// uses it.
func (ch *CompChannel) Close() error {
	ch.ctx.port.Lock()
	defer ch.ctx.port.Unlock()
	if err := ch.ctx.use("close completion channel", ch.closed); err != nil {
		return err
	}
	if ch.queues > 0 {
		return fmt.Errorf("rdma: close completion channel: %d completion queues use it: %w", ch.queues, syscall.EBUSY)
	}
	ch.closed = true
	ch.ctx.port.Broadcast(&ch.filled)
	delete(ch.ctx.waited, &ch.filled)
	return nil
}

// Get waits for the notification of a queue (ibv_get_cq_event), as [CQ.Wait] waits. The
// queue has been disarmed: call ReqNotify, then Poll. Nothing has to be acknowledged.
func (ch *CompChannel) Get(ctx context.Context) (*CQ, error) {
	c := ch.ctx
	c.port.Lock()
	defer c.port.Unlock()
	c.release()
	err := c.await(ctx, &ch.filled, func() bool { return len(ch.ready) > 0 || ch.closed })
	if err == nil && ch.closed {
		err = c.ended()
	}
	if err != nil {
		return nil, c.opError("wait", err)
	}
	q := ch.ready[0]
	ch.ready = append(ch.ready[:0], ch.ready[1:]...)
	q.queued = false
	if len(ch.ready) > 0 {
		c.port.Signal(&ch.filled)
	}
	return q, nil
}
