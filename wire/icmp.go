package wire

import (
	"encoding/binary"
	"syscall"
)

// ICMP message types (RFC 792).
const (
	ICMPEchoReply        uint8 = 0
	ICMPUnreachable      uint8 = 3
	ICMPRedirect         uint8 = 5
	ICMPEchoRequest      uint8 = 8
	ICMPTimeExceeded     uint8 = 11
	ICMPParameterProblem uint8 = 12
)

// ICMPReassemblyTimeout is a code of ICMPTimeExceeded.
const ICMPReassemblyTimeout uint8 = 1

// Codes of ICMPUnreachable (RFC 792, RFC 1122 section 3.2.2.1).
const (
	ICMPNetUnreachable      uint8 = 0
	ICMPHostUnreachable     uint8 = 1
	ICMPProtocolUnreachable uint8 = 2
	ICMPPortUnreachable     uint8 = 3
	ICMPFragmentationNeeded uint8 = 4
)

const (
	// ICMPv4HeaderLen is the length of the header of every message in bytes.
	ICMPv4HeaderLen = 8
	// MaxICMPv4ErrorLen is the most that PutICMPv4Error writes: an error quotes as
	// much of the packet as fits in a datagram of 576 bytes (RFC 1812, section
	// 4.3.2.3).
	MaxICMPv4ErrorLen = 576 - IPv4HeaderLen
)

// ICMPv4 is a view of a message (RFC 792). What the second word is depends on
// the type:
//
//	type(1) code(1) checksum(2)
//	echo: ID(2) sequence(2)      unreachable: 0(2) next-hop MTU(2)
//	payload, or the quoted packet
type ICMPv4 []byte

// ParseICMPv4 checks the length and the checksum.
func ParseICMPv4(b []byte) (ICMPv4, error) {
	if len(b) < ICMPv4HeaderLen {
		return nil, ErrTruncated
	}
	if Fold(Sum(b, 0)) != 0xffff {
		return nil, ErrChecksum
	}
	return ICMPv4(b), nil
}

// Type is the message type.
func (m ICMPv4) Type() uint8 { return m[0] }

// Code is the code. Its meaning depends on the type.
func (m ICMPv4) Code() uint8 { return m[1] }

// ID is the identifier of an echo message.
func (m ICMPv4) ID() uint16 { return binary.BigEndian.Uint16(m[4:6]) }

// Seq is the sequence number of an echo message.
func (m ICMPv4) Seq() uint16 { return binary.BigEndian.Uint16(m[6:8]) }

// NextHopMTU is the MTU in bytes that a router reports with
// [ICMPFragmentationNeeded] (RFC 1191); 0 if it reports none.
func (m ICMPv4) NextHopMTU() int { return int(binary.BigEndian.Uint16(m[6:8])) }

// Payload is what follows the header.
func (m ICMPv4) Payload() []byte { return m[ICMPv4HeaderLen:] }

// IsError reports whether the message is an error about a packet, which it
// quotes. No ICMP error may ever answer one (RFC 1122, section 3.2.2).
func (m ICMPv4) IsError() bool {
	const sourceQuench = 4 // deprecated by RFC 6633
	switch m.Type() {
	case ICMPUnreachable, sourceQuench, ICMPRedirect, ICMPTimeExceeded, ICMPParameterProblem:
		return true
	}
	return false
}

// Quoted reads the packet that an error quotes: its header and the first bytes of its
// payload. Checksum and total length are not checked: routers on the way have changed the
// header and cut the packet.
func (m ICMPv4) Quoted() (p IPv4, err error) {
	b := m.Payload()
	if len(b) < IPv4HeaderLen {
		return p, ErrTruncated
	}
	if b[0]>>4 != 4 {
		return p, ErrVersion
	}
	hdr := int(b[0]&15) * 4
	if hdr < IPv4HeaderLen {
		return p, ErrLength
	}
	if hdr > len(b) {
		return p, ErrTruncated
	}
	return IPv4{
		Src: [4]byte(b[12:16]), Dst: [4]byte(b[16:20]), TOS: b[1], Protocol: b[9],
		Fragment: binary.BigEndian.Uint16(b[6:]) & ipv4FragmentMask, Packet: b, Payload: b[hdr:],
	}, nil
}

// ICMPError is what an ICMP or ICMPv6 error says about a packet that this host has sent.
type ICMPError struct {
	Src, Dst  Addr // of that packet
	Protocol  uint8
	Transport []byte // the first bytes of its payload; nil if it is a fragment that does not begin with them
	Size      int    // its length as its header states it, bytes
	// Errno is the error for its sender, 0 for a message that has none; Hard: the condition is
	// not transient. See [ICMPv4.Errno] and [ICMPv6.Errno].
	Errno       syscall.Errno
	Hard        bool
	Unreachable bool // of type destination unreachable
	TooBig      bool // the packet exceeds the MTU of a link
	MTU         int  // of that link, bytes; 0: not reported
}

// Ports are the ports in the quoted UDP or TCP header. ok is false if the quote has none.
func (e *ICMPError) Ports() (src, dst uint16, ok bool) {
	b := e.Transport
	if len(b) < 4 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), true
}

