package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/cli"
	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/perf"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/syscount"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
)

// common are the flags that every benchmark has.
type common struct {
	json     bool
	benchfmt bool
	unetd    string
	mode     string
	cpus     []int
	seed     uint64
}

func (c *common) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&c.json, "json", false, "write one JSON object a line to standard output, and the tables to standard error")
	f.BoolVar(&c.benchfmt, "benchfmt", false, "the same in Go's benchmark format, which benchstat reads")
	f.StringVar(&c.unetd, "unetd", "", "the daemon's executable (default: unetd beside unetbench)")
	f.StringVar(&c.mode, "mode", mux.ModeAuto.String(), "how unetd attaches its programs, as unetd serve --mode")
	f.IntSliceVar(&c.cpus, "cpus", nil, "processors of client and server (default: the first two)")
	f.Uint64Var(&c.seed, "seed", 0, "of the order within rounds (default: a new one, which is printed)")
}

// measurement is what a command measures, in a lab.
type measurement interface {
	// do measures, and writes each line when it has it.
	do(ctx context.Context, l *lab.Lab, seed uint64, out *output) error
	// print writes the tables of what was measured, also after an error of do.
	print(w io.Writer)
}

// run makes the lab, measures and prints.
func (c *common) run(cmd *cobra.Command, cfg lab.Config, m measurement) (err error) {
	if c.json && c.benchfmt {
		return cli.Usage(errors.New("--json and --benchfmt: want one of them"))
	}
	if cfg, err = c.labConfig(cfg); err != nil {
		return err
	}
	missing := perf.Probe()
	if missing == nil {
		cfg.Events = perf.Hardware
	}
	seed := c.seed
	if !cmd.Flags().Changed("seed") {
		seed = uint64(rand.Uint32()) // short enough to type again
	}
	out := newOutput(cmd.OutOrStdout(), cmd.ErrOrStderr(), c)
	defer out.clear()
	if missing != nil {
		out.note(fmt.Sprintf("instructions and cycles are %v", missing))
	}
	out.note(fmt.Sprintf("client on processor %d, server on %d, order of rounds from --seed %d", cfg.ClientCPU, cfg.ServerCPU, seed))
	l, err := lab.Open(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	defer func() {
		out.clear()
		err = errors.Join(err, l.Close())
	}()
	err = m.do(cmd.Context(), l, seed, out)
	out.clear()
	m.print(out.tables)
	return errors.Join(err, out.err)
}

// labConfig completes cfg with processors and unetd, and checks the machine.
func (c *common) labConfig(cfg lab.Config) (lab.Config, error) {
	mode, err := mux.ParseMode(c.mode)
	if err != nil {
		return cfg, cli.Usage(err)
	}
	cfg.Mode = mode.String()
	cpus, err := netlab.Processors()
	if err != nil {
		return cfg, err
	}
	switch {
	case len(c.cpus) == 0 && len(cpus) < 2:
		return cfg, errors.New("needs two processors: client and server have one each")
	case len(c.cpus) == 0:
		cfg.ClientCPU, cfg.ServerCPU = cpus[0], cpus[1]
	case len(c.cpus) != 2 || c.cpus[0] == c.cpus[1]:
		return cfg, cli.Usage(fmt.Errorf("--cpus %v: want two different processors", c.cpus))
	default:
		for _, n := range c.cpus {
			if !slices.Contains(cpus, n) {
				return cfg, cli.Usage(fmt.Errorf("--cpus: processor %d is not one of those that can be used, %v", n, cpus))
			}
		}
		cfg.ClientCPU, cfg.ServerCPU = c.cpus[0], c.cpus[1]
	}
	if os.Geteuid() != 0 {
		return cfg, errors.New("needs root, to make network namespaces and to start unetd in them")
	}
	if cfg.Daemons() {
		if cfg.Unetd, err = c.findUnetd(); err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}

// findUnetd is the path of the daemon's executable.
func (c *common) findUnetd() (string, error) {
	path := c.unetd
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		path = filepath.Join(filepath.Dir(self), "unetd")
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("there is no unetd at %s: build it (make build), or say where it is with --unetd", path)
	case err != nil:
		return "", err
	case info.IsDir() || info.Mode()&0o111 == 0:
		return "", fmt.Errorf("unetd at %s is not an executable file", path)
	}
	return path, nil
}

// part is what is measured in the same rounds.
type part struct {
	rounds int
	items  []item
}

// item is one combination of a selection.
type item struct {
	plan.Selection
	plan.Combination
}

// messages measures everything but goodput.
type messages struct {
	parts []part
	// memory lists attachments to measure the resident memory of idle processes and of
	// idle connections with.
	memory []string
	idle   int // connections
	// openings is how often to time the opening of an endpoint, on an empty host and on a
	// crowded one.
	openings int
	kernel   *kernelTraffic // nil: not measured
	rdma     bool           // print the tables of rdma only

	planned []report.Key
	records []report.Record
	extra   report.Summary // memory and openings
}

// add checks selections and adds them, to be measured in the same rounds.
func (m *messages) add(selections ...plan.Selection) error {
	var p part
	for _, s := range selections {
		all, err := s.Combinations()
		if err != nil {
			return cli.Usage(err)
		}
		p.rounds = max(p.rounds, s.Rounds)
		for _, c := range all {
			k := report.KeyOf(c)
			if slices.Contains(m.planned, k) && m.rdma {
				continue // two tables have it
			}
			p.items = append(p.items, item{s, c})
			m.planned = append(m.planned, k)
		}
	}
	m.parts = append(m.parts, p)
	return nil
}

// lab is which pairs of hosts the measurement needs.
func (m *messages) lab() (cfg lab.Config) {
	cfg.Routed = m.kernel != nil
	cfg.Muxed, cfg.Crowd = len(m.memory) > 0 || m.openings > 0, m.openings > 0
	for _, p := range m.parts {
		for _, c := range p.items {
			cfg.IPv6 = cfg.IPv6 || c.Transport.IPv6
			bulk := lab.Net{Network: c.Transport.Network, MTU: c.MTU}
			switch {
			case c.MTU > 0, bulk.Network == transport.Direct:
				if !slices.Contains(cfg.Bulk, bulk) {
					cfg.Bulk = append(cfg.Bulk, bulk)
				}
			case c.Transport.Network == transport.Plain:
				cfg.Plain = true
			case c.Place == plan.Crowd:
				cfg.Crowd = true
			default:
				cfg.Muxed = true
			}
		}
	}
	return cfg
}

// withMemory are the transports whose idle memory is measured: an endpoint alone, and one
// with a stack.
var withMemory = []string{transport.Message, transport.UDP}

func (m *messages) do(ctx context.Context, l *lab.Lab, seed uint64, out *output) error {
	out.total = len(m.memory)*(len(withMemory)+1) + min(m.openings, 1)
	for _, p := range m.parts {
		for _, i := range p.items {
			out.total += 1 + i.times(p.rounds) // and the counting pass
		}
	}
	if m.kernel != nil {
		out.total += m.kernel.steps()
		if err := m.kernel.measure(ctx, l, seed, out); err != nil {
			return err
		}
	}
	for _, attach := range m.memory {
		if err := m.measureMemory(ctx, l, attach, out); err != nil {
			return err
		}
	}
	if m.openings > 0 {
		out.step("opening %d endpoints on an empty host and on a crowded one", m.openings)
		if err := m.open(ctx, l, seed, out); err != nil {
			return err
		}
	}
	for _, p := range m.parts {
		calls, err := p.countCalls(ctx, l, out)
		if err != nil {
			return err
		}
		for round := 1; round <= p.rounds; round++ {
			for _, i := range plan.Order(len(p.items), seed, round) {
				if !p.items[i].in(round) {
					continue
				}
				c := p.items[i].Combination
				out.step("round %d of %d: %v", round, p.rounds, c)
				j := p.items[i].Job(c)
				got, err := l.Measure(ctx, c.Transport, c.Place, j, nil)
				if err != nil {
					return err
				}
				if _, reason := got.Counts(); reason != "" {
					out.note(fmt.Sprintf("round %d of %v has no instructions and cycles: %s", round, c, reason))
				}
				r := report.NewRecord(c, j, round, got, calls[i])
				m.records = append(m.records, r)
				out.line(r)
			}
		}
	}
	return nil
}

// in reports whether an item is measured in a round.
func (i item) in(round int) bool { return round <= i.Rounds && (round-1)%max(i.Every, 1) == 0 }

// times is in how many of the given rounds the item is measured.
func (i item) times(rounds int) (n int) {
	for round := 1; round <= rounds; round++ {
		if i.in(round) {
			n++
		}
	}
	return n
}

func (m *messages) measureMemory(ctx context.Context, l *lab.Lab, attach string, out *output) error {
	for _, name := range withMemory {
		out.step("memory %s %s", name, attach)
		t, err := transport.ByName(name)
		if err != nil {
			return err
		}
		r := report.Memory{Bench: workload.Memory, Transport: name, Attach: attach}
		if r.With, r.Without, err = l.Memory(ctx, t, attach); err != nil {
			return err
		}
		m.extra.Memory = append(m.extra.Memory, r)
		out.line(r)
	}
	out.step("memory of %d connections %s %s", m.idle, transport.TCP, attach)
	t, err := transport.ByName(transport.TCP)
	if err != nil {
		return err
	}
	r := report.Idle{Bench: workload.Idle, Transport: t.Name, Attach: attach, N: m.idle}
	if r.Client, r.Server, err = l.IdleConnections(ctx, t, attach, m.idle); err != nil {
		return err
	}
	m.extra.Idle = append(m.extra.Idle, r)
	out.line(r)
	return nil
}

// open opens endpoints by turns on an empty host and on a crowded one.
func (m *messages) open(ctx context.Context, l *lab.Lab, seed uint64, out *output) error {
	places := []string{plan.Pair, plan.Crowd}
	took := make([][]time.Duration, len(places))
	for round := range m.openings {
		for _, i := range plan.Order(len(places), seed, round) {
			d, err := l.OpenOnce(ctx, places[i])
			if err != nil {
				return fmt.Errorf("open an endpoint: %w", err)
			}
			took[i] = append(took[i], d)
		}
	}
	for i, others := range []int{0, lab.CrowdSize} {
		o := report.NewOpening(others, took[i])
		m.extra.Openings = append(m.extra.Openings, o)
		out.line(o)
	}
	return nil
}

// countCalls is the counting pass: every combination once, briefly and untimed, with the
// counter of system calls attached. Without a counter all counts are nil.
func (p part) countCalls(ctx context.Context, l *lab.Lab, out *output) (_ []*float64, err error) {
	calls := make([]*float64, len(p.items))
	counter, err := syscount.Open()
	if errors.Is(err, syscount.ErrUnavailable) {
		out.note(fmt.Sprintf("syscalls_per_msg is null: %v", err))
		out.done += len(p.items)
		return calls, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, counter.Close()) }()
	for i, item := range p.items {
		c := item.Combination
		out.step("counting system calls: %v", c)
		got, err := l.Measure(ctx, c.Transport, c.Place, item.CountingJob(c), counter)
		if err != nil {
			return nil, err
		}
		v := report.PerMessage(float64(counter.Calls), got, c.Bench)
		calls[i] = &v
	}
	return calls, nil
}

