// Command unetservice is the server and the client of the services that unetbench services
// measures, on unet or on the kernel's sockets. It is a program of its own so that gRPC, NATS and
// QUIC are not in the memory of unetbench's processes. See unetservice --help.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/cli"
	"github.com/unet-go/unet/bench/internal/load"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/service"
)

func main() { cli.Main(newCommand()) }

func newCommand() *cobra.Command {
	root := cli.Root(&cobra.Command{
		Use:   "unetservice",
		Short: "Server and client of the services that unetbench measures",
		Long: `unetservice serves and asks services of ordinary Go libraries on unet, or with --kernel on
the kernel's sockets. unetbench services starts it; by hand it measures between two machines.

Services:
` + plan.AboutServices(),
		Example: `  unetservice serve grpc 10.0.0.1:9000
  unetservice ask grpc 10.0.0.1:9000 --connections 16
  unetservice ask grpc 10.0.0.1:9000 --connections 16 --kernel`,
		Args: cli.Args(0),
		RunE: cli.Missing("which command? serve or ask"),
	})
	root.AddCommand(newServe(), newAsk())
	return root
}

// onNetwork completes a command with the arguments SERVICE and ADDRESS:PORT: flags that choose the
// network, which run gets opened. Without --kernel it is unet's, or an error: a measurement must not
// use another network than the one it names.
func onNetwork(cmd *cobra.Command, check func(s service.Service, name string) error, run func(cmd *cobra.Command, s service.Service, n unet.Network, address string) error) *cobra.Command {
	var kernel bool
	var cfg unet.Config
	cmd.Flags().BoolVar(&kernel, "kernel", false, "use the kernel's sockets")
	settings := flag.NewFlagSet("", flag.ContinueOnError)
	cfg.RegisterFlags(settings)
	cmd.Flags().AddGoFlagSet(settings)
	cmd.Args = cli.Args(2)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		s, err := service.ByName(args[0])
		if err == nil {
			err = check(s, args[0])
		}
		if err != nil {
			return cli.Usage(err)
		}
		opened := &unet.Opened{Network: unet.Kernel()}
		if !kernel {
			if opened, err = unet.OpenNetwork(cmd.Context(), cfg, nil); err != nil {
				return err
			}
		}
		defer func() { err = errors.Join(err, opened.Close()) }()
		return run(cmd, s, opened, args[1])
	}
	return cmd
}

func newServe() *cobra.Command {
	return onNetwork(&cobra.Command{
		Use:   "serve SERVICE ADDRESS:PORT",
		Short: "Answer until SIGTERM or an interrupt",
		Long: `serve writes a line when it accepts connections, and answers until SIGTERM or an interrupt.
The server of redis is the program resp of examples/.`,
		Example: `  unetservice serve http 10.0.0.1:9000
  unetservice serve http 10.0.0.1:9000 --kernel`,
	}, func(s service.Service, name string) error {
		if s.Serve == nil {
			return fmt.Errorf("the server of %s is the program resp of examples/", name)
		}
		return nil
	}, func(cmd *cobra.Command, s service.Service, n unet.Network, address string) error {
		return s.Serve(cmd.Context(), n, address, func(a net.Addr) { fmt.Fprintln(cmd.OutOrStdout(), "listening on", a) })
	})
}

func newAsk() *cobra.Command {
	defaults := plan.DefaultServices()
	connections, o := 1, load.Options{WarmUp: defaults.WarmUp, Duration: defaults.Duration}
	cmd := &cobra.Command{
		Use:   "ask SERVICE ADDRESS:PORT",
		Short: "Measure a service as its client",
		Long: `ask opens connections, sends a request on each, and the next one when it has the answer.
It writes one line of JSON: answers of the measured time, failed and lost requests, times of a
request, the processor time of this process and of --server-pid for each, and the answers of the
connections with the fewest and the most.`,
		Example: `  unetservice ask nats 10.0.0.1:9000 --connections 64 --duration 5s`,
	}
	f := cmd.Flags()
	f.IntVar(&connections, "connections", connections, "connections that ask at the same time")
	f.DurationVar(&o.WarmUp, "warm-up", o.WarmUp, "time before the measured one")
	f.DurationVar(&o.Duration, "duration", o.Duration, "measured time")
	f.IntVar(&o.Server, "server-pid", 0, "the server's process on this machine, for its processor time; 0: none")
	return onNetwork(cmd, func(service.Service, string) error {
		switch {
		case connections < 1:
			return fmt.Errorf("--connections %d: want at least 1", connections)
		case o.WarmUp < 0:
			return fmt.Errorf("--warm-up %v: want 0 or more", o.WarmUp)
		case o.Duration <= 0:
			return fmt.Errorf("--duration %v: want more than 0", o.Duration)
		case o.Server < 0:
			return fmt.Errorf("--server-pid %d: want the number of a process", o.Server)
		}
		return nil
	}, func(cmd *cobra.Command, s service.Service, n unet.Network, address string) error {
		r, err := ask(cmd.Context(), s, n, address, connections, o)
		if err != nil {
			return err
		}
		return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
	})
}

// dialTimeout limits the opening of all connections and their first requests.
const dialTimeout = 30 * time.Second

// ask opens the connections and measures over them.
func ask(ctx context.Context, s service.Service, n unet.Network, address string, connections int, o load.Options) (load.Result, error) {
	dialing, cancel := context.WithTimeoutCause(ctx, dialTimeout, errors.New("the server does not answer"))
	defer cancel()
	var conns []load.Conn
	for i := range connections {
		c, err := dial(dialing, s, n, address)
		if err != nil {
			for _, c := range conns {
				c.Close()
			}
			return load.Result{}, fmt.Errorf("connection %d: %w", i+1, err)
		}
		conns = append(conns, c)
	}
	return load.Run(ctx, conns, o)
}

// dial opens a connection and sends a request: some clients connect only then.
func dial(ctx context.Context, s service.Service, n unet.Network, address string) (load.Conn, error) {
	c, err := s.Dial(ctx, n, address)
	if err == nil {
		asked := context.AfterFunc(ctx, func() { c.Close() })
		if err = c.Ask(); err == nil && asked() {
			return c, nil
		}
		c.Close()
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nil, err
}
