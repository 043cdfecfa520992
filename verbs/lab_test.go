//go:build linux

package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/verbs"
	"github.com/unet-go/unet/wire"
)

// noDeadline makes a call wait without end.
var noDeadline time.Time

const testTimeout = 2 * time.Minute // a test that waits longer fails

// link is where a test's two contexts are.
type link struct {
	name string
	open func(t testing.TB, cfg unet.HostConfig) (a, b host)
}

// links are a pair of stacks in memory, and two hosts, each on a mux of its own, on a real
// link.
var links = []link{{"memory", memHosts}, {"veth", realHosts}}

// realHosts are two hosts on the two ends of a cable.
func realHosts(t testing.TB, cfg unet.HostConfig) (a, b host) {
	pair := netlab.RequirePair(t, netlab.Config{})
	return realHost(t, pair.A, cfg), realHost(t, pair.B, cfg)
}

func realHost(t testing.TB, at *netlab.Host, cfg unet.HostConfig) *unet.Host {
	t.Helper()
	m, err := mux.Open(mux.Config{Interface: at.Interface, NetNS: at.NS})
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, m.Close()) })
	grant, lease, err := m.OpenEndpoint(t.Context(), endpoint.Request{})
	testutil.Must(t, err)
	h, err := unet.New(t.Context(), grant, lease, cfg)
	if err != nil {
		testutil.Must(t, errors.Join(err, grant.Close(), lease.Close()))
	}
	t.Cleanup(func() { testutil.Must(t, h.Close()) })
	return h
}

// memHost is a host on a link in memory.
type memHost struct {
	stack *stack.Stack
	addr  netip.Addr
}

func (h memHost) Addr() netip.Addr { return h.addr }

// host is a *unet.Host or a memHost.
type host interface{ Addr() netip.Addr }

func openContext(ctx context.Context, h host, cfg verbs.Config) (*verbs.Context, error) {
	if m, ok := h.(memHost); ok {
		return verbs.OpenOn(m.stack, m.addr, cfg)
	}
	return verbs.Open(ctx, h.(*unet.Host), cfg)
}

// lan is the route service of a link in memory: the last byte of a host's address is that
// of its MAC address.
type lan struct{}

func (lan) Resolve(_ context.Context, _, dst netip.Addr) (stack.Route, error) {
	return stack.Route{LinkAddr: macOf(dst)}, nil
}

func macOf(a netip.Addr) wire.LinkAddr { return wire.LinkAddr{2, 0, 0, 0, 0, a.As4()[3]} }

// newMemStack is a stack on a link in memory, with an address that ends with n.
func newMemStack(l stack.Link, n int, cfg stack.Config) (*stack.Stack, netip.Addr) {
	addr := netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", n))
	cfg.Link, cfg.LinkAddr, cfg.Addrs, cfg.OwnedAddress, cfg.Resolver = l, macOf(addr), []netip.Prefix{netip.PrefixFrom(addr, 24)}, true, lan{}
	s, err := stack.New(cfg)
	if err != nil {
		panic(err)
	}
	return s, addr
}

func memHosts(t testing.TB, cfg unet.HostConfig) (a, b host) {
	la, lb := memlink.Pair(memlink.Config{})
	return newMemHost(t, la, la, 1, cfg), newMemHost(t, lb, lb, 2, cfg)
}

// newMemHost is a host on a link in memory, or on what wraps it.
func newMemHost(t testing.TB, l *memlink.Link, wrapped stack.Link, n int, cfg unet.HostConfig) memHost {
	s, addr := newMemStack(wrapped, n, stack.Config{Wait: cfg.Wait, SpinBudget: cfg.SpinBudget})
	t.Cleanup(func() {
		testutil.Must(t, s.Close())
		testutil.Must(t, l.Audit())
	})
	return memHost{s, addr}
}
