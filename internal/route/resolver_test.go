//go:build linux

package route_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/wire"
)

func resolver(t *testing.T) (*netlab.Pair, *route.Resolver, netlink.Link) {
	t.Helper()
	return resolverOn(t, netlab.RequirePair(t, netlab.Config{}))
}

// resolver6 is resolver for hosts that have IPv6, with the addresses fd00::1 and
// fd00::2 beside their link-local ones.
func resolver6(t *testing.T) (*netlab.Pair, *route.Resolver, netlink.Link) {
	t.Helper()
	p := netlab.RequirePair(t, netlab.Config{})
	for i, h := range []*netlab.Host{p.A, p.B} {
		do(t, h, func() error {
			for _, setting := range [][2]string{{"accept_dad", "0"}, {"accept_ra", "0"}, {"disable_ipv6", "0"}} {
				if err := setSysctl("ipv6/conf/"+h.Interface, setting[0], setting[1]); err != nil {
					return err
				}
			}
			l, err := netlink.LinkByName(h.Interface)
			if err != nil {
				return err
			}
			addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(fmt.Sprintf("fd00::%d", i+1)), Mask: net.CIDRMask(64, 128)}}
			if err := netlink.AddrAdd(l, addr); err != nil {
				return err
			}
			for deadline := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) {
				all, err := netlink.AddrList(l, netlink.FAMILY_V6)
				usable := !slices.ContainsFunc(all, func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_TENTATIVE != 0 })
				if err != nil || usable && len(all) == 2 {
					return err
				}
				if time.Now().After(deadline) {
					return fmt.Errorf("addresses %v are never usable", all)
				}
			}
		})
	}
	return resolverOn(t, p)
}

// setSysctl sets a sysctl of the network of the calling thread's namespace.
func setSysctl(where, name, value string) error {
	return os.WriteFile("/proc/sys/net/"+where+"/"+name, []byte(value), 0)
}

