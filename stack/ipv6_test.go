package stack_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

func a16(s string) [16]byte { return netip.MustParseAddr(s).As16() }

var (
	globalA, globalB = a16("fd00::1"), a16("fd00::2")
	linkLocalA       = a16("fe80::1")
)

// ip6Frame is a frame from B to A; zero addresses and hop limit stand for the global addresses
// and 64.
func ip6Frame(f wire.IPv6Fields, payload []byte) []byte {
	b := make([]byte, 54+len(payload))
	to := linkA
	if f.Src == [16]byte{} {
		f.Src = globalB
	}
	if f.Dst == [16]byte{} {
		f.Dst = globalA
	}
	if f.Dst[0] == 0xff {
		to = wire.MulticastLink(f.Dst)
	}
	if f.HopLimit == 0 {
		f.HopLimit = 64
	}
	f.PayloadLen = uint16(len(payload))
	wire.PutEthernet(b, to, linkB, wire.EtherTypeIPv6)
	wire.PutIPv6(b[14:], f)
	copy(b[54:], payload)
	return b
}

// udp6 is a datagram from B's port 9 to A's.
func udp6(port uint16, payload string) []byte {
	b := make([]byte, 8+len(payload))
	wire.PutUDPCopy(b, &wire.UDPFlow{Src: wire.AddrFrom16(globalB), Dst: wire.AddrFrom16(globalA), SrcPort: 9, DstPort: port}, []byte(payload))
	return b
}

func echo6(src, dst [16]byte, payload string) []byte {
	b := make([]byte, 8+len(payload))
	wire.PutEcho6(b, src, dst, wire.EchoFields{Type: wire.ICMPv6EchoRequest, ID: 3, Seq: 4}, []byte(payload))
	return b
}

func neighbor(src, dst [16]byte, n wire.Neighbor) []byte {
	b := make([]byte, wire.MaxNeighborLen)
	b = b[:wire.PutNeighbor(b, src, dst, n)]
	return ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolICMPv6, HopLimit: 255, Src: src, Dst: dst}, b)
}

// error6 is an ICMPv6 error from B about a packet with that payload from A to B.
func error6(kind, code uint8, word uint32, proto uint8, payload []byte) []byte {
	packet := make([]byte, 40+len(payload))
	wire.PutIPv6(packet, wire.IPv6Fields{PayloadLen: uint16(len(payload)), Protocol: proto, HopLimit: 3, Src: globalA, Dst: globalB})
	copy(packet[40:], payload)
	return errorAbout(kind, code, word, packet)
}

// errorAbout is an ICMPv6 error from B about a packet of A.
func errorAbout(kind, code uint8, word uint32, packet []byte) []byte {
	b := make([]byte, wire.ICMPv6ErrorLen(packet))
	wire.PutICMPv6Error(b, globalB, globalA, kind, code, word, packet)
	return ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolICMPv6}, b)
}

func withIPv6(cfg *stack.Config) { cfg.Addrs = append(cfg.Addrs, prefixes6A...) }

func TestIPv6Config(t *testing.T) {
	l, _ := memlink.Pair(memlink.Config{})
	p := netip.MustParsePrefix
	for _, c := range []struct {
		addrs []netip.Prefix
		owned bool
		mtu   int
		ok    bool
	}{
		{append([]netip.Prefix{prefixA}, prefixes6A...), true, 0, true},
		{prefixes6A, true, 0, true},
		{prefixes6A[1:], true, 1280, true},
		{[]netip.Prefix{prefixA, p("10.9.0.1/24"), p("fd00::1/64"), p("fd01::2/64")}, false, 0, true},
		{nil, false, 0, true},
		{nil, true, 0, false},
		{prefixes6A, false, 1279, false},
		{[]netip.Prefix{p("ff02::1/64")}, false, 0, false},
		{[]netip.Prefix{p("::1/128")}, false, 0, false},
		{[]netip.Prefix{{}}, false, 0, false},
	} {
		s, err := stack.New(stack.Config{Link: l, LinkAddr: linkA, Addrs: c.addrs, OwnedAddress: c.owned, MTU: c.mtu, Resolver: neighbours{}, NoCaretaker: true})
		if (err == nil) != c.ok {
			t.Errorf("%v, owned %t, MTU %d: %v", c.addrs, c.owned, c.mtu, err)
		}
		if err == nil {
			s.Close()
		}
	}
}

