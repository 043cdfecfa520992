package wire

import (
	"encoding/binary"
	"math/bits"
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
	ipv4FragmentMask  = ipv4MoreFragments | ipv4OffsetMask
)

// IPv4 is a packet (RFC 791). Options are checked and skipped, not interpreted.
//
//	version|IHL(1) TOS(1) total length(2)  ID(2) flags|offset(2)
//	TTL(1) protocol(1) header checksum(2)  source(4)
//	destination(4) [options] payload
type IPv4 struct {
	Src, Dst [4]byte
	Protocol uint8  // of the payload
	TOS      uint8  // type of service: DSCP and, in the lower two bits, ECN
	Fragment uint16 // the flag MF and the offset, as in the header; 0: not a fragment
	Packet   []byte // header, options and payload, without the padding of the link
	Payload  []byte // what follows the options
	// ProblemAt is the offset of the malformed option in the packet, if Parse has returned [ErrParameterProblem].
	ProblemAt uint8
}

// Parse checks version, header length, total length, header checksum and options. The errors are
// ErrTruncated, ErrVersion, ErrLength, ErrChecksum, ErrParameterProblem for an option that exceeds
// the header, and ErrDiscarded for a source route. With the last two all fields are valid.
func (p *IPv4) Parse(b []byte) error {
	if len(b) < IPv4HeaderLen {
		return ErrTruncated
	}
	first := binary.LittleEndian.Uint64(b) // one load: up to the fragment offset
	if first>>4&15 != 4 {
		return ErrVersion
	}
	hdr, total := int(first&15)*4, int(bits.ReverseBytes16(uint16(first>>16)))
	if hdr < IPv4HeaderLen || total < hdr {
		return ErrLength
	}
	if total > len(b) {
		return ErrTruncated
	}
	if hdr != IPv4HeaderLen {
		return p.parseOptions(b[:total:total], hdr)
	}
	sum, c := bits.Add64(first, binary.LittleEndian.Uint64(b[8:]), 0)
	sum, c = bits.Add64(sum, uint64(binary.LittleEndian.Uint32(b[16:])), c)
	if Fold(sum+c) != 0xffff {
		return ErrChecksum
	}
	p.Src = [4]byte(b[12:16])
	p.Dst = [4]byte(b[16:20])
	p.TOS, p.Protocol = uint8(first>>8), b[9]
	p.Fragment = bits.ReverseBytes16(uint16(first>>48)) & ipv4FragmentMask
	p.Packet = b[:total:total]
	p.Payload = p.Packet[IPv4HeaderLen:]
	return nil
}

// parseOptions is Parse for a packet whose header has options and hdr bytes.
func (p *IPv4) parseOptions(packet []byte, hdr int) error {
	const (
		endOfList         = 0
		noOperation       = 1
		looseSourceRoute  = 131
		strictSourceRoute = 137
	)
	if Fold(Sum(packet[:hdr], 0)) != 0xffff {
		return ErrChecksum
	}
	*p = IPv4{
		Src: [4]byte(packet[12:]), Dst: [4]byte(packet[16:]), TOS: packet[1], Protocol: packet[9],
		Fragment: binary.BigEndian.Uint16(packet[6:]) & ipv4FragmentMask, Packet: packet, Payload: packet[hdr:],
	}
	for at := IPv4HeaderLen; at < hdr; {
		switch packet[at] {
		case endOfList:
			return nil
		case noOperation:
			at++
			continue
		case looseSourceRoute, strictSourceRoute: // Linux's default, as RFC 7126, sections 4.3 and 4.4, advises
			return ErrDiscarded
		}
		if at+2 > hdr || packet[at+1] < 2 || at+int(packet[at+1]) > hdr {
			p.ProblemAt = uint8(at)
			return ErrParameterProblem
		}
		at += int(packet[at+1])
	}
	return nil
}

// TotalLen is the length of header and payload in bytes, as the header states it.
func (p *IPv4) TotalLen() int { return int(binary.BigEndian.Uint16(p.Packet[2:4])) }

// FragmentOffset is where in the whole payload this one begins, in bytes.
func (p *IPv4) FragmentOffset() int { return int(p.Fragment&ipv4OffsetMask) * 8 }

// IPv4Fields are the variable parts of a header without options.
type IPv4Fields struct {
	TOS          uint8
	TTL          uint8
	Protocol     uint8
	DontFragment bool
	Fragment     uint16 // as in [IPv4]; 0: not a fragment
	TotalLen     uint16 // header and payload, bytes
	ID           uint16
	Src, Dst     [4]byte
}

// PutIPv4 writes a header of [IPv4HeaderLen] bytes with its checksum.
func PutIPv4(b []byte, f IPv4Fields) {
	_ = b[19]
	frag := uint64(f.Fragment)
	if f.DontFragment {
		frag |= ipv4DontFragment
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
