//go:build linux

package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/verbs"
)

// The error of a call that is not legal names the object and the rule.
func TestBadInput(t *testing.T) {
	a, b := newPeers(t, links[0], unet.HostConfig{}, verbs.RC)
	ud := newPeer(t, b.ctx, verbs.UD)
	_, reset := newPeer(t, a.ctx, verbs.RC), newPeer(t, a.ctx, verbs.RC).qp
	srq, err := a.pd.CreateSRQ(2, 1)
	testutil.Must(t, err)
	of := func(_ any, err error) error { return err }
	full := make([]verbs.SendWR, capacity.MaxSendWR+1)
	for i := range full {
		full[i] = verbs.SendWR{Opcode: verbs.WRLocalInv, Flags: verbs.SendFence} // waits for the READ before it
	}
	full[0] = verbs.SendWR{Opcode: verbs.WRRDMARead, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	for _, c := range []struct {
		err  error
		kind error
		want string
	}{
		{reset.Modify(verbs.QPAttr{State: verbs.StateRTS}, verbs.QPState), syscall.EINVAL,
			fmt.Sprintf("rdma: modify QP %#x from RESET to RTS: no such move: invalid argument", reset.Num())},
		{reset.Modify(verbs.QPAttr{State: verbs.StateInit}, verbs.QPState), syscall.EINVAL,
			fmt.Sprintf("rdma: modify QP %#x from RESET to INIT: attributes QPAccessFlags are missing: invalid argument", reset.Num())},
		{of(reset.PostRecv(verbs.RecvWR{})), syscall.EINVAL, fmt.Sprintf("rdma: post receive on QP %#x: it is in RESET: invalid argument", reset.Num())},
		{of(reset.PostSend(verbs.SendWR{})), syscall.EINVAL, fmt.Sprintf("rdma: post send on QP %#x: it is in RESET: invalid argument", reset.Num())},
		{of(a.qp.PostSend(full...)), syscall.ENOMEM, fmt.Sprintf("rdma: QP %#x: the send queue is full (64 work requests): cannot allocate memory", a.qp.Num())},
		{of(b.qp.PostRecv(make([]verbs.RecvWR, 65)...)), syscall.ENOMEM, fmt.Sprintf("rdma: QP %#x: the receive queue is full (64 work requests): cannot allocate memory", b.qp.Num())},
		{of(srq.PostRecv(make([]verbs.RecvWR, 3)...)), syscall.ENOMEM, "rdma: SRQ: the receive queue is full (2 work requests): cannot allocate memory"},
		{of(b.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend, SGList: make([]verbs.SGE, 3)})), syscall.EINVAL,
			fmt.Sprintf("rdma: post send on QP %#x: SEND: a longer list than MaxSendSGE: invalid argument", b.qp.Num())},
		{of(b.qp.PostSend(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline, Inline: make([]byte, 65)})), syscall.EINVAL,
			fmt.Sprintf("rdma: post send on QP %#x: SEND: more inline data than MaxInlineData: invalid argument", b.qp.Num())},
		{of(a.pd.RegMR(nil, verbs.AccessLocalWrite)), syscall.EINVAL, "rdma: register memory: the buffer is empty: invalid argument"},
		{of(a.pd.RegMR(make([]byte, 8), verbs.AccessRemoteWrite)), syscall.EINVAL, "rdma: register memory: remote write and atomic access need local write access: invalid argument"},
		{of(a.ctx.CreateCQ(0, nil)), syscall.EINVAL, "rdma: create CQ: 0 entries, 1 to 1048576 are allowed: invalid argument"},
		{of(a.ctx.CreateQP(a.pd, verbs.QPInit{Type: verbs.RC, SendCQ: a.cq})), syscall.EINVAL, "create QP rdma 10.0.0.1:4791: no SendCQ or no RecvCQ: invalid argument"},
		{of(a.ctx.CreateQP(a.pd, verbs.QPInit{Type: verbs.RC, SendCQ: a.cq, RecvCQ: b.cq})), syscall.EINVAL, "rdma: create QP: two CQs of the device are needed: invalid argument"},
		{of(a.ctx.Dial(t.Context(), b.ctxAddr(1), a.qp, nil)), syscall.EINVAL, fmt.Sprintf("dial rdma 10.0.0.1:4791->10.0.0.2:1: QP %#x: it is in RTS, neither in RESET nor in INIT: invalid argument", a.qp.Num())},
		{of(b.ctx.Dial(t.Context(), b.ctxAddr(1), ud.qp, nil)), syscall.EINVAL, fmt.Sprintf("dial rdma 10.0.0.2:4791->10.0.0.2:1: QP %#x: it is neither RC nor UC: invalid argument", ud.qp.Num())},
		{of(a.ctx.Dial(t.Context(), netip.MustParseAddrPort("[::1]:1"), reset, nil)), nil, "dial rdma 10.0.0.1:4791->[::1]:1: not an IPv4 address and port"},
		{a.pd.Close(), syscall.EBUSY, "rdma: close PD: 3 objects of it exist: device or resource busy"},
		{a.cq.Close(), syscall.EBUSY, "rdma: close CQ: queue pairs use it: device or resource busy"},
	} {
		if c.err == nil || c.err.Error() != c.want || c.kind != nil && !errors.Is(c.err, c.kind) {
			t.Errorf("%v\n\twant: %s", c.err, c.want)
		}
	}
}

