package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/lab"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/report"
)

// serving measures services over unet and over the kernel's sockets.
type serving struct {
	services []string
	procs    []int
	wait     string
	rounds   int
	limit    time.Duration
	n        int // of resp
	pings    int // of quic
	bin      string
	files    map[string]*os.File // our programs
	tools    map[string]string   // paths of the others
	lines    []report.Serving
}

// service is a server of ours, and the client that measures it.
type service struct {
	name   string
	client string // a program of the machine; "": the service's own
	about  string
	// args are those of the server and of the client.
	args func(k *serving, at address, network string) (server, client []string)
	read func(k *serving, output string) ([]report.Serving, error)
}

// address is where a server listens, and the sockets of the daemons of both hosts.
type address struct {
	ip               string
	port             int
	socketA, socketB string
}

func (a address) String() string { return fmt.Sprintf("%s:%d", a.ip, a.port) }

// over are the flags of an example that choose the network.
func (k *serving) over(network, socket string) []string {
	if network == report.OnKernel {
		return []string{"--kernel"}
	}
	return []string{"--unet-socket", socket, "--unet-wait", k.wait}
}

// Connections of the clients.
const (
	httpConnections = 64
	respConnections = 50
)

var services = []service{
	{
		name: "http", client: "wrk", about: "wrk, 64 connections, 100 bytes",
		args: func(k *serving, at address, network string) (server, client []string) {
			return append([]string{"serve", "--listen", at.String()}, k.over(network, at.socketA)...),
				[]string{"--threads", "1", "--connections", strconv.Itoa(httpConnections), "--duration", fmt.Sprintf("%.0fs", k.limit.Seconds()), "--latency", fmt.Sprintf("http://%v/bytes/100", at)}
		},
		read: readWrk,
	},
	{
		name: "resp", client: "redis-benchmark", about: "redis-benchmark -c 50, SET and GET of 3 bytes, one request at a time on each connection",
		args: func(k *serving, at address, network string) (server, client []string) {
			return append([]string{"--listen", at.String()}, k.over(network, at.socketA)...),
				[]string{"-h", at.ip, "-p", strconv.Itoa(at.port), "-c", strconv.Itoa(respConnections), "-n", strconv.Itoa(k.n), "-t", "set,get", "--csv"}
		},
		read: readRedis,
	},
	{
		name: "quic", about: "quic-go at both ends, one stream, 64 bytes there and back",
		args: func(k *serving, at address, network string) (server, client []string) {
			return append(k.over(network, at.socketA), "serve", at.String()),
				append(k.over(network, at.socketB), "-n", strconv.Itoa(k.pings), "ping", at.String())
		},
		read: readPings,
	},
}

func serviceNames() (names []string) {
	for _, s := range services {
		names = append(names, s.name)
	}
	return names
}

