package ipcheck

import (
	"net/netip"
	"slices"
)

const (
	solicitation  = 135
	advertisement = 136

	arpLen     = 28
	arpRequest = 1
	arpReply   = 2
)

// nd is a solicitation for the host's address, or something like it.
type nd struct {
	kind, code byte
	src, dst   netip.Addr // zero: the peer's, and the solicited-node address of the host's
	target     netip.Addr // zero: the host's
	flags      uint32
	options    []byte
	cut        int // bytes that are missing at the end
}

func (n nd) frames(edits ...edit) func(Peers) [][]byte {
	return one(func(p Peers) []byte {
		if n.kind == 0 {
			n.kind = solicitation
		}
		target := n.target
		if !target.IsValid() {
			target = p.Host.V6
		}
		if n.src.IsValid() {
			p.Peer.V6 = n.src
		}
		dst := n.dst
		if !dst.IsValid() {
			dst = solicitedNode(p.Host.V6)
		}
		body := append(target.AsSlice(), n.options...)
		message := p.icmp6(dst, n.kind, n.code, n.flags, body[:len(body)-n.cut])
		return p.v6(protoICMPv6, message, append([]edit{set(7, 255), destination(dst)}, edits...)...)
	})
}

// toHost is frames with the host's own address as the destination.
func (n nd) toHost() func(Peers) [][]byte {
	return func(p Peers) [][]byte {
		n.dst = p.Host.V6
		return n.frames()(p)
	}
}

// linkOption is an option with a MAC address.
func linkOption(kind byte, link ...byte) []byte { return append([]byte{kind, 1}, link...) }

// PeerLink is the MAC address of the peer in all tests.
var PeerLink = [6]byte{2, 0, 0, 0, 0, 0xb}

var (
	sourceLink  = linkOption(1, PeerLink[:]...)
	unspecified = netip.IPv6Unspecified()
)

const (
	solicited   = "advertisement 0x60"
	withoutLink = "advertisement 0x40 without link" // permitted for unicast (RFC 4861, section 7.2.4)

	// Announcement answers a probe. A host may announce its address without one, too.
	Announcement = "advertisement 0x20 to ff02::1"
)

// neighborChecks are the validations of RFC 4861, sections 7.1.1 and 7.1.2, and RFC 6980. The kernel answers a
// multicast solicitation without a MAC address if it knows the neighbour.
var neighborChecks = []Check{
	{Name: "nd.solicitation", RFC: "4861 7.2.4", Want: solicited, Frames: nd{options: sourceLink}.frames()},
	{Name: "nd.solicitation.unicast", RFC: "4861 7.2.4", Want: solicited, Linux: withoutLink, Frames: nd{options: sourceLink}.toHost()},
	{Name: "nd.solicitation.unicast.without-link", RFC: "4861 4.3", Want: solicited, Linux: withoutLink, Frames: nd{}.toHost()},
	{Name: "nd.solicitation.multicast.without-link", RFC: "4861 4.3 MUST be included", Want: None, Linux: solicited, Frames: nd{}.frames()},
	{Name: "nd.solicitation.hop-limit", RFC: "4861 7.1.1", Want: None, Frames: nd{options: sourceLink}.frames(set(7, 254))},
	{Name: "nd.solicitation.bad-checksum", RFC: "4861 7.1.1", Want: None, Frames: damage(nd{options: sourceLink}.frames(), 42, 0xde, 0xad)},
	{Name: "nd.solicitation.code", RFC: "4861 7.1.1", Want: None, Frames: nd{code: 1, options: sourceLink}.frames()},
	{Name: "nd.solicitation.short", RFC: "4861 7.1.1", Want: None, Frames: nd{cut: 1}.toHost()},
	{Name: "nd.solicitation.target-multicast", RFC: "4861 7.1.1", Want: None, Frames: nd{target: allNodes, options: sourceLink}.toHost()},
	{Name: "nd.solicitation.target-other", RFC: "4861 7.2.3", Want: None, Frames: nd{target: addr("fd00::123"), options: sourceLink}.toHost()},
	{Name: "nd.solicitation.option-length-0", RFC: "4861 7.1.1", Want: None, Frames: nd{options: []byte{1, 0, 2, 0, 0, 0, 0, 0xb}}.frames()},
	{Name: "nd.solicitation.option-too-long", RFC: "4861 7.1.1", Want: None, Frames: nd{options: linkOption(1, 2, 0, 0, 0, 0)}.toHost()},
	{Name: "nd.solicitation.option-unknown", RFC: "4861 7.1.1 MUST ignore", Want: solicited, Frames: nd{options: slices.Concat(linkOption(99, 0, 0, 0, 0, 0, 0), sourceLink)}.frames()},
	{Name: "nd.solicitation.reserved", RFC: "4861 7.1.1 MUST ignore", Want: solicited, Frames: nd{flags: 0xffffffff, options: sourceLink}.frames()},
	{Name: "nd.probe", RFC: "4862 5.4.3", Want: Announcement, Frames: nd{src: unspecified}.frames()},
	{Name: "nd.probe.unicast", RFC: "4861 7.1.1", Want: None, Frames: nd{src: unspecified}.toHost()},
	{Name: "nd.probe.allnodes", RFC: "4861 7.1.1", Want: None, Group: true, Frames: nd{src: unspecified, dst: allNodes}.frames()},
	{Name: "nd.probe.with-link", RFC: "4861 7.1.1", Want: None, Frames: nd{src: unspecified, options: sourceLink}.frames()},
	{Name: "nd.probe.with-link-0", RFC: "4861 7.1.1", Want: None, Frames: nd{src: unspecified, options: linkOption(1, 0, 0, 0, 0, 0, 0)}.frames()},
	{Name: "nd.solicitation.source-multicast", RFC: "4291 2.7", Want: None, Frames: nd{src: addr("ff02::9"), options: sourceLink}.frames()},
	{Name: "nd.solicitation.link-group", RFC: "1812 3.3.2", Want: None, Linux: solicited, Frames: nd{options: linkOption(1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)}.frames()},
	{Name: "nd.advertisement", RFC: "4861 7.2.5", Want: None, Frames: nd{kind: advertisement, target: addr("fd00::123"), flags: 0x60000000}.toHost()},
	{Name: "nd.solicitation.fragmented", RFC: "6980 5 MUST ignore", Want: None, Frames: func(p Peers) [][]byte {
		message := p.icmp6(p.Host.V6, solicitation, 0, 0, append(p.Host.V6.AsSlice(), sourceLink...))
		return [][]byte{
			p.v6(protoFragment, append(fragmentHeader(90, protoICMPv6, 0, true), message[:24]...), set(7, 255)),
			p.v6(protoFragment, append(fragmentHeader(90, protoICMPv6, 24, false), message[24:]...), set(7, 255)),
		}
	}},
}

