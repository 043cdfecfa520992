package wire

import (
	"strconv"
	"testing"
)

// udpFrame is a whole frame with n bytes of payload.
func udpFrame(n int) []byte {
	b := make([]byte, EthernetHeaderLen+IPv4HeaderLen+UDPHeaderLen+n)
	PutEthernet(b, linkB, linkA, EtherTypeIPv4)
	PutIPv4(b[14:], IPv4Fields{TotalLen: uint16(len(b) - 14), TTL: 64, Protocol: ProtocolUDP, Src: addrA, Dst: addrB})
	PutUDPCopy(b[34:], &flowAB, make([]byte, n))
	return b
}

// readUDP reads a frame as a stack does before it looks for the socket.
func readUDP(frame []byte) (n int) {
	var e Ethernet
	if e.Parse(frame) != nil || e.Type != EtherTypeIPv4 || e.Dst != linkB {
		return -1
	}
	var p IPv4
	if p.Parse(e.Payload) != nil || p.Fragment != 0 || p.Protocol != ProtocolUDP || p.Dst != addrB {
		return -1
	}
	u, err := ParseUDP(p.Payload, AddrFrom4(p.Src), AddrFrom4(p.Dst), false)
	if err != nil {
		return -1
	}
	return len(u.Payload) + int(u.SrcPort) - int(flowAB.SrcPort)
}

func writeUDP(frame, payload []byte) {
	PutEthernet(frame, linkB, linkA, EtherTypeIPv4)
	PutIPv4(frame[14:], IPv4Fields{TotalLen: uint16(len(frame) - 14), TTL: 64, Protocol: ProtocolUDP, Src: addrA, Dst: addrB})
	PutUDPCopy(frame[34:], &flowAB, payload)
}

// Reading and writing packets does not allocate.
func TestNoAllocations(t *testing.T) {
	frame := udpFrame(64)
	payload := make([]byte, 64)
	arp := make([]byte, ARPLen)
	msg := make([]byte, 64)
	icmp := make([]byte, 600)
	PutEcho(icmp, EchoFields{Type: ICMPEchoRequest}, payload)
	for name, f := range map[string]func(){
		"read UDP": func() {
			if readUDP(frame) != 64 {
				t.Error("not read")
			}
		},
		"write UDP":      func() { writeUDP(frame, payload) },
		"write in place": func() { PutUDPInPlace(frame[34:], &flowAB) },
		"bad frames": func() {
			parseIPv4(frame)
			ParseUDP(nil, AddrFrom4(addrA), AddrFrom4(addrB), false)
			ParseMessage(nil)
			parseEthernet(nil)
		},
		"ARP":              func() { PutARP(arp, ARPFields{Op: ARPReply}); ParseARP(arp) },
		"message":          func() { PutMessage(msg, 1, 2, 3); ParseMessage(msg) },
		"echo":             func() { m, _ := ParseICMPv4(icmp[:72]); PutEcho(icmp, EchoFields{Type: ICMPEchoReply}, m.Payload()) },
		"port unreachable": func() { PutICMPv4Error(icmp, ICMPUnreachable, 3, 0, frame[14:]) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkSum(b *testing.B) {
	for _, n := range []int{8, 20, 64, 72, 512, 1472, 9000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			buf := make([]byte, n)
			b.SetBytes(int64(n))
			var s uint64
			for b.Loop() {
				s = Sum(buf, s)
			}
		})
	}
}

func BenchmarkSumCopy(b *testing.B) {
	for _, n := range []int{8, 64, 71, 512, 1472, 9000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			src, dst := make([]byte, n), make([]byte, n)
			b.SetBytes(int64(n))
			var s uint64
			for b.Loop() {
				s = SumCopy(dst, src, s)
			}
		})
	}
}

func BenchmarkReadUDP(b *testing.B) {
	for _, n := range []int{16, 64, 1400} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			frame := udpFrame(n)
			for b.Loop() {
				if readUDP(frame) != n {
					b.Fatal("not read")
				}
			}
		})
	}
}

func BenchmarkWriteUDP(b *testing.B) {
	for _, n := range []int{16, 64, 1400} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			frame, payload := udpFrame(n), make([]byte, n)
			for b.Loop() {
				writeUDP(frame, payload)
			}
		})
	}
}

func BenchmarkParseIPv4(b *testing.B) {
	var p IPv4
	frame := udpFrame(64)
	for b.Loop() {
		if err := p.Parse(frame[14:]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPutIPv4(b *testing.B) {
	buf := make([]byte, 20)
	for b.Loop() {
		PutIPv4(buf, IPv4Fields{TotalLen: 92, TTL: 64, Protocol: ProtocolUDP, Src: addrA, Dst: addrB})
	}
}

func BenchmarkMessage(b *testing.B) {
	buf := make([]byte, 76)
	for b.Loop() {
		PutMessage(buf, 1, 2, 64)
		if m, err := ParseMessage(buf); err != nil || m.Dst() != 1 {
			b.Fatal("not read")
		}
	}
}

// writeTCP writes a segment with timestamps and data, as an engine does.
func writeTCP(b, payload []byte) int {
	const header = TCPHeaderLen + TCPTimestampsLen
	n := header + len(payload)
	f := TCPFields{SrcPort: 80, DstPort: 1234, Seq: 1, Ack: 2, Flags: TCPAck | TCPPsh, Window: 500}
	PutTCPTimestamps(b[TCPHeaderLen:], 7, 8)
	sum := Sum(b[TCPHeaderLen:header], PseudoHeader(AddrFrom4(addrA), AddrFrom4(addrB), ProtocolTCP, uint16(n)))
	PutTCP(b, &f, header, SumCopy(b[header:], payload, sum))
	return n
}

func readTCP(b []byte) int {
	var s TCP
	if s.Parse(b) != nil || s.Checksum(AddrFrom4(addrA), AddrFrom4(addrB)) != ChecksumGood || !s.Timestamps {
		return -1
	}
	return len(s.Payload)
}

func TestTCPNoAllocations(t *testing.T) {
	b, payload := make([]byte, 200), make([]byte, 64)
	var o TCPOptions
	var s TCP
	for name, f := range map[string]func(){
		"write": func() { writeTCP(b, payload) },
		"read": func() {
			if readTCP(b[:96]) != 64 {
				t.Error("not read")
			}
		},
		"options": func() {
			if s.Parse(b) != nil || !s.ReadOptions(&o) || !o.HasTimestamps {
				t.Error("not read")
			}
			PutTCPOptions(b[100:], &o)
		},
		"bad segments": func() { s.Parse(nil); s.Parse(payload) },
	} {
		writeTCP(b, payload)
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkTCP(b *testing.B) {
	for _, n := range []int{0, 64, 1448} {
		buf, payload := make([]byte, 1600), make([]byte, n)
		size := writeTCP(buf, payload)
		b.Run("write/"+strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				writeTCP(buf, payload)
			}
		})
		b.Run("read/"+strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				if readTCP(buf[:size]) != n {
					b.Fatal("not read")
				}
			}
		})
	}
}
