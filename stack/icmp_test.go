package stack_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

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
func errorFrame(code uint8, mtu uint16, size int, flow wire.UDPFlow) []byte {
	p := make([]byte, size)
	wire.PutUDPCopy(p[20:], &flow, make([]byte, size-28))
	wire.PutIPv4(p, wire.IPv4Fields{TotalLen: uint16(size), TTL: 9, Protocol: wire.ProtocolUDP, Src: flow.Src, Dst: flow.Dst})
	m := make([]byte, wire.MaxUnreachableLen)
	m = m[:wire.PutUnreachable(m, code, mtu, wire.IPv4(p))]
	return ipFrame(wire.IPv4Fields{Protocol: wire.ProtocolICMP}, m)
}

func TestPing(t *testing.T) {
	s, l, c := newScripted(t, nil)
	runScript(t, s, l, c, []step{
		{In: [][]byte{echoFrame("hello")}, Want: []string{macA + " > " + macB + " | ip 10.0.0.1 > 10.0.0.2 ttl 64 DF | icmp EchoReply id 3 seq 4 5 bytes"}},
		{At: 1, In: [][]byte{echoFrame("")}, Want: []string{"EchoReply id 3 seq 4 0 bytes"}},
	})
	shared, l, c := newScripted(t, func(cfg *stack.Config) { cfg.WholeAddress = false })
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

	// No more than the bucket holds, and then one each 10 ms.
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
	flow := wire.UDPFlow{Src: addrA, Dst: addrB, SrcPort: 7, DstPort: 9}
	for _, tt := range []struct {
		code uint8
		want error
	}{
		{wire.ICMPPortUnreachable, syscall.ECONNREFUSED},
		{wire.ICMPHostUnreachable, syscall.EHOSTUNREACH},
		{wire.ICMPNetUnreachable, syscall.ENETUNREACH},
	} {
		s, l, c := newScripted(t, func(cfg *stack.Config) { cfg.WholeAddress = false; cfg.Wait = stack.WaitBlock })
		u := must(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
		listening := must(s.ListenUDP(ap("10.0.0.1:8"), stack.UDPOptions{}))
		listening.SetReadDeadline(c.now())
		other := flow
		other.DstPort = 10
		unconnected := flow
		unconnected.SrcPort = 8
		foreign := flow
		foreign.Src = [4]byte{10, 0, 0, 77}
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
			t.Errorf("code %d: a socket without a peer was told", tt.code)
		}
		if got := counters(s); got["icmp_unmatched"] != 2 || got["icmp_errors"] != 2 {
			t.Errorf("counters: %v", got)
		}
	}
}

func TestPathMTU(t *testing.T) {
	s, l, c := newScripted(t, nil)
	flow := wire.UDPFlow{Src: addrA, Dst: addrB, SrcPort: 7, DstPort: 9}
	u := must(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
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
	report := func(mtu uint16, size int, flow wire.UDPFlow) {
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
	check("raised by a second report", 1400)
	other := flow
	other.SrcPort = 70
	report(600, 1500, other)
	check("a packet that nobody sent", 1400)
	report(1300, 1200, flow)
	udpRecv(u, make([]byte, 1))
	check("a packet that would have passed", 1400)
	report(0, 1400, flow)
	udpRecv(u, make([]byte, 1))
	check("an old router", 1006)
	report(68, 1006, flow)
	udpRecv(u, make([]byte, 1))
	check("the floor", 576)
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

// Whatever is wrong with a frame costs its counter, and nothing else.
func TestMalformed(t *testing.T) {
	good := datagramFrame(9, 7, []byte("0123456789"))
	edit := func(f func(b []byte) []byte) []byte { return f(append([]byte(nil), good...)) }
	set := func(at int, v ...byte) []byte {
		return edit(func(b []byte) []byte { copy(b[at:], v); return b })
	}
	header := func(at int, v ...byte) []byte { // with the IP checksum put right
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
		{"ipv4_fragment", header(20, 0x20, 0)},
		{"ipv4_fragment", header(20, 0, 1)},
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
		{"icmp_unmatched", errorFrame(3, 0, 60, wire.UDPFlow{Src: addrA, Dst: addrB, SrcPort: 99, DstPort: 9})},
		{"arp_malformed", set(12, 0x08, 0x06)},
		{"arp_not_ours", arpFrame(wire.ARPReply, linkB, linkA, addrB, [4]byte{10, 0, 0, 9})},
	} {
		t.Run(fmt.Sprintf("%d %s", i, tt.reason), func(t *testing.T) {
			s, l, c := newScripted(t, nil)
			must(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
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
				t.Errorf("and also: %v", got)
			}
		})
	}
	// What looks odd and is right.
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
		u := must(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
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
