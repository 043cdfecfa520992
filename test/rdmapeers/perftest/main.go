//go:build linux

// Perftest is the peer of perftest's programs ib_write_lat, ib_read_lat, ib_atomic_lat, ib_send_bw
// and ib_write_bw, for the tests of package rdmapeers: it takes part in their protocol, checks what
// can be checked, and measures nothing.
//
//	perftest -n 100 write_lat                 |  ib_write_lat -x 1 -n 100 10.0.0.1
//	ib_read_lat -R -x 1 -n 100                |  perftest -R -n 100 read_lat 10.0.0.3
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/verbs"
)

// port is that of perftest's servers, for TCP and for the connection manager.
const port = 18515

// tests has, for each test, the function that runs after the exchanges of all programs, and how
// often dests are exchanged before and after the queue pairs are connected.
var tests = map[string]struct {
	run           func(*peer) error
	before, after int
}{
	"write_lat":  {(*peer).writeLat, 2, 2},
	"read_lat":   {(*peer).readLat, 2, 2},
	"atomic_lat": {(*peer).atomicLat, 2, 2},
	"send_bw":    {(*peer).sendBW, 1, 2},
	"write_bw":   {(*peer).writeBW, 1, 2},
}

func main() {
	p := &peer{}
	socket := flag.String("socket", unet.DefaultSocket, "`path` of unetd's socket")
	flag.BoolVar(&p.cm, "R", false, "connect by the RDMA connection manager")
	flag.IntVar(&p.n, "n", 1000, "`number` of operations")
	flag.IntVar(&p.size, "s", 64, "`bytes` of an operation")
	flag.Parse()
	test, known := tests[flag.Arg(0)]
	if !known || flag.NArg() > 2 || p.n < 1 || p.size < 8 {
		fmt.Fprintln(os.Stderr, "usage: perftest [options] write_lat | read_lat | atomic_lat | send_bw | write_bw [HOST]")
		flag.PrintDefaults()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := func() error {
		host, err := unet.Open(ctx, unet.Config{Socket: *socket})
		if err != nil {
			return err
		}
		defer host.Close()
		defer context.AfterFunc(ctx, func() { host.Close() })()
		if p.ctx, err = verbs.Open(ctx, host, verbs.Config{}); err != nil {
			return err
		}
		defer p.ctx.Close()
		if err := p.open(); err != nil {
			return err
		}
		if err := p.connect(ctx, host, flag.Arg(1), test.before, test.after); err != nil {
			return err
		}
		return test.run(p)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "perftest:", err)
		os.Exit(1)
	}
	fmt.Printf("%d operations of %d bytes\n", p.n, p.size)
}

// pageSize is the unit in which the programs lay out their memory.
const pageSize = 4096

// depth is how many operations of the bandwidth tests are posted.
const depth = 64

// access is what the other side may do.
const access = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// reads is how many READs and atomics are served at a time.
const reads = 16

// peer is one side of a test.
type peer struct {
	cm     bool
	n      int
	size   int
	client bool

	ctx       *verbs.Context
	pd        *verbs.PD
	mr        *verbs.MR // what is sent, and behind it what the other side accesses
	half      int       // bytes of each
	qp        *verbs.QP
	send      *verbs.CQ
	recv      *verbs.CQ
	comm      *comm
	own, them dest
}

func (p *peer) open() (err error) {
	p.pd = p.ctx.AllocPD()
	p.half = (max(p.size, pageSize) + 7) &^ 7 // words are aligned
	if p.mr, err = p.pd.RegMR(make([]byte, 2*p.half), verbs.AccessLocalWrite|access); err != nil {
		return err
	}
	p.qp, p.send, p.recv, err = p.newQP()
	p.own = dest{reads, p.qp.Num(), p.qp.PSN(), p.mr.RKey(), p.mr.Addr() + uint64(p.half), p.ctx.Addr()}
	return err
}