// Datagrams of all sizes, from and to the global and the link-local addresses.
func TestIPv6UDP(t *testing.T) {
	sa, sb, la, lb := newPair6(t, stack.Config{})
	tap(t, la)
	tap(t, lb)
	server := testutil.Value(sb.ListenUDP(ap("[::]:9"), stack.UDPOptions{}))
	go func() {
		for {
			d, err := server.Borrow()
			if err != nil {
				return
			}
			udpSendTo(server, d.Payload, d.From)
			server.Return(&d)
		}
	}()
	for to, from := range map[string]string{"[fd00::2]:9": "fd00::1", "[fe80::2]:9": "fe80::1", "[fe80::2%eth0]:9": "fe80::1", "10.0.0.2:9": "10.0.0.1"} {
		client := testutil.Value(sa.DialUDP(netip.AddrPort{}, ap(to), stack.UDPOptions{}))
		if got := addrPort(client.LocalAddr()).Addr().String(); got != from {
			t.Errorf("to %s from %s, want %s", to, got, from)
		}
		most, buf := 1452, make([]byte, 2048)
		if from == "10.0.0.1" {
			most = 1472
		}
		for _, n := range []int{0, 1, 64, 1232, most} {
			p := bytes.Repeat([]byte{byte(n)}, n)
			if err := udpSend(client, p); err != nil {
				t.Fatal(err)
			}
			if k, err := udpRecv(client, buf); err != nil || !bytes.Equal(buf[:k], p) {
				t.Fatalf("%s: echo of %d bytes: %d bytes, %v", to, n, k, err)
			}
		}
		client.SetDontFragment(true)
		if err := udpSend(client, make([]byte, most+1)); err != syscall.EMSGSIZE {
			t.Errorf("%s: too large: %v", to, err)
		}
		client.Close()
	}
	// One socket that sends to both families, in frames that were reserved for either.
	client := testutil.Value(sa.ListenUDP(netip.AddrPort{}, stack.UDPOptions{}))
	for _, to := range []string{"[fd00::2]:9", "10.0.0.2:9"} {
		b, err := client.Reserve()
		if err != nil {
			t.Fatal(err)
		}
		n := copy(b.Payload, to)
		if err := client.Send(&b, n, ap(to)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		if n, from, err := udpRecvFrom(client, buf); err != nil || from != ap(to) || string(buf[:n]) != to {
			t.Errorf("%q from %v, want %s; %v", buf[:n], from, to, err)
		}
	}
	server.Close()
	refused := testutil.Value(sa.DialUDP(netip.AddrPort{}, ap("[fd00::2]:9"), stack.UDPOptions{}))
	udpSend(refused, []byte("to a closed port"))
	if _, err := udpRecv(refused, make([]byte, 1)); err != syscall.ECONNREFUSED {
		t.Errorf("closed server: %v", err)
	}
}

// A frame that was reserved with room for IPv4 headers, and whose IPv6 packet the link has refused,
// still has its payload.
func TestRefusedCommitKeepsThePayload(t *testing.T) {
	clk := newClock() // each call of Now advances it by 10 ms
	s, l, _ := newScripted(t, func(cfg *stack.Config) {
		withIPv6(cfg)
		cfg.Now = func() time.Time { return clk.advance(10 * time.Millisecond) }
	})
	u := testutil.Value(s.ListenUDP(ap("[::]:7"), stack.UDPOptions{}))
	to := ap("[fd00::2]:9")
	udpSendTo(u, nil, to)
	stack.Settle(s)
	s.Poll(clk.now())
	l.Stick(true)
	for range 64 { // the queue of the link
		if err := udpSendTo(u, nil, to); err != nil {
			t.Fatal(err)
		}
	}
	b := testutil.Value(u.Reserve())
	payload := strings.Repeat("0123456789", 10)
	n := copy(b.Payload, payload)
	if err := u.Send(&b, n, to); unwrapped(err) != syscall.ENOBUFS {
		t.Fatalf("the link takes nothing: %v", err)
	}
	if got := string(b.Payload[:n]); got != payload {
		t.Errorf("the payload is %q, want %q", got, payload)
	}
	w := tap(t, l)
	l.Stick(false)
	if err := u.Send(&b, n, to); err != nil {
		t.Fatal(err)
	}
	if sent := w.take(); !strings.HasSuffix(sent[len(sent)-1], fmt.Sprintf("udp 7 > 9 %q", payload)) {
		t.Errorf("sent %s", sent[len(sent)-1])
	}
}

// Which families sockets receive from, and what they show as their address.
func TestDualStack(t *testing.T) {
	sa, sb, _, _ := newPair6(t, stack.Config{})
	for _, c := range []struct {
		network, local string
		v4, v6, ll     bool
		shows          string
	}{
		{"", "[::]:0", true, true, true, "::"},
		{"4", "[::]:0", true, false, false, "0.0.0.0"},
		{"6", "[::]:0", false, true, true, "::"},
		{"", "0.0.0.0:0", true, false, false, "0.0.0.0"},
		{"", "[fd00::1]:0", false, true, false, "fd00::1"},
		{"", "[fe80::1%eth0]:0", false, false, true, "fe80::1"},
		{"", "10.0.0.1:0", true, false, false, "10.0.0.1"},
	} {
		l, err := sa.ListenTCP(ap(c.local), stack.TCPListenOptions{TCPOptions: stack.TCPOptions{Network: "tcp" + c.network}})
		if err != nil {
			t.Fatal(err)
		}
		u := testutil.Value(sa.ListenUDP(ap(c.local), stack.UDPOptions{Network: "udp" + c.network}))
		tcpAt, udpAt := addrPort(l.Addr()), addrPort(u.LocalAddr())
		if tcpAt.Addr().String() != c.shows || udpAt.Addr().String() != c.shows {
			t.Errorf("%q %s: shown as %v and %v", c.network, c.local, tcpAt, udpAt)
		}
		for to, want := range map[string]bool{"10.0.0.1": c.v4, "fd00::1": c.v6, "fe80::1": c.ll} {
			at := netip.MustParseAddr(to)
			conn, err := sb.DialTCP(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(at, tcpAt.Port()), stack.TCPOptions{})
			if want != (err == nil) || err != nil && err != syscall.ECONNREFUSED {
				t.Errorf("%q %s, dialled at %s: %v", c.network, c.local, to, err)
			}
			if err == nil {
				conn.Close()
			}
			d := testutil.Value(sb.DialUDP(netip.AddrPort{}, netip.AddrPortFrom(at, udpAt.Port()), stack.UDPOptions{}))
			udpSend(d, []byte(to))
			if !want {
				if _, err := udpRecv(d, make([]byte, 1)); err != syscall.ECONNREFUSED {
					t.Errorf("%q %s, sent to %s: %v", c.network, c.local, to, err)
				}
			} else if d, err := u.Borrow(); err != nil || string(d.Payload) != to {
				t.Errorf("%q %s: %q, %v", c.network, c.local, d.Payload, err)
			} else {
				u.Return(&d)
			}
			d.Close()
		}
		// Wildcards of different families share a port, and no others do.
		for network, free := range map[string]bool{"4": !c.v4, "6": !c.v6 && !c.ll, "": false} {
			other, err := sa.ListenTCP(netip.AddrPortFrom(netip.IPv6Unspecified(), tcpAt.Port()), stack.TCPListenOptions{TCPOptions: stack.TCPOptions{Network: "tcp" + network}})
			if (err == nil) != free || err != nil && err != syscall.EADDRINUSE {
				t.Errorf("tcp%s beside %q %s: %v", network, c.network, c.local, err)
			}
			if err == nil {
				other.Close()
			}
		}
		l.Close()
		u.Close()
	}
	// Impossible combinations are errors.
	const ones = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:1"
	dial := func(local, remote string) error {
		_, err := sa.DialTCP(t.Context(), ap(local), ap(remote), stack.TCPOptions{})
		return err
	}
	for _, c := range []struct {
		got, want error
	}{
		{dial("10.0.0.1:0", "[fd00::2]:1"), syscall.EINVAL},
		{dial("[fd00::1]:0", "10.0.0.2:1"), syscall.EINVAL},
		{dial("[fd00::9]:0", "[fd00::2]:1"), syscall.EADDRNOTAVAIL},
		{dial("[::]:0", "[fd00::9]:1"), syscall.EHOSTUNREACH},
		{dial("[::]:0", "[2001:db8::1]:1"), syscall.ENETUNREACH},
		{dial("[::]:0", "[ff02::1]:1"), syscall.ENETUNREACH},
		{dial("[::]:0", ones), syscall.ENETUNREACH},
		{dial(ones, "[fd00::2]:1"), syscall.EADDRNOTAVAIL},
		{udpSendTo(testutil.Value(sa.ListenUDP(ap("[::]:0"), stack.UDPOptions{})), nil, ap(ones)), syscall.ENETUNREACH},
		{dial("[::]:0", "[::1]:1"), syscall.ECONNREFUSED},
	} {
		wantError(t, "dial", c.got, c.want)
	}
	// Two sockets of one stack.
	server := testutil.Value(sa.ListenUDP(ap("[::]:7"), stack.UDPOptions{}))
	for _, c := range []struct{ local, to, from string }{
		{"[::]:0", "[::1]:7", "::1"}, {"[::]:0", "[fd00::1]:7", "fd00::1"}, {"[::]:0", "[fe80::1]:7", "fe80::1"},
		{"[fe80::1]:0", "[fd00::1]:7", "fe80::1"}, {"[fd00::1]:0", "[fe80::1]:7", "fd00::1"},
	} {
		self := testutil.Value(sa.DialUDP(ap(c.local), ap(c.to), stack.UDPOptions{}))
		udpSend(self, []byte("x"))
		_, from, err := udpRecvFrom(server, make([]byte, 9))
		if err != nil || from.Addr().String() != c.from {
			t.Errorf("sent from %s to %s: from %v, %v", c.local, c.to, from, err)
		}
	}
}

// Data goes both ways over IPv6 while 1 frame of 50 is lost.
func TestIPv6TCPLoss(t *testing.T) {
	a, b, la, lb := newPair6(t, stack.Config{})
	for _, at := range []string{"[fd00::1]:0", "[fe80::1]:0"} {
		client, server := connectAt(t, a, b, at, stack.TCPOptions{})
		if mss := client.Info().SendMSS; mss != 1500-60-12 {
			t.Errorf("%s: segments of %d bytes", at, mss)
		}
		var n atomic.Uint32
		for _, l := range []*memlink.Link{la, lb} {
			l.Filter(func([]byte) bool { return n.Add(1)%50 != 0 })
		}
		data := make([]byte, 400_000)
		rand.NewChaCha8([32]byte{6}).Read(data)
		go func() {
			writeAll(t, client, data)
			client.CloseWrite()
		}()
		go io.Copy(server, server)
		got := make([]byte, len(data))
		if _, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: the echo is incomplete or differs: %v", at, err)
		}
		la.Filter(nil)
		lb.Filter(nil)
		client.Close()
		server.Close()
	}
}