// print writes the tables of what was measured. The goals need a run of all.
func (m *messages) print(w io.Writer) {
	s := report.Summarize(m.planned, m.records)
	s.Memory, s.Idle, s.Openings = m.extra.Memory, m.extra.Idle, m.extra.Openings
	if m.rdma {
		s.PrintOperations(w)
		s.PrintVerbsGoals(w)
		return
	}
	s.Print(w)
	if m.kernel != nil && len(m.records) > 0 { // a run of all
		rows := report.SummarizeTraffic(m.kernel.lines)
		report.PrintTraffic(w, m.kernel.mode, rows)
		report.PrintGoals(w, report.SpeedGoals, append(s.Goals(), report.KernelGoals(rows)...))
	}
	if len(s.Openings) > 0 {
		report.PrintGoals(w, report.SpeedGoals, s.ScaleGoals())
	}
	s.PrintBandwidthGoals(w)
	s.PrintOtherGoals(w)
}

func goodputPlan() plan.Goodput {
	return plan.Goodput{
		Loss:   []float64{0.1, 1, 5},
		Delay:  []time.Duration{time.Millisecond, 20 * time.Millisecond},
		Rate:   300e6,
		Attach: "port", Wait: "adaptive",
		Rounds: 5, Time: 4 * time.Second, ShareTime: 20 * time.Second,
	}
}

