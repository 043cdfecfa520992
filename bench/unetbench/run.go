package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/bench"
	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/internal/netlab"
)

// common are the flags that every benchmark has.
type common struct {
	json  bool
	unetd string
	cpus  []int
	seed  uint64
}

func (c *common) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&c.json, "json", false, "write one JSON object a line to standard output, and the tables to standard error")
	f.StringVar(&c.unetd, "unetd", "", "the daemon's executable (default: unetd beside unetbench)")
	f.IntSliceVar(&c.cpus, "cpus", nil, "processors of client and server (default: the first two)")
	f.Uint64Var(&c.seed, "seed", 0, "of the order within rounds (default: a new one, which is printed)")
}

// run measures and prints.
func (c *common) run(cmd *cobra.Command, r *bench.Run) (err error) {
	out, errs := cmd.OutOrStdout(), cmd.ErrOrStderr()
	cfg := lab.Config{}
	cfg.Muxed, cfg.Crowd, cfg.Plain = r.Networks()
	cfg.Bulk = r.Bulk()
	cfg, err = c.labConfig(cfg)
	if err != nil {
		return err
	}
	if r.Seed = c.seed; !cmd.Flags().Changed("seed") {
		r.Seed = uint64(rand.Uint32()) // short enough to type again
	}

	bar := newProgress(errs)
	defer bar.clear()
	tables := out
	var writing error
	if c.json {
		tables = errs
		lines := json.NewEncoder(out)
		r.OnRecord = func(rec report.Record) { writing = errors.Join(writing, lines.Encode(rec)) }
		r.OnWeight = func(w report.Weight) { writing = errors.Join(writing, lines.Encode(w)) }
		r.OnIdle = func(i report.Idle) { writing = errors.Join(writing, lines.Encode(i)) }
		r.OnOpening = func(o report.Opening) { writing = errors.Join(writing, lines.Encode(o)) }
	} else {
		r.OnRecord, r.OnWeight, r.OnOpening = func(report.Record) {}, func(report.Weight) {}, func(report.Opening) {}
		r.OnIdle = func(report.Idle) {}
	}
	r.OnStep, r.OnNote = bar.step, bar.note

	bar.note(fmt.Sprintf("client on processor %d, server on %d, order of rounds from --seed %d", cfg.ClientCPU, cfg.ServerCPU, r.Seed))
	l, err := lab.Open(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	defer func() {
		bar.clear()
		err = errors.Join(err, l.Close())
	}()
	res, err := r.Do(cmd.Context(), l)
	bar.clear()
	if err == nil || len(res.Records) > 0 {
		printTables(tables, res)
	}
	return errors.Join(err, writing)
}

// printTables writes all tables for which there are figures. The goals are the
// business of a run that measures all of them.
func printTables(w io.Writer, res bench.Result) {
	s := report.Summarize(res.Planned, res.Records)
	s.Print(w)
	s.PrintMuxCost(w)
	s.PrintBandwidth(w)
	if len(res.Weights) > 0 {
		report.PrintWeights(w, res.Weights)
	}
	if len(res.Idle) > 0 {
		report.PrintIdle(w, res.Idle)
	}
	if len(res.Openings) > 0 {
		report.PrintOpenings(w, res.Openings)
	}
	var goals []report.Goal
	if len(res.Weights) > 0 && len(res.Records) > 0 {
		goals = s.Goals(res.Weights, res.Idle)
	}
	if len(res.Openings) > 0 {
		goals = append(goals, s.ScaleGoals(res.Openings)...)
	}
	if len(goals) > 0 {
		report.PrintGoals(w, goals)
	}
	s.PrintBandwidthGoals(w)
}

// labConfig checks what the machine and the command line offer for the pairs that cfg
// asks for, and completes it.
func (c *common) labConfig(cfg lab.Config) (lab.Config, error) {
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
		return cfg, usageError{fmt.Errorf("--cpus %v: want two different processors", c.cpus)}
	default:
		for _, n := range c.cpus {
			if !slices.Contains(cpus, n) {
				return cfg, usageError{fmt.Errorf("--cpus: processor %d is not one of those that can be used, %v", n, cpus)}
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
