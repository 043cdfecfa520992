package attack

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

// tolerances for what cannot be back to the byte: the whole machine's memory, and
// unetd's, whose heap grows once with use. What a cycle would leak is above them when
// there are hundreds of cycles.
var tolerances = map[string]int{
	"KiB resident of unetd": 24 << 10,
	"KiB of SUnreclaim":     48 << 10,
	"KiB of Percpu":         16 << 10,
	"KiB of VmallocUsed":    48 << 10,
	"KiB of Shmem":          64 << 10,
}

// ofMachine are the measures of the whole machine. Whatever else runs on it moves
// them, so they are noted always, and judged only in the long run.
var ofMachine = []string{"SUnreclaim", "Percpu", "VmallocUsed", "Shmem"}

// holdings are what a cycle could leave behind, by name.
type holdings map[string]int

// takeStock counts what unetd, host A and the machine have.
func takeStock(t testing.TB, h *netlab.Host, d *unetd.Daemon) holdings {
	t.Helper()
	s := holdings{"devices": len(unetd.Links(t, h))}
	kinds, err := descriptorKinds(d.PID())
	if err != nil {
		t.Fatal(err)
	}
	for kind, n := range kinds {
		s["descriptors of unetd, of kind "+kind] = n
	}
	for kind, n := range bpfObjects(t, d.PID()) {
		s["BPF "+kind] = n
	}
	var errs [2]error
	s["namespaces that host A has numbers for"], errs[0] = h.KnownNamespaces()
	s["KiB resident of unetd"], errs[1] = memoryOf(fmt.Sprintf("/proc/%d/status", d.PID()), "VmRSS")
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	for _, field := range ofMachine {
		if s["KiB of "+field], err = memoryOf("/proc/meminfo", field); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// more says what there is more of than before.
func (s holdings) more(before holdings) (more []string) {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		had, known := before[name]
		if _, vague := tolerances[name]; vague && !known {
			continue // there is nothing to compare
		}
		if field, ok := strings.CutPrefix(name, "KiB of "); ok && slices.Contains(ofMachine, field) && !*long {
			continue
		}
		if s[name] > had+tolerances[name] {
			more = append(more, fmt.Sprintf("%d %s, before %d", s[name], name, had))
		}
	}
	return more
}

// memory writes the measures that have tolerances.
func (s holdings) memory(before holdings) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(tolerances)) {
		if had, known := before[name]; known {
			parts = append(parts, fmt.Sprintf("%+d %s", s[name]-had, name))
		}
	}
	return strings.Join(parts, ", ")
}

// backTo waits until nothing is left over, since the kernel frees much of it later.
func backTo(t testing.TB, row *row, before holdings, h *netlab.Host, d *unetd.Daemon) {
	t.Helper()
	var now holdings
	var more []string
	if !unetd.Eventually(func() bool { now = takeStock(t, h, d); more = now.more(before); return len(more) == 0 }) {
		for _, m := range more {
			t.Errorf("left over: %s", m)
			row.note("LEFT OVER: %s", m)
		}
		return
	}
	row.note("descriptors, devices, namespaces and BPF objects as before; %s", now.memory(before))
}

// stock is takeStock when nothing is on its way any more.
func stock(t testing.TB, h *netlab.Host, d *unetd.Daemon) (s holdings) {
	t.Helper()
	runtime.GC() // this process's memory is the machine's, too
	unetd.Eventually(func() bool {
		last := s
		s = takeStock(t, h, d)
		return len(s.more(last)) == 0 && len(last.more(s)) == 0 && s["devices"] == 3 // lo, uplink, its cutter
	})
	return s
}

// ofAnother is what may be compared when it is another unetd: its descriptors need
// not be as many, and its memory is its own.
func (s holdings) ofAnother() holdings {
	other := maps.Clone(s)
	for name := range other {
		if strings.HasPrefix(name, "descriptors") {
			other[name] += 4
		}
	}
	delete(other, "KiB resident of unetd")
	return other
}
