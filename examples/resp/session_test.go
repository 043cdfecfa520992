package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// peer is the client's end of a session, in memory: a Read gets bytes of one of parts.
type peer struct {
	net.Conn
	parts  []string
	before []string // what had been written when each Read began
	out    bytes.Buffer
	writes int
}

func (p *peer) Read(b []byte) (int, error) {
	p.before = append(p.before, p.out.String())
	if len(p.parts) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.parts[0])
	if p.parts[0] = p.parts[0][n:]; p.parts[0] == "" {
		p.parts = p.parts[1:]
	}
	return n, nil
}

func (p *peer) Write(b []byte) (int, error) {
	p.writes++
	return p.out.Write(b)
}

// talk runs a session over what a client sends.
func talk(s *server, parts ...string) (*peer, error) {
	p := &peer{parts: parts}
	return p, newSession(s, p).serve()
}

func TestCommands(t *testing.T) {
	const wrongType = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
	s := newServer(nil)
	for _, c := range []struct{ in, want string }{
		{"ping", "+PONG\r\n"},
		{"PiNg hello", "$5\r\nhello\r\n"},
		{"ping a b", "-ERR wrong number of arguments for 'ping' command\r\n"},
		{"echo \"\"", "$0\r\n\r\n"},
		{"nothing a b", "-ERR unknown command 'nothing', with args beginning with: 'a' 'b' \r\n"},
		{`"no\r\nthing"`, "-ERR unknown command 'no  thing', with args beginning with: \r\n"},
		{"select 0", "+OK\r\n"},
		{"select 1", "-ERR DB index is out of range\r\n"},
		{"select x", "-ERR value is not an integer or out of range\r\n"},
		{"config get save", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n"},
		{"config get nothing", "*0\r\n"},
		{"command docs", "*0\r\n"},

		{"get k", "$-1\r\n"},
		{"set k v", "+OK\r\n"},
		{"get k", "$1\r\nv\r\n"},
		{"get", "-ERR wrong number of arguments for 'get' command\r\n"},
		{"set k w nx", "$-1\r\n"},
		{"set none w xx", "$-1\r\n"},
		{"set k w xx", "+OK\r\n"},
		{"set k v ex 10", "-ERR syntax error\r\n"},
		{"set k v nonsense", "-ERR syntax error\r\n"},
		{"append k x", ":2\r\n"},
		{"append fresh x", ":1\r\n"},
		{"strlen k", ":2\r\n"},
		{"strlen none", ":0\r\n"},
		{"mset a 1 b", "-ERR wrong number of arguments for 'mset' command\r\n"},
		{"mset a 1 b 2", "+OK\r\n"},
		{"mget a none k", "*3\r\n$1\r\n1\r\n$-1\r\n$2\r\nwx\r\n"},
		{"exists a a none", ":2\r\n"},
		{"type a", "+string\r\n"},
		{"type none", "+none\r\n"},

		{"incr counter", ":1\r\n"},
		{"decr counter", ":0\r\n"},
		{"incrby counter 9223372036854775807", ":9223372036854775807\r\n"},
		{"incr counter", "-ERR increment or decrement would overflow\r\n"},
		{"incrby counter -9223372036854775808", ":-1\r\n"},
		{"incrby counter -9223372036854775808", "-ERR increment or decrement would overflow\r\n"},
		{"incrby counter x", "-ERR value is not an integer or out of range\r\n"},
		{"incr k", "-ERR value is not an integer or out of range\r\n"},

		{"lpush l b a", ":2\r\n"},
		{"rpush l c d e f", ":6\r\n"},
		{"llen l", ":6\r\n"},
		{"lrange l 0 -1", "*6\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd\r\n$1\r\ne\r\n$1\r\nf\r\n"},
		{"lrange l -2 100", "*2\r\n$1\r\ne\r\n$1\r\nf\r\n"},
		{"lrange l -100 0", "*1\r\n$1\r\na\r\n"},
		{"lrange l 3 2", "*0\r\n"},
		{"lrange l 6 9", "*0\r\n"},
		{"lrange l 9223372036854775807 -9223372036854775808", "*0\r\n"},
		{"lrange l -9223372036854775808 9223372036854775807", "*6\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd\r\n$1\r\ne\r\n$1\r\nf\r\n"},
		{"lrange none 0 -1", "*0\r\n"},
		{"lrange l 0 x", "-ERR value is not an integer or out of range\r\n"},
		{"lpop l", "$1\r\na\r\n"},
		{"rpop l 2", "*2\r\n$1\r\nf\r\n$1\r\ne\r\n"},
		{"lpop l 0", "*0\r\n"},
		{"lpop l -1", "-ERR value is out of range, must be positive\r\n"},
		{"lpop l 99", "*3\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd\r\n"},
		{"exists l", ":0\r\n"},
		{"lpop l", "$-1\r\n"},
		{"lpop l 1", "*-1\r\n"},

		{"sadd s a b a", ":2\r\n"},
		{"sadd s b", ":0\r\n"},
		{"scard s", ":2\r\n"},
		{"sismember s a", ":1\r\n"},
		{"srem s a none", ":1\r\n"},
		{"smembers s", "*1\r\n$1\r\nb\r\n"},
		{"spop s", "$1\r\nb\r\n"},
		{"spop s", "$-1\r\n"},
		{"sismember s a", ":0\r\n"},

		{"hset h f v g", "-ERR wrong number of arguments for 'hset' command\r\n"},
		{"hset h f v g w", ":2\r\n"},
		{"hset h f x", ":0\r\n"},
		{"hget h f", "$1\r\nx\r\n"},
		{"hget h none", "$-1\r\n"},
		{"hlen h", ":2\r\n"},
		{"hdel h g none", ":1\r\n"},
		{"hgetall h", "*2\r\n$1\r\nf\r\n$1\r\nx\r\n"},
		{"type h", "+hash\r\n"},

		{"get h", wrongType},
		{"incr h", wrongType},
		{"append h x", wrongType},
		{"lpush h x", wrongType},
		{"lrange h 0 1", wrongType},
		{"sadd h x", wrongType},
		{"hset k f v", wrongType},
		{"mget h k", "*2\r\n$-1\r\n$2\r\nwx\r\n"},
		{"set h v", "+OK\r\n"},

		{"del h k none", ":2\r\n"},
		{"dbsize", ":4\r\n"}, // a, b, counter, fresh
		{"flushall", "+OK\r\n"},
		{"dbsize", ":0\r\n"},
	} {
		if p, err := talk(s, c.in+"\r\n"); p.out.String() != c.want || err != nil {
			t.Errorf("%s: %q, %v; want %q", c.in, p.out.String(), err, c.want)
		}
	}
}

// Random pushes and pops at both ends of a list, compared with a slice, wrap its ring.
func TestListRing(t *testing.T) {
	s := newServer(nil)
	var model []string
	for i := range 1000 {
		name := fmt.Sprint(i)
		cmd := [...]string{"rpush l ", "rpush l ", "lpush l ", "lpop l", "rpush l ", "rpop l", "lpop l"}[i%7]
		switch {
		case strings.HasPrefix(cmd, "rpush"):
			model = append(model, name)
		case strings.HasPrefix(cmd, "lpush"):
			model = append([]string{name}, model...)
		case cmd == "lpop l":
			model, name = model[1:], ""
		default:
			model, name = model[:len(model)-1], ""
		}
		talk(s, cmd+name+"\r\n")
		want := encode(model...) // a reply looks as a request does
		if p, _ := talk(s, "lrange l 0 -1\r\n"); p.out.String() != want {
			t.Fatalf("after %d commands: %q, want %q", i+1, p.out.String(), want)
		}
	}
}

// The replies to a pipeline are one write. Before a session waits for more input it has
// written all replies, also when a request has arrived in part.
func TestFlush(t *testing.T) {
	p, err := talk(newServer(nil), encode("incr", "k")+encode("incr", "k")+encode("get", "k")[:9], encode("get", "k")[9:])
	if err != nil || p.out.String() != ":1\r\n:2\r\n$1\r\n2\r\n" || p.writes != 2 {
		t.Errorf("%q in %d writes, %v", p.out.String(), p.writes, err)
	}
	if want := ":1\r\n:2\r\n"; p.before[1] != want {
		t.Errorf("before the second read %q was written, want %q", p.before[1], want)
	}
}

// The memory of a large reply or request is freed.
func TestMemoryOfLargeRequestsIsFreed(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	p := &peer{parts: []string{encode("set", "k", large) + encode("get", "k") + encode("ping")}}
	c := newSession(newServer(nil), p)
	if err := c.serve(); err != nil || p.out.String() != "+OK\r\n$1048576\r\n"+large+"\r\n+PONG\r\n" {
		t.Fatalf("%d bytes, %v", p.out.Len(), err)
	}
	if cap(c.out) > 4*bufferSize || cap(c.in.data) > readStep {
		t.Errorf("%d and %d bytes are kept", cap(c.out), cap(c.in.data))
	}
}

func TestEndOfSession(t *testing.T) {
	s := newServer(nil)
	if p, err := talk(s, "ping\r\nquit\r\nping\r\n"); p.out.String() != "+PONG\r\n+OK\r\n" || err != nil {
		t.Errorf("QUIT: %q, %v", p.out.String(), err)
	}
	var wrong protocolError
	if p, err := talk(s, "ping\r\n*x\r\nping\r\n"); p.out.String() != "+PONG\r\n-ERR Protocol error: invalid multibulk length\r\n" || !errors.As(err, &wrong) {
		t.Errorf("nonsense: %q, %v", p.out.String(), err)
	}
	if p, err := talk(s, "ping\r\nget"); p.out.String() != "+PONG\r\n" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut: %q, %v", p.out.String(), err)
	}
}
