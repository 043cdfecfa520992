//go:build linux

package attack

import (
	"net/netip"

	"github.com/unet-go/unet/wire"
)

const (
	discard  = 9    // the port that attackers send to
	rdmaPort = 4791 // RoCEv2
)

var (
	broadcast  = wire.LinkAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	noLink     = wire.LinkAddr{}
	forgedLink = wire.LinkAddr{0x02, 0, 0, 0, 0, 0x66}

	// Solicited-node multicast of hostB6, and its MAC address.
	solicitB6     = netip.MustParseAddr("ff02::1:ff00:2")
	solicitB6Link = wire.LinkAddr{0x33, 0x33, 0xff, 0, 0, 2}
	allNodes      = netip.MustParseAddr("ff02::1")
	allNodesLink  = wire.LinkAddr{0x33, 0x33, 0, 0, 0, 1}
)

// kind is a frame that the attacker's tags permit, and how long its headers are.
type kind struct {
	name    string
	frame   []byte
	headers int // bytes that the mux has to read
	source  int // offset of what names the sender: port, tag or address
}

// permittedFrames is a frame of every kind, from each of the attacker's tags.
func permittedFrames(m []byte) []kind {
	shared, shared6 := netAddr(hostA, hostB), netAddr(hostA6, hostB6)
	own, own6 := netAddr(attackerAddr, hostB), netAddr(attackerAddr6, hostB6)
	to := func(etherType int, rest ...[]byte) []byte { return ether(linkB, linkA, etherType, rest...) }
	return []kind{
		{"UDP", to(typeIPv4, shared.v4(protocolUDP, udp(attackerPort, discard, m))), atTransport4 + 8, atTransport4},
		{"TCP", to(typeIPv4, shared.v4(protocolTCP, tcp(attackerPort, discard, m))), atTransport4 + 20, atTransport4},
		{"UDP of a block", to(typeIPv4, shared.v4(protocolUDP, udp(attackerBlock+63, discard, m))), atTransport4 + 8, atTransport4},
		{"TCP of a block", to(typeIPv4, shared.v4(protocolTCP, tcp(attackerBlock, discard, m))), atTransport4 + 20, atTransport4},
		{"IPv4", to(typeIPv4, own.v4(protocolTCP, tcp(neighbourPort, discard, m))), atTransport4 + 20, atNetwork + 12},
		{"UDP of an owned address", to(typeIPv4, own.v4(protocolUDP, udp(neighbourPort, discard, m))), atTransport4 + 8, atNetwork + 12},
		{"UDP over IPv6", to(typeIPv6, shared6.v6(protocolUDP, udp(attackerPort, discard, m))), atTransport6 + 8, atTransport6},
		{"TCP over IPv6", to(typeIPv6, shared6.v6(protocolTCP, tcp(attackerPort, discard, m))), atTransport6 + 20, atTransport6},
		{"IPv6", to(typeIPv6, own6.v6(protocolTCP, tcp(discard, discard, m))), atTransport6 + 20, atNetwork + 8},
		{"neighbour solicitation", ether(solicitB6Link, linkA, typeIPv6,
			discovery(attackerAddr6, solicitB6, neighbourSolicit, 0, hostB6, linkOption(1, linkA)), m), atTransport6 + 32, atNetwork + 8},
		{"neighbour advertisement", to(typeIPv6,
			discovery(attackerAddr6, hostB6, neighbourAdvert, 0x20, attackerAddr6, linkOption(2, linkA)), m), atTransport6 + 32, atTransport6 + 8},
		{"ARP request", ether(broadcast, linkA, typeARP, arp(arpRequest, linkA, attackerAddr, noLink, hostB), m), atNetwork + 28, atNetwork + 14},
		{"ARP reply", to(typeARP, arp(arpReply, linkA, attackerAddr, linkB, hostB), m), atNetwork + 28, atNetwork + 14},
		{"message", to(typeMessage, message(discard, attackerTag, m)), atNetwork + 12, atNetwork + 8},
	}
}

// path is a pair of addresses.
type path struct{ src, dst netip.Addr }

func netAddr(src, dst netip.Addr) path { return path{src, dst} }

