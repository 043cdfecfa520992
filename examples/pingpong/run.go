package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/verbs"
)

func (o options) validate(args int) error {
	switch {
	case args > 1:
		return errors.New("more than one host")
	case o.kind != "rc" && o.kind != "uc" && o.kind != "ud" && o.kind != "srq":
		return fmt.Errorf("unknown type %q", o.kind)
	case o.size < 1 || o.depth < 1 || o.iters < 1:
		return errors.New("size, receives and iterations are at least 1")
	case o.kind == "srq" && (o.qps < 1 || o.qps >= srqSlots || o.qps > o.depth):
		return fmt.Errorf("1 to %d queue pairs are possible, and no more than receives", srqSlots-1)
	case o.check && o.host == "":
		return errors.New("the server has nothing to check: it sends back what it receives")
	}
	for mtu := verbs.MTU256; mtu <= verbs.MTU4096; mtu++ {
		if mtu.Bytes() == o.mtu {
			return nil
		}
	}
	return fmt.Errorf("%d bytes are no path MTU", o.mtu)
}

// sendID is the ID of a send; that of a receive is its slot.
const sendID = 1 << 32

// grh is the room for the network header before a datagram (UD).
const grh = 40

// pingpong is one side.
type pingpong struct {
	options
	ctx   context.Context
	out   io.Writer
	cq    *verbs.CQ
	srq   *verbs.SRQ
	mr    *verbs.MR // slots of grh+size bytes, the first one is what the client sends
	pairs []*pair
}

// pair is a queue pair and the peer's.
type pair struct {
	*verbs.QP
	own, peer dest
	ah        *verbs.AH
	slot      int  // of the message that is sent
	next      int  // of the one to be sent next: at the server, what was received
	sending   bool // until the send has completed
	waiting   bool // until a message has come
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
	return play(ctx, host, rdma, o, os.Stdout)
}

// play is all of a run but the opening of the host.
func play(ctx context.Context, host *unet.Host, rdma *verbs.Context, o options, out io.Writer) error {
	p := &pingpong{options: o, ctx: ctx, out: out}
	pd := rdma.AllocPD()
	if err := p.open(rdma, pd, host.Addr()); err != nil {
		return err
	}
	if err := p.exchange(host, func(remote []dest) error { return p.connect(pd, remote) }); err != nil {
		return err
	}
	start := time.Now()
	if err := p.messages(); err != nil {
		return err
	}
	took := time.Since(start).Seconds()
	bytes := 2 * o.size * o.iters
	fmt.Fprintf(out, "%d bytes in %.2f seconds = %.2f Mbit/sec\n", bytes, took, float64(bytes)*8/took/1e6)
	fmt.Fprintf(out, "%d iters in %.2f seconds = %.2f usec/iter\n", o.iters, took, took*1e6/float64(o.iters))
	return nil
}

// open makes the queue pairs, in INIT and with their receives posted.
func (p *pingpong) open(c *verbs.Context, pd *verbs.PD, addr netip.Addr) error {
	n := 1
	if p.kind == "srq" {
		n = p.qps
	}
	var err error
	if p.cq, err = c.CreateCQ(p.depth+n, nil); err != nil {
		return err
	}
	if p.mr, err = pd.RegMR(make([]byte, (1+p.depth)*p.slotSize()), verbs.AccessLocalWrite); err != nil {
		return err
	}
	for i, message := 0, p.message(0); i < len(message); i++ {
		message[i] = byte(i*7 + i>>8)
	}
	if p.kind == "srq" {
		if p.srq, err = pd.CreateSRQ(p.depth, 1); err != nil {
			return err
		}
	}
	init := verbs.QPInit{
		SendCQ: p.cq, RecvCQ: p.cq, SRQ: p.srq, SqSigAll: true,
		Type: map[string]verbs.QPType{"rc": verbs.RC, "srq": verbs.RC, "uc": verbs.UC, "ud": verbs.UD}[p.kind],
		Cap:  verbs.QPCap{MaxSendWR: 1, MaxRecvWR: p.depth, MaxSendSGE: 1, MaxRecvSGE: 1},
	}
	if p.srq != nil {
		init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = 0, 0
	}
	for i := range n {
		q, err := c.CreateQP(pd, init)
		if err != nil {
			return err
		}
		mask := verbs.QPState | verbs.QPAccessFlags
		if p.kind == "ud" {
			mask = verbs.QPState | verbs.QPQKey
		}
		if err := q.Modify(verbs.QPAttr{State: verbs.StateInit, QKey: qkey}, mask); err != nil {
			return err
		}
		p.pairs = append(p.pairs, &pair{QP: q, own: dest{q.Num(), q.PSN(), addr}, waiting: true})
		fmt.Fprintln(p.out, "  local address: ", p.pairs[i].own)
	}
	for slot := 1; slot <= p.depth; slot++ {
		if err := p.postRecv(slot); err != nil {
			return err
		}
	}
	return nil
}

// qkey is that of ibv_ud_pingpong.
const qkey = 0x11111111

// A slot is where a message is received: with UD behind the network header.
func (p *pingpong) header() int {
	if p.kind == "ud" {
		return grh
	}
	return 0
}
func (p *pingpong) slotSize() int { return p.header() + p.size }

// message is the memory of the message in a slot.
func (p *pingpong) message(slot int) []byte {
	return p.mr.Bytes()[slot*p.slotSize()+p.header():][:p.size]
}

