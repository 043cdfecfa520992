package udp

import (
	"syscall"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/wire"
)

// unreachable is an ICMP error about a datagram from src to dst, as a router or
// the peer sends it: the quote is only the header and 8 bytes.
func unreachable(t *testing.T, typ, code uint8, proto uint8, src, dst AddrPort) (wire.ICMPv4, wire.IPv4) {
	t.Helper()
	packet := make([]byte, 20+100)
	wire.PutIPv4(packet, wire.IPv4Fields{TotalLen: 120, TTL: 3, Protocol: proto, Src: src.Addr, Dst: dst.Addr})
	copy(packet[20:], datagram(src, dst, string(make([]byte, 92))))
	quote := packet[:28]
	out := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(out, gopacket.SerializeOptions{ComputeChecksums: true, FixLengths: true},
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(typ, code)}, gopacket.Payload(quote))
	if err != nil {
		t.Fatal(err)
	}
	m, err := wire.ParseICMPv4(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	q, err := m.Quoted()
	if err != nil {
		t.Fatal(err)
	}
	return m, q
}

func TestICMPErrors(t *testing.T) {
	local, peer := AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: 1234}
	for _, c := range []struct {
		name      string
		remote    AddrPort // of the socket
		typ, code uint8
		proto     uint8
		quoted    AddrPort // the destination of the quoted datagram
		want      error
	}{
		{"port unreachable", peer, 3, 3, 17, peer, syscall.ECONNREFUSED},
		{"protocol unreachable", peer, 3, 2, 17, peer, syscall.ENOPROTOOPT},
		{"fragmentation needed", peer, 3, 4, 17, peer, syscall.EMSGSIZE},
		{"prohibited", peer, 3, 13, 17, peer, syscall.EHOSTUNREACH},
		{"network unknown", peer, 3, 6, 17, peer, syscall.ENETUNREACH},
		{"host unknown", peer, 3, 7, 17, peer, syscall.EHOSTDOWN},
		{"source route failed", peer, 3, 5, 17, peer, nil},
		{"an unknown code", peer, 3, 16, 17, peer, nil},
		{"parameter problem", peer, 12, 0, 17, peer, syscall.EPROTO},
		{"a route that flaps", peer, 3, 1, 17, peer, nil},
		{"time exceeded", peer, 11, 0, 17, peer, nil},
		{"about TCP", peer, 3, 3, 6, peer, nil},
		{"about another peer", peer, 3, 3, 17, AddrPort{Addr: hostC, Port: 1234}, nil},
		{"about another port", peer, 3, 3, 17, AddrPort{Addr: hostB, Port: 1235}, nil},
		{"not connected", AddrPort{}, 3, 3, 17, peer, nil},
	} {
		tab := NewTable(Config{})
		s := mustOpen(t, tab, local, c.remote, Options{})
		m, q := unreachable(t, c.typ, c.code, c.proto, local, c.quoted)
		got := tab.ProcessICMP(m, q)
		if (got == s) != (c.want != nil) || s.HasError() != (c.want != nil) {
			t.Errorf("%s: told %v, pending %v", c.name, got, s.HasError())
		}
		if err := s.TakeError(); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if err := s.TakeError(); err != nil {
			t.Errorf("%s: %v a second time", c.name, err)
		}
		if n := tab.Counters().Errors; (n == 1) != (c.want != nil) {
			t.Errorf("%s: %d errors counted", c.name, n)
		}
	}
}

// A quote too short for the ports, or of a later fragment, is nobody's.
func TestICMPShortQuote(t *testing.T) {
	local, peer := AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: 1234}
	tab := NewTable(Config{})
	mustOpen(t, tab, local, peer, Options{})
	m, q := unreachable(t, 3, 3, 17, local, peer)
	if tab.ProcessICMP(m, q[:23]) != nil {
		t.Error("ports found in three bytes")
	}
	q[7] = 1 // fragment offset 8
	if tab.ProcessICMP(m, q) != nil {
		t.Error("ports found in a later fragment")
	}
}
