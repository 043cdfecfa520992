package filter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

const (
	typeIPv4 = 0x0800
	typeARP  = 0x0806
	typeRARP = 0x8035
	typeIPv6 = 0x86dd

	protocolICMP     = 1
	protocolTCP      = 6
	protocolUDP      = 17
	protocolFragment = 44
	protocolICMPv6   = 58
	protocolSCTP     = 132

	minLength = 0x600 // smaller values of the type field are lengths of IEEE 802.3
)

var etherTypes = map[string]uint32{"ip": typeIPv4, "ip6": typeIPv6, "arp": typeARP, "rarp": typeRARP}

var protocols = map[string]uint32{"tcp": protocolTCP, "udp": protocolUDP, "sctp": protocolSCTP, "icmp": protocolICMP, "icmp6": protocolICMPv6}

// header is one whose bytes can be read.
type header struct {
	there func(vlan int) node // nil: always
	begin func(f *frame, vlan int) uint32
}

var headers = func() map[string]header {
	network := func(_ *frame, vlan int) uint32 { return uint32(14 + vlan) }
	m := map[string]header{"ether": {nil, func(*frame, int) uint32 { return 0 }}}
	for name, t := range etherTypes {
		m[name] = header{func(vlan int) node { return isType(vlan, t) }, network}
	}
	for name, n := range protocols {
		if n == protocolICMPv6 {
			m[name] = header{func(vlan int) node { return and(isType(vlan, typeIPv6), byteIs(20+vlan, n)) },
				func(_ *frame, vlan int) uint32 { return uint32(54 + vlan) }}
			continue
		}
		m[name] = header{func(vlan int) node { return and(and(isType(vlan, typeIPv4), byteIs(23+vlan, n)), isFirst(vlan)) }, transport}
	}
	return m
}()

// transport is where the header after that of IPv4 begins.
func transport(f *frame, vlan int) uint32 {
	return uint32(14+vlan) + f.load(uint64(14+vlan), 1)&0xf*4
}

func isType(vlan int, t uint32) node {
	return func(f *frame) bool { return f.load(uint64(12+vlan), 2) == t }
}

func byteIs(at int, n uint32) node {
	return func(f *frame) bool { return f.load(uint64(at), 1) == n }
}

// isFirst: it is no later fragment of an IPv4 packet.
func isFirst(vlan int) node {
	return func(f *frame) bool { return f.load(uint64(20+vlan), 2)&0x1fff == 0 && !f.short }
}

// ipv4Protocol and ipv6Protocol: the packet has the protocol; of IPv6 also in the first fragment header.
func ipv4Protocol(vlan int, n uint32) node { return and(isType(vlan, typeIPv4), byteIs(23+vlan, n)) }

func ipv6Protocol(vlan int, n uint32) node {
	next := or(byteIs(20+vlan, n), and(byteIs(20+vlan, protocolFragment), byteIs(54+vlan, n)))
	return and(isType(vlan, typeIPv6), next)
}

// qualifier is what stands before an identifier: "tcp dst port".
type qualifier struct{ proto, dir, kind string }

// Directions.
const (
	dirEither = "src or dst"
	dirBoth   = "src and dst"
)

// primitive parses a condition that is no comparison.
func (p *parser) primitive() (node, error) {
	word := p.peek()
	switch word {
	case "":
		return nil, p.unexpected()
	case "less", "greater", "vlan", "inbound", "outbound":
		p.next()
		p.last = qualifier{}
		return p.simple(word)
	}
	var q qualifier
	if _, is := protocols[word]; is || word == "ether" || etherTypes[word] != 0 {
		q.proto = p.next()
	}
	if q.proto == "" || q.proto == "ether" || q.proto == "ip" || q.proto == "ip6" {
		switch w := p.peek(); w {
		case "broadcast", "multicast":
			p.next()
			p.last = qualifier{}
			return group(q.proto, w, p.vlan)
		}
	}
	switch w := p.peek(); w {
	case "src", "dst":
		q.dir = p.next()
		other := map[string]string{"src": "dst", "dst": "src"}[w]
		if len(p.words) > 1 && p.words[1] == other {
			if p.accept("or", "||") {
				q.dir = dirEither
				p.next()
			} else if p.accept("and", "&&") {
				q.dir = dirBoth
				p.next()
			}
		}
	}
	switch w := p.peek(); w {
	case "host", "net", "port", "portrange", "proto":
		q.kind = p.next()
	}
	if q.dir == "" && q.kind == "" && !p.isIdentifier() {
		if q.proto == "" {
			return nil, unknown(p.peek())
		}
		if q.proto == "ether" {
			return nil, errors.New(`"ether" alone says nothing: ether host, ether proto, ether[...]`)
		}
		p.last = q
		return bare(q.proto, p.vlan), nil
	}
	if q == (qualifier{}) {
		q = p.last
	}
	p.last = q
	if !p.isIdentifier() {
		if p.peek() == "" {
			return nil, fmt.Errorf("what follows %q is missing", strings.TrimSpace(q.proto+" "+q.dir+" "+q.kind))
		}
		return nil, unknown(p.peek())
	}
	return p.qualified(q, p.next())
}

