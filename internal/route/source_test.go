//go:build linux

package route_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/wire"
)

// choices is what the kernel of host A does with packets of its sockets: it sends them by the uplink,
// whose other end is B's, or by the interface other, whose other end is named end.
type choices struct {
	t    *testing.T
	p    *netlab.Pair
	r    *route.Resolver
	taps []unix.PollFd // on the other ends: of the uplink, of other
}

// newChoices adds the interface other to host A. The gateways g are the neighbours with the MAC address gatewayLink(g).
func newChoices(t *testing.T, p *netlab.Pair, r *route.Resolver, gateways ...string) *choices {
	t.Helper()
	c := &choices{t: t, p: p, r: r}
	do(t, p.A, func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other"}, PeerName: "end"}); err != nil {
			return err
		}
		for _, name := range []string{"end", "other"} {
			l, err := netlink.LinkByName(name)
			if err == nil {
				err = netlink.LinkSetUp(l)
			}
			if err != nil {
				return err
			}
		}
		for _, gw := range gateways {
			link, hw := index("uplink"), gatewayLink(gw)
			if strings.HasPrefix(gw, "10.0.9.") {
				link = index("other")
			}
			n := &netlink.Neigh{LinkIndex: link, State: netlink.NUD_PERMANENT, IP: net.ParseIP(gw), HardwareAddr: hw[:]}
			if err := netlink.NeighSet(n); err != nil {
				return fmt.Errorf("neighbour %s: %w", gw, err)
			}
		}
		return nil
	})
	c.tap(p.B, p.B.Interface)
	c.tap(p.A, "end")
	return c
}

// gatewayLink is a MAC address that ends with the last byte of a gateway's address.
func gatewayLink(gw string) wire.LinkAddr {
	b := netip.MustParseAddr(gw).AsSlice()
	return wire.LinkAddr{2, 0, 0, 0, 7, b[len(b)-1]}
}

// index is the number of an interface in the calling thread's namespace; 0: there is none.
func index(name string) int {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return 0
	}
	return l.Attrs().Index
}

// tap receives all frames that arrive at an interface.
func (c *choices) tap(h *netlab.Host, name string) {
	c.t.Helper()
	do(c.t, h, func() error {
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in network order
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		c.t.Cleanup(func() { unix.Close(fd) })
		c.taps = append(c.taps, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all & 0xffff, Ifindex: index(name)})
	})
}

// sent is a packet of a kernel's socket.
type sent struct {
	source netip.Addr
	to     wire.LinkAddr
	other  bool // it left by the interface other
}

// send sends a datagram by a connected UDP socket of host A, which is bound to src if that is valid.
func (c *choices) send(src, dst netip.Addr) (s sent, err error) {
	c.t.Helper()
	mark := []byte("from " + src.String() + " to " + dst.String())
	var conn net.Conn
	err = c.p.A.Do(func() error {
		d := net.Dialer{Control: transparent}
		if src.IsLinkLocalUnicast() {
			src = src.WithZone(c.p.A.Interface)
		}
		if src.IsValid() {
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(src, 0))
		}
		if dst.Is6() && (dst.IsLinkLocalUnicast() || dst.IsMulticast()) {
			dst = dst.WithZone(c.p.A.Interface)
		}
		conn, err = d.Dial("udp", netip.AddrPortFrom(dst, 9).String())
		return err
	})
	if err != nil {
		return s, err
	}
	defer conn.Close()
	s.source = conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
	if _, err := conn.Write(mark); err != nil {
		return s, err
	}
	frame := make([]byte, 2048)
	for {
		n, err := unix.Poll(c.taps, int(testTimeout.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			c.t.Fatalf("%s: no frame, %v", mark, err)
		}
		for i, tap := range c.taps {
			n, _, err := unix.Recvfrom(int(tap.Fd), frame, 0)
			if err == nil && bytes.HasSuffix(frame[:n], mark) {
				return sent{s.source, wire.LinkAddr(frame[:6]), i == 1}, nil
			}
		}
	}
}

// transparent lets a socket send from an IPv6 address that the host does not have.
func transparent(_, _ string, c syscall.RawConn) (err error) {
	cerr := c.Control(func(fd uintptr) {
		if domain, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN); domain == unix.AF_INET6 {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
		}
	})
	return errors.Join(err, cerr)
}

