package endpoint

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
// its whole quota of messages, and what Flush returns if that fails.
func (e *Endpoint) Wait(deadline time.Time) error {
	if err := e.Flush(); err != nil {
		return err
	}
	if int(e.frames) >= e.quota() {
		return ErrNoBuffers
	}
	if e.sock.RX.Peek(1) > 0 {
		return nil
	}
	e.tidy()
	w := &e.waiter
	if w.mode != WaitBlock {
		var spinUntil time.Time
		for check := 1; ; check++ {
			for range looksPerCheck {
				if e.sock.RX.Peek(1) > 0 {
					return nil
				}
			}
			if w.woken.Load() && w.woken.Swap(false) {
				return ErrWoken
			}
			if now := time.Now(); w.mode == WaitAdaptive || !deadline.IsZero() {
				if !deadline.IsZero() && now.After(deadline) {
					return os.ErrDeadlineExceeded
				}
				if spinUntil.IsZero() {
					spinUntil = now.Add(w.budget)
				} else if w.mode == WaitAdaptive && now.After(spinUntil) {
					break
				}
			}
			if check%checksPerYield == 0 {
				runtime.Gosched()
			}
		}
	}
	return e.Sleep(deadline)
}

// Sleep blocks, without spinning, until the receive queue is not empty. It
// returns what Wait returns.
func (e *Endpoint) Sleep(deadline time.Time) error {
	w := &e.waiter
	for {
		if w.woken.Swap(false) {
			return ErrWoken
		}
		if err := w.poller.Sleep(deadline); err != nil {
			return err
		}
		if e.Pending() {
			return nil
		}
	}
}

// Wake makes the Wait or Sleep under way, or else the next one, return
// [ErrWoken]. It may be called from any goroutine until Close.
func (e *Endpoint) Wake() {
	e.waiter.woken.Store(true)
	e.waiter.poller.Wake()
}
