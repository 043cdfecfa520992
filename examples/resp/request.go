package main

import (
	"bufio"
	"bytes"
	"io"
	"slices"
)

// Bounds of a request. Memory is allocated for received bytes, not for announced ones.
const (
	maxArgs    = 1 << 20
	maxRequest = 64 << 20 // bytes of all arguments together
	readStep   = 64 << 10
)

// protocolError is a violation of RESP2. It is sent as a reply, and the connection ends.
type protocolError string

func (e protocolError) Error() string { return "Protocol error: " + string(e) }

// parser reads requests: arrays of bulk strings, or lines of words.
type parser struct {
	*bufio.Reader
	data []byte   // the arguments, without anything between them
	ends []int    // where each argument ends in data
	args [][]byte // slices of data
}

// next reads a request and returns its arguments, which are valid until it is called
// again. A request may have none. The error is io.EOF only between two requests.
func (p *parser) next() ([][]byte, error) {
	p.reset()
	first, err := p.ReadByte()
	if err != nil {
		return nil, err
	}
	if first == '*' {
		err = p.array()
	} else {
		p.UnreadByte()
		err = p.inline()
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	start := 0
	for _, end := range p.ends {
		p.args = append(p.args, p.data[start:end:end])
		start = end
	}
	return p.args, nil
}

// reset keeps buffers of the size that usual requests need.
func (p *parser) reset() {
	if cap(p.data) > readStep {
		p.data = nil
	}
	if cap(p.args) > 1024 {
		p.ends, p.args = nil, nil
	}
	p.data, p.ends, p.args = p.data[:0], p.ends[:0], p.args[:0]
}

// array reads the bulk strings of an array, after its asterisk.
func (p *parser) array() error {
	n, err := p.length("multibulk")
	if err != nil {
		return err
	}
	if n > maxArgs {
		return protocolError("invalid multibulk length")
	}
	for range n { // none, if it is negative
		if err := p.bulk(); err != nil {
			return err
		}
	}
	return nil
}

// bulk reads a bulk string.
func (p *parser) bulk() error {
	sign, err := p.ReadByte()
	if err != nil {
		return err
	}
	if sign != '$' {
		return protocolError("expected '$', got '" + printable(sign) + "'")
	}
	n, err := p.length("bulk")
	if err != nil {
		return err
	}
	if n < 0 || n > maxRequest-len(p.data) {
		return protocolError("invalid bulk length")
	}
	for n > 0 {
		step := min(n, readStep)
		at := len(p.data)
		p.data = slices.Grow(p.data, step)[:at+step]
		if _, err := io.ReadFull(p, p.data[at:]); err != nil {
			return err
		}
		n -= step
	}
	p.ends = append(p.ends, len(p.data))
	var end [2]byte
	if _, err := io.ReadFull(p, end[:]); err != nil {
		return err
	}
	if end != [2]byte{'\r', '\n'} {
		return protocolError("no CRLF after a bulk string")
	}
	return nil
}

// length reads the rest of the line, which must be a number.
func (p *parser) length(of string) (int, error) {
	line, err := p.ReadSlice('\n')
	switch {
	case err == bufio.ErrBufferFull:
		return 0, protocolError("too big " + of + " count string")
	case err != nil:
		return 0, err
	}
	digits, ok := bytes.CutSuffix(line, []byte("\r\n"))
	n, isNumber := parseInt(digits)
	if !ok || !isNumber || n != int64(int32(n)) {
		return 0, protocolError("invalid " + of + " length")
	}
	return int(n), nil
}

// printable is b for use in an error, which must be one line.
func printable(b byte) string {
	if b < ' ' || b > '~' {
		return "?"
	}
	return string(rune(b))
}

// parseInt is strconv.ParseInt for bytes. It accepts only the shortest form of a number: no
// plus sign and no leading zeros.
func parseInt(b []byte) (n int64, ok bool) {
	digits, negative := bytes.CutPrefix(b, []byte("-"))
	if len(digits) == 0 || len(digits) > 19 || digits[0] == '0' && len(b) > 1 {
		return 0, false
	}
	var u uint64 // 19 digits fit
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, false
		}
		u = u*10 + uint64(d-'0')
	}
	if negative {
		return -int64(u), u <= 1<<63
	}
	return int64(u), u < 1<<63
}
