//go:build linux

package unet_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/wire"
)

// A peer, or the gateway to it, gets another MAC address and sends no ARP packet. The host finds the
// new address although it receives nothing from the old one.
func TestPeerChangesMACAddress(t *testing.T) {
	for _, c := range []struct {
		name, to string
		settled  bool // the kernel's neighbour entry for it is not new
	}{
		{"peer", "10.0.0.2:7000", true},
		{"new peer", "10.0.0.2:7000", false},
		{"gateway", "192.0.2.1:7000", true},
		{"IPv6 gateway", "192.0.2.1:7000", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := openLabWith(t, netlab.Config{IPv6: true, LinkLocal: true})
			l.serveFarEcho(t)
			l.setFarGateway(t, "10.0.0.2")
			if c.name == "IPv6 gateway" {
				l.setFarGateway(t, "fe80::2")
			}
			client := l.dial(t, c.to)
			client.untilAnswered("before the change")
			if c.settled {
				l.exchangeUntilEntryIsOld(t, client, "10.0.0.2")
			}
			before := len(l.notices)
			to := wire.LinkAddr{2, 0, 0, 0, 0, 0xcc}
			l.on(t, l.B, func(link netlink.Link) error { return netlink.LinkSetHardwareAddr(link, to[:]) })
			gap, err := client.untilAnswered("after the change")
			if err != nil {
				t.Errorf("during the change: %v", err)
			}
			t.Logf("reached again after %v, %d notices", gap.Round(time.Millisecond), len(l.notices)-before)
		})
	}
}

// unreachable reports whether err is that of an unreachable host. Without a route it is ENETUNREACH.
func unreachable(err error) bool {
	return errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}

// serveFarEcho starts another echo server, at 192.0.2.1:7000, to which B is the gateway.
func (l *lab) serveFarEcho(t *testing.T) {
	t.Helper()
	l.on(t, l.B, func(netlink.Link) error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(32, 32)}})
	})
	l.serveEcho(t, "192.0.2.1:7000")
}

// setFarGateway sets the gateway by which A reaches 192.0.2.0/24.
func (l *lab) setFarGateway(t *testing.T, gateway string) {
	t.Helper()
	_, net24, _ := net.ParseCIDR("192.0.2.0/24")
	l.on(t, l.A, func(link netlink.Link) error {
		route := &netlink.Route{Dst: net24, LinkIndex: link.Attrs().Index}
		if a := netip.MustParseAddr(gateway); a.Is4() {
			route.Gw = a.AsSlice()
		} else {
			route.Via = &netlink.Via{AddrFamily: netlink.FAMILY_V6, Addr: a.AsSlice()}
		}
		return netlink.RouteReplace(route)
	})
}

// Routes, addresses and neighbour entries are changed while requests are sent.
func TestRouteAddressAndNeighbourChanges(t *testing.T) {
	l := openLab(t)
	l.serveFarEcho(t)
	absentMAC := wire.LinkAddr{2, 0, 0, 0, 0, 0x99}
	l.on(t, l.A, func(link netlink.Link) error {
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.uplink, State: netlink.NUD_PERMANENT, IP: net.IPv4(10, 0, 0, 9), HardwareAddr: absentMAC[:]})
	})
	l.setFarGateway(t, "10.0.0.9")
	far := l.dial(t, "192.0.2.1:7000")
	if ok, err := far.try(); ok || err != nil {
		t.Fatalf("by a gateway that does not exist: %v, %v", ok, err)
	}
	l.setFarGateway(t, "10.0.0.2")
	gap, _ := far.untilAnswered("route replaced")
	t.Logf("another gateway: reached after %v", gap.Round(time.Millisecond))

	// After a change that does not concern the peer no send fails.
	unaffected := func(what string, change func(link netlink.Link) error) {
		t.Helper()
		l.on(t, l.A, change)
		for l.await(t, what, func(n endpoint.Notice) bool { return n.Kind == endpoint.NoticeRoute }); len(l.notices) > 0; {
			<-l.notices
		}
		for range 20 {
			if gap, err := far.untilAnswered(what); err != nil {
				t.Errorf("%s: %v after %v", what, err, gap)
			}
		}
	}
	other := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 0, 0, 200), Mask: net.CIDRMask(24, 32)}}
	unaffected("address added", func(link netlink.Link) error { return netlink.AddrAdd(link, other) })
	unaffected("address removed", func(link netlink.Link) error { return netlink.AddrDel(link, other) })
	unaffected("neighbour deleted", func(netlink.Link) error {
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: l.uplink, IP: net.IPv4(10, 0, 0, 2), HardwareAddr: l.B.LinkAddr[:]})
	})

	// The route is deleted, and added again.
	_, net24, _ := net.ParseCIDR("192.0.2.0/24")
	l.on(t, l.A, func(link netlink.Link) error {
		return netlink.RouteDel(&netlink.Route{Dst: net24, LinkIndex: link.Attrs().Index})
	})
	far.conn.SetDeadline(time.Now().Add(testTimeout))
	testutil.Eventually(t, "a write fails", func() bool {
		_, err := far.conn.Write([]byte("x"))
		if err != nil && !errors.Is(err, syscall.ENETUNREACH) {
			t.Fatalf("route deleted: %v", err)
		}
		return err != nil
	})
	l.setFarGateway(t, "10.0.0.2")
	far.untilAnswered("route added again")
}

