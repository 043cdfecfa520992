package netlab

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Processors lists the processors that this process may run on, in ascending
// order. (runtime.NumCPU says only how many they are.)
func Processors() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	var cpus []int
	for cpu := 0; len(cpus) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}