// newQP makes a queue pair in INIT.
func (p *peer) newQP() (qp *verbs.QP, send, recv *verbs.CQ, err error) {
	if send, err = p.ctx.CreateCQ(depth, nil); err != nil {
		return
	}
	if recv, err = p.ctx.CreateCQ(depth, nil); err != nil {
		return
	}
	qp, err = p.ctx.CreateQP(p.pd, verbs.QPInit{
		Type: verbs.RC, SendCQ: send, RecvCQ: recv, SqSigAll: true,
		Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err == nil {
		err = qp.Init(access)
	}
	return
}

// connect does what all programs begin with.
func (p *peer) connect(ctx context.Context, host *unet.Host, server string, before, after int) error {
	p.client = server != ""
	var cmPort func(qp *verbs.QP) error
	if p.cm {
		var err error
		if cmPort, err = p.cmDialer(ctx, server); err != nil {
			return err
		}
		qp, send, recv, err := p.newQP()
		if err != nil {
			return err
		}
		c, err := newMessages(p.pd, qp, send, recv)
		if err != nil {
			return err
		}
		if err := cmPort(qp); err != nil {
			return err
		}
		p.comm = &comm{c, p.client, true}
	} else {
		c, err := openTCP(ctx, host, server)
		if err != nil {
			return err
		}
		p.comm = &comm{c, p.client, false}
	}
	mtu, err := p.comm.agree(int(p.ctx.ActiveMTU()))
	if err != nil {
		return err
	}
	if p.cm {
		if _, err := p.comm.shake(p.own); err != nil { // the server listens from now on
			return err
		}
		if err := cmPort(p.qp); err != nil {
			return err
		}
		before++
	}
	if err := p.shake(before); err != nil {
		return err
	}
	if !p.cm {
		if err := p.connectByHand(verbs.MTU(mtu)); err != nil {
			return err
		}
	}
	return p.shake(after)
}

// shake exchanges dests n times.
func (p *peer) shake(n int) (err error) {
	for range n {
		if p.them, err = p.comm.shake(p.own); err != nil {
			return err
		}
	}
	return nil
}

func openTCP(ctx context.Context, host *unet.Host, server string) (net.Conn, error) {
	if server != "" {
		return host.DialContext(ctx, "tcp", net.JoinHostPort(server, strconv.Itoa(port)))
	}
	l, err := host.Listen(ctx, "tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	fmt.Println("listening on", l.Addr())
	return l.Accept()
}

// cmDialer returns a function that connects a queue pair by the connection manager.
func (p *peer) cmDialer(ctx context.Context, server string) (func(*verbs.QP) error, error) {
	if server != "" {
		addr, err := netip.ParseAddr(server)
		if err != nil {
			return nil, err
		}
		first := true
		return func(qp *verbs.QP) error {
			_, err := p.ctx.Dial(ctx, netip.AddrPortFrom(addr, port), qp, nil)
			// The server listens for its second connection soon after the first one's exchange.
			for reject := (*verbs.RejectError)(nil); !first && errors.As(err, &reject); {
				if err := qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.QPState); err != nil {
					return err
				}
				if err := qp.Init(access); err != nil {
					return err
				}
				_, err = p.ctx.Dial(ctx, netip.AddrPortFrom(addr, port), qp, nil)
			}
			first = false
			return err
		}, nil
	}
	l, err := p.ctx.Listen(port, 2)
	if err != nil {
		return nil, err
	}
	fmt.Println("listening on", l.Addr())
	return func(qp *verbs.QP) error {
		request, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		_, err = request.Accept(ctx, qp, nil)
		return err
	}, nil
}

func (p *peer) connectByHand(mtu verbs.MTU) error {
	attr := verbs.QPAttr{
		State: verbs.StateRTR, AH: verbs.AHAttr{Dst: p.them.addr.As4()}, PathMTU: mtu, DestQPN: p.them.qpn, RQPSN: p.them.psn,
		MaxDestRDAtomic: reads, MinRNRTimer: 12,
		SQPSN: p.own.psn, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: uint8(min(p.them.reads, reads)),
	}
	err := p.qp.Modify(attr, verbs.QPState|verbs.QPAV|verbs.QPPathMTU|verbs.QPDestQPN|verbs.QPRQPSN|verbs.QPMaxDestRDAtomic|verbs.QPMinRNRTimer)
	if err != nil {
		return err
	}
	attr.State = verbs.StateRTS
	return p.qp.Modify(attr, verbs.QPState|verbs.QPSQPSN|verbs.QPTimeout|verbs.QPRetryCnt|verbs.QPRNRRetry|verbs.QPMaxQPRDAtomic)
}
