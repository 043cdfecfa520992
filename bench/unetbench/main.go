// Command unetbench measures unet against the kernel's own sockets, on a network that it
// makes (package lab). See unetbench --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes.
const (
	exitFailure = 1 // something could not be measured
	exitUsage   = 2 // an error in the command line
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal ends the measurement and cleans up; a second one kills.
	context.AfterFunc(ctx, stop)
	err := newCommand().ExecuteContext(ctx)
	switch {
	case err == nil:
		return
	case errors.Is(err, errReported):
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "unetbench: interrupted")
	default:
		fmt.Fprintln(os.Stderr, "unetbench:", err)
	}
	if isUsage(err) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailure)
}
