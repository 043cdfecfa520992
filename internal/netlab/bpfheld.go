package netlab

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// BPFObject is a map, program or link ("map", "prog", "link") by the kernel's number.
type BPFObject struct {
	Kind string
	ID   uint32
}

// HeldBPF is the BPF objects that a process has descriptors of (proc(5),
// /proc/PID/fdinfo). A machine may have others: those are not a test's to count.
func HeldBPF(pid int) (map[BPFObject]bool, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return nil, err
	}
	held := map[BPFObject]bool{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // a descriptor of the moment
		}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			kind, ok := strings.CutSuffix(key, "_id")
			if !ok || (kind != "map" && kind != "prog" && kind != "link") {
				continue
			}
			id, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			held[BPFObject{kind, uint32(id)}] = true
		}
	}
	return held, nil
}
