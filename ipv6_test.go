//go:build linux

package unet_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/wire"
)

// dualPair is a pair of hosts with 10.0.0.1, fd00::1 and fe80::1, and 10.0.0.2, fd00::2 and
// fe80::2. mtu 0 is 1500.
func dualPair(t *testing.T, mtu int) *netlab.Pair {
	t.Helper()
	return netlab.RequirePair(t, netlab.Config{IPv6: true, LinkLocal: true, MTU: mtu})
}

// openAttached opens a host on a mux by a port or a queue.
func openAttached(t *testing.T, m *mux.Mux, how endpoint.Attachment, cfg unet.HostConfig) *unet.Host {
	t.Helper()
	grant, lease, err := m.OpenEndpoint(t.Context(), endpoint.Request{Attach: how})
	testutil.Must(t, err)
	h, err := unet.New(t.Context(), grant, lease, cfg)
	if err != nil {
		testutil.Must(t, errors.Join(err, grant.Close(), lease.Close()))
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("close of the host: %v", err)
		}
	})
	return h
}

// exchange sends random bytes to the other end, which echoes them, and compares. A datagram is sent
// again every second.
func exchange(c net.Conn, n int) error {
	defer c.Close()
	c.SetDeadline(time.Now().Add(testTimeout))
	sent, got := make([]byte, n), make([]byte, n)
	rand.NewChaCha8([32]byte{6}).Read(sent)
	written := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		written <- err
	}()
	if _, ok := c.LocalAddr().(*net.UDPAddr); ok {
		// Tests that run at the same time can fill the backlog of a processor, which then drops a datagram.
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Second):
					c.Write(sent)
				}
			}
		}()
	}
	if _, err := io.ReadFull(c, got); err != nil {
		return errors.Join(err, c.Close(), <-written)
	}
	if !bytes.Equal(got, sent) {
		return errors.New("the echo differs")
	}
	return <-written
}

// serve echoes on a listener and a packet socket until they are closed.
func serve(l net.Listener, p net.PacketConn) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	buf := make([]byte, 1<<16)
	for {
		n, from, err := p.ReadFrom(buf)
		if err != nil {
			return
		}
		p.WriteTo(buf[:n], from)
	}
}

