package wire

import (
	"encoding/binary"
	"errors"
	"syscall"
)

// ICMPv6 message types (RFC 4443, RFC 4861). Types below 128 are errors.
const (
	ICMPv6Unreachable           uint8 = 1
	ICMPv6PacketTooBig          uint8 = 2
	ICMPv6TimeExceeded          uint8 = 3
	ICMPv6ParameterProblem      uint8 = 4
	ICMPv6EchoRequest           uint8 = 128
	ICMPv6EchoReply             uint8 = 129
	ICMPv6RouterSolicitation    uint8 = 133
	ICMPv6RouterAdvertisement   uint8 = 134
	ICMPv6NeighborSolicitation  uint8 = 135
	ICMPv6NeighborAdvertisement uint8 = 136
	ICMPv6Redirect              uint8 = 137
)

// Codes of ICMPv6Unreachable, ICMPv6TimeExceeded and ICMPv6ParameterProblem (RFC 4443, sections
// 3.1, 3.3 and 3.4; RFC 7112).
const (
	ICMPv6PortUnreachable uint8 = 4

	ICMPv6ReassemblyTimeout uint8 = 1

	ICMPv6ErroneousField        uint8 = 0
	ICMPv6UnknownNextHeader     uint8 = 1
	ICMPv6UnknownOption         uint8 = 2
	ICMPv6IncompleteHeaderChain uint8 = 3
)

const (
	// ICMPv6HeaderLen is the length of the header of every message in bytes.
	ICMPv6HeaderLen = 8
	// MaxICMPv6ErrorLen is the most that PutICMPv6Error writes: an error must not exceed the
	// least MTU (RFC 4443, section 2.4).
	MaxICMPv6ErrorLen = MinIPv6MTU - IPv6HeaderLen
)

// ErrNeighbor: a message of neighbour discovery fails a validation of RFC 4861, section 7.1.
var ErrNeighbor = errors.New("invalid neighbor discovery message")

// ICMPv6 is a view of a message (RFC 4443). What the second word is depends on the type:
//
//	type(1) code(1) checksum(2)
//	echo: ID(2) sequence(2)   packet too big: MTU(4)   parameter problem: pointer(4)
//	payload, or the quoted packet
type ICMPv6 []byte

// ParseICMPv6 checks the length and the checksum of a message from src to dst.
func ParseICMPv6(b []byte, src, dst [16]byte) (ICMPv6, error) {
	if len(b) < ICMPv6HeaderLen || len(b) > 0xffff {
		return nil, ErrTruncated
	}
	if Fold(Sum(b, PseudoHeader(AddrFrom16(src), AddrFrom16(dst), ProtocolICMPv6, uint16(len(b))))) != 0xffff {
		return nil, ErrChecksum
	}
	return ICMPv6(b), nil
}

// Type is the message type.
func (m ICMPv6) Type() uint8 { return m[0] }

// Code is the code. Its meaning depends on the type.
func (m ICMPv6) Code() uint8 { return m[1] }

// ID is the identifier of an echo message.
func (m ICMPv6) ID() uint16 { return binary.BigEndian.Uint16(m[4:]) }

// Seq is the sequence number of an echo message.
func (m ICMPv6) Seq() uint16 { return binary.BigEndian.Uint16(m[6:]) }

// MTU is the MTU in bytes that a router reports with [ICMPv6PacketTooBig]. It may be below
// [MinIPv6MTU]; such a report is to be ignored (RFC 8201, section 4).
func (m ICMPv6) MTU() uint32 { return binary.BigEndian.Uint32(m[4:]) }

// Pointer is the offset that an [ICMPv6ParameterProblem] points to, in the quoted packet.
func (m ICMPv6) Pointer() uint32 { return binary.BigEndian.Uint32(m[4:]) }

// Payload is what follows the header.
func (m ICMPv6) Payload() []byte { return m[ICMPv6HeaderLen:] }

// IsError reports whether the message is an error about a packet, which it quotes. No
// ICMPv6 error may answer one (RFC 4443, section 2.4).
func (m ICMPv6) IsError() bool { return m.Type() < 128 }

