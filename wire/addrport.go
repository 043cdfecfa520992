package wire

import (
	"encoding/binary"
	"net/netip"
)

// AddrPort is an IPv4 address and port. Unlike netip.AddrPort it is six bytes
// without a pointer: it is written for every datagram. It is comparable.
type AddrPort struct {
	Addr [4]byte // zero: the wildcard, or nobody
	Port uint16
}

// AddrPortFrom converts an IPv4 (or IPv4-mapped) address. The zero value and the
// unspecified addresses of both families become the wildcard. ok is false for
// any other IPv6 address.
func AddrPortFrom(a netip.AddrPort) (_ AddrPort, ok bool) {
	addr := a.Addr().Unmap()
	switch {
	case addr.Is4():
		return AddrPort{addr.As4(), a.Port()}, true
	case !addr.IsValid(), addr.IsUnspecified():
		return AddrPort{Port: a.Port()}, true
	}
	return AddrPort{}, false
}

// Netip converts to the type of package netip.
func (a AddrPort) Netip() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), a.Port)
}

// IsZero reports whether a is neither an address nor a port.
func (a AddrPort) IsZero() bool { return a == AddrPort{} }

func (a AddrPort) String() string { return a.Netip().String() }

// Word packs address and port into one word, the key of tables.
func (a AddrPort) Word() uint64 {
	return uint64(binary.BigEndian.Uint32(a.Addr[:]))<<16 | uint64(a.Port)
}

// AddrPortOf is the inverse of [AddrPort.Word].
func AddrPortOf(word uint64) (a AddrPort) {
	binary.BigEndian.PutUint32(a.Addr[:], uint32(word>>16))
	a.Port = uint16(word)
	return a
}
