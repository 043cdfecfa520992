package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
)

// Pauses between attempts to find another unetd. The first is short, since an
// endpoint gets no routes and no tags meanwhile; the longest bounds what
// hundreds of applications without a unetd cost the host.
const (
	shortestPause = 10 * time.Millisecond
	longestPause  = 500 * time.Millisecond
)

// keep waits for the end of each connection, and looks for another one, until the
// lease ends.
func (l *Lease) keep() {
	c := l.conn
	for {
		<-c.done
		if l.ctx.Err() != nil {
			l.end(nil)
			return
		}
		if c.over {
			l.end(c.cause)
			return
		}
		next, err := l.reconnect()
		if next == nil {
			l.end(err)
			return
		}
		c = next
	}
}

// end is the end of the lease. Without a cause it is being closed.
func (l *Lease) end(cause error) {
	l.cancel()
	l.cause = errors.Join(cause, closeFiles(l.files))
	close(l.done)
}

// move makes next the connection that carries the lease, and tells all who wait
// for one, unless the lease is being closed.
func (l *Lease) move(next *connection) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return false
	}
	l.conn = next
	close(l.moved)
	l.moved = make(chan struct{})
	has := make(map[endpoint.Tag]bool, len(next.tags))
	for _, t := range next.tags {
		has[t] = true
	}
	for t := range l.held {
		if !has[t] {
			delete(l.held, t)
		}
	}
	l.watchers.Tell(endpoint.Notice{Kind: endpoint.NoticeRoute})
	return true
}

// connection waits until there is one that has not ended, or the lease has.
func (l *Lease) connection(ctx context.Context) (*connection, error) {
	for {
		if isClosed(l.done) {
			return nil, l.Err()
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		l.mu.Lock()
		c, moved := l.conn, l.moved
		l.mu.Unlock()
		if !isClosed(c.done) {
			return c, nil
		}
		select {
		case <-moved:
		case <-l.done:
		case <-ctx.Done():
		}
	}
}

// reconnect tries until the endpoint has a lease again, and returns its
// connection. There is none after an error, which is final, nor when the lease is
// being closed, which is none.
func (l *Lease) reconnect() (*connection, error) {
	for pause := shortestPause; ; pause = min(2*pause, longestPause) {
		select {
		case <-time.After(pause):
		case <-l.ctx.Done():
			return nil, nil
		}
		c, err := l.present()
		switch {
		case err == nil && l.move(c):
			return c, nil
		case err == nil:
			c.finish()
			return nil, nil
		case final(err):
			return nil, fmt.Errorf("unetd was started anew, and does not take the endpoint back: %w", err)
		}
	}
}

// present makes a connection and asks for the lease of the endpoint on it. There
// is no time limit on the answer: to hang up on a unetd that is about to grant
// the lease would be to give it back.
func (l *Lease) present() (*connection, error) {
	conn, err := dialOnce(l.ctx, l.socket)
	if err != nil {
		return nil, err
	}
	c := newConnection(conn, l.watchers)
	a, err := c.ask(l.ctx, protocol.Operation{Op: protocol.OpPresent, Files: l.files})
	if err == nil {
		c.tags = a.Lease.Tags
		return c, nil
	}
	c.end()
	if errors.Is(err, errGone) && c.over {
		err = &refusal{c.cause}
	}
	return nil, err
}

// refusal is how a unetd ended the connection on which it was to answer.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// final reports whether an endpoint that could not be presented for this reason
// never can be. What unetd did not say itself, as that nobody listens or that
// the socket's permissions are in the way, may change.
func final(err error) bool {
	var answered *protocol.Error
	var refused *refusal
	switch {
	case errors.As(err, &answered):
		for _, is := range []error{endpoint.ErrNotPresentable, endpoint.ErrLeased, protocol.ErrProtocol, os.ErrPermission, errors.ErrUnsupported, endpoint.ErrLeaseClosed} {
			if errors.Is(answered, is) {
				return true
			}
		}
		return false
	case errors.As(err, &refused):
		return true // an event closed, or a violation of the protocol
	}
	return false
}