// Quoted reads the packet that an error quotes. The payload length is not checked, since the
// packet may be cut. Extension headers are not skipped: Protocol is that of the first
// header, and Payload all that follows the fixed one.
func (m ICMPv6) Quoted() (p IPv6, err error) {
	b := m.Payload()
	if len(b) < IPv6HeaderLen {
		return p, ErrTruncated
	}
	if b[0]>>4 != 6 {
		return p, ErrVersion
	}
	return IPv6{
		Src: [16]byte(b[8:24]), Dst: [16]byte(b[24:40]), TrafficClass: uint8(binary.BigEndian.Uint16(b) >> 4),
		Protocol: b[6], ProtocolAt: 6, HopLimit: b[7], Packet: b, Payload: b[IPv6HeaderLen:],
	}, nil
}

// Report reads an error. It fails as [ICMPv6.Quoted] does.
func (m ICMPv6) Report() (e ICMPError, err error) {
	quoted, err := m.Quoted()
	if err != nil {
		return e, err
	}
	e.Src, e.Dst, e.Protocol = AddrFrom16(quoted.Src), AddrFrom16(quoted.Dst), quoted.Protocol
	e.Size = IPv6HeaderLen + int(binary.BigEndian.Uint16(quoted.Packet[4:]))
	e.Transport = quoted.Payload
	e.Errno, e.Hard = m.Errno()
	e.Unreachable = m.Type() == ICMPv6Unreachable
	if e.TooBig = m.Type() == ICMPv6PacketTooBig; e.TooBig {
		e.MTU = int(min(m.MTU(), 0xffff))
	}
	return e, nil
}

// unreachable6Errnos are the errnos of ICMPv6Unreachable, by code, as Linux has them
// (net/ipv6/icmp.c, tab_unreach).
var unreachable6Errnos = [...]struct {
	errno syscall.Errno
	hard  bool
}{
	0: {syscall.ENETUNREACH, false},  // no route
	1: {syscall.EACCES, true},        // prohibited
	2: {syscall.EHOSTUNREACH, false}, // beyond the scope of the source
	3: {syscall.EHOSTUNREACH, false}, // address
	4: {syscall.ECONNREFUSED, true},  // port
	5: {syscall.EACCES, true},        // source address failed the policy
	6: {syscall.EACCES, true},        // reject route
}

// Errno is the errno of an ICMPv6 error for the sender of the packet that it quotes, as in
// Linux. hard: the condition is not transient. It is 0 for all other messages and for
// unknown codes.
func (m ICMPv6) Errno() (errno syscall.Errno, hard bool) {
	switch code := int(m.Code()); {
	case m.Type() == ICMPv6PacketTooBig:
		return syscall.EMSGSIZE, false
	case m.Type() == ICMPv6TimeExceeded:
		return syscall.EHOSTUNREACH, false
	case m.Type() == ICMPv6ParameterProblem:
		return syscall.EPROTO, true
	case m.Type() == ICMPv6Unreachable && code < len(unreachable6Errnos):
		e := unreachable6Errnos[code]
		return e.errno, e.hard
	}
	return 0, false
}

// PutEcho6 writes an echo message from src to dst with a copy of payload, and returns its
// length, 65,535 bytes at most. b and payload may overlap only if payload is already at its
// place in b.
func PutEcho6(b []byte, src, dst [16]byte, f EchoFields, payload []byte) int {
	return putICMPv6(b, src, dst, uint64(f.Type)<<56|uint64(f.ID)<<16|uint64(f.Seq), payload)
}

// ICMPv6ErrorLen is the length of the message that PutICMPv6Error writes about packet in
// bytes.
func ICMPv6ErrorLen(packet []byte) int { return min(ICMPv6HeaderLen+len(packet), MaxICMPv6ErrorLen) }

// PutICMPv6Error writes an error from src to dst about packet, and returns its length,
// [ICMPv6ErrorLen]. It quotes as much of the packet as fits. word is the second word of the
// header: MTU, pointer or 0. b and packet must not overlap.
func PutICMPv6Error(b []byte, src, dst [16]byte, kind, code uint8, word uint32, packet []byte) int {
	head := uint64(kind)<<56 | uint64(code)<<48 | uint64(word)
	return putICMPv6(b, src, dst, head, packet[:ICMPv6ErrorLen(packet)-ICMPv6HeaderLen])
}

