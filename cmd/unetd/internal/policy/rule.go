package policy

import (
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/unet-go/unet/endpoint"
)

// Unlimited as a limit of a rule is none.
const Unlimited = -1

// DefaultPorts is Rule.Ports where a rule does not say it.
const DefaultPorts = 8192

// Principal is a user or a group of a rule.
type Principal struct {
	Name string // as written; * is everybody
	ID   uint32
}

const everybody = "*"

// Rule gives those whom it is for what its fields say, and nothing else.
type Rule struct {
	Name       string
	Line       int // where it begins; 0: in no file
	Users      []Principal
	Groups     []Principal
	Interfaces []string // names, in which * stands for any characters
	Tags       []Pattern
	Endpoints  int64 // at once, of one uid
	Memory     int64 // bytes of segments at once, of one uid
	Ports      int64 // ports and other tags at once, of one uid
	Trusted    bool  // may attach to queues of the interface
	Operator   bool  // may list endpoints and read counters

	// From their whole addresses they may send any IP protocol, and UDP as servers of
	// DHCP and as routers do.
	Infrastructure bool
	// NATWarn says that a port which network address translation may use for others is
	// permitted, with a warning in the log; otherwise it is refused.
	NATWarn bool
}

// Subject is who asks.
type Subject struct {
	UID, GID uint32
	Groups   []uint32 // supplementary
}

// isFor reports whether the rule names the subject.
func (r *Rule) isFor(s Subject) bool {
	return slices.ContainsFunc(r.Users, func(p Principal) bool { return p.Name == everybody || p.ID == s.UID }) ||
		slices.ContainsFunc(r.Groups, func(p Principal) bool { return p.ID == s.GID || slices.Contains(s.Groups, p.ID) })
}

// isOn reports whether the rule is about an interface.
func (r *Rule) isOn(interfaceName string) bool {
	return slices.ContainsFunc(r.Interfaces, func(glob string) bool { return matches(glob, interfaceName) })
}

// onAll reports whether there is no interface that the rule is not about.
func (r *Rule) onAll() bool { return slices.Contains(r.Interfaces, "*") }

// matches: * stands for any characters, or none.
func matches(glob, name string) bool {
	head, rest, star := strings.Cut(glob, "*")
	if !star {
		return glob == name
	}
	name, ok := strings.CutPrefix(name, head)
	if !ok {
		return false
	}
	for {
		part, next, star := strings.Cut(rest, "*")
		if !star {
			return strings.HasSuffix(name, part)
		}
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name, rest = name[i+len(part):], next
	}
}

// ports are those of an address that the rule permits for tags of a kind. If the
// address is a wildcard they are those of any address that it may become.
func (r *Rule) ports(kind endpoint.TagKind, addr netip.Addr, floor uint16) spans {
	var list []span
	for _, p := range r.Tags {
		if p.kind == kind && p.hasAddr(addr) {
			list = append(list, p.ports(floor))
		}
	}
	return merge(list)
}

// messages are the message tags that the rule permits.
func (r *Rule) messages() spans {
	var list []span
	for _, p := range r.Tags {
		if p.kind == endpoint.TagMessage {
			list = append(list, p.numbers)
		}
	}
	return merge(list)
}

// Permits reports whether the rule permits a tag without wildcards. Of the
// ports below floor it permits those alone that a pattern names, by number or in
// a range: a port * is about the others. All ports of a block have to be permitted.
func (r *Rule) Permits(t endpoint.Tag, floor uint16) bool {
	t.Addr = t.Addr.Unmap()
	switch t.Kind {
	case endpoint.TagUDP, endpoint.TagTCP:
		return r.ports(t.Kind, t.Addr, floor).cover(uint32(t.Port), uint32(t.LastPort()))
	case endpoint.TagAddr:
		return slices.ContainsFunc(r.Tags, func(p Pattern) bool { return p.kind == endpoint.TagAddr && p.hasAddr(t.Addr) })
	case endpoint.TagMessage:
		return r.messages().cover(t.Message, t.Message)
	}
	return false
}

// Choices are the tags that a tag with wildcards may become. Of an address that
// is a wildcard they say nothing: that one is left to others to choose, and then
// to be asked about.
type Choices struct {
	like    endpoint.Tag
	numbers spans // ports, numbers of blocks, or message tags
	// Free says that the rule permits whatever can be chosen, so that the choice
	// can be left to those who know what is free.
	Free bool
}

// Choices are those that the rule permits. Of the ports below dynamic none is
// chosen: they are for those who ask for them by number. floor is that of Permits.
func (r *Rule) Choices(t endpoint.Tag, floor, dynamic uint16) Choices {
	c := Choices{like: t}
	switch {
	case t.Kind == endpoint.TagMessage:
		c.numbers = r.messages()
		c.Free = c.numbers.cover(1, math.MaxUint32)
	case t.Port != 0:
		if permitted := r.ports(t.Kind, t.Addr, floor); permitted.cover(uint32(t.Port), uint32(t.LastPort())) {
			c.numbers = spans{{uint32(t.Port), uint32(t.Port)}}
		}
	default:
		first := max(uint32(dynamic), 1)
		c.numbers = r.ports(t.Kind, t.Addr, uint16(first)).from(first)
		c.Free = c.numbers.cover(first, math.MaxUint16)
		if t.Block {
			c.numbers = c.numbers.aligned(endpoint.BlockPorts)
		}
	}
	return c
}

// Count is how many there are.
func (c Choices) Count() uint64 { return c.numbers.count() }

// At is the i-th of them.
func (c Choices) At(i uint64) endpoint.Tag { return c.tag(c.numbers.at(i)) }

func (c Choices) tag(n uint32) endpoint.Tag {
	t := c.like
	switch {
	case t.Kind == endpoint.TagMessage:
		t.Message = n
	case t.Block && t.Port == 0:
		t.Port = uint16(n * endpoint.BlockPorts)
	default:
		t.Port = uint16(n)
	}
	return t
}
