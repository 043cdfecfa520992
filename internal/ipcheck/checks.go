package ipcheck

import (
	"net/netip"
	"slices"
)

// Check is one requirement.
type Check struct {
	Name   string
	RFC    string // and section
	Frames func(Peers) [][]byte
	// Want is the answer, or None.
	Want string
	// Linux is what Linux 6.18 answers, if that differs.
	Linux string
	// Group: the frames are for a group. The mux leaves those to the kernel, unless a socket has joined it.
	Group bool
	// Late: the answer comes when the time for reassembly is over.
	Late bool
}

// None is the Want of what must not be answered.
const None = "none"

// one makes the frames of a check that has one frame.
func one(f func(Peers) []byte) func(Peers) [][]byte {
	return func(p Peers) [][]byte { return [][]byte{f(p)} }
}

// datagram4 is a datagram of 20 bytes to the echo service with IPv4 options and edits.
func datagram4(options []byte, edits ...edit) func(Peers) [][]byte {
	return one(func(p Peers) []byte { return p.v4(protoUDP, options, p.udp(false, EchoPort, text(20)), edits...) })
}

func datagram6(edits ...edit) func(Peers) [][]byte {
	return one(func(p Peers) []byte { return p.v6(protoUDP, p.udp(true, EchoPort, text(20)), edits...) })
}

// behind6 is a datagram to the echo service behind extension headers, the first of that kind.
func behind6(next byte, headers ...[]byte) func(Peers) [][]byte {
	return one(func(p Peers) []byte {
		return p.v6(next, append(slices.Concat(headers...), p.udp(true, EchoPort, text(20))...))
	})
}

// damage changes bytes of the last frame, counted from the IP header on.
func damage(frames func(Peers) [][]byte, at int, values ...byte) func(Peers) [][]byte {
	return func(p Peers) [][]byte {
		all := frames(p)
		last := all[len(all)-1]
		copy(last[ethernetHeader+at:], values)
		return all
	}
}

// reversed are the frames of a check from the last to the first, the first twice.
func reversed(frames func(Peers) [][]byte) func(Peers) [][]byte {
	return func(p Peers) [][]byte {
		all := frames(p)
		slices.Reverse(all)
		return slices.Insert(all, 1, all[0])
	}
}

// Each identification is used once.
func fragmentedEcho4(id, n, size int) func(Peers) [][]byte {
	return func(p Peers) [][]byte { return p.fragments4(id, protoICMP, echo(n), size) }
}

func fragmentedEcho6(id, n, size int) func(Peers) [][]byte {
	return func(p Peers) [][]byte { return p.fragments6(id, protoICMPv6, p.echo6(p.Host.V6, n), size) }
}

func fragmentedUDP(v6 bool, id int, port uint16, n, size int) func(Peers) [][]byte {
	return func(p Peers) [][]byte {
		if v6 {
			return p.fragments6(id, protoUDP, p.udp(true, port, text(n)), size)
		}
		return p.fragments4(id, protoUDP, p.udp(false, port, text(n)), size)
	}
}

// first is the first frame alone.
func first(frames func(Peers) [][]byte) func(Peers) [][]byte {
	return func(p Peers) [][]byte { return frames(p)[:1] }
}

// last is all but the first frame.
func last(frames func(Peers) [][]byte) func(Peers) [][]byte {
	return func(p Peers) [][]byte { return frames(p)[1:] }
}

// multicast6 is a datagram to all nodes behind an options header with that option.
func multicast6(next, kind byte) func(Peers) [][]byte {
	return one(func(p Peers) []byte {
		return p.v6(next, append(options(protoUDP, kind), p.udp(true, EchoPort, text(20))...), destination(allNodes))
	})
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// solicitedNode is the multicast address of an address (RFC 4291, section 2.7.1).
func solicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
}

// quoted4 is the packet that a forged error quotes: a datagram from the host.
func quoted4(p Peers) []byte {
	return p.v4(protoUDP, nil, p.udp(false, closedPort, text(20)), source(p.Host.V4), destination(p.Peer.V4))[ethernetHeader:]
}

// Checks are all requirements.
var Checks = slices.Concat(checks4, checks6, neighborChecks, arpChecks)

