//go:build linux

package mux_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/wire"
)

// Default gateways: of all packets, and of those from a source that has a rule. The last byte of the MAC
// address is that of the IP address.
var gateways = map[string]string{"10.0.0.21": "10.0.0.22", "fd00::21": "fd00::22"}

// openRules is a lab whose host has the default gateways. Packets from some sources have those of table 100.
func openRules(t *testing.T, sources ...string) *lab {
	t.Helper()
	l := openLab6(t)
	for usual, ruled := range gateways {
		bits := 8 * len(netip.MustParseAddr(usual).AsSlice())
		all := &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}
		setNeighbour(t, l.A, usual, gatewayLink(usual))
		setNeighbour(t, l.A, ruled, gatewayLink(ruled))
		l.onUplink(func(up netlink.Link) error {
			return errors.Join(
				netlink.RouteAdd(&netlink.Route{Dst: all, Gw: net.ParseIP(usual), LinkIndex: up.Attrs().Index}),
				netlink.RouteAdd(&netlink.Route{Dst: all, Gw: net.ParseIP(ruled), LinkIndex: up.Attrs().Index, Table: 100}))
		})
	}
	for _, source := range sources {
		l.addRule(source)
	}
	return l
}

// addRule makes packets from an address take the routes of table 100.
func (l *lab) addRule(source string) {
	l.t.Helper()
	a := netip.MustParseAddr(source)
	rule := netlink.NewRule()
	rule.Src, rule.Table, rule.Family = &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, 100, netlink.FAMILY_V6
	if a.Is4() {
		rule.Family = netlink.FAMILY_V4
	}
	l.onUplink(func(netlink.Link) error { return netlink.RuleAdd(rule) })
}

func gatewayLink(gw string) [6]byte {
	b := netip.MustParseAddr(gw).AsSlice()
	return [6]byte{2, 0, 0, 0, 7, b[len(b)-1]}
}

// A route can be asked for from the addresses of the uplink and from those that the lease owns. Rules for a source are
// followed, but not for an owned IPv4 address.
func TestResolveFromSources(t *testing.T) {
	t.Parallel()
	l := openRules(t, "10.0.0.5", "10.0.0.77", "fd00::77")
	addrOn(t, l.A, l.A.Interface, "10.0.0.5/24")
	owner, other := l.open(addrTag("10.0.0.77"), addrTag("fd00::77")), l.open()
	const v4, v6 = "192.0.2.1", "2001:db8::1"
	resolve := func(a *app, src, dst string) (endpoint.Route, error) {
		var from netip.Addr
		if src != "" {
			from = netip.MustParseAddr(src)
		}
		return a.lease.Resolve(t.Context(), from, netip.MustParseAddr(dst))
	}
	for _, c := range []struct {
		by                    *app
		src, dst, source, hop string
		link                  wire.LinkAddr
	}{
		{other, "", v4, "10.0.0.1", "10.0.0.21", gatewayLink("10.0.0.21")},
		{other, "10.0.0.1", v4, "10.0.0.1", "10.0.0.21", gatewayLink("10.0.0.21")},
		{other, "10.0.0.5", v4, "10.0.0.5", "10.0.0.22", gatewayLink("10.0.0.22")},
		{other, "::ffff:10.0.0.5", "::ffff:" + v4, "10.0.0.5", "10.0.0.22", gatewayLink("10.0.0.22")},
		{owner, "10.0.0.77", v4, "10.0.0.77", "10.0.0.21", gatewayLink("10.0.0.21")},
		{other, "", v6, "fd00::1", "fd00::21", gatewayLink("fd00::21")},
		{owner, "fd00::77", v6, "fd00::77", "fd00::22", gatewayLink("fd00::22")},
		{other, "10.0.0.5", "10.0.0.77", "10.0.0.5", "10.0.0.77", l.A.LinkAddr}, // of this host, another endpoint's
		{owner, "10.0.0.77", "10.0.0.5", "10.0.0.77", "10.0.0.5", l.A.LinkAddr},
		{owner, "fd00::77", "fd00::1", "fd00::77", "fd00::1", l.A.LinkAddr},
	} {
		want := endpoint.Route{Source: netip.MustParseAddr(c.source), NextHop: netip.MustParseAddr(c.hop), LinkAddr: c.link, MTU: 1500}
		if got, err := resolve(c.by, c.src, c.dst); err != nil || got != want {
			t.Errorf("from %q to %s: %+v, %v; want %+v", c.src, c.dst, got, err, want)
		}
	}
	// A rule for the address that the kernel chooses is not one for the owned address.
	l.addRule("10.0.0.1")
	for src, hop := range map[string]string{"": "10.0.0.22", "10.0.0.77": "10.0.0.21"} {
		if got, err := resolve(owner, src, v4); err != nil || got.NextHop != netip.MustParseAddr(hop) {
			t.Errorf("from %q, with a rule for 10.0.0.1: %+v, %v; want hop %s", src, got, err, hop)
		}
	}
	refused := func(a *app, src, dst, says string) {
		t.Helper()
		if got, err := resolve(a, src, dst); !errors.Is(err, endpoint.ErrNoRoute) || !strings.Contains(err.Error(), says) || len(err.Error()) > 200 {
			t.Errorf("from %.50s to %s: %+v, %.300v", src, dst, got, err)
		}
	}
	const foreign = "neither an address of the uplink uplink nor owned"
	for _, src := range []string{"10.0.0.77", "10.0.0.99", "127.0.0.1", "0.0.0.0", "10.0.0.255", "224.0.0.1"} { // 10.0.0.77 is another endpoint's
		refused(other, src, v4, foreign)
	}
	for _, src := range []string{"fd00::77", "fd00::99", "::1", "::", "ff02::1"} {
		refused(other, src, v6, foreign)
	}
	refused(owner, "10.0.0.1", v6, "different families")
	refused(owner, "fd00::1%"+strings.Repeat("<", 12000), v6, "with a zone")
	// A source that the uplink or the lease has no longer.
	addrOff(t, l.A, l.A.Interface, "10.0.0.5/24")
	refused(other, "10.0.0.5", v4, foreign)
	testutil.Must(t, owner.lease.Unclaim(t.Context(), addrTag("fd00::77")))
	refused(owner, "fd00::77", v6, foreign)
}

