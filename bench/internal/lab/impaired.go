package lab

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/unet-go/unet/bench/internal/child"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
)

// cable makes a pair of hosts, on a whole cable or on one with an impaired link in it.
func (l *Lab) cable(cfg netlab.Config) (*netlab.Pair, *impair.Link, error) {
	cfg.Cut = l.cfg.Impaired
	p, err := netlab.NewPair(cfg)
	if err != nil || !l.cfg.Impaired {
		return p, nil, err
	}
	link, err := impair.NewLink(p, impair.Config{Spare: impair.ARP, Doze: true})
	if err != nil {
		return nil, nil, errors.Join(err, p.Close())
	}
	for _, h := range []*netlab.Host{p.A, p.B} {
		if err := errors.Join(h.UseCongestion("cubic"), h.Do(forgetful)); err != nil {
			return nil, nil, errors.Join(err, link.Close(), p.Close())
		}
	}
	return p, link, nil
}

// forgetful has the kernel forget of a connection what it would have the next begin
// with. It runs inside the host.
func forgetful() error {
	return os.WriteFile("/proc/sys/net/ipv4/tcp_no_metrics_save", []byte("1"), 0)
}

// Goodput measures the flows of a run at the same time, from host A to host B, over a
// link on which the frames have the fates of that seed.
func (l *Lab) Goodput(ctx context.Context, run plan.Run, j workload.Job, seed uint64) ([]Outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience+2*j.Limit, errors.New("took too long"))
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
	link, network := l.plainLink, transport.Plain
	for _, f := range run.Flows {
		if !f.Kernel() { // so is what is beside it
			link, network = l.muxed.link, transport.Muxed
		}
	}
	missed := missedOn(link)
	open := run.Road.Opening()
	link.Restart(seed, open, open)
	// Children end on a link that is whole.
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
		if err := server.tell("go"); err != nil {
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
	link.Restart(seed, run.Road.Rule, run.Road.Rule)
	for _, c := range clients {
		if err := c.tell("go"); err != nil {
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
	p, err := l.spawn(ctx, s.host, cpu, s.job.Role)
	if err != nil {
		return nil, err
	}
	if err := p.tell(s.job); err != nil {
		return p, err
	}
	_, err = p.next(ctx)
	return p, err
}

// report is a child's.
func report(ctx context.Context, p *process) (workload.Report, error) {
	var e child.Event
	e, err := p.next(ctx)
	if err == nil && e.Report == nil {
		err = p.failed(said(e))
	}
	if err != nil {
		return workload.Report{}, err
	}
	return *e.Report, nil
}