// check compares the resolver's answer with what the kernel sends, and returns the answer.
func (c *choices) check(from, to string) endpoint.Route {
	c.t.Helper()
	var src netip.Addr
	if from != "" {
		src = netip.MustParseAddr(from)
	}
	dst := netip.MustParseAddr(to)
	want, err := c.send(src, dst)
	if err != nil {
		c.t.Errorf("the kernel from %q to %s: %v", from, to, err)
		return endpoint.Route{}
	}
	if dst.Is6() && !src.IsValid() { // see Resolver.route: here the kernel's socket has not taken the second step
		source := want.source
		if want, err = c.send(source, dst); err != nil {
			c.t.Fatal(err)
		}
	}
	got, err := c.r.Resolve(c.t.Context(), src, dst)
	switch {
	case want.other:
		if !errors.Is(err, endpoint.ErrNoRoute) || !strings.Contains(err.Error(), "leaves by other, not by the uplink uplink") {
			c.t.Errorf("from %q to %s: %+v, %v; the kernel sends by the interface other", from, to, got, err)
		}
	case err != nil, got.Source != want.source, got.LinkAddr != want.to:
		c.t.Errorf("from %q to %s: %+v, %v; the kernel sends from %v to %v", from, to, got, err, want.source, want.to)
	}
	return got
}

// addrs adds addresses to an interface of the calling thread's namespace.
func addrs(name string, list ...string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, a := range list {
		p := netip.MustParsePrefix(a)
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(l, addr); err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
	}
	return nil
}

// routeTo is a route to a prefix by a gateway, in a table.
func routeTo(dst, gw string, table int) *netlink.Route {
	_, ipnet, err := net.ParseCIDR(dst)
	if err != nil {
		panic(err)
	}
	return &netlink.Route{Dst: ipnet, Gw: net.ParseIP(gw), Table: table, LinkIndex: index("uplink")}
}

// ruleFrom makes packets from an address look up a table.
func ruleFrom(src string, table int) *netlink.Rule {
	a := netip.MustParseAddr(src)
	rule := netlink.NewRule()
	rule.Src = &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
	rule.Table = table
	rule.Family = netlink.FAMILY_V6
	if a.Is4() {
		rule.Family = netlink.FAMILY_V4
	}
	return rule
}