// A notice of a destination is about the routes from all sources.
func TestRouteNoticesOfAllSources(t *testing.T) {
	t.Parallel()
	l := openRules(t, "10.0.0.5")
	addrOn(t, l.A, l.A.Interface, "10.0.0.5/24")
	a := l.open()
	for _, src := range []string{"10.0.0.1", "10.0.0.5"} {
		_, err := a.lease.Resolve(t.Context(), netip.MustParseAddr(src), netip.MustParseAddr("192.0.2.1"))
		testutil.Must(t, err)
	}
	for _, gw := range []string{"10.0.0.21", "10.0.0.22"} {
		notices, stop := watchNotices(a.lease)
		at := [6]byte{2, 0, 0, 0, 1, 0}
		testutil.Eventually(t, "a notice of the destination behind "+gw, func() bool {
			at[5]++ // again, since a notice of all routes at the same time includes it
			setNeighbour(t, l.A, gw, at)
			return notices.has(routeTo("192.0.2.1"))
		})
		stop()
	}
}

// A RST leaves by the route from its connection's address.
func TestResetsFollowRules(t *testing.T) {
	t.Parallel()
	l := openRules(t, "10.0.0.5", "fd00::77")
	addrOn(t, l.A, l.A.Interface, "10.0.0.5/24")
	table, err := datapath.NewConnections()
	testutil.Must(t, err)
	defer table.Close()
	a := l.openRequest(endpoint.Request{
		Tags:        []endpoint.Tag{tcpTag("10.0.0.1:7000"), tcpTag("10.0.0.5:7000"), addrTag("10.0.0.77"), addrTag("fd00::77")},
		Connections: table.File(),
	})
	want := []struct{ reset, gw string }{
		{"10.0.0.1:7000 192.0.2.1:5000 0x1", "10.0.0.21"},
		{"10.0.0.5:7000 192.0.2.1:5000 0x2", "10.0.0.22"},
		{"10.0.0.77:7000 192.0.2.1:5000 0x3", "10.0.0.21"},
		{"fd00::77:7000 2001:db8::1:5000 0x4", "fd00::22"},
	}
	copy(table.Records(), []wire.Connection{
		record("10.0.0.1:7000", "192.0.2.1:5000", 1), record("10.0.0.5:7000", "192.0.2.1:5000", 2),
		record("10.0.0.77:7000", "192.0.2.1:5000", 3), record("[fd00::77]:7000", "[2001:db8::1]:5000", 4),
	})
	frames := openCapture(t, l.B)
	testutil.Must(t, a.lease.Close())
	frame := make([]byte, 2048)
	for len(want) > 0 {
		n, _, err := unix.Recvfrom(frames.fd, frame, 0)
		testutil.Must(t, err)
		text, ok := rst(t, frame[:n])
		if !ok {
			continue
		}
		if text != want[0].reset || [6]byte(frame) != gatewayLink(want[0].gw) {
			t.Fatalf("%s to %x, want %s to %s", text, frame[:6], want[0].reset, want[0].gw)
		}
		want = slices.Delete(want, 0, 1)
	}
}
