//go:build linux

package impair

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// packet is a frame in flight, after its struct virtio_net_hdr. Both copies of a
// duplicated frame are one packet.
type packet struct {
	data []byte
	refs int
}

// Offsets in struct virtio_net_hdr, whose numbers have the order of the machine.
const (
	vnetFlags      = 0
	vnetType       = 1
	vnetCsumStart  = 6
	vnetCsumOffset = 8
)

const (
	etherHeader = 14
	vlanTag     = 4
)

// fill makes p a copy of a frame in a ring.
func (p *packet) fill(r received) {
	p.data = append(p.data[:0], r.data...)
	p.data[vnetFlags] &= unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
	if r.tpid != 0 && len(p.frame()) >= etherHeader {
		p.insertTag(r.tpid, r.vlan)
	}
}

func (p *packet) frame() []byte { return p.data[vnetHeader:] }

// insertTag puts a VLAN tag back that the kernel has taken from the frame.
func (p *packet) insertTag(tpid, tci uint16) {
	p.data = append(p.data, make([]byte, vlanTag)...)
	f := p.frame()
	copy(f[12+vlanTag:], f[12:])
	binary.BigEndian.PutUint16(f[12:], tpid)
	binary.BigEndian.PutUint16(f[14:], tci)
	if p.data[vnetFlags] != 0 {
		start := p.data[vnetCsumStart:]
		binary.NativeEndian.PutUint16(start, binary.NativeEndian.Uint16(start)+vlanTag)
	}
}

// super reports whether p is a super-frame, which the kernel segments later.
func (p *packet) super() bool { return p.data[vnetType] != unix.VIRTIO_NET_HDR_GSO_NONE }

// completeChecksum computes the checksum that the sender's kernel has left to the
// hardware, so that it covers the data before the damage.
func (p *packet) completeChecksum() {
	if p.data[vnetFlags]&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM == 0 {
		return
	}
	p.data[vnetFlags] = 0
	f := p.frame()
	start := int(binary.NativeEndian.Uint16(p.data[vnetCsumStart:]))
	at := start + int(binary.NativeEndian.Uint16(p.data[vnetCsumOffset:]))
	if at+2 > len(f) {
		return
	}
	var sum uint32 // the field has the sum of the pseudo-header
	for i := start; i < len(f); i += 2 {
		sum += uint32(f[i]) << 8
		if i+1 < len(f) {
			sum += uint32(f[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	if sum = ^sum & 0xffff; sum == 0 {
		sum = 0xffff // in UDP, 0 says that there is none; in TCP both are the same
	}
	binary.BigEndian.PutUint16(f[at:], uint16(sum))
}

// flip flips one bit, or flips it back.
func flip(frame []byte, bit int) { frame[bit/8] ^= 1 << (bit % 8) }

// Bits of ECN in an IP header (RFC 3168).
const (
	ecnMask = 3
	ecnCE   = 3
)

// trafficClass finds the IP header of a frame, which may have VLAN tags, and its family.
func trafficClass(frame []byte) (header []byte, version int) {
	for at := 12; at+2 <= len(frame); at += vlanTag {
		header = frame[at+2:]
		switch binary.BigEndian.Uint16(frame[at:]) {
		case unix.ETH_P_8021Q, unix.ETH_P_8021AD:
			continue
		case unix.ETH_P_IP:
			if len(header) >= 20 {
				return header, 4
			}
		case unix.ETH_P_IPV6:
			if len(header) >= 40 {
				return header, 6
			}
		}
		break
	}
	return nil, 0
}

// ect reports whether a frame is ECN-capable.
func ect(frame []byte) bool {
	switch h, version := trafficClass(frame); version {
	case 4:
		return h[1]&ecnMask != 0
	case 6:
		return h[1]>>4&ecnMask != 0
	}
	return false
}

// markCE sets Congestion Experienced in the IP header.
func markCE(frame []byte) {
	switch h, version := trafficClass(frame); version {
	case 4:
		old := binary.BigEndian.Uint16(h)
		h[1] |= ecnCE
		// The checksum follows the word that has changed (RFC 1624, equation 3).
		sum := uint32(^binary.BigEndian.Uint16(h[10:])) + uint32(^old) + uint32(binary.BigEndian.Uint16(h))
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
	case 6:
		h[1] |= ecnCE << 4
	}
}

// Resolution reports whether a frame is one of ARP or of IPv6's neighbour discovery (RFC 4861),
// for [Config].Spare. ARP has no checksum, so a damaged reply would enter the neighbour table.
// The kernel repeats a solicitation that is lost only after a second.
func Resolution(frame []byte) bool {
	if len(frame) < etherHeader {
		return false
	}
	const nextHeader, ndFirst, ndLast = 6, 133, 137 // router solicitation to redirect
	switch p := frame[etherHeader:]; binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_ARP:
		return true
	case unix.ETH_P_IPV6:
		return len(p) > 40 && p[nextHeader] == unix.IPPROTO_ICMPV6 && p[40] >= ndFirst && p[40] <= ndLast
	}
	return false
}
