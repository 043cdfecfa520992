package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// LinkAddr is a MAC address (EUI-48). It is comparable.
type LinkAddr [6]byte

// Broadcast is the MAC address of every station.
var Broadcast = LinkAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func (a LinkAddr) String() string { return net.HardwareAddr(a[:]).String() }

// IsGroup reports whether a is a broadcast or multicast address.
func (a LinkAddr) IsGroup() bool { return a[0]&1 != 0 }

// MarshalText writes the form 02:00:00:00:00:01.
func (a LinkAddr) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads the forms of [net.ParseMAC].
func (a *LinkAddr) UnmarshalText(b []byte) error {
	hw, err := net.ParseMAC(string(b))
	if err != nil || len(hw) != len(a) {
		return fmt.Errorf("not an Ethernet address: %q", b)
	}
	*a = LinkAddr(hw)
	return nil
}

// Addr is an IP address, 16 bytes without a pointer. An IPv4 address is the IPv4-mapped one
// (RFC 4291, section 2.5.5.2). It is comparable. The zero value is the IPv6 unspecified
// address, or no address. A link-local IPv6 address may have a zone: see [Addr.WithZone].
type Addr struct{ hi, lo uint64 } // as loaded from a header, little-endian

// mapped is the lower half of Addr.lo of an IPv4 address.
const mapped = 0xffff << 16

// Wildcards: the local addresses of sockets that receive at every address. The zero value is
// the wildcard of both families.
var (
	Any4 = Addr{lo: mapped}             // of IPv4, 0.0.0.0
	Any6 = Addr{^uint64(0), ^uint64(0)} // of IPv6 only; no host has this address
)

// AddrFrom4 converts an IPv4 address.
func AddrFrom4(a [4]byte) Addr {
	return Addr{lo: uint64(binary.LittleEndian.Uint32(a[:]))<<32 | mapped}
}

// AddrFrom16 converts an IPv6 address; an IPv4-mapped one is IPv4.
func AddrFrom16(a [16]byte) Addr {
	return Addr{binary.LittleEndian.Uint64(a[:]), binary.LittleEndian.Uint64(a[8:])}
}

// AddrFrom converts from the type of package netip, without the zone. An invalid address
// becomes the zero value.
func AddrFrom(a netip.Addr) Addr {
	if a.Is4() {
		return AddrFrom4(a.As4())
	}
	return addrFrom6(a)
}

func addrFrom6(a netip.Addr) Addr {
	if !a.IsValid() {
		return Addr{}
	}
	return AddrFrom16(a.As16())
}

// Is4 reports whether a is an IPv4 address, or the wildcard of IPv4.
func (a Addr) Is4() bool { return a.hi == 0 && uint32(a.lo) == mapped }

// As4 is an IPv4 address. For an IPv6 address the result means nothing.
func (a Addr) As4() (b [4]byte) {
	binary.LittleEndian.PutUint32(b[:], uint32(a.lo>>32))
	return b
}

// As16 is the address as IPv6 headers have it.
func (a Addr) As16() (b [16]byte) {
	a.Put(b[:])
	return b
}

// Put writes the 16 bytes of an IPv6 address.
func (a Addr) Put(b []byte) {
	_ = b[15]
	binary.LittleEndian.PutUint64(b, a.unzoned())
	binary.LittleEndian.PutUint64(b[8:], a.lo)
}

// Words are the address in two words, the input of hash functions.
func (a Addr) Words() (uint64, uint64) { return a.hi, a.lo }

// Netip converts to the type of package netip. IPv4 addresses are IPv4 there, and wildcards
// the unspecified address of their family; the wildcard of both families is ::.
func (a Addr) Netip() netip.Addr {
	if a.Is4() {
		return netip.AddrFrom4(a.As4())
	}
	return a.netip6()
}

func (a Addr) netip6() netip.Addr {
	if a == Any6 {
		return netip.IPv6Unspecified()
	}
	return netip.AddrFrom16(a.As16())
}

func (a Addr) String() string { return a.Netip().String() }

// IsWildcard reports whether a is one of the three wildcards.
func (a Addr) IsWildcard() bool { return a == Addr{} || a == Any4 || a == Any6 }

// Takes reports whether a socket with the local address a receives what is sent to dst.
func (a Addr) Takes(dst Addr) bool {
	return a == dst || a == Addr{} || a == Any4 && dst.Is4() || a == Any6 && !dst.Is4()
}

// Overlaps reports whether two sockets with the local addresses a and b receive at a common
// address.
func (a Addr) Overlaps(b Addr) bool { return a.Takes(b) || b.Takes(a) }

// IsLoopback reports whether a is in 127.0.0.0/8, or ::1.
func (a Addr) IsLoopback() bool {
	if a.Is4() {
		return byte(a.lo>>32) == 127
	}
	return a == Addr{lo: 1 << 56}
}