// A router's report of the path's MTU takes effect, down to 1280.
func TestIPv6PathMTU(t *testing.T) {
	a, b, la, lb := newPair6(t, stack.Config{})
	client, server := connectAt(t, b, a, "[fd00::2]:0", stack.TCPOptions{}) // client is at A
	var large atomic.Int32
	reports := make(chan []byte, 1000)
	la.Filter(func(frame []byte) bool {
		if len(frame) <= 14+1300 || frame[20] != wire.ProtocolTCP {
			return true
		}
		large.Add(1)
		select {
		case reports <- errorAbout(wire.ICMPv6PacketTooBig, 0, 1300, frame[14:]):
		default:
		}
		return false
	})
	go func() {
		for frame := range reports {
			la.Inject(stack.Frame{Data: frame})
		}
	}()
	transfer(t, client, server, 200_000)
	server.Close()
	la.Filter(nil)
	lb.Filter(nil)
	close(reports)
	if large.Load() > 50 || counters(a)["path_mtu_lowered"] != 1 {
		t.Errorf("%d segments too large; lowered %d times", large.Load(), counters(a)["path_mtu_lowered"])
	}
}

func TestIPv6PathMTUOfDatagrams(t *testing.T) {
	s, l, c := newScripted(t, withIPv6)
	u := testutil.Value(s.DialUDP(ap("[fd00::1]:7"), ap("[fd00::2]:9"), stack.UDPOptions{}))
	u.SetDontFragment(true)
	udpSend(u, nil)
	stack.Settle(s)
	datagram := make([]byte, 1460)
	binary.BigEndian.PutUint32(datagram, 7<<16|9)
	for _, step := range []struct {
		mtu  uint32 // in the report
		most int    // bytes of the largest datagram after it
	}{
		{0, 1452}, {1279, 1452}, {1400, 1352}, {1450, 1352}, {1279, 1352}, {0, 1352}, {68, 1352}, {1280, 1232},
	} {
		l.Inject(stack.Frame{Data: error6(wire.ICMPv6PacketTooBig, 0, step.mtu, wire.ProtocolUDP, datagram)})
		s.Poll(c.now())
		want := error(syscall.EMSGSIZE)
		if step.mtu < 1280 {
			want = os.ErrDeadlineExceeded
		}
		u.SetReadDeadline(c.now())
		if _, err := udpRecv(u, make([]byte, 1)); err != want {
			t.Errorf("reported MTU %d: read %v, want %v", step.mtu, err, want)
		}
		if err := udpSend(u, make([]byte, step.most)); err != nil {
			t.Errorf("reported MTU %d: %d bytes: %v", step.mtu, step.most, err)
		}
		if err := udpSend(u, make([]byte, step.most+1)); err != syscall.EMSGSIZE {
			t.Errorf("reported MTU %d: %d bytes: %v", step.mtu, step.most+1, err)
		}
	}
}