// The route and the source are those of the kernel's own connected sockets: with rules for a source, several subnets,
// a source that a route prefers, and several paths.
func TestRoutesFromSources(t *testing.T) {
	p, r, _ := resolver(t)
	c := newChoices(t, p, r, "10.0.0.21", "10.0.0.22", "10.0.1.23", "10.0.0.77", "10.0.1.77", "10.0.9.24")
	do(t, p.A, func() error {
		prefers := routeTo("198.51.100.0/24", "10.0.0.21", 0)
		prefers.Src = net.ParseIP("10.0.1.1")
		paths := routeTo("192.0.2.0/24", "", 0)
		paths.LinkIndex, paths.MultiPath = 0, []*netlink.NexthopInfo{
			{LinkIndex: index("uplink"), Gw: net.ParseIP("10.0.0.21")}, {LinkIndex: index("uplink"), Gw: net.ParseIP("10.0.0.22")}}
		away := routeTo("203.0.113.0/24", "", 0)
		away.LinkIndex, away.MultiPath = 0, []*netlink.NexthopInfo{
			{LinkIndex: index("uplink"), Gw: net.ParseIP("10.0.0.21")}, {LinkIndex: index("other"), Gw: net.ParseIP("10.0.9.24")}}
		other := routeTo("0.0.0.0/0", "10.0.9.24", 102)
		other.LinkIndex = index("other")
		return errors.Join(
			addrs("uplink", "10.0.0.5/24", "10.0.0.6/24", "10.0.0.7/24", "10.0.1.1/24"),
			addrs("other", "10.0.9.1/24"),
			netlink.RouteAdd(routeTo("0.0.0.0/0", "10.0.0.21", 0)),
			netlink.RouteAdd(routeTo("0.0.0.0/0", "10.0.0.22", 100)),
			netlink.RouteAdd(routeTo("0.0.0.0/0", "10.0.1.23", 101)),
			netlink.RouteAdd(other),
			netlink.RouteAdd(prefers),
			netlink.RouteAdd(paths),
			netlink.RouteAdd(away),
			netlink.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Type: unix.RTN_PROHIBIT, Table: 103}),
			netlink.RuleAdd(ruleFrom("10.0.0.5", 100)),
			netlink.RuleAdd(ruleFrom("10.0.1.1", 101)),
			netlink.RuleAdd(ruleFrom("10.0.0.6", 102)),
			netlink.RuleAdd(ruleFrom("10.0.0.7", 103)),
		)
	})
	for _, src := range []string{"", "10.0.0.1", "10.0.0.5", "10.0.0.6", "10.0.1.1"} {
		for _, dst := range []string{"8.8.8.8", "10.0.0.77", "10.0.1.77", "198.51.100.9", "10.0.0.255", "255.255.255.255", "224.1.2.3"} {
			c.check(src, dst)
		}
	}
	hops, uplinks := map[netip.Addr]int{}, map[netip.Addr]int{}
	for i := range 32 {
		for _, src := range []string{"", "10.0.0.1"} {
			hops[c.check(src, fmt.Sprintf("192.0.2.%d", i+1)).NextHop]++
			uplinks[c.check(src, fmt.Sprintf("203.0.113.%d", i+1)).NextHop]++
		}
	}
	if len(hops) != 2 || len(uplinks) != 2 {
		t.Errorf("only one of two paths was chosen: %v, %v", hops, uplinks)
	}
	own := netip.MustParseAddr("10.0.1.1")
	if got, err := r.Resolve(t.Context(), netip.MustParseAddr("10.0.0.5"), own); err != nil || got.LinkAddr != p.A.LinkAddr || got.Source == own {
		t.Errorf("to an address of the host: %+v, %v", got, err)
	}
	_, err := r.Resolve(t.Context(), netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("8.8.8.8"))
	if _, kernel := c.send(netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("8.8.8.8")); !errors.Is(kernel, unix.EACCES) ||
		!errors.Is(err, endpoint.ErrProhibited) {
		t.Errorf("a prohibited source: %v; the kernel: %v", err, kernel)
	}
}

// The kernel chooses among IPv6 addresses by RFC 6724. A rule for a source is followed also if the host does not have
// the address.
func TestRoutesFromSourcesIPv6(t *testing.T) {
	p, r, _ := resolver6(t)
	gateways := []string{"fd00::21", "fd00::22", "fd00::23", "2001:db8:1::77", "2001:db8:2::77"}
	c := newChoices(t, p, r, gateways...)
	do(t, p.A, func() error {
		prefers := routeTo("2001:db8:ff::/48", "fd00::21", 0)
		prefers.Src = net.ParseIP("2001:db8:1::1")
		return errors.Join(
			addrs("uplink", "2001:db8:1::1/64", "2001:db8:2::1/64"),
			netlink.RouteAdd(routeTo("::/0", "fd00::21", 0)),
			netlink.RouteAdd(routeTo("::/0", "fd00::22", 100)),
			netlink.RouteAdd(routeTo("::/0", "fd00::23", 101)),
			netlink.RouteAdd(prefers),
			netlink.RuleAdd(ruleFrom("2001:db8:2::1", 100)),
			netlink.RuleAdd(ruleFrom("2001:db8:1::50", 101)),
		)
	})
	sources := map[netip.Addr]bool{}
	for _, src := range []string{"", "fd00::1", "2001:db8:1::1", "2001:db8:2::1", "2001:db8:1::50"} {
		for _, dst := range []string{"2001:db8:1:7::1", "2001:db8:2:7::1", "fd00:7::1", "2001:db8:1::77", "2001:db8:2::77", "2001:db8:ff::9", "ff02::fb", "ff0e::fb"} {
			got := c.check(src, dst)
			sources[got.Source] = sources[got.Source] || src == ""
		}
	}
	delete(sources, netip.MustParseAddr("2001:db8:1::50"))
	for a, chosen := range sources {
		if !chosen {
			t.Errorf("the kernel never chose %v of %v", a, sources)
		}
	}
	// Without a route from any source, there are still those from some.
	do(t, p.A, func() error { return netlink.RouteDel(routeTo("::/0", "fd00::21", 0)) })
	c.check("", "2001:db8:2:7::1")
	for _, dst := range []string{"fd00:7::1", "2001:db8:1:7::1"} {
		_, err := r.Resolve(t.Context(), netip.Addr{}, netip.MustParseAddr(dst))
		if _, kernel := c.send(netip.Addr{}, netip.MustParseAddr(dst)); !errors.Is(kernel, unix.ENETUNREACH) || !errors.Is(err, endpoint.ErrNoRoute) {
			t.Errorf("no route to %s: %v; the kernel: %v", dst, err, kernel)
		}
	}
}

