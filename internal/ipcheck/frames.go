package ipcheck

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
)

// Node is an end of the link.
type Node struct {
	Link   [6]byte
	V4, V6 netip.Addr
}

const (
	// EchoPort is an echo service over UDP on the host that is checked, and a TCP listener.
	EchoPort = 7007

	closedPort  = 7009 // of nobody
	peerPort    = 4000
	sentinelLen = 7 // bytes; other datagrams are longer
)

// Peers are the host that is checked and its peer, which sends.
type Peers struct{ Host, Peer Node }

const (
	protoHopByHop    = 0
	protoICMP        = 1
	protoTCP         = 6
	protoUDP         = 17
	protoRouting     = 43
	protoFragment    = 44
	protoICMPv6      = 58
	protoNone        = 59
	protoDestination = 60
	protoUnknown     = 253 // for experiments (RFC 3692)

	moreFragments  = 0x2000
	ethernetHeader = 14
	ipv6Header     = 40
)

var (
	allNodes  = netip.MustParseAddr("ff02::1")
	limited   = netip.MustParseAddr("255.255.255.255")
	broadcast = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
)

// text is n bytes that tell how they are ordered.
func text(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8)
	}
	return b
}

// sum is the ones-complement sum of b and from (RFC 1071).
func sum(b []byte, from uint32) uint16 {
	for i := 0; i < len(b); i += 2 {
		from += uint32(b[i]) << 8
		if i+1 < len(b) {
			from += uint32(b[i+1])
		}
	}
	for from > 0xffff {
		from = from&0xffff + from>>16
	}
	return uint16(from)
}

// pseudo is the sum of the pseudo-header.
func pseudo(src, dst netip.Addr, protocol byte, n int) uint32 {
	return uint32(sum(append(src.AsSlice(), dst.AsSlice()...), uint32(protocol)+uint32(n)))
}

// edit changes a header before its checksum is computed.
type edit func(ip []byte)

func set(at int, values ...byte) edit { return func(ip []byte) { copy(ip[at:], values) } }

func source(a netip.Addr) edit {
	return func(ip []byte) {
		at := 12
		if a.Is6() {
			at = 8
		}
		copy(ip[at:], a.AsSlice())
	}
}

func destination(a netip.Addr) edit {
	return func(ip []byte) {
		at := 16
		if a.Is6() {
			at = 24
		}
		copy(ip[at:], a.AsSlice())
	}
}

// fragmented sets identification, offset in bytes and flags of IPv4.
func fragmented(id, offset, flags int) edit {
	return set(4, byte(id>>8), byte(id), byte((flags|offset/8)>>8), byte(offset/8))
}

// v4 is a frame with an IPv4 packet to the host.
func (p Peers) v4(protocol byte, options, payload []byte, edits ...edit) []byte {
	head := 20 + len(options)
	ip := make([]byte, head, head+len(payload))
	ip[0] = 0x40 | byte(head/4)
	binary.BigEndian.PutUint16(ip[2:], uint16(head+len(payload)))
	ip[8], ip[9] = 64, protocol
	copy(ip[12:], p.Peer.V4.AsSlice())
	copy(ip[16:], p.Host.V4.AsSlice())
	copy(ip[20:], options)
	for _, e := range edits {
		e(ip)
	}
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip, 0))
	return p.frame(0x0800, append(ip, payload...))
}

// v6 is a frame with an IPv6 packet to the host.
func (p Peers) v6(next byte, payload []byte, edits ...edit) []byte {
	ip := make([]byte, ipv6Header, ipv6Header+len(payload))
	ip[0] = 0x60
	binary.BigEndian.PutUint16(ip[4:], uint16(len(payload)))
	ip[6], ip[7] = next, 64
	copy(ip[8:], p.Peer.V6.AsSlice())
	copy(ip[24:], p.Host.V6.AsSlice())
	for _, e := range edits {
		e(ip)
	}
	return p.frame(0x86dd, append(ip, payload...))
}

func (p Peers) frame(kind uint16, packet []byte) []byte {
	dst := p.Host.Link
	if kind == 0x86dd && packet[24] == 0xff {
		dst = [6]byte{0x33, 0x33, packet[36], packet[37], packet[38], packet[39]}
	}
	return slices.Concat(dst[:], p.Peer.Link[:], []byte{byte(kind >> 8), byte(kind)}, packet)
}

