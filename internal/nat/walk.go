//go:build linux

package nat

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// walk evaluates the rules for the packets of one address.
type walk struct {
	rules   *rules
	ports   *Ports
	link    Link
	addr    netip.Addr
	shared  bool
	arrives bool // packets to the address (prerouting); false: packets that leave (postrouting)
	steps   int  // number of rules that may still be evaluated
}

// state describes the packets that meet the conditions evaluated so far.
type state struct {
	protocols [protocols]bool
	ports     set  // destination ports of arriving packets
	named     bool // a condition names the address
}

// value is the value of a register of nftables: one of its fields, or unknown if none is set.
type value struct {
	meta    uint32 // key of the metadata, plus 1; 0: no metadata
	payload *field
	data    []byte // a constant
}

// field is a part of a packet.
type field struct {
	base, offset, length uint32
	mask                 []byte // nil: all bits
}

// chain evaluates a chain. After a rule with a verdict such as accept it evaluates the next rule:
// it is not known whether all packets match the conditions of the first.
func (w *walk) chain(c chain, s state, depth int) {
	const deepest = 16 // NFT_JUMP_STACK_SIZE, net/netfilter/nf_tables.h
	if depth > deepest {
		return
	}
	for _, rule := range w.rules.of(c) {
		if w.steps--; w.steps < 0 {
			return
		}
		s, registers := s, map[uint32]value{}
		for _, e := range rule {
			if !w.step(c, e, &s, registers, depth) {
				break
			}
		}
	}
}

// step evaluates one expression of a rule. It returns false if no packet reaches the next one.
func (w *walk) step(c chain, e expression, s *state, registers map[uint32]value, depth int) bool {
	switch e.name {
	case "meta":
		if to := e.number(unix.NFTA_META_DREG); to != 0 {
			registers[to] = value{meta: e.number(unix.NFTA_META_KEY) + 1}
		}
	case "payload":
		if to := e.number(unix.NFTA_PAYLOAD_DREG); to != 0 {
			registers[to] = value{payload: &field{e.number(unix.NFTA_PAYLOAD_BASE), e.number(unix.NFTA_PAYLOAD_OFFSET), e.number(unix.NFTA_PAYLOAD_LEN), nil}}
		}
	case "immediate":
		if to := e.number(unix.NFTA_IMMEDIATE_DREG); to != unix.NFT_REG_VERDICT {
			registers[to] = value{data: e.data(unix.NFTA_IMMEDIATE_DATA)}
			break
		}
		w.verdict(c, nested(e.attrs[unix.NFTA_IMMEDIATE_DATA], unix.NFTA_DATA_VERDICT), *s, depth)
		return false
	case "bitwise":
		registers[e.number(unix.NFTA_BITWISE_DREG)] = masked(e, registers[e.number(unix.NFTA_BITWISE_SREG)])
	case "cmp":
		return w.compare(s, registers[e.number(unix.NFTA_CMP_SREG)], e.number(unix.NFTA_CMP_OP), e.data(unix.NFTA_CMP_DATA))
	case "range":
		first, last := e.data(unix.NFTA_RANGE_FROM_DATA), e.data(unix.NFTA_RANGE_TO_DATA)
		if w.isDestinationPort(registers[e.number(unix.NFTA_RANGE_SREG)]) && len(first) == 2 && len(last) == 2 {
			return s.narrow(ports(binary.BigEndian.Uint16(first), binary.BigEndian.Uint16(last)), e.number(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ)
		}
	case "lookup":
		return w.lookup(c, s, e, registers, depth)
	case "match":
		return w.match(s, e)
	case "masq", "nat", "redir", "target":
		w.translation(c, e, *s, registers)
		return false
	case "counter", "limit", "quota", "log", "objref", "last", "connlimit":
	default: // an unknown expression: it may have written a register
		clear(registers)
	}
	return true
}

// verdict evaluates the chain that a jump or goto leads to.
func (w *walk) verdict(c chain, attrs []byte, s state, depth int) {
	switch int32(number(nested(attrs, unix.NFTA_VERDICT_CODE))) {
	case unix.NFT_JUMP, unix.NFT_GOTO:
		w.chain(chain{c.family, c.table, text(nested(attrs, unix.NFTA_VERDICT_CHAIN))}, s, depth+1)
	}
}

// masked is v with the mask of a bitwise expression; unknown if the expression does more.
func masked(e expression, v value) value {
	mask, xor := e.data(unix.NFTA_BITWISE_MASK), e.data(unix.NFTA_BITWISE_XOR)
	if v.payload == nil || v.payload.mask != nil || mask == nil || len(bytes.Trim(xor, "\x00")) > 0 {
		return value{} // also a shift, which has no mask
	}
	f := *v.payload
	f.mask = mask
	return value{payload: &f}
}

// compare narrows s to the packets for which the comparison of v with data by op is true. It
// returns false if there are none. An unknown v narrows nothing.
func (w *walk) compare(s *state, v value, op uint32, data []byte) bool {
	if w.isDestinationPort(v) && len(data) == 2 {
		return s.comparePort(op, binary.BigEndian.Uint16(data))
	}
	equal := op == unix.NFT_CMP_EQ
	if !equal && op != unix.NFT_CMP_NEQ {
		return true
	}
	if v.meta > 0 {
		return w.compareMeta(s, v.meta-1, data, equal)
	}
	if f := v.payload; f != nil && f.base == unix.NFT_PAYLOAD_NETWORK_HEADER && int(f.length) == len(data) {
		switch {
		case f.offset == w.protocolOffset() && f.length == 1 && f.mask == nil:
			return s.restrict(data[0], equal)
		case f.offset == w.destinationOffset() && w.arrives:
			return w.compareAddr(s, f.mask, data, equal)
		}
	}
	return true
}

func (w *walk) compareMeta(s *state, key uint32, data []byte, equal bool) bool {
	name, index := uint32(unix.NFT_META_OIFNAME), uint32(unix.NFT_META_OIF)
	if w.arrives {
		name, index = unix.NFT_META_IIFNAME, unix.NFT_META_IIF
	}
	switch {
	case key == name:
		return w.isName(data) == equal
	case key == index && len(data) == 4:
		return (int(binary.NativeEndian.Uint32(data)) == w.link.Index) == equal
	case key == unix.NFT_META_L4PROTO && len(data) == 1:
		return s.restrict(data[0], equal)
	case key == unix.NFT_META_NFPROTO && len(data) == 1:
		return ((data[0] == unix.NFPROTO_IPV6) == w.addr.Is6()) == equal
	}
	return true
}

// isName compares the interface's name with data as the kernel does: without a NUL at its end
// data is a prefix.
func (w *walk) isName(data []byte) bool {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return string(data[:i]) == w.link.Name
	}
	return strings.HasPrefix(w.link.Name, string(data))
}

