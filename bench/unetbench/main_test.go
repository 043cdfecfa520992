//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unet-go/unet/bench/internal/cli"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/version"
)

// TestMain lets the test binary be its own children: the lab starts whatever
// executable it is part of.
func TestMain(m *testing.M) {
	if slices.Equal(os.Args[1:], []string{"child"}) {
		main()
		return
	}
	messageTimeout = 5 * time.Second // other tests may have the processors
	// A process under the race detector would sleep for a second before it exits.
	os.Setenv("GORACE", strings.TrimSpace(os.Getenv("GORACE")+" atexit_sleep_ms=0"))
	code := m.Run()
	if daemonDir != "" {
		os.RemoveAll(daemonDir)
	}
	os.Exit(code)
}

// execute runs a command line.
func execute(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	var out, errs lockedBuffer
	cmd := newCommand()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err = cmd.ExecuteContext(ctx)
	return out.String(), errs.String(), err
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

func TestWrongCommandLinesAreUsageErrorsOfOneLine(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"latency"},
		{"rtt", "now"},
		{"rtt", "--speed"},
		{"rtt", "--transport", "udp,smoke"},
		{"rtt", "--attach", "tape"},
		{"rtt", "--wait", "impatiently"},
		{"rtt", "--size", "1"},
		{"rtt", "--size", "large"},
		{"rtt", "--n", "0"},
		{"rtt", "--rounds", "-1"},
		{"rtt", "--limit", "0s"},
		{"rate", "--batch", "0"},
		{"oneway", "--window", "1"},
		{"connect", "--transport", "udp"},
		{"connect", "--connections", "0"},
		{"connect", "--n", "20001"},
		{"connect", "--address", "borrowed"},
		{"connect", "--batch", "32"},
		{"bandwidth", "--transport", "udp"},
		{"bandwidth", "--mtu", "99"},
		{"bandwidth", "--mtu", "9001"},
		{"bandwidth", "--size", "0"},
		{"bandwidth", "--limit", "0s"},
		{"rdma", "--table", "round"},
		{"rdma", "--table", "rate", "--depth", "0"},
		{"rdma", "--attach", "tape"},
		{"rdma", "--limit", "0s"},
		{"rdma", "--mtu", "99"},
		{"all", "--rounds", "0"},
		{"scale", "--rounds", "0"},
		{"rtt", "--idle", "-1s"},
		{"rtt", "--transport", "tcp", "--waiters", "-1"},
		{"rtt", "--procs", "-1"},
		{"rtt", "--transport", "kernel-tcp", "--waiters", "1"},
		{"services", "--services", "smtp"},
		{"services", "--services", ""},
		{"services", "--connections", "0"},
		{"services", "--connections", "1001"},
		{"services", "--connections", ""},
		{"services", "--procs", "0"},
		{"services", "--procs", "all"},
		{"services", "--procs", ""},
		{"services", "--wait", "impatiently"},
		{"services", "--rounds", "0"},
		{"services", "--duration", "0s"},
		{"services", "--warm-up", "-1s"},
		{"scale", "--openings", "0"},
		{"rtt", "--place", "elsewhere"},
		{"rtt", "--transport", "msg", "--attach", "queue", "--place", "local"},
		{"rtt", "--transport", "udp,netstack-udp", "--place", "local"},
		{"rtt", "--transport", "kernel-tcp,unix"},
		{"rtt", "--transport", "ring"},
		{"rdma", "--place", "elsewhere"},
		{"rdma", "--place", "local", "--attach", "queue"},
		{"all", "--place", "elsewhere"},
		{"bandwidth", "--transport", "kernel-tcp-nogso", "--place", "local"},
		{"services", "--place", "crowd"},
		{"rtt", "--json", "--benchfmt"},
		{"rtt", "--mode", "fast"},
		{"rtt", "--transport", "kernel-udp", "--cpus", "0"},
		{"rtt", "--transport", "kernel-udp", "--cpus", "0,0"},
		{"rtt", "--transport", "kernel-udp", "--cpus", "0,4095"},
	} {
		_, _, err := execute(context.Background(), args...)
		if !cli.IsUsage(err) {
			t.Errorf("%q: %v, want a usage error", args, err)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: more than a line: %v", args, err)
		}
	}
}

