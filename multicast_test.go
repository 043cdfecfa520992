//go:build linux

package unet_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// Datagrams to a group are exchanged between a host of unet and sockets of the kernel, in both
// directions, with TTL or hop limit 1 unless another is set. Another endpoint on the same host gets
// them too.
func TestMulticastWithAKernel(t *testing.T) {
	t.Parallel()
	for _, f := range []struct {
		network, group, b string
	}{
		{"udp4", "239.1.2.3:5000", "10.0.0.2:0"},
		{"udp6", "[ff15::51]:5000", "[fd00::2]:0"},
	} {
		t.Run(f.network, func(t *testing.T) {
			t.Parallel()
			p := netlab.RequirePair(t, netlab.Config{IPv6: true})
			group := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(f.group))
			m := openMux(t, p.A)
			var lease, otherLease countedLease
			h, other := newHost(t, m, &lease, unet.HostConfig{}), newHost(t, m, &otherLease, unet.HostConfig{})
			var member, sender *net.UDPConn
			testutil.Must(t, p.B.Do(func() error {
				i, err := net.InterfaceByName(p.B.Interface)
				if err != nil {
					return err
				}
				if member, err = net.ListenMulticastUDP(f.network, i, group); err != nil {
					return err
				}
				if sender, err = net.ListenUDP(f.network, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(f.b))); err != nil || f.network == "udp4" {
					return err
				}
				return ipv6.NewPacketConn(sender).SetMulticastInterface(i) // without it a route is needed, which may not exist yet
			}))
			defer member.Close()
			defer sender.Close()
			hopsOf := hopsReader(t, member, f.network)
			c, err := h.ListenMulticastUDP(f.network, nil, group)
			testutil.Must(t, err)
			socket, err := other.ListenPacket(t.Context(), f.network, ":6000")
			testutil.Must(t, err)
			joined, err := other.ListenMulticastUDP(f.network, &net.Interface{Name: p.A.Interface}, group)
			testutil.Must(t, err)
			read := func(c net.PacketConn) string {
				t.Helper()
				b := make([]byte, 100)
				testutil.Must(t, c.SetReadDeadline(time.Now().Add(testTimeout)))
				n, _, err := c.ReadFrom(b)
				testutil.Must(t, err)
				return string(b[:n])
			}
			awaitUp(t, p.B)
			if _, err := sender.WriteToUDP([]byte("from the kernel"), group); err != nil {
				t.Fatal(err)
			}
			for _, c := range []net.PacketConn{c, joined} {
				if got := read(c); got != "from the kernel" {
					t.Errorf("received %q", got)
				}
			}
			for _, hops := range []int{0, 7} {
				text := "from unet"
				if hops > 0 {
					testutil.Must(t, socket.(*unet.UDPConn).SetMulticastTTL(hops))
				}
				if _, err := socket.WriteTo([]byte(text), group); err != nil {
					t.Fatal(err)
				}
				for _, c := range []net.PacketConn{c, joined} {
					if got := read(c); got != text {
						t.Errorf("received %q", got)
					}
				}
				if got := hopsOf(text); got != max(hops, 1) {
					t.Errorf("TTL or hop limit %d, set to %d", got, hops)
				}
			}

			// The first socket of a group claims it, and the last one gives it back.
			claims := lease.claims.Load()
			second, err := h.ListenMulticastUDP(f.network, nil, group)
			testutil.Must(t, err)
			if lease.claims.Load() != claims {
				t.Error("the second socket has claimed the group again")
			}
			testutil.Must(t, second.Close())
			testutil.Must(t, c.Close())
			testutil.Eventually(t, "the host gives the group back", func() bool { return holders(m.Endpoints(), f.group) == 1 })
		})
	}
}

// holders is the number of endpoints that hold a group.
func holders(list []endpoint.Info, group string) (n int) {
	for _, e := range list {
		for _, tag := range e.Tags {
			if tag == endpoint.UDPTag(netip.MustParseAddrPort(group)) {
				n++
			}
		}
	}
	return n
}

// hopsReader returns a function that reads datagrams up to one with a text, and returns its TTL or hop limit.
func hopsReader(t *testing.T, c *net.UDPConn, network string) func(text string) int {
	t.Helper()
	p4, p6 := ipv4.NewPacketConn(c), ipv6.NewPacketConn(c)
	if network == "udp4" {
		testutil.Must(t, p4.SetControlMessage(ipv4.FlagTTL, true))
	} else {
		testutil.Must(t, p6.SetControlMessage(ipv6.FlagHopLimit, true))
	}
	return func(text string) int {
		t.Helper()
		testutil.Must(t, c.SetReadDeadline(time.Now().Add(testTimeout)))
		for b := make([]byte, 100); ; {
			n, hops := 0, 0
			if network == "udp4" {
				got, m, _, err := p4.ReadFrom(b)
				testutil.Must(t, err)
				n, hops = got, m.TTL
			} else {
				got, m, _, err := p6.ReadFrom(b)
				testutil.Must(t, err)
				n, hops = got, m.HopLimit
			}
			if string(b[:n]) == text { // skip datagrams of other senders
				return hops
			}
		}
	}
}

// An interface that is not the host's is refused.
func TestMulticastOnAnotherInterface(t *testing.T) {
	t.Parallel()
	l := openLab(t)
	group := &net.UDPAddr{IP: net.IPv4(239, 1, 2, 3), Port: 5000}
	if _, err := l.host.ListenMulticastUDP("udp4", &net.Interface{Name: "eth7", Index: 1 << 20}, group); err == nil {
		t.Error("eth7 is accepted")
	}
	var e *net.OpError
	if _, err := l.host.ListenMulticastUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 5000}); !errors.As(err, &e) || e.Op != "listen" {
		t.Errorf("an address that is no group: %v", err)
	}
}

// awaitUp waits until the interface of a host is up for IPv6.
func awaitUp(t *testing.T, h *netlab.Host) {
	t.Helper()
	testutil.Eventually(t, "the interface is up", func() (up bool) {
		testutil.Must(t, h.Do(func() error {
			link, err := netlink.LinkByName(h.Interface)
			up = err == nil && link.Attrs().OperState == netlink.OperUp
			return err
		}))
		return up
	})
}
