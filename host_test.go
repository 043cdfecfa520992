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
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/wire"
)

// A peer, or the gateway to it, gets another MAC address and sends no ARP. The host reaches it
// again although it only sends.
func TestPeerChangesMACAddress(t *testing.T) {
	for _, c := range []struct {
		name, to string
		settled  bool // the kernel's entry for it is not new
	}{
		{"peer", "10.0.0.2:7000", true},
		{"new peer", "10.0.0.2:7000", false},
		{"gateway", "192.0.2.1:7000", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := openLab(t)
			l.openFar(t)
			l.routeVia(t, "10.0.0.2")
			client := l.dial(t, c.to)
			client.untilAnswered("at first")
			if c.settled {
				l.talk(t, client, "10.0.0.2")
			}
			before := len(l.told)
			to := wire.LinkAddr{2, 0, 0, 0, 0, 0xcc}
			l.on(t, l.B, func(link netlink.Link) error { return netlink.LinkSetHardwareAddr(link, to[:]) })
			gap, err := client.untilAnswered("after the move")
			if err != nil {
				t.Errorf("meanwhile: %v", err)
			}
			t.Logf("reached again after %v, %d notices", gap.Round(time.Millisecond), len(l.told)-before)
		})
	}
}

// unreachable reports whether err is that of an unreachable host. Without a route it is ENETUNREACH.
func unreachable(err error) bool {
	return errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}

// openFar makes another echo, at 192.0.2.1:7000, of which B is the gateway.
func (l *lab) openFar(t *testing.T) {
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

// routeVia lets A reach 192.0.2.0/24 by a gateway.
func (l *lab) routeVia(t *testing.T, gateway string) {
	t.Helper()
	_, net24, _ := net.ParseCIDR("192.0.2.0/24")
	l.on(t, l.A, func(link netlink.Link) error {
		return netlink.RouteReplace(&netlink.Route{Dst: net24, Gw: net.ParseIP(gateway), LinkIndex: link.Attrs().Index})
	})
}

// The administrator changes routes, addresses and neighbours under traffic.
func TestRouteAddressAndNeighbourChanges(t *testing.T) {
	l := openLab(t)
	l.openFar(t)
	nowhere := wire.LinkAddr{2, 0, 0, 0, 0, 0x99}
	l.on(t, l.A, func(link netlink.Link) error {
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.uplink, State: netlink.NUD_PERMANENT, IP: net.IPv4(10, 0, 0, 9), HardwareAddr: nowhere[:]})
	})
	l.routeVia(t, "10.0.0.9")
	far := l.dial(t, "192.0.2.1:7000")
	if ok, err := far.try(); ok || err != nil {
		t.Fatalf("by a gateway that is not there: %v, %v", ok, err)
	}
	l.routeVia(t, "10.0.0.2")
	gap, _ := far.untilAnswered("route replaced")
	t.Logf("another gateway: reached after %v", gap.Round(time.Millisecond))

	// After a change that does not concern the peer every request is answered.
	steady := func(what string, change func(link netlink.Link) error) {
		t.Helper()
		l.on(t, l.A, change)
		for l.await(t, what, func(n endpoint.Notice) bool { return n.Kind == endpoint.NoticeRoute }); len(l.told) > 0; {
			<-l.told
		}
		for range 20 {
			if gap, err := far.untilAnswered(what); err != nil {
				t.Errorf("%s: %v after %v", what, err, gap)
			}
		}
	}
	other := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 0, 0, 200), Mask: net.CIDRMask(24, 32)}}
	steady("address added", func(link netlink.Link) error { return netlink.AddrAdd(link, other) })
	steady("address removed", func(link netlink.Link) error { return netlink.AddrDel(link, other) })
	steady("neighbour deleted", func(netlink.Link) error {
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: l.uplink, IP: net.IPv4(10, 0, 0, 2), HardwareAddr: l.B.LinkAddr[:]})
	})

	// The route is deleted, and added again.
	_, net24, _ := net.ParseCIDR("192.0.2.0/24")
	l.on(t, l.A, func(link netlink.Link) error {
		return netlink.RouteDel(&netlink.Route{Dst: net24, LinkIndex: link.Attrs().Index})
	})
	far.conn.SetDeadline(time.Now().Add(patience))
	for {
		_, err := far.conn.Write([]byte("x"))
		if errors.Is(err, syscall.ENETUNREACH) {
			break
		}
		if err != nil {
			t.Fatalf("route deleted: %v", err)
		}
	}
	l.routeVia(t, "10.0.0.2")
	far.untilAnswered("route added again")
}

