package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/bench/internal/plan"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

func connectSelection() plan.Selection {
	s := defaultSelection(workload.Connect)
	s.Transports = transport.Connecting()
	s.N, s.WarmUp, s.Limit, s.Connections = 2_000, 200, time.Second, 1
	s.Address = plan.Own
	s.Patience = 2 * time.Second // a SYN that is lost comes again after one
	return s
}

func newConnect(c *common) *cobra.Command {
	s := connectSelection()
	cmd := &cobra.Command{
		Use:   "connect",
		Short: "Connections opened and closed a second",
		Long: `connect opens and closes connections of TCP, one after the other. One is: the
client dials, sends 64 bytes, reads 64 bytes in answer, closes its side, reads the
end of file with which the server closes the other, and closes the connection. The
server accepts, reads, answers, reads the end of file, closes, and accepts again.
The clock is read once a connection; percentiles are exact. A connection that is
not done in time is counted as late, one that ends with an error as failed, and
the next one is opened.

unet's client has an address of its own, as the kernel has, and so all of its
ports. With --address shared it has the interface's, and claims ports from unetd,
64 at a time. kernel-tcp makes raw non-blocking system calls and spins. go-tcp is
package net's Dialer and Listener.

With --connections above 1 so many goroutines of the client do this at once, and
the server has a goroutine for each connection. Those of kernel-tcp take turns to
spin, which costs it system calls in vain.

Each connection leaves its pair of ports in TIME-WAIT at the client: for a minute
in the kernel, for two seconds in unet. So rounds are short, and each has a server
port of its own: with up to 20,000 connections none runs out of the 28,232 local
ports that both choose from.`,
		Example: `  unetbench connect
  unetbench connect --transport tcp,kernel-tcp --connections 16
  unetbench connect --n 10000 --limit 5s --rounds 3 --attach port`,
		Args: noArguments,
	}
	selectionFlags(cmd, &s)
	f := cmd.Flags()
	f.IntVar(&s.Connections, "connections", s.Connections, "connections at a time")
	f.StringVar(&s.Address, "address", s.Address, "what unet's client has: own (an address), shared (the interface's, with ports from blocks)")
	f.DurationVar(&s.Limit, "limit", s.Limit, "end a round after this time, with fewer connections")
	for flag, usage := range map[string]string{
		"transport": "transports to measure: those of TCP",
		"size":      "sizes of request and answer, bytes",
		"n":         "connections a round, at most",
		"warm-up":   "connections before the measured ones",
	} {
		f.Lookup(flag).Usage = usage
	}
	cmd.RunE = c.measure(&s)
	return cmd
}
