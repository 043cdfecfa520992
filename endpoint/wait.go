package endpoint

import "fmt"

// WaitMode is how a goroutine waits for frames.
type WaitMode uint8

const (
	WaitAdaptive WaitMode = iota // spin for a budget, then sleep; the default
	WaitSpin                     // never sleep: the lowest latency, and a processor of its own
	WaitBlock                    // sleep at once: a wake-up costs tens of microseconds
)

var waitModes = [...]string{WaitAdaptive: "adaptive", WaitSpin: "spin", WaitBlock: "block"}

func (m WaitMode) String() string {
	if int(m) < len(waitModes) {
		return waitModes[m]
	}
	return fmt.Sprintf("invalid wait mode %d", uint8(m))
}

// ParseWaitMode is the inverse of [WaitMode.String].
func ParseWaitMode(s string) (WaitMode, error) {
	for m, name := range waitModes {
		if s == name {
			return WaitMode(m), nil
		}
	}
	return 0, fmt.Errorf("wait mode %q: want spin, adaptive or block", s)
}
