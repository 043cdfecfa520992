//go:build linux

package attack

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/unet-go/unet/wire"
)

// Offsets in the frames that this file makes.
const (
	atEtherType   = 12
	atNetwork     = 14 // the header behind Ethernet's
	atTotalLength = atNetwork + 2
	atProtocol    = atNetwork + 9
	atTransport4  = atNetwork + 20
	atPayload6    = atNetwork + 4
	atNextHeader  = atNetwork + 6
	atTransport6  = atNetwork + 40
)

const (
	typeIPv4    = 0x0800
	typeARP     = 0x0806
	typeVLAN    = 0x8100
	typeIPv6    = 0x86dd
	typeMessage = 0x88b5

	protocolICMP   = 1
	protocolTCP    = 6
	protocolUDP    = 17
	protocolICMPv6 = 58
)

// A mark in a frame is for the capture: the batch to which the frame belongs, and
// whether the mux should let it through.
const (
	markText = "unet-attack-mark:"
	markLen  = len(markText) + 1 + 4

	legal  byte = 'L'
	forged byte = 'F'
)

// mark makes one. It is the payload of a frame, or follows the payload.
func mark(verdict byte, batch uint32) []byte {
	b := append([]byte(markText), verdict)
	return binary.BigEndian.AppendUint32(b, batch)
}

func indexOfMark(frame []byte) int { return bytes.Index(frame, []byte(markText)) }

// stamp changes the verdict in a frame's mark, if it has one.
func stamp(frame []byte, verdict byte) {
	if i := indexOfMark(frame); i >= 0 && i+markLen <= len(frame) {
		frame[i+len(markText)] = verdict
	}
}

// readMark finds a frame's mark.
func readMark(frame []byte) (verdict byte, batch uint32, ok bool) {
	i := indexOfMark(frame)
	if i < 0 || i+markLen > len(frame) {
		return 0, 0, false
	}
	i += len(markText)
	return frame[i], binary.BigEndian.Uint32(frame[i+1:]), true
}

func join(parts ...[]byte) []byte { return slices.Concat(parts...) }

func be16(n int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(n)) }

func be32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// ether is a frame. What follows the header may be anything.
func ether(dst, src wire.LinkAddr, etherType int, rest ...[]byte) []byte {
	return join(dst[:], src[:], be16(etherType), join(rest...))
}

// ipv4 is a packet with a valid header.
func ipv4(src, dst netip.Addr, protocol byte, rest ...[]byte) []byte {
	payload := join(rest...)
	h := join([]byte{0x45, 0}, be16(20+len(payload)), []byte{0, 1, 0, 0, 64, protocol, 0, 0}, src.AsSlice(), dst.AsSlice())
	binary.BigEndian.PutUint16(h[10:], ^sum(h))
	return join(h, payload)
}

// ipv6 is a packet with a valid header.
func ipv6(src, dst netip.Addr, next byte, rest ...[]byte) []byte {
	payload := join(rest...)
	return join([]byte{0x60, 0, 0, 0}, be16(len(payload)), []byte{next, 255}, src.AsSlice(), dst.AsSlice(), payload)
}

// udp is a datagram without a checksum.
func udp(src, dst int, rest ...[]byte) []byte {
	payload := join(rest...)
	return join(be16(src), be16(dst), be16(8+len(payload)), []byte{0, 0}, payload)
}

// tcp is a segment that opens a connection, without a checksum.
func tcp(src, dst int, rest ...[]byte) []byte {
	return join(be16(src), be16(dst), make([]byte, 8), []byte{0x50, 2}, be16(1024), make([]byte, 4), join(rest...))
}

// message is a U-Net message.
func message(dst, src uint32, rest ...[]byte) []byte {
	payload := join(rest...)
	return join([]byte{1, 0}, be16(len(payload)), be32(dst), be32(src), payload)
}

const (
	arpRequest = 1
	arpReply   = 2
)

// arp is a packet of 28 bytes.
func arp(op int, senderLink wire.LinkAddr, sender netip.Addr, targetLink wire.LinkAddr, target netip.Addr) []byte {
	return join([]byte{0, 1, 8, 0, 6, 4}, be16(op), senderLink[:], sender.AsSlice(), targetLink[:], target.AsSlice())
}

const (
	routerSolicitation  = 133
	routerAdvertisement = 134
	neighbourSolicit    = 135
	neighbourAdvert     = 136
	redirect            = 137
)

// icmp6 is a message with a valid checksum.
func icmp6(src, dst netip.Addr, kind, code byte, rest ...[]byte) []byte {
	m := join([]byte{kind, code, 0, 0}, join(rest...))
	pseudo := join(src.AsSlice(), dst.AsSlice(), be32(uint32(len(m))), []byte{0, 0, 0, protocolICMPv6})
	binary.BigEndian.PutUint16(m[2:], ^sum(join(pseudo, m)))
	return m
}

// linkOption is the source (1) or target (2) link-layer address option.
func linkOption(kind byte, a wire.LinkAddr) []byte { return join([]byte{kind, 1}, a[:]) }

// discovery is a neighbour solicitation or advertisement about a target.
func discovery(src, dst netip.Addr, kind byte, flags byte, target netip.Addr, options ...[]byte) []byte {
	return ipv6(src, dst, protocolICMPv6, icmp6(src, dst, kind, 0, []byte{flags, 0, 0, 0}, target.AsSlice(), join(options...)))
}

// sum is the Internet checksum's (RFC 1071), not yet complemented.
func sum(b []byte) uint16 {
	total := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		total += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		total += uint32(b[len(b)-1]) << 8
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}

// edit is a copy of a frame with some bytes overwritten.
func edit(frame []byte, at int, b ...byte) []byte {
	frame = slices.Clone(frame)
	copy(frame[at:], b)
	return frame
}
