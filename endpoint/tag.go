package endpoint

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// TagKind says which header fields a tag is about.
type TagKind uint8

const (
	TagUDP     TagKind = iota + 1 // one local UDP address and port
	TagAddr                       // a whole IPv4 address, with its ARP
	TagMessage                    // a 32-bit U-Net message tag
)

// Tag is what makes a frame an endpoint's. It is comparable.
type Tag struct {
	Kind    TagKind
	Addr    netip.Addr // TagUDP, TagAddr: the local address
	Port    uint16     // TagUDP: the local port
	Message uint32     // TagMessage: the tag in the message header
}

// UDPTag is the tag of a local UDP address and port.
func UDPTag(ap netip.AddrPort) Tag {
	return Tag{Kind: TagUDP, Addr: ap.Addr().Unmap(), Port: ap.Port()}
}

// AddrTag is the tag of a whole IPv4 address.
func AddrTag(a netip.Addr) Tag { return Tag{Kind: TagAddr, Addr: a.Unmap()} }

// MessageTag is the tag of U-Net messages to n.
func MessageTag(n uint32) Tag { return Tag{Kind: TagMessage, Message: n} }

// ErrTag is wrapped by the errors of [ParseTag].
var ErrTag = errors.New("not a tag")

// String gives the form that [ParseTag] reads: udp:10.0.0.1:7, addr:10.0.0.9,
// msg:7.
func (t Tag) String() string {
	switch t.Kind {
	case TagUDP:
		return "udp:" + netip.AddrPortFrom(t.Addr, t.Port).String()
	case TagAddr:
		return "addr:" + t.Addr.String()
	case TagMessage:
		return "msg:" + strconv.FormatUint(uint64(t.Message), 10)
	}
	return "invalid tag"
}

// ParseTag reads the form that [Tag.String] writes.
func ParseTag(s string) (Tag, error) {
	kind, rest, _ := strings.Cut(s, ":")
	switch kind {
	case "udp":
		if ap, err := netip.ParseAddrPort(rest); err == nil && ap.Addr().Unmap().Is4() {
			return UDPTag(ap), nil
		}
	case "addr":
		if a, err := netip.ParseAddr(rest); err == nil && a.Unmap().Is4() {
			return AddrTag(a), nil
		}
	case "msg":
		if n, err := strconv.ParseUint(rest, 10, 32); err == nil {
			return MessageTag(uint32(n)), nil
		}
	}
	return Tag{}, fmt.Errorf("%w: %q: want udp:ADDR:PORT, addr:ADDR or msg:NUMBER", ErrTag, s)
}

// MarshalText and UnmarshalText carry a tag in its text form.
func (t Tag) MarshalText() ([]byte, error) {
	if t.Kind < TagUDP || t.Kind > TagMessage {
		return nil, fmt.Errorf("%w: kind %d", ErrTag, t.Kind)
	}
	return []byte(t.String()), nil
}

func (t *Tag) UnmarshalText(b []byte) (err error) {
	*t, err = ParseTag(string(b))
	return err
}
