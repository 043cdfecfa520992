//go:build linux

package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// processors looks at what makes times of spinning applications steady. None of it is a problem.
func processors(_ context.Context, e *examination) {
	isolation(e)
	governor(e)
}

func isolation(e *examination) {
	isolated, err := e.read("sys/devices/system/cpu/isolated")
	tickless, _ := e.read("sys/devices/system/cpu/nohz_full")
	switch {
	case err != nil:
		e.unseen("isolation", err)
	case isolated == "":
		e.note("isolation", "for the lowest latency boot with isolcpus=LIST nohz_full=LIST, and put applications that spin there (taskset -c LIST)",
			"none of %d processors is isolated: other programs and interrupts share those of applications that spin", runtime.NumCPU())
	case tickless == "" || tickless == "(null)":
		e.note("isolation", "boot with nohz_full="+isolated, "processors %s are isolated, and have the timer's interrupts", isolated)
	default:
		e.ok("isolation", "processors %s are isolated, %s without the timer's interrupts", isolated, tickless)
	}
}

func governor(e *examination) {
	files, err := filepath.Glob(filepath.Join(e.root, "/", "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))
	if err != nil || len(files) == 0 {
		e.ok("frequency", "the kernel does not control it, as in virtual machines")
		return
	}
	count := map[string]int{}
	for _, f := range files {
		if g, err := e.read(strings.TrimPrefix(f, e.root)); err == nil {
			count[g]++
		}
	}
	var found []string
	for g, n := range count {
		found = append(found, fmt.Sprintf("%s on %d processors", g, n))
	}
	slices.Sort(found)
	if count["performance"] == len(files) {
		e.ok("frequency", "governor %s", found[0])
		return
	}
	e.note("frequency", "cpupower frequency-set -g performance", "governor %s: processors that were idle begin slowly", strings.Join(found, ", "))
}
