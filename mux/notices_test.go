//go:build linux

package mux_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// noticeLog has the notices of a lease.
type noticeLog struct {
	mu   sync.Mutex
	list []endpoint.Notice
}

// watchNotices collects the notices of a lease until stop.
func watchNotices(l *mux.Lease) (h *noticeLog, stop func()) {
	h = &noticeLog{}
	ctx, cancel := context.WithCancel(context.Background())
	changes := l.Notices(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for list := range changes {
			h.mu.Lock()
			h.list = append(h.list, list...)
			h.mu.Unlock()
		}
	}()
	return h, func() { cancel(); <-ended }
}

func (h *noticeLog) all() []endpoint.Notice {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.list)
}

// addrs are the notices of addresses.
func (h *noticeLog) addrs() []endpoint.Notice {
	return slices.DeleteFunc(h.all(), func(n endpoint.Notice) bool {
		return n.Kind != endpoint.NoticeAddrHere && n.Kind != endpoint.NoticeAddrGone
	})
}

func (h *noticeLog) has(n endpoint.Notice) bool { return slices.Contains(h.all(), n) }

// onUplink calls a function with the uplink of host A.
func (l *lab) onUplink(fn func(up netlink.Link) error) {
	l.t.Helper()
	onDevice(l.t, l.A, l.A.Interface, fn)
}

var (
	linkDown  = endpoint.Notice{Kind: endpoint.NoticeLinkDown}
	linkUp    = endpoint.Notice{Kind: endpoint.NoticeLinkUp}
	allRoutes = endpoint.Notice{Kind: endpoint.NoticeRoute}
)

func routeTo(s string) endpoint.Notice {
	return endpoint.Notice{Kind: endpoint.NoticeRoute, Addr: netip.MustParseAddr(s)}
}

// Loops over the notices of a lease get one when the uplink goes down, by its own flags or by its other end, and when
// it goes up. A new loop gets the present state.
func TestLinkNotices(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a, b := l.open(), l.open()
	early, stop := watchNotices(a.lease)
	other, _ := watchNotices(b.lease)
	l.onUplink(netlink.LinkSetDown)
	testutil.Eventually(t, "notices that the link is down", func() bool { return early.has(linkDown) && other.has(linkDown) })
	late, _ := watchNotices(a.lease)
	fresh, _ := watchNotices(l.open().lease)
	for _, h := range []*noticeLog{late, fresh} {
		testutil.Eventually(t, "a notice of the state", func() bool { return len(h.all()) > 0 })
		if got := h.all(); !slices.Equal(got, []endpoint.Notice{linkDown}) {
			t.Errorf("a late loop, or one of a new endpoint, got %v", got)
		}
	}
	stop()
	before := early.all()
	l.onUplink(netlink.LinkSetUp)
	testutil.Eventually(t, "notices that the link is up", func() bool { return other.has(linkUp) && late.has(linkUp) && fresh.has(linkUp) })
	if got := early.all(); !slices.Equal(got, before) {
		t.Errorf("after stop: %v", got)
	}
	onDevice(t, l.B, l.B.Interface, netlink.LinkSetDown)
	testutil.Eventually(t, "a notice that the carrier is lost", func() bool {
		return slices.Equal(slices.DeleteFunc(other.all(), func(n endpoint.Notice) bool { return n.Kind == endpoint.NoticeRoute }), []endpoint.Notice{linkDown, linkUp, linkDown})
	})
}

// A lease that has resolved a destination is notified when the next hop changes; others are not.
func TestRouteNotices(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a, b := l.open(), l.open()
	before, stop := watchNotices(a.lease)
	l.onUplink(func(up netlink.Link) error {
		_, dst, err := net.ParseCIDR("192.0.2.0/24")
		return errors.Join(err, netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.IPv4(10, 0, 0, 2), LinkIndex: up.Attrs().Index}))
	})
	testutil.Eventually(t, "a notice of the route", func() bool { return before.has(allRoutes) })
	stop()
	for _, dst := range []string{"10.0.0.2", "192.0.2.1", "10.0.0.1"} {
		_, err := a.lease.Resolve(t.Context(), netip.Addr{}, netip.MustParseAddr(dst))
		testutil.Must(t, err)
	}
	zoned := netip.MustParseAddr("fe80::1%" + strings.Repeat("<", 12000)) // refused before it is noted
	if _, err := a.lease.Resolve(t.Context(), netip.Addr{}, zoned); !errors.Is(err, endpoint.ErrUnreachable) || len(err.Error()) > 200 {
		t.Errorf("a destination with a zone: %.200v", err)
	}
	notices, _ := watchNotices(a.lease)
	others, _ := watchNotices(b.lease)
	onDevice(t, l.B, l.B.Interface, linkAddress("02:00:00:00:00:99"))
	ping(t, l.B, "10.0.0.1") // its ARP has the new MAC address
	testutil.Eventually(t, "notices of the destinations behind the peer", func() bool { return notices.has(routeTo("10.0.0.2")) && notices.has(routeTo("192.0.2.1")) })
	if notices.has(routeTo("10.0.0.1")) || notices.has(allRoutes) || notices.has(endpoint.Notice{Kind: endpoint.NoticeRoute, Addr: zoned}) {
		t.Errorf("notices %.1000v", notices.all())
	}
	if got := others.all(); len(got) != 0 {
		t.Errorf("an endpoint that has resolved nothing got %v", got)
	}
	r, err := a.lease.Resolve(t.Context(), netip.Addr{}, netip.MustParseAddr("192.0.2.1"))
	if err != nil || r.LinkAddr != [6]byte{2, 0, 0, 0, 0, 0x99} {
		t.Errorf("resolved anew: %+v, %v", r, err)
	}
	l.onUplink(func(up netlink.Link) error {
		_, dst, err := net.ParseCIDR("198.51.100.0/24")
		return errors.Join(err, netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.IPv4(10, 0, 0, 2), LinkIndex: up.Attrs().Index}))
	})
	testutil.Eventually(t, "notices of the routes", func() bool { return notices.has(allRoutes) && others.has(allRoutes) })
}