func (w *walk) protocolOffset() uint32 {
	if w.addr.Is6() {
		return 6
	}
	return 9
}

func (w *walk) destinationOffset() uint32 {
	if w.addr.Is6() {
		return 24
	}
	return 16
}

// isDestinationPort reports whether v is the destination port of an arriving packet. The
// destination port of a leaving packet does not limit the source ports that it can get.
func (w *walk) isDestinationPort(v value) bool {
	return w.arrives && v.payload != nil && v.payload.mask == nil && v.payload.base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && v.payload.offset == 2 && v.payload.length == 2
}

// compareAddr compares the first bytes of the address, after a mask, with data.
func (w *walk) compareAddr(s *state, mask, data []byte, equal bool) bool {
	own := w.addr.AsSlice()
	if len(data) > len(own) || mask != nil && len(mask) != len(data) {
		return true
	}
	own = slices.Clone(own[:len(data)])
	for i := range mask {
		own[i] &= mask[i]
	}
	same := bytes.Equal(own, data)
	if same && equal {
		s.named = true
	}
	return same == equal
}

// restrict narrows s to a protocol (equal) or to all others.
func (s *state) restrict(protocol byte, equal bool) bool {
	s.protocols[udp] = s.protocols[udp] && (protocol == unix.IPPROTO_UDP) == equal
	s.protocols[tcp] = s.protocols[tcp] && (protocol == unix.IPPROTO_TCP) == equal
	return s.protocols[udp] || s.protocols[tcp]
}

func (s *state) comparePort(op uint32, port uint16) bool {
	at := ports(port, port)
	switch op {
	case unix.NFT_CMP_EQ:
		return s.narrow(at, false)
	case unix.NFT_CMP_NEQ:
		return s.narrow(at, true)
	case unix.NFT_CMP_LT:
		return s.narrow(ports(0, port), false) && s.narrow(at, true)
	case unix.NFT_CMP_LTE:
		return s.narrow(ports(0, port), false)
	case unix.NFT_CMP_GT:
		return s.narrow(ports(port, 1<<16-1), false) && s.narrow(at, true)
	case unix.NFT_CMP_GTE:
		return s.narrow(ports(port, 1<<16-1), false)
	}
	return true
}

