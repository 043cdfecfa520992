package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"testing"
)

// FuzzSession: whatever a client sends, each command has exactly one reply, which is valid
// RESP2.
func FuzzSession(f *testing.F) {
	f.Add([]byte("ping\r\nlpush l a b c\r\nlrange l 0 -1\r\nlpop l 2\r\nrpop l\r\n"))
	f.Add([]byte("hset h f v\r\nhgetall h\r\nget h\r\nsadd s a\r\nspop s\r\nquit\r\n"))
	f.Add([]byte(encode("mset", "a", "1", "b", "2") + encode("incrby", "a", "-9223372036854775808") + "*1\r\n$x\r\n"))
	f.Add([]byte("lrange l -1 9223372036854775807\r\ninfo\r\ncommand\r\nconfig get save\r\n\"no\\nthing\" x\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := newServer(nil)
		p, err := talk(s, string(in))
		want := int(s.commands.Load())
		var wrong protocolError
		if errors.As(err, &wrong) {
			want++
		}
		replies, n := bufio.NewReader(bytes.NewReader(p.out.Bytes())), 0
		for {
			err := readReply(replies)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("reply %d: %v, in %q", n, err, p.out.String())
			}
			n++
		}
		if n != want {
			t.Fatalf("%d replies to %d commands: %q", n, want, p.out.String())
		}
		for key, value := range s.data {
			if fmt.Sprint(value) == "map[]" {
				t.Fatalf("an empty value at %q", key)
			}
		}
	})
}

// readReply reads and checks a reply. The error is io.EOF only before its first byte.
func readReply(r *bufio.Reader) error {
	kind, err := r.ReadByte()
	if err != nil {
		return err
	}
	line, err := r.ReadString('\n')
	if err != nil || len(line) < 2 || line[len(line)-2] != '\r' {
		return fmt.Errorf("a line that ends %q, %v", line, err)
	}
	line = line[:len(line)-2]
	if kind == '+' || kind == '-' {
		return nil
	}
	n, err := strconv.Atoi(line)
	switch {
	case err != nil:
		return err
	case kind == ':':
	case kind == '$' && n >= 0:
		b := make([]byte, n+2)
		if _, err := io.ReadFull(r, b); err != nil || string(b[n:]) != "\r\n" {
			return fmt.Errorf("a bulk string of %d bytes that ends otherwise: %v", n, err)
		}
	case kind == '*' && n >= 0:
		for range n {
			if err := readReply(r); err != nil {
				return fmt.Errorf("in an array of %d: %v", n, err)
			}
		}
	case (kind == '$' || kind == '*') && n == -1:
	default:
		return fmt.Errorf("a reply that begins %q", kind)
	}
	return nil
}
