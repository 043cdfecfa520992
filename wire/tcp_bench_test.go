package wire

import (
	"strconv"
	"testing"
)

// writeTCP writes a segment with timestamps and text, as an engine does.
func writeTCP(b, payload []byte) int {
	const header = TCPHeaderLen + TCPTimestampsLen
	n := header + len(payload)
	f := TCPFields{SrcPort: 80, DstPort: 1234, Seq: 1, Ack: 2, Flags: TCPAck | TCPPsh, Window: 500}
	PutTCPTimestamps(b[TCPHeaderLen:], 7, 8)
	sum := Sum(b[TCPHeaderLen:header], PseudoHeader4(addrA, addrB, ProtocolTCP, uint16(n)))
	PutTCP(b, &f, header, SumCopy(b[header:], payload, sum))
	return n
}

func readTCP(b []byte) int {
	s, err := ParseTCP(b)
	if err != nil || s.Checksum(addrA, addrB) != ChecksumGood {
		return -1
	}
	if _, _, ok := s.AlignedTimestamps(); !ok {
		return -1
	}
	return len(s.Payload())
}

func TestTCPNoAllocations(t *testing.T) {
	b, payload := make([]byte, 200), make([]byte, 64)
	var o TCPOptions
	for name, f := range map[string]func(){
		"write": func() { writeTCP(b, payload) },
		"read": func() {
			if readTCP(b[:96]) != 64 {
				t.Error("not read")
			}
		},
		"options": func() {
			if !TCP(b).ReadOptions(&o) || !o.HasTimestamps {
				t.Error("not read")
			}
			PutTCPOptions(b[100:], &o)
		},
		"iterator": func() {
			if kind, data, _, _ := NextTCPOption(TCP(b).Options()); kind != TCPOptionTimestamps || len(data) != 8 {
				t.Error("not found")
			}
		},
		"bad segments": func() { ParseTCP(nil); ParseTCP(payload) },
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
