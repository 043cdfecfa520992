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
	err := askAll(ctx, socket, protocol.OpList, func(a protocol.Answer) (*uint64, error) {
		for _, e := range *a.Endpoints {
			if n := len(all); n > 0 && e.ID <= all[n-1].ID {
				return nil, protocol.Violation("endpoint %d comes after %d", e.ID, all[n-1].ID)
			}
			all = append(all, e)
		}
		if !a.More || len(*a.Endpoints) == 0 {
			return nil, nil
		}
		return &all[len(all)-1].ID, nil
	})
	return all, err
}

// Counters asks the unetd that listens at socket for all its counters. It is
// for operators: others get os.ErrPermission.
func Counters(ctx context.Context, socket string) ([]endpoint.Counter, error) {
	var all []endpoint.Counter
	err := askAll(ctx, socket, protocol.OpCounters, func(a protocol.Answer) (*uint64, error) {
		all = append(all, *a.Counters...)
		if !a.More || len(*a.Counters) == 0 {
			return nil, nil
		}
		n := uint64(len(all))
		return &n, nil
	})
	return all, err
}

// askAll asks for a list, record by record. use takes each answer and returns the next
// request's after; nil: the list is complete.
func askAll(ctx context.Context, socket, op string, use func(protocol.Answer) (*uint64, error)) error {
	conn, err := dial(ctx, socket)
	if err != nil {
		return err
	}
	c := newConnection(conn, nil)
	defer c.end()
	o := protocol.Operation{Op: op}
	for {
		a, err := c.ask(ctx, o)
		if errors.Is(err, errGone) {
			err = c.cause
		}
		if err == nil {
			o.After, err = use(a)
		}
		if err != nil {
			return fmt.Errorf("unetd at %s: %w", socket, err)
		}
		if o.After == nil {
			return nil
		}
	}
}
