package wire

import (
	"encoding/binary"
	"errors"
)

// Next-header values (RFC 8200, section 4). UDP and TCP have those of IPv4.
const (
	ProtocolFragment    uint8 = 44 // a fragment header follows
	ProtocolICMPv6      uint8 = 58
	ProtocolDestination uint8 = 60 // destination options follow

	nextHopByHop    = 0
	nextRouting     = 43
	nextFragment    = ProtocolFragment
	nextDestination = ProtocolDestination
)

const (
	// IPv6HeaderLen is the length of a header without extension headers in bytes.
	IPv6HeaderLen = 40
	// MinIPv6MTU is the MTU that every link has at least, in bytes (RFC 8200, section 5).
	MinIPv6MTU = 1280

	// Limits for a receiver (RFC 8504, section 5.3).
	maxExtensionHeaders = 8
	maxIPv6Options      = 8 // in one header, padding left out
)

// Errors of [IPv6.Parse]. They are returned bare.
var (
	// ErrDiscarded: an option or header is not supported and no error may be sent about it,
	// or there are more of them than the limits allow.
	ErrDiscarded = errors.New("extension header not accepted")
	// ErrParameterProblem: the same, but the sender is to be told; see [IPv6.Problem].
	ErrParameterProblem = errors.New("parameter problem")
)

// IPv6 is a packet (RFC 8200). Extension headers are skipped within strict limits, not
// interpreted.
//
//	version|traffic class|flow label(4)  payload length(2) next header(1) hop limit(1)
//	source(16) destination(16)  [extension headers] payload
type IPv6 struct {
	Src, Dst     [16]byte
	TrafficClass uint8 // DSCP and, in the lower two bits, ECN
	HopLimit     uint8
	Protocol     uint8 // of the payload; if Fragment is not 0, the next header of the fragment
	// HasFragment: there is a fragment header. Fragment is 0 even so if the packet is whole (an
	// atomic fragment, RFC 6946). Otherwise it is the offset in bytes, a multiple of 8, and
	// in bit 0 the flag M.
	HasFragment bool
	Fragment    uint16
	FragmentID  uint32
	Packet      []byte // all headers and the payload, without the padding of the link
	Payload     []byte // what follows the extension headers
	// ProtocolAt is where in the packet the byte Protocol is, which an ICMPv6 error about it
	// points to.
	ProtocolAt int
	// Problem is what [ErrParameterProblem] is about. Nothing is to be sent if the source is
	// unspecified or a multicast address. The rules for the destination are respected.
	Problem IPv6Problem
}

// IPv6Problem is the code and the pointer of an ICMPv6 parameter problem (RFC 4443, section
// 3.4).
type IPv6Problem struct {
	Code    uint8
	Pointer uint32 // offset in the packet, bytes
}

// Parse checks version and payload length, and skips extension headers: hop-by-hop options,
// destination options, routing headers without segments left and fragment headers. A
// header of any other kind counts as the payload. Jumbograms (RFC 2675) are not supported.
// The errors are ErrTruncated, ErrVersion, ErrLength for an option that exceeds its
// header, ErrDiscarded and ErrParameterProblem. Of a fragment, all that follows the
// fragment header is payload.
func (p *IPv6) Parse(b []byte) error {
	if len(b) < IPv6HeaderLen {
		return ErrTruncated
	}
	if b[0]>>4 != 6 {
		return ErrVersion
	}
	total := IPv6HeaderLen + int(binary.BigEndian.Uint16(b[4:]))
	if total > len(b) {
		return ErrTruncated
	}
	p.Src, p.Dst = [16]byte(b[8:24]), [16]byte(b[24:40])
	p.TrafficClass, p.HopLimit = uint8(binary.BigEndian.Uint16(b)>>4), b[7]
	p.Protocol, p.ProtocolAt = b[6], 6
	p.HasFragment, p.Fragment, p.FragmentID = false, 0, 0
	p.Packet = b[:total:total]
	p.Payload = p.Packet[IPv6HeaderLen:]
	switch p.Protocol {
	case ProtocolUDP, ProtocolTCP, ProtocolICMPv6:
		return nil
	}
	return p.skipExtensions()
}

// skipExtensions moves Protocol and Payload to what follows the extension headers.
func (p *IPv6) skipExtensions() error {
	for n := 0; ; n++ {
		at := len(p.Packet) - len(p.Payload)
		switch p.Protocol {
		case nextHopByHop:
			if n > 0 {
				return p.problem(ICMPv6UnknownNextHeader, p.ProtocolAt)
			}
		case nextDestination, nextRouting, nextFragment:
		default:
			return nil
		}
		if n == maxExtensionHeaders {
			return ErrDiscarded
		}
		if len(p.Payload) < 8 {
			return ErrTruncated
		}
		size := 8
		if p.Protocol != nextFragment {
			size += 8 * int(p.Payload[1])
		}
		if size > len(p.Payload) {
			return ErrTruncated
		}
		header := p.Payload[:size]
		kind := p.Protocol
		p.Protocol, p.ProtocolAt, p.Payload = header[0], at, p.Payload[size:]
		switch kind {
		case nextRouting:
			if header[3] != 0 { // segments left, of a type that this host does not forward
				return p.problem(ICMPv6ErroneousField, at+2)
			}
		case nextFragment:
			if err := p.readFragment(header, at); err != nil || p.Fragment != 0 {
				return err
			}
		default:
			if err := p.checkOptions(header, at); err != nil {
				return err
			}
		}
	}
}