func (p path) v4(protocol byte, rest ...[]byte) []byte { return ipv4(p.src, p.dst, protocol, rest...) }
func (p path) v6(next byte, rest ...[]byte) []byte     { return ipv6(p.src, p.dst, next, rest...) }

// Sources that have no owner, or another one.
var (
	foreignAddrs4 = []netip.Addr{
		hostB, neighbourAddr, netip.MustParseAddr("10.0.0.61"), netip.MustParseAddr("192.0.2.1"), netip.IPv4Unspecified(),
		netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("10.0.0.255"), netip.MustParseAddr("224.0.0.1"),
	}
	foreignAddrs6 = []netip.Addr{
		hostB6, neighbourAddr6, netip.MustParseAddr("fd00::61"), netip.MustParseAddr("2001:db8::1"), netip.IPv6Unspecified(), netip.IPv6Loopback(),
		netip.MustParseAddr("fe80::ff:fe00:a"), allNodes, netip.MustParseAddr("::ffff:10.0.0.60"), netip.MustParseAddr("::10.0.0.60"),
	}
)

func forgedCases(attacker *attacker) []attackCase {
	to := func(etherType int, rest ...[]byte) []byte { return ether(linkB, linkA, etherType, rest...) }
	return []attackCase{
		{"permitted frames", "one of each kind from each tag, to show that the forged frames below are dropped only for what is forged in them", func(s *caseRun) {
			v := s.permitted()
			for _, k := range permittedFrames(v.mark()) {
				v.add(k.frame)
			}
			v.send(attacker)
			s.row.note("%d frames left the uplink", len(v.frames))
		}},
		{"source MAC address", "permitted frames of every kind from every MAC address that differs by a bit, from host B's, the broadcast and the zero address", func(s *caseRun) {
			v := s.forged("tx_forged_link")
			for _, k := range permittedFrames(v.mark()) {
				for bit := range 48 {
					v.add(edit(k.frame, 6+bit/8, k.frame[6+bit/8]^1<<(bit%8)))
				}
				for _, link := range []wire.LinkAddr{linkB, broadcast, noLink} {
					v.add(edit(k.frame, 6, link[:]...))
				}
			}
			v.send(attacker)
		}},
		{"source IPv4 address", "UDP, TCP, ICMP and other protocols from addresses of the neighbour, host B, nobody, and from the shared address itself", func(s *caseRun) {
			v := s.forged("tx_forged_addr", "tx_forged_tag")
			for _, src := range foreignAddrs4 {
				for _, protocol := range []byte{0, protocolICMP, 2, protocolTCP, protocolUDP, 4, 41, 47, 50, 132, 136, 255} {
					for _, port := range []int{attackerPort, attackerBlock + 1, neighbourPort} {
						v.add(to(typeIPv4, ipv4(src, hostB, protocol, transport(protocol, port, v.mark()))))
					}
				}
			}
			for protocol := range 256 { // all that has no ports is the kernel's alone
				if protocol != protocolTCP && protocol != protocolUDP {
					v.add(to(typeIPv4, ipv4(hostA, hostB, byte(protocol), udp(attackerPort, discard, v.mark()))))
				}
			}
			v.send(attacker)
		}},
		{"groups", "packets for one host or another group to multicast and broadcast MAC addresses, for groups and broadcast addresses to the MAC address of one host, broadcasts without their tag, groups as sources", func(s *caseRun) {
			v := s.forged("tx_forged_group", "tx_broadcast", "tx_forged_addr")
			group, subnet, all := netip.MustParseAddr("239.1.2.3"), netip.MustParseAddr("10.0.0.255"), netip.MustParseAddr("255.255.255.255")
			groupLink := wire.LinkAddr{1, 0, 0x5e, 1, 2, 3}
			for _, link := range []wire.LinkAddr{broadcast, groupLink, allNodesLink, solicitB6Link, {1, 0x80, 0xc2, 0, 0, 0}, {1}} {
				for _, src := range []netip.Addr{hostA, attackerAddr} {
					for _, dst := range []netip.Addr{hostB, neighbourAddr, netip.MustParseAddr("239.1.2.4"), netip.MustParseAddr("192.0.2.255")} {
						v.add(ether(link, linkA, typeIPv4, ipv4(src, dst, protocolUDP, udp(attackerPort, discard, v.mark()))))
					}
				}
				for _, dst := range []netip.Addr{hostB6, neighbourAddr6, netip.MustParseAddr("ff02::2")} {
					v.add(ether(link, linkA, typeIPv6, ipv6(hostA6, dst, protocolUDP, udp(attackerPort, discard, v.mark()))))
				}
			}
			for _, dst := range []netip.Addr{subnet, all, group} { // in frames to one host, which accepts them
				for _, src := range []netip.Addr{hostA, attackerAddr} {
					v.add(ether(linkB, linkA, typeIPv4, ipv4(src, dst, protocolUDP, udp(attackerPort, discard, v.mark()))))
					v.add(ether(linkB, linkA, typeIPv4, ipv4(src, dst, protocolTCP, transport(protocolTCP, attackerPort, v.mark()))))
				}
			}
			v.add(ether(linkB, linkA, typeIPv6, ipv6(hostA6, allNodes, protocolUDP, udp(attackerPort, discard, v.mark()))))
			for _, dst := range []netip.Addr{subnet, all} {
				v.add(ether(broadcast, linkA, typeIPv4, ipv4(hostA, dst, protocolUDP, udp(attackerPort, 68, v.mark()))))
				v.add(ether(groupLink, linkA, typeIPv4, ipv4(attackerAddr, dst, protocolUDP, udp(attackerPort, discard, v.mark()))))
			}
			v.add(ether(groupLink, linkA, typeIPv4, ipv4(group, group, protocolUDP, udp(attackerPort, discard, v.mark()))))
			v.add(ether(allNodesLink, linkA, typeIPv6, ipv6(allNodes, allNodes, protocolUDP, udp(attackerPort, discard, v.mark()))))
			v.send(attacker)
		}},
		{"source IPv6 address", "the same for IPv6, with unspecified, loopback, link-local, multicast and IPv4-mapped sources", func(s *caseRun) {
			v := s.forged("tx_forged_addr", "tx_forged_tag", "tx_bad_header", "tx_forged_nd", "tx_forged_quote")
			for _, src := range foreignAddrs6 {
				for _, next := range []byte{protocolTCP, protocolUDP, 4, 41, 47, 50, protocolICMPv6, 59, 89, 132, 136} {
					for _, port := range []int{attackerPort, neighbourPort} {
						v.add(to(typeIPv6, ipv6(src, hostB6, next, transport(next, port, v.mark()))))
					}
				}
			}
			for next := range 256 {
				if next != protocolTCP && next != protocolUDP {
					v.add(to(typeIPv6, ipv6(hostA6, hostB6, byte(next), udp(attackerPort, discard, v.mark()))))
				}
			}
			v.send(attacker)
		}},
		{"RDMA device", "datagrams to port 4791 from ports, a block and the address of others, to the wire, the neighbour and itself: a receiver takes them as the RDMA device's of that address", func(s *caseRun) {
			v := s.forged("tx_forged_rdma")
			for _, port := range []int{attackerPort, attackerBlock, attackerBlock + 63} {
				v.add(to(typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(port, rdmaPort, v.mark()))))
				for _, dst := range []netip.Addr{hostA, neighbourAddr, attackerAddr} {
					v.add(ether(linkA, linkA, typeIPv4, ipv4(hostA, dst, protocolUDP, udp(port, rdmaPort, v.mark()))))
				}
			}
			v.add(to(typeIPv6, ipv6(hostA6, hostB6, protocolUDP, udp(attackerPort, rdmaPort, v.mark()))))
			for _, dst := range []netip.Addr{hostA6, neighbourAddr6, attackerAddr6} {
				v.add(ether(linkA, linkA, typeIPv6, ipv6(hostA6, dst, protocolUDP, udp(attackerPort, rdmaPort, v.mark()))))
			}
			v.send(attacker)
			v = s.permitted() // the attacker itself is the device of its own address
			v.add(to(typeIPv4, ipv4(attackerAddr, hostB, protocolUDP, udp(discard, rdmaPort, v.mark()))),
				to(typeIPv6, ipv6(attackerAddr6, hostB6, protocolUDP, udp(discard, rdmaPort, v.mark()))))
			v.send(attacker)
		}},
		{"source port", "all UDP and TCP ports of the shared addresses that are not the attacker's: the neighbour's, the kernel's, nobody's", func(s *caseRun) {
			own, block := uint64(attackerPort), [2]uint64{attackerBlock, attackerBlock + 63}
			legalPorts := [][2]uint64{{own, own}, block}
			for _, protocol := range []byte{protocolUDP, protocolTCP} {
				v := s.forged("tx_forged_addr", "tx_forged_tag")
				v.sweep(attacker, to(typeIPv4, ipv4(hostA, hostB, protocol, transport(protocol, 0, v.mark()))), atTransport4, 2, 0, 0xffff, legalPorts...)
				v = s.forged("tx_forged_addr", "tx_forged_tag")
				v.sweep(attacker, to(typeIPv6, ipv6(hostA6, hostB6, protocol, transport(protocol, 0, v.mark()))), atTransport6, 2, 0, 0xffff, legalPorts[0])
			}
		}},
		{"a port of the other protocol", "the attacker's UDP port as UDP-Lite, SCTP and DCCP, and the neighbour's TCP port as UDP and back", func(s *caseRun) {
			v := s.forged("tx_forged_addr", "tx_forged_tag")
			for _, protocol := range []byte{33, 132, 136} {
				v.add(to(typeIPv4, ipv4(hostA, hostB, protocol, udp(attackerPort, discard, v.mark()))),
					to(typeIPv6, ipv6(hostA6, hostB6, protocol, udp(attackerPort, discard, v.mark()))))
			}
			v.add(to(typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(neighbourPort, discard, v.mark()))),
				to(typeIPv4, ipv4(hostA, hostB, protocolTCP, tcp(neighbourPort, discard, v.mark()))),
				to(typeIPv6, ipv6(hostA6, hostB6, protocolTCP, tcp(neighbourPort, discard, v.mark()))))
			v.send(attacker)
		}},
		{"message tag", "messages from the neighbour's tag, from tag 0, from tags that differ by a bit, and 4096 tags that the policy would give", func(s *caseRun) {
			v := s.forged("tx_forged_tag")
			for bit := range 32 {
				v.add(to(typeMessage, message(peerTag, attackerTag^1<<bit, v.mark())))
			}
			for _, tag := range []uint32{0, neighbourTag, peerTag, ^uint32(0)} {
				v.add(to(typeMessage, message(peerTag, tag, v.mark())))
			}
			v.send(attacker)
			v = s.forged("tx_forged_tag")
			v.sweep(attacker, to(typeMessage, message(discard, 0, v.mark())), atNetwork+8, 4, attackerTag, attackerTag+0xfff, [2]uint64{attackerTag, attackerTag})
		}},
		{"ARP", "replies, requests, gratuitous ARP and probes for the kernel's, host B's and the neighbour's address; own ones with another MAC address; RARP", func(s *caseRun) {
			v := s.forged("tx_forged_arp", "tx_bad_header")
			forgeARP(v)
			v.send(attacker)
		}},
		{"neighbour discovery", "advertisements and solicitations for others, with other MAC addresses, from other addresses; router advertisements, redirects", func(s *caseRun) {
			v := s.forged("tx_forged_nd", "tx_forged_addr", "tx_bad_header")
			forgeND(v)
			v.send(attacker)
		}},
		{"infrastructure", "DHCP offers, RIP, IGMP and MLD queries, VRRP, OSPF and GRE from owned addresses", func(s *caseRun) {
			v := s.forged("tx_infrastructure")
			for _, link := range []wire.LinkAddr{linkB, broadcast} {
				for _, ports := range [][2]int{{67, 68}, {neighbourPort, 68}, {547, 546}, {neighbourPort, 546}, {520, 520}, {521, 521}} {
					v.add(ether(link, linkA, typeIPv4, ipv4(attackerAddr, hostB, protocolUDP, udp(ports[0], ports[1], v.mark()))),
						ether(link, linkA, typeIPv6, ipv6(attackerAddr6, hostB6, protocolUDP, udp(ports[0], ports[1], v.mark()))))
				}
				for _, protocol := range []byte{2, 47, 88, 89, 103, 112} { // IGMP, GRE, EIGRP, OSPF, PIM, VRRP
					v.add(ether(link, linkA, typeIPv4, ipv4(attackerAddr, hostB, protocol, []byte{0x11, 0, 0, 0, 0, 0, 0, 0}, v.mark())),
						ether(link, linkA, typeIPv6, ipv6(attackerAddr6, hostB6, protocol, []byte{0x11, 0, 0, 0, 0, 0, 0, 0}, v.mark())))
				}
			}
			v.add(to(typeIPv6, ipv6(attackerAddr6, allNodes, protocolICMPv6, icmp6(attackerAddr6, allNodes, 130, 0, make([]byte, 20), v.mark()))))
			v.send(attacker)
		}},
		{"to this host", "frames to the uplink's own MAC address for the kernel's loopback addresses, and for tags that nobody holds: the kernel must not see them", func(s *caseRun) {
			v := s.forged("tx_no_owner")
			home := func(etherType int, rest ...[]byte) []byte { return ether(linkA, linkA, etherType, rest...) }
			v.add(
				home(typeIPv4, ipv4(attackerAddr, loopback, protocolUDP, udp(discard, kernelPort, v.mark()))),
				home(typeIPv4, ipv4(attackerAddr, loopback, protocolTCP, tcp(discard, kernelPort, v.mark()))),
				home(typeIPv4, ipv4(attackerAddr, loopback, protocolICMP, []byte{8, 0, 0, 0, 0, 1, 0, 1}, v.mark())),
				home(typeIPv4, ipv4(hostA, loopback, protocolUDP, udp(attackerPort, kernelPort, v.mark()))),
				home(typeIPv6, ipv6(attackerAddr6, netip.IPv6Loopback(), protocolUDP, udp(discard, kernelPort, v.mark()))),
				home(typeMessage, message(nobodysPort, attackerTag, v.mark())))
			v.send(attacker)
		}},
	}
}