// IsLinkLocal reports whether a is a unicast address of fe80::/10.
func (a Addr) IsLinkLocal() bool { return a.hi&0xc0ff == 0x80fe }

// An address with a zone begins with febf in place of fe80, and then has the number of the zone, where
// others have 16 of the bits that are 0 in all link-local addresses (RFC 4291, section 2.5.6).
const (
	zoneless = 0x80fe // the first two bytes, as loaded
	zoned    = 0xbffe
)

// WithZone gives an address of fe80::/64 a zone (RFC 4007), by which it differs from the same address on another
// link; 0 takes it away. Other addresses have none. The zone is in no header, no checksum and no text.
func (a Addr) WithZone(zone uint16) Addr {
	switch hi := a.unzoned(); {
	case hi != zoneless:
		return a
	case zone == 0:
		return Addr{hi, a.lo}
	}
	return Addr{zoned | uint64(zone)<<16, a.lo}
}

// Zone is the number of the zone; 0: there is none.
func (a Addr) Zone() uint16 {
	if uint32(a.hi>>32) != 0 || uint16(a.hi) != zoned {
		return 0
	}
	return uint16(a.hi >> 16)
}

// unzoned is the first half of the address without a zone.
func (a Addr) unzoned() uint64 {
	if a.Zone() != 0 {
		return zoneless
	}
	return a.hi
}

// IsHost reports whether a can be the address of one host: not one of 0.0.0.0/8, unspecified,
// multicast or reserved (RFC 1122, section 3.2.1.3; RFC 4291, section 2).
func (a Addr) IsHost() bool {
	if a.Is4() {
		return uint8(a.lo>>32)-1 < 223
	}
	return a != Addr{} && byte(a.hi) != 0xff
}

// IsMulticast reports whether a is in 224.0.0.0/4 or ff00::/8.
func (a Addr) IsMulticast() bool {
	if a.Is4() {
		return byte(a.lo>>32)>>4 == 14
	}
	return byte(a.hi) == 0xff && a != Any6
}

// IsLinkLocalMulticast reports whether the routers of a link do not forward what is sent to a, a multicast
// address: 224.0.0.0/24, and of IPv6 scope 2 and below (RFC 4291, section 2.7).
func (a Addr) IsLinkLocalMulticast() bool {
	if a.Is4() {
		return uint32(a.lo>>32)&0xffffff == 0xe0
	}
	return a.IsMulticast() && byte(a.hi>>8)&0xf <= 2
}

// GroupLink is the MAC address of a multicast address (RFC 1112, section 6.4; RFC 2464, section 7).
func GroupLink(group Addr) LinkAddr {
	if !group.Is4() {
		return MulticastLink(group.As16())
	}
	a := group.As4()
	return LinkAddr{0x01, 0x00, 0x5e, a[1] & 0x7f, a[2], a[3]}
}

// AddrPort is an address and port. It is comparable.
type AddrPort struct {
	Addr Addr
	Port uint16
}

// AddrPortFrom converts from the type of package netip, see [AddrFrom].
func AddrPortFrom(a netip.AddrPort) AddrPort { return AddrPort{AddrFrom(a.Addr()), a.Port()} }

// Netip converts to the type of package netip, see [Addr.Netip].
func (a AddrPort) Netip() netip.AddrPort { return netip.AddrPortFrom(a.Addr.Netip(), a.Port) }

// IsZero reports whether a is neither an address nor a port.
func (a AddrPort) IsZero() bool { return a == AddrPort{} }

func (a AddrPort) String() string { return a.Netip().String() }

// AddrPort4 is an IPv4 address and port, six bytes. It is comparable.
type AddrPort4 struct {
	Addr [4]byte
	Port uint16
}

// Netip converts to the type of package netip.
func (a AddrPort4) Netip() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), a.Port)
}

func (a AddrPort4) String() string { return a.Netip().String() }

// Errors of the parsers. They are returned bare: compare with ==.
var (
	// ErrTruncated: there are fewer bytes than the header needs or states.
	ErrTruncated = errors.New("truncated")
	// ErrVersion: the version is not supported.
	ErrVersion = errors.New("unknown version")
	// ErrOpcode: the opcode is unknown.
	ErrOpcode = errors.New("unknown opcode")
	// ErrLength: a length field contradicts the header itself.
	ErrLength = errors.New("impossible length")
	// ErrChecksum: the checksum does not match.
	ErrChecksum = errors.New("wrong checksum")
	// ErrReserved: bits that must be zero are not.
	ErrReserved = errors.New("reserved bits set")
	// ErrNestedVLAN: more than one VLAN tag, or a service tag.
	ErrNestedVLAN = errors.New("nested VLAN tags")
	// ErrAddressFamily: the ARP packet is not about Ethernet and IPv4.
	ErrAddressFamily = errors.New("not ARP for IPv4 over Ethernet")
)