// isIdentifier: the next word is an address, a number or a name.
func (p *parser) isIdentifier() bool {
	w := p.peek()
	if w == "" || keywords[w] {
		return false
	}
	c := w[0]
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == ':' || c == '\\'
}

// keywords are words that are no identifier unless \ is put before them.
var keywords = func() map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields("and or not src dst host net mask port portrange proto broadcast multicast less greater vlan inbound outbound len ether ip ip6 arp rarp tcp udp sctp icmp icmp6") {
		m[w] = true
	}
	return m
}()

// simple is a primitive without qualifiers.
func (p *parser) simple(word string) (node, error) {
	switch word {
	case "inbound":
		return func(f *frame) bool { return f.inbound }, nil
	case "outbound":
		return func(f *frame) bool { return !f.inbound }, nil
	case "vlan":
		return p.vlanTag()
	}
	n, err := number(p.next())
	if err != nil {
		return nil, fmt.Errorf("%s: a length in bytes is missing: %w", word, err)
	}
	if word == "less" {
		return func(f *frame) bool { return f.length <= n }, nil
	}
	return func(f *frame) bool { return f.length >= n }, nil
}

// vlanTag: the frame has a VLAN tag. The headers of what follows in the filter begin after it.
func (p *parser) vlanTag() (node, error) {
	at := 12 + p.vlan
	n := anyOf(isType(p.vlan, 0x8100), isType(p.vlan, 0x88a8), isType(p.vlan, 0x9100))
	if id, err := number(p.peek()); err == nil {
		p.next()
		if id > 4095 {
			return nil, fmt.Errorf("vlan %d: a VLAN is 0 to 4095", id)
		}
		n = and(n, func(f *frame) bool { return f.load(uint64(at+2), 2)&0xfff == id })
	}
	p.vlan += 4
	return n, nil
}

// group is broadcast and multicast.
func group(proto, word string, vlan int) (node, error) {
	switch {
	case proto == "ip" && word == "broadcast":
		return nil, errors.New(`"ip broadcast" is not known here: use the address, as in dst host 10.0.0.255`)
	case proto == "ip6" && word == "broadcast":
		return nil, errors.New("IPv6 has no broadcast")
	case proto == "ip":
		return and(isType(vlan, typeIPv4), func(f *frame) bool { return f.load(uint64(30+vlan), 1) >= 224 }), nil
	case proto == "ip6":
		return and(isType(vlan, typeIPv6), byteIs(38+vlan, 0xff)), nil
	case word == "broadcast":
		return func(f *frame) bool { return f.load(0, 4) == 0xffffffff && f.load(4, 2) == 0xffff }, nil
	}
	return func(f *frame) bool { return f.load(0, 1)&1 != 0 }, nil
}

// bare is a protocol without an identifier.
func bare(proto string, vlan int) node {
	switch proto {
	case "icmp":
		return ipv4Protocol(vlan, protocolICMP)
	case "icmp6":
		return ipv6Protocol(vlan, protocolICMPv6)
	}
	if t := etherTypes[proto]; t != 0 {
		return isType(vlan, t)
	}
	return or(ipv6Protocol(vlan, protocols[proto]), ipv4Protocol(vlan, protocols[proto]))
}

// qualified is a primitive with an identifier.
func (p *parser) qualified(q qualifier, id string) (node, error) {
	switch q.kind {
	case "proto":
		return protoIs(q, id, p.vlan)
	case "port", "portrange":
		return portIs(q, id, p.vlan)
	}
	if q.proto == "ether" {
		return linkIs(q, id)
	}
	if _, is := protocols[q.proto]; is {
		return nil, fmt.Errorf("%q has ports, not addresses: %s and host %s", q.proto, q.proto, id)
	}
	mask := ""
	if q.kind == "net" && p.accept("mask") {
		mask = p.next()
	}
	prefix, err := prefixOf(q.kind, id, mask)
	if err != nil {
		return nil, err
	}
	return addrIs(q, prefix, p.vlan)
}

