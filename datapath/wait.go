package datapath

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet/internal/xsk"
)

// WaitMode is how an endpoint waits for something to receive.
type WaitMode uint8

const (
	// WaitAdaptive spins for a budget, then sleeps.
	WaitAdaptive WaitMode = iota
	// WaitSpin never sleeps. It has the lowest latency and takes a whole core.
	WaitSpin
	// WaitBlock sleeps at once. A wake-up costs tens of microseconds.
	WaitBlock
)

var waitModes = []string{"adaptive", "spin", "block"}

func (m WaitMode) String() string {
	if int(m) < len(waitModes) {
		return waitModes[m]
	}
	return fmt.Sprintf("WaitMode(%d)", uint8(m))
}

// ParseWaitMode is the inverse of [WaitMode.String].
func ParseWaitMode(s string) (WaitMode, error) {
	for i, name := range waitModes {
		if s == name {
			return WaitMode(i), nil
		}
	}
	return 0, fmt.Errorf("wait mode %q: want spin, adaptive or block", s)
}

// ErrWoken: Wake was called.
var ErrWoken = errors.New("woken")

const (
	defaultSpinBudget = 50 * time.Microsecond
	// A spinning waiter looks at the ring this often before it looks at the
	// clock, about a microsecond, and at the clock this often before it lets
	// other goroutines run.
	looksPerCheck  = 1024
	checksPerYield = 16
)

type waiter struct {
	mode   WaitMode
	budget time.Duration
	woken  atomic.Bool
	poller *xsk.Poller
}

func (w *waiter) open(s *xsk.Socket, cfg Config) (err error) {
	w.mode, w.budget = cfg.Wait, cfg.SpinBudget
	if w.budget == 0 {
		w.budget = defaultSpinBudget
	}
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
	if e.sock.RX.Peek(1) > 0 {
		return nil
	}
	e.tidy()
	if e.waiter.mode != WaitBlock {
		if done, err := e.spin(deadline); done {
			return err
		}
	}
	for {
		if err := e.Sleep(deadline); err != nil {
			return err
		}
		if e.sock.RX.Peek(1) > 0 {
			return nil
		}
		e.tidy()
	}
}

// spin looks at the receive queue. It is not done when the budget of adaptive
// waiting is used up.
func (e *Endpoint) spin(deadline time.Time) (done bool, err error) {
	w := &e.waiter
	var spinUntil time.Time
	for check := 1; ; check++ {
		for range looksPerCheck {
			if e.sock.RX.Peek(1) > 0 {
				return true, nil
			}
		}
		if w.woken.Load() && w.woken.Swap(false) {
			return true, e.wokenBy()
		}
		if e.unfinished.Load() {
			e.tidy()
		}
		if w.mode == WaitAdaptive || !deadline.IsZero() {
			now := time.Now()
			if !deadline.IsZero() && now.After(deadline) {
				return true, os.ErrDeadlineExceeded
			}
			if spinUntil.IsZero() {
				spinUntil = now.Add(w.budget)
			} else if w.mode == WaitAdaptive && now.After(spinUntil) {
				return false, nil
			}
		}
		if check%checksPerYield == 0 {
			runtime.Gosched()
		}
	}
}

// retryInterval is how long a sleep lasts while a kick or a refill is to be
// tried again. It happens on devices that take frames later than the kick.
const retryInterval = time.Millisecond

// Sleep blocks, without spinning, until the receive queue is not empty, or for
// a moment only, or not at all: its caller looks, with RecvFrames, and comes
// back. The errors are those of Wait. It touches no queue, so one goroutine may
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

// wokenBy says what a Wake was for.
func (e *Endpoint) wokenBy() error {
	if e.ended.Load() {
		e.waiter.woken.Store(true) // for every Wait to come
		return e.lease.Err()
	}
	return ErrWoken
}

// Wake makes the Wait or Sleep under way, or else the next one, return
// [ErrWoken]. It may be called from any goroutine until Close.
func (e *Endpoint) Wake() {
	e.waiter.woken.Store(true)
	e.waiter.poller.Wake()
}
