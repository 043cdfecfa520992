//go:build linux

package policy

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// Unlimited is the value of a limit that is not set.
const Unlimited = -1

// DefaultPorts is the default of Rule.Ports.
const DefaultPorts = 8192

// Principal is a user or a group of a rule.
type Principal struct {
	Name string // as written; *: all users
	ID   uint32
}

const everybody = "*"

// Rule gives its users and groups what its fields name, and nothing else.
type Rule struct {
	Name       string
	Line       int // of its beginning; 0: built in
	Users      []Principal
	Groups     []Principal
	Cgroups    []string // paths, in which * stands for any characters between two slashes; nil: all
	Interfaces []string // names, in which * stands for any characters
	Tags       []Pattern
	Endpoints  int64  // at once, of one uid
	Memory     int64  // bytes of segments at once, of one uid
	Ports      int64  // ports and other tags at once, of one uid
	Trusted    bool   // may attach to queues of the interface
	Queues     Queues // to these, if Trusted
	Operator   bool   // may use the commands that ask a running unetd

	// Infrastructure permits any IP protocol, and UDP as DHCP servers and routers send it,
	// from owned addresses.
	Infrastructure bool
	// NATWarn permits ports that network address translation may use for other flows, with
	// a warning in the log; otherwise they are refused.
	NATWarn bool
	// NoMemoryPaths: endpoints exchange all frames by their ports.
	NoMemoryPaths bool
	// Rates limit what endpoints on ports send.
	Rates endpoint.Rates
}

// givesQueues reports whether the rule's users may attach to queues.
func (r *Rule) givesQueues() bool { return r.Trusted && (r.Queues == nil || len(r.Queues) > 0) }

// isFor reports whether the rule names the owner. A rule with cgroups and without users and groups
// is for all users.
func (r *Rule) isFor(o mux.Owner) bool {
	if r.Cgroups != nil && !slices.ContainsFunc(r.Cgroups, func(glob string) bool { return inCgroup(o.Cgroup, glob) }) {
		return false
	}
	return len(r.Users)+len(r.Groups) == 0 || slices.ContainsFunc(r.Users, func(p Principal) bool { return p.Name == everybody || p.ID == o.UID }) ||
		slices.ContainsFunc(r.Groups, func(p Principal) bool { return p.ID == o.GID || slices.Contains(o.Groups, p.ID) })
}

// inCgroup reports whether a cgroup is one that a pattern stands for, or below one.
func inCgroup(cgroup, pattern string) bool {
	if cgroup == "" {
		return false
	}
	if pattern == "/" {
		return true
	}
	parts := strings.Split(cgroup, "/")
	depth := strings.Count(pattern, "/") + 1
	return len(parts) >= depth && matches(pattern, strings.Join(parts[:depth], "/"))
}

