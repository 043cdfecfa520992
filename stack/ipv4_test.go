package stack_test

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// newScripted makes a stack A with an owned address on one end of a memlink, for
// runScript. The other end has no stack.
func newScripted(t *testing.T, change func(*stack.Config)) (*stack.Stack, *memlink.Link, *clock) {
	t.Helper()
	c := newClock()
	l, _ := memlink.Pair(memlink.Config{})
	cfg := stack.Config{LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, OwnedAddress: true, Resolver: neighbours{}, NoCaretaker: true, Now: c.now}
	if change != nil {
		change(&cfg)
	}
	return newStack(t, l, cfg), l, c
}

const (
	macA  = "02:00:00:00:00:0a"
	macB  = "02:00:00:00:00:0b"
	tellB = macA + " > " + macB + " | arp reply 10.0.0.1 is " + macA + ", to 10.0.0.2 " + macB
)

func TestARPAnswers(t *testing.T) {
	s, l, c := newScripted(t, nil)
	request := arpFrame(wire.ARPRequest, linkB, wire.Broadcast, addrB, addrA)
	probe := arpFrame(wire.ARPRequest, linkB, wire.Broadcast, [4]byte{}, addrA)
	runScript(t, s, l, c, []step{
		{At: 0, In: [][]byte{request}, Want: []string{tellB}},
		{At: 1, In: [][]byte{probe}, Want: []string{macB + " | arp reply 10.0.0.1 is " + macA + ", to 0.0.0.0"}},
		{At: 2, In: [][]byte{arpFrame(wire.ARPRequest, linkB, wire.Broadcast, addrB, [4]byte{10, 0, 0, 3})}},
		{At: 3, In: [][]byte{arpFrame(wire.ARPRequest, wire.Broadcast, linkA, addrB, addrA)}},
		{At: 4, In: [][]byte{arpFrame(wire.ARPRequest, linkB, linkA, [4]byte{224, 0, 0, 1}, addrA)}},
		{At: 5, In: [][]byte{arpFrame(wire.ARPRequest, linkB, linkA, [4]byte{10, 0, 0, 255}, addrA)}},
		{At: 6, In: [][]byte{arpFrame(7, linkB, linkA, addrB, addrA)}},
		{At: 7, In: [][]byte{arpFrame(wire.ARPRequest, linkB, wire.Broadcast, addrA, addrA)}},
		{At: 8, In: [][]byte{arpFrame(wire.ARPReply, linkB, linkA, addrB, addrA)}},
	})
	got := counters(s)
	if got["arp_bogus"] != 4 || got["arp_conflict"] != 1 || got["arp_replies_sent"] != 2 || got["arp_not_ours"] != 2 {
		t.Errorf("counters: %v", got)
	}
}

// A stack with a port of a shared address leaves ARP to the kernel.
func TestARPIsIgnoredWithoutOwnedAddress(t *testing.T) {
	s, l, c := newScripted(t, func(cfg *stack.Config) { cfg.OwnedAddress = false })
	runScript(t, s, l, c, []step{{In: [][]byte{arpFrame(wire.ARPRequest, linkB, wire.Broadcast, addrB, addrA)}}})
	if n := counters(s)["arp_not_ours"]; n != 1 {
		t.Errorf("arp_not_ours is %d, want 1", n)
	}
}

