package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/cli"
	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/load"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/endpoint"
)

// serving measures services on unet and on the kernel's sockets.
type serving struct {
	plan       plan.Services
	cells      []plan.ServiceCell
	wait       string
	place      string // workload.Pair or workload.Local
	neighbours bool
	bin        string
	programs   map[string]*os.File
	lines      []report.Service
}

// Programs of the services.
const (
	serviceProgram = "unetservice"
	respProgram    = "resp" // the server of redis
)

func newServices(c *common) *cobra.Command {
	k := serving{plan: plan.DefaultServices(), wait: endpoint.WaitAdaptive.String(), place: workload.Pair}
	cmd := &cobra.Command{
		Use:   "services",
		Short: "HTTP, gRPC, Redis' protocol, NATS and QUIC on unet and on the kernel's sockets",
		Long: "services measures services of ordinary Go libraries on unet and on the kernel's sockets:\n\n" + plan.AboutServices() + `
Each service is measured with each number of connections (--connections) and each
GOMAXPROCS (--procs). A request carries 64 bytes, and so does its answer, except where the list
says otherwise. Each connection sends its next request when it has the answer. Server and
client are processes on two hosts and use the same network. In a round a cell is measured on
both networks, one after the other, by new processes; cells and networks are in random order.
The kernel's hosts have no XDP program. With --place local server and client are on one
host that unetd serves, and the kernel's sockets use lo.

With GOMAXPROCS 1 server and client are pinned to a processor each; otherwise they run
where the kernel places them. With --neighbours a program computes on each processor.
Processor time is the user and system time of both processes in the measured time.

The programs unetservice and resp are those beside unetbench. The whole matrix of
small answers, the default, takes about 13 minutes on two processors.`,
		Example: `  unetbench services
  unetbench services --services grpc,http --connections 16 --procs 2 --rounds 9
  unetbench services --services httpbulk,h2bulk --connections 1,16
  unetbench services --neighbours --procs default --json > services.jsonl
  unetbench services --place local --procs 2`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if k.cells, err = k.plan.Cells(); err != nil {
				return cli.Usage(err)
			}
			if _, err := endpoint.ParseWaitMode(k.wait); err != nil {
				return cli.Usage(err)
			}
			sites := []lab.Site{{Network: transport.Muxed}}
			switch k.place {
			case workload.Pair:
				sites = append(sites, lab.Site{Network: transport.Plain})
			case workload.Local:
			default:
				return cli.Usage(fmt.Errorf("--place %s: want %s or %s", k.place, workload.Pair, workload.Local))
			}
			defer k.close()
			if err := k.openPrograms(); err != nil {
				return err
			}
			return c.run(cmd, lab.Config{Sites: sites}, &k)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&k.plan.Services, "services", k.plan.Services, "services to measure, by default all with small answers")
	f.IntSliceVar(&k.plan.Connections, "connections", k.plan.Connections, "connections that ask at the same time")
	f.StringSliceVar(&k.plan.Procs, "procs", k.plan.Procs, "GOMAXPROCS of server and client; default: what Go chooses here")
	f.BoolVar(&k.neighbours, "neighbours", false, "have a program compute on each processor")
	f.StringVar(&k.place, "place", k.place, "where server and client are: pair (two hosts), local (both on one host)")
	f.StringVar(&k.wait, "wait", k.wait, "how unet waits: spin, adaptive, block")
	f.IntVar(&k.plan.Rounds, "rounds", k.plan.Rounds, "rounds of every cell")
	f.DurationVar(&k.plan.Duration, "duration", k.plan.Duration, "measured time of a round")
	f.DurationVar(&k.plan.WarmUp, "warm-up", k.plan.WarmUp, "time before the measured one")
	f.StringVar(&k.bin, "bin", "", "folder of unetservice and resp (default: that of unetbench)")
	return c.flags(cmd)
}