// Sends to a host that does not answer ARP, and reads from it, fail with EHOSTUNREACH, also if the
// host has answered earlier.
func TestUnresolvableHost(t *testing.T) {
	l := openLab(t)
	for name, v := range map[string]string{"mcast_solicit": "1", "ucast_solicit": "1", "retrans_time_ms": "10", "delay_first_probe_time": "0", "base_reachable_time_ms": "100"} {
		l.setKnob(t, l.A, name, v)
	}
	absent := l.dial(t, "10.0.0.99:7000")
	absent.conn.SetDeadline(time.Now().Add(patience))
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
	must(t, err)
	defer server.Close()
	if _, err := server.WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort("10.0.0.99:7000")); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("write of another socket: %v", err)
	}

	peer := l.dial(t, "10.0.0.2:7000")
	peer.untilAnswered("at first")
	l.on(t, l.B, func(link netlink.Link) error { return netlink.LinkSetARPOff(link) })
	server.SetDeadline(time.Now().Add(patience))
	for err = nil; !errors.Is(err, syscall.EHOSTUNREACH); {
		if _, err = server.WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort("10.0.0.2:9")); err != nil && !errors.Is(err, syscall.EHOSTUNREACH) {
			t.Fatal(err)
		}
	}
	peer.conn.SetDeadline(time.Now().Add(patience))
	if _, err := peer.conn.Write([]byte("x")); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("a peer that has gone: %v", err)
	}
	l.on(t, l.B, func(link netlink.Link) error { return netlink.LinkSetARPOn(link) })
	peer.untilAnswered("back")
}

// The uplink goes down and up again, or the host's address is deleted and added again. In between
// sends fail and reads wait; afterwards both work.
func TestLinkDownOrAddressRemovedForATime(t *testing.T) {
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 0, 0, 1), Mask: net.CIDRMask(24, 32)}}
	for _, c := range []struct {
		name       string
		lose, have func(netlink.Link) error
		gone, back endpoint.NoticeKind
		send       syscall.Errno
	}{
		{"link", netlink.LinkSetDown, netlink.LinkSetUp, endpoint.NoticeLinkDown, endpoint.NoticeLinkUp, syscall.ENETDOWN},
		{
			"address", func(link netlink.Link) error { return netlink.AddrDel(link, addr) }, func(link netlink.Link) error { return netlink.AddrAdd(link, addr) },
			endpoint.NoticeAddrGone, endpoint.NoticeAddrBack, syscall.EADDRNOTAVAIL,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := openLab(t)
			client := l.dial(t, "10.0.0.2:7000")
			client.untilAnswered("at first")
			client.conn.SetDeadline(time.Time{})
			read := make(chan error, 1)
			go func() {
				_, err := client.conn.Read(make([]byte, 64))
				read <- err
			}()
			l.on(t, l.A, c.lose)
			gone := endpoint.Notice{Kind: c.gone}
			if c.gone == endpoint.NoticeAddrGone {
				gone.Addr = l.host.Addr()
			}
			l.await(t, "gone", func(n endpoint.Notice) bool { return n == gone })
			if _, err := client.conn.Write([]byte("x")); !errors.Is(err, c.send) {
				t.Errorf("write meanwhile: %v, want %v", err, c.send)
			}
			// The dial does not fail for lack of a port: it claims none.
			if _, err := l.host.Dial("tcp", "10.0.0.2:7000"); !errors.Is(err, c.send) || errors.Is(err, endpoint.ErrTagDenied) {
				t.Errorf("dial meanwhile: %v, want %v", err, c.send)
			}
			late := make(chan endpoint.Notice, 10)
			t.Cleanup(l.host.Watch(func(n endpoint.Notice) { late <- n }))
			if n := <-late; n != gone {
				t.Errorf("Watch meanwhile: %v, want %v", n, gone)
			}
			l.on(t, l.A, c.have)
			l.await(t, "back", func(n endpoint.Notice) bool { return n.Kind == c.back })
			for deadline := time.Now().Add(patience); len(read) == 0; {
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
	l := openLab(t)
	c := l.dial(t, "10.0.0.2:7000")
	c.untilAnswered("at first")
	c.conn.SetDeadline(time.Now().Add(patience))
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
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := l.host.DialContext(ctx, "udp", "10.0.0.2:7000"); !errors.Is(err, net.ErrClosed) || !errors.Is(err, endpoint.ErrLeaseClosed) {
		t.Errorf("dial: %v", err)
	}
}

// Outgoing sockets share a block of ports, of which one can also be listened on.
func TestUDPDialsShareABlock(t *testing.T) {
	l := openLab(t)
	var ports []uint16
	for range 2 * endpoint.BlockPorts {
		c := l.dial(t, "10.0.0.2:7000")
		c.untilAnswered("each has a port of its own")
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
	must(t, err)
	if n := l.lease.claims.Load(); n != 3 {
		t.Errorf("%d claims", n)
	}
	kernel, err := l.B.Dial("udp", server.LocalAddr().String())
	must(t, err)
	defer kernel.Close()
	_, err = kernel.Write([]byte("hello"))
	must(t, err)
	buf := make([]byte, 10)
	server.SetDeadline(time.Now().Add(patience))
	if n, err := server.Read(buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	must(t, server.Close())
	if server, err = l.host.ListenUDP(t.Context(), server.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
		t.Errorf("after it was closed: %v", err)
	} else {
		must(t, server.Close())
	}
}
