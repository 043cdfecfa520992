package wire

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Protocol numbers in an IPv4 header.
const (
	ProtocolICMP uint8 = 1
	ProtocolTCP  uint8 = 6
	ProtocolUDP  uint8 = 17
)

// ECN in the type of service (RFC 3168, section 5).
const (
	ECNMask    = 3
	ECNCapable = 2 // ECT(0)
	ECNMarked  = 3 // CE
)

// IPv4HeaderLen is the length of a header without options in bytes.
const IPv4HeaderLen = 20

// Flags in the upper bits of the fragment offset field.
const (
	ipv4DontFragment  = 0x4000
	ipv4MoreFragments = 0x2000
	ipv4OffsetMask    = 0x1fff // in units of 8 bytes
)

// IPv4 is a view of a packet (RFC 791). Options are skipped, not interpreted.
//
//	version|IHL(1) TOS(1) total length(2)  ID(2) flags|offset(2)
//	TTL(1) protocol(1) header checksum(2)  source(4)
//	destination(4) [options] payload
type IPv4 []byte

// ParseIPv4 checks version, header length, total length and header checksum.
// The view is cut to the total length, so that link padding is gone.
func ParseIPv4(b []byte) (IPv4, error) {
	if len(b) < IPv4HeaderLen {
		return nil, ErrTruncated
	}
	if b[0]>>4 != 4 {
		return nil, ErrVersion
	}
	hdr, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if hdr < IPv4HeaderLen || total < hdr {
		return nil, ErrLength
	}
	if total > len(b) {
		return nil, ErrTruncated
	}
	var sum, c uint64
	if hdr == IPv4HeaderLen {
		sum, c = bits.Add64(binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), 0)
		sum, c = bits.Add64(sum, uint64(binary.LittleEndian.Uint32(b[16:])), c)
		sum += c
	} else {
		sum = Sum(b[:hdr], 0)
	}
	if Fold(sum) != 0xffff {
		return nil, ErrChecksum
	}
	return IPv4(b[:total:total]), nil
}

// ParseIPv4Quote reads the packet that an ICMP error quotes: its header and the
// first bytes of its payload. It checks only what the accessors need, for
// routers on the way have changed the header and cut the packet. The view may
// be shorter than the total length that the header states.
func ParseIPv4Quote(b []byte) (IPv4, error) {
	if len(b) < IPv4HeaderLen {
		return nil, ErrTruncated
	}
	if b[0]>>4 != 4 {
		return nil, ErrVersion
	}
	hdr := int(b[0]&15) * 4
	if hdr < IPv4HeaderLen {
		return nil, ErrLength
	}
	if hdr > len(b) {
		return nil, ErrTruncated
	}
	return IPv4(b), nil
}

// HeaderLen is the length of the header with its options in bytes.
func (p IPv4) HeaderLen() int { return int(p[0]&15) * 4 }

// TOS is the type of service: DSCP and, in the lower two bits, ECN.
func (p IPv4) TOS() uint8 { return p[1] }

// TotalLen is the length of header and payload as the header states it.
func (p IPv4) TotalLen() int { return int(binary.BigEndian.Uint16(p[2:4])) }

// ID identifies the packet that a fragment is of.
func (p IPv4) ID() uint16 { return binary.BigEndian.Uint16(p[4:6]) }

func (p IPv4) fragment() uint16 { return binary.BigEndian.Uint16(p[6:8]) }

// DontFragment reports the DF flag.
func (p IPv4) DontFragment() bool { return p.fragment()&ipv4DontFragment != 0 }

// MoreFragments reports the MF flag: this fragment is not the last.
func (p IPv4) MoreFragments() bool { return p.fragment()&ipv4MoreFragments != 0 }

// FragmentOffset is where in the whole payload this one begins, in bytes.
func (p IPv4) FragmentOffset() int { return int(p.fragment()&ipv4OffsetMask) * 8 }

// IsFragment reports whether the payload is only a part of a packet's.
func (p IPv4) IsFragment() bool {
	return p.fragment()&(ipv4MoreFragments|ipv4OffsetMask) != 0
}

// TTL is the number of hops the packet may still make.
func (p IPv4) TTL() uint8 { return p[8] }

// Protocol says what the payload is.
func (p IPv4) Protocol() uint8 { return p[9] }

// Src is the address of the sender.
func (p IPv4) Src() [4]byte { return [4]byte(p[12:16]) }

// Dst is the address of the receiver.
func (p IPv4) Dst() [4]byte { return [4]byte(p[16:20]) }

// SrcAddr and DstAddr are Src and Dst for package netip.
func (p IPv4) SrcAddr() netip.Addr { return netip.AddrFrom4(p.Src()) }
func (p IPv4) DstAddr() netip.Addr { return netip.AddrFrom4(p.Dst()) }

// Payload is what follows the options.
func (p IPv4) Payload() []byte { return p[p.HeaderLen():] }

// IPv4Fields are the variable parts of a header without options.
type IPv4Fields struct {
	TOS            uint8
	TTL            uint8
	Protocol       uint8
	DontFragment   bool
	MoreFragments  bool
	TotalLen       uint16 // header and payload, bytes
	ID             uint16
	FragmentOffset uint16 // bytes, a multiple of 8
	Src, Dst       [4]byte
}

// PutIPv4 writes a header of [IPv4HeaderLen] bytes with its checksum.
func PutIPv4(b []byte, f IPv4Fields) {
	_ = b[19]
	frag := uint64(f.FragmentOffset / 8)
	if f.DontFragment {
		frag |= ipv4DontFragment
	}
	if f.MoreFragments {
		frag |= ipv4MoreFragments
	}
	src, dst := binary.BigEndian.Uint32(f.Src[:]), binary.BigEndian.Uint32(f.Dst[:])
	w0 := 0x45<<56 | uint64(f.TOS)<<48 | uint64(f.TotalLen)<<32 | uint64(f.ID)<<16 | frag
	w1 := uint64(f.TTL)<<56 | uint64(f.Protocol)<<48 | uint64(src)

	// The words stand in registers as big-endian values, so this sum needs
	// no swap at its end.
	sum, c := bits.Add64(w0, w1, 0)
	sum, c = bits.Add64(sum, uint64(dst), c)
	check := ^bits.ReverseBytes16(Fold(sum + c))

	binary.BigEndian.PutUint64(b, w0)
	binary.BigEndian.PutUint64(b[8:], w1|uint64(check)<<32)
	binary.BigEndian.PutUint32(b[16:], dst)
}
