package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/cli"
	"github.com/unet-go/unet/bench/internal/load"
	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/service"
)

// dialTimeout limits the opening of all connections and their first requests.
const dialTimeout = 30 * time.Second

func newAsk() *cobra.Command {
	var n network
	defaults := plan.DefaultServices()
	connections, o := 1, load.Options{WarmUp: defaults.WarmUp, Duration: defaults.Duration}
	cmd := &cobra.Command{
		Use:   "ask SERVICE ADDRESS:PORT",
		Short: "Measure a service as its client",
		Long: `ask opens connections, sends a request on each, and the next one when it has the answer.
It writes one line of JSON: answers of the measured time, failed and lost requests, times in
nanoseconds, the answers of the connections with the fewest and the most, and the processor
time of this process and of --server-pid.`,
		Example: `  unetservice ask nats 10.0.0.1:9000 --connections 64 --duration 5s`,
		Args:    cli.Args(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			s, err := service.ByName(args[0])
			switch {
			case err != nil:
				return cli.Usage(err)
			case connections < 1:
				return cli.Usage(fmt.Errorf("--connections %d: want at least 1", connections))
			case o.WarmUp < 0:
				return cli.Usage(fmt.Errorf("--warm-up %v: want 0 or more", o.WarmUp))
			case o.Duration <= 0:
				return cli.Usage(fmt.Errorf("--duration %v: want more than 0", o.Duration))
			case o.Server < 0:
				return cli.Usage(fmt.Errorf("--server-pid %d: want the number of a process", o.Server))
			}
			opened, err := n.open(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, opened.Close()) }()
			r, err := ask(cmd.Context(), s, opened, args[1], connections, o)
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
		},
	}
	n.flags(cmd)
	f := cmd.Flags()
	f.IntVar(&connections, "connections", connections, "connections that ask at the same time")
	f.DurationVar(&o.WarmUp, "warm-up", o.WarmUp, "time before the measured one")
	f.DurationVar(&o.Duration, "duration", o.Duration, "measured time")
	f.IntVar(&o.Server, "server-pid", 0, "the server's process on this machine, for its processor time; 0: none")
	return cmd
}

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