// A frame that waits when a timer expires is received before the timer runs: no route is requested
// because of a silent MAC address.
func TestFramesAreReceivedBeforeTimersRun(t *testing.T) {
	r := &routes{answer: answerWith(stack.Route{LinkAddr: linkB})}
	s, l, c := newScripted(t, func(cfg *stack.Config) { cfg.Resolver = r })
	u := testutil.Value(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
	for range 8 {
		udpSend(u, []byte("x"))
		stack.Settle(s)
		at, ok := s.NextDeadline()
		if !ok {
			t.Fatal("no timer")
		}
		l.Inject(stack.Frame{Data: datagramFrame(9, 99, nil)})
		s.Poll(c.set(at))
	}
	if n := r.count(); n != 1 {
		t.Errorf("%d route requests, want 1", n)
	}
}

// ipFrame is a frame from B to A with an IP packet.
func ipFrame(f wire.IPv4Fields, payload []byte) []byte {
	b := make([]byte, 34+len(payload))
	wire.PutEthernet(b, linkA, linkB, wire.EtherTypeIPv4)
	f.TotalLen = uint16(20 + len(payload))
	if f.Src == [4]byte{} {
		f.Src = addrB
	}
	if f.Dst == [4]byte{} {
		f.Dst = addrA
	}
	f.TTL = 64
	wire.PutIPv4(b[14:], f)
	copy(b[34:], payload)
	return b
}

func echoFrame(payload string) []byte {
	m := make([]byte, 8+len(payload))
	wire.PutEcho(m, wire.EchoFields{Type: wire.ICMPEchoRequest, ID: 3, Seq: 4}, []byte(payload))
	return ipFrame(wire.IPv4Fields{Protocol: wire.ProtocolICMP}, m)
}

// errorFrame is an ICMP error from B about a datagram that A sent.
func errorFrame(code uint8, mtu uint32, size int, flow wire.UDPFlow) []byte {
	p := make([]byte, size)
	wire.PutUDPCopy(p[20:], &flow, make([]byte, size-28))
	wire.PutIPv4(p, wire.IPv4Fields{TotalLen: uint16(size), TTL: 9, Protocol: wire.ProtocolUDP, Src: flow.Src.As4(), Dst: flow.Dst.As4()})
	m := make([]byte, wire.MaxICMPv4ErrorLen)
	m = m[:wire.PutICMPv4Error(m, wire.ICMPUnreachable, code, mtu, p)]
	return ipFrame(wire.IPv4Fields{Protocol: wire.ProtocolICMP}, m)
}

func TestPing(t *testing.T) {
	s, l, c := newScripted(t, nil)
	runScript(t, s, l, c, []step{
		{In: [][]byte{echoFrame("hello")}, Want: []string{macA + " > " + macB + " | ip 10.0.0.1 > 10.0.0.2 ttl 64 DF | icmp EchoReply id 3 seq 4 5 bytes"}},
		{At: 1, In: [][]byte{echoFrame("")}, Want: []string{"EchoReply id 3 seq 4 0 bytes"}},
	})
	shared, l, c := newScripted(t, func(cfg *stack.Config) { cfg.OwnedAddress = false })
	runScript(t, shared, l, c, []step{{In: [][]byte{echoFrame("hello")}}})
	if got := counters(shared)["icmp_ignored"]; got != 1 {
		t.Errorf("echo request to a shared address: counted %d times", got)
	}
}

func TestPortUnreachable(t *testing.T) {
	s, l, c := newScripted(t, nil)
	bad := datagramFrame(9, 7, []byte("x"))
	bad[len(bad)-1]++
	group := datagramFrame(9, 7, []byte("x"))
	copy(group, wire.Broadcast[:])
	port := "icmp DestinationUnreachable(Port) id 0 seq 0 "
	runScript(t, s, l, c, []step{
		{In: [][]byte{datagramFrame(9, 7, []byte("xyz"))}, Want: []string{port + "31 bytes"}},
		{At: 1, In: [][]byte{datagramFrame(9, 7, make([]byte, 1000))}, Want: []string{port + "548 bytes"}},
		{At: 2, In: [][]byte{bad, group}},
		{At: 3, In: [][]byte{ipFrame(wire.IPv4Fields{Protocol: 132}, make([]byte, 20))}, Want: []string{"icmp DestinationUnreachable(Protocol) id 0 seq 0 40 bytes"}},
	})

	// At most the bucket's 32 at once, and then one every 10 ms.
	w := tap(t, l)
	for range 100 {
		l.Inject(stack.Frame{Data: datagramFrame(9, 7, nil)})
	}
	s.Poll(c.advance(time.Nanosecond))
	if n := len(w.take()); n != 32-3 {
		t.Errorf("%d errors at once, want 29", n)
	}
	for range 100 {
		l.Inject(stack.Frame{Data: datagramFrame(9, 7, nil)})
	}
	s.Poll(c.advance(50 * time.Millisecond))
	if n := len(w.take()); n != 5 {
		t.Errorf("%d errors after 50 ms, want 5", n)
	}
}

func TestICMPErrorsReachTheSocket(t *testing.T) {
	flow := wire.UDPFlow{Src: wire.AddrFrom4(addrA), Dst: wire.AddrFrom4(addrB), SrcPort: 7, DstPort: 9}
	for _, tt := range []struct {
		code uint8
		want error
	}{
		{wire.ICMPPortUnreachable, syscall.ECONNREFUSED},
		{wire.ICMPHostUnreachable, syscall.EHOSTUNREACH},
		{wire.ICMPNetUnreachable, syscall.ENETUNREACH},
	} {
		s, l, c := newScripted(t, func(cfg *stack.Config) { cfg.OwnedAddress = false; cfg.Wait = endpoint.WaitBlock })
		u := testutil.Value(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
		listening := testutil.Value(s.ListenUDP(ap("10.0.0.1:8"), stack.UDPOptions{}))
		listening.SetReadDeadline(c.now())
		other := flow
		other.DstPort = 10
		unconnected := flow
		unconnected.SrcPort = 8
		foreign := flow
		foreign.Src = wire.AddrFrom4([4]byte{10, 0, 0, 77})
		l.Inject(
			stack.Frame{Data: errorFrame(tt.code, 0, 100, other)},
			stack.Frame{Data: errorFrame(tt.code, 0, 100, foreign)},
			stack.Frame{Data: errorFrame(tt.code, 0, 100, unconnected)},
			stack.Frame{Data: datagramFrame(9, 7, []byte("before"))},
			stack.Frame{Data: errorFrame(tt.code, 0, 100, flow)},
		)
		s.Poll(c.now())
		if _, err := udpRecv(u, make([]byte, 1)); err != tt.want {
			t.Errorf("code %d: %v, want %v", tt.code, err, tt.want)
		}
		buf := make([]byte, 10)
		if n, err := udpRecv(u, buf); err != nil || string(buf[:n]) != "before" {
			t.Errorf("code %d: after the error: %q %v", tt.code, buf[:n], err)
		}
		if _, _, err := udpRecvFrom(listening, nil); err == tt.want {
			t.Errorf("code %d: a socket that is not connected got the error", tt.code)
		}
		if got := counters(s); got["icmp_unmatched"] != 2 || got["icmp_errors"] != 2 {
			t.Errorf("counters: %v", got)
		}
	}
}

func TestPathMTU(t *testing.T) {
	s, l, c := newScripted(t, nil)
	flow := wire.UDPFlow{Src: wire.AddrFrom4(addrA), Dst: wire.AddrFrom4(addrB), SrcPort: 7, DstPort: 9}
	u := testutil.Value(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
	u.SetDontFragment(true)
	udpSend(u, nil)
	stack.Settle(s)
	// largest finds the largest payload that can be sent.
	largest := func() int {
		for n := 1500; n > 0; n-- {
			if udpSend(u, make([]byte, n)) != syscall.EMSGSIZE {
				return n
			}
		}
		return 0
	}
	report := func(mtu uint32, size int, flow wire.UDPFlow) {
		l.Inject(stack.Frame{Data: errorFrame(wire.ICMPFragmentationNeeded, mtu, size, flow)})
		s.Poll(c.now())
	}
	check := func(what string, mtu int) {
		t.Helper()
		if got := largest(); got != mtu-28 {
			t.Errorf("%s: the largest payload is %d, want %d", what, got, mtu-28)
		}
	}
	check("at first", 1500)
	report(1400, 1500, flow)
	if _, err := udpRecv(u, make([]byte, 1)); err != syscall.EMSGSIZE {
		t.Errorf("read after fragmentation needed: %v", err)
	}
	check("1400", 1400)
	report(1450, 1500, flow)
	udpRecv(u, make([]byte, 1))
	check("a report of a larger MTU", 1400)
	other := flow
	other.SrcPort = 70
	report(600, 1500, other)
	check("a report about a packet that was not sent", 1400)
	report(1300, 1200, flow)
	udpRecv(u, make([]byte, 1))
	check("a report about a packet that is smaller than the MTU", 1400)
	report(0, 1400, flow)
	udpRecv(u, make([]byte, 1))
	check("a report without an MTU", 1006)
	report(68, 1006, flow)
	udpRecv(u, make([]byte, 1))
	check("a report of less than the minimum", 576)
	pass := func(d time.Duration) { // with the route in use
		for end := c.now().Add(d); c.now().Before(end); {
			udpSend(u, nil)
			s.Poll(c.advance(50 * time.Second))
			stack.Settle(s)
		}
	}
	pass(9 * time.Minute)
	check("after 9 minutes", 576)
	pass(2 * time.Minute)
	check("after 11 minutes", 1500)
}

// Every malformed frame adds one to its counter and has no other effect.
func TestMalformedIPv4Frames(t *testing.T) {
	good := datagramFrame(9, 7, []byte("0123456789"))
	edit := func(f func(b []byte) []byte) []byte { return f(append([]byte(nil), good...)) }
	set := func(at int, v ...byte) []byte {
		return edit(func(b []byte) []byte { copy(b[at:], v); return b })
	}
	header := func(at int, v ...byte) []byte { // with a correct IP checksum
		b := set(at, v...)
		b[24], b[25] = 0, 0
		sum := ^wire.Fold(wire.Sum(b[14:14+int(b[14]&15)*4], 0))
		b[24], b[25] = byte(sum>>8), byte(sum)
		return b
	}
	icmp := func(b ...byte) []byte {
		return ipFrame(wire.IPv4Fields{Protocol: wire.ProtocolICMP}, b)
	}
	vlan := func(id byte) []byte {
		return edit(func(b []byte) []byte { return append(append(b[:12:12], 0x81, 0, 0, id), b[12:]...) })
	}
	for i, tt := range []struct {
		reason string
		frame  []byte
	}{
		{"frame_truncated", good[:13]},
		{"frame_truncated", nil},
		{"frame_nested_vlan", set(12, 0x88, 0xa8)},
		{"frame_vlan", vlan(5)},
		{"frame_destination", set(5, 0x77)},
		{"frame_type", set(12, 0x86, 0xdd)},
		{"ipv4_truncated", good[:30]},
		{"ipv4_truncated", good[:len(good)-1]},
		{"ipv4_version", set(14, 0x65)},
		{"ipv4_length", set(14, 0x44)},
		{"ipv4_length", header(16, 0, 19)},
		{"ipv4_checksum", set(24, good[24]+1)},
		{"ipv4_destination", header(33, 9)},
		{"ipv4_source", header(26, 127)},
		{"ipv4_source", header(26, 255, 255, 255, 255)},
		{"ipv4_source", header(26, 10, 0, 0, 255)},
		{"ipv4_source", header(26, 10, 0, 0, 1)},
		{"ipv4_link_group", set(0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)},
		{"frag_misaligned", header(20, 0x20, 0)},
		{"frag_kept", header(20, 0, 1)},
		{"frag_empty", ipFrame(wire.IPv4Fields{Protocol: wire.ProtocolTCP, Fragment: 1}, nil)},
		{"ipv4_protocol", header(23, 99)},
		{"udp_length", header(16, 0, 27)},
		{"udp_length", set(38, 0, 7)},
		{"udp_length", set(38, 0xff, 0xff)},
		{"udp_checksum", set(40, good[40]^1)},
		{"udp_checksum", set(50, 'x')},
		{"udp_no_socket", datagramFrame(9, 8, nil)},
		{"icmp_truncated", icmp(8, 0, 0, 0)},
		{"icmp_checksum", icmp(8, 0, 1, 1, 0, 0, 0, 0)},
		{"icmp_ignored", icmp(0, 0, 0xff, 0xff, 0, 0, 0, 0)},
		{"icmp_truncated", icmp(3, 3, 0xfc, 0xfc, 0, 0, 0, 0)},
		{"icmp_unmatched", errorFrame(3, 0, 60, wire.UDPFlow{Src: wire.AddrFrom4(addrA), Dst: wire.AddrFrom4(addrB), SrcPort: 99, DstPort: 9})},
		{"arp_malformed", set(12, 0x08, 0x06)},
		{"arp_not_ours", arpFrame(wire.ARPReply, linkB, linkA, addrB, [4]byte{10, 0, 0, 9})},
	} {
		t.Run(fmt.Sprintf("%d %s", i, tt.reason), func(t *testing.T) {
			s, l, c := newScripted(t, nil)
			testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
			l.Inject(stack.Frame{Data: tt.frame})
			s.Poll(c.now())
			got := counters(s)
			if got[tt.reason] != 1 {
				t.Errorf("counters: %v", got)
			}
			for _, side := range []string{"frames_received", "frames_sent", "icmp_unreachables_sent", tt.reason} {
				delete(got, side)
			}
			if len(got) != 0 {
				t.Errorf("other counters: %v", got)
			}
		})
	}
	// Unusual frames that are valid.
	for name, frame := range map[string][]byte{
		"plain":         good,
		"padded":        append(append([]byte(nil), good...), make([]byte, 20)...),
		"priority tag":  vlan(0),
		"no checksum":   set(40, 0, 0),
		"type of svc":   header(15, 0xb8),
		"time to live0": header(22, 0),
		"options": edit(func(b []byte) []byte {
			b = append(append(b[:34:34], 1, 1, 1, 0), b[34:]...)
			b[14], b[17] = 0x46, b[17]+4
			b[24], b[25] = 0, 0
			sum := ^wire.Fold(wire.Sum(b[14:38], 0))
			b[24], b[25] = byte(sum>>8), byte(sum)
			return b
		}),
	} {
		s, l, c := newScripted(t, nil)
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		l.Inject(stack.Frame{Data: frame})
		s.Poll(c.now())
		buf := make([]byte, 100)
		u.SetReadDeadline(c.now().Add(-1))
		if got := counters(s); got["udp_received"] != 1 {
			t.Errorf("%s: %v", name, got)
			continue
		}
		u.SetReadDeadline(time.Time{})
		if n, from, err := udpRecvFrom(u, buf); err != nil || string(buf[:n]) != "0123456789" || from != ap("10.0.0.2:9") {
			t.Errorf("%s: %q from %v, %v", name, buf[:n], from, err)
		}
	}
}

// tagged is a frame with an 802.1Q tag of VLAN 0, which is a priority only, and the IP ID
// id. The low byte of id is where the protocol is in a frame without a tag.
func tagged(frame []byte, id uint8) []byte {
	b := append([]byte(nil), frame[:12]...)
	b = append(b, byte(wire.EtherTypeVLAN>>8), byte(wire.EtherTypeVLAN&0xff), 0x60, 0)
	b = append(b, frame[12:]...)
	ip := b[18 : 18+wire.IPv4HeaderLen]
	ip[5], ip[10], ip[11] = id, 0, 0
	sum := ^wire.Fold(wire.Sum(ip, 0))
	ip[10], ip[11] = byte(sum>>8), byte(sum)
	return b
}

// The protocol of a packet of several parts is found behind the tag: otherwise a datagram
// would be taken for TCP, and its memory for that of a frame.
func TestVLANTaggedDatagramsInParts(t *testing.T) {
	payload := bytes.Repeat([]byte("unet"), 2000)
	for _, id := range []uint8{0, wire.ProtocolTCP, wire.ProtocolUDP} {
		s, l, c := newScripted(t, nil)
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		u.SetReadDeadline(c.now().Add(1))
		for _, p := range [][]byte{payload, payload[:10]} {
			for range 3 {
				l.Inject(parts(tagged(datagramFrame(9, 7, p), id), 0)...)
			}
			s.Poll(c.now())
			for range 3 {
				d, err := u.Borrow()
				if err != nil || !bytes.Equal(d.Payload, p) {
					t.Fatalf("id %d: %d bytes, %v", id, len(d.Payload), err)
				}
				u.Return(&d)
			}
		}
	}
}

// A connection to a TCP peer whose frames are all tagged.
func TestVLANTaggedTCP(t *testing.T) {
	a, b, la, lb := newPair(t, stack.Config{})
	frames := make(chan []byte, 10000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		id := uint8(0)
		for f := range frames {
			id++
			b := tagged(f, id)
			cut := min(len(b), 20+int(id)) // anywhere in the headers and behind
			if cut == len(b) {
				la.Inject(stack.Frame{Data: b})
			} else {
				la.Inject(stack.Frame{Data: b[:cut], More: true}, stack.Frame{Data: b[cut:]})
			}
		}
	}()
	lb.Filter(func(f []byte) bool {
		if eth := (wire.Ethernet{}); eth.Parse(f) != nil || eth.Type != wire.EtherTypeIPv4 {
			return true
		}
		frames <- append([]byte(nil), f...)
		return false
	})
	client, server := connect(t, a, b, stack.TCPOptions{})
	text := bytes.Repeat([]byte("0123456789"), 20_000)
	go func() {
		writeAll(t, client, text)
		client.Close()
	}()
	if got, err := io.ReadAll(server); err != nil || !bytes.Equal(got, text) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	server.Close()
	lb.Filter(nil)
	close(frames)
	<-done
}

// FuzzPoll gives a stack any two frames, the second in parts. The stack must not panic,
// keep no frame, and send nothing that gopacket cannot read.
func FuzzPoll(f *testing.F) {
	f.Add(datagramFrame(9, 7, []byte("x")), datagramFrame(9, 99, nil), uint16(0), uint8(0))
	f.Add(arpFrame(wire.ARPRequest, linkB, wire.Broadcast, addrB, addrA), echoFrame("ping"), uint16(3), uint8(1))
	f.Add(errorFrame(wire.ICMPFragmentationNeeded, 1000, 1500, wire.UDPFlow{Src: wire.AddrFrom4(addrA), Dst: wire.AddrFrom4(addrB), SrcPort: 7, DstPort: 9}),
		datagramFrame(9, 7, make([]byte, 5000)), uint16(1400), uint8(3))
	f.Add(tagged(datagramFrame(9, 7, []byte("x")), wire.ProtocolTCP), tagged(datagramFrame(9, 7, make([]byte, 1000)), wire.ProtocolTCP), uint16(0), uint8(8))
	f.Fuzz(func(t *testing.T, first, second []byte, gso uint16, cut uint8) {
		clk := newClock()
		l, _ := memlink.Pair(memlink.Config{FrameCount: 128})
		s, err := stack.New(stack.Config{
			Link: l, LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, OwnedAddress: true, PartialChecksums: true, Resolver: neighbours{},
			NoCaretaker: true, Now: clk.now, FrameQuota: 2,
		})
		if err != nil {
			t.Fatal(err)
		}
		l.Filter(func(frame []byte) bool {
			if _, err := describe(frame); err != nil {
				t.Error(err)
			}
			return true
		})
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		udpSend(testutil.Value(s.DialUDP(ap("10.0.0.1:8"), ap("10.0.0.2:9"), stack.UDPOptions{})), []byte("out"))
		first = first[:min(len(first), 2048)]
		l.Inject(stack.Frame{Data: first})
		rest := second[:min(len(second), 40000)]
		var frames []stack.Frame
		for size := 1 + int(cut)*8; len(frames) < 30; {
			n := min(size, len(rest), 2048)
			frames = append(frames, stack.Frame{Data: rest[:n], GSOSize: gso, More: n < len(rest) && len(frames) < 29})
			if rest = rest[n:]; len(rest) == 0 {
				break
			}
		}
		l.Inject(frames...)
		for range 5 {
			s.Poll(clk.advance(500 * time.Millisecond))
		}
		u.SetReadDeadline(clk.now())
		udpRecv(u, make([]byte, 100))
		udpSendTo(u, []byte("answer"), netip.AddrPortFrom(netip.AddrFrom4(addrB), 9))
		s.Close()
		if err := l.Audit(); err != nil {
			t.Error(err)
		}
	})
}
