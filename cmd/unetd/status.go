//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/show"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
)

// statusFlags are the flags of unetd status.
type statusFlags struct {
	socket              string
	asJSON, rates       bool
	tcp, udp, listening bool
	numeric             bool
	watch               float64 // seconds; 0: once
}

func newStatus() *cobra.Command {
	var f statusFlags
	cmd := &cobra.Command{
		Use:   "status [ENDPOINT]",
		Short: "Show endpoints and their sockets, as ss does",
		Long: `Status shows the endpoints of the unetd at the socket: owner, process, tags, queues,
frames, what was dropped and why, and the sockets of the process: state, queues in bytes,
addresses, round trip and its variance, congestion window in bytes, segments sent again,
and bytes (of UDP, datagrams) in and out. The process publishes its sockets itself, at
most ten times a second. It may publish false values, but sockets at its own tags only.

Frames that the endpoint exchanges with other endpoints of this host by memory paths are
in the line "memory" only: how many paths it has, and the frames by them.

ENDPOINT is a number from unetd list. A socket is one line, so grep finds an address or a
state. jq chooses from the JSON.
` + whoMayAsk,
		Example: `  unetd status
  unetd status -tl
  unetd status -t | grep 'established.*:443 '
  unetd status --watch=2 7
  unetd status --json | jq '.[] | select(.uid == 1000) | .sockets[]?'`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: firstIsEndpoint(&f.socket),
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	socketFlag(cmd, &f.socket)
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "write JSON")
	cmd.Flags().BoolVarP(&f.tcp, "tcp", "t", false, "only TCP")
	cmd.Flags().BoolVarP(&f.udp, "udp", "u", false, "only UDP")
	cmd.Flags().BoolVarP(&f.listening, "listening", "l", false, "only listeners and unconnected sockets")
	cmd.Flags().BoolVarP(&f.numeric, "numeric", "n", false, "no names of users")
	cmd.Flags().BoolVar(&f.rates, "rates", false, "wait for a second, and show frames a second")
	cmd.Flags().Float64Var(&f.watch, "watch", 0, "show it again each so many seconds, with rates")
	cmd.Flags().Lookup("watch").NoOptDefVal = "1"
	return cmd
}

func (f *statusFlags) run(cmd *cobra.Command, args []string) error {
	var id uint64
	if len(args) > 0 {
		var err error
		if id, err = endpointID(args[0]); err != nil {
			return err
		}
	}
	if f.watch != 0 && !(f.watch >= 0.1 && f.watch <= 86400) { // also NaN
		return fmt.Errorf("--watch %v: want 0.1 to 86400 seconds", f.watch)
	}
	out := cmd.OutOrStdout()
	o := show.StatusOptions{Endpoint: id, TCP: f.tcp, UDP: f.udp, Listen: f.listening, Numeric: f.numeric}
	terminal := false
	o.Width, terminal = show.TerminalWidth(out)
	o.Color = terminal && os.Getenv("NO_COLOR") == ""
	interval := time.Duration(f.watch * float64(time.Second))
	if f.rates && interval == 0 {
		interval = time.Second
	}
	ctx := cmd.Context()
	var before []endpoint.Status
	var beforeAt time.Time
	for {
		all, err := control.Operator{Socket: f.socket}.Status(ctx)
		if err != nil {
			return failure{err}
		}
		now := time.Now()
		if before != nil || !f.rates || f.watch != 0 {
			if err := f.write(out, &o, o.Choose(all, before, now.Sub(beforeAt)), before != nil, terminal); err != nil {
				return failure{err}
			}
			if f.watch == 0 {
				return nil
			}
		}
		before, beforeAt = append([]endpoint.Status{}, all...), now
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return failure{context.Cause(ctx)}
		}
	}
}

// write writes one sample. again: it is not the first.
func (f *statusFlags) write(out io.Writer, o *show.StatusOptions, list []show.Shown, again, terminal bool) (err error) {
	switch {
	case f.watch == 0 || f.asJSON:
	case terminal:
		_, err = io.WriteString(out, "\x1b[H\x1b[2J") // the screen is cleared
	case again:
		_, err = io.WriteString(out, "\n")
	}
	switch {
	case err != nil:
		return err
	case f.asJSON:
		return show.StatusJSON(out, list)
	}
	return o.Text(out, list)
}
