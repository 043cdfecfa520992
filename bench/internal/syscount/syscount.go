// Package syscount counts the system calls of another process, by a BPF program on the
// kernel's sys_enter tracepoint. The program slows every system call of the machine, so it
// is loaded for counting passes and never while something is timed.
//
// A counted process calls getrusage(2) at the begin and at the end of its measured section
// and nowhere else (package workload). The count is that of the calls between the last two.
package syscount

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
)

// ErrUnavailable: the kernel does not have, or does not permit, what counting needs.
var ErrUnavailable = errors.New("system calls cannot be counted here")

// maxProcesses is how many processes can be followed at once.
const maxProcesses = 16

// tally is the value of the program's map, one a process.
type tally struct {
	Calls    uint64 // so far, without getrusage
	Previous uint64 // Calls at the last but one getrusage
	Latest   uint64 // Calls at the last getrusage
}

// offsets of the fields in the map's value
const (
	callsOffset    = 0
	previousOffset = 8
	latestOffset   = 16
)

// Counter is the attached program.
type Counter struct {
	pids    []int // that are followed
	tallies *ebpf.Map
	prog    *ebpf.Program
	link    link.Link
}

// Open loads and attaches the program. Its errors wrap [ErrUnavailable].
func Open() (*Counter, error) {
	c, err := open()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return c, nil
}

func open() (_ *Counter, err error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, err
	}
	c := &Counter{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	c.tallies, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "unetbench_calls", Type: ebpf.Hash,
		KeySize: 4, ValueSize: 24, MaxEntries: maxProcesses,
	})
	if err != nil {
		return nil, err
	}
	c.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "unetbench_calls", Type: ebpf.RawTracepoint, License: "Apache-2.0",
		Instructions: program(c.tallies.FD()),
	})
	if err != nil {
		return nil, err
	}
	c.link, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_enter", Program: c.prog})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// program is
//
//	tgid = bpf_get_current_pid_tgid() >> 32
//	t = lookup(tallies, tgid); if (!t) return 0
//	if (ctx->args[1] == SYS_getrusage) { t->previous = t->latest; t->latest = t->calls }
//	else atomic_add(&t->calls, 1)
//
// where args[1] of sys_enter is the number of the system call.
func program(tallies int) asm.Instructions {
	const numberOffset = 8 // of args[1] in struct bpf_raw_tracepoint_args
	return asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, numberOffset, asm.DWord),
		asm.FnGetCurrentPidTgid.Call(),
		asm.RSh.Imm(asm.R0, 32),
		asm.StoreMem(asm.RFP, -4, asm.R0, asm.Word),
		asm.LoadMapPtr(asm.R1, tallies),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.JEq.Imm(asm.R6, syscall.SYS_GETRUSAGE, "reading"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord), // calls is the first field
		asm.Ja.Label("out"),
		asm.LoadMem(asm.R1, asm.R0, latestOffset, asm.DWord).WithSymbol("reading"),
		asm.StoreMem(asm.R0, previousOffset, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.R0, callsOffset, asm.DWord),
		asm.StoreMem(asm.R0, latestOffset, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	}
}

// Follow begins to count the calls of a process.
func (c *Counter) Follow(pid int) error {
	if err := c.tallies.Put(uint32(pid), tally{}); err != nil {
		return fmt.Errorf("count system calls of process %d: %w", pid, err)
	}
	c.pids = append(c.pids, pid)
	return nil
}

// Take ends the counting of the processes that are followed, which may have ended. It returns how many system
// calls they made between their last two calls of getrusage.
func (c *Counter) Take() (calls uint64, err error) {
	for _, pid := range c.pids {
		var t tally
		if err := c.tallies.LookupAndDelete(uint32(pid), &t); err != nil {
			return 0, fmt.Errorf("system calls of process %d: %w", pid, err)
		}
		calls += t.Latest - t.Previous
	}
	c.pids = nil
	return calls, nil
}

// Close detaches the program.
func (c *Counter) Close() error {
	var err error
	if c.link != nil {
		err = c.link.Close()
	}
	if c.prog != nil {
		err = errors.Join(err, c.prog.Close())
	}
	if c.tallies != nil {
		err = errors.Join(err, c.tallies.Close())
	}
	return err
}
