//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
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
		Use:   "status [FILTER]",
		Short: "Show endpoints and their sockets, as ss does",
		Long: `Status shows the endpoints of the unetd at the socket: owner, process, tags, queues,
frames, what was dropped and why, and the sockets of the process: state, queues in bytes,
addresses, round trip and its variance, congestion window in bytes, segments sent again,
and bytes (of UDP, datagrams) in and out. The process publishes its sockets itself, at
most ten times a second. It may publish false values, but sockets at its own tags only.

FILTER is in the language of ss(8):
  state STATE, exclude STATE    established, listening, unconnected, connected, ...
  src ADDRESS, dst ADDRESS      10.0.0.0/8, fd00::1, 10.0.0.1:80, [fd00::1]:80
  sport = :80, dport > 1023     = != < <= > >=, or eq ne lt le gt ge
  endpoint 7, user alice, pid 4711
  and, or, not, ( )             and may be left out
Quote what the shell would read. An endpoint is shown if one of its sockets or tags matches.
` + whoMayAsk,
		Example: `  unetd status
  unetd status -t state established dst 10.0.0.0/8
  unetd status 'sport = :80'              # who holds port 80?
  unetd status --watch=2 endpoint 7
  unetd status --json | jq '.[].sockets[]?'`,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return f.complete(args), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
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
	filter, err := show.ParseFilter(strings.Join(args, " "))
	if err != nil {
		return err
	}
	if f.watch != 0 && !(f.watch >= 0.1 && f.watch <= 86400) { // also NaN
		return fmt.Errorf("--watch %v: want 0.1 to 86400 seconds", f.watch)
	}
	out := cmd.OutOrStdout()
	o := show.StatusOptions{Filter: filter, TCP: f.tcp, UDP: f.udp, Listen: f.listening, Numeric: f.numeric}
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
		all, err := control.Status(ctx, f.socket)
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

// complete are the words that may follow in a filter, with a description each.
func (f *statusFlags) complete(args []string) (words []string) {
	last := ""
	if len(args) > 0 {
		last = args[len(args)-1]
	}
	switch last {
	case "state", "exclude":
		return show.States
	case "endpoint":
		return endpointWords(f.socket)
	}
	if len(args) > 0 {
		words = append(words, "and", "or")
	}
	return append(words, show.FilterWords...)
}