func newServices(c *common) *cobra.Command {
	k := serving{services: serviceNames(), procs: []int{0, 2}, wait: unet.WaitAdaptive.String(), rounds: 5, limit: 2 * time.Second, n: 100_000, pings: 10_000}
	long := `services measures services of examples/ on unet and on the kernel's sockets, with the
programs that people measure such services with:

`
	for _, s := range services {
		long += fmt.Sprintf("  %-5s %s\n", s.name, s.about)
	}
	cmd := &cobra.Command{
		Use:   "services",
		Short: "HTTP, Redis' protocol and QUIC on unet and on the kernel's sockets",
		Long: long + `
The server is on host A. The client is on host B; wrk and redis-benchmark use the kernel's
sockets there. Both servers have the same hosts, interfaces and processors: with
GOMAXPROCS 0 server and client are pinned to a processor each; otherwise they have that
GOMAXPROCS and run where the kernel places them. Rounds are interleaved. The programs http,
resp and quic are those beside unetbench; wrk and redis-benchmark are the machine's.`,
		Example: `  unetbench services
  unetbench services --service resp --procs 2 --rounds 9`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range k.services {
				if !slices.Contains(serviceNames(), name) {
					return usageError{fmt.Errorf("--service %s: there are %v", name, serviceNames())}
				}
			}
			for _, n := range k.procs {
				if n < 0 {
					return usageError{fmt.Errorf("--procs %d: want 0 or more", n)}
				}
			}
			switch _, err := unet.ParseWaitMode(k.wait); {
			case err != nil:
				return usageError{err}
			case len(k.services) == 0:
				return usageError{errors.New("--service is empty")}
			case len(k.procs) == 0:
				return usageError{errors.New("--procs is empty")}
			case k.rounds < 1:
				return usageError{fmt.Errorf("--rounds %d: want at least 1", k.rounds)}
			case k.limit < time.Second || k.limit%time.Second != 0:
				return usageError{fmt.Errorf("--limit %v: want whole seconds, which is what wrk takes", k.limit)}
			case k.n < respConnections || k.pings < 1:
				return usageError{fmt.Errorf("--n %d and --pings %d: want at least %d and 1", k.n, k.pings, respConnections)}
			}
			defer k.close()
			if err := k.findPrograms(); err != nil {
				return err
			}
			return c.run(cmd, lab.Config{Muxed: true}, &k)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&k.services, "service", k.services, "services to measure")
	f.IntSliceVar(&k.procs, "procs", k.procs, "GOMAXPROCS; 0: server and client are pinned to a processor each")
	f.StringVar(&k.wait, "wait", k.wait, "how unet's programs wait: spin, adaptive, block")
	f.IntVar(&k.rounds, "rounds", k.rounds, "rounds of everything")
	f.DurationVar(&k.limit, "limit", k.limit, "how long wrk runs in a round")
	f.IntVar(&k.n, "n", k.n, "requests of each kind by redis-benchmark in a round")
	f.IntVar(&k.pings, "pings", k.pings, "round trips of quic in a round")
	f.StringVar(&k.bin, "bin", "", "folder of http, resp and quic (default: that of unetbench)")
	return cmd
}

// findPrograms opens our programs and looks for the machine's.
func (k *serving) findPrograms() error {
	if k.bin == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		k.bin = filepath.Dir(self)
	}
	k.files, k.tools = map[string]*os.File{}, map[string]string{}
	for _, s := range services {
		if !slices.Contains(k.services, s.name) {
			continue
		}
		file, err := os.Open(filepath.Join(k.bin, s.name))
		if err != nil {
			return fmt.Errorf("%w: build it (make build), or say with --bin where it is", err)
		}
		k.files[s.name] = file
		if s.client == "" {
			continue
		}
		if k.tools[s.name], err = exec.LookPath(s.client); err != nil {
			return fmt.Errorf("there is no %s to ask %s: install it (Debian: apt install wrk redis-tools), or leave %s out of --service", s.client, s.name, s.name)
		}
	}
	return nil
}

func (k *serving) close() {
	for _, f := range k.files {
		f.Close()
	}
}

func (k *serving) do(ctx context.Context, l *lab.Lab, seed uint64, out *output) error {
	type run struct {
		service
		report.Serving
	}
	var all []run
	for _, procs := range k.procs {
		for _, s := range services {
			for _, network := range []string{report.OnUnet, report.OnKernel} {
				if slices.Contains(k.services, s.name) {
					all = append(all, run{s, report.Serving{Bench: "services", Service: s.name, Network: network, Procs: procs, Wait: k.wait}})
				}
			}
		}
	}
	out.total = len(all) * k.rounds
	for round := 1; round <= k.rounds; round++ {
		for _, i := range plan.Order(len(all), seed, round) {
			r := all[i]
			out.step("round %d of %d: %s", round, k.rounds, r.Key())
			at := address{}
			at.ip, at.port = l.ServeAddress()
			at.socketA, at.socketB = l.Sockets()
			serverArgs, clientArgs := r.args(k, at, r.Network)
			server := lab.Program{Name: r.name, File: k.files[r.name], Args: serverArgs}
			client := lab.Program{Name: r.client, Path: k.tools[r.name], Args: clientArgs}
			if r.client == "" {
				client = lab.Program{Name: r.name, File: k.files[r.name], Args: clientArgs}
			}
			got, err := l.Serve(ctx, server, client, r.Procs)
			if err != nil {
				return err
			}
			lines, err := r.read(k, got.Output)
			if err != nil {
				return fmt.Errorf("%s: %w in what it has written:\n%s", client.Name, err, got.Output)
			}
			answered := 0
			for _, line := range lines {
				answered += line.N
			}
			for _, line := range lines {
				figures := r.Serving
				figures.Service, figures.Round = line.Service, round
				figures.N, figures.Failed, figures.PerS, figures.P50US, figures.P99US = line.N, line.Failed, line.PerS, line.P50US, line.P99US
				figures.CPUUS = float64(got.CPU) / 1e3 / float64(max(1, answered))
				k.lines = append(k.lines, figures)
				out.line(figures)
			}
		}
	}
	return nil
}

