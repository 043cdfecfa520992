package mux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// pins is the directory of a bpffs in which a mux keeps what shall outlive its
// process: maps, programs and links, each under its name. Whoever serves the
// mux holds the directory's lock, which ends with its process. A nil pins keeps
// nothing.
type pins struct {
	path string
	dir  *os.File // locked
}

// Names of pins that are not those of maps. A name has no dot: the kernel
// reserves those.
const (
	pinUplink = "uplink" // the link that holds the uplink's program; there only if all else is
	pinState  = "state"  // the map
	pinLink   = "link_"  // and the name of the program
)

// pinFolder is where the pins of all muxes of a bpffs are.
const pinFolder = "unet"

// pinPath is where the pins of a mux are: an interface is known by the cookie of
// its network namespace and its number, which it keeps when it is renamed.
func pinPath(bpffs string, netns uint64, ifindex int) string {
	return filepath.Join(bpffs, pinFolder, fmt.Sprintf("%d-%d", netns, ifindex))
}

// How long to wait for the lock of a process that was killed: the kernel lets go of it
// some time after kill(2) has returned.
const (
	dyingTries = 50
	dyingPause = 20 * time.Millisecond
)

// makePins makes the directory of a mux, if it is not there, and locks it. ErrInUse
// says that another process has, for a second now.
func makePins(bpffs string, netns uint64, ifindex int) (*pins, error) {
	if err := checkBPFFS(bpffs); err != nil {
		return nil, err
	}
	path := pinPath(bpffs, netns, ifindex)
	for try := 0; ; {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("directory for pins: %w", err)
		}
		p, err := lockPins(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue // whoever had it has just removed it
		case errors.Is(err, ErrInUse) && try < dyingTries:
			try++
			time.Sleep(dyingPause)
			continue
		}
		return p, err
	}
}

// checkBPFFS refuses a directory in which nothing can be pinned.
func checkBPFFS(path string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return fmt.Errorf("pin to %s: %w", path, err)
	}
	if st.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("pin to %s: it is no bpffs (mount -t bpf bpf %s)", path, path)
	}
	return nil
}

// lockPins locks a directory that is there.
func lockPins(path string) (*pins, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	p := &pins{path: path, dir: dir}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		p.close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w (the lock on %s is held)", ErrInUse, path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		p.close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if st.Nlink == 0 { // removed between open and lock
		p.close()
		return nil, os.ErrNotExist
	}
	return p, nil
}

// close lets go of the lock. What is pinned stays.
func (p *pins) close() error {
	if p == nil {
		return nil
	}
	return p.dir.Close()
}

// at is the path of a pin.
func (p *pins) at(name string) string { return filepath.Join(p.path, name) }

// names lists what is pinned.
func (p *pins) names() ([]string, error) {
	entries, err := os.ReadDir(p.path)
	if err != nil {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// clear unpins everything. The uplink's link comes first: without it nobody
// takes the rest for a mux. State comes last: it says what is still to be
// restored.
func (p *pins) clear() error {
	if p == nil {
		return nil
	}
	names, err := p.names()
	if err != nil {
		return err
	}
	rank := func(name string) int {
		switch name {
		case pinUplink:
			return 0
		case pinState:
			return 2
		}
		return 1
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	for _, name := range names {
		if err := os.Remove(p.at(name)); err != nil {
			return fmt.Errorf("unpin: %w", err)
		}
	}
	return nil
}

// remove is clear, and then the directory goes.
func (p *pins) remove() error {
	if p == nil {
		return nil
	}
	if err := p.clear(); err != nil {
		return err
	}
	if err := os.Remove(p.path); err != nil {
		return fmt.Errorf("remove the directory for pins: %w", err)
	}
	return nil
}
