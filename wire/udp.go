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

// UDP is a datagram (RFC 768):
//
//	source port(2) destination port(2) length(2) checksum(2) payload
type UDP struct {
	SrcPort uint16 // 0: the sender expects no answer
	DstPort uint16
	Payload []byte
}

// ParseUDP reads a datagram from src to dst. Its errors are ErrTruncated and ErrLength,
// about the length field, and ErrChecksum, with which the result is valid too.
//
// Over IPv4 a checksum field of 0 means that the sender has computed none; over IPv6 it is
// wrong (RFC 8200, section 8.1). A Linux host that leaves
// the checksum to its device writes the folded sum of the pseudo-header, not complemented
// (CHECKSUM_PARTIAL). On a virtual link, where no device completes it, the datagram
// arrives so: with partial set such a checksum is accepted, and the payload not read. On
// a real wire it is corruption.
func ParseUDP(b []byte, src, dst Addr, partial bool) (u UDP, err error) {
	if len(b) < UDPHeaderLen {
		return u, ErrTruncated
	}
	n := int(binary.BigEndian.Uint16(b[4:]))
	if n < UDPHeaderLen {
		return u, ErrLength
	}
	if n > len(b) {
		return u, ErrTruncated
	}
	u.SrcPort, u.DstPort, u.Payload = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), b[UDPHeaderLen:n:n]
	if check := binary.BigEndian.Uint16(b[6:]); check != 0 || !dst.Is4() {
		pseudo := PseudoHeader(src, dst, ProtocolUDP, uint16(n))
		if check == 0 || !(partial && check == Fold(pseudo)) && Fold(Sum(b[:n], pseudo)) != 0xffff {
			err = ErrChecksum
		}
	}
	return u, err
}

// UDPFlow is the addresses and ports of a datagram. It is comparable.
type UDPFlow struct {
	Src, Dst         Addr
	SrcPort, DstPort uint16
}

// PutUDPCopy writes a whole datagram to the start of b: the header, and a copy
// of payload that is summed on the way. It returns the datagram's length. The
// payload is [MaxUDPPayload] bytes at most. The flow is only read. It is a pointer because
// a copy of the struct would read with wide loads what narrow stores have just written,
// which the processor cannot forward.
func PutUDPCopy(b []byte, f *UDPFlow, payload []byte) int {
	n := UDPHeaderLen + len(payload)
	f.putHeader(b, n, SumCopy(b[UDPHeaderLen:n], payload, 0))
	return n
}

// PutUDPInPlace writes the header of a datagram that is all of b. The payload,
// [MaxUDPPayload] bytes at most, is in b[UDPHeaderLen:] already.
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
	// The length is in the sum twice: in the header and in the pseudo-header.
	rest := sumAddrs(f.Src, f.Dst, uint64(bits.ReverseBytes32(ports))+uint64(ProtocolUDP)<<8+2*uint64(bits.ReverseBytes16(uint16(n))))
	sum, c := bits.Add64(sum, rest, 0)
	check := ^Fold(sum + c) // a carry leaves sum below rest: c cannot carry again
	if check == 0 {
		check = 0xffff // 0 means that there is none (RFC 768)
	}
	binary.BigEndian.PutUint64(b, uint64(ports)<<32|uint64(n)<<16|uint64(check))
}
