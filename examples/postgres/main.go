// Postgres sends a query to a PostgreSQL server over unet's TCP, with pgx. Only the dialer and the
// resolver are unet's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/unet-go/unet"
)

const usage = `usage:
  postgres [flags] URL QUERY

example:
  postgres postgres://user@10.0.0.2/database 'select now()'

flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "postgres:", err)
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
	if flag.NArg() != 2 {
		return errors.New("want a URL and a query (see postgres --help)")
	}
	network, err := unet.OpenNetwork(ctx, cfg, unet.Kernel())
	if err != nil {
		return err
	}
	defer network.Close()
	conn, err := connect(ctx, network, flag.Arg(0))
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	rows, err := conn.Query(ctx, flag.Arg(1))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return err
		}
		fmt.Println(values...)
	}
	return rows.Err()
}

// connect opens a connection on a network.
func connect(ctx context.Context, network unet.Network, url string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.DialFunc, config.LookupFunc = network.DialContext, network.Resolver().LookupHost
	return pgx.ConnectConfig(ctx, config)
}
