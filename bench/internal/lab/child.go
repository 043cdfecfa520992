package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// A measurement runs in child processes. unetbench starts itself as the hidden command
// child, inside a host, pinned to a processor and without privileges. The job comes in
// on standard input and the report goes out on standard output, one line of JSON each:
//
//	unetbench                     child
//	  job            ────────▶      opens its transport
//	                 ◀────────      {"ready":true}
//	  "go"           ────────▶      runs the job
//	                 ◀────────      {"report":{...}}, or {"error":"..."}
//	  end of file    ────────▶      closes its transport and exits
//
// The server gets "go" at once, the client when its server is ready.

// event is one line from a child.
type event struct {
	Ready  bool             `json:"ready,omitempty"`
	Report *workload.Report `json:"report,omitempty"`
	Error  string           `json:"error,omitempty"`
}

// openTimeout bounds how long a transport may take to open.
const openTimeout = 15 * time.Second

// child is the inside of a child process.
type child struct {
	job    workload.Job
	in     *bufio.Reader
	events *json.Encoder
}

// RunChild is the main function of a child process. It has written its error to out.
func RunChild(in io.Reader, out io.Writer) error {
	c := child{in: bufio.NewReader(in), events: json.NewEncoder(out)}
	err := c.run()
	if err != nil {
		err = errors.Join(err, c.events.Encode(event{Error: err.Error()}))
	}
	return err
}

func (c *child) run() error {
	line, err := c.in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &c.job)
	}
	if err != nil {
		return fmt.Errorf("job: %w", err)
	}
	if c.job.Procs > 0 {
		runtime.GOMAXPROCS(c.job.Procs)
	}
	t, err := transport.ByName(c.job.Bench, c.job.Transport)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	switch b := c.job.Bench; {
	case b != workload.Connect && (b != workload.Bandwidth || t.Dial == nil): // without Dial: a flood of frames
		conn, err := t.Open(ctx, c.job)
		return c.measure(conn, err, func() (workload.Report, error) { return workload.Run(conn, c.job) },
			func() error { return workload.RepeatEnd(conn, c.ended()) })
	case t.Dial == nil:
		return fmt.Errorf("%s does not open connections", t.Name)
	case c.job.Role == workload.Client:
		d, err := t.Dial(ctx, c.job)
		return c.measure(d, err, func() (workload.Report, error) {
			if b == workload.Bandwidth {
				return workload.BandwidthClient(d, c.job)
			}
			return workload.ConnectClient(d, c.job)
		}, nil)
	}
	l, err := t.Listen(ctx, c.job)
	if c.job.Bench == workload.Bandwidth {
		return c.measure(l, err, func() (workload.Report, error) { return workload.BandwidthServer(l, c.job) }, nil)
	}
	return c.measure(l, err, func() (workload.Report, error) { return workload.ConnectServer(l, c.job, nil) }, func() error {
		_, err := workload.ConnectServer(l, c.job, c.ended())
		return err
	})
}

// measure runs the job over a transport that was opened, unless err is not nil, and closes it. A
// server of messages lingers until the parent closes the pipe: its last answer may be lost.
func (c *child) measure(opened io.Closer, err error, run func() (workload.Report, error), linger func() error) (failure error) {
	if err != nil {
		return fmt.Errorf("open %s: %w", c.job.Transport, err)
	}
	defer func() { failure = errors.Join(failure, opened.Close()) }()
	if err := c.events.Encode(event{Ready: true}); err != nil {
		return err
	}
	if _, err := c.in.ReadBytes('\n'); err != nil {
		return fmt.Errorf("standard input ended before the job began: %w", err)
	}
	r, err := run()
	if err == nil {
		err = c.events.Encode(event{Report: &r})
	}
	switch {
	case err != nil:
		return err
	case c.job.Role == workload.Server && linger != nil:
		return linger()
	}
	c.awaitEnd()
	return nil
}

// awaitEnd returns when the parent closes the pipe or has exited.
func (c *child) awaitEnd() { _, _ = io.Copy(io.Discard, c.in) }

// ended returns a flag that becomes true when the parent closes the pipe or has exited.
func (c *child) ended() *atomic.Bool {
	var stop atomic.Bool
	go func() {
		c.awaitEnd()
		stop.Store(true)
	}()
	return &stop
}