// udp is a datagram to a port of the host, over IPv4 or IPv6.
func (p Peers) udp(v6 bool, port uint16, data []byte) []byte {
	b := make([]byte, 8, 8+len(data))
	binary.BigEndian.PutUint16(b, peerPort)
	binary.BigEndian.PutUint16(b[2:], port)
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(data)))
	b = append(b, data...)
	src, dst := p.addrs(v6)
	binary.BigEndian.PutUint16(b[6:], ^sum(b, pseudo(src, dst, protoUDP, len(b))))
	return b
}

// Sentinel is a datagram to the echo service: its answer comes after those to the frames that were sent before it.
func (p Peers) Sentinel(v6 bool) []byte {
	b := p.udp(v6, EchoPort, text(sentinelLen))
	if v6 {
		return p.v6(protoUDP, b)
	}
	return p.v4(protoUDP, nil, b)
}

// tcp is a segment of 40 bytes with an MSS and no-operations.
func (p Peers) tcp(v6 bool, port uint16, number, flags byte) []byte {
	b := bytes.Repeat([]byte{1}, 40)
	clear(b[:20])
	binary.BigEndian.PutUint16(b, port)
	binary.BigEndian.PutUint16(b[2:], EchoPort)
	b[7], b[12], b[13], b[14] = number, 10<<4, flags, 0x20
	copy(b[20:], []byte{2, 4, 5, 0xa0})
	src, dst := p.addrs(v6)
	binary.BigEndian.PutUint16(b[16:], ^sum(b, pseudo(src, dst, protoTCP, len(b))))
	return b
}

const (
	tcpSyn   = 2
	tcpReset = 4
)

func (p Peers) addrs(v6 bool) (src, dst netip.Addr) {
	if v6 {
		return p.Peer.V6, p.Host.V6
	}
	return p.Peer.V4, p.Host.V4
}

// icmp is an ICMP message: type, code, the second word of the header, and what follows.
func icmp(kind, code byte, word uint32, body []byte) []byte {
	b := append([]byte{kind, code, 0, 0, byte(word >> 24), byte(word >> 16), byte(word >> 8), byte(word)}, body...)
	binary.BigEndian.PutUint16(b[2:], ^sum(b, 0))
	return b
}

// icmp6 is icmp for ICMPv6, to dst.
func (p Peers) icmp6(dst netip.Addr, kind, code byte, word uint32, body []byte) []byte {
	b := icmp(kind, code, word, body)
	b[2], b[3] = 0, 0
	binary.BigEndian.PutUint16(b[2:], ^sum(b, pseudo(p.Peer.V6, dst, protoICMPv6, len(b))))
	return b
}

const echoID = 0x1234<<16 | 1

func echo(n int) []byte { return icmp(8, 0, echoID, text(n)) }

func (p Peers) echo6(dst netip.Addr, n int) []byte { return p.icmp6(dst, 128, 0, echoID, text(n)) }

// fragments4 are the frames of a payload in fragments of that many bytes.
func (p Peers) fragments4(id int, protocol byte, payload []byte, size int) (frames [][]byte) {
	for at := 0; at < len(payload); at += size {
		n, flags := min(size, len(payload)-at), 0
		if at+n < len(payload) {
			flags = moreFragments
		}
		frames = append(frames, p.v4(protocol, nil, payload[at:at+n], fragmented(id, at, flags)))
	}
	return frames
}

// fragments6 are the frames of a payload, whose first header is next, in fragments of that many bytes.
func (p Peers) fragments6(id int, next byte, payload []byte, size int) (frames [][]byte) {
	for at := 0; at < len(payload); at += size {
		n := min(size, len(payload)-at)
		frames = append(frames, p.fragment6(id, next, at, at+n < len(payload), payload[at:at+n]))
	}
	return frames
}

func (p Peers) fragment6(id int, next byte, offset int, more bool, data []byte) []byte {
	return p.v6(protoFragment, append(fragmentHeader(id, next, offset, more), data...))
}

func fragmentHeader(id int, next byte, offset int, more bool) []byte {
	b := []byte{next, 0, byte(offset >> 8), byte(offset), byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}
	if more {
		b[3] |= 1
	}
	return b
}

// options is a header of 8 bytes with one option of that type.
func options(next, kind byte) []byte { return []byte{next, 0, kind, 4, 0, 0, 0, 0} }
