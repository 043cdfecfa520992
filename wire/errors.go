package wire

import "errors"

// Errors of the parsers. They are returned bare: compare with ==.
var (
	// ErrTruncated: there are fewer bytes than the header needs or states.
	ErrTruncated = errors.New("truncated")
	// ErrVersion: the version field is not one that this package knows.
	ErrVersion = errors.New("unknown version")
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
