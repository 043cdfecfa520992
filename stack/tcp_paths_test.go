package stack_test

import (
	"bytes"
	"context"
	"io"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// fullPath is a link with a path to one port of the peer, which is full as long as full is set.
type fullPath struct {
	*memlink.Link
	port    uint16
	full    atomic.Bool
	refused atomic.Int64
}

// oneHost is a route service whose hosts have one MAC address.
type oneHost struct{}

func (oneHost) Resolve(context.Context, netip.Addr, netip.Addr) (stack.Route, error) {
	return stack.Route{LinkAddr: linkA}, nil
}

func (l *fullPath) ReservePath(_, dst wire.AddrPort, _ int) (stack.Frame, bool) {
	if dst.Port != l.port || !l.full.Load() {
		return stack.Frame{}, false
	}
	l.refused.Add(1)
	return stack.Frame{}, true
}

// A connection whose path is full waits for room without a lost segment, and others go on meanwhile.
func TestFullPathHoldsUpItsConnectionsOnly(t *testing.T) {
	la, lb := memlink.Pair(memlink.Config{})
	link := &fullPath{Link: la, port: 80}
	cfg := stack.Config{OwnedAddress: true, Resolver: oneHost{}, Link: link, LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}}
	a, err := stack.New(cfg)
	testutil.Must(t, err)
	t.Cleanup(func() {
		a.Close()
		testutil.Must(t, la.Audit())
	})
	cfg.Addrs = []netip.Prefix{prefixB}
	b := newStack(t, lb, cfg)
	connect := func(port uint16) (client, server *stack.TCPConn) {
		at := netip.AddrPortFrom(prefixB.Addr(), port)
		l, err := b.ListenTCP(at, stack.TCPListenOptions{})
		testutil.Must(t, err)
		defer l.Close()
		client, err = a.DialTCP(t.Context(), netip.AddrPort{}, at, stack.TCPOptions{})
		testutil.Must(t, err)
		server, err = l.AcceptTCP()
		testutil.Must(t, err)
		return client, server
	}
	held, behind := connect(80)
	free, other := connect(81)
	link.full.Store(true)
	data := bytes.Repeat([]byte("waits"), 2000)
	testutil.Renew(held)
	_, err = held.Write(data)
	testutil.Must(t, err)
	for range 100 {
		text := make([]byte, 4)
		testutil.Renew(free)
		_, err := free.Write([]byte("goes"))
		testutil.Must(t, err)
		testutil.Renew(other)
		_, err = io.ReadFull(other, text)
		testutil.Must(t, err)
	}
	if link.refused.Load() == 0 {
		t.Error("no segment has waited for room")
	}
	if n := behind.Info().BytesReceived; n != 0 {
		t.Errorf("%d bytes have passed the full path", n)
	}
	link.full.Store(false)
	got := make([]byte, len(data))
	testutil.Renew(behind)
	if _, err := io.ReadFull(behind, got); err != nil || !bytes.Equal(got, data) {
		t.Fatal("other data, or", err)
	}
	if n := held.Info().Retransmissions; n != 0 {
		t.Errorf("%d segments sent again", n)
	}
	for _, c := range []io.Closer{held, behind, free, other} {
		testutil.Must(t, c.Close())
	}
}
