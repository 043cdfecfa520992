package wire

import (
	"errors"
	"fmt"
	"net"
)

// LinkAddr is an Ethernet (EUI-48) address. It is comparable.
type LinkAddr [6]byte

// Broadcast is the link address of every station.
var Broadcast = LinkAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// ErrLinkAddr is wrapped by the errors of [ParseLinkAddr].
var ErrLinkAddr = errors.New("not an Ethernet address")

// ParseLinkAddr reads the usual text forms, such as 02:00:00:00:00:01.
func ParseLinkAddr(s string) (LinkAddr, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != 6 {
		return LinkAddr{}, fmt.Errorf("%w: %q", ErrLinkAddr, s)
	}
	return LinkAddr(hw), nil
}

func (a LinkAddr) String() string { return net.HardwareAddr(a[:]).String() }

// IsGroup reports whether a is a broadcast or multicast address.
func (a LinkAddr) IsGroup() bool { return a[0]&1 != 0 }

// MarshalText and UnmarshalText carry a link address in its text form.
func (a LinkAddr) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

func (a *LinkAddr) UnmarshalText(b []byte) (err error) {
	*a, err = ParseLinkAddr(string(b))
	return err
}
