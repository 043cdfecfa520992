package perf

import (
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Runs is how often BPF programs of a name ran, and how long, in nanoseconds.
type Runs struct{ Count, Time uint64 }

// EnableStats has the kernel count and time the runs of all BPF programs of the machine until the closer is
// closed (BPF_ENABLE_STATS). It reads the clock twice a run, see [EmptyRun].
func EnableStats() (io.Closer, error) {
	c, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, fmt.Errorf("BPF_ENABLE_STATS: %w", err)
	}
	return c, nil
}

// ProgramRuns is the runs so far of programs by their identifiers. Programs of one name are added.
func ProgramRuns(ids []uint32) (map[string]Runs, error) {
	all := map[string]Runs{}
	for _, id := range ids {
		if err := addRuns(all, ebpf.ProgramID(id)); err != nil {
			return nil, fmt.Errorf("runs of BPF program %d: %w", id, err)
		}
	}
	return all, nil
}

func addRuns(all map[string]Runs, id ebpf.ProgramID) (err error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	info, err := p.Info()
	if err != nil {
		return err
	}
	s, err := p.Stats()
	if err != nil {
		return err
	}
	r := all[info.Name]
	all[info.Name] = Runs{r.Count + s.RunCount, r.Time + uint64(s.Runtime)}
	return nil
}

// EmptyRun is what a program that does nothing takes by the same statistics, in nanoseconds a run: the
// part of the measurement that every program's figure contains.
func EmptyRun() (ns float64, err error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "unetbench_empty", Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}, // XDP_DROP
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if _, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: 100_000}); err != nil {
		return 0, err
	}
	s, err := p.Stats()
	if err != nil {
		return 0, err
	}
	return float64(s.Runtime) / float64(max(s.RunCount, 1)), nil
}