// narrow narrows s to ports, or to all others.
func (s *state) narrow(to set, invert bool) bool {
	for i, ports := range to {
		if invert {
			ports = ^ports
		}
		s.ports[i] &= ports
	}
	return s.ports != set{}
}

// lookup evaluates a look-up in a set or a map.
func (w *walk) lookup(c chain, s *state, e expression, registers map[uint32]value, depth int) bool {
	v := registers[e.number(unix.NFTA_LOOKUP_SREG)]
	byPort, byProtocol := w.isDestinationPort(v), v.meta == unix.NFT_META_L4PROTO+1
	_, isMap := e.attrs[unix.NFTA_LOOKUP_DREG]
	to := e.number(unix.NFTA_LOOKUP_DREG)
	if isMap {
		delete(registers, to)
	}
	verdicts := isMap && to == unix.NFT_REG_VERDICT
	if !byPort && !byProtocol && !verdicts {
		return true
	}
	elements := w.rules.elements(chain{c.family, c.table, text(e.attrs[unix.NFTA_LOOKUP_SET])})
	if elements == nil {
		if verdicts && w.rules.err == nil { // it may jump to any chain
			w.rules.err = fmt.Errorf("map %s of %v", text(e.attrs[unix.NFTA_LOOKUP_SET]), c)
		}
		return true
	}
	if verdicts { // of any element
		for i, el := range elements {
			s := *s
			if in, ok := portsOf(elements[i : i+1]); byPort && ok && !hasIntervals(elements) && !s.narrow(in, false) {
				continue
			}
			w.verdict(c, el.verdict, s, depth)
		}
		return true // the packet may match no element, and then the next expression is evaluated
	}
	invert := e.number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0
	if byProtocol {
		return s.restrictTo(elements, invert)
	}
	if in, ok := portsOf(elements); ok {
		return s.narrow(in, invert)
	}
	return true
}

// restrictTo narrows s to the protocols in a set, or to all others.
func (s *state) restrictTo(list []element, invert bool) bool {
	if hasIntervals(list) || slices.ContainsFunc(list, func(e element) bool { return len(e.key) == 0 || e.last != nil }) {
		return true
	}
	for i, number := range [protocols]byte{udp: unix.IPPROTO_UDP, tcp: unix.IPPROTO_TCP} {
		in := slices.ContainsFunc(list, func(e element) bool { return len(e.key) > 0 && e.key[0] == number })
		s.protocols[i] = s.protocols[i] && in != invert
	}
	return s.protocols[udp] || s.protocols[tcp]
}

func hasIntervals(list []element) bool {
	return slices.ContainsFunc(list, func(e element) bool { return e.end })
}

// portsOf are the ports in a set; false: the set has other keys. An interval is two elements: its
// first port, and the port after its last one, which is marked as an end.
func portsOf(list []element) (in set, ok bool) {
	for _, e := range list {
		if len(e.key) < 2 || e.last != nil || len(bytes.Trim(e.key[2:], "\x00")) > 0 {
			return in, false
		}
	}
	port := func(e element) uint16 { return binary.BigEndian.Uint16(e.key) }
	intervals := hasIntervals(list)
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b element) int {
		if port(a) == port(b) && a.end != b.end { // the next interval follows directly
			if a.end {
				return -1
			}
			return 1
		}
		return int(port(a)) - int(port(b))
	})
	for i, e := range list {
		switch {
		case e.end:
		case !intervals:
			in.add(port(e), port(e))
		case i+1 < len(list):
			in.add(port(e), port(list[i+1])-1)
		default:
			in.add(port(e), 1<<16-1)
		}
	}
	return in, true
}

// match evaluates a condition of iptables that has no expression of nftables. struct xt_tcp and
// xt_udp begin with the first and last source and destination port, in host byte order; flags
// invert them.
func (w *walk) match(s *state, e expression) bool {
	const inverted = 2 // XT_TCP_INV_DSTPT, XT_UDP_INV_DSTPT
	info := e.attrs[unix.NFTA_MATCH_INFO]
	var flags byte
	switch name := text(e.attrs[unix.NFTA_MATCH_NAME]); {
	case name == "tcp" && len(info) >= 12:
		if !s.restrict(unix.IPPROTO_TCP, true) {
			return false
		}
		flags = info[11]
	case name == "udp" && len(info) >= 9:
		if !s.restrict(unix.IPPROTO_UDP, true) {
			return false
		}
		flags = info[8]
	default:
		return true
	}
	to := ports(binary.NativeEndian.Uint16(info[4:]), binary.NativeEndian.Uint16(info[6:]))
	return !w.arrives || s.narrow(to, flags&inverted != 0)
}
