package policy

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"

	"github.com/unet-go/unet/endpoint"
)

// Pattern stands for the tags that a rule permits.
type Pattern struct {
	text    string
	kind    endpoint.TagKind
	prefix  netip.Prefix // addresses; not valid: all
	numbers span         // ports or message tags, if open is not set
	open    bool         // the port is *: those that the system does not keep for root
}

// String is the pattern as it was written.
func (p Pattern) String() string { return p.text }

// Open reports whether the pattern's port is *.
func (p Pattern) Open() bool { return p.open }

// MarshalText makes a pattern its text in JSON.
func (p Pattern) MarshalText() ([]byte, error) { return []byte(p.text), nil }

// ParsePattern reads a pattern of tags:
//
//	udp:ADDR:PORT tcp:ADDR:PORT addr:ADDR msg:NUMBER
//
// An ADDR is an address, a prefix or *, in brackets before a port if it is of
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
		p.open = rest[i+1:] == "*"
		p.numbers, err = parseNumbers("port", rest[i+1:], math.MaxUint16)
	case "addr":
		p.kind = endpoint.TagAddr
		p.prefix, err = parsePrefix(rest)
	case "msg":
		p.kind = endpoint.TagMessage
		p.numbers, err = parseNumbers("message tag", rest, math.MaxUint32)
	default:
		err = fmt.Errorf("%q is no kind of tag: want udp, tcp, addr or msg", kind)
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

// parsePrefix reads an address, a prefix or *, which is no valid prefix.
func parsePrefix(s string) (netip.Prefix, error) {
	if s == "*" {
		return netip.Prefix{}, nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		a, addrErr := netip.ParseAddr(s)
		if addrErr != nil {
			return p, fmt.Errorf("%q is no address: want one such as 10.0.0.1 or fd00::1, a prefix such as 10.0.0.0/24, or *", s)
		}
		if a.IsUnspecified() {
			return p, fmt.Errorf("%s is the address of nobody: write * for all addresses", s)
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
	from, to, isRange := strings.Cut(s, "-")
	if !isRange {
		to = from
	}
	first, err := strconv.ParseUint(from, 10, 32)
	end, endErr := strconv.ParseUint(to, 10, 32)
	switch {
	case err != nil || endErr != nil || end > uint64(last):
		return span{}, fmt.Errorf("%q is no %s: want a number from 1 to %d, a range N-M, or *", s, what, last)
	case first == 0:
		return span{}, fmt.Errorf("%s 0 stands for any free one in a claim and cannot be held: begin at 1, or write * for all", what)
	case first > end:
		return span{}, fmt.Errorf("%q ends before it begins: write %d-%d", s, end, first)
	}
	return span{uint32(first), uint32(end)}, nil
}

// hasAddr reports whether an address is one of the pattern's, or if it is a
// wildcard, whether it may become one.
func (p Pattern) hasAddr(a netip.Addr) bool {
	switch a = a.Unmap(); {
	case !p.prefix.IsValid() || !a.IsValid():
		return true
	case a.IsUnspecified():
		return a.Is4() == p.prefix.Addr().Is4()
	}
	return p.prefix.Contains(a)
}

// ports are the ports of the pattern, of which * are those from floor on.
func (p Pattern) ports(floor uint16) span {
	if p.open {
		return span{max(uint32(floor), 1), math.MaxUint16}
	}
	return p.numbers
}
