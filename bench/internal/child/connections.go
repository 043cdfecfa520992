package child

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"sync/atomic"

	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// connections is the life of a child that opens connections, or accepts them.
func connections(ctx context.Context, j workload.Job, in *bufio.Reader, events *json.Encoder) (err error) {
	t, err := transport.ByName(j.Transport)
	if err != nil {
		return err
	}
	if t.Dial == nil || t.Listen == nil {
		return fmt.Errorf("%s does not open connections", t.Name)
	}
	var (
		dialer   workload.Dialer
		listener workload.Listener
		opened   io.Closer
	)
	if j.Role == workload.Client {
		dialer, err = t.Dial(ctx, j)
		opened = dialer
	} else {
		listener, err = t.Listen(ctx, j)
		opened = listener
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", t.Name, err)
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	if err := ready(in, events); err != nil {
		return err
	}
	var (
		report workload.Report
		held   []io.Closer
	)
	switch {
	case j.Bench == workload.Idle && dialer != nil:
		report, held, err = workload.Hold(dialer, j, settled)
	case j.Bench == workload.Idle:
		report, held, err = workload.Keep(listener, j, settled)
	case dialer != nil:
		report, err = workload.Call(dialer, j)
	default:
		report, err = workload.Answer(listener, j, nil)
	}
	defer func() {
		for _, c := range held {
			c.Close() // the peer may be gone
		}
	}()
	if err != nil {
		return err
	}
	if err := events.Encode(Event{Report: &report}); err != nil {
		return err
	}
	if dialer != nil || j.Bench == workload.Idle {
		awaitEnd(in)
		return nil
	}
	_, err = workload.Answer(listener, j, ending(in))
	return err
}

// ready says so, and waits for the word to go.
func ready(in *bufio.Reader, events *json.Encoder) error {
	if err := events.Encode(Event{Ready: true}); err != nil {
		return err
	}
	if _, err := in.ReadBytes('\n'); err != nil {
		return fmt.Errorf("told to end before the job began: %w", err)
	}
	return nil
}

// ending becomes true when the parent closes the pipe.
func ending(in io.Reader) *atomic.Bool {
	var stop atomic.Bool
	go func() {
		awaitEnd(in)
		stop.Store(true)
	}()
	return &stop
}

// settled is resident, of what is in use.
func settled() (int64, error) {
	runtime.GC()
	debug.FreeOSMemory()
	return resident()
}