// The route to an owned address of this host changes when the address is claimed and when it is given back.
func TestNoticeOfAnOwnedAddress(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a, owner := l.open(), l.open(addrTag("10.0.0.77"))
	r, err := a.lease.Resolve(t.Context(), netip.Addr{}, netip.MustParseAddr("10.0.0.77"))
	if err != nil || r.LinkAddr != l.A.LinkAddr {
		t.Fatalf("resolved %+v, %v", r, err)
	}
	notices, _ := watchNotices(a.lease)
	testutil.Must(t, owner.lease.Unclaim(t.Context(), addrTag("10.0.0.77")))
	testutil.Eventually(t, "a notice of the route without the owner", func() bool { return notices.has(routeTo("10.0.0.77")) })
	again, _ := watchNotices(a.lease)
	_, err = owner.lease.Claim(t.Context(), addrTag("10.0.0.77"))
	testutil.Must(t, err)
	testutil.Eventually(t, "a notice of the route with the owner", func() bool { return again.has(routeTo("10.0.0.77")) })
}

// A lease with more resolved destinations than are kept is notified of all changes.
func TestNoticesOfManyDestinations(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	l.onUplink(func(up netlink.Link) error {
		_, dst, err := net.ParseCIDR("198.18.0.0/16")
		return errors.Join(err, netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.IPv4(10, 0, 0, 2), LinkIndex: up.Attrs().Index}))
	})
	a := l.open()
	dst := netip.MustParseAddr("198.18.0.1")
	for range mux.MaxResolved + 1 {
		_, err := a.lease.Resolve(t.Context(), netip.Addr{}, dst)
		testutil.Must(t, err)
		dst = dst.Next()
	}
	notices, _ := watchNotices(a.lease)
	onDevice(t, l.B, l.B.Interface, linkAddress("02:00:00:00:00:99"))
	ping(t, l.B, "10.0.0.1")
	testutil.Eventually(t, "a notice of all routes", func() bool { return notices.has(allRoutes) })
}

// A new MTU changes all routes.
func TestMTUNotice(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a := l.open()
	notices, _ := watchNotices(a.lease)
	for _, c := range []struct{ set, want int }{{1400, 1400}, {1600, 1500}} { // the programs were loaded for 1500
		before := len(notices.all())
		l.onUplink(func(up netlink.Link) error { return netlink.LinkSetMTU(up, c.set) })
		testutil.Eventually(t, "a notice of the MTU", func() bool { return slices.Contains(notices.all()[before:], allRoutes) })
		r, err := a.lease.Resolve(t.Context(), netip.Addr{}, netip.MustParseAddr("10.0.0.2"))
		if err != nil || r.MTU != uint32(c.want) {
			t.Errorf("MTU %d: route %+v, %v", c.set, r, err)
		}
		if g := l.open().grant; g.Identity.MTU != uint32(c.want) {
			t.Errorf("MTU %d: granted %+v", c.set, g.Identity)
		}
	}
}

// Leases end with the uplink, with the reason.
func TestLeasesEndWithTheUplink(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(netlink.Link) error{
		"deleted": netlink.LinkDel,
		"MAC address": func(up netlink.Link) error {
			return netlink.LinkSetHardwareAddr(up, net.HardwareAddr{2, 0, 0, 0, 0, 0x99})
		},
	} {
		l := openLab(t, mux.ModeAuto)
		a, b := l.open(), l.open()
		if err := a.lease.Err(); err != nil {
			t.Errorf("ended from the beginning: %v", err)
		}
		l.onUplink(change)
		for _, x := range []*app{a, b} {
			testutil.Eventually(t, "ended", func() bool { return x.lease.Err() != nil })
			if err := x.lease.Err(); !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, mux.ErrUplinkChanged) {
				t.Errorf("%s: ended by %v", what, err)
			}
		}
		if err := <-l.mux.Failed(); !errors.Is(err, mux.ErrUplinkChanged) {
			t.Errorf("%s: failed by %v", what, err)
		}
		if _, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small}); !errors.Is(err, mux.ErrUplinkChanged) {
			t.Errorf("%s: opened an endpoint: %v", what, err)
		}
	}
}

// The error of a lease after its Close, and after that of the mux.
func TestLeaseErr(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a, b := l.open(), l.open()
	testutil.Must(t, a.lease.Close())
	if err := a.lease.Err(); err != endpoint.ErrLeaseClosed {
		t.Errorf("closed: %v", err)
	}
	testutil.Must(t, l.mux.Close())
	if err := b.lease.Err(); !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, mux.ErrClosed) {
		t.Errorf("closed with the mux: %v", err)
	}
}
