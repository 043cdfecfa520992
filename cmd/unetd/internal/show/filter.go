//go:build linux

package show

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/unet-go/unet/endpoint"
)

// A filter is an expression in the language of ss(8): state, exclude, src, dst, sport, dport, and, or,
// not and parentheses; and about endpoints: endpoint, user and pid.

// row is what a filter judges: a socket, or a tag of an endpoint that has perhaps no socket.
type row struct {
	endpoint *endpoint.Status
	user     string
	socket   *endpoint.Socket // nil: tag
	tag      *endpoint.Tag    // nil, too: an endpoint without tags
}

// Filter reports whether a row is to be shown.
type Filter func(r *row) bool

// FilterWords are the words with which a part of a filter begins.
var FilterWords = []string{"state", "exclude", "src", "dst", "sport", "dport", "endpoint", "user", "pid", "not", "("}

// States are the states by which a filter can choose, first those of single sockets.
var States = []string{"established", "fin-wait-1", "fin-wait-2", "close-wait", "closing", "last-ack", "listening", "unconnected", "connected", "synchronized", "all"}

// ParseFilter reads a filter; empty text is one that shows everything. Of the error, one line
// says where the mistake is.
func ParseFilter(text string) (Filter, error) {
	p := filterParser{words: filterWords(text)}
	if len(p.words) == 0 {
		return func(*row) bool { return true }, nil
	}
	f, err := p.or()
	if err == nil && p.at < len(p.words) {
		err = fmt.Errorf("unexpected %q", p.words[p.at])
	}
	if err != nil {
		return nil, fmt.Errorf("filter: %w (word %d)", err, min(p.at, len(p.words))+1)
	}
	return f, nil
}

// filterWords splits a filter. Operators and parentheses need no spaces around them.
func filterWords(text string) (words []string) {
	for text = strings.TrimLeft(text, " \t\n"); text != ""; text = strings.TrimLeft(text, " \t\n") {
		n := 1
		switch {
		case strings.ContainsRune("()", rune(text[0])):
		case strings.ContainsRune("!=<>&|", rune(text[0])):
			if len(text) > 1 && (text[1] == '=' || text[1] == text[0] && text[0] != '!') {
				n = 2
			}
		default:
			if n = strings.IndexAny(text, " \t\n()!=<>&|"); n < 0 {
				n = len(text)
			}
		}
		words = append(words, text[:n])
		text = text[n:]
	}
	return words
}

type filterParser struct {
	words []string
	at    int
	depth int
}

// take takes the next word if it is one of these.
func (p *filterParser) take(words ...string) bool {
	if p.at < len(p.words) && slices.Contains(words, p.words[p.at]) {
		p.at++
		return true
	}
	return false
}

// next takes the next word; what describes it in the error for the end of the filter.
func (p *filterParser) next(what string) (string, error) {
	if p.at == len(p.words) {
		return "", fmt.Errorf("it ends where %s should follow", what)
	}
	p.at++
	return p.words[p.at-1], nil
}

func (p *filterParser) or() (Filter, error) {
	f, err := p.and()
	for err == nil && p.take("or", "|", "||") {
		a := f
		var b Filter
		b, err = p.and()
		f = func(r *row) bool { return a(r) || b(r) }
	}
	return f, err
}

func (p *filterParser) and() (Filter, error) {
	f, err := p.not()
	for err == nil {
		if !p.take("and", "&", "&&") && (p.at == len(p.words) || slices.Contains([]string{"or", "|", "||", ")"}, p.words[p.at])) {
			return f, nil
		}
		a := f
		var b Filter
		b, err = p.not()
		f = func(r *row) bool { return a(r) && b(r) }
	}
	return f, err
}

// maxFilterDepth bounds nested parentheses and negations.
const maxFilterDepth = 100

