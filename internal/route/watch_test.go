//go:build linux

package route_test

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/wire"
)

const testTimeout = 2 * time.Minute

// changesOf are the channels on which resolvers report changes.
var changesOf sync.Map

// changes returns the channel with the changes that a resolver reports from now on.
func changes(r *route.Resolver) <-chan netip.Addr {
	c, _ := changesOf.Load(r)
	reported := c.(chan netip.Addr)
	for len(reported) > 0 {
		<-reported
	}
	return reported
}

// expectChange waits for the next change, which must be of hop; not valid: of any answer. The kernel can
// change addresses and routes by itself, so a change of any answer may come at any time.
func expectChange(t *testing.T, c <-chan netip.Addr, hop netip.Addr, what string) {
	t.Helper()
	for timeout := time.After(testTimeout); ; {
		select {
		case got := <-c:
			if got.IsValid() && got != hop {
				t.Errorf("%s: notice about %v, want %v", what, got, hop)
			}
			if got == hop {
				return
			}
		case <-timeout:
			t.Fatalf("%s: no notice", what)
		}
	}
}

// expectNone fails the test if a change of a hop is reported.
func expectNone(t *testing.T, c <-chan netip.Addr) {
	t.Helper()
	for len(c) > 0 {
		if got := <-c; got.IsValid() {
			t.Errorf("notice about %v, which has not changed", got)
		}
	}
}

// setMAC gives a host another MAC address, without an announcement.
func setMAC(t *testing.T, h *netlab.Host, to wire.LinkAddr) {
	t.Helper()
	do(t, h, func() error {
		l, err := netlink.LinkByName(h.Interface)
		if err != nil {
			return err
		}
		return netlink.LinkSetHardwareAddr(l, to[:])
	})
}

// setNeigh writes the neighbour table of host A.
func setNeigh(t *testing.T, p *netlab.Pair, ifindex int, ip string, state int, at wire.LinkAddr) {
	t.Helper()
	do(t, p.A, func() error {
		n := &netlink.Neigh{LinkIndex: ifindex, State: state, IP: net.ParseIP(ip)}
		if at != (wire.LinkAddr{}) {
			n.HardwareAddr = at[:]
		}
		return netlink.NeighSet(n)
	})
}

// An event that changes the MAC address of a hop, or whether it is usable, is reported. Other events are not.
func TestChangesOfNeighboursAreReported(t *testing.T) {
	for _, addr := range []string{"10.0.0.77", "fd00::77"} {
		t.Run(addr, func(t *testing.T) {
			p, r, uplink := resolver6(t)
			ifindex, hop := uplink.Attrs().Index, netip.MustParseAddr(addr)
			x, y := wire.LinkAddr{2, 0, 0, 0, 0, 0x77}, wire.LinkAddr{2, 0, 0, 0, 0, 0x78}
			set := func(state int, at wire.LinkAddr) { setNeigh(t, p, ifindex, addr, state, at) }
			reported := changes(r)
			set(netlink.NUD_STALE, x) // not resolved yet
			got, err := r.Resolve(t.Context(), netip.Addr{}, hop)
			if err != nil || got.LinkAddr != x {
				t.Fatalf("got %+v, %v", got, err)
			}
			for _, state := range []int{netlink.NUD_REACHABLE, netlink.NUD_STALE, netlink.NUD_DELAY, netlink.NUD_PERMANENT} {
				set(state, x)
			}
			set(netlink.NUD_STALE, y)
			expectChange(t, reported, hop, "another MAC address")
			set(netlink.NUD_FAILED, wire.LinkAddr{})
			expectChange(t, reported, hop, "failed")
			set(netlink.NUD_REACHABLE, y)
			expectChange(t, reported, hop, "usable again")
			do(t, p.A, func() error {
				return netlink.NeighDel(&netlink.Neigh{LinkIndex: ifindex, IP: hop.AsSlice(), HardwareAddr: y[:]})
			})
			expectChange(t, reported, hop, "deleted") // the kernel sets NUD_FAILED first
			set(netlink.NUD_REACHABLE, x)
			expectChange(t, reported, hop, "usable again, with another MAC address")
			expectNone(t, reported)
		})
	}
}

