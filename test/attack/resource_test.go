package attack

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	objects "github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/internal/netlab"
)

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
			continue // somebody's, and gone
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
	if err := all.Err(); !errors.Is(err, unix.EAGAIN) { // somebody is attaching something
		return err
	}
	return addLinks(own)
}