// loopback is an address of the kernel's that no endpoint reaches.
var loopback = netip.MustParseAddr("127.0.0.1")

// transport is a header for any protocol with ports.
func transport(protocol byte, port int, payload []byte) []byte {
	if protocol == protocolTCP {
		return tcp(port, discard, payload)
	}
	return udp(port, discard, payload)
}

// forgeARP adds ARP that its sender may not send.
func forgeARP(v *batch) {
	for _, target := range []wire.LinkAddr{linkB, broadcast, linkA} {
		packet := func(op int, senderLink wire.LinkAddr, sender netip.Addr, addr netip.Addr) {
			v.add(ether(target, linkA, typeARP, arp(op, senderLink, sender, noLink, addr), v.mark()))
		}
		for _, addr := range []netip.Addr{hostA, hostB, neighbourAddr, netip.MustParseAddr("10.0.0.61"), netip.MustParseAddr("255.255.255.255")} {
			packet(arpReply, linkA, addr, hostB)                     // claims the address
			packet(arpRequest, linkA, addr, hostB)                   // a request
			packet(arpRequest, linkA, addr, addr)                    // gratuitous
			packet(arpReply, linkA, addr, addr)                      //
			packet(arpRequest, linkA, netip.IPv4Unspecified(), addr) // a probe (RFC 5227)
			packet(arpReply, linkA, netip.IPv4Unspecified(), addr)   //
		}
		for _, link := range []wire.LinkAddr{linkB, forgedLink, broadcast, noLink} {
			packet(arpReply, link, attackerAddr, hostB)
			packet(arpRequest, link, attackerAddr, hostB)
		}
		packet(arpReply, linkA, netip.IPv4Unspecified(), attackerAddr)
		// RARP and InARP have other operations for the same.
		for op := range 16 {
			packet(op, linkA, neighbourAddr, hostB)
		}
	}
	good := ether(linkB, linkA, typeARP, arp(arpReply, linkA, attackerAddr, linkB, hostB), v.mark())
	for _, at := range []int{0, 1, 2, 3, 4, 5} { // hardware and protocol types and lengths
		v.add(edit(good, atNetwork+at, 0x5a))
	}
}