// Links of --on.
const (
	lossy      = "loss"
	reordering = "reordering"
	narrow     = "bottleneck"
	shared     = "share"
)

var kinds = []string{lossy, reordering, narrow, shared}

func newGoodput(c *common) *cobra.Command {
	p := goodputPlan()
	on, rate := slices.Clone(kinds), p.Rate/1e6
	cmd := &cobra.Command{
		Use:   "goodput",
		Short: "Bulk over impaired links, and shares of a bottleneck, beside the kernel's CUBIC",
		Long: `goodput sends as much as it can over one TCP connection for some seconds and counts
what the receiving application reads, from the first byte on: unet to unet, unet to
the kernel, the kernel to unet, and, for comparison, the kernel to the kernel. Between the hosts is an impaired link (--on):

  loss        frames are lost at random, each way; --loss and --delay are combined
  bottleneck  100 Mb/s, 10 ms each way, a queue of 250 kB that drops when it is full
  reordering  the same, and 2 % of the frames are held back by up to 4 ms
  share       the bottleneck, for two connections at a time: of the kernel, of unet, and
              one of each

--delay is that of a frame, so a round trip takes twice as long. In each round
frame n of a direction is lost or not by the round's seed, so all flows lose the
same frames. Nothing is lost while connections are opened.

A thread of this program carries the frames, on the same processors, so --rate
bounds the load. Offloads are off, so that a frame is a segment. The kernel has CUBIC and its usual buffers
(net.ipv4.tcp_rmem, tcp_wmem), and does not use metrics of earlier connections
(tcp_no_metrics_save). Its processes are those of go-tcp: package net, blocking.`,
		Example: `  unetbench goodput
  unetbench goodput --on loss --loss 1 --delay 20ms --rounds 9 --time 10s
  unetbench goodput --on share --json > share.jsonl`,
		Args: cli.Args(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.Rate = rate * 1e6
			for _, k := range on {
				if !slices.Contains(kinds, k) {
					return cli.Usage(fmt.Errorf("--on %s: there are %v", k, kinds))
				}
			}
			if !slices.Contains(on, lossy) {
				p.Loss = nil
			}
			if slices.Contains(on, narrow) {
				p.Others = append(p.Others, plan.Bottleneck())
			}
			if slices.Contains(on, reordering) {
				p.Others = append(p.Others, plan.Reordering())
			}
			if slices.Contains(on, shared) {
				p.Shares = append(p.Shares, plan.Bottleneck())
			}
			runs, err := p.Runs()
			if err != nil {
				return cli.Usage(err)
			}
			g := &goodput{plan: p, runs: runs, flows: make([][][]report.Flow, len(runs))}
			return c.run(cmd, lab.Config{Muxed: true, Plain: true, Impaired: true}, g)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&on, "on", on, "links: loss, reordering, bottleneck, share")
	f.Float64SliceVar(&p.Loss, "loss", p.Loss, "percent of the frames that are lost, each way")
	f.DurationSliceVar(&p.Delay, "delay", p.Delay, "how long a frame takes, each way")
	f.Int64Var(&rate, "rate", rate, "of the link with losses, Mb/s")
	f.StringVar(&p.Attach, "attach", p.Attach, "attachment of endpoints: port, queue")
	f.StringVar(&p.Wait, "wait", p.Wait, "wait mode of endpoints: spin, adaptive, block")
	f.IntVar(&p.Rounds, "rounds", p.Rounds, "rounds of everything")
	f.DurationVar(&p.Time, "time", p.Time, "how long a connection is measured")
	f.DurationVar(&p.ShareTime, "share-time", p.ShareTime, "how long two that share are measured")
	return cmd
}

// goodput measures bulk over impaired links.
type goodput struct {
	plan  plan.Goodput
	runs  []plan.Run
	flows [][][]report.Flow // of each run, of each round
}

// firstByte is how long the first byte may take.
const firstByte = 10 * time.Second

func (g *goodput) do(ctx context.Context, l *lab.Lab, seed uint64, out *output) error {
	out.total = len(g.runs) * g.plan.Rounds
	for round := 1; round <= g.plan.Rounds; round++ {
		for _, i := range plan.Order(len(g.runs), seed, round) {
			run := g.runs[i]
			out.step("round %d of %d: %v", round, g.plan.Rounds, run)
			j := workload.Job{Bench: workload.Goodput, Attach: g.plan.Attach, Wait: g.plan.Wait, Limit: g.plan.Time, Timeout: firstByte}
			if run.Shared() {
				j.Limit = g.plan.ShareTime
			}
			linkSeed := 2 * (seed + uint64(round)) // each direction has one
			got, err := l.Goodput(ctx, run, j, linkSeed)
			if err != nil {
				return err
			}
			flows := report.NewFlows(run, j, round, linkSeed, got)
			g.flows[i] = append(g.flows[i], flows)
			for _, f := range flows {
				out.line(f)
			}
		}
	}
	return nil
}

func (g *goodput) print(w io.Writer) {
	if rows := report.SummarizeFlows(g.runs, g.flows); len(rows) > 0 {
		report.PrintFlows(w, rows)
		report.PrintGoals(w, report.FlowGoalsTitle, report.FlowGoals(rows))
	}
}
