package unet

import (
	"fmt"

	"github.com/unet-go/unet/stack"
)

// WaitMode is how blocked calls wait.
type WaitMode = stack.WaitMode

const (
	WaitAdaptive = stack.WaitAdaptive // spin for a budget, then sleep; the default
	WaitSpin     = stack.WaitSpin     // never sleep: lowest latency, a core of its own
	WaitBlock    = stack.WaitBlock    // sleep at once
)

// ParseWaitMode reads what [WaitMode] prints: spin, adaptive or block.
func ParseWaitMode(s string) (WaitMode, error) {
	for _, m := range []WaitMode{WaitAdaptive, WaitSpin, WaitBlock} {
		if s == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("wait mode %q: want spin, adaptive or block", s)
}
