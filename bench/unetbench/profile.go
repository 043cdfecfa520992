package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/perf"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/transport"
)

// What profile can sample.
const (
	sampleTime         = "time"
	sampleInstructions = "instructions"
)

func newProfile(c *common) *cobra.Command {
	s := rttSelection()
	s.Attach, s.Limit, s.Rounds = []string{"port"}, 4*time.Second, 1
	event, top := sampleTime, 25
	cmd := &cobra.Command{
		Use:   "profile [transport]...",
		Short: "Where the time of a message goes, by function",
		Long: `profile samples both processors while round trips of 64 bytes run, and shows the
functions in which the samples lie: of the two processes (user code), of the
kernel (/proc/kallsyms), and BPF programs by name. Without an argument it
profiles udp. A message is half a round trip.

A group is that of the innermost function, or of its next caller that has one: memory
allocated for AF_XDP is AF_XDP's, a map lookup is the program's. Everything
below a loop that waits for frames is "waiting". The two processes
spin, so one waits while the other works, and waiting takes about half of the time. The
other groups are what a message costs; some of it is done after the message has left.

--event time needs no hardware. Its clock is an interrupt, every 250 us: where
interrupts are disabled, time counts for the function that enables them again. On a virtual machine
such an interrupt takes microseconds, so a round trip is longer while samples are taken.
--event instructions needs hardware counters.

A second round times the runs of the daemons' BPF programs by the kernel's own
statistics (BPF_ENABLE_STATS). These read the clock twice a run: the table says how
much of that an empty program shows, and how long a round trip takes meanwhile.`,
		Example: `  unetbench profile
  unetbench profile msg udp tcp --attach port,queue
  unetbench profile tcp --attach queue --limit 10s --top 50
  unetbench profile udp --event instructions --json > profile.jsonl`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.Transports = args; len(args) == 0 {
				s.Transports = []string{transport.UDP}
			}
			switch {
			case event != sampleTime && event != sampleInstructions:
				return usageError{fmt.Errorf("--event %q: want %s or %s", event, sampleTime, sampleInstructions)}
			case top < 1:
				return usageError{fmt.Errorf("--top %d: want at least 1", top)}
			}
			s.N = max(1, int(s.Limit/fastest))
			all, err := s.Combinations()
			if err != nil {
				return usageError{err}
			}
			p := &profile{selection: s, combinations: all, instructions: event == sampleInstructions, top: top}
			cfg := lab.Config{Muxed: true}
			for _, c := range all {
				cfg.Plain = cfg.Plain || c.Transport.Network == transport.Plain
			}
			return c.run(cmd, cfg, p)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&s.Attach, "attach", s.Attach, "attachment of endpoints: port, queue")
	f.StringVar(&event, "event", event, "what to sample: time, instructions")
	f.DurationVar(&s.Limit, "limit", s.Limit, "how long to sample each transport")
	f.IntVar(&top, "top", top, "functions in the table")
	return cmd
}

// fastest is less than any round trip takes. It bounds the number of round trips: the memory for the times
// of more of them would have to be cleared, and that would show in the samples.
const fastest = 2 * time.Microsecond

// profile samples round trips.
type profile struct {
	selection    plan.Selection
	combinations []plan.Combination
	instructions bool
	top          int
	profiles     []report.Profile
}

func (p *profile) do(ctx context.Context, l *lab.Lab, _ uint64, out *output) error {
	out.total = 3 * len(p.combinations)
	for _, c := range p.combinations {
		r, err := p.one(ctx, l, c, out)
		if err != nil {
			return err
		}
		p.profiles = append(p.profiles, r)
		out.line(r)
	}
	return nil
}