// forgeND adds neighbour discovery that its sender may not send.
func forgeND(v *batch) {
	nd := func(dst netip.Addr, link wire.LinkAddr, packet []byte) {
		v.add(ether(link, linkA, typeIPv6, packet, v.mark()))
	}
	for _, target := range []netip.Addr{hostA6, hostB6, neighbourAddr6, netip.MustParseAddr("fd00::61"), netip.MustParseAddr("fe80::1")} {
		for _, src := range []netip.Addr{attackerAddr6, hostA6, target, netip.IPv6Unspecified()} {
			nd(hostB6, linkB, discovery(src, hostB6, neighbourAdvert, 0x60, target, linkOption(2, linkA)))
			nd(hostB6, linkB, discovery(src, hostB6, neighbourAdvert, 0x20, target))
			nd(allNodes, allNodesLink, discovery(src, allNodes, neighbourAdvert, 0x20, target, linkOption(2, forgedLink)))
			if src != attackerAddr6 {
				nd(solicitB6, solicitB6Link, discovery(src, solicitB6, neighbourSolicit, 0, target, linkOption(1, linkA)))
				nd(solicitB6, solicitB6Link, discovery(src, solicitB6, neighbourSolicit, 0, target))
			}
		}
	}
	for _, link := range []wire.LinkAddr{linkB, forgedLink, noLink, broadcast} {
		nd(hostB6, linkB, discovery(attackerAddr6, hostB6, neighbourAdvert, 0x60, attackerAddr6, linkOption(2, link)))
		nd(solicitB6, solicitB6Link, discovery(attackerAddr6, solicitB6, neighbourSolicit, 0, hostB6, linkOption(1, link)))
		// A second option behind a valid one, one behind another option, and one of the wrong type.
		nd(hostB6, linkB, discovery(attackerAddr6, hostB6, neighbourAdvert, 0x60, attackerAddr6, linkOption(2, linkA), linkOption(2, link)))
		nd(hostB6, linkB, discovery(attackerAddr6, hostB6, neighbourAdvert, 0x60, attackerAddr6, []byte{14, 1, 0, 0, 0, 0, 0, 0}, linkOption(2, link)))
		nd(hostB6, linkB, discovery(attackerAddr6, hostB6, neighbourAdvert, 0x60, attackerAddr6, linkOption(1, link)))
		nd(solicitB6, solicitB6Link, discovery(attackerAddr6, solicitB6, neighbourSolicit, 0, hostB6, linkOption(1, linkA), linkOption(1, link)))
	}
	// As a router.
	nd(hostB6, linkB, discovery(attackerAddr6, hostB6, neighbourAdvert, 0xe0, attackerAddr6, linkOption(2, linkA)))
	for _, src := range []netip.Addr{attackerAddr6, hostA6, netip.MustParseAddr("fe80::1")} {
		prefix := join([]byte{3, 4, 64, 0xc0}, be32(1800), be32(1800), be32(0), attackerAddr6.AsSlice())
		advert := icmp6(src, allNodes, routerAdvertisement, 0, []byte{64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}, linkOption(1, linkA), prefix)
		nd(allNodes, allNodesLink, ipv6(src, allNodes, protocolICMPv6, advert))
		move := icmp6(src, hostB6, redirect, 0, make([]byte, 4), attackerAddr6.AsSlice(), hostA6.AsSlice())
		nd(hostB6, linkB, ipv6(src, hostB6, protocolICMPv6, move))
		ask := icmp6(src, allNodes, routerSolicitation, 0, make([]byte, 4), linkOption(1, linkA))
		nd(allNodes, allNodesLink, ipv6(src, allNodes, protocolICMPv6, ask))
	}
}