// ICMPv6 errors reach the socket whose packet they quote.
func TestICMPv6Errors(t *testing.T) {
	s, l, c := newScripted(t, withIPv6)
	u := testutil.Value(s.DialUDP(ap("[fd00::1]:7"), ap("[fd00::2]:9"), stack.UDPOptions{}))
	datagram := []byte{0, 7, 0, 9, 0, 8, 0, 0}
	for _, e := range []struct {
		kind, code uint8
		want       error
	}{
		{wire.ICMPv6Unreachable, 0, syscall.ENETUNREACH},
		{wire.ICMPv6Unreachable, 1, syscall.EACCES},
		{wire.ICMPv6Unreachable, 3, syscall.EHOSTUNREACH},
		{wire.ICMPv6Unreachable, 4, syscall.ECONNREFUSED},
		{wire.ICMPv6TimeExceeded, 0, nil},
		{wire.ICMPv6ParameterProblem, 1, syscall.EPROTO},
	} {
		l.Inject(stack.Frame{Data: error6(e.kind, e.code, 0, wire.ProtocolUDP, datagram)})
		s.Poll(c.now())
		u.SetReadDeadline(c.now())
		want := e.want
		if want == nil {
			want = os.ErrDeadlineExceeded
		}
		if _, err := u.Read(make([]byte, 1)); unwrapped(err) != want {
			t.Errorf("type %d code %d: %v, want %v", e.kind, e.code, err, e.want)
		}
	}
}