// protoIs: ip proto 6, ip6 proto \tcp, proto 17, ether proto 0x88b5.
func protoIs(q qualifier, id string, vlan int) (node, error) {
	if q.dir != "" {
		return nil, fmt.Errorf("%q and proto: a protocol has no direction", q.dir)
	}
	name := strings.TrimPrefix(id, `\`)
	if q.proto == "ether" {
		n, known := etherTypes[name]
		if !known {
			var err error
			if n, err = number(id); err != nil {
				return nil, fmt.Errorf("ether proto: %w", err)
			}
		}
		if n < minLength || n > 0xffff {
			return nil, fmt.Errorf("ether proto %s: an EtherType is 0x600 to 0xffff", id)
		}
		return isType(vlan, n), nil
	}
	n, known := protocols[name]
	if !known {
		var err error
		if n, err = number(id); err != nil {
			return nil, fmt.Errorf("proto: %w", err)
		}
	}
	if n > 255 {
		return nil, fmt.Errorf("proto %s: an IP protocol is 0 to 255", id)
	}
	switch q.proto {
	case "":
		return or(ipv4Protocol(vlan, n), ipv6Protocol(vlan, n)), nil
	case "ip":
		return ipv4Protocol(vlan, n), nil
	case "ip6":
		return ipv6Protocol(vlan, n), nil
	}
	return nil, fmt.Errorf("%q and proto: it is ip proto, ip6 proto or ether proto", q.proto)
}

// portIs: the packet is to or from a port. It follows the IP header directly.
func portIs(q qualifier, id string, vlan int) (node, error) {
	var carriers []uint32
	switch q.proto {
	case "":
		carriers = []uint32{protocolTCP, protocolUDP, protocolSCTP}
	case "tcp", "udp", "sctp":
		carriers = []uint32{protocols[q.proto]}
	default:
		return nil, fmt.Errorf("%q has no ports", q.proto)
	}
	first, last, isRange := id, id, false
	if q.kind == "portrange" {
		if first, last, isRange = strings.Cut(id, "-"); !isRange {
			last = first
		}
	}
	low, err := portNumber(q.proto, first)
	if err != nil {
		return nil, err
	}
	high, err := portNumber(q.proto, last)
	if err != nil {
		return nil, err
	}
	low, high = min(low, high), max(low, high)
	in := func(n uint32) bool { return low <= n && n <= high }
	ports := func(begin func(*frame) uint32) node {
		return either(q.dir,
			func(f *frame) bool { return in(f.load(uint64(begin(f)), 2)) },
			func(f *frame) bool { return in(f.load(uint64(begin(f))+2, 2)) })
	}
	carried := func(at int) node {
		var list []node
		for _, c := range carriers {
			list = append(list, byteIs(at, c))
		}
		return anyOf(list...)
	}
	ip6 := and(and(isType(vlan, typeIPv6), carried(20+vlan)), ports(func(*frame) uint32 { return uint32(54 + vlan) }))
	ip := and(and(isType(vlan, typeIPv4), carried(23+vlan)), and(isFirst(vlan), ports(func(f *frame) uint32 { return transport(f, vlan) })))
	return or(ip6, ip), nil
}

func portNumber(proto, id string) (uint32, error) {
	if n, err := strconv.ParseUint(id, 0, 16); err == nil {
		return uint32(n), nil
	}
	networks := []string{"tcp", "udp"}
	if proto == "tcp" || proto == "udp" {
		networks = []string{proto}
	}
	for _, network := range networks {
		if n, err := net.DefaultResolver.LookupPort(context.Background(), network, id); err == nil && !isNumber(id) {
			return uint32(n), nil
		}
	}
	return 0, fmt.Errorf("port %s: it is neither 0 to 65535 nor the name of a service", id)
}

func isNumber(s string) bool {
	_, err := strconv.Atoi(s)
	return err == nil
}

// either joins the conditions of the source and the destination by a direction.
func either(dir string, src, dst node) node {
	switch dir {
	case "src":
		return src
	case "dst":
		return dst
	case dirBoth:
		return and(src, dst)
	}
	return or(src, dst)
}

// linkIs: ether host.
func linkIs(q qualifier, id string) (node, error) {
	if q.kind == "net" {
		return nil, errors.New("ether net: MAC addresses have no networks")
	}
	mac, err := net.ParseMAC(id)
	if err != nil || len(mac) != 6 {
		return nil, fmt.Errorf("ether host %s: it is not a MAC address", id)
	}
	is := func(at int) node { return func(f *frame) bool { return string(f.bytes(at, 6)) == string(mac) } }
	return either(q.dir, is(6), is(0)), nil
}

// prefixOf is a host or a net.
func prefixOf(kind, id, mask string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(id); err == nil && mask == "" {
		if a.Zone() != "" || a.Is4In6() {
			return netip.Prefix{}, fmt.Errorf("%s: an address without a zone is needed, and IPv4 in its own form", id)
		}
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	if kind != "net" {
		if strings.ContainsAny(id, "/") {
			return netip.Prefix{}, fmt.Errorf("host %s: it is a network: net %s", id, id)
		}
		if strings.Trim(id, "0123456789.") == "" {
			return netip.Prefix{}, fmt.Errorf("host %s: it is not an address (a part of one: net %s)", id, id)
		}
		return netip.Prefix{}, unknown(id)
	}
	text, bits, hasBits := strings.Cut(id, "/")
	if a, err := netip.ParseAddr(text); err == nil && a.Is6() && mask == "" {
		p, err := netip.ParsePrefix(id)
		if err == nil && p.Masked() != p {
			err = fmt.Errorf("bits of %s are set after the prefix", text)
		}
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("net %s: %w", id, err)
		}
		return p, nil
	}
	return net4(id, text, bits, hasBits, mask)
}

// net4 is an IPv4 network; its last bytes may be left out.
func net4(id, text, bits string, hasBits bool, mask string) (p netip.Prefix, err error) {
	parts := strings.Split(text, ".")
	var b [4]byte
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 8)
		if err != nil || i >= len(b) {
			return p, fmt.Errorf("net %s: it is not a network", id)
		}
		b[i] = byte(n)
	}
	n := 8 * len(parts)
	switch {
	case hasBits && mask != "":
		return p, fmt.Errorf("net %s mask %s: it has two masks", id, mask)
	case hasBits:
		if n, err = strconv.Atoi(bits); err != nil || n < 0 || n > 32 {
			return p, fmt.Errorf("net %s: a prefix of IPv4 has 0 to 32 bits", id)
		}
	case mask != "":
		m, err := netip.ParseAddr(mask)
		if err != nil || !m.Is4() {
			return p, fmt.Errorf("net %s mask %s: the mask is not as 255.255.255.0", id, mask)
		}
		m4 := m.As4()
		var size int
		if n, size = net.IPMask(m4[:]).Size(); size == 0 {
			return p, fmt.Errorf("net %s mask %s: a mask whose bits are not the first ones is not known here", id, mask)
		}
	}
	p = netip.PrefixFrom(netip.AddrFrom4(b), n)
	if p.Masked() != p {
		return p, fmt.Errorf("net %s: bits are set after the prefix", id)
	}
	return p, nil
}

// addrIs: the packet is to or from an address of prefix. With IPv4 that is also one that ARP asks for.
func addrIs(q qualifier, prefix netip.Prefix, vlan int) (node, error) {
	in := func(at int) node { return inPrefix(at+vlan, prefix) }
	if prefix.Addr().Is6() {
		if q.proto != "" && q.proto != "ip6" {
			return nil, fmt.Errorf("%q and the IPv6 address %s", q.proto, prefix.Addr())
		}
		return and(isType(vlan, typeIPv6), either(q.dir, in(22), in(38))), nil
	}
	ip := and(isType(vlan, typeIPv4), either(q.dir, in(26), in(30)))
	arp := func(t uint32) node { return and(isType(vlan, t), either(q.dir, in(28), in(38))) }
	switch q.proto {
	case "":
		return anyOf(ip, arp(typeARP), arp(typeRARP)), nil
	case "ip":
		return ip, nil
	case "arp", "rarp":
		return arp(etherTypes[q.proto]), nil
	}
	return nil, fmt.Errorf("%q and the IPv4 address %s", q.proto, prefix.Addr())
}

// inPrefix: the address is in prefix. Only the words of it are read that have bits of the prefix.
func inPrefix(at int, prefix netip.Prefix) node {
	want := prefix.Addr().AsSlice()
	return func(f *frame) bool {
		for i := 0; i*32 < prefix.Bits(); i++ {
			mask := ^uint32(0) << max(0, 32-(prefix.Bits()-i*32))
			if (f.load(uint64(at+4*i), 4)^binary.BigEndian.Uint32(want[4*i:]))&mask != 0 || f.short {
				return false
			}
		}
		return true
	}
}
