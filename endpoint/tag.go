package endpoint

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// TagKind is the kind of a tag: which header fields it matches.
type TagKind uint8

const (
	TagUDP     TagKind = iota + 1 // one local UDP address and port, or a block of ports
	TagTCP                        // the same for TCP
	TagAddr                       // a whole IPv4 or IPv6 address, with its ARP or neighbour discovery
	TagMessage                    // a 32-bit U-Net message tag
)

// BlockPorts is the number of ports in a block: a range of ports that is one tag. Its owner
// chooses ports in it for outgoing connections without asking unetd. A block begins at a
// multiple of its size, so that each port is in one block only, which one lookup in the
// tag table finds.
const BlockPorts = 64

// Tag names frames that an endpoint receives, and may send. It is comparable.
type Tag struct {
	Kind    TagKind
	Addr    netip.Addr // the local address, of all but TagMessage
	Port    uint16     // TagUDP, TagTCP: the local port, or the first one of a block
	Block   bool       // TagUDP, TagTCP: BlockPorts ports from Port on
	Message uint32     // TagMessage: the tag in the message header
}

// UDPTag is the tag of a local UDP address and port. Several endpoints may hold the one of a multicast group,
// or of 255.255.255.255, which stands for all broadcasts to the port.
func UDPTag(ap netip.AddrPort) Tag {
	return Tag{Kind: TagUDP, Addr: ap.Addr().Unmap(), Port: ap.Port()}
}

// TCPTag is the tag of a local TCP address and port.
func TCPTag(ap netip.AddrPort) Tag {
	return Tag{Kind: TagTCP, Addr: ap.Addr().Unmap(), Port: ap.Port()}
}

// AddrTag is the tag of a whole IPv4 or IPv6 address.
func AddrTag(a netip.Addr) Tag { return Tag{Kind: TagAddr, Addr: a.Unmap()} }

// MessageTag is the tag of U-Net messages to n.
func MessageTag(n uint32) Tag { return Tag{Kind: TagMessage, Message: n} }

// AsBlock is the tag of the block that the port of a UDP or TCP tag is in. For port 0 it
// asks for any free block.
func (t Tag) AsBlock() Tag {
	t.Port -= t.Port % BlockPorts
	t.Block = true
	return t
}

// LastPort is the last port of a UDP or TCP tag.
func (t Tag) LastPort() uint16 {
	if t.Block {
		return t.Port + BlockPorts - 1
	}
	return t.Port
}

// ErrTag is wrapped by the errors of [ParseTag].
var ErrTag = errors.New("not a tag")

// String gives the form that [ParseTag] reads: udp:10.0.0.1:7, tcp:[fd00::1]:80,
// tcp:10.0.0.1:32768-32831, addr:10.0.0.9, msg:7.
func (t Tag) String() string {
	switch t.Kind {
	case TagUDP:
		return "udp:" + t.ports()
	case TagTCP:
		return "tcp:" + t.ports()
	case TagAddr:
		return "addr:" + t.Addr.String()
	case TagMessage:
		return "msg:" + strconv.FormatUint(uint64(t.Message), 10)
	}
	return "invalid tag"
}

func (t Tag) ports() string {
	text := netip.AddrPortFrom(t.Addr, t.Port).String()
	if t.Block {
		text += "-" + strconv.Itoa(int(t.LastPort()))
	}
	return text
}

// maxTagText is the length of the longest text of a tag, in bytes: a block of ports of an IPv6
// address that ends with an IPv4 address.
const maxTagText = len("tcp:[0000:0000:0000:0000:0000:0000:255.255.255.255]:65472-65535")

// ParseTag reads the form that [Tag.String] writes.
func ParseTag(s string) (Tag, error) {
	if len(s) > maxTagText {
		return Tag{}, fmt.Errorf("%w: a text of %d bytes: at most %d", ErrTag, len(s), maxTagText)
	}
	kind, rest, _ := strings.Cut(s, ":")
	switch kind {
	case "udp", "tcp":
		if t, err := parsePorts(rest); err == nil {
			t.Kind = TagUDP
			if kind == "tcp" {
				t.Kind = TagTCP
			}
			return t, nil
		}
	case "addr":
		if a, err := netip.ParseAddr(rest); err == nil && a.Zone() == "" {
			return AddrTag(a), nil
		}
	case "msg":
		if n, err := strconv.ParseUint(rest, 10, 32); err == nil {
			return MessageTag(uint32(n)), nil
		}
	}
	return Tag{}, fmt.Errorf("%w: %q: want udp:ADDR:PORT, tcp:ADDR:PORT (or %d ports from a multiple of that on, as PORT-PORT), addr:ADDR or msg:NUMBER", ErrTag, s, BlockPorts)
}

// parsePorts reads ADDR:PORT or ADDR:PORT-PORT.
func parsePorts(s string) (Tag, error) {
	first, last, block := s, "", false
	if i := strings.LastIndexByte(s, '-'); i >= 0 {
		first, last, block = s[:i], s[i+1:], true
	}
	ap, err := netip.ParseAddrPort(first)
	if err != nil {
		return Tag{}, err
	}
	t := Tag{Addr: ap.Addr().Unmap(), Port: ap.Port(), Block: block}
	if t.Addr.Zone() != "" || block && (t.Port%BlockPorts != 0 || last != strconv.Itoa(int(t.LastPort()))) {
		return Tag{}, ErrTag
	}
	return t, nil
}

// MarshalText and UnmarshalText encode a tag as [Tag.String] does.
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
