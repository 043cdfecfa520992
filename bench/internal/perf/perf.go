// Package perf counts instructions and cycles by perf_event_open(2), of user and kernel mode
// separately, without those of a hypervisor. Counters ([Set]) are opened on a thread and inherited by all
// threads and processes that it starts afterwards, so the kernel's work in a system call
// counts for the process that made the call. Many virtual machines have none.
package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrUnavailable: the machine does not have, or does not permit, what was asked for.
var ErrUnavailable = errors.New("not available")

// Events are what the figures of a set count.
type Events [Figures]event

// Clock counts processor time in nanoseconds, user and kernel, for each figure. It needs no hardware.
var Clock = Events{clock, clock, clock, clock}

var clock = event{unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_TASK_CLOCK, 0}

// event is what a counter counts.
type event struct {
	kind, config, exclude uint64 // exclude: unix.PerfBitExclude*
}

const (
	user   = unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv
	kernel = unix.PerfBitExcludeUser | unix.PerfBitExcludeHv
)

// Figures of [Counts].
const (
	UserInstructions = iota
	KernelInstructions
	UserCycles
	KernelCycles
	Figures
)

// Hardware has the hardware event of each figure.
var Hardware = Events{
	UserInstructions:   {unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_INSTRUCTIONS, user},
	KernelInstructions: {unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_INSTRUCTIONS, kernel},
	UserCycles:         {unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CPU_CYCLES, user},
	KernelCycles:       {unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CPU_CYCLES, kernel},
}

// open opens an event. Its errors wrap [ErrUnavailable].
func open(a *unix.PerfEventAttr, tid, cpu int) (*os.File, error) {
	a.Size = unix.PERF_ATTR_SIZE_VER0
	fd, err := unix.PerfEventOpen(a, tid, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrUnavailable, reason(err))
	}
	return os.NewFile(uintptr(fd), "perf event"), nil
}

// reason says in one line why perf_event_open failed.
func reason(err error) string {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENODEV):
		return fmt.Sprintf("this machine has no hardware counters (perf_event_open: %v)", err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		level, _ := os.ReadFile("/proc/sys/kernel/perf_event_paranoid")
		return fmt.Sprintf("not permitted (perf_event_open: %v; kernel.perf_event_paranoid is %s)", err, strings.TrimSpace(string(level)))
	}
	return fmt.Sprintf("perf_event_open: %v", err)
}

// Set is a counter of each figure.
type Set struct{ files []*os.File }

// OpenSet opens counters of a thread of this process, and of all threads and processes that it
// starts from now on; 0 is the calling thread. The caller closes the set; who has inherited its descriptors can read on.
// Its errors wrap [ErrUnavailable].
func OpenSet(tid int, events Events) (*Set, error) {
	s := &Set{}
	for _, e := range events {
		f, err := open(&unix.PerfEventAttr{
			Type: uint32(e.kind), Config: e.config,
			Read_format: unix.PERF_FORMAT_TOTAL_TIME_ENABLED | unix.PERF_FORMAT_TOTAL_TIME_RUNNING,
			Bits:        unix.PerfBitInherit | e.exclude,
		}, tid, -1)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.files = append(s.files, f)
	}
	return s, nil
}

// Probe reports whether this process can open a set of [Hardware]. The error says why not and wraps [ErrUnavailable].
func Probe() error {
	s, err := OpenSet(0, Hardware)
	if err != nil {
		return err
	}
	return s.Close()
}

// Files are the descriptors to pass to a child.
func (s *Set) Files() []*os.File { return s.files }

// Inherited is the set whose descriptors begin at first.
func Inherited(first int) *Set {
	s := &Set{}
	for i := range Figures {
		s.files = append(s.files, os.NewFile(uintptr(first+i), "perf event"))
	}
	return s
}

// Close closes the descriptors.
func (s *Set) Close() error {
	var err error
	for _, f := range s.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// Reading is what the counters of a set have counted so far.
type Reading [Figures]struct{ Count, Enabled, Running uint64 } // times in nanoseconds

// Read reads the counters.
func (s *Set) Read() (r Reading, err error) {
	var b [24]byte
	for i, f := range s.files {
		if n, err := unix.Read(int(f.Fd()), b[:]); err != nil || n != len(b) {
			return r, fmt.Errorf("read a perf event: %d bytes, %w", n, err)
		}
		r[i].Count = binary.NativeEndian.Uint64(b[0:])
		r[i].Enabled = binary.NativeEndian.Uint64(b[8:])
		r[i].Running = binary.NativeEndian.Uint64(b[16:])
	}
	return r, nil
}

// Counts are figures of a measured section.
type Counts [Figures]uint64

// ErrShared: a counter did not count all of the time.
var ErrShared = errors.New("the processor's counters were shared with other users of them")

// Since is what was counted between two readings. A figure whose counter did not run all of that time, because the
// kernel gave it to others by turns, is not extrapolated: the error wraps [ErrShared].
func (r Reading) Since(before Reading) (c Counts, err error) {
	for i := range r {
		enabled, running := r[i].Enabled-before[i].Enabled, r[i].Running-before[i].Running
		if enabled == 0 || running < enabled-enabled/1000 {
			return Counts{}, fmt.Errorf("%w: they counted for %d of %d ns", ErrShared, running, enabled)
		}
		c[i] = r[i].Count - before[i].Count
	}
	return c, nil
}