func TestMissingDaemonIsOneLine(t *testing.T) {
	netlab.RequireXDP(t)
	for _, path := range []string{filepath.Join(t.TempDir(), "unetd"), t.TempDir()} {
		_, _, err := execute(context.Background(), "rtt", "--transport", "msg", "--unetd", path)
		if err == nil || cli.IsUsage(err) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
			t.Errorf("--unetd %s: %v", path, err)
		}
	}
}

func TestBrokenDaemonIsReported(t *testing.T) {
	netlab.RequireXDP(t)
	path := filepath.Join(t.TempDir(), "unetd")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho out of order >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, _, err := executeCleanly(t, t.Context(), "rtt", "--transport", "msg", "--unetd", path)
	if err == nil || !strings.Contains(err.Error(), "out of order") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v", err)
	}
}

// executeCleanly is execute, and checks that nothing is left behind.
func executeCleanly(t *testing.T, ctx context.Context, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ownTempDir(t)
	before := leftovers(t)
	stdout, stderr, err = execute(ctx, args...)
	if left := leftovers(t); left != before {
		t.Errorf("left behind:\n%s\nbefore:\n%s", left, before)
	}
	return stdout, stderr, err
}

// measure runs a benchmark that must succeed, with its results in JSON.
func measure(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := executeCleanly(t, t.Context(), append(args, "--json")...)
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	return stdout, stderr
}

// ownTempDir gives the test a directory for temporary files that nobody else
// uses, and that uid nobody can pass through.
func ownTempDir(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
}