func (p *pingpong) postRecv(slot int) error {
	wr := verbs.RecvWR{WRID: uint64(slot), SGList: []verbs.SGE{p.mr.SGE(slot*p.slotSize(), p.slotSize())}}
	var err error
	if p.srq != nil {
		_, err = p.srq.PostRecv(wr)
	} else {
		_, err = p.pairs[0].PostRecv(wr)
	}
	return err
}

func (p *pingpong) postSend(q *pair) error {
	q.sending, q.slot = true, q.next
	wr := verbs.SendWR{WRID: sendID, Opcode: verbs.WRSend, SGList: []verbs.SGE{p.mr.SGE(q.slot*p.slotSize()+p.header(), p.size)}}
	if q.ah != nil {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = q.ah, q.peer.qpn, qkey
	}
	_, err := q.PostSend(wr)
	return err
}

// connect moves the queue pairs to RTS.
func (p *pingpong) connect(pd *verbs.PD, remote []dest) error {
	for i, q := range p.pairs {
		q.peer = remote[i]
		fmt.Fprintln(p.out, "  remote address:", q.peer)
		var rtr, rts verbs.QPAttrMask
		switch p.kind {
		case "ud":
			var err error
			if q.ah, err = pd.CreateAH(verbs.AHAttr{Dst: q.peer.addr.As4()}); err != nil {
				return err
			}
		case "rc", "srq":
			rtr, rts = verbs.QPMaxDestRDAtomic|verbs.QPMinRNRTimer, verbs.QPTimeout|verbs.QPRetryCnt|verbs.QPRNRRetry|verbs.QPMaxQPRDAtomic
			fallthrough
		case "uc":
			rtr |= verbs.QPAV | verbs.QPPathMTU | verbs.QPDestQPN | verbs.QPRQPSN
		}
		attr := verbs.QPAttr{
			State: verbs.StateRTR, AH: verbs.AHAttr{Dst: q.peer.addr.As4()}, PathMTU: p.pathMTU(), DestQPN: q.peer.qpn, RQPSN: q.peer.psn, MaxDestRDAtomic: 1, MinRNRTimer: 12,
			Timeout: 14, RetryCnt: 7, RNRRetry: 7, SQPSN: q.own.psn, MaxRDAtomic: 1,
		}
		if err := q.Modify(attr, verbs.QPState|rtr); err != nil {
			return err
		}
		attr.State = verbs.StateRTS
		if err := q.Modify(attr, verbs.QPState|verbs.QPSQPSN|rts); err != nil {
			return err
		}
	}
	return nil
}

func (p *pingpong) pathMTU() verbs.MTU {
	for mtu := verbs.MTU256; ; mtu++ {
		if mtu.Bytes() >= p.mtu {
			return mtu
		}
	}
}

// exchange exchanges the queue pairs with the peer, over TCP, and connects them.
func (p *pingpong) exchange(host *unet.Host, connect func([]dest) error) error {
	slots := 1
	if p.kind == "srq" {
		slots = srqSlots
	}
	var own []dest
	for _, q := range p.pairs {
		own = append(own, q.own)
	}
	if p.host != "" {
		conn, err := host.DialContext(p.ctx, "tcp", net.JoinHostPort(p.host, strconv.Itoa(p.port)))
		if err != nil {
			return err
		}
		defer conn.Close()
		remote, err := exchangeClient(conn, slots, own)
		if err != nil {
			return err
		}
		return connect(remote)
	}
	listener, err := host.Listen(p.ctx, "tcp", ":"+strconv.Itoa(p.port))
	if err != nil {
		return err
	}
	defer listener.Close()
	fmt.Fprintln(p.out, "listening on", listener.Addr())
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = exchangeServer(conn, slots, own, connect)
	return err
}

// messages sends and receives the messages.
func (p *pingpong) messages() error {
	byNum := map[uint32]*pair{}
	for _, q := range p.pairs {
		byNum[q.Num()] = q
		if p.host != "" {
			if err := p.postSend(q); err != nil {
				return err
			}
		}
	}
	wcs := make([]verbs.WC, 16)
	for sent, got := 0, 0; sent < p.iters || got < p.iters; {
		n, err := p.completions(wcs)
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			if wc.Status != verbs.StatusSuccess {
				return fmt.Errorf("work request %d on QP 0x%06x: %v", wc.WRID, wc.QPNum, wc.Status)
			}
			q := byNum[wc.QPNum]
			if wc.WRID == sendID {
				sent++
				q.sending = false
				if q.slot > 0 { // the server's send ends the use of the slot
					if err := p.postRecv(q.slot); err != nil {
						return err
					}
				}
			} else {
				got++
				q.waiting = false
				if err := p.received(q, int(wc.WRID)); err != nil {
					return err
				}
			}
			if sent < p.iters && !q.sending && !q.waiting {
				q.waiting = true
				if err := p.postSend(q); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// received takes a message: the server sends it back, the client looks at it.
func (p *pingpong) received(q *pair, slot int) error {
	if p.host == "" {
		q.next = slot
		return nil
	}
	if p.check && !bytes.Equal(p.message(slot), p.message(0)) {
		return fmt.Errorf("QP 0x%06x: another message came back than was sent", q.Num())
	}
	clear(p.message(slot))
	return p.postRecv(slot)
}

// completions returns at least one completion.
func (p *pingpong) completions(wcs []verbs.WC) (n int, err error) {
	if p.events {
		return p.cq.Wait(wcs, time.Time{})
	}
	for n == 0 && err == nil {
		n = p.cq.Poll(wcs)
		if n == 0 {
			err = p.ctx.Err()
		}
	}
	return n, err
}
