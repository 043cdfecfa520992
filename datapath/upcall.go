package datapath

import (
	"context"
	"errors"
	"time"
)

// Event is what an upcall is about (SOSP 1995, section 3.1: the receive queue
// becomes non-empty, or is almost full).
type Event uint8

const (
	NonEmpty   Event = iota // something to receive
	AlmostFull              // three quarters of the receive queue: drain it, or the kernel drops
)

// Upcall registers fn to be called by Serve; nil takes it away. It should drain
// a batch. Without an upcall for AlmostFull, that for NonEmpty is called.
func (e *Endpoint) Upcall(ev Event, fn func(*Endpoint)) { e.upcalls[ev] = fn }

// ErrNoUpcall: Serve was called with no upcall registered.
var ErrNoUpcall = errors.New("no upcall for a non-empty receive queue")

// Serve waits and makes upcalls, on the goroutine that calls it, until ctx ends
// or waiting fails. What the upcalls stage is flushed.
func (e *Endpoint) Serve(ctx context.Context) error {
	if e.upcalls[NonEmpty] == nil {
		return ErrNoUpcall
	}
	defer context.AfterFunc(ctx, e.Wake)()
	size := int(e.sock.RX.Size())
	almostFull := size - size/4
	for ctx.Err() == nil {
		if err := e.Wait(time.Time{}); errors.Is(err, ErrWoken) {
			continue
		} else if err != nil {
			return err
		}
		fn := e.upcalls[NonEmpty]
		if full := e.upcalls[AlmostFull]; full != nil && e.Queued() >= almostFull {
			fn = full
		}
		fn(e)
	}
	return errors.Join(e.Flush(), ctx.Err())
}
