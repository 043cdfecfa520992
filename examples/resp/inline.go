package main

import (
	"bufio"
	"bytes"
	"strings"
)

// inline reads a request that is a line of words, as a person types it. Words may be
// quoted: \n \r \t \b \a \xHH \" \\ are escapes between double quotes, \' between single
// ones.
func (p *parser) inline() error {
	line, err := p.ReadSlice('\n')
	switch {
	case err == bufio.ErrBufferFull:
		return protocolError("too big inline request")
	case err != nil:
		return err
	}
	line = bytes.TrimSuffix(line[:len(line)-1], []byte("\r"))
	for {
		line = bytes.TrimLeft(line, " \t\r\n\v\f\x00")
		if len(line) == 0 {
			return nil
		}
		var ok bool
		if line, ok = p.word(line); !ok {
			return protocolError("unbalanced quotes in request")
		}
		p.ends = append(p.ends, len(p.data))
	}
}

// word reads a word of a line and returns the rest of the line. A word ends with its
// closing quote.
func (p *parser) word(line []byte) (rest []byte, ok bool) {
	var quote byte
	for len(line) > 0 {
		b := line[0]
		switch {
		case quote == 0 && isSpace(b):
			return line, true
		case quote == 0 && (b == '"' || b == '\''):
			quote = b
		case quote != 0 && b == quote:
			line = line[1:]
			return line, len(line) == 0 || isSpace(line[0])
		case quote == '"' && b == '\\' && len(line) > 1:
			b, line = escape(line[1:])
			p.data = append(p.data, b)
			continue
		case quote == '\'' && bytes.HasPrefix(line, []byte(`\'`)):
			line = line[1:]
			p.data = append(p.data, '\'')
		default:
			p.data = append(p.data, b)
		}
		line = line[1:]
	}
	return nil, quote == 0
}

// escape reads the characters after a backslash.
func escape(line []byte) (b byte, rest []byte) {
	if len(line) >= 3 && line[0] == 'x' {
		high, low := strings.IndexByte(hexDigits, lower(line[1])), strings.IndexByte(hexDigits, lower(line[2]))
		if high >= 0 && low >= 0 {
			return byte(high<<4 | low), line[3:]
		}
	}
	if i := strings.IndexByte("nrtba", line[0]); i >= 0 {
		return "\n\r\t\b\a"[i], line[1:]
	}
	return line[0], line[1:]
}

const hexDigits = "0123456789abcdef"

func isSpace(b byte) bool { return strings.IndexByte(" \t\r\n\v\f\x00", b) >= 0 }

func lower(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		b += 'a' - 'A'
	}
	return b
}
