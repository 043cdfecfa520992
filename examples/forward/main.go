// Forward is a TCP proxy between unet's sockets and the kernel's, in either direction: it makes a
// service on kernel sockets reachable over unet, or brings its clients to a service over unet.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/unet-go/unet"
)

const usage = `usage:
  forward [flags] in  LISTEN TO   listens on unet's sockets, and connects over the kernel's
  forward [flags] out LISTEN TO   listens on the kernel's sockets, and connects over unet's

example:
  forward in 10.0.0.1:5432 127.0.0.1:5432

flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "forward:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var cfg unet.Config
	if err := cfg.FromEnv(); err != nil {
		return err
	}
	cfg.RegisterFlags(flag.CommandLine)
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage); flag.PrintDefaults() }
	flag.Parse()
	args := flag.Args()
	if len(args) != 3 {
		return errors.New("want in or out, and two addresses (see forward --help)")
	}
	network, err := unet.OpenNetwork(ctx, cfg, unet.Kernel())
	if err != nil {
		return err
	}
	defer network.Close()
	from, to := unet.Network(network), unet.Kernel()
	switch args[0] {
	case "in":
	case "out":
		from, to = to, from
	default:
		return fmt.Errorf("unknown command %q (see forward --help)", args[0])
	}
	listener, err := from.Listen(ctx, "tcp", args[1])
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())
	return forward(ctx, listener, to.DialContext, args[2])
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// forward connects each connection of a listener with one to an address, until ctx ends. It
// returns when all are closed.
func forward(ctx context.Context, listener net.Listener, dial dialFunc, to string) error {
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	var open sync.WaitGroup
	defer open.Wait()
	for {
		client, err := listener.Accept()
		if err != nil {
			return err
		}
		open.Go(func() {
			defer client.Close()
			server, err := dial(ctx, "tcp", to)
			if err != nil {
				fmt.Fprintln(os.Stderr, "forward:", err)
				return
			}
			defer server.Close()
			defer context.AfterFunc(ctx, func() { client.Close(); server.Close() })()
			join(client, server)
		})
	}
}

// join copies in both directions until both have ended. The end of one direction is passed on,
// and the other one stays open. An error ends both.
func join(a, b net.Conn) {
	var other sync.WaitGroup
	other.Go(func() { copyAndClose(a, b) })
	copyAndClose(b, a)
	other.Wait()
}

func copyAndClose(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		to.Close()
		from.Close()
		return
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
	}
}
