package datapath

import (
	"cmp"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet/internal/wait"
	"github.com/unet-go/unet/internal/xsk"
)

// WaitMode is how an endpoint waits for something to receive.
type WaitMode = wait.Mode

const (
	WaitAdaptive = wait.Adaptive // spin for a budget, then sleep; the default
	WaitSpin     = wait.Spin     // never sleep: the lowest latency, and a processor of its own
	WaitBlock    = wait.Block    // sleep at once
)

// ErrWoken: Wake was called.
var ErrWoken = errors.New("woken")

type waiter struct {
	spinner wait.Spinner // as each Wait begins
	begun   time.Time    // the spinner's clock counts from here
	woken   atomic.Bool
	poller  *xsk.Poller
}

func (w *waiter) open(s *xsk.Socket, cfg Config) (err error) {
	w.spinner = wait.Spinner{Mode: cfg.Wait, Budget: cmp.Or(cfg.SpinBudget, wait.DefaultBudget)}
	w.begun = time.Now()
	w.poller, err = xsk.NewPoller(s)
	return err
}

func (w *waiter) close() error { return w.poller.Close() }

// Wait flushes what is staged and returns nil as soon as the receive queue is
// not empty. It returns os.ErrDeadlineExceeded when deadline passes first (zero
// is never), [ErrWoken] after Wake, [ErrNoBuffers] when the application holds
// its whole quota of messages, [endpoint.ErrLeaseClosed] when the lease that was given to
// Attach has ended, and what Flush returns if that fails.
func (e *Endpoint) Wait(deadline time.Time) error {
	if err := e.Flush(); err != nil {
		return err
	}
	if int(e.held) >= e.quota() {
		return ErrNoBuffers
	}
	spinner := e.waiter.spinner
	for {
		if e.sock.RX.Peek(1) > 0 {
			return nil
		}
		e.tidy()
		var err error
		if spinner.On() {
			err = e.spin(&spinner, deadline)
		} else {
			err = e.Sleep(deadline)
		}
		if err != nil {
			return err
		}
	}
}

// spin looks at the receive queue for a round, or until it is not empty.
func (e *Endpoint) spin(spinner *wait.Spinner, deadline time.Time) error {
	for range wait.Looks {
		if e.sock.RX.Peek(1) > 0 {
			return nil
		}
	}
	if e.waiter.woken.Load() && e.waiter.woken.Swap(false) {
		return e.wokenBy()
	}
	now := time.Now()
	if !deadline.IsZero() && now.After(deadline) {
		return os.ErrDeadlineExceeded
	}
	spinner.Round(now.Sub(e.waiter.begun))
	return nil
}

// retryInterval is how long a sleep lasts while a kick or a refill is to be
// tried again, as on devices that take frames after the kick.
const retryInterval = time.Millisecond

// Sleep blocks, without spinning, until the receive queue is not empty. It may return
// early: its caller looks, with RecvFrames, and calls it again. The errors are those of Wait. It touches no queue, so one goroutine may
// sleep while another has them.
func (e *Endpoint) Sleep(deadline time.Time) error {
	if e.waiter.woken.Swap(false) {
		return e.wokenBy()
	}
	until := deadline
	if e.unfinished.Load() {
		if soon := time.Now().Add(retryInterval); deadline.IsZero() || soon.Before(deadline) {
			until = soon
		}
	}
	err := e.waiter.poller.Sleep(until)
	if until != deadline && errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err == nil && e.waiter.woken.Swap(false) {
		return e.wokenBy()
	}
	return err
}

// wokenBy is the error after a Wake: that of the lease if it has ended.
func (e *Endpoint) wokenBy() error {
	if e.ended.Load() {
		e.waiter.woken.Store(true) // every later Wait fails too
		return e.lease.Err()
	}
	return ErrWoken
}

// Wake makes the present Wait or Sleep, or the next one, return
// [ErrWoken]. It may be called from any goroutine until Close.
func (e *Endpoint) Wake() {
	e.waiter.woken.Store(true)
	e.waiter.poller.Wake()
}
