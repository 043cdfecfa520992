package workload

import (
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"time"
)

// meter reads what a process has used so far. See the package's doc about
// getrusage.
type meter struct {
	cpu     time.Duration
	mallocs uint64
}

// start takes the baseline. The allocation count is read first, so that
// reading it is not measured.
func (m *meter) start() error {
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	m.mallocs = ms.Mallocs
	cpu, err := cpuTime()
	m.cpu = cpu
	return err
}

// stop writes what was used since start into r.
func (m *meter) stop(r *Report) error {
	cpu, err := cpuTime()
	if err != nil {
		return err
	}
	r.CPU = cpu - m.cpu
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	r.Mallocs = ms.Mallocs - m.mallocs
	return nil
}

// cpuTime is the user and system time of this process.
func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

var epoch = time.Now()

// clock is the monotonic clock: one vDSO call, no wall clock beside it.
func clock() time.Duration { return time.Since(epoch) }

// Summarize sorts samples and describes them exactly, by nearest rank.
func Summarize(samples []time.Duration) Latency {
	if len(samples) == 0 {
		return Latency{}
	}
	slices.Sort(samples)
	var sum time.Duration
	for _, s := range samples {
		sum += s
	}
	return Latency{
		Mean: sum / time.Duration(len(samples)),
		P50:  nearestRank(samples, 500),
		P99:  nearestRank(samples, 990),
		P999: nearestRank(samples, 999),
	}
}

// nearestRank is the smallest sample that at least permille thousandths of all
// samples do not exceed.
func nearestRank(sorted []time.Duration, permille int) time.Duration {
	rank := (len(sorted)*permille + 999) / 1000
	return sorted[max(rank, 1)-1]
}
