package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/unet-go/unet/bench/internal/perf"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
)

// startTimeout bounds a measurement without its measured section.
const startTimeout = 60 * time.Second

// Outcome is what the two processes of a measurement reported.
type Outcome struct {
	Client, Server workload.Report
}

// Counts are those of both processes; nil: there are none, perhaps for the reason that is returned.
func (o Outcome) Counts() (sum *perf.Counts, reason string) {
	a, b := o.Client.Counts, o.Server.Counts
	if a == nil || b == nil {
		return nil, cmp.Or(o.Client.Uncounted, o.Server.Uncounted)
	}
	sum = new(perf.Counts)
	for i := range sum {
		sum[i] = a[i] + b[i]
	}
	return sum, ""
}

// Observer looks at the two processes of a measurement from outside.
type Observer interface {
	// Start is called before the client begins. Both have opened their transports.
	Start(pids []int) error
	// Stop is called when both have reported, before they end.
	Stop() error
}

// Measure runs j once over t, in two new processes, with an observer if it is not nil: then the
// processes do not read counters.
func (l *Lab) Measure(ctx context.Context, t transport.Transport, place string, j workload.Job, o Observer) (Outcome, error) {
	client, server, err := l.sides(t, place, j)
	if err != nil {
		return Outcome{}, err
	}
	return l.run(ctx, client, server, o)
}

// run is measure with a time limit.
func (l *Lab) run(ctx context.Context, client, server side, o Observer) (Outcome, error) {
	j := client.job
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout+2*j.Limit, errors.New("took too long"))
	defer cancel()
	out, err := l.measure(ctx, client, server, o)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // why the processes were killed
		}
		return out, fmt.Errorf("%s over %s: %w", j.Bench, j.Transport, err)
	}
	return out, nil
}

func (l *Lab) measure(ctx context.Context, clientSide, serverSide side, o Observer) (out Outcome, err error) {
	counted := l.counted() && o == nil
	clientSide.job.Counted, serverSide.job.Counted = counted, counted
	serverCPU, clientCPU := l.cfg.ServerCPU, l.cfg.ClientCPU
	if clientSide.job.Procs > 0 {
		serverCPU, clientCPU = netlab.AnyCPU, netlab.AnyCPU
	}
	server, err := l.spawn(ctx, serverSide, serverCPU)
	if err != nil {
		return out, err
	}
	defer func() { err = finish(server, err) }()
	client, err := l.spawn(ctx, clientSide, clientCPU)
	if err != nil {
		return out, err
	}
	defer func() { err = finish(client, err) }()

	if err := errors.Join(server.send(serverSide.job), client.send(clientSide.job)); err != nil {
		return out, err
	}
	for _, p := range []*process{server, client} {
		if _, err := p.next(ctx); err != nil { // ready
			return out, err
		}
		if p == client && o != nil {
			if err := o.Start([]int{client.pid(), server.pid()}); err != nil {
				return out, err
			}
		}
		if err := p.send("go"); err != nil {
			return out, err
		}
	}
	// If the server fails its client gets no answers, so both are read.
	var clientReport, serverReport *workload.Report
	for clientReport == nil || serverReport == nil {
		var e event
		var ok bool
		select {
		case e, ok = <-client.events:
			clientReport = e.Report
			if !ok || e.Report == nil {
				return out, client.failed(errorOf(e))
			}
		case e, ok = <-server.events:
			serverReport = e.Report
			if !ok || e.Report == nil {
				return out, server.failed(errorOf(e))
			}
		case <-ctx.Done():
			return out, context.Cause(ctx)
		}
	}
	out.Client, out.Server = *clientReport, *serverReport
	if o != nil {
		return out, o.Stop()
	}
	return out, nil
}

func errorOf(e event) string {
	if e.Error != "" {
		return e.Error
	}
	return "ended without a report"
}

// finish ends a child, by SIGKILL if the measurement has failed.
func finish(p *process, err error) error {
	if err != nil {
		p.kill()
		return err
	}
	return p.end()
}

// IdleConnections is the memory in bytes of an idle connection of t, of the client and of
// the server, as the mean of n.
func (l *Lab) IdleConnections(ctx context.Context, t transport.Transport, attach string, n int) (client, server float64, err error) {
	out, err := l.Measure(ctx, t, plan.Pair, workload.Job{
		Bench: workload.Idle, Attach: attach, Wait: t.Waits[0], Size: workload.MinSize, Batch: 1,
		WarmUp: n / 16, N: n, Timeout: idleTimeout, Own: true,
	}, nil)
	each := func(r workload.Report) float64 { return float64(r.Resident) / float64(n) }
	return each(out.Client), each(out.Server), err
}

// idleTimeout includes a garbage collection.
const idleTimeout = 5 * time.Second