// Packets that are answered, and the answers, which gopacket decodes.
func TestIPv6PacketsThatAreAnswered(t *testing.T) {
	s, l, c := newScripted(t, withIPv6)
	testutil.Value(s.ListenUDP(ap("[::]:7"), stack.UDPOptions{}))
	group := wire.SolicitedNode(globalA)
	ask := wire.Neighbor{Target: globalA, Link: linkB}
	fromA := macA + " > " + macB + " | ip6 fd00::1 > fd00::2 hop 64 class 0 | icmp6 "
	na := func(flags byte, target [16]byte) string {
		return fmt.Sprintf("icmp6 NeighborAdvertisement %02x000000%x0201%x", flags, target, linkA[:])
	}
	unknown := []byte{wire.ProtocolUDP, 0, 0x80, 4, 0, 0, 0, 0}   // destination options; the option is discarded with an ICMPv6 error
	ignorable := []byte{wire.ProtocolUDP, 0, 0x1e, 4, 0, 0, 0, 0} // the option is skipped
	discarded := []byte{wire.ProtocolUDP, 0, 0x40, 4, 0, 0, 0, 0} // the packet is discarded without an error
	prepend := func(header, payload []byte) []byte { return append(append([]byte{}, header...), payload...) }
	tooLong := error6(1, 4, 0, wire.ProtocolUDP, []byte{0, 99, 0, 9, 0, 8, 0, 0})
	aboutError := prepend([]byte{wire.ProtocolICMPv6, 0, 0x80, 4, 0, 0, 0, 0}, tooLong[54:])
	runScript(t, s, l, c, []step{
		{At: 1, In: [][]byte{ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolICMPv6}, echo6(globalB, globalA, "ping"))},
			Want: []string{fromA + "EchoReply 0003000470696e67"}},
		{At: 2, In: [][]byte{neighbor(globalB, group, ask)}, Want: []string{macA + " > " + macB + " | ip6 fd00::1 > fd00::2 hop 255 class 0 | " + na(0x60, globalA)}},
		{At: 3, In: [][]byte{neighbor(globalB, globalA, wire.Neighbor{Target: globalA})}, Want: []string{na(0x60, globalA)}},
		{At: 4, In: [][]byte{neighbor(globalB, wire.SolicitedNode(linkLocalA), wire.Neighbor{Target: linkLocalA, Link: linkB})}, Want: []string{na(0x60, linkLocalA)}},
		{At: 6, In: [][]byte{ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolUDP}, udp6(8, "x"))}, Want: []string{fromA + "DestinationUnreachable(PortUnreachable) 0000000060"}},
		{At: 7, In: [][]byte{ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolUDP}, udp6(7, "x"))}},
		{At: 8, In: [][]byte{ip6Frame(wire.IPv6Fields{Protocol: 60}, prepend(ignorable, udp6(7, "x")))}},
		{At: 9, In: [][]byte{ip6Frame(wire.IPv6Fields{Protocol: 60}, prepend(ignorable, udp6(8, "x")))}, Want: []string{fromA + "DestinationUnreachable(PortUnreachable)"}},
		{At: 10, In: [][]byte{ip6Frame(wire.IPv6Fields{Protocol: 60}, prepend(unknown, udp6(7, "x")))}, Want: []string{fromA + "ParameterProblem(UnrecognizedIPv6Option) 0000002a"}},
		{At: 11, In: [][]byte{ip6Frame(wire.IPv6Fields{Protocol: 60}, prepend(discarded, udp6(7, "x")))}},
		{At: 12, In: [][]byte{ip6Frame(wire.IPv6Fields{Protocol: 132}, []byte("sctp"))}, Want: []string{fromA + "ParameterProblem(UnrecognizedNextHeader) 00000006"}},
		{At: 13, In: [][]byte{ip6Frame(wire.IPv6Fields{Protocol: 59}, nil)}},
		{At: 14, In: [][]byte{ip6Frame(wire.IPv6Fields{Protocol: 60}, aboutError)}},
	})
	if n := counters(s); n["udp_received"] != 2 || n["ipv6_extension"] != 3 || n["ipv6_protocol"] != 2 || n["nd_replies_sent"] != 3 {
		t.Errorf("%v", n)
	}
}

// The probe of a host that tests whether the address is free is answered to the all-nodes group.
func TestDuplicateAddressDetectionIsAnswered(t *testing.T) {
	s, l, c := newScripted(t, withIPv6)
	group := wire.SolicitedNode(globalA)
	b := make([]byte, wire.MaxNeighborLen)
	b = b[:wire.PutNeighbor(b, [16]byte{}, group, wire.Neighbor{Target: globalA})]
	f := ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolICMPv6, HopLimit: 255, Src: [16]byte{15: 9}, Dst: group}, b)
	clear(f[22:38]) // the unspecified address
	runScript(t, s, l, c, []step{{In: [][]byte{f}, Want: []string{
		macA + " > 33:33:00:00:00:01 | ip6 fd00::1 > ff02::1 hop 255 class 0 | icmp6 NeighborAdvertisement 20000000" + hex.EncodeToString(globalA[:])}}})
}

