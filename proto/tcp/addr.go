package tcp

import (
	"encoding/binary"
	"net/netip"
)

// AddrPort is an IPv4 address and port. Unlike netip.AddrPort it is six bytes
// without a pointer. It is comparable.
type AddrPort struct {
	Addr [4]byte // zero: the wildcard
	Port uint16
}

// FromNetip converts an IPv4 (or IPv4-mapped) address. The zero value and the
// unspecified addresses of both families become the wildcard. ok is false for
// any other IPv6 address.
func FromNetip(a netip.AddrPort) (_ AddrPort, ok bool) {
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

func (a AddrPort) String() string { return a.Netip().String() }

func (a AddrPort) word() uint64 {
	return uint64(binary.BigEndian.Uint32(a.Addr[:]))<<16 | uint64(a.Port)
}

func unpack(word uint64) (a AddrPort) {
	binary.BigEndian.PutUint32(a.Addr[:], uint32(word>>16))
	a.Port = uint16(word)
	return a
}

// tuple names a connection: both its ends, each packed in a word.
type tuple struct{ local, remote uint64 }

func makeTuple(local, remote AddrPort) tuple { return tuple{local.word(), remote.word()} }

func (t tuple) localPort() uint16 { return uint16(t.local) }

// usable reports whether a is an address that one host can have. What comes
// from or goes to any other must be left unanswered (RFC 9293, MUST-46, MUST-57).
func usable(a [4]byte) bool { return a[0] != 0 && a[0] < 224 }
