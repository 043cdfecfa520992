package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Of the memory that the kernel writes records to (struct perf_event_mmap_page).
const (
	ringBytes  = 16 << 20
	headOffset = 1024 // of data_head
	dataOffset = 4096 // the records begin at the second page
)

// A sampled event, and the distance of two samples in the event's unit.
const (
	// TimePeriod is in nanoseconds. It is no round number, so that samples do not coincide
	// with work that repeats.
	TimePeriod = 250_013
	// InstructionPeriod is in instructions.
	InstructionPeriod = 100_003
)

// Sample is what a processor did at a moment.
type Sample struct {
	PID, TID uint32
	Kernel   []uint64 // addresses of kernel functions, the innermost first; empty: in user mode
	User     []uint64
}

// Sampler samples processors.
type Sampler struct{ rings []ring }

// ring is the samples of one processor.
type ring struct {
	file *os.File
	mem  []byte
}

// NewSampler opens a sampler, which does not run yet. Instructions need hardware counters; time does not.
// The clock of time is an interrupt: where interrupts are disabled, time counts for the
// function that enables them again. Errors wrap [ErrUnavailable].
func NewSampler(cpus []int, instructions bool) (_ *Sampler, err error) {
	s := &Sampler{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Sample: TimePeriod,
		Sample_type: unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_CALLCHAIN,
		Read_format: unix.PERF_FORMAT_LOST,
		Bits:        unix.PerfBitDisabled | unix.PerfBitExcludeHv,
	}
	if instructions {
		attr.Type, attr.Config, attr.Sample = unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_INSTRUCTIONS, InstructionPeriod
	}
	for _, cpu := range cpus {
		f, err := open(&attr, -1, cpu)
		if err != nil {
			return nil, err
		}
		s.rings = append(s.rings, ring{file: f})
		mem, err := unix.Mmap(int(f.Fd()), 0, dataOffset+ringBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, fmt.Errorf("mmap of a perf event: %w", err)
		}
		s.rings[len(s.rings)-1].mem = mem
	}
	return s, nil
}

// Start begins to sample.
func (s *Sampler) Start() error { return s.control(unix.PERF_EVENT_IOC_ENABLE) }

// Stop ends sampling. It can begin again: samples are added.
func (s *Sampler) Stop() error { return s.control(unix.PERF_EVENT_IOC_DISABLE) }

func (s *Sampler) control(request uint) error {
	for _, r := range s.rings {
		if err := unix.IoctlSetInt(int(r.file.Fd()), request, 0); err != nil {
			return fmt.Errorf("ioctl of a perf event: %w", err)
		}
	}
	return nil
}

// Samples are all that were taken until Stop, and how many were lost because the memory for
// them was full, or because the kernel throttled the sampler.
func (s *Sampler) Samples() (all []Sample, lost uint64, err error) {
	for _, r := range s.rings {
		var b [16]byte
		if n, err := unix.Read(int(r.file.Fd()), b[:]); err != nil || n != len(b) {
			return nil, 0, fmt.Errorf("read a perf event: %d bytes, %w", n, err)
		}
		lost += binary.NativeEndian.Uint64(b[8:])
		head := binary.NativeEndian.Uint64(r.mem[headOffset:])
		got, throttled, err := parse(r.mem[dataOffset : dataOffset+head])
		if err != nil {
			return nil, 0, err
		}
		all, lost = append(all, got...), lost+throttled
	}
	return all, lost, nil
}

// Close frees the memory of the samples.
func (s *Sampler) Close() error {
	var err error
	for _, r := range s.rings {
		if r.mem != nil {
			err = errors.Join(err, unix.Munmap(r.mem))
		}
		err = errors.Join(err, r.file.Close())
	}
	s.rings = nil
	return err
}

// parse reads the records of a ring. Each has a header (type, misc, size: struct
// perf_event_header). A sample has pid, tid, and a list of addresses, in which markers say
// to what mode the following ones belong.
func parse(b []byte) (all []Sample, throttled uint64, err error) {
	for len(b) > 0 {
		if len(b) < 8 {
			return nil, 0, fmt.Errorf("%d bytes after the last perf record", len(b))
		}
		kind, size := binary.NativeEndian.Uint32(b), int(binary.NativeEndian.Uint16(b[6:]))
		if size < 8 || size > len(b) {
			return nil, 0, fmt.Errorf("perf record of %d bytes in %d", size, len(b))
		}
		record := b[8:size]
		b = b[size:]
		switch kind {
		case unix.PERF_RECORD_THROTTLE:
			throttled++
			continue
		case unix.PERF_RECORD_SAMPLE:
		default:
			continue
		}
		if len(record) < 16 {
			return nil, 0, fmt.Errorf("perf sample of %d bytes", size)
		}
		s := Sample{PID: binary.NativeEndian.Uint32(record), TID: binary.NativeEndian.Uint32(record[4:])}
		n, record := binary.NativeEndian.Uint64(record[8:]), record[16:]
		if n > uint64(len(record)/8) {
			return nil, 0, fmt.Errorf("perf sample of %d bytes with %d addresses", size, n)
		}
		var to *[]uint64
		for i := range n {
			a := binary.NativeEndian.Uint64(record[8*i:])
			switch int64(a) {
			case unix.PERF_CONTEXT_KERNEL:
				to = &s.Kernel
			case unix.PERF_CONTEXT_USER:
				to = &s.User
			default:
				if int64(a) < 0 && int64(a) >= unix.PERF_CONTEXT_MAX { // a mode that we do not sample
					to = nil
				} else if to != nil {
					*to = append(*to, a)
				}
			}
		}
		all = append(all, s)
	}
	return all, throttled, nil
}