// matches reports whether a text is one that a pattern stands for, in which * is any characters but
// slashes. The parser refuses patterns with ? and [.
func matches(pattern, text string) bool {
	ok, err := path.Match(strings.ReplaceAll(pattern, `\`, `\\`), text)
	return ok && err == nil
}

// isOn reports whether the rule is about an interface.
func (r *Rule) isOn(interfaceName string) bool {
	return slices.ContainsFunc(r.Interfaces, func(glob string) bool { return matches(glob, interfaceName) })
}

// onAll reports whether the rule is about all interfaces.
func (r *Rule) onAll() bool { return slices.Contains(r.Interfaces, "*") }

// ports returns the ports of an address that the rule permits for tags of a kind; for a wildcard
// address, the ports of all addresses that it may become.
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

// Permits reports whether the rule permits a tag without wildcards. A pattern's port * stands for the
// ports from floor on; ports below must be named by number or in a range. All ports of a block
// must be permitted.
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

// Choices are the tags that a tag with a wildcard port or message tag may become.
type Choices struct {
	like    endpoint.Tag
	numbers spans // ports, numbers of blocks, or message tags
	// Free: the rule permits all that can be chosen, so the kernel may choose.
	Free bool
}

// Choices returns the tags that the rule permits for t. It leaves out ports below dynamic, which
// can only be claimed by number. floor is as for Permits.
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
func (c Choices) At(i uint64) endpoint.Tag {
	t, n := c.like, c.numbers.at(i)
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

// Pattern stands for the tags that a rule permits.
type Pattern struct {
	text    string
	kind    endpoint.TagKind
	prefix  netip.Prefix // addresses; not valid: all
	numbers span         // ports or message tags, if open is not set
	open    bool         // the port is *: all ports that the system does not reserve for root
}

// String is the pattern as it was written.
func (p Pattern) String() string { return p.text }

// Open reports whether the pattern's port is *.
func (p Pattern) Open() bool { return p.open }

// ParsePattern reads a pattern of tags:
//
//	udp:ADDR:PORT tcp:ADDR:PORT addr:ADDR msg:NUMBER
//
// An ADDR is an address, a prefix or *, which stands for no groups, in brackets before a port if it is of
// IPv6. A PORT or NUMBER is a number, a range N-M or *.
func ParsePattern(text string) (Pattern, error) {
	p := Pattern{text: text}
	kind, rest, found := strings.Cut(text, ":")
	if !found {
		return p, errors.New("want udp:ADDR:PORT, tcp:ADDR:PORT, addr:ADDR or msg:NUMBER")
	}
	var err error
	switch kind {
	case "udp", "tcp":
		p.kind = endpoint.TagUDP
		if kind == "tcp" {
			p.kind = endpoint.TagTCP
		}
		i := strings.LastIndexByte(rest, ':')
		if i < 0 {
			return p, fmt.Errorf("want %s:ADDR:PORT: write %s:%s:* for all ports", kind, kind, rest)
		}
		if p.prefix, err = parseHost(rest[:i]); err != nil {
			return p, err
		}
		if p.ofGroups() && p.kind == endpoint.TagTCP {
			return p, fmt.Errorf("%s is a group, which TCP has not: write udp:%s", rest[:i], rest)
		}
		p.open = rest[i+1:] == "*"
		p.numbers, err = parseNumbers("port", rest[i+1:], math.MaxUint16)
	case "addr":
		p.kind = endpoint.TagAddr
		p.prefix, err = parsePrefix(rest)
		if err == nil && p.ofGroups() {
			err = fmt.Errorf("%s is a group, which no endpoint has as a whole: write udp:%s:PORT, with an IPv6 address in brackets", rest, rest)
		}
	case "msg":
		p.kind = endpoint.TagMessage
		p.numbers, err = parseNumbers("message tag", rest, math.MaxUint32)
	default:
		err = fmt.Errorf("%q is not a kind of tag: want udp, tcp, addr or msg", kind)
	}
	return p, err
}

// parseHost reads the ADDR before a port.
func parseHost(s string) (netip.Prefix, error) {
	inner, bracket := strings.CutPrefix(s, "[")
	if !bracket {
		if strings.Contains(s, ":") {
			return netip.Prefix{}, fmt.Errorf("an IPv6 address before a port is in brackets: write [%s]", s)
		}
		return parsePrefix(s)
	}
	inner, closed := strings.CutSuffix(inner, "]")
	if !closed || !strings.Contains(inner, ":") {
		return netip.Prefix{}, fmt.Errorf("%q: brackets are for an IPv6 address or prefix, such as [fd00::1] or [fd00::/64]", s)
	}
	return parsePrefix(inner)
}

// parsePrefix reads an address, a prefix, or *, which is a prefix that is not valid.
func parsePrefix(s string) (netip.Prefix, error) {
	if s == "*" {
		return netip.Prefix{}, nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		a, addrErr := netip.ParseAddr(s)
		if addrErr != nil {
			return p, fmt.Errorf("%q is not an address: want one such as 10.0.0.1 or fd00::1, a prefix such as 10.0.0.0/24, or *", s)
		}
		if a.IsUnspecified() {
			return p, fmt.Errorf("%s is the unspecified address: write * for all addresses", s)
		}
		if a.Zone() != "" {
			return p, fmt.Errorf("%s: an address has no zone here: write %s", s, a.WithZone(""))
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	switch {
	case p.Addr().Is4In6():
		return p, fmt.Errorf("%s is an IPv4 address in IPv6 form: write it as IPv4", s)
	case p != p.Masked():
		return p, fmt.Errorf("%s has bits beyond its length: write %v", s, p.Masked())
	}
	return p, nil
}

// parseNumbers reads a number, a range or *.
func parseNumbers(what, s string, last uint32) (span, error) {
	if s == "*" {
		return span{1, last}, nil
	}
	n, ok := parseRange(s)
	switch {
	case !ok || n.last > last:
		return span{}, fmt.Errorf("%q is not a %s: want a number from 1 to %d, a range N-M, or *", s, what, last)
	case n.first == 0:
		return span{}, fmt.Errorf("%s 0 means any free one in a claim: begin at 1, or write * for all", what)
	case n.first > n.last:
		return span{}, fmt.Errorf("%q ends before it begins: write %d-%d", s, n.last, n.first)
	}
	return n, nil
}

// parseRange reads a number, or a range, which may end before it begins.
func parseRange(s string) (_ span, ok bool) {
	from, to, isRange := strings.Cut(s, "-")
	if !isRange {
		to = from
	}
	first, err := strconv.ParseUint(from, 10, 32)
	last, lastErr := strconv.ParseUint(to, 10, 32)
	return span{uint32(first), uint32(last)}, err == nil && lastErr == nil
}

// hasAddr reports whether an address is one of the pattern's; for a wildcard, whether it may become
// one. Groups have to be named: only a prefix of multicast addresses, or 255.255.255.255, has them.
func (p Pattern) hasAddr(a netip.Addr) bool {
	switch a = a.Unmap(); {
	case isGroup(a) || p.ofGroups():
		return p.ofGroups() && p.prefix.Contains(a)
	case !p.prefix.IsValid() || !a.IsValid():
		return true
	case a.IsUnspecified():
		return a.Is4() == p.prefix.Addr().Is4()
	}
	return p.prefix.Contains(a)
}

// isGroup reports whether a stands for several hosts. 255.255.255.255 stands for all broadcasts.
func isGroup(a netip.Addr) bool {
	return a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// ofGroups reports whether all addresses of the pattern are groups.
func (p Pattern) ofGroups() bool {
	a := p.prefix.Addr()
	return p.prefix.IsValid() && isGroup(a) && (!a.Is4() || p.prefix.Bits() >= 4)
}

// ports are the ports of the pattern; *: those from floor on.
func (p Pattern) ports(floor uint16) span {
	if p.open {
		return span{max(uint32(floor), 1), math.MaxUint16}
	}
	return p.numbers
}

// span is the numbers from first to last.
type span struct{ first, last uint32 }

// spans are in ascending order, and neither overlap nor adjoin.
type spans []span

// merge makes spans of numbers in any order that may overlap.
func merge(list []span) spans {
	slices.SortFunc(list, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	var merged spans
	for _, s := range list {
		if n := len(merged); n > 0 && uint64(s.first) <= uint64(merged[n-1].last)+1 {
			merged[n-1].last = max(merged[n-1].last, s.last)
		} else {
			merged = append(merged, s)
		}
	}
	return merged
}

// cover reports whether all numbers from first to last are among them.
func (s spans) cover(first, last uint32) bool {
	return slices.ContainsFunc(s, func(in span) bool { return in.first <= first && last <= in.last })
}

// from is the numbers from first on.
func (s spans) from(first uint32) spans {
	var left spans
	for _, in := range s {
		if in.last >= first {
			left = append(left, span{max(in.first, first), in.last})
		}
	}
	return left
}

// aligned are the n for which s has all numbers from n*size to n*size+size-1.
func (s spans) aligned(size uint32) spans {
	var whole spans
	for _, in := range s {
		first := (uint64(in.first) + uint64(size) - 1) / uint64(size)
		end := (uint64(in.last) + 1) / uint64(size)
		if first < end {
			whole = append(whole, span{uint32(first), uint32(end - 1)})
		}
	}
	return whole
}

func (s spans) count() uint64 {
	var n uint64
	for _, in := range s {
		n += uint64(in.last) - uint64(in.first) + 1
	}
	return n
}

// at is the i-th number.
func (s spans) at(i uint64) uint32 {
	for _, in := range s {
		if n := uint64(in.last) - uint64(in.first) + 1; i >= n {
			i -= n
		} else {
			return uint32(uint64(in.first) + i)
		}
	}
	panic("BUG: no such number in the spans")
}
