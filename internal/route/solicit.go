package route

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/wire"
)

// Neighbour discovery (RFC 4861) as it stands in a frame without a VLAN tag or
// extension headers. Nobody sends it with them.
const (
	ndIPv6   = wire.EthernetHeaderLen
	ndNext   = ndIPv6 + 6
	ndHops   = ndIPv6 + 7
	ndSource = ndIPv6 + 8
	ndDest   = ndIPv6 + 24
	ndType   = ndIPv6 + 40
	ndCode   = ndType + 1
	ndTarget = ndType + 8
	ndEnd    = ndTarget + 16 // options follow

	ndSolicitation  = 135
	ndAdvertisement = 136
	ndHopLimit      = 255 // so that nothing comes from another link
	ndLinkOption    = 8   // bytes of the source link-layer address option
)

// groupOf is the MAC address by which the host with an address is asked for
// that is not known to be anywhere: all hosts, or those of the solicited-node
// group (RFC 2464, section 7).
func groupOf(a netip.Addr) wire.LinkAddr {
	if a.Is4() {
		return wire.Broadcast
	}
	b := a.As16()
	return wire.LinkAddr{0x33, 0x33, 0xff, b[13], b[14], b[15]}
}

// solicitedNode is the multicast address to which solicitations for a go (RFC
// 4291, section 2.7.1).
func solicitedNode(a netip.Addr) [16]byte {
	b := a.As16()
	return [16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]}
}

// solicitation is an ARP request, or a neighbour solicitation (RFC 4861, section
// 4.3), in its frame. If from has no address it is a probe, which claims none (RFC 5227,
// section 2.1.1, and RFC 4862, section 5.4.2).
func solicitation(a netip.Addr, to wire.LinkAddr, from sender) []byte {
	if a.Is4() {
		b := make([]byte, wire.EthernetHeaderLen+wire.ARPLen)
		wire.PutEthernet(b, to, from.link, wire.EtherTypeARP)
		fields := wire.ARPFields{Op: wire.ARPRequest, SenderLink: from.link, TargetAddr: a.As4()}
		if from.addr.Is4() {
			fields.SenderAddr = from.addr.As4()
		}
		wire.PutARP(b[wire.EthernetHeaderLen:], fields)
		return b
	}
	b := make([]byte, ndEnd, ndEnd+ndLinkOption)
	target := a.As16()
	dst := target
	if to.IsGroup() {
		dst = solicitedNode(a)
	}
	if from.addr.Is6() {
		src := from.addr.As16()
		copy(b[ndSource:], src[:])
		b = append(append(b, 1, 1), from.link[:]...) // one unit of 8 bytes
	}
	wire.PutEthernet(b, to, from.link, wire.EtherTypeIPv6)
	b[ndIPv6] = 6 << 4
	length := byte(len(b) - ndType)
	b[ndIPv6+5], b[ndNext], b[ndHops] = length, unix.IPPROTO_ICMPV6, ndHopLimit
	copy(b[ndDest:], dst[:])
	b[ndType] = ndSolicitation
	copy(b[ndTarget:], target[:])
	pseudo := [8]byte{3: length, 7: unix.IPPROTO_ICMPV6} // after the addresses (RFC 8200, section 8.1)
	sum := wire.Sum(b[ndType:], wire.Sum(pseudo[:], wire.Sum(b[ndSource:ndType], 0)))
	binary.BigEndian.PutUint16(b[ndCode+1:], ^wire.Fold(sum))
	return b
}

// claimed is the address that the sender of a frame has, or is about to take: it speaks
// for it, or probes for it too.
func claimed(eth wire.Ethernet) (a netip.Addr, at wire.LinkAddr, ok bool) {
	switch eth.Type() {
	case wire.EtherTypeARP:
		return claimedByARP(eth)
	case wire.EtherTypeIPv6:
		return claimedByND(eth)
	}
	return a, at, false
}

func claimedByARP(eth wire.Ethernet) (a netip.Addr, at wire.LinkAddr, ok bool) {
	arp, err := wire.ParseARP(eth.Payload())
	if err != nil {
		return a, at, false
	}
	a = netip.AddrFrom4(arp.SenderAddr())
	if a.IsUnspecified() && arp.Op() == wire.ARPRequest {
		a = netip.AddrFrom4(arp.TargetAddr())
	}
	return a, arp.SenderLink(), true
}

// claimedByND does not look at the checksum: on a virtual link it may be half done, and a
// frame that was corrupted costs the claimant no more than another try.
func claimedByND(eth wire.Ethernet) (a netip.Addr, at wire.LinkAddr, ok bool) {
	if eth.HeaderLen() != ndIPv6 || len(eth) < ndEnd || eth[ndIPv6]>>4 != 6 || eth[ndNext] != unix.IPPROTO_ICMPV6 ||
		eth[ndHops] != ndHopLimit || eth[ndCode] != 0 || binary.BigEndian.Uint16(eth[ndIPv6+4:]) < ndEnd-ndType {
		return a, at, false
	}
	source := netip.AddrFrom16([16]byte(eth[ndSource:]))
	target := netip.AddrFrom16([16]byte(eth[ndTarget:]))
	switch {
	case eth[ndType] == ndAdvertisement, eth[ndType] == ndSolicitation && source.IsUnspecified():
		return target, eth.Src(), true
	case eth[ndType] == ndSolicitation: // for another, by who has this one
		return source, eth.Src(), true
	}
	return a, at, false
}
