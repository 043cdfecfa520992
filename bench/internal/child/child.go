// Package child is one process of a measurement. unetbench starts itself as
// the hidden command child, inside a host, pinned to a processor and without
// privileges; the job comes in on standard input and the report goes out on
// standard output, each as one line of JSON:
//
//	unetbench                     child
//	  job            ────────▶      opens its transport
//	                 ◀────────      {"ready":true}
//	  "go"           ────────▶      runs the job
//	                 ◀────────      {"report":{...}}, or {"error":"..."}
//	  end of file    ────────▶      closes its transport and exits
//
// Servers are told to go at once, clients when their server is ready.
package child

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Event is one line from a child.
type Event struct {
	Ready  bool             `json:"ready,omitempty"`
	Report *workload.Report `json:"report,omitempty"`
	Error  string           `json:"error,omitempty"`
}

// openPatience bounds how long a transport may take to open.
const openPatience = 15 * time.Second

// Run is the life of a child. Its error has been reported on out already.
func Run(in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	events := json.NewEncoder(out)
	err := run(lines, events)
	if err != nil {
		err = errors.Join(err, events.Encode(Event{Error: err.Error()}))
	}
	return err
}

func run(in *bufio.Reader, events *json.Encoder) (err error) {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("job: %w", err)
	}
	var j workload.Job
	if err := json.Unmarshal(line, &j); err != nil {
		return fmt.Errorf("job: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), openPatience)
	defer cancel()
	switch j.Bench {
	case workload.Memory:
		return weigh(ctx, j, in, events)
	case workload.Connect, workload.Idle:
		return connections(ctx, j, in, events)
	case workload.Goodput:
		return goodput(ctx, j, in, events)
	case workload.Bandwidth:
		return stream(ctx, j, in, events)
	}
	t, err := transport.ByName(j.Transport)
	if err != nil {
		return err
	}
	return messages(ctx, t, j, in, events)
}

// messages is the life of a child that sends or receives messages.
func messages(ctx context.Context, t transport.Transport, j workload.Job, in *bufio.Reader, events *json.Encoder) (err error) {
	conn, err := t.Open(ctx, j)
	if err != nil {
		return fmt.Errorf("open %s: %w", t.Name, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := ready(in, events); err != nil {
		return err
	}
	report, err := workload.Run(conn, j)
	if err != nil {
		return err
	}
	if j.Bench == workload.Bandwidth { // in bytes
		report.N, report.Sent, report.InWindow = report.N*j.Size, report.Sent*j.Size, report.InWindow*j.Size
	}
	if err := events.Encode(Event{Report: &report}); err != nil {
		return err
	}
	if j.Role == workload.Client {
		awaitEnd(in)
		return nil
	}
	return workload.Linger(conn, ending(in))
}

// awaitEnd returns when the parent closes the pipe, or is gone.
func awaitEnd(in io.Reader) { _, _ = io.Copy(io.Discard, in) }
