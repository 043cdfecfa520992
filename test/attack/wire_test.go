//go:build linux

package attack

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// TestAttacksFromTheWire attacks a stack of ours by frames of host B: fragments, extension headers,
// neighbour discovery and ICMP errors (RFC 5722, 6274, 6980, 7112, 8200).
func TestAttacksFromTheWire(t *testing.T) {
	w := newWorldOn(t, netlab.Config{IPv6: true, LinkLocal: true}) // unetd resolves IPv6 neighbours
	v := startVictim(t, w)
	for _, c := range slices.Concat(v.fragmentCases(), v.headerCases(), v.martianCases()) {
		t.Run(c.name, func(t *testing.T) { w.runCase(t, c) })
	}
}

// Where forged frames come from. In IPv6 it is another subnet than host B's.
var (
	forgerAddr  = netip.MustParseAddr("10.0.0.99")
	forgerAddr6 = netip.MustParseAddr("fd00:0:0:99::1")
)

func toVictim(packet []byte) []byte {
	if packet[0]>>4 == 6 {
		return ether(linkA, linkB, typeIPv6, packet)
	}
	return ether(linkA, linkB, typeIPv4, packet)
}

const (
	moreFragments = 1
	headerFrag    = 44
	headerOptions = 60
)

// fragment is a fragment to the victim, with a valid header. offset is in bytes.
func fragment(src netip.Addr, id uint32, next byte, offset, more int, data ...[]byte) []byte {
	if src.Is6() {
		return toVictim(ipv6(src, victimAddr6, headerFrag, []byte{next, 0}, be16(offset|more), be32(id), join(data...)))
	}
	p := ipv4(src, victimAddr, next, data...)
	binary.BigEndian.PutUint16(p[4:], uint16(id))
	binary.BigEndian.PutUint16(p[6:], uint16(offset/8|more<<13))
	p[10], p[11] = 0, 0
	binary.BigEndian.PutUint16(p[10:], ^sum(p[:20]))
	return toVictim(p)
}

// datagram6 is a UDP datagram with a valid checksum.
func datagram6(src, dst netip.Addr, port int, payload []byte) []byte {
	d := udp(discard, port, payload)
	pseudo := join(src.AsSlice(), dst.AsSlice(), be32(uint32(len(d))), []byte{0, 0, 0, protocolUDP})
	binary.BigEndian.PutUint16(d[6:], ^sum(join(pseudo, d)))
	return d
}

