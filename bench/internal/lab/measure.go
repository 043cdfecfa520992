package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/unet-go/unet/bench/internal/child"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/syscount"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// startPatience bounds everything of a measurement but the measured section.
const startPatience = 60 * time.Second

// Outcome is what the two processes of a measurement reported.
type Outcome struct {
	Client, Server workload.Report
	SystemCalls    uint64 // of both, in the measured section; 0 if they were not counted
}

// Measure runs j once over t, in two new processes. With a counter it also
// counts their system calls.
func (l *Lab) Measure(ctx context.Context, t transport.Transport, place string, j workload.Job, counter *syscount.Counter) (Outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience+2*j.Limit, errors.New("took too long"))
	defer cancel()
	out, err := l.measure(ctx, t, place, j, counter)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // why the processes were killed, not that they were
		}
		return out, fmt.Errorf("%s over %s: %w", j.Bench, t.Name, err)
	}
	return out, nil
}

func (l *Lab) measure(ctx context.Context, t transport.Transport, place string, j workload.Job, counter *syscount.Counter) (out Outcome, err error) {
	clientSide, serverSide, err := l.sides(t, place, j)
	if err != nil {
		return out, err
	}
	server, err := l.spawn(ctx, serverSide.host, l.cfg.ServerCPU, workload.Server)
	if err != nil {
		return out, err
	}
	defer func() { err = finish(server, err) }()
	client, err := l.spawn(ctx, clientSide.host, l.cfg.ClientCPU, workload.Client)
	if err != nil {
		return out, err
	}
	defer func() { err = finish(client, err) }()

	pids := []int{client.pid(), server.pid()}
	if counter != nil {
		for _, pid := range pids {
			if err := counter.Follow(pid); err != nil {
				return out, err
			}
			defer counter.Forget(pid)
		}
	}
	if err := errors.Join(server.tell(serverSide.job), client.tell(clientSide.job)); err != nil {
		return out, err
	}
	for _, p := range []*process{server, client} {
		if _, err := p.next(ctx); err != nil { // ready
			return out, err
		}
		if err := p.tell("go"); err != nil {
			return out, err
		}
	}
	// A failed server leaves its client without answers, so both are listened to.
	var clientReport, serverReport *workload.Report
	for clientReport == nil || serverReport == nil {
		var e child.Event
		var ok bool
		select {
		case e, ok = <-client.events:
			clientReport = e.Report
			if !ok || e.Report == nil {
				return out, client.failed(said(e))
			}
		case e, ok = <-server.events:
			serverReport = e.Report
			if !ok || e.Report == nil {
				return out, server.failed(said(e))
			}
		case <-ctx.Done():
			return out, context.Cause(ctx)
		}
	}
	out.Client, out.Server = *clientReport, *serverReport
	if counter != nil {
		for _, pid := range pids {
			n, err := counter.Bracketed(pid)
			if err != nil {
				return out, err
			}
			out.SystemCalls += n
		}
	}
	return out, nil
}

func said(e child.Event) string {
	if e.Error != "" {
		return e.Error
	}
	return "ended without a report"
}

// finish ends a child: gently, unless something has failed.
func finish(p *process, err error) error {
	if err != nil {
		p.kill()
		return err
	}
	return p.end()
}

// Connections is the memory in bytes that an idle connection of t takes, on the
// client's side and on the server's, found from so many of them.
func (l *Lab) Connections(ctx context.Context, t transport.Transport, attach string, n int) (client, server float64, err error) {
	out, err := l.Measure(ctx, t, plan.Pair, workload.Job{
		Bench: workload.Idle, Attach: attach, Wait: t.Waits[0], Size: workload.MinSize, Batch: 1,
		WarmUp: n / 16, N: n, Patience: idlePatience, Own: true,
	}, nil)
	each := func(r workload.Report) float64 { return float64(r.Resident) / float64(n) }
	return each(out.Client), each(out.Server), err
}

// idlePatience is time to collect garbage.
const idlePatience = 5 * time.Second

// Weigh is the resident memory in bytes of an idle process that has opened t,
// and of the same process without it.
func (l *Lab) Weigh(ctx context.Context, t transport.Transport, attach string) (with, without int64, err error) {
	j := workload.Job{Bench: workload.Memory, Attach: attach, Wait: t.Waits[0], Size: workload.MinSize, Batch: 1}
	_, s, err := l.sides(t, plan.Pair, j)
	if err != nil {
		return 0, 0, err
	}
	if with, err = l.weigh(ctx, s); err != nil {
		return 0, 0, fmt.Errorf("memory of %s: %w", t.Name, err)
	}
	s.job.Transport = ""
	if without, err = l.weigh(ctx, s); err != nil {
		return 0, 0, fmt.Errorf("memory of a bare process: %w", err)
	}
	return with, without, nil
}

func (l *Lab) weigh(ctx context.Context, s side) (_ int64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, errors.New("took too long"))
	defer cancel()
	p, err := l.spawn(ctx, s.host, l.cfg.ServerCPU, workload.Server)
	if err != nil {
		return 0, err
	}
	defer func() { err = finish(p, err) }()
	if err := p.tell(s.job); err != nil {
		return 0, err
	}
	e, err := p.next(ctx)
	if err != nil {
		return 0, err
	}
	if e.Report == nil {
		return 0, p.failed("ended without a report")
	}
	return e.Report.Resident, nil
}
