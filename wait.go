package unet

import "github.com/unet-go/unet/internal/wait"

// WaitMode is how blocked calls wait.
type WaitMode = wait.Mode

const (
	WaitAdaptive = wait.Adaptive // spin for a budget, then sleep; the default
	WaitSpin     = wait.Spin     // never sleep: the lowest latency, and a processor of its own
	WaitBlock    = wait.Block    // sleep at once
)

// ParseWaitMode reads what [WaitMode] prints: spin, adaptive or block.
func ParseWaitMode(s string) (WaitMode, error) { return wait.Parse(s) }