// What is wrong with memory comes as the status that the specification names.
func TestBadMemory(t *testing.T) {
	for _, c := range []struct {
		name   string
		wr     func(a, b *peer) verbs.SendWR
		status verbs.Status
		text   string
	}{
		{"a wrong rkey", func(a, b *peer) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey() ^ 0x100}
		}, verbs.StatusRemAccessErr, "remote access error"},
		{"a range outside of the remote region", func(a, b *peer) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.WRRDMARead, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr() + 64<<10 - 7, RKey: b.mr.RKey()}
		}, verbs.StatusRemAccessErr, "remote access error"},
		{"a range beyond 64 bits", func(a, b *peer) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: math.MaxUint64 - 3, RKey: b.mr.RKey()}
		}, verbs.StatusRemAccessErr, "remote access error"},
		{"a misaligned atomic", func(a, b *peer) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.WRAtomicFetchAndAdd, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr() + 4, RKey: b.mr.RKey()}
		}, verbs.StatusRemInvReqErr, "remote invalid request error"},
		{"a buffer that is not registered", func(a, b *peer) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{{Addr: a.mr.Addr(), Length: 8, LKey: a.mr.LKey() ^ 0x100}}}
		}, verbs.StatusLocProtErr, "local protection error"},
		{"a buffer that is not registered any more", func(a, b *peer) verbs.SendWR {
			mr, err := a.pd.RegMR(make([]byte, 8), verbs.AccessLocalWrite)
			testutil.Must(t, err)
			testutil.Must(t, mr.Close())
			return verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{mr.SGE(0, 8)}}
		}, verbs.StatusLocProtErr, "local protection error"},
		{"a range outside of the local region", func(a, b *peer) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(64<<10-7, 8)}}
		}, verbs.StatusLocProtErr, "local protection error"},
		{"a message longer than its receive", func(a, b *peer) verbs.SendWR {
			b.recv(verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, 7)}})
			return verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, 8)}}
		}, verbs.StatusRemInvReqErr, "remote invalid request error"},
	} {
		a, b := newPeers(t, links[0], unet.HostConfig{}, verbs.RC)
		wr := c.wr(a, b)
		wr.WRID = 7
		a.send(wr, verbs.SendWR{WRID: 8, Opcode: verbs.WRSend})
		var got []verbs.WC
		for len(got) < 2 {
			n, err := a.cq.Wait(a.wcs[:], noDeadline)
			testutil.Must(t, err)
			got = append(got, a.wcs[:n]...)
		}
		if got[0].WRID != 7 || got[0].Status != c.status || got[0].Status.String() != c.text {
			t.Errorf("%s: %+v", c.name, got[0])
		}
		if got[1].WRID != 8 || got[1].Status != verbs.StatusWRFlushErr || a.qp.State() != verbs.StateErr {
			t.Errorf("%s: the work request behind it: %+v", c.name, got[1])
		}
	}
}

