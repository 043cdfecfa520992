package transport

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
)

// Run does a job, whose server calls listening when its client can be started.
func Run(ctx context.Context, j workload.Job, listening func(), report workload.Reporter) (err error) {
	t, err := ByName(j.Bench, j.Transport)
	if err != nil {
		return err
	}
	connects := j.Bench == workload.Connect || j.Bench == workload.Bandwidth && t.Dial != nil // without Dial: a flood of frames
	switch {
	case !connects:
		c, err := t.open(ctx, j, listening)
		if err != nil {
			return fmt.Errorf("open %s: %w", j.Transport, err)
		}
		listening()
		return errors.Join(workload.Run(c, j, report), c.Close())
	case j.Role == workload.Server:
		l, err := t.Listen(ctx, j)
		if err != nil {
			return fmt.Errorf("open %s: %w", j.Transport, err)
		}
		listening()
		if j.Bench == workload.Connect {
			return errors.Join(workload.ConnectServer(l, j, report), l.Close())
		}
		r, err := workload.BandwidthServer(l, j)
		if err == nil {
			err = report(r)
		}
		return errors.Join(err, l.Close())
	}
	d, err := t.Dial(ctx, j)
	if err != nil {
		return fmt.Errorf("open %s: %w", j.Transport, err)
	}
	client := workload.BandwidthClient
	if j.Bench == workload.Connect {
		client = workload.ConnectClient
	}
	r, err := client(d, j)
	if err == nil {
		err = report(r)
	}
	return errors.Join(err, d.Close())
}

// rebindTimeout bounds how long a queue or a port of the last round stays busy: the kernel and unetd take them back
// asynchronously.
const rebindTimeout = 5 * time.Second

// whileBusy repeats an attempt whose error is busy.
func whileBusy(ctx context.Context, busy error, attempt func() error) error {
	for until := time.Now().Add(rebindTimeout); ; time.Sleep(20 * time.Millisecond) {
		if err := attempt(); !errors.Is(err, busy) || expired(until) || ctx.Err() != nil {
			return err
		}
	}
}
