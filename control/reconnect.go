//go:build linux

package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
)

// Pauses between attempts to connect to another unetd. The first is short, since an
// endpoint gets no routes and no tags meanwhile; the longest limits the load that hundreds
// of applications cause while no unetd runs.
const (
	shortestPause = 10 * time.Millisecond
	longestPause  = 500 * time.Millisecond
)

// keep waits for the end of each connection, and makes another one, until the lease ends.
func (l *Lease) keep(c *connection) {
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
		l.watchers.Tell(endpoint.Notice{Kind: endpoint.NoticeUnetdGone})
		next, err := l.reconnect()
		if next == nil {
			l.end(err)
			return
		}
		c = next
	}
}

// end ends the lease; cause is nil if it is being closed.
func (l *Lease) end(cause error) {
	l.cancel()
	l.paths.End()
	l.cause = errors.Join(cause, closeFiles(l.files))
	close(l.done)
}

// move makes next the connection that carries the lease, and wakes the calls that wait for
// one. It returns false if the lease is being closed.
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
	l.watchers.Tell(endpoint.Notice{Kind: endpoint.NoticeUnetdBack}, endpoint.Notice{Kind: endpoint.NoticeRoute})
	return true
}

// connection waits for a connection that has not ended. It returns an error if the lease or
// ctx ends first.
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

// reconnect tries until the endpoint has a lease again, and returns its connection. It
// returns nil and a final error, or nil and no error if the lease is being closed.
func (l *Lease) reconnect() (*connection, error) {
	var dead time.Time // when the socket was found to be one that was removed
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
			return nil, fmt.Errorf("unetd was restarted and does not take the endpoint back: %w", err)
		case l.portGone():
			return nil, fmt.Errorf("the port of the endpoint was deleted, by an operator or by a unetd to which this process could not connect: %w", explainDial(l.socket, err))
		case !removed(l.socket):
			dead = time.Time{}
		case dead.IsZero():
			dead = time.Now()
		case l.queue && time.Since(dead) > usualGrace:
			return nil, fmt.Errorf("this process cannot connect to the next unetd: %w", explainDial(l.socket, err))
		}
	}
}

// usualGrace is how long a unetd waits for endpoints of an earlier one (unetd serve --grace), if not
// told otherwise.
const usualGrace = 10 * time.Second

// portGone reports whether the device to which the endpoint's socket was bound is gone: a unetd that has
// reclaimed the endpoint has deleted its port. recvmsg(2) on an XSK moves no frame and returns ENXIO then
// (xsk_recvmsg, net/xdp/xsk.c). A queue of the uplink is never gone so.
func (l *Lease) portGone() bool {
	raw, err := l.files[0].SyscallConn()
	if err != nil {
		return false
	}
	ctlErr := raw.Control(func(fd uintptr) { _, _, err = unix.Recvfrom(int(fd), nil, unix.MSG_DONTWAIT) })
	return ctlErr == nil && errors.Is(err, unix.ENXIO)
}

// removed reports whether a path is that of a socket without a name. So is a mount of a socket, as in a
// container, once the socket was removed: no unetd will ever listen there, but at the path outside.
func removed(socket string) bool {
	var st unix.Stat_t
	return unix.Stat(socket, &st) == nil && st.Nlink == 0
}

// present makes a connection and presents the endpoint on it. There is no timeout for the
// answer: to close the connection after unetd has granted the lease would end the endpoint.
func (l *Lease) present() (*connection, error) {
	conn, err := dialOnce(l.ctx, l.socket)
	if err != nil {
		return nil, err
	}
	c := newConnection(conn, l.watchers, &l.paths)
	a, err := c.ask(l.ctx, protocol.Operation{Op: protocol.OpPresent, Files: l.files, MemoryPaths: l.shares})
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

// refusal is the reason for which unetd ended a connection instead of answering.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// final reports whether the endpoint can never be presented after this error. After errors
// that do not come from unetd, such as those of connect(2), a later attempt may succeed.
func final(err error) bool {
	var answered *protocol.Error
	var refused *refusal
	switch {
	case errors.As(err, &answered):
		finals := []error{endpoint.ErrNotPresentable, endpoint.ErrLeased, protocol.ErrProtocol, os.ErrPermission, errors.ErrUnsupported, endpoint.ErrLeaseClosed}
		return slices.ContainsFunc(finals, func(e error) bool { return errors.Is(answered, e) })
	case errors.As(err, &refused):
		return true // the event closed, or a violation of the protocol
	}
	return false
}
