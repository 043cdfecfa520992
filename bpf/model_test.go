//go:build linux

package bpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
)

// A model of the mux in Go, written from the rules in doc.go and the RFCs, without code of the
// programs: the owner of a received frame, and the errors of a sent one.

// who is an endpoint, by its port.
type who int

const nobody who = -1

// flow is a port in the model's book.
type flow struct {
	tcp bool
	at  netip.AddrPort
}

// book is the holders of all tags.
type book struct {
	link    [6]byte
	mtu     int
	ports   map[flow]who
	blocks  map[flow]who // by their first port
	owned   map[netip.Addr]who
	message map[uint32]who

	infrastructure map[who]bool // owners with Infrastructure
}

func newBook(link []byte) *book {
	return &book{[6]byte(link), testMTU, map[flow]who{}, map[flow]who{}, map[netip.Addr]who{}, map[uint32]who{}, map[who]bool{}}
}

func (b *book) holdsPort(tcp bool, a netip.Addr, port uint16) who {
	if w, ok := b.ports[flow{tcp, netip.AddrPortFrom(a, port)}]; ok {
		return w
	}
	if w, ok := b.blocks[flow{tcp, netip.AddrPortFrom(a, port/BlockPorts*BlockPorts)}]; ok {
		return w
	}
	return nobody
}

func (b *book) holdsAddr(a netip.Addr) who {
	if w, ok := b.owned[a]; ok {
		return w
	}
	return nobody
}

func (b *book) holdsMessage(tag uint32) who {
	if w, ok := b.message[tag]; ok {
		return w
	}
	return nobody
}

// be16 reads two bytes, which must exist.
func be16(p []byte, at int) int { return int(binary.BigEndian.Uint16(p[at:])) }

// headers are the parsed headers of an IP packet, possibly incomplete.
type headers struct {
	src, dst      netip.Addr
	protocol      byte
	fragment      bool // of whatever kind
	first         bool // it has the beginning of the payload
	inner         byte // the protocol of the payload, behind an IPv6 fragment header
	options       bool // IPv4
	length        int  // of the packet, by its header
	head          int  // offset of the payload
	hopLimit      byte
	jumbo, cutOff bool
	fragmentCut   bool // the fragment header is truncated or missing
}

// takeApart returns false if the version or header length is invalid. cutOff: the fixed header is
// truncated.
func takeApart(p []byte, version int) (h headers, ok bool) {
	if version == 4 {
		if len(p) < 20 {
			return headers{cutOff: true}, true
		}
		h = headers{protocol: p[9], length: be16(p, 2), head: int(p[0]&15) * 4, hopLimit: p[8]}
		h.src, h.dst = netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
		field := be16(p, 6)
		h.fragment, h.first, h.inner, h.options = field&0x3fff != 0, field&0x1fff == 0, p[9], h.head > 20
		return h, p[0]>>4 == 4 && h.head >= 20
	}
	if len(p) < 40 {
		return headers{cutOff: true}, true
	}
	h = headers{protocol: p[6], length: 40 + be16(p, 4), head: 40, hopLimit: p[7], jumbo: be16(p, 4) == 0, first: true, inner: p[6]}
	h.src, h.dst = netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
	if h.protocol == 44 {
		h.fragment = true
		h.fragmentCut = len(p) < 48 || h.length < 48
		if !h.fragmentCut {
			h.inner, h.first, h.head = p[40], be16(p, 42)&0xfff8 == 0, 48
		}
	}
	return h, p[0]>>4 == 6
}

// transport reads the ports of a UDP or TCP header. cut: the frame ends in the header. badLength: its lengths
// do not fit the packet.
func transport(p []byte, h headers) (src, dst uint16, cut, badLength bool) {
	if h.inner == 17 {
		if len(p) < h.head+8 {
			return 0, 0, true, false
		}
		n := be16(p, h.head+4)
		badLength = n < 8 || h.length < h.head+8 || !h.fragment && h.head+n > h.length
	} else {
		if len(p) < h.head+20 {
			return 0, 0, true, false
		}
		n := int(p[h.head+12]>>4) * 4
		badLength = n < 20 || h.head+n > h.length
	}
	return uint16(be16(p, h.head)), uint16(be16(p, h.head+2)), false, badLength
}

