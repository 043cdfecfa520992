//go:build linux

package verbs_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/verbs"
	"github.com/unet-go/unet/wire"
)

// ctxAddr is a port of the context's address.
func (p *peer) ctxAddr(port uint16) netip.AddrPort { return netip.AddrPortFrom(p.ctx.Addr(), port) }

// connected connects two peers by the connection manager.
func connected(t *testing.T, a, b *peer) (ca, cb *verbs.Conn) {
	t.Helper()
	l, err := b.ctx.Listen(7471, 0)
	testutil.Must(t, err)
	accepted := make(chan error)
	go func() {
		r, err := l.Accept(t.Context())
		if err == nil {
			if !bytes.HasPrefix(r.Private(), []byte("who's there")) {
				t.Errorf("private data %q", r.Private())
			}
			cb, err = r.Accept(t.Context(), b.qp, nil)
		}
		accepted <- err
	}()
	ca, err = a.ctx.Dial(t.Context(), l.Addr(), a.qp, &verbs.ConnParam{PrivateData: []byte("who's there"), ResponderResources: 3, InitiatorDepth: 2, RetryCount: 5, RNRRetryCount: 6})
	testutil.Must(t, err)
	testutil.Must(t, <-accepted)
	testutil.Must(t, cb.Established(t.Context()))
	testutil.Must(t, l.Close())
	return ca, cb
}

func TestDialAndListen(t *testing.T) {
	onLinks(t, func(t *testing.T, l link) {
		for _, typ := range []verbs.QPType{verbs.RC, verbs.UC} {
			t.Run(typ.String(), func(t *testing.T) {
				ha, hb := l.open(t, unet.HostConfig{})
				a, b := newPeer(t, open(t, ha), typ), newPeer(t, open(t, hb), typ)
				ca, cb := connected(t, a, b)
				attrA, attrB := a.qp.Query(), b.qp.Query()
				if attrA.State != verbs.StateRTS || attrB.State != verbs.StateRTS || attrA.DestQPN != b.qp.Num() || attrB.DestQPN != a.qp.Num() {
					t.Errorf("%+v %+v", attrA, attrB)
				}
				if typ == verbs.RC && (attrA.MaxRDAtomic != 2 || attrB.MaxDestRDAtomic != 2 || attrA.RetryCnt != 5 || attrB.MaxRDAtomic != 3) {
					t.Errorf("%+v %+v", attrA, attrB)
				}
				if ca.Peer().Addr() != b.ctx.Addr() || cb.Peer().Addr() != a.ctx.Addr() || ca.Peer().Port() != 7471 {
					t.Errorf("peers %v and %v", ca.Peer(), cb.Peer())
				}
				b.recv(verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, 10)}}, verbs.RecvWR{WRID: 2})
				a.send(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline | verbs.SendSignaled, Inline: []byte("hello")})
				if wc := b.wait(); wc.ByteLen != 5 || string(b.mr.Bytes()[:5]) != "hello" {
					t.Errorf("%+v %q", wc, b.mr.Bytes()[:5])
				}
				a.wait()
				// The peer is notified of the end, and what it has posted is flushed.
				testutil.Must(t, ca.Close())
				<-ca.Done()
				<-cb.Done()
				n, err := b.cq.Wait(b.wcs[:], noDeadline)
				if n != 1 || err != nil || b.wcs[0].Status != verbs.StatusWRFlushErr || b.wcs[0].WRID != 2 {
					t.Errorf("%d completions, %v: %+v", n, err, b.wcs[0])
				}
				if a.qp.State() != verbs.StateErr || b.qp.State() != verbs.StateErr {
					t.Errorf("states %v and %v", a.qp.State(), b.qp.State())
				}
			})
		}
	})
}

func TestRejectedDial(t *testing.T) {
	ha, hb := links[0].open(t, unet.HostConfig{})
	a, b := newPeer(t, open(t, ha), verbs.RC), newPeer(t, open(t, hb), verbs.RC)
	var rejected *verbs.RejectError
	_, err := a.ctx.Dial(t.Context(), b.ctxAddr(1), a.qp, nil)
	if _, ok := err.(net.Error); !ok || !errors.As(err, &rejected) {
		t.Errorf("no listener: %v", err)
	}
	testutil.Must(t, a.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.QPState))
	l, err := b.ctx.Listen(0, 0)
	testutil.Must(t, err)
	go func() {
		if r, err := l.Accept(context.Background()); err == nil {
			r.Reject([]byte("go away"))
		}
	}()
	_, err = a.ctx.Dial(t.Context(), l.Addr(), a.qp, nil)
	if !errors.As(err, &rejected) || !bytes.HasPrefix(rejected.Private, []byte("go away")) {
		t.Errorf("rejected: %v", err)
	}
	// A dial that is given up is no request any more.
	testutil.Must(t, a.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.QPState))
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error)
	go func() {
		_, err := a.ctx.Dial(ctx, l.Addr(), a.qp, nil)
		got <- err
	}()
	r, err := l.Accept(t.Context())
	testutil.Must(t, err)
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	cb, err := r.Accept(t.Context(), b.qp, nil)
	testutil.Must(t, err)
	<-cb.Done()
	if err := cb.Err(); !errors.As(err, &rejected) || rejected.Reason != wire.CMRejTimeout || b.qp.State() != verbs.StateErr {
		t.Errorf("a request that was given up: %v, the queue pair is in %v", err, b.qp.State())
	}
	if err := cb.Established(t.Context()); !errors.As(err, &rejected) || !strings.Contains(err.Error(), l.Addr().String()+"->"+cb.Peer().String()) {
		t.Errorf("a request that was given up: %v", err)
	}
}

// DefaultConnParam is what nil stands for, and both sides get all READs that their contexts permit.
func TestDefaultConnParam(t *testing.T) {
	ha, hb := links[0].open(t, unet.HostConfig{})
	for _, param := range []*verbs.ConnParam{nil, new(verbs.DefaultConnParam())} {
		a, b := newPeer(t, open(t, ha), verbs.RC), newPeer(t, open(t, hb), verbs.RC)
		l, err := b.ctx.Listen(0, 0)
		testutil.Must(t, err)
		accepted := make(chan error)
		go func() {
			r, err := l.Accept(t.Context())
			if err == nil {
				_, err = r.Accept(t.Context(), b.qp, param)
			}
			accepted <- err
		}()
		_, err = a.ctx.Dial(t.Context(), l.Addr(), a.qp, param)
		testutil.Must(t, err)
		testutil.Must(t, <-accepted)
		for _, q := range []verbs.QPAttr{a.qp.Query(), b.qp.Query()} {
			if q.MaxRDAtomic != 16 || q.MaxDestRDAtomic != 16 || q.RetryCnt != 7 || q.RNRRetry != 7 {
				t.Errorf("%+v", q)
			}
		}
		testutil.Must(t, a.ctx.Close())
		testutil.Must(t, b.ctx.Close())
	}
}

// The end of a context disconnects its peers.
func TestCloseDisconnects(t *testing.T) {
	ha, hb := links[0].open(t, unet.HostConfig{})
	a, b := newPeer(t, open(t, ha), verbs.RC), newPeer(t, open(t, hb), verbs.RC)
	_, cb := connected(t, a, b)
	testutil.Must(t, a.ctx.Close())
	<-cb.Done()
}