// leftovers is what a run must not change: a lab's interfaces, descriptors,
// files, children.
func leftovers(t *testing.T) string {
	t.Helper()
	var all []string
	ifs, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range ifs {
		if slices.Contains([]string{netlab.Interface, netlab.MiddleA, netlab.MiddleB}, i.Name) { // the machine may have other interfaces, which change
			all = append(all, "interface "+i.Name)
		}
	}
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), "unetbench-*"))
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, dirs...)
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, _ := os.Readlink("/proc/self/fd/" + fd.Name())
		if strings.HasPrefix(to, "net:") || strings.HasPrefix(to, "socket:") || strings.HasPrefix(to, "pipe:") ||
			strings.HasSuffix(to, "bpf-map") || strings.HasSuffix(to, "bpf-prog") {
			all = append(all, "descriptor of "+strings.SplitN(to, ":", 2)[0])
		}
	}
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if pids, err := os.ReadFile(task); err == nil {
			for _, pid := range strings.Fields(string(pids)) {
				all = append(all, "child "+pid)
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// lines decodes JSON lines.
func lines(t *testing.T, out string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for s := bufio.NewScanner(strings.NewReader(out)); s.Scan(); {
		var m map[string]any
		if err := json.Unmarshal(s.Bytes(), &m); err != nil {
			t.Fatalf("%v: %s", err, s.Text())
		}
		all = append(all, m)
	}
	return all
}

// short has a benchmark run one round of n messages, with a tenth as many before it.
func short(n int, args ...string) []string {
	return append(args, "--rounds", "1", "--n", strconv.Itoa(n), "--warm-up", strconv.Itoa(n/10))
}

// checkRun runs a small benchmark and checks what every one must keep.
func checkRun(t *testing.T, records int, args ...string) {
	t.Helper()
	out, errs := measure(t, args...)
	got := lines(t, out)
	if len(got) != records {
		t.Errorf("%d records, want %d:\n%s", len(got), records, out)
	}
	place := "pair"
	if slices.Contains(args, "local") {
		place = "local"
	}
	for _, r := range got {
		if r["place"] != place {
			t.Errorf("not at place %s: %v", place, r)
		}
		if r["bench"] != args[0] || r["n"].(float64) <= 0 || r["msgs_per_s"].(float64) <= 0 || r["cpu_us_per_msg"].(float64) <= 0 {
			t.Errorf("implausible: %v", r)
		}
		if args[0] != "rate" && r["transport"] != "floor" && r["lost"].(float64) != 0 {
			t.Errorf("lost messages: %v", r)
		}
		if (args[0] == "rtt" || args[0] == "connect") && !(r["p50_us"].(float64) > 0 && r["p50_us"].(float64) <= r["p99_us"].(float64) &&
			r["p99_us"].(float64) <= r["p999_us"].(float64) && r["mean_us"].(float64) > 0) {
			t.Errorf("implausible: %v", r)
		}
		if v, ok := r["syscalls_per_msg"]; !ok || v != nil && (v.(float64) < 0 || v.(float64) == 0 && place != "local") { // by memory there is none
			t.Errorf("implausible: %v", r)
		}
		if args[0] == "connect" && (r["failed"].(float64) != 0 || r["server_failed"].(float64) != 0 || r["failure"] != nil) {
			t.Errorf("connections failed: %v", r)
		}
		// Blocked or spinning, a transport's two processes do not allocate, unless
		// they open connections: what the runtime allocates is little even to so few
		// messages, or to the fewer that a busy machine exchanges within the limit. On one host
		// a memory path may be made meanwhile, once.
		few := map[bool]float64{false: 100, true: 300}[place == "local"]
		if a := r["allocs_per_msg"].(float64); a >= 0.5 && a*r["n"].(float64) >= few && !strings.HasPrefix(r["transport"].(string), "netstack") && args[0] != "connect" && args[0] != "bandwidth" {
			t.Errorf("allocates: %v", r)
		}
	}
	for _, r := range got {
		if name := r["transport"].(string); !strings.Contains(errs, "\n"+name+" ") {
			t.Errorf("no row of %q in the table:\n%s", name, errs)
		}
	}
}

const kernelOnly = "kernel-udp,go-udp"

func TestRTTOverKernelSockets(t *testing.T) {
	netlab.RequireXDP(t)
	checkRun(t, 4, short(200, "rtt", "--transport", kernelOnly, "--size", "16,1472")...)
}

func TestRateOverKernelSockets(t *testing.T) {
	netlab.RequireXDP(t)
	checkRun(t, 3, short(2000, "rate", "--transport", kernelOnly, "--batch", "1,32")...)
}

func TestOneWayOverKernelSockets(t *testing.T) {
	netlab.RequireXDP(t)
	checkRun(t, 6, "oneway", "--transport", kernelOnly, "--batch", "1,32", "--rounds", "2", "--n", "2000", "--warm-up", "200")
}

func TestConnectOverKernelSockets(t *testing.T) {
	netlab.RequireXDP(t)
	for _, connections := range []string{"1", "8"} {
		checkRun(t, 2, short(200, "connect", "--transport", "kernel-tcp,go-tcp", "--connections", connections)...)
	}
}

func TestBandwidthOverKernelSockets(t *testing.T) {
	netlab.RequireXDP(t)
	checkRun(t, 4, "bandwidth", "--transport", "kernel-tcp,kernel-tcp-nogso", "--mtu", "1500", "--size", "512,65536", "--rounds", "1", "--limit", "200ms")
}

func TestInterruptedRunCleansUp(t *testing.T) {
	netlab.RequireXDP(t)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	_, _, err := executeCleanly(t, ctx, "rtt", "--transport", kernelOnly, "--rounds", "100000")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// daemonDir is a folder for what [buildDaemon] builds.
var daemonDir string

// buildDaemon is the path of unetd, which is built once.
func buildDaemon(t *testing.T) string {
	t.Helper()
	netlab.RequireXDP(t)
	if testing.Short() {
		t.Skip("builds unetd")
	}
	path, err := builtDaemon()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var builtDaemon = sync.OnceValues(func() (path string, err error) {
	if daemonDir, err = os.MkdirTemp("", "test-"); err != nil {
		return "", err
	}
	path = filepath.Join(daemonDir, "unetd")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/unetd")
	cmd.Dir = "../.." // the root module
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

func TestEveryTransport(t *testing.T) {
	unetd := buildDaemon(t)
	// floor, msg, udp and tcp over both attachments, the others once.
	const combinations = 4*2 + 7
	t.Run("rtt", func(t *testing.T) {
		checkRun(t, combinations, short(200, "rtt", "--unetd", unetd)...)
	})
	t.Run("rtt, waiting otherwise", func(t *testing.T) {
		checkRun(t, 2*2*2+1, short(200, "rtt", "--unetd", unetd, "--transport", "msg,udp,kernel-udp", "--wait", "adaptive,block")...)
	})
	t.Run("over IPv6", func(t *testing.T) {
		checkRun(t, 4*2, short(200, "rtt", "--unetd", unetd, "--transport", "udp,udp6,tcp,tcp6")...)
		for _, address := range []string{"own", "shared"} {
			checkRun(t, 2, short(200, "connect", "--unetd", unetd, "--transport", "tcp6", "--address", address)...)
		}
	})
	t.Run("rate", func(t *testing.T) {
		checkRun(t, 2*combinations-2, short(2000, "rate", "--unetd", unetd)...)
	})
	t.Run("oneway", func(t *testing.T) {
		checkRun(t, combinations+2, short(2000, "oneway", "--unetd", unetd)...)
	})
	t.Run("connect", func(t *testing.T) {
		for _, more := range [][]string{nil, {"--address", "shared"}, {"--connections", "8"}} {
			checkRun(t, 2+3, short(200, append([]string{"connect", "--unetd", unetd}, more...)...)...)
		}
	})
	t.Run("bandwidth", func(t *testing.T) {
		// Three of the kernel alone, four over both attachments; a flood has one size.
		checkRun(t, 3+4*2, "bandwidth", "--unetd", unetd, "--mtu", "9000", "--size", "65536", "--rounds", "1", "--limit", "200ms")
	})
	t.Run("scale", func(t *testing.T) {
		out, errs := measure(t, "scale", "--unetd", unetd, "--rounds", "1", "--openings", "2")
		if n := len(lines(t, out)); n != 2+5 { // openings, and ports at three places, queues at two
			t.Errorf("%d lines:\n%s", n, out)
		}
		if strings.Contains(errs, "not measured") {
			t.Errorf("figures are missing:\n%s", errs)
		}
	})
}

// TestOneHost: every transport that can is measured between two processes of one host, by each benchmark.
func TestOneHost(t *testing.T) {
	unetd := buildDaemon(t)
	local := func(args ...string) []string { return append(args, "--unetd", unetd, "--place", "local") }
	// floor, msg, udp and tcp over ports: a queue is reached by the wire only. Of the kernel UDP, TCP and unix sockets, spinning and of package net.
	const endpoints, kernel, ring, verbs = 4, 2 + 2 + 2, 1, 2
	t.Run("rtt", func(t *testing.T) {
		checkRun(t, endpoints+kernel+ring, local(short(1000, "rtt")...)...)
		checkRun(t, verbs+1, local(short(1000, "rtt", "--transport", "rc-send,rc-write,kernel-udp")...)...)
		checkRun(t, 2*2+3, local(short(1000, "rtt", "--transport", "udp,tcp,kernel-udp,unix,go-unix", "--wait", "adaptive,block")...)...)
		checkRun(t, 2+2, local(short(1000, "rtt", "--transport", "udp6,tcp6,kernel-udp,go-tcp")...)...)
	})
	t.Run("rate", func(t *testing.T) {
		checkRun(t, 2*(endpoints+kernel+ring)-1, local(short(2000, "rate")...)...) // go-udp has no batches
	})
	t.Run("oneway", func(t *testing.T) {
		checkRun(t, endpoints+kernel+ring+1, local(short(2000, "oneway")...)...) // rc-send too
	})
	t.Run("connect", func(t *testing.T) {
		for _, more := range [][]string{{"--address", "own"}, {"--address", "shared"}, {"--connections", "8"}} {
			checkRun(t, 1+4, local(append(short(200, "connect"), more...)...)...)
		}
	})
	t.Run("bandwidth", func(t *testing.T) {
		// tcp, to and from kernel-tcp too, and a flood; kernel-tcp and unix.
		checkRun(t, 4+2+ring, local("bandwidth", "--mtu", "1500", "--size", "65536", "--rounds", "1", "--limit", "200ms")...)
	})
}

// TestRDMA: each operation is measured in its tables, completes without losses, and takes processor time of the
// server, between two hosts and on one.
func TestRDMA(t *testing.T) {
	unetd := buildDaemon(t)
	for place, floor := range map[string]string{workload.Pair: "floor", workload.Local: "ring"} {
		t.Run(place, func(t *testing.T) { checkRDMA(t, place, floor, unetd) })
	}
}

func checkRDMA(t *testing.T, place, floor, unetd string) {
	out, errs := measure(t, "rdma", "--unetd", unetd, "--rounds", "1", "--attach", "port", "--place", place, "--limit", "10ms", "--latency-size", "64", "--size", "64",
		"--depth", "4", "--mtu", "9000")
	measured := map[string]int{}
	for _, l := range lines(t, out) {
		name := fmt.Sprint(l["bench"], " ", l["transport"])
		measured[name]++
		if !(l["n"].(float64) > 0 && l["msgs_per_s"].(float64) > 0 && l["cpu_us_per_msg"].(float64) > 0 && l["place"] == place) {
			t.Errorf("implausible: %v", l)
		}
		if l["transport"] != "floor" && l["bench"] != "rate" && l["lost"].(float64) != 0 {
			t.Errorf("lost: %v", l)
		}
		if server, ok := l["server_cpu_us_per_msg"].(float64); l["bench"] != "bandwidth" && (!ok || server > l["cpu_us_per_msg"].(float64)) {
			t.Errorf("implausible: %v", l)
		}
		if v := l["depth"]; (v != nil) != (l["bench"] == "rdma") {
			t.Errorf("implausible: %v", l)
		}
	}
	for name, n := range map[string]int{
		"rtt udp": 2, "rtt kernel-udp": 1, "rtt go-udp": 1, "rtt rc-send": 1, "rtt rc-write": 1, "rate msg": 1, "bandwidth " + floor: 1,
		// One at a time, in rate by lists, blocking, of bulk.
		"rdma rc-send": 2 + 1 + 1, "rdma rc-write": 2 + 1 + 1, "rdma rc-read": 1 + 2 + 1 + 1, "rdma rc-fetch-add": 1 + 1,
	} {
		if measured[name] != n {
			t.Errorf("%s: %d measurements, want %d", name, measured[name], n)
		}
	}
	goal := map[string]string{workload.Pair: "rc-send RTT / udp RTT", workload.Local: "rc-send RTT / kernel-udp RTT"}[place]
	for _, want := range []string{"Operations of verbs", "MTU 9000", "in flight", "server", "/ floor", goal} {
		if !strings.Contains(errs, want) {
			t.Errorf("no %q in the tables:\n%s", want, errs)
		}
	}
}

// TestWaiters: every way of waiting is measured alone and beside goroutines that wait, and the idle
// processor time where it has a meaning.
func TestWaiters(t *testing.T) {
	unetd := buildDaemon(t)
	out, errs := measure(t, short(1000, "rtt", "--unetd", unetd, "--transport", "tcp,go-tcp,netstack-tcp", "--attach", "port", "--wait", "spin,adaptive,block",
		"--waiters", "0,63", "--idle", "200ms")...)
	measured := map[string]int{}
	for _, l := range lines(t, out) {
		measured[fmt.Sprint(l["transport"], " ", l["wait"], " ", l["waiters"])]++
		if !(l["n"].(float64) > 0 && l["p50_us"].(float64) > 0 && l["cpu_us_per_msg"].(float64) > 0) || l["idle_percent"] != nil && (l["wait"] == "spin" || l["idle_percent"].(float64) > 50) {
			t.Errorf("implausible: %v", l)
		}
	}
	for _, way := range []string{"tcp spin", "tcp adaptive", "tcp block", "go-tcp block", "netstack-tcp block"} {
		for _, waiters := range []string{" <nil>", " 63"} {
			if measured[way+waiters] != 1 {
				t.Errorf("%s waiting%s: %d measurements:\n%s", way, waiters, measured[way+waiters], out)
			}
		}
	}
	for _, want := range []string{"adaptive / spin", "63 waiting / alone", "idle %"} {
		if !strings.Contains(errs, want) {
			t.Errorf("no %q in the tables:\n%s", want, errs)
		}
	}
}

func TestVersion(t *testing.T) {
	out, _, err := execute(t.Context(), "--version")
	if err != nil || out != version.Line("unetbench")+"\n" {
		t.Errorf("%q, %v", out, err)
	}
}
