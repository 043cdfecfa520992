//go:build linux

package doctor

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unet-go/unet/mux"
)

// systemWith is an examination of a system with these files.
func systemWith(t *testing.T, files map[string]string) *examination {
	t.Helper()
	e := &examination{Config: Config{root: t.TempDir()}}
	for name, text := range files {
		path := filepath.Join(e.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// The findings of checks that read files of the system.
func TestChecksOfFiles(t *testing.T) {
	// irqs are the files of the interrupts of eth0 with these affinities.
	irqs := func(affinities ...string) map[string]string {
		files := map[string]string{"sys/devices/system/cpu/isolated": "2-3,8"}
		for i, cpus := range affinities {
			n := string(rune('1' + i))
			files["sys/class/net/eth0/device/msi_irqs/"+n] = "msix"
			files["proc/irq/"+n+"/effective_affinity_list"] = cpus
		}
		return files
	}
	governors := func(a, b string) map[string]string {
		return map[string]string{"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": a, "sys/devices/system/cpu/cpu11/cpufreq/scaling_governor": b}
	}
	for _, c := range []struct {
		check   func(*examination)
		files   map[string]string
		verdict Verdict
		found   string
		remedy  string
	}{
		{kernel, map[string]string{"proc/sys/kernel/osrelease": "6.5.13-generic"}, Note, "Linux 6.5.13-generic", "Linux 6.6"},
		{kernel, map[string]string{"proc/sys/kernel/osrelease": "5.19.0"}, Note, "not tested", "Linux 6.6"},
		{jit, map[string]string{"proc/sys/net/core/bpf_jit_enable": "0"}, Problem, "interpreted", "sysctl -w net.core.bpf_jit_enable=1"},
		{jit, map[string]string{"proc/sys/net/core/bpf_jit_enable": "1"}, OK, "on", ""},
		{jit, nil, OK, "not shown", ""},
		{hugePages, map[string]string{"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "64", "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "0"}, Note, "0 of 64", "vm.nr_hugepages"},
		{hugePages, map[string]string{"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "64", "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "5"}, OK, "5 of 64", ""},
		{isolation, map[string]string{"sys/devices/system/cpu/isolated": ""}, Note, "none of", "isolcpus="},
		{isolation, map[string]string{"sys/devices/system/cpu/isolated": "2-3"}, Note, "2-3", "nohz_full=2-3"},
		{isolation, map[string]string{"sys/devices/system/cpu/isolated": "2-3", "sys/devices/system/cpu/nohz_full": "3"}, OK, "2-3 are isolated, 3 without", ""},
		{governor, nil, OK, "virtual machines", ""},
		{governor, governors("performance", "performance"), OK, "performance on 2", ""},
		{governor, governors("performance", "schedutil"), Note, "performance on 1 processors, schedutil on 1 processors", "cpupower frequency-set -g performance"},
		{func(e *examination) { interrupts(e, "eth0") }, irqs("0", "1", "0-1"), OK, "3, on 3 sets", ""},
		{func(e *examination) { interrupts(e, "eth0") }, irqs("0", "0", "0"), Note, "all 3 interrupts", "irqbalance"},
		{func(e *examination) { interrupts(e, "eth0") }, irqs("0", "3"), Note, "interrupt 2 is handled on processor 3, which is isolated", "/proc/irq/2/smp_affinity_list"},
		{func(e *examination) { interrupts(e, "eth0") }, irqs("8", "1"), Note, "processor 8", "/proc/irq/1/"},
	} {
		e := systemWith(t, c.files)
		c.check(e)
		if len(e.findings) == 0 || e.findings[0].Verdict != c.verdict || !strings.Contains(e.findings[0].Found, c.found) || !strings.Contains(e.findings[0].Remedy, c.remedy) || (c.remedy == "") != (e.findings[0].Remedy == "") {
			t.Errorf("%v: %+v, want %s %q %q", c.files, e.findings, c.verdict, c.found, c.remedy)
		}
	}
}

// The finding about the offloads of an interface.
func TestOffloads(t *testing.T) {
	for _, c := range []struct {
		in      mux.Inspection
		verdict Verdict
		found   string
	}{
		{mux.Inspection{Mode: mux.ModeNative}, OK, "none"},
		{mux.Inspection{Mode: mux.ModeNative, Hidden: "rx-vlan-hw-parse", Merging: "rx-lro"}, OK, "rx-vlan-hw-parse,rx-lro: unetd turns them off"},
		{mux.Inspection{Mode: mux.ModeTCX, Merging: "rx-lro"}, OK, "rx-lro: they stay on"},
		{mux.Inspection{Mode: mux.ModeTCX, Merging: "rx-gro-hw", Fixed: "rx-gro-hw"}, Note, "does not turn rx-gro-hw off"},
	} {
		e := &examination{}
		offloads(e, &c.in)
		if f := e.findings[0]; f.Verdict != c.verdict || !strings.Contains(f.Found, c.found) {
			t.Errorf("%+v: %+v", c.in, f)
		}
	}
}

// Warnings are kept with their attributes, other lines are not.
func TestWarnings(t *testing.T) {
	log, list := newWarnings()
	log.Info("no")
	log.Warn("yes", "n", 3, slog.String("s", "x"))
	if len(*list) != 1 || (*list)[0] != "yes, n 3, s x" {
		t.Errorf("%q", *list)
	}
}