// Sends to a host that does not answer ARP, and reads from it, fail with EHOSTUNREACH, also if the
// host has answered earlier.
func TestUnresolvableHost(t *testing.T) {
	l := openLab(t)
	for name, v := range map[string]string{"mcast_solicit": "1", "ucast_solicit": "1", "retrans_time_ms": "10", "delay_first_probe_time": "0", "base_reachable_time_ms": "100"} {
		l.setNeighSysctl(t, l.A, name, v)
	}
	absent := l.dial(t, "10.0.0.99:7000")
	absent.conn.SetDeadline(time.Now().Add(testTimeout))
	if _, err := absent.conn.Write([]byte("x")); err != nil {
		t.Errorf("the first write, before ARP has failed: %v", err)
	}
	if _, err := absent.conn.Read(make([]byte, 1)); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("read of a connected socket: %v", err)
	}
	if _, err := absent.conn.Write([]byte("x")); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("write of a connected socket: %v", err)
	}
	server, err := l.host.ListenUDP(t.Context(), netip.AddrPort{})
	testutil.Must(t, err)
	defer server.Close()
	if _, err := server.WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort("10.0.0.99:7000")); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("write of another socket: %v", err)
	}

	peer := l.dial(t, "10.0.0.2:7000")
	peer.untilAnswered("before the change")
	l.on(t, l.B, func(link netlink.Link) error { return netlink.LinkSetARPOff(link) })
	server.SetDeadline(time.Now().Add(testTimeout))
	testutil.Eventually(t, "a write to the peer fails", func() bool {
		_, err := server.WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort("10.0.0.2:9"))
		if err != nil && !errors.Is(err, syscall.EHOSTUNREACH) {
			t.Fatal(err)
		}
		return err != nil
	})
	peer.conn.SetDeadline(time.Now().Add(testTimeout))
	if _, err := peer.conn.Write([]byte("x")); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("a peer that no longer answers ARP: %v", err)
	}
	l.on(t, l.B, func(link netlink.Link) error { return netlink.LinkSetARPOn(link) })
	peer.untilAnswered("the peer answers ARP again")
}

