// Package bench runs a plan in a lab: it counts system calls first, measures
// round after round, and hands every record on as soon as it is there.
package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/syscount"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Part is one selection and the combinations it asks for.
type Part struct {
	Selection    plan.Selection
	Combinations []plan.Combination
}

// NewPart checks and combines a selection.
func NewPart(s plan.Selection) (Part, error) {
	c, err := s.Combinations()
	return Part{s, c}, err
}

// Run is everything that one command measures.
type Run struct {
	Parts []Part
	// Weights asks for the resident memory of idle processes as well, with
	// these attachments.
	Weights []string
	// Idle asks for the memory of so many idle connections as well, with the
	// attachments of Weights; 0: not.
	Idle int
	// Openings asks for the time that opening an endpoint takes, so many times
	// on an empty host and in a crowd.
	Openings int
	Seed     uint64

	OnRecord  func(report.Record)
	OnWeight  func(report.Weight)
	OnIdle    func(report.Idle)
	OnOpening func(report.Opening)
	OnStep    func(done, total int, what string)
	OnNote    func(string) // what the user should know, one line
}

// Result is what was measured, as far as it got.
type Result struct {
	Planned  []report.Key
	Records  []report.Record
	Weights  []report.Weight
	Idle     []report.Idle
	Openings []report.Opening
}

// Networks says on which of the pairs something is measured.
func (r *Run) Networks() (muxed, crowd, plain bool) {
	muxed, crowd = len(r.Weights) > 0 || r.Openings > 0, r.Openings > 0
	for _, p := range r.Parts {
		for _, c := range p.Combinations {
			switch {
			case c.MTU > 0: // see Bulk
			case c.Transport.Network == transport.Plain:
				plain = true
			case c.Place == plan.Crowd:
				crowd = true
			default:
				muxed = true
			}
		}
	}
	return muxed, crowd, plain
}

// Bulk says which pairs bandwidth needs.
func (r *Run) Bulk() (nets []lab.Net) {
	for _, p := range r.Parts {
		for _, c := range p.Combinations {
			if n := (lab.Net{Network: c.Transport.Network, MTU: c.MTU}); c.MTU > 0 && !slices.Contains(nets, n) {
				nets = append(nets, n)
			}
		}
	}
	return nets
}

// weighed are the transports whose idle memory is of interest: an endpoint
// alone, and one with a stack.
var weighed = []string{transport.Message, transport.UDP}

// Do measures. After an error the result holds what was measured before it.
func (r *Run) Do(ctx context.Context, l *lab.Lab) (Result, error) {
	var res Result
	done, total := 0, len(r.Weights)*(len(weighed)+min(r.Idle, 1))+min(r.Openings, 1)
	for _, p := range r.Parts {
		total += len(p.Combinations) * (p.Selection.Rounds + 1) // and the counting pass
		for _, c := range p.Combinations {
			res.Planned = append(res.Planned, report.KeyOf(c))
		}
	}
	step := func(format string, args ...any) {
		r.OnStep(done, total, fmt.Sprintf(format, args...))
		done++
	}
	for _, attach := range r.Weights {
		for _, name := range weighed {
			step("memory %s %s", name, attach)
			w, err := weigh(ctx, l, name, attach)
			if err != nil {
				return res, err
			}
			res.Weights = append(res.Weights, w)
			r.OnWeight(w)
		}
		if r.Idle == 0 {
			continue
		}
		step("memory of %d connections %s %s", r.Idle, transport.TCP, attach)
		i, err := idle(ctx, l, attach, r.Idle)
		if err != nil {
			return res, err
		}
		res.Idle = append(res.Idle, i)
		r.OnIdle(i)
	}
	if r.Openings > 0 {
		step("opening %d endpoints on an empty host and in a crowd", r.Openings)
		var err error
		if res.Openings, err = r.open(ctx, l); err != nil {
			return res, err
		}
		for _, o := range res.Openings {
			r.OnOpening(o)
		}
	}
	for _, p := range r.Parts {
		calls, err := r.count(ctx, l, p, step)
		if err != nil {
			return res, err
		}
		for round := 1; round <= p.Selection.Rounds; round++ {
			for _, i := range plan.Order(len(p.Combinations), r.Seed, round) {
				c := p.Combinations[i]
				step("round %d of %d: %v", round, p.Selection.Rounds, c)
				j := p.Selection.Job(c)
				out, err := l.Measure(ctx, c.Transport, c.Place, j, nil)
				if err != nil {
					return res, err
				}
				rec := report.NewRecord(c, j, round, out, calls[i])
				res.Records = append(res.Records, rec)
				r.OnRecord(rec)
			}
		}
	}
	return res, nil
}

// open opens endpoints by turns on an empty host and in a crowd.
func (r *Run) open(ctx context.Context, l *lab.Lab) ([]report.Opening, error) {
	places := []string{plan.Pair, plan.Crowd}
	took := make([][]time.Duration, len(places))
	for round := range r.Openings {
		for _, i := range plan.Order(len(places), r.Seed, round) {
			d, err := l.OpenOnce(ctx, places[i])
			if err != nil {
				return nil, fmt.Errorf("open an endpoint: %w", err)
			}
			took[i] = append(took[i], d)
		}
	}
	var all []report.Opening
	for i, place := range places {
		others := 0
		if place == plan.Crowd {
			others = lab.CrowdSize
		}
		all = append(all, report.NewOpening(others, took[i]))
	}
	return all, nil
}

// count is the counting pass: every combination once, briefly and untimed,
// with the counter attached. Without a counter all counts are nil.
func (r *Run) count(ctx context.Context, l *lab.Lab, p Part, step func(string, ...any)) (_ []*float64, err error) {
	calls := make([]*float64, len(p.Combinations))
	counter, err := syscount.Open()
	if errors.Is(err, syscount.ErrUnavailable) {
		r.OnNote(fmt.Sprintf("syscalls_per_msg is null: %v", err))
		for _, c := range p.Combinations {
			step("not counted: %v", c)
		}
		return calls, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, counter.Close()) }()
	for i, c := range p.Combinations {
		step("counting system calls: %v", c)
		out, err := l.Measure(ctx, c.Transport, c.Place, p.Selection.CountingJob(c), counter)
		if err != nil {
			return nil, err
		}
		v := report.PerMessage(float64(out.SystemCalls), out, c.Bench)
		calls[i] = &v
	}
	return calls, nil
}

func idle(ctx context.Context, l *lab.Lab, attach string, n int) (report.Idle, error) {
	t, err := transport.ByName(transport.TCP)
	if err != nil {
		return report.Idle{}, err
	}
	client, server, err := l.Connections(ctx, t, attach, n)
	return report.Idle{Bench: workload.Idle, Transport: t.Name, Attach: attach, N: n, Client: client, Server: server}, err
}

func weigh(ctx context.Context, l *lab.Lab, name, attach string) (report.Weight, error) {
	t, err := transport.ByName(name)
	if err != nil {
		return report.Weight{}, err
	}
	with, without, err := l.Weigh(ctx, t, attach)
	return report.Weight{Bench: workload.Memory, Transport: name, Attach: attach, With: with, Without: without}, err
}
