package filter

import (
	"errors"
	"fmt"
	"strconv"
)

// value is a number that depends on the frame: 32 bits, as in classic BPF.
type value func(*frame) uint32

var relations = map[string]func(a, b uint32) bool{
	"=": func(a, b uint32) bool { return a == b }, "==": func(a, b uint32) bool { return a == b }, "!=": func(a, b uint32) bool { return a != b },
	"<": func(a, b uint32) bool { return a < b }, "<=": func(a, b uint32) bool { return a <= b },
	">": func(a, b uint32) bool { return a > b }, ">=": func(a, b uint32) bool { return a >= b },
}

// precedence is that of an operator, as in libpcap's grammar; 0: it is none.
func precedence(operator string) int {
	switch operator {
	case "|", "^":
		return 1
	case "&":
		return 2
	case "<<", ">>":
		return 3
	case "+", "-":
		return 4
	case "*", "/", "%":
		return 5
	}
	return 0
}

// names are named numbers.
var names = map[string]uint32{
	"tcpflags": 13, "tcp-fin": 1, "tcp-syn": 2, "tcp-rst": 4, "tcp-push": 8, "tcp-ack": 16, "tcp-urg": 32, "tcp-ece": 64, "tcp-cwr": 128,
	"icmptype": 0, "icmpcode": 1, "icmp-echoreply": 0, "icmp-unreach": 3, "icmp-sourcequench": 4, "icmp-redirect": 5, "icmp-echo": 8,
	"icmp-routeradvert": 9, "icmp-routersolicit": 10, "icmp-timxceed": 11, "icmp-paramprob": 12,
	"icmp6type": 0, "icmp6code": 1, "icmp6-destinationunreach": 1, "icmp6-packettoobig": 2, "icmp6-timeexceeded": 3, "icmp6-parameterproblem": 4,
	"icmp6-echo": 128, "icmp6-echoreply": 129, "icmp6-routersolicit": 133, "icmp6-routeradvert": 134, "icmp6-neighborsolicit": 135, "icmp6-neighboradvert": 136,
}

func number(w string) (uint32, error) {
	n, err := strconv.ParseUint(w, 0, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of 32 bits", w)
	}
	return uint32(n), nil
}

// comparison is two values and a relation. The frame must have the headers that the values read.
func (p *parser) comparison() (node, error) {
	var needs []node
	a, err := p.value(1, &needs)
	if err != nil {
		return nil, err
	}
	relation := relations[p.peek()]
	if relation == nil {
		if p.peek() == "" {
			return nil, errors.New("a comparison is missing at the end, as in tcp[13] = 2")
		}
		return nil, fmt.Errorf("%q where a comparison is expected, as in tcp[13] = 2", p.peek())
	}
	p.next()
	b, err := p.value(1, &needs)
	if err != nil {
		return nil, err
	}
	n := func(f *frame) bool {
		x := a(f)
		if f.short {
			return false
		}
		y := b(f)
		return !f.short && relation(x, y)
	}
	for i := len(needs) - 1; i >= 0; i-- {
		n = and(needs[i], n)
	}
	p.last = qualifier{}
	return n, nil
}

// value parses operators of at least a precedence.
func (p *parser) value(least int, needs *[]node) (value, error) {
	left, err := p.operand(needs)
	for err == nil {
		operator := p.peek()
		level := precedence(operator)
		if level < least || level == 0 {
			return left, nil
		}
		p.next()
		var right value
		if right, err = p.value(level+1, needs); err == nil {
			left = operate(operator, left, right)
		}
	}
	return nil, err
}

func operate(operator string, a, b value) value {
	return func(f *frame) uint32 {
		x := a(f)
		if f.short {
			return 0
		}
		y := b(f)
		switch operator {
		case "|":
			return x | y
		case "&":
			return x & y
		case "^":
			return x ^ y
		case "<<":
			return x << y
		case ">>":
			return x >> y
		case "+":
			return x + y
		case "-":
			return x - y
		case "*":
			return x * y
		}
		if y == 0 { // classic BPF ends, and the frame does not match
			f.short = true
			return 0
		}
		if operator == "/" {
			return x / y
		}
		return x % y
	}
}

func (p *parser) operand(needs *[]node) (value, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, fmt.Errorf("more than %d levels", maxDepth)
	}
	defer func() { p.depth-- }()
	w := p.next()
	named, isNamed := names[w]
	switch {
	case w == "":
		return nil, errors.New("a number is missing at the end")
	case w == "(":
		v, err := p.value(1, needs)
		if err == nil && !p.accept(")") {
			err = errors.New("a ) is missing")
		}
		return v, err
	case w == "-":
		v, err := p.operand(needs)
		if err != nil {
			return nil, err
		}
		return func(f *frame) uint32 { return -v(f) }, nil
	case w == "len":
		return func(f *frame) uint32 { return f.length }, nil
	case isNamed:
		return constant(named), nil
	case p.peek() == "[":
		return p.bytes(w, needs)
	}
	n, err := number(w)
	return constant(n), err
}

func constant(n uint32) value { return func(*frame) uint32 { return n } }

// bytes parses what follows the name of a header: [offset] or [offset:size].
func (p *parser) bytes(header string, needs *[]node) (value, error) {
	h, known := headers[header]
	if !known {
		return nil, fmt.Errorf("%s[...]: no header of that name is known", header)
	}
	p.next()
	at, err := p.value(1, needs)
	if err != nil {
		return nil, err
	}
	size := 1
	if p.accept(":") {
		w := p.next()
		n, err := number(w)
		if err != nil || n != 1 && n != 2 && n != 4 {
			return nil, fmt.Errorf("%s[...:%s]: a size is 1, 2 or 4 bytes", header, w)
		}
		size = int(n)
	}
	if !p.accept("]") {
		return nil, errors.New("a ] is missing")
	}
	vlan := p.vlan
	if h.there != nil {
		*needs = append(*needs, h.there(vlan))
	}
	return func(f *frame) uint32 {
		begin := h.begin(f, vlan)
		if f.short {
			return 0
		}
		offset := at(f)
		if f.short {
			return 0
		}
		return f.load(uint64(begin)+uint64(offset), size)
	}, nil
}