// A neighbour is probed from an address of the host, also for packets from an address that the host does not have: else
// the kernel would not get the answer.
func TestProbeOfRouteFromOwnedAddress(t *testing.T) {
	p, r, uplink := resolver6(t)
	c := newChoices(t, p, r)
	moved := wire.LinkAddr{2, 0, 0, 0, 0, 0x77}
	setNeigh(t, p, uplink.Attrs().Index, "fd00::2", netlink.NUD_STALE, moved)
	if got, err := r.Resolve(t.Context(), netip.MustParseAddr("fd00::50"), netip.MustParseAddr("fd00::2")); err != nil || got.LinkAddr != moved {
		t.Fatalf("got %+v, %v", got, err)
	}
	frame := make([]byte, 2048)
	for {
		if n, err := unix.Poll(c.taps[:1], int(testTimeout.Milliseconds())); err != unix.EINTR && n != 1 {
			t.Fatalf("no probe: %v", err)
		}
		n, _, err := unix.Recvfrom(int(c.taps[0].Fd), frame, 0)
		if err != nil || n < wire.EthernetHeaderLen+wire.IPv6HeaderLen || wire.LinkAddr(frame[:6]) != moved {
			continue
		}
		if from := netip.AddrFrom16([16]byte(frame[wire.EthernetHeaderLen+8:])); from != netip.MustParseAddr("fd00::1") {
			t.Errorf("probed from %v", from)
		}
		return
	}
}

// When a rule is added or removed, any answer may have changed.
func TestRulesChangeRoutes(t *testing.T) {
	p, r, _ := resolver6(t)
	newChoices(t, p, r, "10.0.0.21", "10.0.0.22", "fd00::21", "fd00::22")
	for _, f := range []struct{ src, dst, gw, ruled, all string }{
		{"10.0.0.1", "8.8.8.8", "10.0.0.21", "10.0.0.22", "0.0.0.0/0"},
		{"fd00::1", "2001:db8::1", "fd00::21", "fd00::22", "::/0"},
	} {
		do(t, p.A, func() error {
			return errors.Join(netlink.RouteAdd(routeTo(f.all, f.gw, 0)), netlink.RouteAdd(routeTo(f.all, f.ruled, 100)))
		})
		by := func(gw string) {
			t.Helper()
			for _, src := range []netip.Addr{{}, netip.MustParseAddr(f.src)} {
				got, err := r.Resolve(t.Context(), src, netip.MustParseAddr(f.dst))
				if err != nil || got.NextHop != netip.MustParseAddr(gw) || got.LinkAddr != gatewayLink(gw) || got.Source != netip.MustParseAddr(f.src) {
					t.Errorf("from %v: %+v, %v; want gateway %s", src, got, err, gw)
				}
			}
		}
		by(f.gw)
		reported := changes(r)
		do(t, p.A, func() error { return netlink.RuleAdd(ruleFrom(f.src, 100)) })
		expectChange(t, reported, netip.Addr{}, "rule added")
		by(f.ruled)
		reported = changes(r)
		do(t, p.A, func() error { return netlink.RuleDel(ruleFrom(f.src, 100)) })
		expectChange(t, reported, netip.Addr{}, "rule removed")
		by(f.gw)
	}
}