// A host and a kernel over IPv4 and IPv6, each in both roles, by UDP and TCP, on shared and owned
// addresses, by a port and by a queue.
func TestHostsOfBothFamilies(t *testing.T) {
	for _, how := range []endpoint.Attachment{endpoint.AttachPort, endpoint.AttachQueue} {
		for _, c := range []struct {
			name  string
			cfg   unet.HostConfig
			addrs string
		}{
			{"shared", unet.HostConfig{}, "10.0.0.1 fd00::1 fe80::1"},
			{"owned", unet.HostConfig{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.77"), netip.MustParseAddr("fd00::77")}}, "10.0.0.77 fd00::77"},
			{"owned IPv6", unet.HostConfig{Addrs: []netip.Addr{netip.MustParseAddr("fd00::78")}}, "fd00::78"},
		} {
			t.Run(fmt.Sprint(how, "/", c.name), func(t *testing.T) {
				p := dualPair(t, 0)
				h := openAttached(t, openMux(t, p.A), how, c.cfg)
				if got := strings.Trim(fmt.Sprint(h.Addrs()), "[]"); got != c.addrs {
					t.Fatalf("the host has %v, want %s", got, c.addrs)
				}
				if c.cfg.Addrs != nil {
					for _, a := range h.Addrs() {
						testutil.Must(t, p.B.Ping(a))
					}
				}
				l, err := h.Listen(t.Context(), "tcp", ":7000")
				testutil.Must(t, err)
				defer l.Close()
				pc, err := h.ListenPacket(t.Context(), "udp", ":7000")
				testutil.Must(t, err)
				defer pc.Close()
				go serve(l, pc)
				datagram := 1000
				if c.cfg.Addrs != nil {
					datagram = 20000 // in fragments
				}
				for _, at := range h.Addrs() {
					to := at
					if at.IsLinkLocalUnicast() {
						to = at.WithZone(p.B.Interface)
					}
					for network, n := range map[string]int{"tcp": 1 << 20, "udp": datagram} {
						conn, err := p.B.Dial(network, netip.AddrPortFrom(to, 7000).String())
						if err == nil {
							err = exchange(conn, n)
						}
						if err != nil {
							t.Errorf("%s from the kernel to %v: %v", network, to, err)
						}
					}
					// From the host to the address of the kernel of the same kind.
					peer := map[bool]netip.Addr{true: netip.MustParseAddr("10.0.0.2"), false: netip.MustParseAddr("fd00::2")}[at.Is4()]
					listen := peer
					if at.IsLinkLocalUnicast() {
						peer = netip.MustParseAddr("fe80::2")
						listen = peer.WithZone(p.B.Interface)
					}
					echo, err := p.B.ServeEcho(netip.AddrPortFrom(listen, 7001).String())
					testutil.Must(t, err)
					for network, n := range map[string]int{"tcp": 1 << 20, "udp": datagram} {
						conn, err := h.DialContext(t.Context(), network, netip.AddrPortFrom(peer, 7001).String())
						if err == nil {
							if local := netip.MustParseAddrPort(conn.LocalAddr().String()).Addr(); local.WithZone("") != at {
								t.Errorf("%s from %v, want %v", network, local, at)
							}
							err = exchange(conn, n)
						}
						if err != nil {
							t.Errorf("%s from the host to %v: %v", network, peer, err)
						}
					}
					testutil.Must(t, echo.Close())
				}
			})
		}
	}
}

// Which families listeners serve, and what they show as their address.
func TestFamiliesOfListeners(t *testing.T) {
	p := dualPair(t, 0)
	h := openAttached(t, openMux(t, p.A), endpoint.AttachPort, unet.HostConfig{})
	for _, c := range []struct {
		network, address string
		v4, v6           bool
	}{
		{"tcp", ":0", true, true},
		{"tcp", "[::]:0", true, true},
		{"tcp4", ":0", true, false},
		{"tcp6", ":0", false, true},
		{"tcp", "10.0.0.1:0", true, false},
		{"tcp", "[fd00::1]:0", false, true},
	} {
		l, err := h.Listen(t.Context(), c.network, c.address)
		if err != nil {
			t.Errorf("%s %s: %v", c.network, c.address, err)
			continue
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		for at, want := range map[string]bool{"10.0.0.1": c.v4, "fd00::1": c.v6} {
			conn, err := p.B.Dial("tcp", net.JoinHostPort(at, port))
			if (err == nil) != want || err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s %s, dialled at %s: %v", c.network, c.address, at, err)
			}
			if err == nil {
				conn.Close()
			}
		}
		testutil.Must(t, l.Close())
	}
	for _, address := range []string{"127.0.0.1:80", "[::1]:80"} {
		if _, err := h.Listen(t.Context(), "tcp", address); !errors.Is(err, syscall.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "loopback addresses are the kernel's") {
			t.Errorf("listen at %s: %v", address, err)
		}
	}
}

// Errors of dials over IPv6.
func TestIPv6DialErrors(t *testing.T) {
	p := dualPair(t, 0)
	h := openAttached(t, openMux(t, p.A), endpoint.AttachPort, unet.HostConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for to, want := range map[string]error{
		"[fd00::2]:99": syscall.ECONNREFUSED, "[fd00::99]:80": syscall.EHOSTUNREACH, "[2001:db8::1]:80": syscall.ENETUNREACH,
	} {
		_, err := h.DialContext(ctx, "tcp", to)
		var op *net.OpError
		if !errors.Is(err, want) || !errors.As(err, &op) || op.Op != "dial" || op.Net != "tcp" || op.Addr.String() != to {
			t.Errorf("dial of %s: %v, want %v", to, err, want)
		}
	}
}

// A zone names the host's interface, by name or number, or the address is not reached.
func TestZonesOfLinkLocalAddresses(t *testing.T) {
	p := dualPair(t, 0)
	h := openAttached(t, openMux(t, p.A), endpoint.AttachPort, unet.HostConfig{})
	echo, err := p.B.ServeEcho("[fe80::2%" + p.B.Interface + "]:7000")
	testutil.Must(t, err)
	defer echo.Close()
	var number int
	testutil.Must(t, p.A.Do(func() error {
		link, err := netlink.LinkByName(p.A.Interface)
		if err == nil {
			number = link.Attrs().Index
		}
		return err
	}))
	for zone, want := range map[string]error{"": nil, "%" + p.A.Interface: nil, fmt.Sprint("%", number): nil, "%lo": syscall.ENETUNREACH} {
		conn, err := h.Dial("tcp", "[fe80::2"+zone+"]:7000")
		if !errors.Is(err, want) {
			t.Errorf("dial in zone %q: %v", zone, err)
		}
		if err == nil {
			testutil.Must(t, exchange(conn, 1000))
		}
	}
}

// ECN bits and local addresses of IPv6 datagrams, as control messages, from and to a kernel.
func TestControlMessagesOverIPv6(t *testing.T) {
	p := dualPair(t, 0)
	h := openAttached(t, openMux(t, p.A), endpoint.AttachPort, unet.HostConfig{})
	for _, at := range []string{"fd00::%d", "fe80::%d"} {
		ours, theirs := netip.MustParseAddr(fmt.Sprintf(at, 1)), netip.MustParseAddr(fmt.Sprintf(at, 2))
		listen := theirs
		if listen.IsLinkLocalUnicast() {
			listen = listen.WithZone(p.B.Interface)
		}
		kernel, err := p.B.ListenUDP(netip.AddrPortFrom(listen, 0).String())
		testutil.Must(t, err)
		defer kernel.Close()
		raw, err := kernel.SyscallConn()
		testutil.Must(t, err)
		testutil.Must(t, raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
		}))
		testutil.Must(t, err)
		pc, err := h.ListenPacket(t.Context(), "udp", ":0")
		testutil.Must(t, err)
		defer pc.Close()
		socket := pc.(*unet.UDPConn)
		testutil.Must(t, errors.Join(kernel.SetDeadline(time.Now().Add(testTimeout)), socket.SetDeadline(time.Now().Add(testTimeout))))
		oob := make([]byte, 64)
		var from netip.AddrPort
		for ecn := range 4 {
			to := netip.AddrPortFrom(theirs, kernel.LocalAddr().(*net.UDPAddr).AddrPort().Port())
			_, _, err = socket.WriteMsgUDPAddrPort([]byte("ours"), trafficClass(ecn), to)
			testutil.Must(t, err)
			b := make([]byte, 10)
			var oobn int
			_, oobn, _, from, err = kernel.ReadMsgUDPAddrPort(b, oob)
			testutil.Must(t, err)
			if got, _ := messagesOf(t, oob[:oobn]); got != ecn || from.Addr().WithZone("") != ours {
				t.Errorf("the kernel received ECN %d from %v, want %d from %v", got, from, ecn, ours)
			}
			_, _, err = kernel.WriteMsgUDPAddrPort([]byte("theirs"), trafficClass(ecn), from)
			testutil.Must(t, err)
			_, oobn, _, sender, err := socket.ReadMsgUDPAddrPort(b, oob)
			testutil.Must(t, err)
			if got, local := messagesOf(t, oob[:oobn]); got != ecn || local != ours || sender != to {
				t.Errorf("received ECN %d at %v from %v, want %d at %v from %v", got, local, sender, ecn, ours, to)
			}
		}
	}
}

// trafficClass is the control message IPV6_TCLASS.
func trafficClass(class int) []byte {
	b := make([]byte, unix.CmsgSpace(4))
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(4)))
	binary.NativeEndian.PutUint32(b[8:], unix.IPPROTO_IPV6)
	binary.NativeEndian.PutUint32(b[12:], unix.IPV6_TCLASS)
	binary.NativeEndian.PutUint32(b[16:], uint32(class))
	return b
}