func resolverOn(t *testing.T, p *netlab.Pair) (*netlab.Pair, *route.Resolver, netlink.Link) {
	t.Helper()
	var uplink netlink.Link
	err := p.A.Do(func() (err error) {
		uplink, err = netlink.LinkByName(p.A.Interface)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	reported := make(chan netip.Addr, 10000)
	r, err := route.New(p.A.NS, uplink.Attrs().Index, func(hop netip.Addr) { reported <- hop }, func() {})
	if err != nil {
		t.Fatal(err)
	}
	changesOf.Store(r, reported)
	t.Cleanup(func() {
		changesOf.Delete(r)
		r.Close()
	})
	return p, r, uplink
}

func do(t *testing.T, h *netlab.Host, fn func() error) {
	t.Helper()
	if err := h.Do(fn); err != nil {
		t.Fatal(err)
	}
}

func addRoute(dst string, gw string, ifindex, mtu int) error {
	_, ipnet, err := net.ParseCIDR(dst)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{Dst: ipnet, Gw: net.ParseIP(gw), LinkIndex: ifindex, MTU: mtu})
}

func subnet(s string) *net.IPNet {
	_, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	return n
}

func TestResolve(t *testing.T) {
	p, r, uplink := resolver(t)
	ifindex := uplink.Attrs().Index
	do(t, p.A, func() error {
		return errors.Join(
			addRoute("192.0.2.0/24", "10.0.0.2", ifindex, 0),
			addRoute("198.51.100.0/24", "10.0.0.2", ifindex, 1400),
			addRoute("224.0.0.0/4", "", ifindex, 0),
			netlink.RouteAdd(&netlink.Route{Dst: subnet("198.18.1.0/24"), Gw: net.IPv4(10, 0, 0, 2), LinkIndex: ifindex, MTU: 1300, MTULock: true, AdvMSS: 1100}),
			netlink.RouteAdd(&netlink.Route{Dst: subnet("198.18.2.0/24"), Type: unix.RTN_BLACKHOLE}),
			netlink.RouteAdd(&netlink.Route{Dst: subnet("198.18.3.0/24"), Type: unix.RTN_PROHIBIT}),
			netlink.RouteAdd(&netlink.Route{Dst: subnet("198.18.4.0/24"), Type: unix.RTN_THROW}),
			netlink.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4(203, 0, 113, 0), Mask: net.CIDRMask(24, 32)}, Type: 7 /* unreachable */}),
		)
	})
	addr := netip.MustParseAddr
	own := addr("10.0.0.1")
	for _, c := range []struct {
		dst  string
		want endpoint.Route
	}{
		{"10.0.0.2", endpoint.Route{Source: own, NextHop: addr("10.0.0.2"), LinkAddr: p.B.LinkAddr, MTU: 1500}},
		{"10.0.0.2", endpoint.Route{Source: own, NextHop: addr("10.0.0.2"), LinkAddr: p.B.LinkAddr, MTU: 1500}}, // in the neighbour table now
		{"192.0.2.9", endpoint.Route{Source: own, NextHop: addr("10.0.0.2"), LinkAddr: p.B.LinkAddr, MTU: 1500}},
		{"198.51.100.9", endpoint.Route{Source: own, NextHop: addr("10.0.0.2"), LinkAddr: p.B.LinkAddr, MTU: 1400}},
		{"198.18.1.9", endpoint.Route{Source: own, NextHop: addr("10.0.0.2"), LinkAddr: p.B.LinkAddr, MTU: 1300, MTULocked: true, AdvMSS: 1100}},
		{"10.0.0.1", endpoint.Route{Source: own, NextHop: own, LinkAddr: p.A.LinkAddr, MTU: 1500}},
		{"10.0.0.255", endpoint.Route{Source: own, NextHop: addr("10.0.0.255"), LinkAddr: wire.Broadcast, MTU: 1500}},
		{"224.129.2.3", endpoint.Route{Source: own, NextHop: addr("224.129.2.3"), LinkAddr: wire.LinkAddr{1, 0, 0x5e, 1, 2, 3}, MTU: 1500}},
		{"::ffff:10.0.0.2", endpoint.Route{Source: own, NextHop: addr("10.0.0.2"), LinkAddr: p.B.LinkAddr, MTU: 1500}},
	} {
		got, err := r.Resolve(t.Context(), netip.Addr{}, addr(c.dst))
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", c.dst, got, err, c.want)
		}
	}
	for _, c := range []struct {
		dst, says string
		is        error
	}{
		{"203.0.113.9", "no route to host", endpoint.ErrUnreachable},
		{"198.18.2.9", "invalid argument", endpoint.ErrBlackhole},
		{"198.18.3.9", "permission denied", endpoint.ErrProhibited},
		{"198.18.4.9", "network is unreachable", endpoint.ErrNoRoute}, // no other rule has a route
		{"8.8.8.8", "network is unreachable", endpoint.ErrNoRoute},
		{"127.0.0.1", "not of the uplink", endpoint.ErrNoRoute},
		{"0.0.0.0", "not the address of a host", endpoint.ErrUnreachable},
		{"2001:db8::1", "network is unreachable", endpoint.ErrNoRoute},
	} {
		got, err := r.Resolve(t.Context(), netip.Addr{}, addr(c.dst))
		var kinds int
		for _, kind := range []error{endpoint.ErrNoRoute, endpoint.ErrProhibited, endpoint.ErrBlackhole} {
			if errors.Is(err, kind) {
				kinds++
			}
		}
		if !errors.Is(err, c.is) || !errors.Is(err, endpoint.ErrUnreachable) || kinds > 1 || (kinds == 0) != (c.is == endpoint.ErrUnreachable) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %+v, %v; want %v: %s", c.dst, got, err, c.is, c.says)
		}
	}
}

func TestRouteByOtherInterfaceIsRefused(t *testing.T) {
	p, r, _ := resolver(t)
	do(t, p.A, func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other"}, PeerName: "end"}); err != nil {
			return err
		}
		other, err := netlink.LinkByName("other")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(other); err != nil {
			return err
		}
		return addRoute("192.0.2.0/24", "", other.Attrs().Index, 0)
	})
	_, err := r.Resolve(t.Context(), netip.Addr{}, netip.MustParseAddr("192.0.2.1"))
	if !errors.Is(err, endpoint.ErrNoRoute) || !strings.Contains(err.Error(), "leaves by other, not by the uplink uplink") {
		t.Errorf("got %v", err)
	}
}

