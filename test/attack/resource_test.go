package attack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

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

// bpfObjects counts what there is in the kernel, of everybody.
func bpfObjects(t testing.TB) map[string]int {
	t.Helper()
	count := func(next func() error) (n int) {
		for {
			err := next()
			if errors.Is(err, os.ErrNotExist) {
				return n
			}
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
	}
	var program ebpf.ProgramID
	var object ebpf.MapID
	links, err := countLinks()
	for errors.Is(err, unix.EAGAIN) { // somebody is attaching something
		links, err = countLinks()
	}
	if err != nil {
		t.Fatal(err)
	}
	return map[string]int{
		"programs": count(func() (err error) { program, err = ebpf.ProgramGetNextID(program); return err }),
		"maps":     count(func() (err error) { object, err = ebpf.MapGetNextID(object); return err }),
		"links":    links,
	}
}

func countLinks() (n int, err error) {
	all := new(link.Iterator)
	defer all.Close()
	for all.Next() {
		n++
	}
	return n, all.Err()
}

// knownNamespaces is how many others a host's network namespace has numbers for, as
// it has for those in which the other ends of its veth pairs are.
func knownNamespaces(h *netlab.Host) (n int, err error) {
	err = h.Do(func() error {
		req := nl.NewNetlinkRequest(unix.RTM_GETNSID, unix.NLM_F_DUMP)
		req.AddData(nl.NewRtGenMsg())
		msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNSID)
		n = len(msgs)
		return err
	})
	return n, err
}

// slabObjects is how many objects of a kind the kernel has. The count is exact to a
// few slabs.
func slabObjects(kind string) (int, error) {
	text, err := os.ReadFile("/proc/slabinfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == kind {
			return strconv.Atoi(fields[1])
		}
	}
	return 0, nil // it shares a slab with others: there is nothing to compare
}