func (v *victim) fragmentCases() []attackCase {
	n := lengthOf(5000, 200, 50)
	u := uint64(n)
	a, b := bytes.Repeat([]byte("a"), 1200), bytes.Repeat([]byte("b"), 1200)
	return []attackCase{
		{"fragments that overlap", "over IPv4 and IPv6, by 8 bytes and wholly with other bytes; then what completes the datagram", func(s *caseRun) {
			var frames [][]byte
			for i := range n {
				for _, src := range []netip.Addr{forgerAddr, forgerAddr6} {
					d := udp(discard, drainPort, make([]byte, 2392))
					frames = append(frames,
						fragment(src, uint32(i), protocolUDP, 0, moreFragments, d[:1200]), fragment(src, uint32(i), protocolUDP, 1192, moreFragments, b[:8], d[1200:2392]),
						fragment(src, uint32(i), protocolUDP, 1200, 0, d[1200:]),
						fragment(src, uint32(n+i), protocolUDP, 0, moreFragments, d[:1200]), fragment(src, uint32(n+i), protocolUDP, 8, moreFragments, b[:1192]),
						fragment(src, uint32(n+i), protocolUDP, 1200, 0, d[1200:]))
				}
			}
			v.sendAttack(s, map[string]uint64{"frag_overlap": 4 * u, "frag_refused": 4 * u, "sunk": 0}, frames...)
		}},
		{"irregular fragments", "tiny, empty, misaligned ones; beyond 65,535 bytes; without the UDP header; of TCP and ICMP that never end; with two ends; with contradictory ECN", func(s *caseRun) {
			var frames [][]byte
			marked := func(f []byte) []byte { // ECN of the traffic class
				f = edit(f, atNetwork+1, f[atNetwork+1]|3<<4)
				return f
			}
			for i := range uint32(n) {
				id := i << 8
				frames = append(frames,
					fragment(forgerAddr, id+1, protocolUDP, 0, moreFragments, a[:8]),              //
					fragment(forgerAddr6, id+2, protocolUDP, 8, 0),                                // empty
					fragment(forgerAddr, id+3, protocolUDP, 0, moreFragments, a[:100]),            // misaligned
					fragment(forgerAddr6, id+4, protocolUDP, 0, moreFragments, a[:100]),           // a parameter problem
					fragment(forgerAddr, id+5, protocolUDP, 65528, 0, a[:100]),                    // too long
					fragment(forgerAddr6, id+6, protocolUDP, 65528, 0, a[:100]),                   // a parameter problem
					fragment(forgerAddr6, id+7, headerOptions, 0, moreFragments, a[:8]),           // options that go on in the next fragment
					fragment(forgerAddr, id+8, protocolTCP, 0, moreFragments, a[:800]),            //
					fragment(forgerAddr6, id+9, protocolTCP, 0, moreFragments, a[:800]),           //
					fragment(forgerAddr6, id+10, protocolICMPv6, 0, moreFragments, a[:800]),       //
					fragment(forgerAddr6, id+11, protocolUDP, 800, 0, a[:100]),                    //
					fragment(forgerAddr6, id+11, protocolUDP, 1600, 0, a[:100]),                   // a second end
					fragment(forgerAddr6, id+12, protocolUDP, 800, moreFragments, a[:800]),        //
					marked(fragment(forgerAddr6, id+12, protocolUDP, 1600, moreFragments, a[:8])), // Congestion Experienced after Not-ECT
				)
			}
			v.sendAttack(s, map[string]uint64{"frag_empty": u, "frag_misaligned": u, "frag_too_long": u, "frag_header_chain": u, "ipv6_extension": 2 * u,
				"frag_wrong_end": u, "frag_wrong_ecn": u, "sunk": 0}, frames...)
		}},
		{"datagrams without an end", "of 200 fragments of 8 bytes each, and no last one", func(s *caseRun) {
			var frames [][]byte
			const datagrams = 20
			for id := range uint32(datagrams) {
				for i := range 200 {
					frames = append(frames, fragment(forgerAddr6, 1<<16+id, protocolUDP, 8*i, moreFragments, a[:8]))
				}
			}
			v.sendAttack(s, map[string]uint64{"frag_too_many": datagrams, "frag_refused": datagrams * (200 - 129), "sunk": 0}, frames...)
		}},
		{"flood of identifications", "first fragments of datagrams of which nothing more comes, each of another source or identification: what is held is bounded", func(s *caseRun) {
			many := lengthOf(200_000, 20_000, 3_000)
			var frames [][]byte
			for i := range many {
				id := uint32(i)
				src, src6 := forgerAddr.As4(), forgerAddr6.As16()
				src[2], src[3] = byte(i>>8), byte(i)|1
				binary.BigEndian.PutUint32(src6[4:], id)
				from, from6 := netip.AddrFrom4(src), netip.AddrFrom16(src6)
				if i%2 == 0 {
					from, from6 = forgerAddr, forgerAddr6
				}
				frames = append(frames, fragment(from, id, protocolUDP, 0, moreFragments, a), fragment(from6, id, protocolUDP, 0, moreFragments, a))
			}
			before, heap := v.counters(s), heapNow()
			v.sendAttack(s, map[string]uint64{"sunk": 0}, frames...)
			const others = 1000 // at most 256 are held, as many of earlier cases were; some identifications are of these
			if !testutil.Until(func() bool { return since(before, v.counters(s))["frag_evicted"] >= uint64(len(frames)-others) }) {
				s.Errorf("of %d datagrams %d were dropped for others", len(frames), since(before, v.counters(s))["frag_evicted"])
			}
			if grown := int64(heapNow()) - int64(heap); grown > 8<<20 {
				s.Errorf("the heap has grown by %d bytes", grown)
			}
		}},
	}
}

func (v *victim) martianCases() []attackCase {
	n := lengthOf(2000, 100, 50)
	return []attackCase{{"sources of this host", "datagrams and echo requests to the victim whose source is an address of its host, of it or of another endpoint, a loopback, group or broadcast address: none is answered, so no two services answer each other for ever", func(s *caseRun) {
		var frames [][]byte
		for range n {
			for _, src := range []netip.Addr{hostA, victimAddr, neighbourAddr, netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("239.1.2.3"),
				netip.MustParseAddr("10.0.0.255"), netip.MustParseAddr("255.255.255.255")} {
				frames = append(frames, toVictim(ipv4(src, victimAddr, protocolUDP, udp(victimPort, drainPort, []byte("martian")))),
					toVictim(ipv4(src, victimAddr, protocolUDP, udp(victimPort, victimPort, []byte("martian")))),
					toVictim(ipv4(src, victimAddr, protocolICMP, []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0})))
			}
			for _, src := range []netip.Addr{hostA6, victimAddr6, netip.IPv6Loopback(), netip.MustParseAddr("ff02::1"), netip.MustParseAddr("::ffff:10.0.0.2")} {
				frames = append(frames, toVictim(ipv6(src, victimAddr6, protocolUDP, datagram6(src, victimAddr6, drainPort, []byte("martian")))),
					toVictim(ipv6(src, victimAddr6, protocolICMPv6, icmp6(src, victimAddr6, 128, 0, make([]byte, 4)))))
			}
		}
		v.sendAttack(s, map[string]uint64{"rx_martian": uint64(len(frames)), "sunk": 0}, frames...)
	}}}
}

