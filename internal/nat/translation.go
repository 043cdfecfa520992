//go:build linux

package nat

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// target is what a rule translates to.
type target struct {
	source      bool       // the source is translated; false: the destination
	first, last netip.Addr // new addresses; not valid: those of the interface, or unknown
	low, high   uint16     // new ports
}

// translation adds the ports of the packets of s that an expression translates.
func (w *walk) translation(c chain, e expression, s state, registers map[uint32]value) {
	t, ok := w.target(c, e, registers)
	switch {
	case !ok || t.source == w.arrives:
		return
	case t.source:
		w.source(c, t, s)
		return
	}
	// Before the translation the destination of the packets is the address. An owned address is
	// used only if a condition names it.
	if !w.shared && !s.named {
		return
	}
	if s.ports == everyPort {
		w.ports.addMay(c.String(), s.protocols, 0, 1<<16-1)
		return
	}
	for i, is := range s.protocols {
		for word, ports := range s.ports {
			if is {
				made(&w.ports.inUse[i])[word] |= ports
			}
		}
	}
}

// source adds the ports that a rule may give to a flow that leaves by the interface.
func (w *walk) source(c chain, t target, s state) {
	if t.first.IsValid() {
		if t.first.Is4() != w.addr.Is4() || w.addr.Less(t.first) || t.last.Less(w.addr) {
			return
		}
	} else if !w.shared {
		return
	}
	w.ports.addMay(c.String(), s.protocols, t.low, t.high)
}

// target reads a translating expression. ok: it may translate packets of the address.
func (w *walk) target(c chain, e expression, registers map[uint32]value) (t target, ok bool) {
	t.high = 1<<16 - 1
	switch e.name {
	case "masq":
		t.source = true
		if e.number(unix.NFTA_MASQ_FLAGS)&unix.NF_NAT_RANGE_PROTO_SPECIFIED != 0 { // without this flag the kernel ignores the ports
			t.give(registers, e.number(unix.NFTA_MASQ_REG_PROTO_MIN), e.number(unix.NFTA_MASQ_REG_PROTO_MAX))
		}
	case "redir":
	case "nat":
		if family := e.number(unix.NFTA_NAT_FAMILY); (family == unix.NFPROTO_IPV6) != w.addr.Is6() {
			return t, false
		}
		t.source = e.number(unix.NFTA_NAT_TYPE) == unix.NFT_NAT_SNAT
		t.give(registers, e.number(unix.NFTA_NAT_REG_PROTO_MIN), e.number(unix.NFTA_NAT_REG_PROTO_MAX))
		t.first, t.last = addrs(registers, e.number(unix.NFTA_NAT_REG_ADDR_MIN), e.number(unix.NFTA_NAT_REG_ADDR_MAX))
	case "target":
		switch text(e.attrs[unix.NFTA_TARGET_NAME]) {
		case "MASQUERADE", "SNAT":
			t.source = true
			if c.family == unix.NFPROTO_IPV4 && e.number(unix.NFTA_TARGET_REV) == 0 {
				t.readRange(e.attrs[unix.NFTA_TARGET_INFO])
			}
		case "DNAT", "REDIRECT":
		case "NETMAP": // translates the source or the destination, depending on the chain
			t.source = !w.arrives
		default:
			return t, false
		}
	}
	return t, true
}

// give reads the new ports from registers low and high; register 0: none.
func (t *target) give(registers map[uint32]value, low, high uint32) {
	first, last := registers[low].data, registers[high].data
	if low == 0 || len(first) < 2 || high != 0 && len(last) < 2 {
		return
	}
	t.low = binary.BigEndian.Uint16(first)
	t.high = t.low
	if high != 0 {
		t.high = binary.BigEndian.Uint16(last)
	}
}

// addrs reads addresses from registers; not valid: they are not constants.
func addrs(registers map[uint32]value, low, high uint32) (first, last netip.Addr) {
	first, ok := netip.AddrFromSlice(registers[low].data)
	if low == 0 || !ok {
		return netip.Addr{}, netip.Addr{}
	}
	if high == 0 {
		return first, first
	}
	if last, ok = netip.AddrFromSlice(registers[high].data); !ok {
		return netip.Addr{}, netip.Addr{}
	}
	return first, last
}

// readRange reads struct nf_nat_ipv4_multi_range_compat (linux/netfilter/nf_nat.h): the number of
// ranges (always 1), and flags, addresses and ports of the range.
func (t *target) readRange(info []byte) {
	if len(info) < 20 || binary.NativeEndian.Uint32(info) != 1 {
		return
	}
	flags := binary.NativeEndian.Uint32(info[4:])
	if flags&unix.NF_NAT_RANGE_MAP_IPS != 0 {
		t.first, t.last = netip.AddrFrom4([4]byte(info[8:12])), netip.AddrFrom4([4]byte(info[12:16]))
	}
	if flags&unix.NF_NAT_RANGE_PROTO_SPECIFIED != 0 {
		t.low, t.high = binary.BigEndian.Uint16(info[16:]), binary.BigEndian.Uint16(info[18:])
	}
}