// one is a round undisturbed, one with samples, and one in which BPF programs are timed.
func (p *profile) one(ctx context.Context, l *lab.Lab, c plan.Combination, out *output) (r report.Profile, err error) {
	r = report.Profile{Bench: "profile", Transport: c.Transport.Name, Attach: c.Attach, Event: sampleTime, Unit: "ns"}
	period := float64(perf.TimePeriod)
	if p.instructions {
		r.Event, r.Unit, period = sampleInstructions, "instructions", perf.InstructionPeriod
	}
	j := p.selection.Job(c)
	short := j
	short.Limit = min(j.Limit, rttSelection().Limit)
	p50 := func(o lab.Outcome) float64 { return float64(o.Client.Latency.P50) / 1e3 }

	out.step("%v, undisturbed", c)
	got, err := l.Measure(ctx, c.Transport, c.Place, short, nil)
	if err != nil {
		return r, err
	}
	r.P50US = p50(got)

	out.step("%v, sampled", c)
	s := samples{}
	if s.sampler, err = perf.NewSampler(l.Processors(), p.instructions); err != nil {
		return r, fmt.Errorf("samples of %s are %w", r.Event, err)
	}
	defer func() { err = errors.Join(err, s.sampler.Close()) }()
	if got, err = l.Measure(ctx, c.Transport, c.Place, j, &s); err != nil {
		return r, err
	}
	all, lost, err := s.sampler.Samples()
	if err != nil {
		return r, err
	}
	r.SampledUS, r.Lost, r.Messages = p50(got), lost, messagesOf(got, j.WarmUp)
	functions, groups := s.symbols.Tally(all, s.pids...)
	r.SetShares(groups, functions, period)

	out.step("%v, timing BPF programs", c)
	if c.Transport.Network != transport.Muxed {
		return r, nil
	}
	runs := programRuns{lab: l}
	if got, err = l.Measure(ctx, c.Transport, c.Place, short, &runs); err != nil {
		return r, errors.Join(err, runs.close())
	}
	r.StatsUS = p50(got)
	for name, after := range runs.after {
		before := runs.before[name]
		if n := after.Count - before.Count; n > 0 {
			r.Programs = append(r.Programs, report.ProgramRun{
				Name: name, RunsPerMsg: float64(n) / float64(messagesOf(got, j.WarmUp)), NS: float64(after.Time-before.Time) / float64(n),
			})
		}
	}
	slices.SortFunc(r.Programs, func(a, b report.ProgramRun) int {
		return cmp.Or(cmp.Compare(b.RunsPerMsg*b.NS, a.RunsPerMsg*a.NS), cmp.Compare(a.Name, b.Name))
	})
	r.EmptyNS, err = runs.empty, runs.close()
	return r, err
}

// messagesOf is how many messages both sides sent while a measurement was observed.
func messagesOf(o lab.Outcome, warmUp int) int { return 2 * (o.Client.N + o.Client.Lost + warmUp) }

// samples are taken while a measurement runs.
type samples struct {
	sampler *perf.Sampler
	symbols *perf.Symbols
	pids    []int
}

func (s *samples) Start(pids []int) error {
	s.pids = pids
	return s.sampler.Start()
}

func (s *samples) Stop() (err error) {
	if err = s.sampler.Stop(); err == nil {
		s.symbols, err = perf.KernelSymbols() // while the programs are loaded
	}
	return err
}

// programRuns counts and times runs of the daemons' programs while a measurement runs.
type programRuns struct {
	lab           *lab.Lab
	stats         io.Closer
	ids           []uint32
	before, after map[string]perf.Runs
	empty         float64 // ns
}

func (p *programRuns) Start([]int) (err error) {
	if p.stats, err = perf.EnableStats(); err != nil {
		return err
	}
	if p.empty, err = perf.EmptyRun(); err != nil {
		return err
	}
	if p.ids, err = p.lab.Programs(); err != nil {
		return err
	}
	p.before, err = perf.ProgramRuns(p.ids)
	return err
}

func (p *programRuns) Stop() (err error) {
	p.after, err = perf.ProgramRuns(p.ids)
	return err
}

func (p *programRuns) close() error {
	if p.stats == nil {
		return nil
	}
	return p.stats.Close()
}

func (p *profile) print(w io.Writer) {
	for _, r := range p.profiles {
		report.PrintProfile(w, r, p.top)
	}
}