// heapNow is the memory in use after a garbage collection, in bytes.
func heapNow() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// options is an options header of 8 bytes with an option of that type, and what follows.
func options(next, kind byte) []byte { return []byte{next, 0, kind, 4, 0, 0, 0, 0} }

// chain is a packet with that number of destination option headers before a datagram.
func chain(headers int) []byte {
	var h []byte
	for i := range headers {
		next := byte(headerOptions)
		if i == headers-1 {
			next = protocolUDP
		}
		h = append(h, options(next, 1)...)
	}
	return toVictim(ipv6(forgerAddr6, victimAddr6, headerOptions, h, datagram6(forgerAddr6, victimAddr6, drainPort, []byte("chained"))))
}

func (v *victim) headerCases() []attackCase {
	n := lengthOf(2000, 100, 50)
	u := uint64(n)
	repeat := func(frames ...[]byte) (all [][]byte) {
		for range n {
			all = append(all, frames...)
		}
		return all
	}
	with := func(first byte, headers []byte) []byte {
		return toVictim(ipv6(forgerAddr6, victimAddr6, first, headers, datagram6(forgerAddr6, victimAddr6, drainPort, []byte("text"))))
	}
	const hopByHop, routing, noNext = 0, 43, 59
	nd := func(kind byte, hops byte, src netip.Addr, body ...[]byte) []byte {
		p := ipv6(src, victimAddr6, protocolICMPv6, icmp6(src, victimAddr6, kind, 0, body...))
		p[7] = hops
		return toVictim(p)
	}
	none := make([]byte, 4)
	router := netip.MustParseAddr("fe80::99")
	return []attackCase{
		{"extension-header chains", "of 1 to 40 headers, of hop-by-hop options in the wrong place and twice, of routing headers, unknown options and headers that exceed the packet: up to 8 are skipped", func(s *caseRun) {
			v.sendAttack(s, map[string]uint64{"sunk": 3 * u, "ipv6_extension": 4 * u},
				repeat(chain(1), chain(8), with(hopByHop, options(protocolUDP, 1)), chain(9), chain(15), chain(16), chain(40))...)
			v.sendAttack(s, map[string]uint64{"ipv6_extension": 7 * u, "ipv6_truncated": u, "sunk": u}, repeat(
				with(hopByHop, options(protocolUDP, 0x1e)), // unknown, to be skipped
				with(hopByHop, options(protocolUDP, 0x5e)), with(hopByHop, options(protocolUDP, 0x9e)), with(headerOptions, options(protocolUDP, 0xde)),
				with(hopByHop, join(options(hopByHop, 1), options(protocolUDP, 1))), with(headerOptions, join(options(hopByHop, 1), options(protocolUDP, 1))),
				with(routing, []byte{protocolUDP, 0, 0, 1, 0, 0, 0, 0}), with(headerOptions, []byte{protocolUDP, 0, 1, 40, 0, 0, 0, 0}),
				with(headerOptions, []byte{protocolUDP, 200, 1, 4, 0, 0, 0, 0}))...)
			v.sendAttack(s, map[string]uint64{"ipv6_protocol": 3 * u, "sunk": 0}, repeat(with(noNext, nil), with(51, options(protocolUDP, 1)), with(253, nil))...)
		}},
		{"redirects and router advertisements", "over IPv4 and IPv6, that nobody asked for: routes come from unetd", func(s *caseRun) {
			redirect4 := join([]byte{5, 1, 0, 0}, forgerAddr.AsSlice(), ipv4(victimAddr, hostB, protocolUDP, udp(victimPort, discard))[:28])
			binary.BigEndian.PutUint16(redirect4[2:], ^sum(redirect4))
			advert4 := join([]byte{9, 0, 0, 0, 1, 2, 255, 255}, forgerAddr.AsSlice(), be32(0))
			binary.BigEndian.PutUint16(advert4[2:], ^sum(advert4))
			v.sendAttack(s, map[string]uint64{"nd_ignored": 2 * u, "icmp_ignored": 2 * u}, repeat(
				nd(routerAdvertisement, 255, router, []byte{64, 0, 0xff, 0xff}, make([]byte, 8), linkOption(1, forgedLink)),
				nd(redirect, 255, router, none, forgerAddr6.AsSlice(), hostB6.AsSlice(), linkOption(2, forgedLink)),
				toVictim(ipv4(hostB, victimAddr, protocolICMP, redirect4)), toVictim(ipv4(forgerAddr, victimAddr, protocolICMP, advert4)))...)
		}},
		{"forged neighbour advertisements", "about host B and about the victim, with another MAC address, from afar and damaged", func(s *caseRun) {
			damaged := nd(neighbourAdvert, 255, hostB6, []byte{0x60, 0, 0, 0}, hostB6.AsSlice(), linkOption(2, forgedLink))
			damaged[len(damaged)-1] ^= 1
			v.sendAttack(s, map[string]uint64{"nd_not_ours": 2 * u, "nd_conflict": u, "nd_bogus": 3 * u, "icmp_checksum": u}, repeat(
				nd(neighbourAdvert, 255, hostB6, []byte{0x60, 0, 0, 0}, hostB6.AsSlice(), linkOption(2, forgedLink)),
				nd(neighbourAdvert, 255, forgerAddr6, []byte{0x20, 0, 0, 0}, hostB6.AsSlice(), linkOption(2, forgedLink)),
				nd(neighbourAdvert, 255, forgerAddr6, []byte{0x20, 0, 0, 0}, victimAddr6.AsSlice(), linkOption(2, forgedLink)),
				nd(neighbourAdvert, 64, hostB6, []byte{0x60, 0, 0, 0}, victimAddr6.AsSlice(), linkOption(2, forgedLink)), // from beyond the link
				nd(neighbourSolicit, 255, hostB6, none, victimAddr6.AsSlice(), linkOption(1, broadcast)),                 //
				nd(neighbourSolicit, 255, hostB6, none, victimAddr6.AsSlice(), []byte{1, 0, 0, 0, 0, 0, 0, 0}),           // an option of length 0
				damaged)...)
		}},
		{"forged ICMP errors", "packet too big below 1,280 bytes and about other ports, unreachable ports of nobody, quotes that are cut or of others: no MTU and no connection changes", func(s *caseRun) {
			type quote = []byte
			tooBig := func(mtu uint32, q quote) []byte {
				return toVictim(ipv6(forgerAddr6, victimAddr6, protocolICMPv6, icmp6(forgerAddr6, victimAddr6, 2, 0, be32(mtu), q)))
			}
			unreachable := func(q quote) []byte {
				return toVictim(ipv6(forgerAddr6, victimAddr6, protocolICMPv6, icmp6(forgerAddr6, victimAddr6, 1, 4, none, q)))
			}
			over4 := func(kind, code byte, q quote) []byte {
				return toVictim(ipv4(forgerAddr, victimAddr, protocolICMP, icmp4(kind, code, q)))
			}
			long := make([]byte, 1000)
			mine, mine6 := netAddr(victimAddr, hostB), netAddr(victimAddr6, hostB6)
			peer := int(v.ping.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort().Port())
			v.sendAttack(s, map[string]uint64{"path_mtu_ignored": 2 * u, "icmp_unmatched": 7 * u, "icmp_truncated": u, "path_mtu_lowered": 0, "icmp_errors": 0}, repeat(
				tooBig(68, mine6.v6(protocolUDP, udp(victimPort, peer, long))), tooBig(1279, mine6.v6(protocolUDP, udp(victimPort, peer, long))),
				tooBig(1280, mine6.v6(protocolUDP, udp(nobodysPort, peer, long))),
				tooBig(1280, mine6.v6(protocolTCP, tcp(victimPort, nobodysPort, long))),
				tooBig(1280, netAddr(hostA6, hostB6).v6(protocolUDP, udp(victimPort, peer, long))), // of another host
				unreachable(mine6.v6(protocolUDP, udp(nobodysPort, peer))),
				over4(3, 4, mine.v4(protocolUDP, udp(nobodysPort, discard, long))[:28]),
				over4(3, 3, mine.v4(protocolTCP, tcp(victimPort, nobodysPort))[:28]),
				over4(3, 1, netAddr(hostA, hostB).v4(protocolUDP, udp(victimPort, peer))[:28]),
				unreachable(mine6.v6(protocolUDP, []byte{1, 2})))...)
			v.pathMTUs(s)
		}},
	}
}