// messagesOf reads IPV6_TCLASS and IPV6_PKTINFO.
func messagesOf(t *testing.T, oob []byte) (class int, local netip.Addr) {
	t.Helper()
	list, err := unix.ParseSocketControlMessage(oob)
	testutil.Must(t, err)
	class = -1
	for _, m := range list {
		switch {
		case m.Header.Level != unix.IPPROTO_IPV6:
			t.Errorf("a control message of level %d", m.Header.Level)
		case m.Header.Type == unix.IPV6_TCLASS:
			class = int(binary.NativeEndian.Uint32(m.Data))
		case m.Header.Type == unix.IPV6_PKTINFO:
			local = netip.AddrFrom16([16]byte(m.Data))
		}
	}
	return class, local
}

// Datagrams of up to the MTU, in both directions.
func TestLongestDatagramsOverIPv6(t *testing.T) {
	p := dualPair(t, wire.MinIPv6MTU)
	h := openAttached(t, openMux(t, p.A), endpoint.AttachPort, unet.HostConfig{})
	echo, err := p.B.ServeEcho("[fd00::2]:7000")
	testutil.Must(t, err)
	defer echo.Close()
	for _, n := range []int{1, wire.MinIPv6MTU - wire.IPv6HeaderLen - wire.UDPHeaderLen} {
		conn, err := h.Dial("udp", "[fd00::2]:7000")
		testutil.Must(t, err)
		if err := exchange(conn, n); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}