func TestResolveWithoutAnswer(t *testing.T) {
	p, r, _ := resolver(t)
	do(t, p.A, func() error { // the kernel gives up after one try of the shortest length it allows
		for name, v := range map[string]string{"mcast_solicit": "1", "retrans_time_ms": "10"} {
			if err := setSysctl("ipv4/neigh/"+p.A.Interface, name, v); err != nil {
				return err
			}
		}
		return nil
	})
	absent := netip.MustParseAddr("10.0.0.99")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{t.Context(), ended} { // the second is answered without a discovery
		_, err := r.Resolve(ctx, netip.Addr{}, absent)
		if !errors.Is(err, endpoint.ErrUnreachable) || !strings.Contains(err.Error(), "no answer to ARP") {
			t.Errorf("got %v", err)
		}
	}
	// A host that exists since then is found.
	do(t, p.B, func() error {
		l, err := netlink.LinkByName(p.B.Interface)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: absent.AsSlice(), Mask: net.CIDRMask(24, 32)}})
	})
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(50 * time.Millisecond) {
		got, err := r.Resolve(t.Context(), netip.Addr{}, absent)
		if err == nil && got.LinkAddr == p.B.LinkAddr {
			return
		}
		if !errors.Is(err, endpoint.ErrUnreachable) || time.Now().After(deadline) {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
}

func TestStaleNeighbourIsUsedAndProbed(t *testing.T) {
	p, r, uplink := resolver(t)
	moved := wire.LinkAddr{2, 0, 0, 0, 0, 0x77}
	hop := netip.MustParseAddr("10.0.0.2")
	neigh := netlink.Neigh{LinkIndex: uplink.Attrs().Index, State: netlink.NUD_STALE, IP: hop.AsSlice(), HardwareAddr: moved[:]}
	do(t, p.A, func() error { return netlink.NeighSet(&neigh) })
	if got, err := r.Resolve(t.Context(), netip.Addr{}, hop); err != nil || got.LinkAddr != moved {
		t.Errorf("got %+v, %v; want the stale address", got, err)
	}
	do(t, p.A, func() error {
		list, err := netlink.NeighList(neigh.LinkIndex, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, n := range list {
			if n.IP.Equal(neigh.IP) && n.State&(netlink.NUD_DELAY|netlink.NUD_PROBE|netlink.NUD_REACHABLE) != 0 {
				return nil
			}
		}
		return fmt.Errorf("not probed: %v", list)
	})
}

// If its context ends, Resolve returns the error of the context and not ErrUnreachable.
func TestResolveEndsWithContext(t *testing.T) {
	_, r, _ := resolver(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.Resolve(ctx, netip.Addr{}, netip.MustParseAddr("10.0.0.99"))
	if errors.Is(err, endpoint.ErrUnreachable) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestConcurrentResolve(t *testing.T) {
	p, r, _ := resolver(t)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if got, err := r.Resolve(t.Context(), netip.Addr{}, p.B.Addr.Addr()); err != nil || got.LinkAddr != p.B.LinkAddr {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	wg.Wait()
}

// Many waiters for neighbours take as many descriptors as one.
func TestWaitersUseNoDescriptors(t *testing.T) {
	const waiters = 200
	p, r, _ := resolver(t)
	// The kernel does not give up, so a call of Resolve waits until its timeout.
	do(t, p.A, func() error { return setSysctl("ipv4/neigh/"+p.A.Interface, "mcast_solicit", "600") })
	descriptors := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := descriptors()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range waiters {
		wg.Go(func() {
			err := error(endpoint.ErrUnreachable) // of a timeout before the last goroutine has started
			for errors.Is(err, endpoint.ErrUnreachable) {
				_, err = r.Resolve(ctx, netip.Addr{}, netip.AddrFrom4([4]byte{10, 0, 0, byte(100 + i%100)}))
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
	}
	for r.Waiting() < waiters {
		time.Sleep(time.Millisecond)
	}
	if now := descriptors(); now > before {
		t.Errorf("%d descriptors, %d before", now, before)
	}
	cancel()
	wg.Wait()
	if n := r.Waiting(); n != 0 {
		t.Errorf("%d still wait", n)
	}
}

func TestNextHopsAndNeighbours(t *testing.T) {
	p, r, uplink := resolver6(t)
	ifindex := uplink.Attrs().Index
	hw := wire.LinkAddr{2, 0, 0, 0, 0, 0x77}
	addr := netip.MustParseAddr
	do(t, p.A, func() error {
		_, many, _ := net.ParseCIDR("198.51.100.0/24")
		_, other, _ := net.ParseCIDR("203.0.113.0/24")
		_, via6, _ := net.ParseCIDR("192.0.3.0/24")
		return errors.Join(
			addRoute("192.0.2.0/24", "10.0.0.21", ifindex, 0),
			netlink.RouteAdd(&netlink.Route{Dst: many, MultiPath: []*netlink.NexthopInfo{
				{LinkIndex: ifindex, Gw: net.IPv4(10, 0, 0, 22)}, {LinkIndex: ifindex, Gw: net.IPv4(10, 0, 0, 23)}}}),
			netlink.RouteAdd(&netlink.Route{Dst: other, LinkIndex: ifindex, Gw: net.IPv4(10, 0, 0, 24), Table: 77}),
			addRoute("2001:db8:1::/48", "fd00::21", ifindex, 0),
			addRoute("2001:db8:2::/48", "fe80::22", ifindex, 0),
			netlink.RouteAdd(&netlink.Route{Dst: via6, LinkIndex: ifindex, Via: &netlink.Via{AddrFamily: netlink.FAMILY_V6, Addr: net.ParseIP("fd00::23")}}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: ifindex, State: netlink.NUD_STALE, IP: net.IPv4(10, 0, 0, 31), HardwareAddr: hw[:]}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: ifindex, State: netlink.NUD_STALE, IP: net.ParseIP("fe80::31"), HardwareAddr: hw[:]}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: ifindex, State: netlink.NUD_FAILED, IP: net.IPv4(10, 0, 0, 32)}),
		)
	})
	hops, err := r.NextHops()
	want := map[netip.Addr]bool{addr("10.0.0.21"): true, addr("10.0.0.22"): true, addr("10.0.0.23"): true, addr("10.0.0.24"): true,
		addr("fd00::21"): true, addr("fe80::22"): true, addr("fd00::23"): true}
	if err != nil || !maps.Equal(hops, want) {
		t.Errorf("next hops %v, %v", hops, err)
	}
	for _, a := range []string{"10.0.0.31", "::ffff:10.0.0.31", "fe80::31"} {
		if at, known, err := r.Neighbour(addr(a)); err != nil || !known || at != hw {
			t.Errorf("stale neighbour %s: %v, %v, %v", a, at, known, err)
		}
	}
	for _, a := range []string{"10.0.0.32", "10.0.0.33", "fe80::33"} {
		if at, known, err := r.Neighbour(addr(a)); err != nil || known {
			t.Errorf("%s: %v, %v, %v", a, at, known, err)
		}
	}
}

// A dump during which the kernel's table has changed is repeated, a limited number of times.
func TestInterruptedDumpIsRepeated(t *testing.T) {
	other := errors.New("another")
	for _, c := range []struct {
		interrupted int
		then        error
		want        error
	}{
		{0, nil, nil},
		{3, nil, nil},
		{3, other, other},
		{1000, nil, netlink.ErrDumpInterrupted},
	} {
		tries := 0
		got, err := route.Dump(func() ([]int, error) {
			if tries++; tries <= c.interrupted {
				return []int{1}, netlink.ErrDumpInterrupted // a part
			}
			return []int{1, 2}, c.then
		})
		if !errors.Is(err, c.want) || err == nil && !slices.Equal(got, []int{1, 2}) || err != nil && got != nil {
			t.Errorf("%+v: %v, %v", c, got, err)
		}
	}
}
