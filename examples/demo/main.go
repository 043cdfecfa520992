//go:build linux

// Demo shows unet in two network namespaces, and explains each step. It runs the unetd that lies in its folder.
//
// The namespaces have no names, and no other process uses the mount namespace with the socket and the
// pins of unetd. When this process ends, its children are killed, and the kernel removes the namespaces
// with all that is in them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/unet-go/unet"
)

const usage = `usage:
  demo [--pause]    with --pause it waits for the Enter key before each step

It needs root, takes a few seconds, and touches no interface, socket or file of this machine. All of it
ends with the command. Exit status 1 if something did not work, or after SIGINT, SIGTERM or SIGHUP.
`

// Arguments with which demo starts itself as the processes that it shows.
const (
	applicationName = "application"
	neighbourName   = "neighbour"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	pause := flag.Bool("pause", false, "")
	flag.Parse()
	var err error
	switch {
	case flag.NArg() == 0:
		err = start(ctx, *pause)
	case flag.NArg() == 1 && flag.Arg(0) == applicationName:
		err = Application(ctx, unet.DefaultSocket, os.Stdin, os.Stdout)
	case flag.NArg() == 2 && flag.Arg(0) == neighbourName:
		err = Neighbour(ctx, unet.DefaultSocket, flag.Arg(1), os.Stdin, os.Stdout)
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", strings.ReplaceAll(err.Error(), "\n", "; "))
		os.Exit(1)
	}
}

func start(ctx context.Context, pause bool) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	info, err := os.Stdout.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0
	return Run(ctx, Config{
		Command: []string{filepath.Join(filepath.Dir(self), "unetd")}, Application: []string{"/proc/self/exe", applicationName}, Neighbour: []string{"/proc/self/exe", neighbourName},
		Stdin: os.Stdin, Stdout: os.Stdout, Color: terminal && os.Getenv("NO_COLOR") == "", Pause: pause,
	})
}
