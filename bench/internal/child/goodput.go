package child

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// goodput is the life of a child that has one connection for as much as it carries. A
// client is ready when it is connected.
func goodput(ctx context.Context, j workload.Job, in *bufio.Reader, events *json.Encoder) (err error) {
	t, err := transport.ByName(j.Transport)
	if err != nil {
		return err
	}
	if j.Role == workload.Client {
		return pour(ctx, t, j, in, events)
	}
	listener, err := t.Listen(ctx, j)
	if err != nil {
		return fmt.Errorf("open %s: %w", t.Name, err)
	}
	defer func() { err = errors.Join(err, listener.Close()) }()
	if err := ready(in, events); err != nil {
		return err
	}
	conn, err := listener.Accept()
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	defer conn.Close() // the peer may be gone
	report, err := workload.Drain(conn, j)
	if err != nil {
		return err
	}
	if err := events.Encode(Event{Report: &report}); err != nil {
		return err
	}
	go workload.Discard(conn) // ends with the connection
	awaitEnd(in)
	return nil
}

func pour(ctx context.Context, t transport.Transport, j workload.Job, in *bufio.Reader, events *json.Encoder) error {
	dialer, err := t.Dial(ctx, j)
	if err != nil {
		return fmt.Errorf("open %s: %w", t.Name, err)
	}
	defer dialer.Close()
	conn, err := dialer.Dial(ctx)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	defer conn.Close()
	pipe, ok := conn.(workload.Pipe)
	if !ok {
		return fmt.Errorf("%s is no transport for goodput", t.Name)
	}
	if err := ready(in, events); err != nil {
		return err
	}
	report, err := workload.Pour(pipe, j)
	if err != nil {
		return err
	}
	if err := transport.Tell(conn, &report); err != nil {
		return err
	}
	if err := events.Encode(Event{Report: &report}); err != nil {
		return err
	}
	awaitEnd(in)
	return nil
}