// readFragment reads the fragment header at that offset.
func (p *IPv6) readFragment(header []byte, at int) error {
	if p.HasFragment {
		return ErrDiscarded
	}
	p.HasFragment = true
	p.Fragment = binary.BigEndian.Uint16(header[2:]) &^ 6 // two reserved bits
	p.FragmentID = binary.BigEndian.Uint32(header[4:])
	offset := int(p.Fragment &^ 1)
	switch {
	case p.Fragment&1 != 0 && len(p.Payload)%8 != 0: // RFC 8200, section 4.5
		return p.problem(ICMPv6ErroneousField, 4)
	case offset+len(p.Payload) > 0xffff:
		return p.problem(ICMPv6ErroneousField, at+2)
	}
	return nil
}

// checkOptions goes through the options of a header at that offset (RFC 8200, section 4.2).
// No option is supported. The upper two bits of its type tell what that means.
func (p *IPv6) checkOptions(header []byte, at int) error {
	const pad1 = 0
	options := 0
	for i := 2; i < len(header); {
		kind := header[i]
		if kind == pad1 {
			i++
			continue
		}
		if i+2 > len(header) || i+2+int(header[i+1]) > len(header) {
			return ErrLength
		}
		const padN = 1
		if kind != padN {
			options++
		}
		if options > maxIPv6Options {
			return ErrDiscarded
		}
		switch kind >> 6 {
		case 1:
			return ErrDiscarded
		case 2: // also if the destination is a multicast address
			p.Problem = IPv6Problem{ICMPv6UnknownOption, uint32(at + i)}
			return ErrParameterProblem
		case 3:
			return p.problem(ICMPv6UnknownOption, at+i)
		}
		i += 2 + int(header[i+1])
	}
	return nil
}

// IsError reports whether the packet is an ICMPv6 error or a redirect, or cannot be told from
// one: no error may be sent about it (RFC 4443, section 2.4). A fragment that ends before it can
// be told is none: errors are shorter than any MTU. IsError may be called after Parse has failed with ErrParameterProblem.
func (p *IPv6) IsError() bool {
	kind, b := p.Protocol, p.Payload
	whole := p.Fragment == 0
	for range maxExtensionHeaders {
		switch kind {
		case ProtocolICMPv6:
			return len(b) == 0 && whole || len(b) > 0 && (b[0] < 128 || b[0] == ICMPv6Redirect)
		case nextHopByHop, nextDestination, nextRouting, nextFragment:
		default:
			return false
		}
		if len(b) < 8 {
			return whole
		}
		size := 8
		if kind != nextFragment {
			size += 8 * int(b[1])
		}
		if size > len(b) {
			return whole
		}
		kind, b = b[0], b[size:]
	}
	return true
}

// problem returns ErrParameterProblem, or ErrDiscarded if the packet was sent to a multicast
// address (RFC 4443, section 2.4).
func (p *IPv6) problem(code uint8, at int) error {
	if p.Dst[0] == 0xff {
		return ErrDiscarded
	}
	p.Problem = IPv6Problem{code, uint32(at)}
	return ErrParameterProblem
}

// IPv6FragmentLen is the length of a fragment header in bytes.
const IPv6FragmentLen = 8

// PutIPv6Fragment writes a fragment header of [IPv6FragmentLen] bytes (RFC 8200, section 4.5),
// whose number is [ProtocolFragment]. protocol is that of the payload, fragment and id are as
// in [IPv6].
func PutIPv6Fragment(b []byte, protocol uint8, fragment uint16, id uint32) {
	binary.BigEndian.PutUint64(b, uint64(protocol)<<56|uint64(fragment)<<32|uint64(id))
}

// IPv6Fields are the variable parts of a header without extension headers.
type IPv6Fields struct {
	TrafficClass uint8
	FlowLabel    uint32 // 20 bits (RFC 6437); 0: none
	PayloadLen   uint16 // bytes
	Protocol     uint8
	HopLimit     uint8
	Src, Dst     [16]byte
}

// PutIPv6 writes a header of [IPv6HeaderLen] bytes.
func PutIPv6(b []byte, f IPv6Fields) {
	_ = b[39]
	w := 6<<60 | uint64(f.TrafficClass)<<52 | uint64(f.FlowLabel&0xfffff)<<32 |
		uint64(f.PayloadLen)<<16 | uint64(f.Protocol)<<8 | uint64(f.HopLimit)
	binary.BigEndian.PutUint64(b, w)
	copy(b[8:24], f.Src[:])
	copy(b[24:40], f.Dst[:])
}

// SolicitedNode is the multicast address that neighbour solicitations for a are sent to
// (RFC 4291, section 2.7.1).
func SolicitedNode(a [16]byte) [16]byte {
	return [16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: a[13], 14: a[14], 15: a[15]}
}

// MulticastLink is the MAC address of an IPv6 multicast address (RFC 2464, section 7).
func MulticastLink(a [16]byte) LinkAddr { return LinkAddr{0x33, 0x33, a[12], a[13], a[14], a[15]} }