// The error for a second owner of the port names the address.
func TestSecondOwnerOfPortIsRefused(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	m, err := mux.Open(mux.Config{Interface: pair.A.Interface, NetNS: pair.A.NS})
	testutil.Must(t, err)
	defer func() { testutil.Must(t, m.Close()) }()
	var hosts [2]*unet.Host
	for i := range hosts {
		grant, lease, err := m.OpenEndpoint(t.Context(), endpoint.Request{})
		testutil.Must(t, err)
		hosts[i], err = unet.New(t.Context(), grant, lease, unet.HostConfig{})
		testutil.Must(t, err)
		defer hosts[i].Close()
	}
	c := open(t, hosts[0])
	_, err = verbs.Open(t.Context(), hosts[1], verbs.Config{})
	var op *net.OpError
	if !errors.As(err, &op) || !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), c.Addr().String()+":4791: ") {
		t.Errorf("a second owner: %v", err)
	}
	testutil.Must(t, c.Close())
	for errors.Is(err, syscall.EADDRINUSE) { // until the first owner's tag has been given back
		c, err = verbs.Open(t.Context(), hosts[1], verbs.Config{})
	}
	testutil.Must(t, err)
	testutil.Must(t, c.Close())
}

// Stray datagrams to the port are counted, and have no other effect.
func TestStrayDatagramsAreCounted(t *testing.T) {
	ha, hb := links[0].open(t, unet.HostConfig{})
	p := newPeer(t, open(t, hb), verbs.RC)
	conn, err := ha.(memHost).stack.DialUDP(netip.AddrPortFrom(ha.Addr(), 5000), p.ctxAddr(4791), stack.UDPOptions{})
	testutil.Must(t, err)
	defer conn.Close()
	// A base transport header: opcode, flags, partition, queue pair, PSN.
	bth := func(opcode byte, qpn uint32, rest int) []byte {
		return append([]byte{opcode, 0, 0xff, 0xff, 0, byte(qpn >> 16), byte(qpn >> 8), byte(qpn), 0, 0, 0, 0}, make([]byte, rest)...)
	}
	for counter, b := range map[string][]byte{
		"bad_header": {1, 2, 3},
		"no_qp":      bth(4, 0xabcdef^p.qp.Num(), 4),
		"bad_icrc":   bth(4, p.qp.Num(), 4),
		"bad_mads":   bth(0x64, 1, 8+256+4), // for the connection manager, with a wrong ICRC
	} {
		_, err := conn.Write(b)
		testutil.Must(t, err)
		for value := uint64(0); value == 0; {
			p.ctx.Poll()
			p.ctx.EachCounter(func(name string, v uint64) {
				if name == counter {
					value = v
				}
			})
		}
	}
	if state := p.qp.State(); state != verbs.StateReset {
		t.Errorf("the queue pair is in %v", state)
	}
}

// Requests that their peers have given up are not kept, though nobody calls Accept.
func TestGivenUpRequestsAreNotKept(t *testing.T) {
	ha, hb := links[0].open(t, unet.HostConfig{})
	a, b := newPeer(t, open(t, ha), verbs.RC), newPeer(t, open(t, hb), verbs.RC)
	l, err := b.ctx.Listen(0, 2)
	testutil.Must(t, err)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error)
		go func() {
			_, err := a.ctx.Dial(ctx, l.Addr(), a.qp, nil)
			got <- err
		}()
		for l.Waiting() == 0 {
			b.ctx.Poll()
		}
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Fatalf("given up: %v", err)
		}
		for l.Waiting() > 0 {
			b.ctx.Poll()
		}
		testutil.Must(t, a.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.QPState))
	}
}

