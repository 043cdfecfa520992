package filter

import (
	"encoding/binary"
	"fmt"
)

// Filter is a compiled filter. The zero value matches all frames.
type Filter struct {
	text string
	root node
}

// String is the text of the filter.
func (f Filter) String() string { return f.text }

// Compile compiles a filter. The empty text matches all frames.
func Compile(text string) (Filter, error) {
	p, err := newParser(text)
	if err != nil {
		return Filter{}, fmt.Errorf("filter %q: %w", text, err)
	}
	if p.peek() == "" {
		return Filter{text: text}, nil
	}
	root, err := p.expression()
	if err == nil && p.peek() != "" {
		err = p.unexpected()
	}
	if err != nil {
		return Filter{}, fmt.Errorf("filter %q: %w", text, err)
	}
	return Filter{text, root}, nil
}

// Match reports whether a frame matches. data is from its Ethernet header on, and may be cut; length is that
// of the whole frame, in bytes. inbound: it was received.
func (f Filter) Match(data []byte, length int, inbound bool) bool {
	if f.root == nil {
		return true
	}
	p := &frame{data: data, length: uint32(length), inbound: inbound}
	return f.root(p) && !p.short
}

// node is a condition.
type node func(*frame) bool

// frame is the frame that is looked at.
type frame struct {
	data    []byte
	length  uint32
	inbound bool
	short   bool // a byte was read that the frame does not have; or it was divided by 0
}

// load reads a number of 1, 2 or 4 bytes. If the frame has no such bytes the filter is false.
func (f *frame) load(at uint64, size int) uint32 {
	if at > uint64(len(f.data)) || uint64(len(f.data))-at < uint64(size) {
		f.short = true
		return 0
	}
	b := f.data[at:]
	switch size {
	case 1:
		return uint32(b[0])
	case 2:
		return uint32(binary.BigEndian.Uint16(b))
	}
	return binary.BigEndian.Uint32(b)
}

// bytes are n bytes; nil: the frame does not have them.
func (f *frame) bytes(at, n int) []byte {
	if len(f.data) < at+n {
		f.short = true
		return nil
	}
	return f.data[at : at+n]
}

// and evaluates b only if a holds, and nothing that follows a byte that is missing.
func and(a, b node) node { return func(f *frame) bool { return a(f) && !f.short && b(f) } }
func or(a, b node) node  { return func(f *frame) bool { return a(f) || !f.short && b(f) } }
func not(a node) node    { return func(f *frame) bool { return !a(f) } }

// anyOf is true if one of the conditions is.
func anyOf(list ...node) node {
	n := list[0]
	for _, next := range list[1:] {
		n = or(n, next)
	}
	return n
}
