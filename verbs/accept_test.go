//go:build linux

package verbs_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/proto/rdma/cm"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/verbs"
	"github.com/unet-go/unet/wire"
)

// cmFilter is a link in memory that loses messages of the connection manager.
type cmFilter struct {
	*memlink.Link
	lose atomic.Uint32 // bits by attribute, from CMReqAttr on
	lost atomic.Uint32
}

func (l *cmFilter) loses(attrs ...wire.CMAttr) {
	bits := uint32(0)
	for _, a := range attrs {
		bits |= 1 << (a - wire.CMReqAttr)
	}
	l.lose.Store(bits)
}

func (l *cmFilter) Send(f stack.Frame) bool {
	const mad = wire.EthernetHeaderLen + wire.RoCEOffset + 20
	if len(f.Data) == mad+wire.MADLen+wire.ICRCLen {
		if m, err := wire.ParseCM(f.Data[mad:][:wire.MADLen]); err == nil && l.lose.Load()>>(m.Attr()-wire.CMReqAttr)&1 != 0 {
			l.lost.Add(1)
			l.Link.Cancel(f)
			return true
		}
	}
	return l.Link.Send(f)
}

// filteredPeers are two peers, and the link on which the first one sends.
func filteredPeers(t *testing.T) (a, b *peer, filter *cmFilter) {
	la, lb := memlink.Pair(memlink.Config{})
	filter = &cmFilter{Link: la}
	ha, hb := newMemHost(t, la, filter, 1, unet.HostConfig{}), newMemHost(t, lb, lb, 2, unet.HostConfig{})
	return newPeer(t, open(t, ha), verbs.RC), newPeer(t, open(t, hb), verbs.RC), filter
}

// Clients that disconnect at once, and those that say nothing more, neither end nor hold up a server.
func TestServerOutlivesItsClients(t *testing.T) {
	a, b, filter := filteredPeers(t)
	l, err := b.ctx.Listen(0, 0)
	testutil.Must(t, err)
	conns := make(chan *verbs.Conn)
	go func() { // a sequential server
		defer close(conns)
		for {
			r, err := l.Accept(t.Context())
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("the loop ends: %v", err)
				}
				return
			}
			conn, err := r.Accept(t.Context(), newPeer(t, b.ctx, verbs.RC).qp, nil)
			if err != nil {
				t.Errorf("a client: %v", err)
				continue
			}
			conns <- conn
		}
	}()
	for i := range 40 {
		// RTU and DREQ in one batch; without the RTU; and nothing after the REQ but a rejection.
		filter.loses()
		if i%4 == 1 {
			filter.loses(wire.CMRtuAttr)
		}
		client := newPeer(t, a.ctx, verbs.RC)
		if i%4 == 2 {
			ctx, cancel := context.WithCancel(t.Context())
			got := make(chan error)
			filter.loses(wire.CMRtuAttr, wire.CMDreqAttr, wire.CMRejAttr)
			go func() {
				_, err := a.ctx.Dial(ctx, l.Addr(), client.qp, nil)
				got <- err
			}()
			<-conns
			cancel()
			<-got
			client.qp.Close()
			continue // it is silent from now on
		}
		conn, err := a.ctx.Dial(t.Context(), l.Addr(), client.qp, nil)
		testutil.Must(t, err)
		testutil.Must(t, conn.Close())
		served := <-conns
		<-served.Done()
		if err := served.Err(); !errors.Is(err, cm.ErrDisconnected) {
			t.Errorf("client %d: %v", i, err)
		}
		if err := conn.Err(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("client %d, at its side: %v", i, err)
		}
	}
	testutil.Must(t, l.Close())
	if _, ok := <-conns; ok {
		t.Error("one more connection")
	}
}