// arp is a broadcast request of the peer for the host's address, changed by edits.
func arp(edits ...func(p *Peers, b []byte)) func(Peers) [][]byte {
	return one(func(p Peers) []byte {
		b := slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, arpRequest}, p.Peer.Link[:], p.Peer.V4.AsSlice(), make([]byte, 6), p.Host.V4.AsSlice())
		for _, e := range edits {
			e(&p, b)
		}
		return slices.Concat(broadcast[:], p.Peer.Link[:], []byte{8, 6}, b, make([]byte, 18))
	})
}

func field(at int, values ...byte) func(*Peers, []byte) {
	return func(_ *Peers, b []byte) { copy(b[at:], values) }
}

var arpChecks = []Check{
	{Name: "arp.request", RFC: "826", Want: "arp reply", Frames: arp()},
	{Name: "arp.request.target-link", RFC: "826", Want: "arp reply", Frames: arp(field(18, 1, 2, 3, 4, 5, 6))},
	{Name: "arp.probe", RFC: "5227 2.1.1", Want: "arp reply", Frames: arp(field(14, 0, 0, 0, 0))},
	{Name: "arp.hardware-type", RFC: "826", Want: None, Frames: arp(field(0, 0, 99))},
	{Name: "arp.protocol-type", RFC: "826", Want: None, Frames: arp(field(2, 0x86, 0xdd))},
	{Name: "arp.hardware-length", RFC: "826", Want: None, Frames: arp(field(4, 8))},
	{Name: "arp.protocol-length", RFC: "826", Want: None, Frames: arp(field(5, 16))},
	{Name: "arp.operation", RFC: "826", Want: None, Frames: arp(field(7, 9))},
	{Name: "arp.reply", RFC: "826", Want: None, Frames: arp(field(7, arpReply))},
	{Name: "arp.target-other", RFC: "826", Want: None, Frames: arp(field(24, 10, 0, 0, 123))},
	{Name: "arp.sender-broadcast", RFC: "1122 3.2.1.3", Want: None, Frames: arp(field(14, 255, 255, 255, 255))},
	{Name: "arp.sender-multicast", RFC: "1122 3.2.1.3", Want: None, Frames: arp(field(14, 224, 0, 0, 1))},
	{Name: "arp.sender-loopback", RFC: "1122 3.2.1.3", Want: None, Frames: arp(field(14, 127, 0, 0, 1))},
	{Name: "arp.sender-link-group", RFC: "1812 3.3.2", Want: None, Linux: "arp reply to ff:ff:ff:ff:ff:ff", Frames: arp(field(8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff))},
	{Name: "arp.short", RFC: "826", Want: None, Frames: func(p Peers) [][]byte {
		f := arp()(p)
		return [][]byte{f[0][:ethernetHeader+20]}
	}},
}
