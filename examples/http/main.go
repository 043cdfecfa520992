// Http serves and fetches over HTTP with package net/http, on unet's TCP.
//
//	http serve --listen 10.0.0.1:8080
//	http get http://10.0.0.1:8080/
//	http get -n 1000 -c 4 http://10.0.0.1:8080/bytes/100
//
// Both need no privilege. Where no unetd runs, and with --kernel, they use the kernel's sockets.
// Only openNetwork and the page about the connection use unet; the rest is as with package net.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/unet-go/unet"
)

const usage = `usage:
  http serve [flags] --listen ADDR:PORT
  http get   [flags] [-n N] [-c N] [-o FILE] URL

serve answers
  GET  /          hello, and figures of the connection
  GET  /bytes/N   N bytes: lines of 16, each with its offset; also ranges
  POST /upload    the number of bytes of the body, and their SHA-256
  GET  /counters  the counters of the stack
until SIGTERM or an interrupt, and then completes the requests that have begun. get prints
the body and, to standard error, figures. Both get their endpoint from unetd; without one
they use the kernel's sockets.

examples:
  http serve --listen 10.0.0.1:8080
  http serve --listen 10.0.0.1:8080 --kernel    the same on the kernel's sockets
  http get http://10.0.0.1:8080/
  http get -n 1000 -c 4 http://10.0.0.1:8080/bytes/100

flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "http:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("http", flag.ExitOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage); flags.PrintDefaults() }
	wrong := func(format string, args ...any) error {
		return fmt.Errorf(format+" (see http --help)", args...)
	}
	var cfg unet.Config
	if err := cfg.FromEnv(); err != nil {
		return err
	}
	cfg.RegisterFlags(flags)
	kernel := flags.Bool("kernel", false, "use the kernel's sockets, with unetd or without")
	listen := flags.String("listen", "", "serve: `address:port` to listen on")
	n := flags.Int("n", 1, "get: `number` of requests; of more than one the bodies are not printed")
	c := flags.Int("c", 1, "get: `number` of connections at most")
	output := flags.String("o", "", "get: `file` for the body of one request (default standard output)")

	var command string
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		command, args = args[0], args[1:]
	}
	flags.Parse(args)
	switch {
	case command == "serve" && *listen == "":
		return wrong("serve: --listen is missing")
	case command == "serve" && flags.NArg() > 0:
		return wrong("serve: unexpected argument %q", flags.Arg(0))
	case command == "get" && flags.NArg() != 1:
		return wrong("get: want one URL, after the flags")
	case command == "get" && (*n < 1 || *c < 1):
		return wrong("get: -n and -c are at least 1")
	case command == "get" && *n > 1 && *output != "":
		return wrong("get: -o is for one request")
	case command == "":
		return errors.New("want serve or get (see http --help)")
	case command != "serve" && command != "get":
		return wrong("unknown command %q", command)
	}
	network, err := openNetwork(ctx, cfg, *kernel)
	if err != nil {
		return err
	}
	defer network.Close()
	if command == "serve" {
		return serve(ctx, network, *listen)
	}
	return get(ctx, network, flags.Arg(0), *n, *c, *output)
}

func openNetwork(ctx context.Context, cfg unet.Config, kernel bool) (*unet.Opened, error) {
	if kernel {
		return &unet.Opened{Network: unet.Kernel()}, nil
	}
	return unet.OpenNetwork(ctx, cfg, unet.Kernel())
}
