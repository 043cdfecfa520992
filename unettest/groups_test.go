package unettest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/unettest"
)

func udpAddr(s string) *net.UDPAddr { return net.UDPAddrFromAddrPort(netip.MustParseAddrPort(s)) }

func read(t *testing.T, c net.PacketConn) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2048)
	n, _, err := c.ReadFrom(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

func packetConn(t *testing.T, h *unet.Host, network, at string) *unet.UDPConn {
	t.Helper()
	return testutil.Value(h.ListenPacket(context.Background(), network, at)).(*unet.UDPConn)
}

// A datagram to a group is received once by every member on every host, and by no other socket. The
// sender receives it too if it is a member, unless its multicast loopback is off.
func TestMulticastGroups(t *testing.T) {
	for _, f := range []struct{ network, group, other string }{
		{"udp4", "239.1.2.3:5000", "239.1.2.4:5000"},
		{"udp6", "[ff02::51]:5000", "[ff02::52]:5000"},
	} {
		t.Run(f.network, func(t *testing.T) {
			l := unettest.New(t, unettest.Options{Hosts: []string{"a", "b", "c"}, IPv6: true})
			a, b, c := l.Host("a"), l.Host("b"), l.Host("c")
			group := udpAddr(f.group)
			sender := packetConn(t, a, f.network, ":5000")
			if err := sender.JoinGroup(nil, group); err != nil {
				t.Fatal(err)
			}
			members := []*unet.UDPConn{
				testutil.Value(a.ListenMulticastUDP(f.network, nil, group)),
				testutil.Value(b.ListenMulticastUDP(f.network, nil, group)),
				testutil.Value(b.ListenMulticastUDP(f.network, nil, group)),
				packetConn(t, c, "udp", ":5000"),
			}
			if err := members[3].JoinGroup(nil, &net.IPAddr{IP: group.IP}); err != nil {
				t.Fatal(err)
			}
			otherGroup := testutil.Value(b.ListenMulticastUDP(f.network, nil, udpAddr(f.other)))
			nonMember := packetConn(t, b, f.network, ":5000")
			send := func(text string) {
				t.Helper()
				if _, err := sender.WriteTo([]byte(text), group); err != nil {
					t.Fatal(err)
				}
			}
			send("to all")
			for i, m := range append(members, sender) {
				if got := read(t, m); got != "to all" {
					t.Errorf("member %d: %q", i, got)
				}
			}
			if err := sender.SetMulticastLoopback(false); err != nil {
				t.Fatal(err)
			}
			send("to others")
			for i, m := range members[1:] {
				if got := read(t, m); got != "to others" {
					t.Errorf("member %d: %q", i+1, got)
				}
			}
			if err := members[3].LeaveGroup(nil, group); err != nil {
				t.Fatal(err)
			}
			send("after one has left")
			if got := read(t, members[1]); got != "after one has left" {
				t.Errorf("%q", got)
			}
			// These sockets do not receive datagrams to the group: the next datagram of each is the one that is
			// sent to its own address.
			for _, u := range []*unet.UDPConn{members[3], nonMember} {
				at := u.LocalAddr().(*net.UDPAddr)
				to := &net.UDPAddr{IP: c.Addr().AsSlice(), Port: at.Port}
				if u == nonMember {
					to.IP = b.Addr().AsSlice()
				}
				if f.network == "udp6" {
					to.IP = map[bool]*unet.Host{true: b, false: c}[u == nonMember].Addrs()[1].AsSlice()
				}
				if _, err := sender.WriteTo([]byte("to one"), to); err != nil {
					t.Fatal(err)
				}
				if got := read(t, u); got != "to one" {
					t.Errorf("a socket that is no member received %q", got)
				}
			}
			if err := otherGroup.SetReadDeadline(time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
			if _, _, err := otherGroup.ReadFrom(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the member of another group: %v", err)
			}
		})
	}
}

// The control message IP_PKTINFO has the group to which a datagram was sent.
func TestGroupInControlMessage(t *testing.T) {
	a, b := unettest.Pair(t)
	c := packetConn(t, b, "udp4", ":5000")
	for _, g := range []string{"239.1.2.3:0", "239.1.2.4:0"} {
		if err := c.JoinGroup(nil, udpAddr(g)); err != nil {
			t.Fatal(err)
		}
	}
	s := packetConn(t, a, "udp4", ":0")
	for _, to := range []string{"239.1.2.4:5000", "239.1.2.3:5000", "10.0.0.2:5000"} {
		if _, err := s.WriteTo([]byte("hello"), udpAddr(to)); err != nil {
			t.Fatal(err)
		}
		b, oob := make([]byte, 64), make([]byte, 64)
		_, n, _, _, err := c.ReadMsgUDPAddrPort(b, oob)
		if err != nil {
			t.Fatal(err)
		}
		if want := netip.MustParseAddrPort(to).Addr().AsSlice(); !strings.Contains(string(oob[:n]), string(want)) {
			t.Errorf("to %s: control messages %x", to, oob[:n])
		}
	}
}

func TestBroadcast(t *testing.T) {
	a, b := unettest.Pair(t)
	from, to := packetConn(t, a, "udp4", ":5000"), packetConn(t, b, "udp4", ":5000")
	for _, at := range []string{"255.255.255.255:5000", "10.0.0.255:5000"} {
		if _, err := from.WriteTo([]byte("no"), udpAddr(at)); !errors.Is(err, syscall.EACCES) {
			t.Errorf("without SetBroadcast: %v", err)
		}
	}
	for _, c := range []*unet.UDPConn{from, to} {
		if err := c.SetBroadcast(true); err != nil {
			t.Fatal(err)
		}
	}
	for i, at := range []string{"255.255.255.255:5000", "10.0.0.255:5000"} {
		text := fmt.Sprint("to all ", i)
		if _, err := from.WriteTo([]byte(text), udpAddr(at)); err != nil {
			t.Fatal(err)
		}
		for _, c := range []*unet.UDPConn{from, to} {
			if got := read(t, c); got != text {
				t.Errorf("received %q", got)
			}
		}
	}
}

// Invalid calls fail with the reason.
func TestGroupErrors(t *testing.T) {
	a, _ := unettest.Pair(t)
	group := udpAddr("239.1.2.3:5000")
	g := testutil.Value(a.ListenMulticastUDP("udp4", nil, group))
	c := packetConn(t, a, "udp4", ":5000")
	listen := func(network, at string) error { _, err := a.ListenMulticastUDP(network, nil, udpAddr(at)); return err }
	write := func(c *unet.UDPConn, n int) error { _, err := c.WriteTo(make([]byte, n), group); return err }
	if err := c.JoinGroup(nil, group); err != nil {
		t.Fatal(err)
	}
	for _, e := range []struct {
		what string
		err  error
		want error
	}{
		{"one host", listen("udp4", "10.0.0.2:5000"), syscall.EINVAL},
		{"no port", listen("udp4", "239.1.2.3:0"), syscall.EINVAL},
		{"the other family", listen("udp6", "239.1.2.3:5000"), syscall.EINVAL},
		{"a network", listen("tcp", "239.1.2.3:5000"), net.UnknownNetworkError("tcp")},
		{"a socket that only receives", write(g, 1), syscall.EOPNOTSUPP},
		{"a datagram that needs fragments", write(c, 4000), syscall.EMSGSIZE},
		{"joining twice", c.JoinGroup(nil, group), syscall.EADDRINUSE},
		{"joining one host", c.JoinGroup(nil, udpAddr("10.0.0.2:0")), syscall.EINVAL},
		{"joining a group of IPv6", c.JoinGroup(nil, udpAddr("[ff02::1]:0")), syscall.EINVAL},
		{"joining nothing", c.JoinGroup(nil, nil), syscall.EINVAL},
		{"leaving another group", c.LeaveGroup(nil, udpAddr("239.1.2.4:0")), syscall.EADDRNOTAVAIL},
		{"a source", c.JoinSourceSpecificGroup(nil, group, udpAddr("10.0.0.2:0")), errors.ErrUnsupported},
		{"TTL 0", c.SetMulticastTTL(0), syscall.EINVAL},
		{"TTL 256", c.SetMulticastHopLimit(256), syscall.EINVAL},
		{"dialing by TCP", func() error { _, err := a.Dial("tcp", "239.1.2.3:5000"); return err }(), syscall.ENETUNREACH},
		{"a closed socket", func() error { g.Close(); return g.JoinGroup(nil, udpAddr("239.1.2.4:0")) }(), net.ErrClosed},
	} {
		if !errors.Is(e.err, e.want) {
			t.Errorf("%s: %v, want %v", e.what, e.err, e.want)
		}
	}
}
