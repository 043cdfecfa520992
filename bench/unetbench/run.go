package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/cli"
	"github.com/unet-go/unet/bench/internal/lab"
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

func (c *common) flags(cmd *cobra.Command) *cobra.Command {
	cmd.Args, c.mode = cli.Args(0), mux.ModeAuto.String()
	f := cmd.Flags()
	f.BoolVar(&c.json, "json", false, "write one JSON object a line to standard output, and the tables to standard error")
	f.BoolVar(&c.benchfmt, "benchfmt", false, "the same in Go's benchmark format, which benchstat reads")
	f.StringVar(&c.unetd, "unetd", "", "the daemon's executable (default: unetd beside unetbench)")
	f.StringVar(&c.mode, "mode", c.mode, "how unetd attaches its programs, as unetd serve --mode")
	f.IntSliceVar(&c.cpus, "cpus", nil, "processors of client and server (default: the first two)")
	f.Uint64Var(&c.seed, "seed", 0, "of the order within rounds (default: a new one, which is printed)")
	return cmd
}

// run makes the lab, measures and prints.
func (c *common) run(cmd *cobra.Command, cfg lab.Config, m measurement) (err error) {
	if c.json && c.benchfmt {
		return cli.Usage(errors.New("--json and --benchfmt: want one of them"))
	}
	if cfg, err = c.labConfig(cfg); err != nil {
		return err
	}
	seed := c.seed
	if !cmd.Flags().Changed("seed") {
		seed = uint64(rand.Uint32()) // short enough to type again
	}
	out := newOutput(cmd.OutOrStdout(), cmd.ErrOrStderr(), c)
	out.note("client on processor %d, server on %d, order of rounds from --seed %d", cfg.ClientCPU, cfg.ServerCPU, seed)
	l, err := lab.Open(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	err = m.do(cmd.Context(), l, seed, out)
	m.print(out)
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
	if _, err := exec.LookPath(path); err != nil {
		return "", fmt.Errorf("%w: build it (make build), or say where it is with --unetd", err)
	}
	return path, nil
}

// part is what is measured in the same rounds.
type part struct {
	rounds int
	items  []item
}

// item is one case of a selection.
type item struct {
	workload.Case
	effort, counting workload.Effort
}

// messages measures everything but services.
type messages struct {
	parts []part
	// openings is how often to time the opening of an endpoint, on an empty host and on a
	// crowded one.
	openings int
	all      []string // places of which to print the goals that were not measured, too

	planned []workload.Case
	records []report.Record
}

// add checks selections and adds them, to be measured in the same rounds.
func (m *messages) add(selections ...plan.Selection) error {
	var p part
	for _, s := range selections {
		all, err := s.Cases()
		if err != nil {
			return cli.Usage(err)
		}
		p.rounds = max(p.rounds, s.Rounds)
		for _, c := range all {
			if slices.Contains(m.planned, c) {
				continue // two selections have it
			}
			p.items = append(p.items, item{c, s.EffortOf(c), s.Counting()})
			m.planned = append(m.planned, c)
		}
	}
	m.parts = append(m.parts, p)
	return nil
}

// lab is which pairs of hosts the measurement needs.
func (m *messages) lab() (cfg lab.Config, err error) {
	if m.openings > 0 {
		cfg.Sites = []lab.Site{{Network: transport.Muxed}, {Network: transport.Muxed, Crowd: true}}
	}
	for _, c := range m.planned {
		t, err := transport.ByName(c.Bench, c.Transport)
		if err != nil {
			return cfg, err
		}
		cfg.IPv6 = cfg.IPv6 || t.IPv6
		if s := lab.SiteOf(t, c); !slices.Contains(cfg.Sites, s) {
			cfg.Sites = append(cfg.Sites, s)
		}
	}
	return cfg, nil
}

func (m *messages) do(ctx context.Context, l *lab.Lab, seed uint64, out *output) error {
	out.total = min(m.openings, 1)
	for _, p := range m.parts {
		out.total += len(p.items) * (1 + p.rounds) // and the counting pass
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
				item := p.items[i]
				out.step("round %d of %d: %v", round, p.rounds, item.Case)
				got, err := l.Measure(ctx, item.Case, item.effort, nil)
				if err != nil {
					return err
				}
				m.record(report.NewRecord(item.Case, item.effort, round, got, calls[i]), out)
			}
		}
	}
	return nil
}

// record keeps a record and writes it.
func (m *messages) record(r report.Record, out *output) {
	m.records = append(m.records, r)
	out.line(r)
}

// open opens endpoints by turns on an empty host and on a crowded one.
func (m *messages) open(ctx context.Context, l *lab.Lab, seed uint64, out *output) error {
	places := []string{workload.Pair, workload.Crowd}
	took := make([][]time.Duration, len(places))
	for round := range m.openings {
		for _, i := range plan.Order(len(places), seed, round) {
			d, err := l.OpenOnce(ctx, places[i] == workload.Crowd)
			if err != nil {
				return fmt.Errorf("open an endpoint: %w", err)
			}
			took[i] = append(took[i], d)
		}
	}
	for i, place := range places {
		r := report.NewOpening(place, took[i])
		m.planned = append(m.planned, r.Case)
		m.record(r, out)
	}
	return nil
}

// countCalls is the counting pass: every case once, briefly and untimed, with the counter of system calls
// attached. Without a counter all counts are nil.
func (p part) countCalls(ctx context.Context, l *lab.Lab, out *output) (_ []*float64, err error) {
	calls := make([]*float64, len(p.items))
	counter, err := syscount.Open()
	if errors.Is(err, syscount.ErrUnavailable) {
		out.note("syscalls_per_msg is null: %v", err)
		out.done += len(p.items)
		return calls, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, counter.Close()) }()
	for i, item := range p.items {
		out.step("counting system calls: %v", item.Case)
		got, err := l.Measure(ctx, item.Case, item.counting, counter.Follow)
		if err != nil {
			return nil, err
		}
		n, err := counter.Take()
		if err != nil {
			return nil, err
		}
		v := report.PerMessage(float64(n), item.Case, got)
		calls[i] = &v
	}
	return calls, nil
}

// print writes the tables of what was measured.
func (m *messages) print(out *output) {
	s := report.Summarize(m.planned, m.records)
	s.Print(out.tables)
	if len(m.records) == 0 {
		m.all = nil
	}
	s.PrintGoals(out.tables, m.all...)
}
