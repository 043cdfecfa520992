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

// AddrPort is an IPv4 address and port, six bytes without a pointer. It is comparable.
type AddrPort struct {
	Addr [4]byte // zero: the wildcard, or no address
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