var checks4 = []Check{
	{Name: "v4.echo", RFC: "1122 3.2.2.6", Want: "echo reply 56", Frames: one(func(p Peers) []byte { return p.v4(protoICMP, nil, echo(56)) })},
	{Name: "v4.echo.odd-length", RFC: "792", Want: "echo reply 57", Frames: one(func(p Peers) []byte { return p.v4(protoICMP, nil, echo(57)) })},
	{Name: "v4.echo.bad-checksum", RFC: "792", Want: None, Frames: damage(one(func(p Peers) []byte { return p.v4(protoICMP, nil, echo(56)) }), 30, 0xee)},
	{Name: "v4.echo.broadcast", RFC: "1122 3.2.2.6 MAY discard", Want: None, Group: true, Frames: one(func(p Peers) []byte { return p.v4(protoICMP, nil, echo(56), destination(limited)) })},
	{Name: "v4.icmp.unknown-type", RFC: "1122 3.2.2", Want: None, Frames: one(func(p Peers) []byte { return p.v4(protoICMP, nil, icmp(44, 0, 0, text(8))) })},
	{Name: "v4.padding", RFC: "894", Want: "udp 20", Frames: one(func(p Peers) []byte { return append(p.v4(protoUDP, nil, p.udp(false, EchoPort, text(20))), 9, 9, 9) })},
	{Name: "v4.bad-checksum", RFC: "1122 3.2.1.2 MUST discard", Want: None, Frames: damage(datagram4(nil), 10, 0xde, 0xad)},
	{Name: "v4.version", RFC: "1122 3.2.1.1 MUST discard", Want: None, Frames: datagram4(nil, set(0, 0x55))},
	{Name: "v4.header-length", RFC: "791", Want: None, Frames: datagram4(nil, set(0, 0x44))},
	{Name: "v4.total-length.short", RFC: "791", Want: None, Frames: datagram4(nil, set(2, 0, 19))},
	{Name: "v4.total-length.long", RFC: "791", Want: None, Frames: datagram4(nil, set(2, 0, 99))},
	{Name: "v4.ttl.1", RFC: "1122 3.2.1.7 MUST NOT discard", Want: "udp 20", Frames: datagram4(nil, set(8, 1))},
	{Name: "v4.ttl.0", RFC: "1122 3.2.1.7 MUST NOT discard", Want: "udp 20", Frames: datagram4(nil, set(8, 0))},
	{Name: "v4.tos", RFC: "2474", Want: "udp 20", Frames: datagram4(nil, set(1, 0xb8))},
	{Name: "v4.reserved-flag", RFC: "791", Want: "udp 20", Frames: datagram4(nil, set(6, 0x80))},
	{Name: "v4.dont-fragment", RFC: "6864 4", Want: "udp 20", Frames: datagram4(nil, set(6, 0x40))},
	{Name: "v4.source.zero", RFC: "1122 3.2.1.3 MUST discard", Want: None, Frames: datagram4(nil, source(addr("0.0.0.0")))},
	{Name: "v4.source.loopback", RFC: "1122 3.2.1.3 MUST discard", Want: None, Frames: datagram4(nil, source(addr("127.0.0.1")))},
	{Name: "v4.source.multicast", RFC: "1122 3.2.1.3 MUST discard", Want: None, Frames: datagram4(nil, source(addr("224.0.0.1")))},
	{Name: "v4.source.limited-broadcast", RFC: "1122 3.2.1.3 MUST discard", Want: None, Frames: datagram4(nil, source(limited))},
	{Name: "v4.source.subnet-broadcast", RFC: "1122 3.2.1.3 MUST discard", Want: None, Frames: datagram4(nil, source(addr("10.0.0.255")))},
	{Name: "v4.source.own", RFC: "1812 5.3.7", Want: None, Frames: one(func(p Peers) []byte {
		return p.v4(protoUDP, nil, p.udp(false, EchoPort, text(20)), source(p.Host.V4))
	})},
	{Name: "v4.destination.other", RFC: "1122 3.2.1.3 MUST discard", Want: None, Frames: datagram4(nil, destination(addr("10.0.0.123")))},
	{Name: "v4.destination.loopback", RFC: "1122 3.2.1.3", Want: None, Frames: datagram4(nil, destination(addr("127.0.0.1")))},
	{Name: "v4.link-broadcast", RFC: "1122 3.3.6 SHOULD discard", Want: None, Group: true, Linux: "udp 20", Frames: func(p Peers) [][]byte {
		f := datagram4(nil)(p)
		copy(f[0], broadcast[:])
		return f
	}},
	{Name: "v4.protocol.unknown", RFC: "1122 3.2.2.1", Want: "error 3/2", Frames: one(func(p Peers) []byte { return p.v4(protoUnknown, nil, text(20)) })},
	{Name: "v4.udp.closed", RFC: "1122 4.1.3.1", Want: "error 3/3", Frames: one(func(p Peers) []byte { return p.v4(protoUDP, nil, p.udp(false, closedPort, text(20))) })},
	{Name: "v4.udp.closed.broadcast", RFC: "1122 3.2.2 MUST NOT", Want: None, Group: true, Frames: one(func(p Peers) []byte {
		return p.v4(protoUDP, nil, p.udp(false, closedPort, text(20)), destination(limited))
	})},
	{Name: "v4.udp.length.short", RFC: "768", Want: "udp 19", Frames: one(func(p Peers) []byte { return p.v4(protoUDP, nil, append(p.udp(false, EchoPort, text(19)), 7)) })},
	{Name: "v4.udp.length.long", RFC: "768", Want: None, Frames: one(func(p Peers) []byte { return p.v4(protoUDP, nil, p.udp(false, EchoPort, text(20))[:20]) })},
	{Name: "v4.udp.no-checksum", RFC: "1122 4.1.3.4", Want: "udp 20", Frames: damage(datagram4(nil), 26, 0, 0)},
	{Name: "v4.udp.bad-checksum", RFC: "1122 4.1.3.4 MUST discard", Want: None, Frames: damage(datagram4(nil), 26, 0xde, 0xad)},
	{Name: "v4.error.about-error", RFC: "1122 3.2.2 MUST NOT", Want: None, Frames: one(func(p Peers) []byte { return p.v4(protoICMP, nil, icmp(3, 3, 0, quoted4(p))) })},

	{Name: "v4.option.end", RFC: "791", Want: "udp 20", Frames: datagram4([]byte{0, 9, 99, 0})},
	{Name: "v4.option.no-operation", RFC: "791", Want: "udp 20", Frames: datagram4([]byte{1, 1, 1, 1})},
	{Name: "v4.option.unknown", RFC: "1122 3.2.1.8 MUST ignore", Want: "udp 20", Frames: datagram4([]byte{0x9e, 4, 0, 0})},
	{Name: "v4.option.record-route", RFC: "1122 3.2.1.8", Want: "udp 20", Frames: datagram4([]byte{7, 7, 4, 0, 0, 0, 0, 0})},
	{Name: "v4.option.bad-length", RFC: "1122 3.2.2.5 SHOULD", Want: "error 12/0 pointer 20", Frames: datagram4([]byte{0x9e, 40, 0, 0})},
	{Name: "v4.option.length-1", RFC: "1122 3.2.2.5 SHOULD", Want: "error 12/0 pointer 21", Frames: datagram4([]byte{1, 0x9e, 1, 0})},
	{Name: "v4.option.length-missing", RFC: "1122 3.2.2.5 SHOULD", Want: "error 12/0 pointer 23", Frames: datagram4([]byte{1, 1, 1, 0x9e})},
	{Name: "v4.option.bad-length.error", RFC: "1122 3.2.2 MUST NOT", Want: None, Frames: one(func(p Peers) []byte {
		return p.v4(protoICMP, []byte{0x9e, 40, 0, 0}, icmp(3, 3, 0, quoted4(p)))
	})},
	{Name: "v4.option.loose-source-route", RFC: "7126 4.3", Want: None, Frames: datagram4([]byte{131, 7, 8, 10, 0, 0, 9, 0})},
	{Name: "v4.option.strict-source-route", RFC: "7126 4.4", Want: None, Frames: datagram4([]byte{137, 7, 8, 10, 0, 0, 9, 0})},

	{Name: "v4.frag.echo", RFC: "1122 3.3.2 MUST", Want: "echo reply 64", Frames: fragmentedEcho4(1, 64, 40)},
	{Name: "v4.frag.echo.longer-than-mtu", RFC: "1122 3.3.2 MUST", Want: "echo reply 4000", Frames: fragmentedEcho4(2, 4000, 1480)},
	{Name: "v4.frag.echo.reversed", RFC: "1122 3.3.2 MUST", Want: "echo reply 2000", Frames: reversed(fragmentedEcho4(3, 2000, 800))},
	{Name: "v4.frag.echo.longest", RFC: "1122 3.3.2", Want: "echo reply 65507", Frames: fragmentedEcho4(4, 65507, 1480)},
	{Name: "v4.frag.tcp-syn", RFC: "1122 3.3.2 MUST", Want: "tcp S A", Frames: func(p Peers) [][]byte {
		return append(p.fragments4(5, protoTCP, p.tcp(false, 4005, 1, tcpSyn), 8), p.v4(protoTCP, nil, p.tcp(false, 4005, 2, tcpReset)))
	}},
	{Name: "v4.frag.udp", RFC: "1122 3.3.2 MUST", Want: "udp 3000", Frames: fragmentedUDP(false, 6, EchoPort, 3000, 1480)},
	{Name: "v4.frag.udp.closed", RFC: "1122 4.1.3.1", Want: "error 3/3", Frames: fragmentedUDP(false, 7, closedPort, 3000, 1480)},
	{Name: "v4.frag.udp.bad-checksum", RFC: "1122 4.1.3.4 MUST discard", Want: None, Frames: damage(fragmentedUDP(false, 8, EchoPort, 3000, 1480), 30, 0xee)},
	{Name: "v4.frag.protocol.unknown", RFC: "1122 3.2.2.1", Want: "error 3/2", Frames: func(p Peers) [][]byte { return p.fragments4(9, protoUnknown, text(400), 80) }},
	{Name: "v4.frag.options-in-first", RFC: "791", Want: "udp 100", Frames: func(p Peers) [][]byte {
		d := p.udp(false, EchoPort, text(100))
		return [][]byte{
			p.v4(protoUDP, []byte{7, 7, 4, 0, 0, 0, 0, 0}, d[:80], fragmented(10, 0, moreFragments)),
			p.v4(protoUDP, nil, d[80:], fragmented(10, 80, 0)),
		}
	}},
	{Name: "v4.frag.overlap", RFC: "1858 / 5722", Want: None, Frames: func(p Peers) [][]byte {
		d := p.udp(false, EchoPort, text(100))
		return [][]byte{
			p.v4(protoUDP, nil, d[:80], fragmented(11, 0, moreFragments)), p.v4(protoUDP, nil, d[72:88], fragmented(11, 72, moreFragments)),
			p.v4(protoUDP, nil, d[80:], fragmented(11, 80, 0)),
		}
	}},
	{Name: "v4.frag.empty", RFC: "791", Want: None, Frames: func(p Peers) [][]byte { return [][]byte{p.v4(protoUDP, nil, nil, fragmented(12, 800, 0))} }},
	{Name: "v4.frag.misaligned", RFC: "791", Want: None, Frames: func(p Peers) [][]byte {
		return [][]byte{p.v4(protoUDP, nil, p.udp(false, EchoPort, text(33)), fragmented(13, 0, moreFragments))}
	}},
	{Name: "v4.frag.too-long", RFC: "791", Want: None, Frames: func(p Peers) [][]byte { return [][]byte{p.v4(protoUDP, nil, text(100), fragmented(14, 65528, 0))} }},
	{Name: "v4.frag.other-protocol", RFC: "791", Want: None, Frames: func(p Peers) [][]byte {
		d := p.udp(false, EchoPort, text(100))
		return [][]byte{p.v4(protoUDP, nil, d[:80], fragmented(15, 0, moreFragments)), p.v4(protoUnknown, nil, d[80:], fragmented(15, 80, 0))}
	}},
	{Name: "v4.frag.bad-option-later", RFC: "1122 3.2.2 MUST NOT", Want: None, Frames: func(p Peers) [][]byte {
		return [][]byte{p.v4(protoUDP, []byte{0x9e, 40, 0, 0}, text(80), fragmented(16, 80, 0))}
	}},
	{Name: "late.v4.reassembly-timeout", RFC: "1122 3.3.2 MUST", Late: true, Want: "error 11/1", Frames: first(fragmentedUDP(false, 20, EchoPort, 3000, 1480))},
	{Name: "late.v4.reassembly-timeout.echo", RFC: "1122 3.3.2 MUST", Late: true, Want: "error 11/1", Frames: first(fragmentedEcho4(21, 3000, 1480))},
	{Name: "late.v4.reassembly-timeout.options", RFC: "1122 3.3.2 MUST", Late: true, Want: "error 11/1", Frames: one(func(p Peers) []byte {
		return p.v4(protoUDP, []byte{7, 7, 4, 0, 0, 0, 0, 0}, p.udp(false, EchoPort, text(72)), fragmented(22, 0, moreFragments))
	})},
	{Name: "late.v4.reassembly-timeout.without-first", RFC: "1122 3.3.2 MUST NOT", Late: true, Want: None, Frames: last(fragmentedUDP(false, 23, EchoPort, 3000, 1480))},
	{Name: "late.v4.reassembly-timeout.error", RFC: "1122 3.2.2 MUST NOT", Late: true, Want: None, Frames: first(func(p Peers) [][]byte {
		return p.fragments4(24, protoICMP, icmp(3, 3, 0, quoted4(p)), 40)
	})},
	{Name: "late.v4.reassembly-timeout.overlap", RFC: "5722", Late: true, Want: None, Frames: func(p Peers) [][]byte {
		d := p.udp(false, EchoPort, text(100))
		return [][]byte{p.v4(protoUDP, nil, d[:80], fragmented(25, 0, moreFragments)), p.v4(protoUDP, nil, d[72:88], fragmented(25, 72, moreFragments))}
	}},
}