func (p *filterParser) not() (Filter, error) {
	if p.depth++; p.depth > maxFilterDepth {
		return nil, fmt.Errorf("more than %d expressions inside one another", maxFilterDepth)
	}
	defer func() { p.depth-- }()
	if p.take("not", "!") {
		f, err := p.not()
		return func(r *row) bool { return !f(r) }, err
	}
	if p.take("(") {
		f, err := p.or()
		if err == nil && !p.take(")") {
			err = fmt.Errorf("a parenthesis is not closed")
		}
		return f, err
	}
	return p.predicate()
}

func (p *filterParser) predicate() (Filter, error) {
	word, err := p.next("an expression")
	if err != nil {
		return nil, err
	}
	switch word {
	case "state", "exclude":
		f, err := p.state()
		if word == "exclude" && err == nil {
			return func(r *row) bool { return !f(r) }, nil
		}
		return f, err
	case "src", "dst":
		return p.address(word == "src")
	case "sport", "dport":
		return p.port(word == "sport")
	case "endpoint", "pid":
		return p.number(word)
	case "user":
		return p.user()
	}
	p.at--
	return nil, fmt.Errorf("unknown word %q: want %s", word, strings.Join(FilterWords, ", "))
}

func (p *filterParser) state() (Filter, error) {
	name, err := p.next("a state")
	if err != nil {
		return nil, err
	}
	of := func(states ...endpoint.SocketState) Filter {
		return func(r *row) bool { return r.socket != nil && slices.Contains(states, r.socket.State) }
	}
	switch name {
	case "all":
		return func(*row) bool { return true }, nil
	case "connected", "synchronized":
		f := of("listening", "unconnected")
		return func(r *row) bool { return r.socket != nil && !f(r) }, nil
	case "listen":
		name = "listening"
	case "closed":
		name = "unconnected"
	case "syn-sent", "syn-recv", "time-wait": // of ss; not published
	default:
		if !slices.Contains(States, name) {
			p.at--
			return nil, fmt.Errorf("unknown state %q: want %s", name, strings.Join(States, ", "))
		}
	}
	return of(endpoint.SocketState(name)), nil
}

// comparison reads an operator; without one, equality.
func (p *filterParser) comparison(ordered bool) (holds func(order int) bool, err error) {
	for _, c := range []struct {
		words []string
		order bool
		holds func(int) bool
	}{
		{[]string{"=", "==", "eq"}, false, func(n int) bool { return n == 0 }},
		{[]string{"!=", "ne", "neq"}, false, func(n int) bool { return n != 0 }},
		{[]string{"<", "lt"}, true, func(n int) bool { return n < 0 }},
		{[]string{"<=", "le", "leq"}, true, func(n int) bool { return n <= 0 }},
		{[]string{">", "gt"}, true, func(n int) bool { return n > 0 }},
		{[]string{">=", "ge", "geq"}, true, func(n int) bool { return n >= 0 }},
	} {
		if p.take(c.words...) {
			if c.order && !ordered {
				p.at--
				return nil, fmt.Errorf("%s does not apply here: want = or !=", p.words[p.at])
			}
			return c.holds, nil
		}
	}
	return func(n int) bool { return n == 0 }, nil
}

// end is one end of a row: an address, which may be invalid, and a range of ports.
func (r *row) end(local bool) (addr netip.Addr, first, last uint16, ok bool) {
	switch {
	case r.socket != nil:
		e := r.socket.Remote
		if local {
			e = r.socket.Local
		}
		return e.Addr(), e.Port(), e.Port(), e.IsValid()
	case r.tag != nil && local && r.tag.Kind != endpoint.TagMessage:
		if r.tag.Kind == endpoint.TagAddr {
			return r.tag.Addr, 0, 65535, true
		}
		return r.tag.Addr, r.tag.Port, r.tag.LastPort(), true
	}
	return addr, 0, 0, false
}

func (p *filterParser) port(local bool) (Filter, error) {
	holds, err := p.comparison(true)
	if err != nil {
		return nil, err
	}
	word, err := p.next("a port")
	if err != nil {
		return nil, err
	}
	port, err := portOf(strings.TrimPrefix(word, ":"))
	if err != nil {
		p.at--
		return nil, err
	}
	return func(r *row) bool {
		_, first, last, ok := r.end(local)
		return ok && anyPort(first, last, port, holds)
	}, nil
}