// putICMPv6 writes a message with the header head, whose checksum is 0, and a copy of rest.
func putICMPv6(b []byte, src, dst [16]byte, head uint64, rest []byte) int {
	n := ICMPv6HeaderLen + len(rest)
	if n > 0xffff {
		panic("BUG: wire: ICMPv6 message longer than a packet")
	}
	_ = b[n-1]
	binary.BigEndian.PutUint64(b, head)
	sum := Sum(b[:ICMPv6HeaderLen], PseudoHeader(AddrFrom16(src), AddrFrom16(dst), ProtocolICMPv6, uint16(n)))
	sum = SumCopy(b[ICMPv6HeaderLen:n], rest, sum)
	binary.BigEndian.PutUint16(b[2:], ^Fold(sum))
	return n
}

// Options of neighbour discovery (RFC 4861, section 4.6.1).
const (
	optionSourceLink = 1
	optionTargetLink = 2
)

const (
	neighborLen = 24 // without options
	// MaxNeighborLen is the most that PutNeighbor writes, in bytes.
	MaxNeighborLen = neighborLen + 8
)

// Neighbor is a neighbour solicitation or advertisement (RFC 4861, sections 4.3 and 4.4):
//
//	type(1) code(1)=0 checksum(2) flags(4) target(16) [type(1) length(1)=1 MAC(6)]
type Neighbor struct {
	Advertisement bool // otherwise a solicitation
	Target        [16]byte
	Link          LinkAddr // of the sender, or in an advertisement of the target; zero: none
	// Flags of an advertisement.
	Router, Solicited, Override bool
}

// ParseNeighbor reads m, a neighbour solicitation or advertisement, from the packet p. The
// error is ErrNeighbor if a validation of RFC 4861, section 7.1.1 or 7.1.2, fails, or the
// packet has a fragment header (RFC 6980). Unknown options are skipped; of two with a MAC
// address the last counts.
func ParseNeighbor(p *IPv6, m ICMPv6) (n Neighbor, err error) {
	if p.HopLimit != 255 || p.HasFragment || len(m) < neighborLen || m.Code() != 0 || m[8] == 0xff {
		return n, ErrNeighbor
	}
	n.Target = [16]byte(m[8:24])
	option, known := byte(optionSourceLink), false
	switch m.Type() {
	case ICMPv6NeighborSolicitation:
	case ICMPv6NeighborAdvertisement:
		option = optionTargetLink
		n.Advertisement = true
		n.Router, n.Solicited, n.Override = m[4]&0x80 != 0, m[4]&0x40 != 0, m[4]&0x20 != 0
	default:
		return n, ErrNeighbor
	}
	for rest := m[neighborLen:]; len(rest) > 0; {
		if len(rest) < 8 || rest[1] == 0 || 8*int(rest[1]) > len(rest) {
			return n, ErrNeighbor
		}
		if rest[0] == option {
			if rest[1] != 1 { // Ethernet
				return n, ErrNeighbor
			}
			n.Link, known = LinkAddr(rest[2:8]), true
		}
		rest = rest[8*int(rest[1]):]
	}
	unspecified := p.Src == [16]byte{}
	switch {
	case n.Advertisement:
		if unspecified || n.Solicited && p.Dst[0] == 0xff {
			return n, ErrNeighbor
		}
	case unspecified: // duplicate address detection
		if p.Dst != SolicitedNode(n.Target) || known {
			return n, ErrNeighbor
		}
	}
	return n, nil
}

// PutNeighbor writes a message from src to dst, with the option for n.Link unless that is
// zero, and returns its length: [MaxNeighborLen] bytes at most. The IPv6 header must have
// hop limit 255.
func PutNeighbor(b []byte, src, dst [16]byte, n Neighbor) int {
	head, option := uint64(ICMPv6NeighborSolicitation)<<56, byte(optionSourceLink)
	if n.Advertisement {
		head, option = uint64(ICMPv6NeighborAdvertisement)<<56, optionTargetLink
		if n.Router {
			head |= 1 << 31
		}
		if n.Solicited {
			head |= 1 << 30
		}
		if n.Override {
			head |= 1 << 29
		}
	}
	var rest [MaxNeighborLen - ICMPv6HeaderLen]byte
	copy(rest[:], n.Target[:])
	rest[16], rest[17] = option, 1
	copy(rest[18:], n.Link[:])
	if n.Link == (LinkAddr{}) {
		return putICMPv6(b, src, dst, head, rest[:16])
	}
	return putICMPv6(b, src, dst, head, rest[:])
}
