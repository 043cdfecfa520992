// Rkv is a key-value store in memory whose lookups are one-sided RDMA READs: the server's program
// takes no part in them. Updates are messages to it.
//
//	rkv serve --listen 10.0.0.1:7600
//	rkv put --to 10.0.0.1:7600 greeting hello
//	rkv get --to 10.0.0.1:7600 greeting
//	rkv bench --to 10.0.0.1:7600 --clients 1,16
//
// Both sides need a running unetd and no privilege, and own UDP port 4791 of their address. The
// store is package kv. bench measures lookups by READ beside lookups by a request and its
// reply over UDP, which the server answers from the same table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/examples/rkv/kv"
	"github.com/unet-go/unet/verbs"
)

const usage = `usage:
  rkv serve  [flags] --listen ADDR:PORT
  rkv get    [flags] --to ADDR:PORT KEY...
  rkv put    [flags] --to ADDR:PORT KEY VALUE
  rkv delete [flags] --to ADDR:PORT KEY
  rkv bench  [flags] --to ADDR:PORT

serve keeps the table in memory until SIGTERM or an interrupt. get looks keys up by READs. bench
puts keys, and measures lookups a second by READ and by request and reply over UDP, in turns.

examples:
  rkv serve --listen 10.0.0.1:7600 --slots 100000 --slot-size 128
  rkv put --to 10.0.0.1:7600 greeting hello
  rkv get --to 10.0.0.1:7600 greeting
  rkv bench --to 10.0.0.1:7600 --clients 1,16 --json

flags:
`

type options struct {
	socket string
	wait   endpoint.WaitMode
	addr   netip.AddrPort
	table  kv.Config
	bench  benchOptions
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "rkv:", strings.TrimPrefix(err.Error(), "rkv: "))
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("rkv", flag.ExitOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage); flags.PrintDefaults() }
	wrong := func(format string, args ...any) error {
		return fmt.Errorf(format+" (see rkv --help)", args...)
	}
	o := options{bench: benchOptions{clients: []int{1, 16}}}
	flags.StringVar(&o.socket, "socket", unet.DefaultSocket, "`path` of unetd's socket")
	flags.Func("wait", "how blocked calls wait: `mode` spin, adaptive (default) or block", func(s string) (err error) {
		o.wait, err = endpoint.ParseWaitMode(s)
		return err
	})
	flags.TextVar(&o.addr, "listen", netip.AddrPort{}, "serve: `address:port` to listen on")
	flags.TextVar(&o.addr, "to", netip.AddrPort{}, "`address:port` of the server")
	flags.IntVar(&o.table.Slots, "slots", 65536, "serve: `number` of slots of the table")
	flags.IntVar(&o.table.SlotSize, "slot-size", 256, "serve: `bytes` of a slot: the key, the value and 32")
	flags.IntVar(&o.table.MaxClients, "max-clients", 256, "serve: `number` of clients at a time")
	flags.Func("clients", "bench: `numbers` of clients, with commas (default 1,16)", func(s string) error {
		o.bench.clients = nil
		for f := range strings.SplitSeq(s, ",") {
			n, err := strconv.Atoi(f)
			if err != nil || n < 1 {
				return errors.New("want numbers of at least 1")
			}
			o.bench.clients = append(o.bench.clients, n)
		}
		return nil
	})
	flags.DurationVar(&o.bench.duration, "duration", time.Second, "bench: `time` of a round")
	flags.IntVar(&o.bench.rounds, "rounds", 3, "bench: `number` of rounds of each kind")
	flags.IntVar(&o.bench.keys, "keys", 1000, "bench: `number` of keys")
	flags.IntVar(&o.bench.value, "value", 64, "bench: `bytes` of a value")
	flags.BoolVar(&o.bench.json, "json", false, "bench: print JSON")

	var command string
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		command, args = args[0], args[1:]
	}
	flags.Parse(args)
	need := map[string][2]int{"serve": {0, 0}, "get": {1, 1000}, "put": {2, 2}, "delete": {1, 1}, "bench": {0, 0}}
	n, ok := need[command]
	address := "--to"
	if command == "serve" {
		address = "--listen"
	}
	b := o.bench
	switch {
	case command == "":
		return wrong("want serve, get, put, delete or bench")
	case !ok:
		return wrong("unknown command %q", command)
	case !o.addr.IsValid():
		return wrong("%s: %s is missing", command, address)
	case flags.NArg() < n[0] || flags.NArg() > n[1]:
		return wrong("%s: %d arguments after the flags", command, flags.NArg())
	case b.duration <= 0 || b.rounds < 1 || b.keys < 1 || b.value < 0:
		return wrong("bench: --duration, --rounds and --keys are above 0, --value is not below")
	}

	host, err := unet.Open(ctx, unet.Config{Socket: o.socket, HostConfig: unet.HostConfig{Wait: o.wait}})
	if err != nil {
		return err
	}
	defer host.Close()
	rdma, err := verbs.Open(ctx, host, verbs.Config{})
	if err != nil {
		return err
	}
	defer rdma.Close()
	switch command {
	case "serve":
		return serve(ctx, host, rdma, o)
	case "bench":
		return bench(ctx, host, rdma, o.addr, o.bench, os.Stdout)
	}
	client, err := kv.Dial(ctx, rdma, o.addr)
	if err != nil {
		return err
	}
	defer client.Close()
	switch command {
	case "put":
		return client.Put(flags.Arg(0), []byte(flags.Arg(1)))
	case "delete":
		return client.Delete(flags.Arg(0))
	}
	for _, key := range flags.Args() {
		value, err := client.Get(key, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		fmt.Printf("%s\n", value)
	}
	return nil
}