// receives returns the endpoint that gets a frame from the wire, and the counter.
func (b *book) receives(f []byte) (who, Counter) {
	if len(f) < 14 {
		return nobody, rxTruncated
	}
	if t := be16(f, 12); t == 0x8100 || t == 0x88a8 {
		return b.receivesTagged(f)
	}
	part := f[0] == partSecret[0]
	w, c := b.receivesWhole(f, part || bytes.Equal(f[:6], b.link[:]))
	if w != nobody && part && !bytes.Equal(f[2:6], partMAC(int(w), 0)[2:]) {
		return nobody, rxStalePart
	}
	return w, c
}

// receivesTagged is for a frame with a tag of 802.1Q: VLAN 0 is the untagged network.
func (b *book) receivesTagged(f []byte) (who, Counter) {
	if len(f) < 18 {
		return nobody, rxTruncated
	}
	if be16(f, 14)&0xfff != 0 {
		return nobody, rxVLAN
	}
	if t := be16(f, 16); t == 0x8100 || t == 0x88a8 {
		switch {
		case len(f) < 20:
			return nobody, rxTruncated
		case be16(f, 18)&0xfff != 0:
			return nobody, rxVLAN
		}
		return nobody, rxTaggedTwice
	}
	return b.receivesWhole(slices.Concat(f[:12], f[16:]), bytes.Equal(f[:6], b.link[:]))
}

// receivesWhole is receives for frames that are not parts of super-frames. ours: the destination is this
// host's MAC address.
func (b *book) receivesWhole(f []byte, ours bool) (who, Counter) {
	p := f[14:]
	all := bytes.Equal(f[:6], bcast)
	switch t := be16(f, 12); {
	case t == 0x0800 && ours:
		return b.receivesIP(p, 4)
	case t == 0x86dd && ours:
		return b.receivesIP(p, 6)
	case t == 0x86dd && f[0] == 0x33 && f[1] == 0x33:
		return b.receivesQuestion(f[:6], p)
	case t == 0x88b5 && ours:
		if len(p) < 12 {
			return nobody, rxTruncated
		}
		if w := b.holdsMessage(binary.BigEndian.Uint32(p[4:])); p[0] == 1 && w != nobody {
			return w.given(12+be16(p, 2) <= len(p))
		}
	case t == 0x0806 && (ours || all):
		if len(p) < 28 {
			return nobody, rxTruncated
		}
		if w := b.holdsAddr(netip.AddrFrom4([4]byte(p[24:28]))); isARP(p) && w != nobody {
			return w, rxPort
		}
	}
	return nobody, rxPass
}

func isARP(p []byte) bool { return bytes.Equal(p[:6], []byte{0, 1, 8, 0, 6, 4}) }

// given is the result for a claimed frame.
func (w who) given(lengthsTrue bool) (who, Counter) {
	if !lengthsTrue {
		return nobody, rxBadLength
	}
	return w, rxPort
}

