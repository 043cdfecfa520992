//go:build linux

package bpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
)

// A model of the mux in Go, written from the rules in doc.go and the RFCs, without code of the
// programs. It finds the owner of a received frame, and the errors of a frame that an endpoint sends.

// holder is an endpoint, by the ifindex of its port.
type holder int

const noHolder holder = -1

// portTag is the tag of a port, or of a block by its first port.
type portTag struct {
	tcp bool
	at  netip.AddrPort
}

// tagTable has the holders of all tags.
type tagTable struct {
	link    [6]byte
	mtu     int
	ports   map[portTag]holder
	blocks  map[portTag]holder
	owned   map[netip.Addr]holder
	message map[uint32]holder

	infrastructure map[holder]bool // owners with Infrastructure
}

func newTagTable(link []byte) *tagTable {
	return &tagTable{[6]byte(link), testMTU, map[portTag]holder{}, map[portTag]holder{}, map[netip.Addr]holder{}, map[uint32]holder{}, map[holder]bool{}}
}

// portHolder is the holder of a port: by its own tag, or by the tag of its block.
func (b *tagTable) portHolder(tcp bool, a netip.Addr, port uint16) holder {
	if w, ok := b.ports[portTag{tcp, netip.AddrPortFrom(a, port)}]; ok {
		return w
	}
	if w, ok := b.blocks[portTag{tcp, netip.AddrPortFrom(a, port/BlockPorts*BlockPorts)}]; ok {
		return w
	}
	return noHolder
}

// addrHolder is the holder of an owned address.
func (b *tagTable) addrHolder(a netip.Addr) holder {
	if w, ok := b.owned[a]; ok {
		return w
	}
	return noHolder
}

// messageHolder is the holder of a message tag.
func (b *tagTable) messageHolder(tag uint32) holder {
	if w, ok := b.message[tag]; ok {
		return w
	}
	return noHolder
}

// be16 reads two bytes, which must exist.
func be16(p []byte, at int) int { return int(binary.BigEndian.Uint16(p[at:])) }

// headers are the parsed headers of an IP packet, possibly incomplete.
type headers struct {
	src, dst      netip.Addr
	protocol      byte
	fragment      bool // of any kind
	first         bool // the packet has the beginning of the payload
	inner         byte // the protocol of the payload, behind an IPv6 fragment header
	options       bool // IPv4
	length        int  // of the packet, by its header
	head          int  // offset of the payload
	hopLimit      byte
	jumbo, cutOff bool
	fragmentCut   bool // the fragment header is truncated or missing
}

