// Rping reads, writes and sends over a connection that the RDMA connection manager has made. It
// is the peer of rdma-core's rping, or of another rping, and prints what it prints:
//
//	rping -s -a 10.0.0.1 -v           |  rping -c -a 10.0.0.1 -v -C 10
//
// For each ping the client sends where its text is. The server READs it and says so, the client
// sends where the text is to go, the server WRITEs it there and says so.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/verbs"
)

const usage = `usage: rping -s | -c -a ADDR [options]

The options are those of rdma-core's rping:
`

// options are the options of a run.
type options struct {
	server, client bool
	addr           netip.Addr // the server's
	socket         string
	port           int
	size           int // bytes of text, with the zero at its end
	count          int // pings; 0: without end
	verbose        bool
	check          bool
}

func main() {
	var o options
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage); flag.PrintDefaults() }
	flag.StringVar(&o.socket, "socket", unet.DefaultSocket, "`path` of unetd's socket")
	flag.BoolVar(&o.server, "s", false, "be the server, for one client")
	flag.BoolVar(&o.client, "c", false, "be the client")
	flag.TextVar(&o.addr, "a", netip.Addr{}, "`address` of the server")
	flag.IntVar(&o.port, "p", 7174, "`port` of the server")
	flag.IntVar(&o.size, "S", 64, "`bytes` of text, 32 to 65536; the server's at least the client's")
	flag.IntVar(&o.count, "C", 0, "`number` of pings (default: without end)")
	flag.BoolVar(&o.verbose, "v", false, "print the text")
	flag.BoolVar(&o.check, "V", false, "check the text that comes back")
	flag.Parse()
	if o.server == o.client || o.client && !o.addr.Is4() || o.size < 32 || o.size > 65536 || o.port < 1 || o.port > 65535 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "rping:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	host, err := unet.Open(ctx, unet.Config{Socket: o.socket})
	if err != nil {
		return err
	}
	defer host.Close()
	rdma, err := verbs.Open(ctx, host, verbs.Config{})
	if err != nil {
		return err
	}
	defer rdma.Close()
	defer context.AfterFunc(ctx, func() { host.Close() })()
	return play(ctx, rdma, o, os.Stdout)
}

// play is all of a run but the opening of the host.
func play(ctx context.Context, rdma *verbs.Context, o options, out io.Writer) error {
	p := &rping{options: o, out: out}
	err := p.open(rdma)
	if err != nil {
		return err
	}
	if o.client {
		if p.conn, err = rdma.Dial(ctx, netip.AddrPortFrom(o.addr, uint16(o.port)), p.qp, nil); err != nil {
			return err
		}
		defer p.conn.Close()
		return p.runClient()
	}
	if o.addr.IsValid() && o.addr != rdma.Addr() {
		return fmt.Errorf("the address of this host is %v", rdma.Addr())
	}
	listener, err := rdma.Listen(uint16(o.port), 3)
	if err != nil {
		return err
	}
	defer listener.Close()
	fmt.Fprintln(out, "listening on", listener.Addr())
	request, err := listener.Accept(ctx)
	if err != nil {
		return err
	}
	if p.conn, err = request.Accept(ctx, p.qp, nil); err != nil {
		return err
	}
	defer p.conn.Close()
	return p.runServer()
}
