package wire

import (
	"encoding/binary"
	"math/bits"
)

const (
	// TCPHeaderLen is the length of a TCP header without options in bytes.
	TCPHeaderLen = 20
	// MaxTCPHeaderLen is the length of the longest header in bytes.
	MaxTCPHeaderLen = 60
)

// TCPFlags are the control bits of a segment (RFC 9293, section 3.1).
type TCPFlags uint8

const (
	TCPFin TCPFlags = 1 << iota
	TCPSyn
	TCPRst
	TCPPsh
	TCPAck
	TCPUrg
	TCPEce // RFC 3168
	TCPCwr // RFC 3168
)

const tcpFlagLetters = "FSRPAUEC"

// String is the letters of the flags that are set, "SA" for SYN and ACK.
func (f TCPFlags) String() string {
	var b [8]byte
	n := 0
	for i := range len(tcpFlagLetters) {
		if f&(1<<i) != 0 {
			b[n] = tcpFlagLetters[i]
			n++
		}
	}
	if n == 0 {
		return "-"
	}
	return string(b[:n])
}

// TCP is a view of a segment (RFC 9293, section 3.1):
//
//	source port(2) destination port(2) sequence number(4)
//	acknowledgment number(4)  data offset|reserved(1) flags(1) window(2)
//	checksum(2) urgent pointer(2)  [options] payload
//
// Nothing in a segment says where it ends: that is the length of the IP payload.
type TCP []byte

// ParseTCP checks the data offset. The checksum is a question of its own, see
// [TCP.Checksum], and so are the options, see [NextTCPOption].
func ParseTCP(b []byte) (TCP, error) {
	if len(b) < TCPHeaderLen {
		return nil, ErrTruncated
	}
	n := int(b[12]>>4) * 4
	if n < TCPHeaderLen {
		return nil, ErrLength
	}
	if n > len(b) {
		return nil, ErrTruncated
	}
	return TCP(b), nil
}

// SrcPort is the sender's port.
func (s TCP) SrcPort() uint16 { return binary.BigEndian.Uint16(s[0:2]) }

// DstPort is the receiver's port.
func (s TCP) DstPort() uint16 { return binary.BigEndian.Uint16(s[2:4]) }

// Seq is the sequence number of the first octet, or of the SYN.
func (s TCP) Seq() uint32 { return binary.BigEndian.Uint32(s[4:8]) }

// Ack is the acknowledgment number; meaningless without [TCPAck].
func (s TCP) Ack() uint32 { return binary.BigEndian.Uint32(s[8:12]) }

// HeaderLen is the length of the header with its options in bytes.
func (s TCP) HeaderLen() int { return int(s[12]>>4) * 4 }

// Flags are the control bits. The reserved bits beside them are ignored, as
// they must be.
func (s TCP) Flags() TCPFlags { return TCPFlags(s[13]) }

// Window is the window field, not scaled.
func (s TCP) Window() uint16 { return binary.BigEndian.Uint16(s[14:16]) }

// Urgent is the urgent pointer; meaningless without [TCPUrg].
func (s TCP) Urgent() uint16 { return binary.BigEndian.Uint16(s[18:20]) }

// Options are the bytes of the options, padding included.
func (s TCP) Options() []byte { return s[TCPHeaderLen:s.HeaderLen()] }

// Payload is the text of the segment.
func (s TCP) Payload() []byte { return s[s.HeaderLen():] }

// Checksum judges the checksum field of a segment from src to dst, see
// [UDP.Checksum]. TCP knows no [ChecksumNone].
func (s TCP) Checksum(src, dst [4]byte) ChecksumState {
	pseudo := PseudoHeader4(src, dst, ProtocolTCP, uint16(len(s)))
	if Fold(Sum(s, pseudo)) == 0xffff {
		return ChecksumGood
	}
	if binary.BigEndian.Uint16(s[16:18]) == Fold(pseudo) {
		return ChecksumPartial
	}
	return ChecksumBad
}

// AcceptPartial reports, without reading the payload, whether the checksum
// field covers the pseudo-header only. If not, [TCP.Checksum] has the answer.
func (s TCP) AcceptPartial(src, dst [4]byte) bool {
	return binary.BigEndian.Uint16(s[16:18]) == Fold(PseudoHeader4(src, dst, ProtocolTCP, uint16(len(s))))
}

// TCPFields are the fields of a header. The rest follows from the segment.
type TCPFields struct {
	SrcPort, DstPort uint16
	Seq, Ack         uint32
	Flags            TCPFlags
	Window           uint16
	Urgent           uint16
}

// PutTCP writes the header of a segment to the start of b: [TCPHeaderLen] bytes,
// before options that end at headerLen, a multiple of 4. sum is the unfolded
// sum of everything else that the checksum covers: the pseudo-header, the
// options and the payload. The writers of those return it as they go
// ([PutTCPOptions], [PutTCPTimestamps], [SumCopy]), so no byte is read twice.
func PutTCP(b []byte, f *TCPFields, headerLen int, sum uint64) {
	if headerLen < TCPHeaderLen || headerLen > MaxTCPHeaderLen || headerLen%4 != 0 {
		panic("BUG: wire: impossible length of a TCP header")
	}
	_ = b[19]
	w0 := uint64(f.SrcPort)<<48 | uint64(f.DstPort)<<32 | uint64(f.Seq)
	w1 := uint64(f.Ack)<<32 | uint64(headerLen/4)<<28 | uint64(f.Flags)<<16 | uint64(f.Window)
	sum, c := bits.Add64(sum, bits.ReverseBytes64(w0), 0)
	sum, c = bits.Add64(sum, bits.ReverseBytes64(w1), c)
	sum, c = bits.Add64(sum, uint64(bits.ReverseBytes16(f.Urgent))<<16, c)
	check := ^Fold(sum + c) // a carry leaves sum below 2^32: c cannot carry again
	binary.BigEndian.PutUint64(b, w0)
	binary.BigEndian.PutUint64(b[8:], w1)
	binary.BigEndian.PutUint32(b[16:], uint32(check)<<16|uint32(f.Urgent))
}
