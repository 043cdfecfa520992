package load

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// processorTime is that of this process and of the server.
func (o Options) processorTime() (time.Duration, error) {
	own, err := processorTime(os.Getpid())
	if err != nil || o.Server == 0 {
		return own, err
	}
	server, err := processorTime(o.Server)
	return own + server, err
}

// processorTime is the user and system time of a process with all threads that it has or had. It is
// the sum that getrusage(2) reports to the process itself, in nanoseconds, and needs no privilege.
func processorTime(pid int) (time.Duration, error) {
	// The number of a process's clock, as clock_getcpuclockid(3) makes it: CPUCLOCK_SCHED of
	// include/linux/posix-timers.h.
	const cpuClockSched = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|cpuClockSched), &t); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}