// Only addresses of the uplink are its own.
func TestHas(t *testing.T) {
	p, r, _ := resolver6(t)
	newChoices(t, p, r)
	do(t, p.A, func() error { return errors.Join(addrs("uplink", "10.0.0.5/24"), addrs("other", "10.0.9.1/24")) })
	for _, a := range []string{"10.0.0.1", "10.0.0.5", "fd00::1", linkLocal(p.A.LinkAddr).String()} {
		if has, err := r.Has(netip.MustParseAddr(a)); err != nil || !has {
			t.Errorf("%s: %v, %v", a, has, err)
		}
	}
	for _, a := range []string{"10.0.9.1", "10.0.0.2", "127.0.0.1", "0.0.0.0", "10.0.0.255", "fd00::2", "::1", "::", "ff02::1"} {
		if has, err := r.Has(netip.MustParseAddr(a)); err != nil || has {
			t.Errorf("%s: %v, %v", a, has, err)
		}
	}
}

// Of two interfaces in one subnet the kernel takes one for each packet, whatever address it comes from. The resolver of
// that one answers, and that of the other one refuses.
func TestTwoInterfacesInOneSubnet(t *testing.T) {
	p, first, _ := resolver(t)
	c := newChoices(t, p, first, "10.0.0.21")
	var second *route.Resolver
	do(t, p.A, func() (err error) {
		hw := gatewayLink("10.0.0.22")
		if second, err = route.New(p.A.NS, index("other"), func(netip.Addr) {}, func() {}); err != nil {
			return err
		}
		return errors.Join(addrs("other", "10.0.0.5/24"), netlink.NeighSet(&netlink.Neigh{
			LinkIndex: index("other"), State: netlink.NUD_PERMANENT, IP: net.ParseIP("10.0.0.21"), HardwareAddr: hw[:]}))
	})
	t.Cleanup(func() { second.Close() })
	dst := netip.MustParseAddr("10.0.0.21")
	check := func(what string, others int) {
		t.Helper()
		for _, from := range []string{"", "10.0.0.1", "10.0.0.5"} {
			var src netip.Addr
			if from != "" {
				src = netip.MustParseAddr(from)
			}
			want, err := c.send(src, dst)
			if err != nil {
				t.Fatal(err)
			}
			answers, refuses, uplink := first, second, "other"
			if want.other {
				answers, refuses, uplink = second, first, "uplink"
				others--
			}
			if got, err := answers.Resolve(t.Context(), src, dst); err != nil || got.Source != want.source || got.LinkAddr != want.to {
				t.Errorf("%s, from %q: %+v, %v; the kernel %+v", what, from, got, err, want)
			}
			if got, err := refuses.Resolve(t.Context(), src, dst); !errors.Is(err, endpoint.ErrNoRoute) || !strings.Contains(err.Error(), "not by the uplink "+uplink) {
				t.Errorf("%s, from %q: %+v, %v; the kernel sends not by %s", what, from, got, err, uplink)
			}
		}
		if others != 0 {
			t.Errorf("%s: the kernel chose the second interface %d times less than it should", what, others)
		}
	}
	check("by the order of the routes", 0)
	do(t, p.A, func() error {
		own := routeTo("10.0.0.0/24", "", 100)
		own.LinkIndex, own.Scope = index("other"), netlink.SCOPE_LINK
		return errors.Join(netlink.RouteAdd(own), netlink.RuleAdd(ruleFrom("10.0.0.5", 100)))
	})
	check("with a rule for the second address", 1)
	do(t, p.A, func() error {
		host := routeTo("10.0.0.21/32", "", 0)
		host.LinkIndex, host.Scope = index("other"), netlink.SCOPE_LINK
		return netlink.RouteAdd(host)
	})
	check("with a route by the second interface", 3)
	for _, at := range []string{"10.0.0.1", "10.0.0.5"} { // the host's own addresses are their interface's
		a := netip.MustParseAddr(at)
		_, err := first.Resolve(t.Context(), netip.Addr{}, a)
		_, err2 := second.Resolve(t.Context(), netip.Addr{}, a)
		if (err == nil) != (at == "10.0.0.1") || (err2 == nil) != (at == "10.0.0.5") {
			t.Errorf("to %s: %v; %v", at, err, err2)
		}
	}
}