// The end of a queue pair ends its Dial.
func TestDestroyWhileDialing(t *testing.T) {
	ha, hb := links[0].open(t, unet.HostConfig{})
	a, b := newPeer(t, open(t, ha), verbs.RC), newPeer(t, open(t, hb), verbs.RC)
	l, err := b.ctx.Listen(0, 0)
	testutil.Must(t, err)
	got := make(chan error)
	go func() {
		conn, err := a.ctx.Dial(t.Context(), l.Addr(), a.qp, nil)
		if conn != nil {
			t.Error("a connection without a queue pair")
		}
		got <- err
	}()
	for l.Waiting() == 0 {
		b.ctx.Poll()
	}
	a.qp.Close()
	if err := <-got; !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// What is closed leaves nothing behind: its domain or channel can be closed, and no queue
// that is gone is notified.
func TestDestroy(t *testing.T) {
	a, b := newPeers(t, links[0], unet.HostConfig{}, verbs.RC)
	ch := b.ctx.CreateCompChannel()
	cq, err := b.ctx.CreateCQ(4, ch)
	testutil.Must(t, err)
	if err := ch.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a channel in use: %v", err)
	}
	qp, err := b.ctx.CreateQP(b.pd, verbs.QPInit{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: capacity})
	testutil.Must(t, err)
	testutil.Must(t, qp.Init(0))
	cq.ReqNotify(false)
	if _, err := qp.PostRecv(verbs.RecvWR{}); err != nil {
		t.Fatal(err)
	}
	testutil.Must(t, qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.QPState)) // a completion, and its notification
	qp.Close()
	qp.Close()
	testutil.Must(t, cq.Close())
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if q, err := ch.Get(late); err == nil {
		t.Errorf("a notification of %p, which is gone", q)
	}
	testutil.Must(t, ch.Close())

	pd := b.ctx.AllocPD()
	mr, err := pd.RegMR(make([]byte, 8), verbs.AccessLocalWrite)
	testutil.Must(t, err)
	ah, err := pd.CreateAH(verbs.AHAttr{Dst: a.ctx.Addr().As4()})
	testutil.Must(t, err)
	ah.Close()
	ah.Close()
	if err := pd.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a domain with a region: %v", err)
	}
	testutil.Must(t, mr.Close())
	testutil.Must(t, pd.Close())
}

// Asynchronous events that nobody takes are bounded; those beyond are counted.
func TestAsyncEventsAreBounded(t *testing.T) {
	const most, more = 1024, 5
	ha, _ := links[0].open(t, unet.HostConfig{})
	p := newPeer(t, open(t, ha), verbs.RC)
	srq, err := p.pd.CreateSRQ(1, 1)
	testutil.Must(t, err)
	for range most + more {
		qp, err := p.ctx.CreateQP(p.pd, verbs.QPInit{Type: verbs.RC, SendCQ: p.cq, RecvCQ: p.cq, SRQ: srq})
		testutil.Must(t, err)
		testutil.Must(t, qp.Init(0))
		testutil.Must(t, qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.QPState)) // takes no more receives of the SRQ
		qp.Close()
	}
	dropped := uint64(0)
	p.ctx.EachCounter(func(name string, n uint64) {
		if name == "async_events_dropped" {
			dropped = n
		}
	})
	if dropped != more {
		t.Errorf("%d events dropped, want %d", dropped, more)
	}
	for range most {
		if e, err := p.ctx.AsyncEvent(t.Context()); err != nil || e.Type != verbs.EventQPLastWQEReached {
			t.Fatalf("%+v, %v", e, err)
		}
	}
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if e, err := p.ctx.AsyncEvent(late); err == nil {
		t.Errorf("one more: %+v", e)
	}
}
