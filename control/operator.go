//go:build linux

package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
)

// List asks the unetd that listens at socket for all its endpoints, by
// identifier. It is for operators: others get os.ErrPermission.
func List(ctx context.Context, socket string) ([]endpoint.Info, error) {
	var all []endpoint.Info
	err := ask(ctx, socket, protocol.Operation{Op: protocol.OpList}, func(a protocol.Answer, o *protocol.Operation) (more bool, err error) {
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

// Counters asks the unetd that listens at socket for all its counters. It is
// for operators: others get os.ErrPermission.
func Counters(ctx context.Context, socket string) ([]endpoint.Counter, error) {
	var all []endpoint.Counter
	err := ask(ctx, socket, protocol.Operation{Op: protocol.OpCounters}, func(a protocol.Answer, o *protocol.Operation) (more bool, err error) {
		all = append(all, *a.Counters...)
		n := uint64(len(all))
		o.After = &n
		return a.More && len(*a.Counters) > 0, nil
	})
	return all, err
}

// Status asks the unetd that listens at socket for the state of all endpoints and of the
// sockets that their processes publish, by identifier and record. It is for operators: others
// get os.ErrPermission. The error of an older unetd is an ErrProtocol.
func Status(ctx context.Context, socket string) ([]endpoint.Status, error) {
	var all []endpoint.Status
	err := ask(ctx, socket, protocol.Operation{Op: protocol.OpStatus}, func(a protocol.Answer, o *protocol.Operation) (more bool, err error) {
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

// Uplinks asks the unetd that listens at socket for the interfaces that it serves, and
// whether it is being drained: it grants no endpoints then. It is for operators: others get
// os.ErrPermission.
func Uplinks(ctx context.Context, socket string) (list []endpoint.Uplink, draining bool, err error) {
	a, err := askOnce(ctx, socket, protocol.Operation{Op: protocol.OpUplinks})
	if err != nil {
		return nil, false, err
	}
	return *a.Uplinks, a.Draining, nil
}

// Revoke ends the lease of an endpoint. Its application learns the reason, which may be empty
// and is otherwise of one line and at most 256 bytes. When Revoke returns, tags and port are
// free. The error is an endpoint.ErrNoEndpoint if there is no such endpoint. It is for
// operators: others get os.ErrPermission.
func Revoke(ctx context.Context, socket string, id uint64, reason string) error {
	_, err := askOnce(ctx, socket, protocol.Operation{Op: protocol.OpRevoke, Endpoint: id, Reason: reason})
	return err
}

// Reload makes the unetd that listens at socket read its policy again, and returns what has
// changed. After an error the old policy stays. It is for operators: others get
// os.ErrPermission.
func Reload(ctx context.Context, socket string) (endpoint.PolicyChange, error) {
	a, err := askOnce(ctx, socket, protocol.Operation{Op: protocol.OpReload})
	if err != nil {
		return endpoint.PolicyChange{}, err
	}
	return *a.Reloaded, nil
}

// Drain makes the unetd that listens at socket grant no endpoints from now on, or, if on is
// false, grant them again. Leases that there are go on, and those of an earlier unetd can be
// presented. The next unetd grants endpoints. It is for operators: others get
// os.ErrPermission.
func Drain(ctx context.Context, socket string, on bool) error {
	_, err := askOnce(ctx, socket, protocol.Operation{Op: protocol.OpDrain, Undo: !on})
	return err
}

// askOnce asks one question on a connection of its own.
func askOnce(ctx context.Context, socket string, o protocol.Operation) (a protocol.Answer, err error) {
	err = ask(ctx, socket, o, func(answer protocol.Answer, _ *protocol.Operation) (bool, error) {
		a = answer
		return false, nil
	})
	return a, err
}

// ask sends a request, and again as long as use says that there is more. use takes each answer
// and changes the operation to the next one.
func ask(ctx context.Context, socket string, o protocol.Operation, use func(protocol.Answer, *protocol.Operation) (more bool, err error)) error {
	conn, err := dial(ctx, socket)
	if err != nil {
		return err
	}
	c := newConnection(conn, nil)
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
