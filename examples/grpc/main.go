// Grpc serves and calls the health service of gRPC over unet's TCP: a unary call (check) and a
// stream (watch). Only the listener and the dialer are unet's.
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
	"syscall"

	"github.com/unet-go/unet"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

const usage = `usage:
  grpc [flags] serve ADDR:PORT
  grpc [flags] check ADDR:PORT   prints the status
  grpc [flags] watch ADDR:PORT   prints each status, until the server ends

flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "grpc:", err)
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
	if len(args) != 2 {
		return errors.New("want serve, check or watch, and an address (see grpc --help)")
	}
	network, err := unet.OpenNetwork(ctx, cfg, unet.Kernel())
	if err != nil {
		return err
	}
	defer network.Close()
	switch command, address := args[0], args[1]; command {
	case "serve":
		listener, err := network.Listen(ctx, "tcp", address)
		if err != nil {
			return err
		}
		fmt.Println("listening on", listener.Addr())
		return serve(ctx, listener)
	case "check", "watch":
		return call(ctx, network.DialContext, command, address, os.Stdout)
	default:
		return fmt.Errorf("unknown command %q (see grpc --help)", command)
	}
}

// serve answers calls until ctx ends. Then it reports the end to the watchers, and completes the calls that
// have begun.
func serve(ctx context.Context, listener net.Listener) error {
	service := health.NewServer()
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	grpc_health_v1.RegisterHealthServer(server, service)
	defer context.AfterFunc(ctx, func() {
		service.Shutdown()
		server.Stop()
	})()
	return server.Serve(listener)
}

// call makes one call, and writes each status that it receives to w.
func call(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error), command, address string, w io.Writer) error {
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := grpc_health_v1.NewHealthClient(conn)
	request := &grpc_health_v1.HealthCheckRequest{}
	if command == "check" {
		reply, err := client.Check(ctx, request)
		if err == nil {
			fmt.Fprintln(w, reply.Status)
		}
		return err
	}
	stream, err := client.Watch(ctx, request)
	for err == nil {
		var reply *grpc_health_v1.HealthCheckResponse
		if reply, err = stream.Recv(); err == nil {
			fmt.Fprintln(w, reply.Status)
		}
	}
	return err
}