var checks6 = []Check{
	{Name: "v6.echo", RFC: "4443 4.2 MUST", Want: "echo reply 56", Frames: one(func(p Peers) []byte { return p.v6(protoICMPv6, p.echo6(p.Host.V6, 56)) })},
	{Name: "v6.echo.bad-checksum", RFC: "4443 2.3", Want: None, Frames: damage(one(func(p Peers) []byte { return p.v6(protoICMPv6, p.echo6(p.Host.V6, 56)) }), 50, 0xee)},
	{Name: "v6.echo.allnodes", RFC: "4443 4.2 SHOULD", Want: "echo reply 56", Group: true, Frames: one(func(p Peers) []byte { return p.v6(protoICMPv6, p.echo6(allNodes, 56), destination(allNodes)) })},
	{Name: "v6.echo.solicited-node", RFC: "4443 4.2 SHOULD", Want: "echo reply 56", Group: true, Frames: one(func(p Peers) []byte {
		to := solicitedNode(p.Host.V6)
		return p.v6(protoICMPv6, p.echo6(to, 56), destination(to))
	})},
	{Name: "v6.echo.other-group", RFC: "4291 2.8", Want: None, Group: true, Frames: one(func(p Peers) []byte {
		to := addr("ff02::1:ff12:3456")
		return p.v6(protoICMPv6, p.echo6(to, 56), destination(to))
	})},
	{Name: "v6.echo.allnodes.source-multicast", RFC: "4443 2.4(e.6)", Want: None, Group: true, Frames: one(func(p Peers) []byte {
		p.Peer.V6 = addr("ff02::9")
		return p.v6(protoICMPv6, p.echo6(allNodes, 56), destination(allNodes))
	})},
	{Name: "v6.icmp.unknown-error", RFC: "4443 2.4(a)", Want: None, Frames: one(func(p Peers) []byte { return p.v6(protoICMPv6, p.icmp6(p.Host.V6, 100, 0, 0, text(60))) })},
	{Name: "v6.icmp.unknown-message", RFC: "4443 2.4(b) MUST discard", Want: None, Frames: one(func(p Peers) []byte { return p.v6(protoICMPv6, p.icmp6(p.Host.V6, 200, 0, 0, text(60))) })},
	{Name: "v6.version", RFC: "8200 3", Want: None, Frames: datagram6(set(0, 0x50))},
	{Name: "v6.payload-length.long", RFC: "8200 3", Want: None, Frames: datagram6(set(4, 1, 0))},
	{Name: "v6.padding", RFC: "2464 3", Want: "udp 20", Frames: one(func(p Peers) []byte { return append(p.v6(protoUDP, p.udp(true, EchoPort, text(20))), 9, 9, 9) })},
	{Name: "v6.hop-limit.1", RFC: "8200 3", Want: "udp 20", Frames: datagram6(set(7, 1))},
	{Name: "v6.hop-limit.0", RFC: "8200 3", Want: "udp 20", Frames: datagram6(set(7, 0))},
	{Name: "v6.flow-label", RFC: "8200 6", Want: "udp 20", Frames: datagram6(set(1, 0x0f, 0xff, 0xff))},
	{Name: "v6.source.multicast", RFC: "4291 2.7 MUST NOT", Want: None, Frames: datagram6(source(addr("ff02::1")))},
	{Name: "v6.source.unspecified", RFC: "4291 2.5.2", Want: None, Frames: datagram6(source(addr("::")))},
	{Name: "v6.source.loopback", RFC: "4291 2.5.3 MUST discard", Want: None, Frames: datagram6(source(addr("::1")))},
	{Name: "v6.source.own", RFC: "1812 5.3.7", Want: None, Frames: one(func(p Peers) []byte {
		return p.v6(protoUDP, p.udp(true, EchoPort, text(20)), source(p.Host.V6))
	})},
	{Name: "v6.destination.loopback", RFC: "4291 2.5.3 MUST discard", Want: None, Frames: datagram6(destination(addr("::1")))},
	{Name: "v6.udp.closed", RFC: "4443 3.1", Want: "error 1/4", Frames: one(func(p Peers) []byte { return p.v6(protoUDP, p.udp(true, closedPort, text(20))) })},
	{Name: "v6.udp.closed.long", RFC: "4443 2.4(c)", Want: "error 1/4", Frames: one(func(p Peers) []byte { return p.v6(protoUDP, p.udp(true, closedPort, text(1400))) })},
	{Name: "v6.udp.closed.multicast", RFC: "4443 2.4(e.3)", Want: None, Group: true, Frames: one(func(p Peers) []byte {
		return p.v6(protoUDP, p.udp(true, closedPort, text(20)), destination(allNodes))
	})},
	{Name: "v6.udp.no-checksum", RFC: "8200 8.1 MUST discard", Want: None, Frames: damage(datagram6(), 46, 0, 0)},
	{Name: "v6.udp.bad-checksum", RFC: "8200 8.1", Want: None, Frames: damage(datagram6(), 46, 0xde, 0xad)},
	{Name: "v6.next-header.unknown", RFC: "8200 4", Want: "error 4/1 pointer 6", Frames: one(func(p Peers) []byte { return p.v6(protoUnknown, text(20)) })},
	{Name: "v6.next-header.unknown.behind-options", RFC: "8200 4", Want: "error 4/1 pointer 40", Frames: one(func(p Peers) []byte { return p.v6(protoDestination, append(options(protoUnknown, 1), text(20)...)) })},
	{Name: "v6.next-header.none", RFC: "8200 4.7", Want: None, Frames: one(func(p Peers) []byte { return p.v6(protoNone, text(20)) })},
	{Name: "v6.error.about-error", RFC: "4443 2.4(e.1)", Want: None, Frames: one(func(p Peers) []byte {
		return p.v6(protoDestination, append(options(protoICMPv6, 0x9e), p.icmp6(p.Host.V6, 1, 4, 0, text(60))...))
	})},

	{Name: "v6.opt.dst.skip", RFC: "8200 4.2", Want: "udp 20", Frames: behind6(protoDestination, options(protoUDP, 0x1e))},
	{Name: "v6.opt.dst.5e", RFC: "8200 4.2", Want: None, Frames: behind6(protoDestination, options(protoUDP, 0x5e))},
	{Name: "v6.opt.dst.be", RFC: "8200 4.2", Want: "error 4/2 pointer 42", Frames: behind6(protoDestination, options(protoUDP, 0x9e))},
	{Name: "v6.opt.dst.de", RFC: "8200 4.2", Want: "error 4/2 pointer 42", Frames: behind6(protoDestination, options(protoUDP, 0xde))},
	{Name: "v6.opt.dst.be.multicast", RFC: "8200 4.2", Want: "error 4/2 pointer 42", Group: true, Frames: multicast6(protoDestination, 0x9e)},
	{Name: "v6.opt.dst.de.multicast", RFC: "8200 4.2", Want: None, Group: true, Frames: multicast6(protoDestination, 0xde)},
	{Name: "v6.opt.hbh.skip", RFC: "8200 4.2", Want: "udp 20", Frames: behind6(protoHopByHop, options(protoUDP, 0x1e))},
	{Name: "v6.opt.hbh.5e", RFC: "8200 4.2", Want: None, Frames: behind6(protoHopByHop, options(protoUDP, 0x5e))},
	{Name: "v6.opt.hbh.be", RFC: "8200 4.2", Want: "error 4/2 pointer 42", Frames: behind6(protoHopByHop, options(protoUDP, 0x9e))},
	{Name: "v6.opt.hbh.be.multicast", RFC: "8200 4.2", Want: "error 4/2 pointer 42", Group: true, Frames: multicast6(protoHopByHop, 0x9e)},
	{Name: "v6.opt.hbh.de.multicast", RFC: "8200 4.2", Want: None, Group: true, Frames: multicast6(protoHopByHop, 0xde)},
	{Name: "v6.opt.be.other-group", RFC: "4291 2.8", Want: None, Group: true, Frames: one(func(p Peers) []byte {
		return p.v6(protoDestination, append(options(protoUDP, 0x9e), p.udp(true, EchoPort, text(20))...), destination(addr("ff02::1:ff12:3456")))
	})},
	{Name: "v6.opt.pad1", RFC: "8200 4.2", Want: "udp 20", Frames: behind6(protoDestination, []byte{protoUDP, 0, 0, 0, 0, 0, 0, 0})},
	{Name: "v6.opt.length", RFC: "8200 4.2", Want: None, Frames: behind6(protoDestination, []byte{protoUDP, 0, 0x1e, 40, 0, 0, 0, 0})},
	{Name: "v6.ext.too-long", RFC: "8200 4.6", Want: None, Frames: behind6(protoDestination, []byte{protoUDP, 99, 1, 4, 0, 0, 0, 0})},
	{Name: "v6.ext.hbh-not-first", RFC: "8200 4.3", Want: "error 4/1 pointer 40", Frames: behind6(protoDestination, options(protoHopByHop, 1), options(protoUDP, 1))},
	{Name: "v6.routing.none-left", RFC: "8200 4.4", Want: "udp 20", Frames: behind6(protoRouting, []byte{protoUDP, 0, 99, 0, 0, 0, 0, 0})},
	{Name: "v6.routing.unknown", RFC: "8200 4.4", Want: "error 4/0 pointer 42", Frames: behind6(protoRouting, []byte{protoUDP, 0, 99, 1, 0, 0, 0, 0})},
	{Name: "v6.routing.type-0", RFC: "5095 3", Want: "error 4/0 pointer 42", Frames: behind6(protoRouting, append([]byte{protoUDP, 2, 0, 1, 0, 0, 0, 0}, make([]byte, 16)...))},

	{Name: "v6.frag.echo", RFC: "8200 4.5 / 5 MUST", Want: "echo reply 64", Frames: fragmentedEcho6(1, 64, 40)},
	{Name: "v6.frag.echo.longer-than-mtu", RFC: "8200 5", Want: "echo reply 4000", Frames: fragmentedEcho6(2, 4000, 1448)},
	{Name: "v6.frag.echo.reversed", RFC: "8200 4.5", Want: "echo reply 2000", Frames: reversed(fragmentedEcho6(3, 2000, 800))},
	{Name: "v6.frag.tcp-syn", RFC: "8200 4.5", Want: "tcp S A", Frames: func(p Peers) [][]byte {
		return append(p.fragments6(4, protoTCP, p.tcp(true, 4104, 1, tcpSyn), 24), p.v6(protoTCP, p.tcp(true, 4104, 2, tcpReset)))
	}},
	{Name: "v6.frag.udp", RFC: "8200 4.5", Want: "udp 3000", Frames: fragmentedUDP(true, 5, EchoPort, 3000, 1448)},
	{Name: "v6.frag.udp.closed", RFC: "4443 3.1", Want: "error 1/4", Frames: fragmentedUDP(true, 6, closedPort, 3000, 1448)},
	{Name: "v6.frag.udp.bad-checksum", RFC: "8200 8.1", Want: None, Frames: damage(fragmentedUDP(true, 7, EchoPort, 3000, 1448), 60, 0xee)},
	{Name: "v6.frag.udp.behind-options", RFC: "8200 4.5", Want: "udp 100", Frames: func(p Peers) [][]byte {
		return p.fragments6(8, protoDestination, append(options(protoUDP, 1), p.udp(true, EchoPort, text(100))...), 80)
	}},
	{Name: "v6.frag.next-header.unknown", RFC: "8200 4", Want: "error 4/1 pointer 6", Frames: func(p Peers) [][]byte { return p.fragments6(9, protoUnknown, text(400), 80) }},
	{Name: "v6.frag.first-without-header-chain", RFC: "8200 4.5 / 7112 SHOULD", Want: "error 4/3 pointer 0", Frames: one(func(p Peers) []byte {
		return p.fragment6(10, protoDestination, 0, true, []byte{protoUDP, 9, 1, 4, 0, 0, 0, 0})
	})},
	{Name: "v6.frag.first-without-tcp-header", RFC: "7112 SHOULD", Want: "error 4/3 pointer 0", Frames: one(func(p Peers) []byte { return p.fragment6(11, protoTCP, 0, true, p.tcp(true, 4111, 1, tcpSyn)[:16]) })},
	{Name: "v6.frag.first-without-icmp-header", RFC: "7112 SHOULD", Want: "error 4/3 pointer 0", Frames: one(func(p Peers) []byte {
		return p.fragment6(12, protoDestination, 0, true, options(protoICMPv6, 1))
	})},
	{Name: "v6.frag.misaligned", RFC: "8200 4.5", Want: "error 4/0 pointer 4", Frames: one(func(p Peers) []byte { return p.fragment6(13, protoUDP, 0, true, p.udp(true, EchoPort, text(33))) })},
	{Name: "v6.frag.too-long", RFC: "8200 4.5", Want: "error 4/0 pointer 42", Frames: one(func(p Peers) []byte { return p.fragment6(14, protoUDP, 65528, false, text(100)) })},
	{Name: "v6.frag.empty", RFC: "8200 4.5", Want: None, Frames: one(func(p Peers) []byte { return p.fragment6(15, protoUDP, 800, true, nil) })},
	{Name: "v6.frag.overlap", RFC: "5722 4 MUST discard", Want: None, Frames: func(p Peers) [][]byte {
		d := p.udp(true, EchoPort, text(100))
		return [][]byte{p.fragment6(16, protoUDP, 0, true, d[:80]), p.fragment6(16, protoUDP, 72, true, d[72:88]), p.fragment6(16, protoUDP, 80, false, d[80:])}
	}},
	{Name: "v6.frag.atomic", RFC: "6946 4", Want: "udp 100", Frames: one(func(p Peers) []byte { return p.fragment6(17, protoUDP, 0, false, p.udp(true, EchoPort, text(100))) })},
	{Name: "v6.frag.atomic.beside-others", RFC: "6946 4 MUST", Want: "udp 100", Frames: func(p Peers) [][]byte {
		return [][]byte{p.fragment6(18, protoUDP, 80, false, text(80)), p.fragment6(18, protoUDP, 0, false, p.udp(true, EchoPort, text(100)))}
	}},
	{Name: "v6.frag.atomic.solicitation", RFC: "6980 5 MUST ignore", Want: None, Frames: one(func(p Peers) []byte {
		return p.v6(protoFragment, append(fragmentHeader(19, protoICMPv6, 0, false), p.icmp6(p.Host.V6, 135, 0, 0, p.Host.V6.AsSlice())...), set(7, 255))
	})},
	{Name: "late.v6.reassembly-timeout", RFC: "8200 4.5 / 4443 3.3", Late: true, Want: "error 3/1", Frames: first(fragmentedUDP(true, 20, EchoPort, 3000, 1448))},
	{Name: "late.v6.reassembly-timeout.behind-options", RFC: "8200 4.5", Late: true, Want: "error 3/1", Frames: one(func(p Peers) []byte {
		return p.v6(protoHopByHop, slices.Concat(options(protoFragment, 1), fragmentHeader(21, protoUDP, 0, true), p.udp(true, EchoPort, text(72))))
	})},
	{Name: "late.v6.reassembly-timeout.without-first", RFC: "8200 4.5", Late: true, Want: None, Frames: last(fragmentedUDP(true, 22, EchoPort, 3000, 1448))},
	{Name: "late.v6.reassembly-timeout.error", RFC: "4443 2.4(e.1)", Late: true, Want: None, Frames: first(func(p Peers) [][]byte {
		return p.fragments6(23, protoICMPv6, p.icmp6(p.Host.V6, 1, 4, 0, text(400)), 80)
	})},
}
