//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/unet-go/unet/bench/internal/cli"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/report"
	"github.com/unet-go/unet/bench/internal/workload"
)

// buildServices is a folder with the programs of the services.
func buildServices(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	for dir, pkg := range map[string]string{"../../examples": "./resp", "..": "./unetservice"} {
		cmd := exec.Command("go", "build", "-o", bin, pkg)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go build %s: %v\n%s", pkg, err, out)
		}
	}
	return bin
}

// TestServices: each service is measured on both networks, pinned to processors, and some beside neighbours.
// All requests are answered.
func TestServices(t *testing.T) {
	unetd := buildDaemon(t)
	bin := buildServices(t)
	for _, c := range []struct {
		procs      int
		services   []string
		neighbours bool
		place      string
	}{
		{1, plan.ServiceNames(), false, workload.Pair},
		{2, []string{plan.TCP, plan.Redis}, true, workload.Pair},
		{2, []string{plan.TCP, plan.HTTP, plan.Redis, plan.QUIC}, false, workload.Local},
	} {
		out, errs := measure(t, "services", "--unetd", unetd, "--bin", bin, "--services", strings.Join(c.services, ","), "--connections", "2", "--procs", fmt.Sprint(c.procs),
			"--place", c.place, fmt.Sprintf("--neighbours=%t", c.neighbours), "--rounds", "1", "--warm-up", "0s", "--duration", "200ms")
		measured := map[string]int{}
		for _, l := range lines(t, out) {
			f := func(name string) float64 { return l[name].(float64) }
			measured[fmt.Sprint(l["service"], " ", l["network"])]++
			if f("n") <= 0 || f("requests_per_s") <= 0 || f("p50_us") <= 0 || f("p50_us") > f("p99_us") || f("cpu_us_per_request") <= 0 || f("failed") != 0 || f("lost") != 0 ||
				f("least_turns")+f("most_turns") != f("n") || f("fairness") != f("least_turns")/f("most_turns") ||
				f("procs") != float64(c.procs) || f("connections") != 2 || l["neighbours"] != c.neighbours || l["place"] != c.place || l["bench"] != "services" {
				t.Errorf("implausible: %v", l)
			}
		}
		for _, name := range c.services {
			for _, network := range []string{report.OnUnet, report.OnKernel} {
				if n := measured[name+" "+network]; n != 1 {
					t.Errorf("%s on %s: %d measurements:\n%s", name, network, n, out)
				}
			}
		}
		if len(measured) != 2*len(c.services) || !strings.Contains(errs, "geometric mean") || strings.Contains(errs, "Figures of services") != (c.place == workload.Local) {
			t.Errorf("%v, or the tables are missing:\n%s", measured, errs)
		}
	}
}

// cancelling cancels a run when it writes its first line.
type cancelling struct{ cancel context.CancelFunc }

func (c cancelling) Write(b []byte) (int, error) {
	c.cancel()
	return len(b), nil
}

// TestInterruptedServicesCleanUp: servers, clients and neighbours of an interrupted run have ended.
func TestInterruptedServicesCleanUp(t *testing.T) {
	unetd := buildDaemon(t)
	bin := buildServices(t)
	ownTempDir(t)
	before := leftovers(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := newCommand()
	cmd.SetArgs([]string{"services", "--unetd", unetd, "--bin", bin, "--services", "tcp,grpc", "--neighbours", "--rounds", "100000", "--warm-up", "0s", "--duration", "1s", "--json"})
	cmd.SetOut(cancelling{cancel})
	cmd.SetErr(io.Discard)
	if err := cmd.ExecuteContext(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if left := leftovers(t); left != before {
		t.Errorf("left behind:\n%s\nbefore:\n%s", left, before)
	}
}

// TestMissingServiceProgramIsOneLine: it is reported before hosts are made.
func TestMissingServiceProgramIsOneLine(t *testing.T) {
	bin := t.TempDir()
	for _, program := range []string{serviceProgram, respProgram} {
		_, _, err := execute(t.Context(), "services", "--services", "redis", "--bin", bin)
		if err == nil || cli.IsUsage(err) || !strings.Contains(err.Error(), program+": no such file") || !strings.Contains(err.Error(), "make build") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v", err)
		}
		if err := os.WriteFile(bin+"/"+program, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestServicesAreNotLinked: the modules of the services would be in the memory of every measured process.
func TestServicesAreNotLinked(t *testing.T) {
	info, ok := debug.ReadBuildInfo()
	if !ok || len(info.Deps) == 0 {
		t.Fatal("no build information")
	}
	for _, m := range info.Deps {
		for _, service := range []string{"google.golang.org/grpc", "github.com/nats-io/", "github.com/quic-go/"} {
			if strings.HasPrefix(m.Path, service) {
				t.Errorf("unetbench links %s", m.Path)
			}
		}
	}
}