// Packets that are dropped are counted by one reason, and nothing answers them.
func TestMalformedIPv6Packets(t *testing.T) {
	group := wire.SolicitedNode(globalA)
	ask := wire.Neighbor{Target: globalA, Link: linkB}
	icmp := func(kind uint8, hop uint8, rest ...byte) []byte {
		m := append([]byte{kind, 0, 0, 0}, rest...)
		sum := wire.Sum(m, wire.PseudoHeader(wire.AddrFrom16(globalB), wire.AddrFrom16(globalA), wire.ProtocolICMPv6, uint16(len(m))))
		binary.BigEndian.PutUint16(m[2:], ^wire.Fold(sum))
		return ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolICMPv6, HopLimit: hop}, m)
	}
	change := func(f []byte, at int, v byte) []byte {
		f = append([]byte(nil), f...)
		f[at] = v
		return f
	}
	datagram := ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolUDP}, udp6(7, "x"))
	zeroChecksum := change(change(datagram, 60, 0), 61, 0)
	solicitation := neighbor(globalB, group, ask)
	noSourceMAC := neighbor(globalB, globalA, wire.Neighbor{Target: globalA})
	copy(noSourceMAC[6:12], make([]byte, 6))
	mapped4 := a16("::ffff:10.0.0.1")
	quoting := func(src, dst [16]byte) []byte {
		packet := make([]byte, 40+1460)
		wire.PutIPv6(packet, wire.IPv6Fields{PayloadLen: 1460, Protocol: wire.ProtocolUDP, HopLimit: 3, Src: src, Dst: dst})
		binary.BigEndian.PutUint32(packet[40:], 7<<16|9)
		return errorAbout(wire.ICMPv6PacketTooBig, 0, 1280, packet)
	}
	for _, c := range []struct {
		counter string
		frame   []byte
	}{
		{"ipv6_truncated", datagram[:50]},
		{"ipv6_truncated", change(datagram, 19, 200)},
		{"ipv6_version", change(datagram, 14, 0x45)},
		{"ipv6_destination", ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolUDP, Dst: a16("fd00::9")}, udp6(7, "x"))},
		{"group_no_member", ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolUDP, Dst: a16("ff02::1")}, udp6(7, "x"))},
		{"ipv6_source", ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolUDP, Dst: a16("::ffff:10.0.0.1")}, udp6(7, "x"))},
		{"ipv6_source", ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolUDP, Src: a16("::ffff:10.0.0.2")}, udp6(7, "x"))},
		{"ipv6_source", ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolUDP, Src: a16("ff02::2")}, udp6(7, "x"))},
		{"ipv6_source", ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolUDP, Src: a16("::1")}, udp6(7, "x"))},
		{"ipv6_source", ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolUDP, Src: globalA}, udp6(7, "x"))},
		{"ipv6_link_group", change(change(datagram, 0, 0x33), 1, 0x33)},
		{"frag_kept", ip6Frame(wire.IPv6Fields{Protocol: 44}, append([]byte{17, 0, 0, 1, 0, 0, 0, 9}, udp6(7, "12345678")...))},
		{"frag_empty", ip6Frame(wire.IPv6Fields{Protocol: 44}, []byte{58, 0, 0, 9, 0, 0, 0, 9})},
		{"ipv6_extension", ip6Frame(wire.IPv6Fields{Protocol: 60}, append(bytes.Repeat([]byte{60, 0, 1, 4, 0, 0, 0, 0}, 20), udp6(7, "x")...))},
		{"udp_checksum", zeroChecksum},
		{"icmp_checksum", change(icmp(128, 64, 1, 2, 3, 4), 58, 9)},
		{"icmp_truncated", icmp(128, 64)},
		{"icmp_ignored", icmp(200, 64, 0, 0, 0, 0)},
		{"nd_ignored", icmp(134, 255, make([]byte, 12)...)},
		{"nd_ignored", icmp(137, 255, make([]byte, 36)...)},
		{"nd_bogus", change(solicitation, 21, 254)}, // with hop limit 254, so a router has forwarded it
		{"nd_bogus", neighbor(globalB, group, wire.Neighbor{Target: globalA, Link: wire.LinkAddr{1, 2, 3, 4, 5, 6}})},
		{"nd_bogus", neighbor(globalB, group, wire.Neighbor{Target: globalA})},
		{"nd_bogus", neighbor(a16("ff02::7"), group, ask)},
		{"nd_not_ours", neighbor(globalB, wire.SolicitedNode(globalB), wire.Neighbor{Target: globalB, Link: linkB})},
		{"nd_not_ours", neighbor(globalB, a16("ff02::1"), ask)},
		{"nd_not_ours", neighbor(globalB, globalA, wire.Neighbor{Target: mapped4, Link: linkB})},
		{"nd_bogus", noSourceMAC},
		{"icmp_unmatched", quoting(mapped4, a16("::ffff:10.0.0.2"))},
		{"icmp_unmatched", quoting(globalA, a16("::ffff:10.0.0.2"))},
		{"icmp_unmatched", quoting(linkLocalA, globalB)},
		{"nd_conflict", neighbor(globalA, a16("ff02::1"), wire.Neighbor{Advertisement: true, Target: globalA, Link: linkB, Override: true})},
		{"icmp_unmatched", error6(1, 4, 0, wire.ProtocolUDP, []byte{0, 99, 0, 9, 0, 8, 0, 0})},
		{"icmp_unmatched", error6(1, 4, 0, wire.ProtocolTCP, []byte{0, 99, 0, 9, 0, 8, 0, 0})},
		{"icmp_truncated", error6(1, 4, 0, wire.ProtocolUDP, []byte{0, 99})},
	} {
		s, l, clk := newScripted(t, withIPv6)
		testutil.Value(s.ListenUDP(ap("[::]:7"), stack.UDPOptions{}))
		w := tap(t, l)
		l.Inject(stack.Frame{Data: c.frame})
		s.Poll(clk.now())
		n := counters(s)
		delete(n, "tcp_segments_received")
		if n[c.counter] != 1 || n["frames_received"] != 1 {
			t.Errorf("%s: %v", c.counter, n)
		}
		if sent := w.take(); len(sent) > 0 {
			t.Errorf("%s: sent %q", c.counter, sent)
		}
	}
}