// anyPort reports whether a comparison holds for some port of a range: for an end of it, or for
// the port itself.
func anyPort(first, last, port uint16, holds func(int) bool) bool {
	return holds(cmp.Compare(first, port)) || holds(cmp.Compare(last, port)) || first <= port && port <= last && holds(0)
}

// portOf reads a number or the name of a service.
func portOf(word string) (uint16, error) {
	if n, err := strconv.ParseUint(word, 10, 16); err == nil {
		return uint16(n), nil
	}
	for _, network := range []string{"tcp", "udp"} {
		if n, err := net.LookupPort(network, word); err == nil && word != "" {
			return uint16(n), nil
		}
	}
	return 0, fmt.Errorf("%q is not a port: want a number to 65535 or the name of a service", word)
}

// address reads ADDRESS, ADDRESS/BITS or *, with or without :PORT, or :PORT alone.
func (p *filterParser) address(local bool) (Filter, error) {
	holds, err := p.comparison(false)
	if err != nil {
		return nil, err
	}
	word, err := p.next("an address")
	if err != nil {
		return nil, err
	}
	prefix, port, hasPort, err := prefixOf(word)
	if err != nil {
		p.at--
		return nil, err
	}
	same := func(n int) bool { return n == 0 }
	return func(r *row) bool {
		addr, first, last, ok := r.end(local)
		if !ok {
			return false
		}
		is := (!prefix.IsValid() || prefix.Contains(addr.Unmap())) && (!hasPort || anyPort(first, last, port, same))
		return is == holds(0)
	}, nil
}

func prefixOf(word string) (prefix netip.Prefix, port uint16, hasPort bool, err error) {
	wrong := fmt.Errorf("%q is not an address: want 10.0.0.1, 10.0.0.0/8, fd00::/64, [fd00::1]:80 or 10.0.0.1:80", word)
	addr, rest := word, ""
	if strings.HasPrefix(word, "[") {
		var closed bool
		if addr, rest, closed = strings.Cut(word[1:], "]"); !closed {
			return prefix, 0, false, wrong
		}
		if bits, _, _ := strings.Cut(rest, ":"); strings.HasPrefix(bits, "/") {
			addr += bits
			rest = strings.TrimPrefix(rest, bits)
		}
	} else if strings.Count(word, ":") == 1 {
		i := strings.Index(word, ":")
		addr, rest = word[:i], word[i:]
	}
	if rest != "" {
		if rest[0] != ':' {
			return prefix, 0, false, wrong
		}
		if hasPort = rest != ":*"; hasPort {
			if port, err = portOf(rest[1:]); err != nil {
				return prefix, 0, false, err
			}
		}
	}
	if addr == "" && rest != "" || addr == "*" {
		return prefix, port, hasPort, nil
	}
	if strings.Contains(addr, "/") {
		if prefix, err = netip.ParsePrefix(addr); err != nil {
			return prefix, 0, false, wrong
		}
		return prefix.Masked(), port, hasPort, nil
	}
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return prefix, 0, false, wrong
	}
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen()), port, hasPort, nil
}

// number reads the number of an endpoint or a process.
func (p *filterParser) number(word string) (Filter, error) {
	holds, err := p.comparison(false)
	if err != nil {
		return nil, err
	}
	text, err := p.next("a number")
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		p.at--
		return nil, fmt.Errorf("%q is not a number", text)
	}
	return func(r *row) bool {
		if word == "pid" {
			return holds(cmp.Compare(uint64(r.endpoint.PID), n))
		}
		return holds(cmp.Compare(r.endpoint.ID, n))
	}, nil
}

func (p *filterParser) user() (Filter, error) {
	holds, err := p.comparison(false)
	if err != nil {
		return nil, err
	}
	name, err := p.next("a user")
	return func(r *row) bool {
		is := 1
		if name == r.user || name == strconv.FormatUint(uint64(r.endpoint.UID), 10) {
			is = 0
		}
		return holds(is)
	}, err
}
