package uplink

import (
	"bufio"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
)

// The pages of a segment are charged to the memory cgroup of the process that
// registers it with a socket, which is unetd or a child of it, and not to that of its
// owner. At the limit of that cgroup the kernel would end unetd. So all segments
// together have a bound below it (ADR 29).

// ownMemory is what unetd keeps of its cgroup's memory for itself, in bytes: half of
// it, if that is less.
const ownMemory = 128 << 20

// memoryBound is how many bytes the segments of all users may have together; 0: any
// number.
func memoryBound(log *slog.Logger) (int64, error) {
	limit, err := memoryLimit("/proc/self")
	if err != nil || limit == policy.Unlimited {
		return 0, err
	}
	bound := max(limit-ownMemory, limit/2)
	log.Info("the segments of all users together are bounded by the memory cgroup that unetd is in", "limit", policy.Bytes(limit), "segments", policy.Bytes(bound))
	return bound, nil
}

// memoryLimit is the least limit of a process's memory cgroup and those above it, as
// far as they can be seen, in bytes. proc is its folder in /proc.
func memoryLimit(proc string) (int64, error) {
	groups, err := os.ReadFile(filepath.Join(proc, "cgroup"))
	if err != nil {
		return 0, err
	}
	mounts, err := os.ReadFile(filepath.Join(proc, "mountinfo"))
	if err != nil {
		return 0, err
	}
	least := int64(policy.Unlimited)
	for line := range strings.Lines(string(groups)) {
		// hierarchy:controllers:path (cgroups(7)); version 2 has no controllers.
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		file, kind := "memory.max", "cgroup2"
		switch {
		case slices.Contains(strings.Split(parts[1], ","), "memory"):
			file, kind = "memory.limit_in_bytes", "cgroup"
		case parts[1] != "":
			continue
		}
		top := mountOf(string(mounts), kind)
		if top == "" {
			continue
		}
		for path := filepath.Clean("/" + parts[2]); ; path = filepath.Dir(path) {
			n, err := readLimit(filepath.Join(top, path, file))
			if err != nil {
				return 0, err
			}
			if n != policy.Unlimited && (least == policy.Unlimited || n < least) {
				least = n
			}
			if path == "/" {
				break
			}
		}
	}
	return least, nil
}

// mountOf is where the hierarchy is mounted that limits memory: of version 1 that of
// the controller, by the options of its file system (proc_pid_mountinfo(5)).
func mountOf(mounts, kind string) string {
	for lines := bufio.NewScanner(strings.NewReader(mounts)); lines.Scan(); {
		place, system, found := strings.Cut(lines.Text(), " - ")
		fields, types := strings.Fields(place), strings.Fields(system)
		if !found || len(fields) < 5 || len(types) < 3 || types[0] != kind {
			continue
		}
		if kind == "cgroup2" || slices.Contains(strings.Split(types[2], ","), "memory") {
			return fields[4]
		}
	}
	return ""
}

// noLimit is what version 1 shows for none: all pages that a counter has room for.
const noLimit = 1 << 62

// readLimit reads a limit. A file that is not there is none: the root has none, nor has
// a cgroup that is not below what is mounted here.
func readLimit(file string) (int64, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return policy.Unlimited, nil
	}
	if err != nil {
		return 0, err
	}
	value := strings.TrimSpace(string(text))
	n, err := strconv.ParseInt(value, 10, 64)
	if value == "max" || err == nil && n >= noLimit {
		return policy.Unlimited, nil
	}
	return n, err
}
