//go:build linux

package attack

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	objects "github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

// tolerances for measures that do not return to exactly their old value: the whole machine's
// memory, and unetd's, whose heap grows once with use. A leak of each cycle exceeds them after
// hundreds of cycles.
var tolerances = map[string]int{
	"KiB resident of unetd": 24 << 10,
	"KiB of SUnreclaim":     48 << 10,
	"KiB of Percpu":         16 << 10,
	"KiB of VmallocUsed":    48 << 10,
	"KiB of Shmem":          64 << 10,
}

// ofMachine are the measures of the whole machine. Other programs change them, so
// they are always printed, and checked only in the long run.
var ofMachine = []string{"SUnreclaim", "Percpu", "VmallocUsed", "Shmem"}

// resources are what a cycle could leave behind, by name.
type resources map[string]int

// countResources counts what unetd, host A and the machine have.
func countResources(t testing.TB, h *netlab.Host, d *unetd.Daemon) resources {
	t.Helper()
	s := resources{"devices": len(unetd.Links(t, h))}
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

// grown lists the counts that have grown.
func (s resources) grown(before resources) (more []string) {
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
func (s resources) memory(before resources) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(tolerances)) {
		if had, known := before[name]; known {
			parts = append(parts, fmt.Sprintf("%+d %s", s[name]-had, name))
		}
	}
	return strings.Join(parts, ", ")
}

// wantReleased waits until nothing is left over, since the kernel frees much of it later.
func wantReleased(t testing.TB, row *row, before resources, h *netlab.Host, d *unetd.Daemon) {
	t.Helper()
	var now resources
	var more []string
	if !testutil.Until(func() bool { now = countResources(t, h, d); more = now.grown(before); return len(more) == 0 }) {
		for _, m := range more {
			t.Errorf("left over: %s", m)
			row.note("LEFT OVER: %s", m)
		}
		return
	}
	row.note("descriptors, devices, namespaces and BPF objects as before; %s", now.memory(before))
}

// steadyResources is takeStock when two results in a row are equal.
func steadyResources(t testing.TB, h *netlab.Host, d *unetd.Daemon) (s resources) {
	t.Helper()
	runtime.GC() // this process's memory is the machine's, too
	testutil.Until(func() bool {
		last := s
		s = countResources(t, h, d)
		return len(s.grown(last)) == 0 && len(last.grown(s)) == 0 && s["devices"] == 5 // lo, uplink, its cutter, the pair to the host
	})
	return s
}

// forNewDaemon has the measures that can be compared with those of another unetd, whose
// descriptors and memory differ.
func (s resources) forNewDaemon() resources {
	other := maps.Clone(s)
	for name := range other {
		if strings.HasPrefix(name, "descriptors") {
			other[name] += 4
		}
	}
	delete(other, "KiB resident of unetd")
	return other
}

// descriptorKinds counts a process's descriptors by what they are of.
func descriptorKinds(pid int) (map[string]int, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	kinds := make(map[string]int)
	for _, e := range entries {
		link, err := os.Readlink(filepath.Join(dir, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // it was the one that reads the directory
		}
		if err != nil {
			return nil, err
		}
		kind := "file"
		for prefix, name := range map[string]string{
			"socket:": "socket", "pipe:": "pipe", "/memfd:": "memfd", "anon_inode:bpf": "bpf", "net:": "namespace", "anon_inode:[event": "event",
		} {
			if strings.HasPrefix(link, prefix) {
				kind = name
			}
		}
		kinds[kind]++
	}
	return kinds, nil
}

// memoryOf reads a field of a file like /proc/meminfo, where it is in KiB, or of
// /proc/vmstat.
func memoryOf(file, field string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && strings.TrimSuffix(fields[0], ":") == field {
			return strconv.Atoi(fields[1])
		}
	}
	return 0, fmt.Errorf("no %s in %s", field, file)
}

// bpfObjects counts the BPF objects of unetd: what it has descriptors of, the programs
// that use one of its maps, wherever they are attached, and the links of those. The
// map of unet_note_vlan does not count as its own here: all muxes of the machine use it.
func bpfObjects(t testing.TB, pid int) map[string]int {
	t.Helper()
	own, err := netlab.HeldBPF(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := addUsers(own); err != nil {
		t.Fatal(err)
	}
	if err := addLinks(own); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for o := range own {
		counts[map[string]string{"map": "maps", "prog": "programs", "link": "links"}[o.Kind]]++
	}
	return counts
}

// addUsers adds the programs that use a map of own, and their other maps.
func addUsers(own map[netlab.BPFObject]bool) error {
	var shared ebpf.MapID
	uses := map[ebpf.ProgramID][]ebpf.MapID{}
	for id, err := ebpf.ProgramGetNextID(0); !errors.Is(err, os.ErrNotExist); id, err = ebpf.ProgramGetNextID(id) {
		if err != nil {
			return err
		}
		p, err := ebpf.NewProgramFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			continue // of another program, and closed meanwhile
		}
		if err != nil {
			return err
		}
		info, err := p.Info()
		p.Close()
		if err != nil {
			return err
		}
		uses[id], _ = info.MapIDs()
		if info.Name == objects.MuxProgUnetNoteVlan && len(uses[id]) == 1 && own[netlab.BPFObject{Kind: "map", ID: uint32(uses[id][0])}] {
			shared = uses[id][0]
		}
	}
	held := maps.Clone(own)
	for id, used := range uses {
		if !slices.ContainsFunc(used, func(m ebpf.MapID) bool { return m != shared && held[netlab.BPFObject{Kind: "map", ID: uint32(m)}] }) {
			continue
		}
		own[netlab.BPFObject{Kind: "prog", ID: uint32(id)}] = true
		for _, m := range used {
			own[netlab.BPFObject{Kind: "map", ID: uint32(m)}] = true
		}
	}
	return nil
}

// addLinks adds the links of the programs of own.
func addLinks(own map[netlab.BPFObject]bool) error {
	all := new(link.Iterator)
	defer all.Close()
	for all.Next() {
		if info, err := all.Link.Info(); err == nil && own[netlab.BPFObject{Kind: "prog", ID: uint32(info.Program)}] {
			own[netlab.BPFObject{Kind: "link", ID: uint32(all.ID)}] = true
		}
	}
	if err := all.Err(); !errors.Is(err, unix.EAGAIN) { // another program attaches something
		return err
	}
	return addLinks(own)
}
