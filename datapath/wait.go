package datapath

import (
	"errors"
	"os"
	"time"

	"github.com/unet-go/unet/internal/wait"
)

// ErrWoken: Wake was called.
var ErrWoken = errors.New("woken")

// Wait flushes what is staged and returns nil as soon as the receive queue, or a memory path, is
// not empty. Errors: os.ErrDeadlineExceeded when deadline has passed (zero: never),
// [ErrWoken] after Wake, [ErrNoBuffers] when the application holds as many messages as it
// may, [endpoint.ErrLeaseClosed] when the lease that was given to Attach has ended, and
// those of Flush.
func (e *Endpoint) Wait(deadline time.Time) error {
	if err := e.Flush(); err != nil {
		return err
	}
	if int(e.held) >= e.quota() {
		return ErrNoBuffers
	}
	e.spinner.Begin()
	for {
		e.paths.serve()
		if e.link.Pending() {
			e.spinner.Found()
			return nil
		}
		e.tidy()
		var err error
		if e.spinner.On() {
			err = e.spin(deadline)
		} else {
			err = e.link.Sleep(deadline, e.spinner.SleepsAgain())
			if errors.Is(err, os.ErrDeadlineExceeded) && (deadline.IsZero() || time.Now().Before(deadline)) {
				err = nil // a path is full, and is looked at again
			}
		}
		if err != nil {
			return err
		}
	}
}

// spin looks at the receive queue for a round, or until it is not empty.
func (e *Endpoint) spin(deadline time.Time) error {
	wait.Yield()
	for range wait.Looks {
		if e.link.Pending() {
			return nil
		}
	}
	if e.woken.Load() && e.woken.Swap(false) {
		return e.wokenBy()
	}
	now := time.Now()
	if !deadline.IsZero() && now.After(deadline) {
		return os.ErrDeadlineExceeded
	}
	e.spinner.Round(now.Sub(e.begun))
	return nil
}

// retryInterval is how long a sleep lasts while a kick or a refill is to be
// tried again, as on devices that take frames after the kick.
const retryInterval = time.Millisecond

// Sleep blocks, without spinning, until the receive queue is not empty. It may return
// early: its caller calls Borrow, and Sleep again. The errors are those of Wait, except
// ErrNoBuffers and those of Flush. It accesses no queue, so one goroutine may sleep while
// another uses them. again says that the next wait will sleep at once: then the kernel's part of
// the sleep is kept for it. That makes the next sleep cheaper, and frames dearer that come meanwhile: each calls the
// kernel's poller, and may wake a thread of the runtime.
func (f *Frames) Sleep(deadline time.Time, again bool) error {
	e := (*Endpoint)(f)
	if e.woken.Swap(false) {
		return e.wokenBy()
	}
	until := f.Until(deadline)
	err := e.poller.Sleep(until, again)
	if until != deadline && errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err == nil && e.woken.Swap(false) {
		return e.wokenBy()
	}
	return err
}

// Until is when Sleep would return for a kick or a refill that is to be tried again, or else deadline.
func (f *Frames) Until(deadline time.Time) time.Time {
	if f.unfinished.Load() {
		if soon := time.Now().Add(retryInterval); deadline.IsZero() || soon.Before(deadline) {
			return soon
		}
	}
	return deadline
}

// Join makes a Sleep of f, or of what else has joined other, a Sleep of all of these: it returns when one of their receive queues is not
// empty. Wake of each of them ends it. Join is called once, before the first Sleep, and f is closed before other is.
func (f *Frames) Join(other *Frames) error {
	err := f.poller.Close()
	f.poller = other.poller.With(f.sock)
	return err
}

// Leave ends what f means for a Sleep of those that it has joined, or that have joined it: it receives nothing any more. It may be
// called from any goroutine.
func (f *Frames) Leave() { f.poller.Leave() }

// Watch makes Sleep return also when pending reports true. What becomes readable at fd, a pipe, has Sleep call
// pending, in Sleep's own goroutine. All descriptors have the same pending.
func (f *Frames) Watch(fd int, pending func() bool) error { return f.poller.Watch(fd, pending) }

// Unwatch ends a Watch. It must be called before fd is closed.
func (f *Frames) Unwatch(fd int) error { return f.poller.Unwatch(fd) }

// wokenBy is the error after a Wake: that of the lease if it has ended.
func (e *Endpoint) wokenBy() error {
	if e.ended.Load() {
		e.woken.Store(true) // every later Wait fails too
		return e.lease.Err()
	}
	return ErrWoken
}

// Wake makes the Wait or Sleep in progress, or else the next one, return [ErrWoken]. It
// may be called from any goroutine until Close.
func (e *Endpoint) Wake() {
	e.woken.Store(true)
	e.poller.Wake()
}
