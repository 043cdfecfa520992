// Pingpong sends a message to and fro over a queue pair of RDMA verbs. It is the peer of
// rdma-core's ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong and ibv_srq_pingpong, of another
// pingpong, and prints what they print. It begins as a server, or with an address as its client:
//
//	pingpong                          |  ibv_rc_pingpong -g 1
//	ibv_ud_pingpong -g 1 10.0.0.1     |  pingpong --type ud 10.0.0.2
//
// The two agree on their queue pairs over TCP, which runs on unet, too. The peer's -g chooses the
// GID of its IPv4 address: 1 with Soft-RoCE.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/unet-go/unet"
)

const usage = `usage: pingpong [options] [HOST]

The options are those of ibv_rc_pingpong, -q of ibv_srq_pingpong:
`

// options are the options of a run.
type options struct {
	host   string // the server's address; "" at the server
	socket string
	kind   string // rc, uc, ud or srq
	port   int
	size   int // bytes of a message
	mtu    int // path MTU, bytes
	depth  int // receives that are posted
	iters  int // messages each way
	qps    int // queue pairs, with srq
	events bool
	check  bool
}

func main() {
	var o options
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage); flag.PrintDefaults() }
	flag.StringVar(&o.socket, "socket", unet.DefaultSocket, "`path` of unetd's socket")
	flag.StringVar(&o.kind, "type", "rc", "`kind` of queue pair: rc, uc, ud; srq is rc with a shared receive queue")
	flag.IntVar(&o.port, "p", 18515, "TCP `port` of the server")
	flag.IntVar(&o.size, "s", 4096, "`bytes` in a message (ud: at most what a packet takes)")
	flag.IntVar(&o.mtu, "m", 1024, "path MTU in `bytes`, of rc and uc")
	flag.IntVar(&o.depth, "r", 500, "`number` of receives posted at a time")
	flag.IntVar(&o.iters, "n", 1000, "`number` of messages each way")
	flag.IntVar(&o.qps, "q", 16, "`number` of queue pairs, with srq")
	flag.BoolVar(&o.events, "e", false, "sleep until a completion comes (default: poll)")
	flag.BoolVar(&o.check, "c", false, "at the client: check every byte that comes back")
	flag.Parse()
	o.host = flag.Arg(0)
	if err := o.validate(flag.NArg()); err != nil {
		fmt.Fprintln(os.Stderr, "pingpong:", err)
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "pingpong:", err)
		os.Exit(1)
	}
}
