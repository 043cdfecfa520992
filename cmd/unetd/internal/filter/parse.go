package filter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxDepth is the deepest nesting of parentheses and negations.
const maxDepth = 100

type parser struct {
	words []string
	depth int
	vlan  int       // bytes by which VLAN tags have moved the headers
	last  qualifier // of the primitive before: "host a or b"
}

func newParser(text string) (*parser, error) {
	list, err := words(text)
	return &parser{words: list}, err
}

// peek is the next word; "": the end.
func (p *parser) peek() string {
	if len(p.words) == 0 {
		return ""
	}
	return p.words[0]
}

func (p *parser) next() string {
	w := p.peek()
	if w != "" {
		p.words = p.words[1:]
	}
	return w
}

// accept takes the next word if it is one of list.
func (p *parser) accept(list ...string) bool {
	if !slices.Contains(list, p.peek()) {
		return false
	}
	p.next()
	return true
}

func (p *parser) unexpected() error {
	if p.peek() == "" {
		return errors.New("it ends too early")
	}
	return fmt.Errorf("%q is not expected here", p.peek())
}

// expression is terms joined by and and or, which have the same precedence.
func (p *parser) expression() (node, error) {
	left, err := p.term()
	for err == nil {
		var right node
		switch {
		case p.accept("and", "&&"):
			if right, err = p.term(); err == nil {
				left = and(left, right)
			}
		case p.accept("or", "||"):
			if right, err = p.term(); err == nil {
				left = or(left, right)
			}
		default:
			return left, nil
		}
	}
	return nil, err
}

func (p *parser) term() (node, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, fmt.Errorf("more than %d levels", maxDepth)
	}
	defer func() { p.depth-- }()
	switch {
	case p.accept("not", "!"):
		n, err := p.term()
		if err != nil {
			return nil, err
		}
		return not(n), nil
	case p.peek() == "(" && !p.comparesAfterParentheses():
		p.next()
		n, err := p.expression()
		if err != nil {
			return nil, err
		}
		if !p.accept(")") {
			return nil, errors.New("a ) is missing")
		}
		return n, nil
	case p.isArithmetic():
		return p.comparison()
	}
	return p.primitive()
}

// comparesAfterParentheses: the parentheses hold a number, as in (tcp[12] & 0xf0) = 80.
func (p *parser) comparesAfterParentheses() bool {
	depth := 0
	for i, w := range p.words {
		switch w {
		case "(", "[":
			depth++
		case ")", "]":
			depth--
		}
		if depth == 0 {
			return i+1 < len(p.words) && (relations[p.words[i+1]] != nil || precedence(p.words[i+1]) > 0)
		}
	}
	return false
}

// isArithmetic: the next words are a number, len, or bytes of a header, that is compared.
func (p *parser) isArithmetic() bool {
	if p.peek() == "(" || p.peek() == "-" || p.peek() == "len" {
		return true
	}
	if len(p.words) < 2 {
		return false
	}
	follows := p.words[1]
	if _, is := headers[p.peek()]; is && follows == "[" {
		return true
	}
	_, isNamed := names[p.peek()]
	if _, err := number(p.peek()); err != nil && !isNamed {
		return false
	}
	return relations[follows] != nil || precedence(follows) > 0
}

// unknown explains a word that is not known.
func unknown(w string) error {
	switch {
	case w == "gateway", w == "protochain", w == "wlan", w == "mpls", w == "pppoed", w == "pppoes", w == "geneve", w == "iso", w == "ifname", w == "on",
		w == "decnet", w == "atalk", w == "stp", w == "ipx", w == "netbeui", w == "lat", w == "igmp", w == "pim", w == "vrrp", w == "ah", w == "esp", w == "igrp":
		return fmt.Errorf("%q is of tcpdump's language, but not known here", w)
	case !keywords[w] && strings.ContainsAny(w, "abcdefghijklmnopqrstuvwxyz") && !strings.ContainsAny(w, ":/"):
		return fmt.Errorf("%q is neither a keyword nor an address (names of hosts are not looked up)", w)
	}
	return fmt.Errorf("%q is not expected here", w)
}