// The passive side sends when the peer has confirmed, or if that is lost, when its first message has come.
func TestAcceptedSendsWhenConfirmed(t *testing.T) {
	a, b, filter := filteredPeers(t)
	l, err := b.ctx.Listen(0, 0)
	testutil.Must(t, err)
	filter.loses(wire.CMRtuAttr)
	dialled := make(chan error)
	a.recvInInit(t)
	go func() {
		_, err := a.ctx.Dial(t.Context(), l.Addr(), a.qp, nil)
		dialled <- err
	}()
	r, err := l.Accept(t.Context())
	testutil.Must(t, err)
	testutil.Must(t, b.qp.Init(0))
	b.recv(verbs.RecvWR{})
	conn, err := r.Accept(t.Context(), b.qp, nil)
	testutil.Must(t, err)
	b.send(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled})
	testutil.Must(t, <-dialled)
	for filter.lost.Load() == 0 {
		b.ctx.Poll()
	}
	if n := b.cq.Poll(b.wcs[:]) + a.cq.Poll(a.wcs[:]); n != 0 {
		t.Errorf("%d completions before the connection is confirmed", n)
	}
	a.send(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled})
	testutil.Must(t, conn.Established(t.Context()))
	for range 2 { // each has sent and received
		a.wait()
		b.wait()
	}
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if e, err := b.ctx.AsyncEvent(late); err == nil {
		t.Errorf("event %v", e.Type)
	}
}

func (p *peer) recvInInit(t *testing.T) {
	t.Helper()
	testutil.Must(t, p.qp.Init(0))
	p.recv(verbs.RecvWR{})
}

// A context that is closed repeats its disconnections.
func TestCloseRepeatsDisconnections(t *testing.T) {
	a, b, filter := filteredPeers(t)
	_, cb := connected(t, a, b)
	filter.loses(wire.CMDreqAttr)
	closed := make(chan error)
	go func() { closed <- a.ctx.Close() }()
	for filter.lost.Load() == 0 {
		b.ctx.Poll()
	}
	filter.loses()
	<-cb.Done()
	testutil.Must(t, <-closed)
	if err := cb.Err(); !errors.Is(err, cm.ErrDisconnected) {
		t.Error(err)
	}
}

// A queue pair that Dial or Accept takes from RESET to RTS gives its peer no rights.
func TestDialGivesNoRights(t *testing.T) {
	ha, hb := links[0].open(t, unet.HostConfig{})
	a, b := newPeer(t, open(t, ha), verbs.RC), newPeer(t, open(t, hb), verbs.RC)
	connected(t, a, b)
	for _, p := range []*peer{a, b} {
		if got := p.qp.Query().AccessFlags; got != 0 {
			t.Errorf("rights %#x", got)
		}
	}
	a.send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	if n, err := a.cq.Wait(a.wcs[:1], noDeadline); n != 1 || err != nil || a.wcs[0].Status != verbs.StatusRemInvReqErr {
		t.Errorf("a WRITE: %v, %+v", err, a.wcs[0])
	}
}

// Private data that is too long is an error of the call, with no other effect.
func TestPrivateDataTooLong(t *testing.T) {
	ha, hb := links[0].open(t, unet.HostConfig{})
	a, b := newPeer(t, open(t, ha), verbs.RC), newPeer(t, open(t, hb), verbs.RC)
	l, err := b.ctx.Listen(0, 0)
	testutil.Must(t, err)
	param := verbs.DefaultConnParam()
	check := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, cm.ErrPrivateTooLong) || !strings.Contains(err.Error(), "at most") {
			t.Errorf("%s: %v", what, err)
		}
	}
	param.PrivateData = make([]byte, 57)
	_, err = a.ctx.Dial(t.Context(), l.Addr(), a.qp, &param)
	check("Dial", err)
	if s := a.qp.State(); s != verbs.StateReset {
		t.Errorf("the queue pair is in %v", s)
	}
	param.PrivateData = param.PrivateData[:56]
	dialled := make(chan error)
	go func() {
		_, err := a.ctx.Dial(t.Context(), l.Addr(), a.qp, &param)
		dialled <- err
	}()
	r, err := l.Accept(t.Context())
	testutil.Must(t, err)
	if len(r.Private()) != verbs.MaxDialPrivate {
		t.Errorf("%d bytes", len(r.Private()))
	}
	_, err = r.Accept(t.Context(), b.qp, &verbs.ConnParam{PrivateData: make([]byte, 197)})
	check("Accept", err)
	check("Reject", r.Reject(make([]byte, 149)))
	_, err = r.Accept(t.Context(), b.qp, &verbs.ConnParam{PrivateData: make([]byte, 196)})
	testutil.Must(t, err)
	testutil.Must(t, <-dialled)
}