// openPrograms opens the programs that the cells need.
func (k *serving) openPrograms() error {
	if k.bin == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		k.bin = filepath.Dir(self)
	}
	k.programs = map[string]*os.File{}
	names := []string{serviceProgram}
	if slices.ContainsFunc(k.cells, func(c plan.ServiceCell) bool { return c.Service == plan.Redis }) {
		names = append(names, respProgram)
	}
	for _, name := range names {
		file, err := os.Open(filepath.Join(k.bin, name))
		if err != nil {
			return fmt.Errorf("%w: build it (make build), or say with --bin where it is", err)
		}
		k.programs[name] = file
	}
	return nil
}

func (k *serving) close() {
	for _, f := range k.programs {
		f.Close()
	}
}

func (k *serving) do(ctx context.Context, l *lab.Lab, seed uint64, out *output) (err error) {
	if k.neighbours {
		stop, err := l.Neighbours(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	networks := []string{report.OnKernel, report.OnUnet}
	out.total = len(k.cells) * len(networks) * k.plan.Rounds
	for round := 1; round <= k.plan.Rounds; round++ {
		for _, i := range plan.Order(len(k.cells), seed, round) {
			c := k.cells[i]
			for _, n := range plan.Order(len(networks), seed+uint64(i)+1, round) {
				out.step("round %d of %d: %v on %s", round, k.plan.Rounds, c, networks[n])
				r, err := k.measure(ctx, l, c, networks[n])
				if err != nil {
					return err
				}
				if r.Failure != "" {
					out.note("round %d: %v on %s: %d requests failed and %d were lost: %s", round, c, networks[n], r.Failed, r.Lost, r.Failure)
				}
				line := report.Service{Bench: "services", ServiceCell: c, Network: networks[n], Place: k.place, Neighbours: k.neighbours, Wait: k.wait, Round: round, Result: r}
				k.lines = append(k.lines, line)
				out.line(line)
			}
		}
	}
	return nil
}

// serviceTimeout is how long server and client may take beside the time that they measure.
const serviceTimeout = time.Minute

// measure measures a cell once on a network.
func (k *serving) measure(ctx context.Context, l *lab.Lab, c plan.ServiceCell, network string) (r load.Result, err error) {
	kernel, local := network == report.OnKernel, k.place == workload.Local
	site := lab.Site{Network: transport.Muxed}
	if kernel && !local {
		site.Network = transport.Plain
	}
	program := func(name string, of lab.End, args ...string) lab.Program {
		over := []string{"--unet-socket", of.Socket, "--unet-wait", k.wait}
		if kernel {
			over = []string{"--kernel"}
		}
		return lab.Program{File: k.programs[name], Args: append(args, over...), Procs: c.Procs}
	}
	output, _, err := l.Run(ctx, lab.Run{
		Site: site, Local: local, Loopback: kernel, Pinned: c.Procs == 1,
		Server: func(_, server lab.End) lab.Program {
			if c.Service == plan.Redis {
				return program(respProgram, server, "--listen", server.UDP.String())
			}
			return program(serviceProgram, server, "serve", c.Service, server.UDP.String())
		},
		Client: func(client, server lab.End, pid int) lab.Program {
			return program(serviceProgram, client, "ask", c.Service, server.UDP.String(), "--connections", strconv.Itoa(c.Connections),
				"--warm-up", k.plan.WarmUp.String(), "--duration", k.plan.Duration.String(), "--server-pid", strconv.Itoa(pid))
		},
		Timeout: serviceTimeout + k.plan.WarmUp + k.plan.Duration,
	})
	if err != nil {
		return r, fmt.Errorf("%v on %s: %w", c, network, err)
	}
	if err := json.Unmarshal([]byte(output), &r); err != nil {
		return r, fmt.Errorf("%v on %s: %w in %q", c, network, err, output)
	}
	if r.N == 0 {
		return r, fmt.Errorf("%v on %s: no request was answered within %v: %s", c, network, k.plan.Duration, r.Failure)
	}
	return r, nil
}

func (k *serving) print(out *output) {
	rows := report.SummarizeServices(k.cells, k.lines)
	report.PrintServices(out.tables, rows)
	if k.place == workload.Local && len(rows) > 0 {
		fmt.Fprintln(out.tables, "\nServer and client were on one host; the kernel's sockets used lo.")
		report.PrintServiceGoals(out.tables, rows)
	}
}