func (k *serving) print(w io.Writer) {
	if len(k.lines) > 0 {
		report.PrintServing(w, k.lines)
		report.PrintGoals(w, report.ServingGoalsTitle, report.ServingGoals(k.lines))
	}
}

// number is the number that a pattern finds in a text; 0, if it may be missing.
func number(text, pattern string, optional bool, err *error) (sum float64) {
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		if !optional {
			*err = errors.Join(*err, fmt.Errorf("nothing matches %q", pattern))
		}
		return 0
	}
	for _, s := range m[1:] {
		v, parseErr := strconv.ParseFloat(s, 64)
		*err = errors.Join(*err, parseErr)
		sum += v
	}
	return sum
}

// micros is the time that a pattern finds in a text.
func micros(text, pattern string, err *error) float64 {
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		*err = errors.Join(*err, fmt.Errorf("nothing matches %q", pattern))
		return 0
	}
	d, parseErr := time.ParseDuration(m[1])
	*err = errors.Join(*err, parseErr)
	return float64(d) / 1e3
}

func readWrk(_ *serving, output string) (_ []report.Serving, err error) {
	const num = `([\d.]+)`
	s := report.Serving{
		Service: report.HTTP,
		N:       int(number(output, num+` requests in`, false, &err)),
		PerS:    number(output, `Requests/sec:\s+`+num, false, &err),
		P50US:   micros(output, `\n\s+50%\s+(\S+)`, &err),
		P99US:   micros(output, `\n\s+99%\s+(\S+)`, &err),
	}
	s.Failed = int(number(output, `Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)`, true, &err) +
		number(output, `Non-2xx or 3xx responses: (\d+)`, true, &err))
	s.N -= int(number(output, `Non-2xx or 3xx responses: (\d+)`, true, &err))
	return []report.Serving{s}, err
}

// readRedis reads what redis-benchmark writes with --csv. It makes as many requests as it was told to, and
// ends with an error if one fails.
func readRedis(k *serving, output string) (all []report.Serving, err error) {
	rows, err := csv.NewReader(strings.NewReader(output)).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(rows) != 3 {
		return nil, fmt.Errorf("%d lines, want a heading, SET and GET", len(rows))
	}
	column := func(row []string, name string) float64 {
		i := slices.Index(rows[0], name)
		if i < 0 {
			err = errors.Join(err, fmt.Errorf("no column %q", name))
			return 0
		}
		v, parseErr := strconv.ParseFloat(row[i], 64)
		err = errors.Join(err, parseErr)
		return v
	}
	for i, service := range []string{report.RespSet, report.RespGet} {
		row := rows[i+1]
		all = append(all, report.Serving{Service: service, N: k.n, PerS: column(row, "rps"), P50US: 1e3 * column(row, "p50_latency_ms"), P99US: 1e3 * column(row, "p99_latency_ms")})
	}
	return all, err
}

func readPings(_ *serving, output string) (_ []report.Serving, err error) {
	s := report.Serving{
		Service: report.QUIC,
		N:       int(number(output, `(\d+) round trips`, false, &err)),
		P50US:   micros(output, `median (\S+),`, &err),
		P99US:   micros(output, `p99 (\S+),`, &err),
		PerS:    number(output, `([\d.]+) a second`, false, &err),
	}
	return []report.Serving{s}, err
}