// drops are all counters of frames of endpoints that the mux drops because of their contents.
var drops = []string{"tx_truncated", "tx_bad_length", "tx_bad_header", "tx_bad_ethertype", "tx_forged_addr", "tx_forged_tag", "tx_forged_arp", "tx_forged_nd", "tx_forged_quote"}

func malformedCases(attacker *attacker) []attackCase {
	to := func(etherType int, rest ...[]byte) []byte { return ether(linkB, linkA, etherType, rest...) }
	return []attackCase{
		{"frames of 0 to 13 bytes", "the first bytes of permitted frames, less than an Ethernet header", func(s *caseRun) {
			v := s.forged(inKernel, "tx_truncated")
			for _, k := range permittedFrames(v.mark()) {
				for n := range 14 {
					v.add(k.frame[:n])
				}
			}
			v.send(attacker)
		}},
		{"headers that end early", "permitted frames of every kind, cut at every length before the end of their headers", func(s *caseRun) {
			v := s.forged("tx_truncated", "tx_bad_length")
			for _, k := range permittedFrames(v.mark()) {
				for n := 14; n < k.headers; n++ {
					v.add(k.frame[:n])
				}
			}
			v.send(attacker)
		}},
		{"packets that end early", "permitted IP packets and messages, cut at every length between their headers and their end", func(s *caseRun) {
			v := s.forged("tx_bad_length")
			for _, k := range permittedFrames(v.mark()) {
				etherType := int(k.frame[atEtherType])<<8 | int(k.frame[atEtherType+1])
				if etherType == typeARP || k.frame[atNextHeader] == protocolICMPv6 && etherType == typeIPv6 {
					continue // the mark is padding there
				}
				for n := k.headers; n < len(k.frame); n++ {
					v.add(k.frame[:n])
				}
			}
			v.send(attacker)
		}},
		{"longer than the uplink's MTU", "frames of 1,515 to 2,048 bytes in one descriptor and of up to 32 KiB in many", func(s *caseRun) {
			v := s.forged("tx_oversize")
			m := v.mark()
			long := func(total int) []byte {
				return to(typeIPv4, ipv4(attackerAddr, hostB, protocolTCP, tcp(discard, discard, m, make([]byte, total-atTransport4-20-len(m)))))
			}
			for n := 1515; n <= 2048; n += 13 {
				v.add(long(n))
			}
			for n := 2; n <= 16; n++ {
				var cuts []int
				for i := 1; i < n; i++ {
					cuts = append(cuts, 2048*i)
				}
				v.addCut(long(2048*n), cuts...)
			}
			v.send(attacker)
		}},
		{"as long as the uplink's MTU", "frames of exactly 1,514 bytes, in one descriptor and in two", func(s *caseRun) {
			v := s.permitted()
			m := v.mark()
			frame := to(typeIPv4, ipv4(attackerAddr, hostB, protocolTCP, tcp(discard, discard, m, make([]byte, 1500-40-len(m)))))
			v.add(frame)
			v.addCut(frame, 700)
			v.send(attacker)
		}},
		{"VLANs", "permitted frames behind one to six VLAN tags of every EtherType that means one", func(s *caseRun) {
			v := s.forged("tx_bad_ethertype")
			for _, k := range permittedFrames(v.mark()) {
				for _, outer := range []int{typeVLAN, 0x88a8, 0x9100, 0x9200, 0x9300} {
					tags := []byte{}
					for range 6 {
						tags = join(be16(outer), be16(100), tags)
						v.add(join(k.frame[:atEtherType], tags, k.frame[atEtherType:]))
					}
				}
			}
			v.send(attacker)
		}},
		{"every EtherType", "all 65,536, over a permitted IPv4 packet", func(s *caseRun) {
			v := s.forged("tx_bad_ethertype", "tx_bad_header", "tx_bad_length", "tx_forged_arp")
			frame := to(typeIPv4, ipv4(attackerAddr, hostB, protocolTCP, tcp(discard, discard, v.mark())))
			v.sweep(attacker, frame, atEtherType, 2, 0, 0xffff, [2]uint64{typeIPv4, typeIPv4})
		}},
		{"every protocol", "all IPv4 protocols and IPv6 next headers from an owned address, over zeros behind one byte: no length of UDP or TCP is true then, extension headers lead on, and the rest, ICMP of an unknown type too, is for the infrastructure", func(s *caseRun) {
			v := s.forged("tx_bad_length", "tx_truncated", "tx_infrastructure")
			// Where UDP has its length and TCP the length of its header, there are zeros.
			zeros := make([]byte, 20)
			zeros[0] = 255
			v.sweep(attacker, to(typeIPv4, ipv4(attackerAddr, hostB, 0, zeros, v.mark())), atProtocol, 1, 0, 255)
			v = s.forged("tx_bad_length", "tx_bad_header", "tx_forged_quote", "tx_infrastructure")
			v.sweep(attacker, to(typeIPv6, ipv6(attackerAddr6, hostB6, 0, zeros, v.mark())), atNextHeader, 1, 0, 255)
		}},
		{"wrong lengths of IPv4", "all 65,536 total lengths, on a packet with 40 bytes of padding", func(s *caseRun) {
			v := s.forged("tx_bad_length")
			packet := ipv4(hostA, hostB, protocolUDP, udp(attackerPort, discard, v.mark()))
			true4 := uint64(len(packet))
			v.sweep(attacker, to(typeIPv4, packet, make([]byte, 40)), atTotalLength, 2, 0, 0xffff, [2]uint64{true4, true4 + 40})
		}},
		{"wrong header lengths of IPv4", "versions and header lengths 0 to 255 on the first byte; behind any but the right one are the neighbour's ports", func(s *caseRun) {
			v := s.forged(drops...)
			neighbourPorts := []byte{}
			for range 6 { // for every header length this is at the end of the header, or the length is false
				neighbourPorts = join(neighbourPorts, be16(neighbourPort), be16(24), be16(24), be16(0))
			}
			packet := ipv4(hostA, hostB, protocolUDP, udp(attackerPort, discard, neighbourPorts, v.mark()))
			v.sweep(attacker, to(typeIPv4, packet), atNetwork, 1, 0, 255, [2]uint64{0x45, 0x45})
		}},
		{"wrong lengths of IPv6", "all 65,536 payload lengths, on a packet with 40 bytes of padding", func(s *caseRun) {
			v := s.forged("tx_bad_length")
			packet := ipv6(hostA6, hostB6, protocolUDP, udp(attackerPort, discard, v.mark()))
			true6 := uint64(len(packet) - 40)
			v.sweep(attacker, to(typeIPv6, packet, make([]byte, 40)), atPayload6, 2, 0, 0xffff, [2]uint64{true6, true6 + 40})
		}},
		{"IP versions", "all first bytes of an IPv6 packet", func(s *caseRun) {
			v := s.forged("tx_bad_header")
			packet := ipv6(hostA6, hostB6, protocolUDP, udp(attackerPort, discard, v.mark()))
			v.sweep(attacker, to(typeIPv6, packet), atNetwork, 1, 0, 255, [2]uint64{0x60, 0x6f})
		}},
		{"wrong lengths of UDP", "all 65,536 lengths over IPv4 and over IPv6: a datagram may be shorter than its packet, not longer", func(s *caseRun) {
			v := s.forged("tx_bad_length")
			datagram := udp(attackerPort, discard, v.mark())
			shorter := [2]uint64{8, uint64(len(datagram))}
			v.sweep(attacker, to(typeIPv4, ipv4(hostA, hostB, protocolUDP, datagram)), atTransport4+4, 2, 0, 0xffff, shorter)
			v = s.forged("tx_bad_length")
			v.sweep(attacker, to(typeIPv6, ipv6(hostA6, hostB6, protocolUDP, udp(attackerPort, discard, v.mark()))), atTransport6+4, 2, 0, 0xffff, shorter)
		}},
		{"wrong header lengths of TCP", "all data offsets, over IPv4 and over IPv6", func(s *caseRun) {
			v := s.forged("tx_bad_length", "tx_bad_header")
			ended := make([]byte, 40) // options of nothing, as long as they can be
			segment := tcp(attackerPort, discard, ended, v.mark())
			v.sweep(attacker, to(typeIPv4, ipv4(hostA, hostB, protocolTCP, segment)), atTransport4+12, 1, 0, 255, [2]uint64{0x50, 0xff})
			v = s.forged("tx_bad_length", "tx_bad_header")
			v.sweep(attacker, to(typeIPv6, ipv6(hostA6, hostB6, protocolTCP, tcp(attackerPort, discard, ended, v.mark()))), atTransport6+12, 1, 0, 255, [2]uint64{0x50, 0xff})
		}},
		{"wrong lengths and versions of messages", "all 65,536 lengths and all versions", func(s *caseRun) {
			v := s.forged("tx_bad_length")
			frame := to(typeMessage, message(discard, attackerTag, v.mark()))
			v.sweep(attacker, frame, atNetwork+2, 2, 0, 0xffff, [2]uint64{0, uint64(markLen)})
			v = s.forged("tx_bad_header")
			v.sweep(attacker, to(typeMessage, message(discard, attackerTag, v.mark())), atNetwork, 1, 0, 255, [2]uint64{1, 1})
		}},
	}
}