// Packets to a shared address are answered by the kernel, so the stack sends nothing.
func TestIPv6SharedAddressAnswersNothing(t *testing.T) {
	s, l, c := newScripted(t, func(cfg *stack.Config) { withIPv6(cfg); cfg.OwnedAddress = false })
	runScript(t, s, l, c, []step{
		{At: 1, In: [][]byte{neighbor(globalB, wire.SolicitedNode(globalA), wire.Neighbor{Target: globalA, Link: linkB})}},
		{At: 2, In: [][]byte{ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolICMPv6}, echo6(globalB, globalA, "ping"))}},
		{At: 3, In: [][]byte{ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolUDP}, udp6(8, "x"))}},
	})
}

// A flood gets no more errors than the rate limit allows.
func TestICMPv6ErrorRateLimit(t *testing.T) {
	s, l, c := newScripted(t, withIPv6)
	w := tap(t, l)
	for range 200 {
		l.Inject(stack.Frame{Data: ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolUDP}, udp6(8, "x"))})
		s.Poll(c.now())
	}
	if n := len(w.take()); n != 32 || counters(s)["icmp_unreachables_limited"] != 168 {
		t.Errorf("%d errors, %v", n, counters(s))
	}
}

// The ECN bits of datagrams, and the local address, by control messages of IPv6.
func TestIPv6ControlMessages(t *testing.T) {
	sa, sb, _, _ := newPair6(t, stack.Config{})
	a := testutil.Value(sa.ListenUDP(ap("[::]:7"), stack.UDPOptions{}))
	const solIPv6, pktInfo, tclass = 41, 50, 67
	class := func(v uint32) []byte {
		return message(solIPv6, tclass, binary.NativeEndian.AppendUint32(nil, v)...)
	}
	buf, oob := make([]byte, 10), make([]byte, 64)
	for to, local := range map[string][16]byte{"[fd00::1]:7": globalA, "[fe80::1]:7": linkLocalA} {
		b := testutil.Value(sb.DialUDP(netip.AddrPort{}, ap(to), stack.UDPOptions{}))
		for _, tos := range []uint32{0, 1, 2, 0xff} {
			if _, _, err := b.WriteMsgUDP([]byte("x"), class(tos), nil); err != nil {
				t.Fatal(err)
			}
			n, oobn, flags, from, err := a.ReadMsgUDP(buf, oob)
			if err != nil || n != 1 || flags != 0 {
				t.Fatalf("%d bytes, flags %x: %v", n, flags, err)
			}
			info := message(solIPv6, pktInfo, append(local[:], 0, 0, 0, 0)...)
			if want := append(class(tos&3), info...); !bytes.Equal(oob[:oobn], want) {
				t.Errorf("%s, class %d: control messages %x, want %x", to, tos, oob[:oobn], want)
			}
			if _, _, err := a.WriteMsgUDP([]byte("y"), oob[:oobn], from); err != nil {
				t.Errorf("an answer with the same messages: %v", err)
			}
			if n, err := b.Read(buf); n != 1 || err != nil {
				t.Errorf("the answer: %d bytes, %v", n, err)
			}
		}
	}
	// The control message has the address to which a datagram was sent. An answer with that
	// message is sent from that address.
	for _, c := range []struct {
		from       *stack.Stack
		local, to  string
		wantSender string
	}{
		{sb, "[fe80::2]:0", "[fd00::1]:7", "fe80::2"}, {sb, "[fd00::2]:0", "[fe80::1]:7", "fd00::2"},
		{sa, "[fe80::1]:0", "[fd00::1]:7", "fe80::1"}, {sa, "[::]:0", "[::1]:7", "::1"},
	} {
		b := testutil.Value(c.from.DialUDP(ap(c.local), ap(c.to), stack.UDPOptions{}))
		udpSend(b, []byte("x"))
		_, oobn, _, from, err := a.ReadMsgUDP(buf, oob)
		local := ap(c.to).Addr().As16()
		info := message(solIPv6, pktInfo, append(local[:], 0, 0, 0, 0)...)
		if err != nil || !bytes.Equal(oob[:oobn], append(class(0), info...)) || from.IP.String() != c.wantSender {
			t.Fatalf("from %s to %s: control messages %x of %v, %v", c.local, c.to, oob[:oobn], from, err)
		}
		b.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, _, err := a.WriteMsgUDP([]byte("y"), info, from); err != nil {
			t.Errorf("the answer to %v: %v", from, err)
		} else if _, err := udpRecv(b, buf); err != nil {
			t.Errorf("the answer to %s from %s: %v", c.local, c.to, err)
		}
	}
	six := testutil.Value(sa.ListenUDP(ap("[::]:8"), stack.UDPOptions{Network: "udp6"}))
	for _, c := range []struct {
		local [16]byte
		to    string
	}{
		{globalB, "[fd00::2]:1"}, {a16("::1"), "[fd00::2]:1"}, {[16]byte(bytes.Repeat([]byte{0xff}, 16)), "[fd00::2]:1"},
		{globalA, "10.0.0.2:1"}, {a16("::ffff:10.0.0.1"), "[fd00::2]:1"},
	} {
		other := message(solIPv6, pktInfo, append(c.local[:], 0, 0, 0, 0)...)
		for _, u := range []*stack.UDPConn{a, six} {
			if u == six && !ap(c.to).Addr().Is6() {
				continue
			}
			if _, _, err := u.WriteMsgUDP([]byte("y"), other, testutil.Value(net.ResolveUDPAddr("udp", c.to))); unwrapped(err) != syscall.EINVAL {
				t.Errorf("from %v to %s: %v", netip.AddrFrom16(c.local), c.to, err)
			}
		}
	}
}