// The uplink goes down and up again, or the address of the host is deleted and added again. In between
// sends fail and reads wait. Afterwards both work.
func TestLinkDownOrAddressRemovedForATime(t *testing.T) {
	t.Parallel()
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 0, 0, 1), Mask: net.CIDRMask(24, 32)}}
	for _, c := range []struct {
		name              string
		remove, restore   func(netlink.Link) error
		removed, restored endpoint.NoticeKind
		send, dial        syscall.Errno
	}{
		{"link", netlink.LinkSetDown, netlink.LinkSetUp, endpoint.NoticeLinkDown, endpoint.NoticeLinkUp, syscall.ENETDOWN, syscall.ENETDOWN},
		{
			"address", func(link netlink.Link) error { return netlink.AddrDel(link, addr) }, func(link netlink.Link) error { return netlink.AddrAdd(link, addr) },
			endpoint.NoticeAddrGone, endpoint.NoticeAddrHere, syscall.EADDRNOTAVAIL, syscall.ENETUNREACH, // as the kernel, which has no route without the address
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := openLab(t)
			client := l.dial(t, "10.0.0.2:7000")
			client.untilAnswered("before the change")
			client.conn.SetDeadline(time.Time{})
			read := make(chan error, 1)
			go func() {
				_, err := client.conn.Read(make([]byte, 64))
				read <- err
			}()
			removed := endpoint.Notice{Kind: c.removed}
			if c.removed == endpoint.NoticeAddrGone {
				removed.Addr = l.host.Addr() // before it is gone
			}
			l.on(t, l.A, c.remove)
			l.await(t, "removed", func(n endpoint.Notice) bool { return n == removed })
			if _, err := client.conn.Write([]byte("x")); !errors.Is(err, c.send) {
				t.Errorf("write meanwhile: %v, want %v", err, c.send)
			}
			// The dial fails before it claims a port.
			if _, err := l.host.Dial("tcp", "10.0.0.2:7000"); !errors.Is(err, c.dial) || errors.Is(err, endpoint.ErrTagDenied) {
				t.Errorf("dial meanwhile: %v, want %v", err, c.dial)
			}
			for n := range l.host.Notices(t.Context()) {
				if n != removed {
					t.Errorf("Notices meanwhile: %v, want %v", n, removed)
				}
				break
			}
			l.on(t, l.A, c.restore)
			l.await(t, "restored", func(n endpoint.Notice) bool { return n.Kind == c.restored })
			for deadline := time.Now().Add(testTimeout); len(read) == 0; {
				if _, err := client.conn.Write([]byte("12345678")); err != nil && !unreachable(err) || time.Now().After(deadline) {
					t.Fatalf("write afterwards: %v", err)
				}
			}
			if err := <-read; err != nil && !unreachable(err) {
				t.Errorf("the read that waited: %v", err)
			}
			client.untilAnswered("afterwards")
		})
	}
}

// The uplink is deleted: all calls return, with that reason.
func TestUplinkIsDeleted(t *testing.T) {
	t.Parallel()
	l := openLab(t)
	c := l.dial(t, "10.0.0.2:7000")
	c.untilAnswered("before the change")
	c.conn.SetDeadline(time.Now().Add(testTimeout))
	read := make(chan error, 1)
	go func() {
		_, err := c.conn.Read(make([]byte, 64))
		read <- err
	}()
	l.on(t, l.A, netlink.LinkDel)
	if err := <-read; !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, mux.ErrUplinkChanged) {
		t.Errorf("a read that waits: %v", err)
	}
	if _, err := c.conn.Write([]byte("x")); !errors.Is(err, endpoint.ErrLeaseClosed) {
		t.Errorf("write: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if _, err := l.host.DialContext(ctx, "udp", "10.0.0.2:7000"); !errors.Is(err, net.ErrClosed) || !errors.Is(err, endpoint.ErrLeaseClosed) {
		t.Errorf("dial: %v", err)
	}
}

// Outgoing sockets share a block of ports, of which one can also be listened on.
func TestUDPDialsShareABlock(t *testing.T) {
	t.Parallel()
	l := openLab(t)
	var ports []uint16
	for range 2 * endpoint.BlockPorts {
		c := l.dial(t, "10.0.0.2:7000")
		c.untilAnswered("a socket of the block")
		ports = append(ports, c.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	}
	if n := l.lease.claims.Load(); n != 2 {
		t.Errorf("%d claims", n)
	}
	slices.Sort(ports)
	if n := len(slices.Compact(ports)); n != 2*endpoint.BlockPorts {
		t.Errorf("%d different ports", n)
	}
	at := netip.AddrPortFrom(l.host.Addr(), ports[5])
	if _, err := l.host.ListenUDP(t.Context(), at); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port in use: %v", err)
	}
	last := l.dial(t, "10.0.0.2:7000") // of a new block
	first := last.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	other := first ^ 1
	server, err := l.host.ListenUDP(t.Context(), netip.AddrPortFrom(l.host.Addr(), other))
	testutil.Must(t, err)
	if n := l.lease.claims.Load(); n != 3 {
		t.Errorf("%d claims", n)
	}
	kernel, err := l.B.Dial("udp", server.LocalAddr().String())
	testutil.Must(t, err)
	defer kernel.Close()
	_, err = kernel.Write([]byte("hello"))
	testutil.Must(t, err)
	buf := make([]byte, 10)
	server.SetDeadline(time.Now().Add(testTimeout))
	if n, err := server.Read(buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	testutil.Must(t, server.Close())
	if server, err = l.host.ListenUDP(t.Context(), server.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
		t.Errorf("after it was closed: %v", err)
	} else {
		testutil.Must(t, server.Close())
	}
}
