package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet/bench/internal/perf"
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
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	if c.job.Bench == workload.Memory && c.job.Transport == "" {
		return c.memory()
	}
	if c.job.Procs > 0 {
		runtime.GOMAXPROCS(c.job.Procs)
	}
	if c.job.Counted {
		workload.CountBy(perf.Inherited(firstCounter))
	}
	find := transport.ByName
	switch c.job.Bench {
	case workload.Bandwidth:
		find = transport.BulkByName
	case workload.RDMA:
		find = transport.OperationByName
	}
	t, err := find(c.job.Transport)
	if err != nil {
		return err
	}
	switch c.job.Bench {
	case workload.Connect, workload.Idle, workload.Goodput, workload.Bandwidth:
		switch {
		case t.Dial == nil && c.job.Bench == workload.Bandwidth:
			return c.messages(ctx, t) // a flood of frames
		case t.Dial == nil:
			return fmt.Errorf("%s does not open connections", t.Name)
		case c.job.Role == workload.Client:
			return c.dial(ctx, t)
		}
		return c.listen(ctx, t)
	}
	return c.messages(ctx, t)
}

// messages runs a benchmark of messages, or measures the memory of the process that has opened t.
func (c *child) messages(ctx context.Context, t transport.Transport) (err error) {
	conn, err := t.Open(ctx, c.job)
	if err != nil {
		return fmt.Errorf("open %s: %w", t.Name, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if c.job.Bench == workload.Memory {
		return c.memory()
	}
	if err := c.ready(); err != nil {
		return err
	}
	r, err := workload.Run(conn, c.job)
	if err != nil {
		return err
	}
	if c.job.Bench == workload.Bandwidth { // in bytes
		r.N, r.Sent, r.InWindow = r.N*c.job.Size, r.Sent*c.job.Size, r.InWindow*c.job.Size
	}
	if err := c.report(r); err != nil {
		return err
	}
	if c.job.Role == workload.Client {
		c.awaitEnd()
		return nil
	}
	return workload.RepeatEnd(conn, c.ended())
}

// dial runs the client of a benchmark of connections.
func (c *child) dial(ctx context.Context, t transport.Transport) (err error) {
	d, err := t.Dial(ctx, c.job)
	if err != nil {
		return fmt.Errorf("open %s: %w", t.Name, err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if c.job.Bench == workload.Goodput {
		return c.dialGoodput(ctx, d)
	}
	if err := c.ready(); err != nil {
		return err
	}
	var (
		r    workload.Report
		held []io.Closer
	)
	switch c.job.Bench {
	case workload.Idle:
		r, held, err = workload.IdleClient(d, c.job, residentInUse)
		defer closeAll(&held)
	case workload.Bandwidth:
		r, err = workload.BandwidthClient(d, c.job)
	default:
		r, err = workload.ConnectClient(d, c.job)
	}
	if err == nil {
		err = c.report(r)
	}
	if err == nil {
		c.awaitEnd()
	}
	return err
}

// dialGoodput is ready when it is connected: the link is good until then.
func (c *child) dialGoodput(ctx context.Context, d workload.Dialer) error {
	conn, err := d.Dial(ctx)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	defer conn.Close() // with a reset
	stream, ok := conn.(workload.BulkStream)
	if !ok {
		return fmt.Errorf("BUG: %s cannot be measured by goodput", c.job.Transport)
	}
	if err := c.ready(); err != nil {
		return err
	}
	r, err := workload.GoodputClient(stream, c.job)
	if err == nil {
		err = transport.ReadTCPInfo(conn, &r)
	}
	if err == nil {
		err = c.report(r)
	}
	if err == nil {
		c.awaitEnd()
	}
	return err
}

// listen runs the server of a benchmark of connections.
func (c *child) listen(ctx context.Context, t transport.Transport) (err error) {
	l, err := t.Listen(ctx, c.job)
	if err != nil {
		return fmt.Errorf("open %s: %w", t.Name, err)
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := c.ready(); err != nil {
		return err
	}
	var (
		r    workload.Report
		held []io.Closer
	)
	defer closeAll(&held)
	switch c.job.Bench {
	case workload.Idle:
		r, held, err = workload.IdleServer(l, c.job, residentInUse)
	case workload.Bandwidth:
		r, err = workload.BandwidthServer(l, c.job)
	case workload.Goodput:
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		held = []io.Closer{conn}
		if r, err = workload.GoodputServer(conn, c.job); err != nil {
			return err
		}
		go workload.Discard(conn) // ends with the connection
	default:
		r, err = workload.ConnectServer(l, c.job, nil)
	}
	if err == nil {
		err = c.report(r)
	}
	switch {
	case err != nil:
		return err
	case c.job.Bench == workload.Connect:
		_, err = workload.ConnectServer(l, c.job, c.ended())
		return err
	}
	c.awaitEnd()
	return nil
}

// closeAll closes connections. Their errors are ignored: the peer may have exited.
func closeAll(held *[]io.Closer) {
	for _, c := range *held {
		c.Close()
	}
}

// memory reports the resident memory of this process, and waits.
func (c *child) memory() error {
	n, err := residentInUse()
	if err == nil {
		err = c.events.Encode(event{Ready: true, Report: &workload.Report{Resident: n}})
	}
	if err == nil {
		c.awaitEnd()
	}
	return err
}

// ready reports that the child is ready, and waits for "go".
func (c *child) ready() error {
	if err := c.events.Encode(event{Ready: true}); err != nil {
		return err
	}
	if _, err := c.in.ReadBytes('\n'); err != nil {
		return fmt.Errorf("standard input ended before the job began: %w", err)
	}
	return nil
}

func (c *child) report(r workload.Report) error { return c.events.Encode(event{Report: &r}) }

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

// residentInUse is VmRSS of this process in bytes after a garbage collection: all pages
// it has mapped that are in memory, the shared ones of the segment included
// (proc_pid_status(5)).
func residentInUse() (int64, error) {
	runtime.GC()
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(status) {
		if v, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			kib, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(v), []byte("kB")))), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("no VmRSS in /proc/self/status")
}