// parseHeaders returns false if the version or header length is invalid. cutOff: the fixed header is truncated.
func parseHeaders(p []byte, version int) (h headers, ok bool) {
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
func (b *tagTable) receives(f []byte) (holder, Counter) {
	if len(f) < 14 {
		return noHolder, rxTruncated
	}
	if t := be16(f, 12); t == 0x8100 || t == 0x88a8 {
		return b.receivesTagged(f)
	}
	part := f[0] == partSecret[0]
	w, c := b.fromWire(f, part || bytes.Equal(f[:6], b.link[:]))
	if w != noHolder && part && !bytes.Equal(f[2:6], partMAC(int(w), 0)[2:]) {
		return noHolder, rxStalePart
	}
	return w, c
}

// receivesTagged is receives for a frame with a tag of 802.1Q. VLAN 0 is the untagged network.
func (b *tagTable) receivesTagged(f []byte) (holder, Counter) {
	if len(f) < 18 {
		return noHolder, rxTruncated
	}
	if be16(f, 14)&0xfff != 0 {
		return noHolder, rxVLAN
	}
	if t := be16(f, 16); t == 0x8100 || t == 0x88a8 {
		switch {
		case len(f) < 20:
			return noHolder, rxTruncated
		case be16(f, 18)&0xfff != 0:
			return noHolder, rxVLAN
		}
		return noHolder, rxTaggedTwice
	}
	return b.fromWire(slices.Concat(f[:12], f[16:]), bytes.Equal(f[:6], b.link[:]))
}

// fromWire is receivesWhole for frames that have come in by the uplink: no other host can have some sources.
func (b *tagTable) fromWire(f []byte, ours bool) (holder, Counter) {
	w, c := b.receivesWhole(f, ours)
	if w == noHolder {
		return w, c
	}
	version := map[int]int{0x0800: 4, 0x86dd: 6}[be16(f, 12)]
	martian := be16(f, 12) == 0x88b5 && bytes.Equal(f[6:12], b.link[:])
	if version != 0 {
		h, _ := parseHeaders(f[14:], version)
		src := h.src
		own := slices.Contains([]netip.Addr{shared, shared6, elsewhere, elsewhere6, subnetBroadcast}, src) || b.addrHolder(src) != noHolder
		martian = own || src.IsLoopback() || src.IsMulticast() || src.Is4In6() || src == netip.MustParseAddr("255.255.255.255") ||
			src == netip.IPv4Unspecified() || src == netip.IPv6Unspecified() && h.protocol != 58
	}
	if martian {
		return noHolder, rxMartian
	}
	return w, c
}

// receivesWhole is receives for frames that are not parts of super-frames. ours: the destination is this
// host's MAC address.
func (b *tagTable) receivesWhole(f []byte, ours bool) (holder, Counter) {
	p := f[14:]
	all := bytes.Equal(f[:6], bcast)
	switch t := be16(f, 12); {
	case t == 0x0800 && ours:
		return b.receivesIP(p, 4)
	case t == 0x86dd && ours:
		return b.receivesIP(p, 6)
	case t == 0x86dd && f[0] == 0x33 && f[1] == 0x33:
		return b.receivesMulticast6(f[:6], p)
	case t == 0x88b5 && ours:
		if len(p) < 12 {
			return noHolder, rxTruncated
		}
		if w := b.messageHolder(binary.BigEndian.Uint32(p[4:])); p[0] == 1 && w != noHolder {
			return w.resultOf(12+be16(p, 2) <= len(p))
		}
	case t == 0x0806 && (ours || all):
		if len(p) < 28 {
			return noHolder, rxTruncated
		}
		if w := b.addrHolder(netip.AddrFrom4([4]byte(p[24:28]))); isARP(p) && w != noHolder {
			return w, rxPort
		}
	}
	return noHolder, rxPass
}

func isARP(p []byte) bool { return bytes.Equal(p[:6], []byte{0, 1, 8, 0, 6, 4}) }

// resultOf is the result for a frame that has an owner.
func (w holder) resultOf(lengthsValid bool) (holder, Counter) {
	if !lengthsValid {
		return noHolder, rxBadLength
	}
	return w, rxPort
}

// receivesIP is receives for an IP packet to this host.
func (b *tagTable) receivesIP(p []byte, version int) (holder, Counter) {
	h, ok := parseHeaders(p, version)
	if h.cutOff {
		return noHolder, rxTruncated
	}
	if !ok {
		return noHolder, rxPass
	}
	lengthsValid := h.length >= h.head && h.length <= len(p) && !h.jumbo
	if h.fragment && version == 6 {
		lengthsValid = h.length <= len(p) && !h.jumbo // its owner checks what follows the fixed header
	}
	truncated := false
	if !h.fragment && (h.protocol == 17 || h.protocol == 6) {
		_, port, cut, badLength := transport(p, h)
		truncated = cut
		if w := b.portHolder(h.protocol == 6, h.dst, port); !cut && w != noHolder {
			return w.resultOf(lengthsValid && !badLength)
		}
	}
	if !h.fragment && (h.protocol == 1 && version == 4 || h.protocol == 58 && version == 6) {
		if w := b.icmpHolder(p, h, version); w != noHolder {
			return w.resultOf(lengthsValid)
		}
	}
	if w := b.addrHolder(h.dst); w != noHolder {
		return w.resultOf(lengthsValid)
	}
	if truncated {
		return noHolder, rxTruncated
	}
	if h.fragment && version == 4 && h.first && (h.inner == 6 || h.inner == 17) && len(p) >= h.head+8 &&
		b.portHolder(h.inner == 6, h.dst, uint16(be16(p, h.head+2))) != noHolder {
		return noHolder, rxFragment
	}
	if version == 6 {
		return noHolder, b.withoutOwner(p[40:], h.protocol, h.dst, false, 0)
	}
	return noHolder, rxPass
}

// withoutOwner is the result for an IPv6 packet without an owner. rest is what follows depth extension headers, next
// its protocol.
func (b *tagTable) withoutOwner(rest []byte, next byte, dst netip.Addr, fragment bool, depth int) Counter {
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
		case depth == 0 || b.portHolder(next == 6, dst, uint16(be16(rest, 2))) == noHolder:
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
	return b.withoutOwner(rest[min(length, len(rest)):], rest[0], dst, fragment, depth+1)
}

// icmpHolder is the holder of the port that an ICMP error quotes, or of the target of a solicitation.
func (b *tagTable) icmpHolder(p []byte, h headers, version int) holder {
	body := p[min(h.head, len(p)):max(min(h.head, len(p)), min(h.length, len(p)))]
	if version == 6 && len(body) >= 24 && body[0] == 135 {
		return b.addrHolder(netip.AddrFrom16([16]byte(body[8:24])))
	}
	if len(body) < 8 || version == 4 && body[0] != 3 && body[0] != 11 && body[0] != 12 || version == 6 && (body[0] < 1 || body[0] > 4) {
		return noHolder
	}
	quoted := body[8:]
	q, ok := parseHeaders(quoted, version)
	if !ok || q.cutOff || q.src != h.dst || !q.first || q.protocol != 17 && q.protocol != 6 || len(quoted) < q.head+8 {
		return noHolder
	}
	return b.portHolder(q.protocol == 6, h.dst, uint16(be16(quoted, q.head)))
}

// receivesMulticast6 is receives for IPv6 multicast, of which only solicitations have an owner.
func (b *tagTable) receivesMulticast6(link, p []byte) (holder, Counter) {
	h, ok := parseHeaders(p, 6)
	if h.cutOff {
		return noHolder, rxTruncated
	}
	dst := h.dst.As16()
	if !ok || h.protocol != 58 || h.length < 64 || !bytes.Equal(link[2:], dst[12:]) {
		return noHolder, rxPass
	}
	if len(p) < 64 {
		return noHolder, rxTruncated
	}
	target := netip.AddrFrom16([16]byte(p[48:64]))
	group, _ := solicitedNode(target)
	if w := b.addrHolder(target); p[40] == 135 && h.dst == group && w != noHolder {
		return w.resultOf(h.length <= len(p))
	}
	return noHolder, rxPass
}
