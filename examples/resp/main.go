// Resp is a server in memory that speaks RESP2, the protocol of Redis, on unet's
// TCP: strings, lists, sets and hashes, enough for redis-cli and redis-benchmark.
//
//	resp --listen 10.0.0.1:6379
//
// It needs no privilege. With --kernel it uses the kernel's sockets.
// Only main.go and the command INFO use unet; the rest is as with package net.
//
// The files, in the order in which they handle a command: serve.go accepts connections,
// each of which has one goroutine (session.go). It reads a request (request.go,
// inline.go), runs it (commands.go, strings.go, collections.go), and writes the replies
// before it waits for more input.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/unet-go/unet"
)

const usage = `usage:
  resp [flags] --listen ADDR:PORT

answers the commands of RESP2 that COMMAND lists, until SIGTERM or an interrupt.
Nothing is kept on disk.

examples:
  resp --listen 10.0.0.1:6379
  resp --listen 10.0.0.1:6379 --kernel    the same on the kernel's sockets

flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "resp:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("resp", flag.ExitOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage); flags.PrintDefaults() }
	var cfg unet.Config
	if err := cfg.FromEnv(); err != nil {
		return err
	}
	cfg.RegisterFlags(flags)
	kernel := flags.Bool("kernel", false, "use the kernel's sockets, with unetd or without")
	listen := flags.String("listen", "", "`address:port` to listen on")
	keepAlive := flags.Duration("keepalive", 300*time.Second, "`time` after which a silent client is probed, three times at most; 0: never")
	flags.Parse(args)
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q (see resp --help)", flags.Arg(0))
	case *listen == "":
		return fmt.Errorf("--listen is missing (see resp --help)")
	case *keepAlive < 0:
		return fmt.Errorf("--keepalive is negative (see resp --help)")
	}
	network := &unet.Opened{Network: unet.Kernel()}
	if !*kernel {
		var err error
		if network, err = unet.OpenNetwork(ctx, cfg, nil); err != nil {
			return err
		}
	}
	defer network.Close()
	return serve(ctx, network, *listen, *keepAlive)
}
