//go:build linux

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
)

// Operator asks what only operators may ask of a unetd: root, unetd's user, and users whose
// rule has operator: true. Others get os.ErrPermission. Each call is a connection of its own.
type Operator struct {
	Socket string // the path of unetd's socket; empty means DefaultSocket
}

// List returns all endpoints, by identifier.
func (op Operator) List(ctx context.Context) ([]endpoint.Info, error) {
	var all []endpoint.Info
	err := op.ask(ctx, protocol.Operation{Op: protocol.OpList}, func(a protocol.Answer, o *protocol.Operation) (more bool, err error) {
		for _, e := range *a.Endpoints {
			if n := len(all); n > 0 && e.ID <= all[n-1].ID {
				return false, protocol.Violation("endpoint %d comes after %d", e.ID, all[n-1].ID)
			}
			all = append(all, e)
		}
		if !a.More || len(*a.Endpoints) == 0 {
			return false, nil
		}
		o.After = &all[len(all)-1].ID
		return true, nil
	})
	return all, err
}

// Counters returns all counters.
func (op Operator) Counters(ctx context.Context) ([]endpoint.Counter, error) {
	var all []endpoint.Counter
	err := op.ask(ctx, protocol.Operation{Op: protocol.OpCounters}, func(a protocol.Answer, o *protocol.Operation) (more bool, err error) {
		all = append(all, *a.Counters...)
		n := uint64(len(all))
		o.After = &n
		return a.More && len(*a.Counters) > 0, nil
	})
	return all, err
}

// Status returns the state of all endpoints and of the sockets that their processes publish,
// by identifier and record. The error of an older unetd is an ErrProtocol.
func (op Operator) Status(ctx context.Context) ([]endpoint.Status, error) {
	var all []endpoint.Status
	err := op.ask(ctx, protocol.Operation{Op: protocol.OpStatus}, func(a protocol.Answer, o *protocol.Operation) (more bool, err error) {
		for _, e := range *a.Status {
			last := len(all) - 1
			if last < 0 || e.ID > all[last].ID {
				all = append(all, e)
				continue
			}
			was := all[last].Sockets
			if e.ID < all[last].ID || len(e.Sockets) > 0 && len(was) > 0 && e.Sockets[0].Record <= was[len(was)-1].Record {
				return false, protocol.Violation("endpoint %d, or a socket of it, comes again", e.ID)
			}
			e.Sockets = append(was, e.Sockets...)
			all[last] = e
		}
		if !a.More || len(*a.Status) == 0 {
			return false, nil
		}
		e := &all[len(all)-1]
		before := o.Socket
		o.After, o.Socket = &e.ID, nil
		if n := len(e.Sockets); e.SocketsMore && n > 0 {
			o.Socket = &e.Sockets[n-1].Record
		}
		if e.SocketsMore && (o.Socket == nil || before != nil && *before == *o.Socket) {
			return false, protocol.Violation("endpoint %d has more sockets, but none came", e.ID)
		}
		return true, nil
	})
	for i := range all {
		all[i].SocketsMore = false // they are there, or the endpoint has ended meanwhile
	}
	return all, err
}

// Uplinks returns the interfaces that unetd serves, and whether it is being drained: it grants
// no endpoints then.
func (op Operator) Uplinks(ctx context.Context) (list []endpoint.Uplink, draining bool, err error) {
	a, err := op.askOnce(ctx, protocol.Operation{Op: protocol.OpUplinks})
	if err != nil {
		return nil, false, err
	}
	return *a.Uplinks, a.Draining, nil
}

// Revoke ends the lease of an endpoint. Its application learns the reason, which may be empty
// and is otherwise of one line and at most 256 bytes. When Revoke returns, tags and port are
// free. The error is an endpoint.ErrNoEndpoint if there is no such endpoint.
func (op Operator) Revoke(ctx context.Context, id uint64, reason string) error {
	_, err := op.askOnce(ctx, protocol.Operation{Op: protocol.OpRevoke, Endpoint: id, Reason: reason})
	return err
}

// Reload makes unetd read its policy again, and returns what has changed. After an error the
// old policy stays.
func (op Operator) Reload(ctx context.Context) (endpoint.PolicyChange, error) {
	a, err := op.askOnce(ctx, protocol.Operation{Op: protocol.OpReload})
	if err != nil {
		return endpoint.PolicyChange{}, err
	}
	return *a.Reloaded, nil
}

// Drain makes unetd grant no endpoints from now on. Existing leases are not affected, and those
// of an earlier unetd can be presented. The next unetd grants endpoints.
func (op Operator) Drain(ctx context.Context) error {
	_, err := op.askOnce(ctx, protocol.Operation{Op: protocol.OpDrain})
	return err
}

// Capture makes unetd end the memory paths of an endpoint (nil: of all), and grant it none, since no
// capture sees their frames. That lasts until ctx ends, or unetd does: ended is closed then. The error is an
// endpoint.ErrNoEndpoint if there is no such endpoint; of an older unetd it is an ErrProtocol.
func (op Operator) Capture(ctx context.Context, id *uint64) (ended <-chan struct{}, err error) {
	socket := cmp.Or(op.Socket, DefaultSocket)
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	c := newConnection(conn, nil, nil)
	if _, err = c.ask(ctx, protocol.Operation{Op: protocol.OpCapture, Captured: id}); err != nil {
		c.end()
		if errors.Is(err, errGone) {
			err = c.cause
		}
		return nil, fmt.Errorf("unetd at %s: %w", socket, err)
	}
	context.AfterFunc(ctx, c.end)
	return c.done, nil
}

// Resume ends what Drain has begun: unetd grants endpoints again.
func (op Operator) Resume(ctx context.Context) error {
	_, err := op.askOnce(ctx, protocol.Operation{Op: protocol.OpDrain, Undo: true})
	return err
}

// askOnce asks one question on a connection of its own.
func (op Operator) askOnce(ctx context.Context, o protocol.Operation) (a protocol.Answer, err error) {
	err = op.ask(ctx, o, func(answer protocol.Answer, _ *protocol.Operation) (bool, error) {
		a = answer
		return false, nil
	})
	return a, err
}

// ask sends a request, and again as long as use says that there is more. use takes each answer
// and changes the operation to the next one.
func (op Operator) ask(ctx context.Context, o protocol.Operation, use func(protocol.Answer, *protocol.Operation) (more bool, err error)) error {
	socket := cmp.Or(op.Socket, DefaultSocket)
	conn, err := dial(ctx, socket)
	if err != nil {
		return err
	}
	c := newConnection(conn, nil, nil)
	defer c.end()
	for {
		a, err := c.ask(ctx, o)
		if errors.Is(err, errGone) {
			err = c.cause
		}
		more := false
		if err == nil {
			more, err = use(a, &o)
		}
		if err != nil {
			return fmt.Errorf("unetd at %s: %w", socket, err)
		}
		if !more {
			return nil
		}
	}
}