// Memory is the resident memory in bytes of an idle process that has opened t,
// and of the same process without it.
func (l *Lab) Memory(ctx context.Context, t transport.Transport, attach string) (with, without int64, err error) {
	j := workload.Job{Bench: workload.Memory, Attach: attach, Wait: t.Waits[0], Size: workload.MinSize, Batch: 1}
	_, s, err := l.sides(t, plan.Pair, j)
	if err != nil {
		return 0, 0, err
	}
	if with, err = l.residentOf(ctx, s); err != nil {
		return 0, 0, fmt.Errorf("memory of %s: %w", t.Name, err)
	}
	s.job.Transport = ""
	if without, err = l.residentOf(ctx, s); err != nil {
		return 0, 0, fmt.Errorf("memory of a bare process: %w", err)
	}
	return with, without, nil
}

func (l *Lab) residentOf(ctx context.Context, s side) (_ int64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("took too long"))
	defer cancel()
	p, err := l.spawn(ctx, s, l.cfg.ServerCPU)
	if err != nil {
		return 0, err
	}
	defer func() { err = finish(p, err) }()
	if err := p.send(s.job); err != nil {
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

// newPair makes a pair of hosts, with an impaired link between them if the lab has these.
func (l *Lab) newPair(cfg netlab.Config) (*netlab.Pair, *impair.Link, error) {
	cfg.Cut = l.cfg.Impaired
	p, err := netlab.NewPair(cfg)
	if err != nil || !l.cfg.Impaired {
		return p, nil, err
	}
	link, err := impair.NewLink(p, impair.Config{Spare: impair.Resolution, Doze: true})
	if err != nil {
		return nil, nil, errors.Join(err, p.Close())
	}
	for _, h := range []*netlab.Host{p.A, p.B} {
		if err := errors.Join(h.UseCongestion("cubic"), h.Do(noMetricsSave)); err != nil {
			return nil, nil, errors.Join(err, link.Close(), p.Close())
		}
	}
	return p, link, nil
}

// noMetricsSave keeps the kernel from starting a connection with metrics of an earlier one.
// It runs inside the host.
func noMetricsSave() error {
	return os.WriteFile("/proc/sys/net/ipv4/tcp_no_metrics_save", []byte("1"), 0)
}

// Goodput measures the flows of a run at the same time, from host A to host B. seed decides
// which frames the link loses and delays.
func (l *Lab) Goodput(ctx context.Context, run plan.Run, j workload.Job, seed uint64) ([]Outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout+2*j.Limit, errors.New("took too long"))
	defer cancel()
	out, err := l.goodput(ctx, run, j, seed)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("%v: %w", run, err)
	}
	return out, nil
}

func (l *Lab) goodput(ctx context.Context, run plan.Run, j workload.Job, seed uint64) (out []Outcome, err error) {
	link, network := l.plain.link, transport.Plain
	for _, f := range run.Flows {
		if !f.Kernel() { // a kernel flow beside it has the same hosts
			link, network = l.muxed.link, transport.Muxed
		}
	}
	missed := missedOn(link)
	open := run.Link.Opening()
	link.Restart(seed, open, open)
	// Children close their connections over a perfect link.
	var clients, servers []*process
	defer func() {
		link.Restart(seed, impair.Rule{}, impair.Rule{})
		for _, p := range append(clients, servers...) {
			err = finish(p, err)
		}
	}()
	for _, f := range run.Flows {
		f.From.Network = network
		clientSide, serverSide, err := l.sides(f.From, plan.Pair, j)
		if err != nil {
			return nil, err
		}
		serverSide.job.Transport = f.To.Name
		server, err := l.prepare(ctx, serverSide, l.cfg.ServerCPU)
		if server != nil {
			servers = append(servers, server)
		}
		if err != nil {
			return nil, err
		}
		if err := server.send("go"); err != nil {
			return nil, err
		}
		client, err := l.prepare(ctx, clientSide, l.cfg.ClientCPU)
		if client != nil {
			clients = append(clients, client)
		}
		if err != nil {
			return nil, err
		}
	}
	link.Restart(seed, run.Link.Rule, run.Link.Rule)
	for _, c := range clients {
		if err := c.send("go"); err != nil {
			return nil, err
		}
	}
	out = make([]Outcome, len(run.Flows))
	for i := range out {
		if out[i].Client, err = report(ctx, clients[i]); err != nil {
			return nil, err
		}
		if out[i].Server, err = report(ctx, servers[i]); err != nil {
			return nil, err
		}
	}
	if n := missedOn(link) - missed; n > 0 {
		return nil, fmt.Errorf("the link was too slow for %d frames: lower its rate", n)
	}
	return out, nil
}

func missedOn(l *impair.Link) uint64 {
	return l.Counters(impair.AtoB).Missed + l.Counters(impair.BtoA).Missed
}

// prepare starts a child and returns when it is ready.
func (l *Lab) prepare(ctx context.Context, s side, cpu int) (*process, error) {
	p, err := l.spawn(ctx, s, cpu)
	if err != nil {
		return nil, err
	}
	if err := p.send(s.job); err != nil {
		return p, err
	}
	_, err = p.next(ctx)
	return p, err
}

// report is the report of a child.
func report(ctx context.Context, p *process) (workload.Report, error) {
	var e event
	e, err := p.next(ctx)
	if err == nil && e.Report == nil {
		err = p.failed(errorOf(e))
	}
	if err != nil {
		return workload.Report{}, err
	}
	return *e.Report, nil
}
