// Echo answers UDP datagrams and U-Net messages with their payload.
//
//	echo serve --listen 10.0.0.1:7000
//	echo ping --to 10.0.0.1:7000 -n 5
//	echo ping --to 10.0.0.1:7000 -n 5 --message
//
// The server listens on a UDP port and, with an endpoint of its own, on the
// message tag of the same number. Both need a running unetd and no privilege.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/unet-go/unet"
)

const usage = `usage:
  echo serve [--socket PATH] --listen ADDR:PORT
  echo ping  [--socket PATH] --to ADDR:PORT [-n N] [--message]
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	flags := flag.NewFlagSet("echo "+os.Args[1], flag.ExitOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage); flags.PrintDefaults() }
	socket := flags.String("socket", unet.DefaultSocket, "`path` of unetd's socket")
	var addr netip.AddrPort
	var run func() error
	switch os.Args[1] {
	case "serve":
		flags.TextVar(&addr, "listen", netip.AddrPort{}, "`address:port` to answer on")
		run = func() error { return serve(ctx, *socket, addr) }
	case "ping":
		flags.TextVar(&addr, "to", netip.AddrPort{}, "`address:port` to ping")
		n := flags.Int("n", 5, "`number` of pings")
		message := flags.Bool("message", false, "send U-Net messages instead of UDP datagrams")
		run = func() error { return ping(ctx, *socket, addr, *n, *message) }
	default:
		fmt.Fprintf(os.Stderr, "echo: unknown command %q\n%s", os.Args[1], usage)
		os.Exit(2)
	}
	flags.Parse(os.Args[2:])
	if !addr.IsValid() || flags.NArg() > 0 {
		flags.Usage()
		os.Exit(2)
	}
	if err := run(); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}