func (b *book) receivesIP(p []byte, version int) (who, Counter) {
	h, ok := takeApart(p, version)
	if h.cutOff {
		return nobody, rxTruncated
	}
	if !ok {
		return nobody, rxPass
	}
	lengthsTrue := h.length >= h.head && h.length <= len(p) && !h.jumbo
	if h.fragment && version == 6 {
		lengthsTrue = h.length <= len(p) && !h.jumbo // its owner checks what follows the fixed header
	}
	truncated := false
	if !h.fragment && (h.protocol == 17 || h.protocol == 6) {
		_, port, cut, badLength := transport(p, h)
		truncated = cut
		if w := b.holdsPort(h.protocol == 6, h.dst, port); !cut && w != nobody {
			return w.given(lengthsTrue && !badLength)
		}
	}
	if !h.fragment && (h.protocol == 1 && version == 4 || h.protocol == 58 && version == 6) {
		if w := b.concerns(p, h, version); w != nobody {
			return w.given(lengthsTrue)
		}
	}
	if w := b.holdsAddr(h.dst); w != nobody {
		return w.given(lengthsTrue)
	}
	if truncated {
		return nobody, rxTruncated
	}
	if h.fragment && version == 4 && h.first && (h.inner == 6 || h.inner == 17) && len(p) >= h.head+8 &&
		b.holdsPort(h.inner == 6, h.dst, uint16(be16(p, h.head+2))) != nobody {
		return nobody, rxFragment
	}
	if version == 6 {
		return nobody, b.mayConcern(p[40:], h.protocol, h.dst, false, 0)
	}
	return nobody, rxPass
}

// mayConcern is the result for an IPv6 packet without an owner. rest is what follows depth extension
// headers, next its protocol.
func (b *book) mayConcern(rest []byte, next byte, dst netip.Addr, fragment bool, depth int) Counter {
	if depth == 16 {
		return rxExtension
	}
	if len(rest) < 8 {
		return rxPass
	}
	length := 0
	switch next {
	case 6, 17:
		switch {
		case depth == 0 || b.holdsPort(next == 6, dst, uint16(be16(rest, 2))) == nobody:
			return rxPass
		case fragment:
			return rxFragment
		}
		return rxExtension
	case 44:
		if be16(rest, 2)>>3 != 0 {
			return rxPass
		}
		fragment, length = true, 8
	case 51:
		length = 8 + 4*int(rest[1])
	case 43:
		if rest[3] != 0 {
			return rxPass
		}
		length = 8 + 8*int(rest[1])
	case 0, 60, 135, 139, 140, 253, 254:
		length = 8 + 8*int(rest[1])
	default:
		return rxPass
	}
	return b.mayConcern(rest[min(length, len(rest)):], rest[0], dst, fragment, depth+1)
}

// concerns finds the holder of the port that an ICMP error quotes, or of the target of a solicitation.
func (b *book) concerns(p []byte, h headers, version int) who {
	body := p[min(h.head, len(p)):max(min(h.head, len(p)), min(h.length, len(p)))]
	if version == 6 && len(body) >= 24 && body[0] == 135 {
		return b.holdsAddr(netip.AddrFrom16([16]byte(body[8:24])))
	}
	if len(body) < 8 || version == 4 && body[0] != 3 && body[0] != 11 && body[0] != 12 || version == 6 && (body[0] < 1 || body[0] > 4) {
		return nobody
	}
	quoted := body[8:]
	q, ok := takeApart(quoted, version)
	if !ok || q.cutOff || q.src != h.dst || !q.first || q.protocol != 17 && q.protocol != 6 || len(quoted) < q.head+8 {
		return nobody
	}
	return b.holdsPort(q.protocol == 6, h.dst, uint16(be16(quoted, q.head)))
}

// receivesQuestion is for IPv6 multicast, of which only solicitations concern endpoints.
func (b *book) receivesQuestion(link, p []byte) (who, Counter) {
	h, ok := takeApart(p, 6)
	if h.cutOff {
		return nobody, rxTruncated
	}
	dst := h.dst.As16()
	if !ok || h.protocol != 58 || h.length < 64 || !bytes.Equal(link[2:], dst[12:]) {
		return nobody, rxPass
	}
	if len(p) < 64 {
		return nobody, rxTruncated
	}
	target := netip.AddrFrom16([16]byte(p[48:64]))
	group, _ := solicitedNode(target)
	if w := b.holdsAddr(target); p[40] == 135 && h.dst == group && w != nobody {
		return w.given(h.length <= len(p))
	}
	return nobody, rxPass
}