func TestIPv6ConnConformsToNetConn(t *testing.T) {
	a, b, _, _ := newPair6(t, stack.Config{})
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		client, server := connectAt(t, a, b, "[fd00::1]:0", stack.TCPOptions{})
		client.SetDeadline(time.Time{})
		server.SetDeadline(time.Time{})
		return client, server, func() { client.Close(); server.Close() }, nil
	})
}

// FuzzIPv6 gives a stack any IPv6 packet, with correct checksums if it is ICMPv6 without
// extension headers. It must not panic, keep no frame, and send nothing that gopacket cannot
// read.
func FuzzIPv6(f *testing.F) {
	f.Add(ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolUDP}, udp6(7, "x"))[14:])
	f.Add(ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolUDP}, udp6(8, "x"))[14:])
	f.Add(ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolICMPv6}, echo6(globalB, globalA, "ping"))[14:])
	f.Add(neighbor(globalB, wire.SolicitedNode(globalA), wire.Neighbor{Target: globalA, Link: linkB})[14:])
	f.Add(error6(wire.ICMPv6PacketTooBig, 0, 1300, wire.ProtocolUDP, []byte{0, 7, 0, 9, 5, 200, 0, 0})[14:])
	f.Add(ip6Frame(wire.IPv6Fields{Protocol: 60}, append([]byte{17, 0, 0x80, 4, 0, 0, 0, 0}, udp6(7, "x")...))[14:])
	f.Add(ip6Frame(wire.IPv6Fields{Protocol: 44}, append([]byte{17, 0, 0, 1, 0, 0, 0, 9}, udp6(7, "12345678")...))[14:])
	f.Fuzz(func(t *testing.T, packet []byte) {
		clk := newClock()
		l, _ := memlink.Pair(memlink.Config{FrameCount: 64})
		s, err := stack.New(stack.Config{
			Link: l, LinkAddr: linkA, Addrs: append([]netip.Prefix{prefixA}, prefixes6A...), OwnedAddress: true, Resolver: neighbours{}, NoCaretaker: true, Now: clk.now,
		})
		if err != nil {
			t.Fatal(err)
		}
		l.Filter(func(frame []byte) bool {
			if line, err := describe(frame); err != nil && !strings.Contains(line, "icmp6") {
				t.Error(err)
			}
			return true
		})
		testutil.Value(s.ListenUDP(ap("[::]:7"), stack.UDPOptions{}))
		testutil.Value(s.ListenTCP(ap("[::]:80"), stack.TCPListenOptions{}))
		udpSend(testutil.Value(s.DialUDP(ap("[fd00::1]:8"), ap("[fd00::2]:9"), stack.UDPOptions{})), []byte("out"))
		packet = append([]byte(nil), packet[:min(len(packet), 2000)]...)
		if len(packet) >= 44 && packet[6] == wire.ProtocolICMPv6 {
			packet[42], packet[43] = 0, 0
			m := packet[40:min(len(packet), 40+int(binary.BigEndian.Uint16(packet[4:])))]
			if len(m) >= 4 {
				sum := wire.Sum(m, wire.PseudoHeader(wire.AddrFrom16([16]byte(packet[8:])), wire.AddrFrom16([16]byte(packet[24:])), wire.ProtocolICMPv6, uint16(len(m))))
				binary.BigEndian.PutUint16(m[2:], ^wire.Fold(sum))
			}
		}
		frame := make([]byte, 14+len(packet))
		wire.PutEthernet(frame, linkA, linkB, wire.EtherTypeIPv6)
		copy(frame[14:], packet)
		if len(packet) > 24 && packet[24] == 0xff {
			copy(frame, []byte{0x33, 0x33, 0, 0, 0, 1})
		}
		l.Inject(stack.Frame{Data: frame})
		for range 3 {
			s.Poll(clk.advance(500 * time.Millisecond))
		}
		s.Close()
		if err := l.Audit(); err != nil {
			t.Error(err)
		}
	})
}