// Report reads an error. It fails as [ICMPv4.Quoted] does.
func (m ICMPv4) Report() (e ICMPError, err error) {
	quoted, err := m.Quoted()
	if err != nil {
		return e, err
	}
	e.Src, e.Dst, e.Protocol, e.Size = AddrFrom4(quoted.Src), AddrFrom4(quoted.Dst), quoted.Protocol, quoted.TotalLen()
	if quoted.FragmentOffset() == 0 {
		e.Transport = quoted.Payload
	}
	e.Errno, e.Hard = m.Errno()
	e.Unreachable = m.Type() == ICMPUnreachable
	if e.TooBig = e.Unreachable && m.Code() == ICMPFragmentationNeeded; e.TooBig {
		e.MTU = m.NextHopMTU()
	}
	return e, nil
}

// EchoFields are the variable parts of the header of an echo message.
type EchoFields struct {
	Type    uint8 // ICMPEchoRequest or ICMPEchoReply
	ID, Seq uint16
}

// PutEcho writes an echo message with a copy of payload and returns its length.
// b and payload may overlap only if payload is already at its place in b.
func PutEcho(b []byte, f EchoFields, payload []byte) int {
	n := ICMPv4HeaderLen + len(payload)
	_ = b[n-1]
	binary.BigEndian.PutUint64(b, uint64(f.Type)<<56|uint64(f.ID)<<16|uint64(f.Seq))
	sum := Sum(b[:ICMPv4HeaderLen], 0)
	sum = SumCopy(b[ICMPv4HeaderLen:n], payload, sum)
	binary.BigEndian.PutUint16(b[2:4], ^Fold(sum))
	return n
}

// ICMPv4ErrorLen is the length of the message that PutICMPv4Error writes about packet in bytes.
func ICMPv4ErrorLen(packet []byte) int { return min(ICMPv4HeaderLen+len(packet), MaxICMPv4ErrorLen) }

// PutICMPv4Error writes an error about packet, and returns its length, [ICMPv4ErrorLen]. It quotes
// the IP header and all of the payload that fits, not only the 8 bytes of RFC 792: see RFC 1812,
// section 4.3.2.3. word is the second word of the header: the MTU with [ICMPFragmentationNeeded],
// with [ICMPParameterProblem] the pointer in the uppermost octet, otherwise 0. b and packet must
// not overlap.
func PutICMPv4Error(b []byte, kind, code uint8, word uint32, packet []byte) int {
	n := ICMPv4ErrorLen(packet)
	_ = b[n-1]
	binary.BigEndian.PutUint64(b, uint64(kind)<<56|uint64(code)<<48|uint64(word))
	sum := Sum(b[:ICMPv4HeaderLen], 0)
	sum = SumCopy(b[ICMPv4HeaderLen:n], packet[:n-ICMPv4HeaderLen], sum)
	binary.BigEndian.PutUint16(b[2:4], ^Fold(sum))
	return n
}

// unreachableErrnos are the errnos of ICMPUnreachable, by code, as Linux has them
// (net/ipv4/icmp.c, icmp_err_convert).
var unreachableErrnos = [...]struct {
	errno syscall.Errno
	hard  bool
}{
	0:  {syscall.ENETUNREACH, false},
	1:  {syscall.EHOSTUNREACH, false},
	2:  {syscall.ENOPROTOOPT, true},
	3:  {syscall.ECONNREFUSED, true},
	4:  {syscall.EMSGSIZE, false},
	5:  {syscall.EOPNOTSUPP, false},   // source route failed
	6:  {syscall.ENETUNREACH, true},   // network unknown
	7:  {syscall.EHOSTDOWN, true},     // host unknown
	8:  {errNoNet, true},              // source host isolated
	9:  {syscall.ENETUNREACH, true},   // network prohibited
	10: {syscall.EHOSTUNREACH, true},  // host prohibited
	11: {syscall.ENETUNREACH, false},  // network, for this type of service
	12: {syscall.EHOSTUNREACH, false}, // host, likewise
	13: {syscall.EHOSTUNREACH, true},  // prohibited
	14: {syscall.EHOSTUNREACH, true},  // precedence violation
	15: {syscall.EHOSTUNREACH, true},  // precedence cutoff
}

// Errno is the errno of an ICMP error for the sender of the packet that it quotes, as in
// Linux. hard: the condition is not transient (RFC 1122, section
// 4.2.3.9). It is 0 for all other messages: source quench (RFC 6633), redirects, unknown
// codes.
func (m ICMPv4) Errno() (errno syscall.Errno, hard bool) {
	switch code := int(m.Code()); {
	case m.Type() == ICMPParameterProblem:
		return syscall.EPROTO, true
	case m.Type() == ICMPTimeExceeded:
		return syscall.EHOSTUNREACH, false
	case m.Type() == ICMPUnreachable && code < len(unreachableErrnos):
		e := unreachableErrnos[code]
		return e.errno, e.hard
	}
	return 0, false
}
