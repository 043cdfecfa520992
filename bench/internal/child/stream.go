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

// stream is the life of a child of bandwidth: one end of one connection, or of a
// flood of frames.
func stream(ctx context.Context, j workload.Job, in *bufio.Reader, events *json.Encoder) (err error) {
	t, err := transport.BulkByName(j.Transport)
	if err != nil {
		return err
	}
	if t.Dial == nil {
		return messages(ctx, t, j, in, events)
	}
	var report workload.Report
	if j.Role == workload.Client {
		report, err = pourBulk(ctx, t, j, in, events)
	} else {
		report, err = drainBulk(ctx, t, j, in, events)
	}
	if err != nil {
		return err
	}
	if err := events.Encode(Event{Report: &report}); err != nil {
		return err
	}
	awaitEnd(in)
	return nil
}

func pourBulk(ctx context.Context, t transport.Transport, j workload.Job, in *bufio.Reader, events *json.Encoder) (r workload.Report, err error) {
	d, err := t.Dial(ctx, j)
	if err != nil {
		return r, fmt.Errorf("open %s: %w", t.Name, err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if err := ready(in, events); err != nil {
		return r, err
	}
	return workload.PourBulk(d, j)
}

func drainBulk(ctx context.Context, t transport.Transport, j workload.Job, in *bufio.Reader, events *json.Encoder) (r workload.Report, err error) {
	l, err := t.Listen(ctx, j)
	if err != nil {
		return r, fmt.Errorf("open %s: %w", t.Name, err)
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := ready(in, events); err != nil {
		return r, err
	}
	return workload.DrainBulk(l, j)
}
