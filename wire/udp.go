package wire

import (
	"encoding/binary"
	"math/bits"
)

const (
	// UDPHeaderLen is the length of a UDP header in bytes.
	UDPHeaderLen = 8
	// MaxUDPPayload is the most that one datagram carries over IPv4 without
	// options, in bytes.
	MaxUDPPayload = 0xffff - IPv4HeaderLen - UDPHeaderLen
)

// UDP is a view of a datagram (RFC 768):
//
//	source port(2) destination port(2) length(2) checksum(2) payload
type UDP []byte

// ParseUDP checks the length field. The view is cut to it. The checksum is a
// question of its own, see [UDP.Checksum].
func ParseUDP(b []byte) (UDP, error) {
	if len(b) < UDPHeaderLen {
		return nil, ErrTruncated
	}
	n := int(binary.BigEndian.Uint16(b[4:]))
	if n < UDPHeaderLen {
		return nil, ErrLength
	}
	if n > len(b) {
		return nil, ErrTruncated
	}
	return UDP(b[:n:n]), nil
}

// SrcPort is the sender's port; 0 if it expects no answer.
func (u UDP) SrcPort() uint16 { return binary.BigEndian.Uint16(u[0:2]) }

// DstPort is the receiver's port.
func (u UDP) DstPort() uint16 { return binary.BigEndian.Uint16(u[2:4]) }

// Payload is what the datagram carries.
func (u UDP) Payload() []byte { return u[UDPHeaderLen:] }

// ChecksumState is what the checksum field of a datagram says about it.
type ChecksumState uint8

const (
	ChecksumBad     ChecksumState = iota
	ChecksumGood                  // verified
	ChecksumNone                  // the sender computed none (the field is 0)
	ChecksumPartial               // covers the pseudo-header only
)

func (s ChecksumState) String() string {
	switch s {
	case ChecksumGood:
		return "good"
	case ChecksumNone:
		return "none"
	case ChecksumPartial:
		return "partial"
	}
	return "bad"
}

// Checksum judges the checksum field of a datagram from src to dst.
//
// A Linux host that counts on its device to finish the job leaves the folded
// sum of the pseudo-header in the field, not complemented (CHECKSUM_PARTIAL).
// A frame that never met such a device, because it crossed a virtual link,
// still has it. On a real wire the same value is corruption: whether to accept
// [ChecksumPartial] is for the caller, who knows the link. A correct checksum
// that happens to equal the partial one is good.
func (u UDP) Checksum(src, dst [4]byte) ChecksumState {
	field := binary.BigEndian.Uint16(u[6:8])
	if field == 0 {
		return ChecksumNone
	}
	pseudo := PseudoHeader4(src, dst, ProtocolUDP, uint16(len(u)))
	if Fold(Sum(u, pseudo)) == 0xffff {
		return ChecksumGood
	}
	if field == Fold(pseudo) {
		return ChecksumPartial
	}
	return ChecksumBad
}

// AcceptPartial reports, without reading the payload, whether the checksum
// field is one that a link with partial checksums is trusted with: none or
// partial. If not, [UDP.Checksum] has the answer.
func (u UDP) AcceptPartial(src, dst [4]byte) bool {
	field := binary.BigEndian.Uint16(u[6:8])
	return field == 0 || field == Fold(PseudoHeader4(src, dst, ProtocolUDP, uint16(len(u))))
}

// UDPFlow is who sends to whom. It is comparable.
type UDPFlow struct {
	Src, Dst         [4]byte
	SrcPort, DstPort uint16
}

// PutUDPCopy writes a whole datagram to the start of b: the header, and a copy
// of payload that is summed on the way. It returns the datagram's length. The
// payload is [MaxUDPPayload] bytes at most. The flow is only read; it comes by
// reference because a copy of such a struct reads with wide loads what narrow
// stores have just written, and that stalls the processor.
func PutUDPCopy(b []byte, f *UDPFlow, payload []byte) int {
	n := UDPHeaderLen + len(payload)
	f.putHeader(b, n, SumCopy(b[UDPHeaderLen:n], payload, 0))
	return n
}

// PutUDPInPlace completes the datagram that all of b is to be: the payload,
// [MaxUDPPayload] bytes at most, already stands at b[UDPHeaderLen:].
func PutUDPInPlace(b []byte, f *UDPFlow) {
	f.putHeader(b, len(b), Sum(b[UDPHeaderLen:], 0))
}

// putHeader writes the header of a datagram of n bytes. sum is that of the
// payload.
func (f *UDPFlow) putHeader(b []byte, n int, sum uint64) {
	if n > 0xffff {
		panic("BUG: wire: datagram longer than its length field")
	}
	ports := uint32(f.SrcPort)<<16 | uint32(f.DstPort)
	// The header joins the sum, its length twice: here and in the
	// pseudo-header.
	rest := uint64(binary.LittleEndian.Uint32(f.Src[:])) + uint64(binary.LittleEndian.Uint32(f.Dst[:])) +
		uint64(bits.ReverseBytes32(ports)) + uint64(ProtocolUDP)<<8 + 2*uint64(bits.ReverseBytes16(uint16(n)))
	sum, c := bits.Add64(sum, rest, 0)
	check := ^Fold(sum + c) // a carry leaves sum below rest: c cannot carry again
	if check == 0 {
		check = 0xffff // 0 would say that there is none (RFC 768)
	}
	binary.BigEndian.PutUint64(b, uint64(ports)<<32|uint64(n)<<16|uint64(check))
}
