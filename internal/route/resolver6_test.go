//go:build linux

package route_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/wire"
)

// linkLocal is the link-local address that the kernel makes of a MAC address
// (RFC 4291, appendix A).
func linkLocal(a wire.LinkAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: a[0] ^ 2, 9: a[1], 10: a[2], 11: 0xff, 12: 0xfe, 13: a[3], 14: a[4], 15: a[5]})
}

func TestResolveIPv6(t *testing.T) {
	p, r, uplink := resolver6(t)
	ifindex := uplink.Attrs().Index
	gateway := linkLocal(p.B.LinkAddr)
	do(t, p.A, func() error {
		_, unreachable, _ := net.ParseCIDR("2001:db8:3::/48")
		return errors.Join(
			addRoute("2001:db8:1::/48", "fd00::2", ifindex, 0),
			addRoute("2001:db8:2::/48", gateway.String(), ifindex, 1400),
			addRoute("2001:db8:2:9::/64", "fd00::2", ifindex, 0), // more specific
			netlink.RouteAdd(&netlink.Route{Dst: unreachable, Type: 7 /* unreachable */}),
		)
	})
	addr := netip.MustParseAddr
	own, peer, link := addr("fd00::1"), addr("fd00::2"), linkLocal(p.A.LinkAddr)
	for _, c := range []struct {
		dst  string
		want endpoint.Route
	}{
		{"fd00::2", endpoint.Route{Source: own, NextHop: peer, LinkAddr: p.B.LinkAddr, MTU: 1500}},
		{"fd00::2", endpoint.Route{Source: own, NextHop: peer, LinkAddr: p.B.LinkAddr, MTU: 1500}}, // in the neighbour table now
		{"2001:db8:1::9", endpoint.Route{Source: own, NextHop: peer, LinkAddr: p.B.LinkAddr, MTU: 1500}},
		{"2001:db8:2::9", endpoint.Route{Source: own, NextHop: gateway, LinkAddr: p.B.LinkAddr, MTU: 1400}},
		{"2001:db8:2:9::9", endpoint.Route{Source: own, NextHop: peer, LinkAddr: p.B.LinkAddr, MTU: 1500}},
		{gateway.String(), endpoint.Route{Source: link, NextHop: gateway, LinkAddr: p.B.LinkAddr, MTU: 1500}},
		{"fd00::1", endpoint.Route{Source: own, NextHop: own, LinkAddr: p.A.LinkAddr, MTU: 1500}},
		{link.String(), endpoint.Route{Source: link, NextHop: link, LinkAddr: p.A.LinkAddr, MTU: 1500}},
		{"ff02::fb", endpoint.Route{Source: link, NextHop: addr("ff02::fb"), LinkAddr: wire.LinkAddr{0x33, 0x33, 0, 0, 0, 0xfb}, MTU: 1500}},
	} {
		got, err := r.Resolve(t.Context(), netip.Addr{}, addr(c.dst))
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", c.dst, got, err, c.want)
		}
	}
	for _, c := range []struct {
		dst, says string
		noRoute   bool
	}{
		{"2001:db8:3::9", "no route to host", false},
		{"2001:db8:4::9", "network is unreachable", true},
		{"::1", "network is unreachable", true},
		{"::", "not the address of a host", false},
		{"fe80::1%uplink", "with a zone", false},
	} {
		got, err := r.Resolve(t.Context(), netip.Addr{}, addr(c.dst))
		if !errors.Is(err, endpoint.ErrUnreachable) || errors.Is(err, endpoint.ErrNoRoute) != c.noRoute || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %+v, %v; want unreachable: %s", c.dst, got, err, c.says)
		}
	}

	// A router advertisement can have a smaller MTU than the link's.
	do(t, p.A, func() error { return setSysctl("ipv6/conf/"+p.A.Interface, "mtu", "1300") })
	for dst, want := range map[string]uint32{"fd00::2": 1300, "10.0.0.2": 1500} {
		if got, err := r.Resolve(t.Context(), netip.Addr{}, addr(dst)); err != nil || got.MTU != want {
			t.Errorf("%s: MTU %d, %v; want %d", dst, got.MTU, err, want)
		}
	}
}

func TestResolveWithoutAnswerIPv6(t *testing.T) {
	p, r, _ := resolver6(t)
	do(t, p.A, func() error {
		return errors.Join(
			setSysctl("ipv6/neigh/"+p.A.Interface, "mcast_solicit", "1"),
			setSysctl("ipv6/neigh/"+p.A.Interface, "retrans_time_ms", "10"),
		)
	})
	_, err := r.Resolve(t.Context(), netip.Addr{}, netip.MustParseAddr("fd00::99"))
	if !errors.Is(err, endpoint.ErrUnreachable) || !strings.Contains(err.Error(), "no answer to neighbour discovery") {
		t.Errorf("got %v", err)
	}
}

// An IPv4 route by an IPv6 gateway (RTA_VIA, RFC 8950), global or link-local, leads to the gateway's MAC address.
func TestResolveByGatewayOfOtherFamily(t *testing.T) {
	p, r, uplink := resolver6(t)
	var far6 netip.Addr // the link-local address of B
	do(t, p.B, func() error {
		link, err := netlink.LinkByName(p.B.Interface)
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
		for _, a := range addrs {
			if a.IP.IsLinkLocalUnicast() {
				far6, _ = netip.AddrFromSlice(a.IP)
			}
		}
		return err
	})
	for dst, gw := range map[string]netip.Addr{"192.0.2.9": netip.MustParseAddr("fd00::2"), "198.51.100.9": far6} {
		do(t, p.A, func() error {
			return netlink.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.ParseIP(dst), Mask: net.CIDRMask(32, 32)}, LinkIndex: uplink.Attrs().Index,
				Via: &netlink.Via{AddrFamily: netlink.FAMILY_V6, Addr: gw.AsSlice()}})
		})
		want := endpoint.Route{Source: netip.MustParseAddr("10.0.0.1"), NextHop: gw, LinkAddr: p.B.LinkAddr, MTU: 1500}
		if got, err := r.Resolve(t.Context(), netip.Addr{}, netip.MustParseAddr(dst)); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", dst, got, err, want)
		}
	}
}