// Changes of routes, addresses and rules within a short time are reported as one change of any answer. They do not
// delay the report of a neighbour.
func TestChangesOfRoutesAreReportedTogether(t *testing.T) {
	p, r, uplink := resolver6(t)
	reported := changes(r)
	all := netip.Addr{}
	ifindex := uplink.Attrs().Index
	_, dst, _ := net.ParseCIDR("192.0.2.0/24")
	_, dst6, _ := net.ParseCIDR("2001:db8::/32")
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.Dst = 7, 77, dst
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 0, 0, 9), Mask: net.CIDRMask(24, 32)}}
	for _, c := range []struct {
		what string
		do   func() error
	}{
		{"route added", func() error { return addRoute("192.0.2.0/24", "10.0.0.2", ifindex, 0) }},
		{"route replaced", func() error {
			return netlink.RouteReplace(&netlink.Route{Dst: dst, Gw: net.IPv4(10, 0, 0, 3), LinkIndex: ifindex})
		}},
		{"route deleted", func() error { return netlink.RouteDel(&netlink.Route{Dst: dst, LinkIndex: ifindex}) }},
		{"IPv6 route added", func() error { return netlink.RouteAdd(&netlink.Route{Dst: dst6, LinkIndex: ifindex}) }},
		{"address added", func() error { return netlink.AddrAdd(uplink, addr) }},
		{"address deleted", func() error { return netlink.AddrDel(uplink, addr) }},
		{"rule added", func() error { return netlink.RuleAdd(rule) }},
	} {
		do(t, p.A, c.do)
		expectChange(t, reported, all, c.what)
	}
	start := time.Now()
	const many = 500
	do(t, p.A, func() error {
		for i := range many {
			if err := addRoute(fmt.Sprintf("172.16.%d.%d/32", i>>8, i&255), "10.0.0.2", ifindex, 0); err != nil {
				return err
			}
		}
		return nil
	})
	expectChange(t, reported, all, "a burst")
	for len(reported) > 0 {
		<-reported
	}
	// A change of a neighbour is reported at once.
	setNeigh(t, p, ifindex, "10.0.0.77", netlink.NUD_STALE, wire.LinkAddr{2, 0, 0, 0, 0, 0x77})
	hop := netip.MustParseAddr("10.0.0.77")
	if _, err := r.Resolve(t.Context(), netip.Addr{}, hop); err != nil {
		t.Fatal(err)
	}
	setNeigh(t, p, ifindex, "10.0.0.77", netlink.NUD_STALE, wire.LinkAddr{2, 0, 0, 0, 0, 0x78})
	n := 1
	for c := range reported {
		if c == hop {
			break
		}
		n++
	}
	if most := 2 + int(time.Since(start)/(250*time.Millisecond)); n > most {
		t.Errorf("%d routes were reported in %d notices, want %d at most", many, n, most)
	}
}

// After lost events a change of any answer is reported, and later changes are, too.
func TestLostEventsAreReported(t *testing.T) {
	p, r, uplink := resolver(t)
	reported := changes(r)
	r.DropEvents()
	expectChange(t, reported, netip.Addr{}, "events lost")
	do(t, p.A, func() error { return addRoute("192.0.2.0/24", "10.0.0.2", uplink.Attrs().Index, 0) })
	expectChange(t, reported, netip.Addr{}, "route added")
}

// A peer changes its MAC address without an announcement, while the kernel's entry is reachable. Repeated calls of
// Resolve, as a stack makes that gets no answer, find the new address.
func TestChangedMACAddressOfPeerIsFound(t *testing.T) {
	for _, c := range []struct {
		name, addr string
		settled    bool // the kernel's entry is older than locktime
	}{
		{"IPv4", "10.0.0.2", true},
		{"IPv4, new entry", "10.0.0.2", false},
		{"IPv6", "fd00::2", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, r, uplink := resolver6(t)
			peer := netip.MustParseAddr(c.addr)
			if got, err := r.Resolve(t.Context(), netip.Addr{}, peer); err != nil || got.LinkAddr != p.B.LinkAddr {
				t.Fatalf("got %+v, %v", got, err)
			}
			if c.settled {
				awaitAge(t, p, uplink.Attrs().Index, peer)
			}
			reported := changes(r)
			to := wire.LinkAddr{2, 0, 0, 0, 0, 0xcc}
			setMAC(t, p.B, to)
			start := time.Now()
			ask := time.NewTicker(400 * time.Millisecond)
			defer ask.Stop()
			for moved := false; !moved; {
				if time.Since(start) > testTimeout {
					t.Fatalf("not found within %v", testTimeout)
				}
				select {
				case n := <-reported:
					moved = n == peer
				case <-ask.C:
					if _, err := r.Resolve(t.Context(), netip.Addr{}, peer); err != nil {
						t.Fatal(err)
					}
				}
			}
			t.Logf("found %v after the peer moved", time.Since(start).Round(time.Millisecond))
			if got, err := r.Resolve(t.Context(), netip.Addr{}, peer); err != nil || got.LinkAddr != to {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

// awaitAge returns when the entry was last changed more than a second ago.
func awaitAge(t *testing.T, p *netlab.Pair, ifindex int, peer netip.Addr) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		var list []netlink.Neigh
		do(t, p.A, func() (err error) {
			list, err = netlink.NeighList(ifindex, netlink.FAMILY_ALL)
			return err
		})
		for _, n := range list {
			if n.IP.Equal(peer.AsSlice()) && n.Updated > 110 {
				return
			}
		}
	}
	t.Fatalf("no old entry for %v", peer)
}
