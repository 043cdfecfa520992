package redis_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
)

// random is n bytes, the same ones each time.
func random(seed byte, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// TestLargeValue: 10 MB there and back, byte for byte.
func TestLargeValue(t *testing.T) {
	s, link := startOnLink(t)
	for _, c := range []struct {
		name string
		rule impair.Rule
	}{{"good", impair.Rule{}}, {"loss 1 %", impair.Rule{Loss: 0.01}}} {
		t.Run(c.name, func(t *testing.T) {
			both(link, c.rule)
			value := random(1, 10_000_000)
			if out := s.cli(t, bytes.NewReader(value), "-x", "set", "large"); out != "OK" {
				t.Errorf("SET: %.200q", out)
			}
			if out := s.cli(t, nil, "strlen", "large"); out != "10000000" {
				t.Errorf("STRLEN: %s", out)
			}
			if out, err := s.tool(t, "redis-cli", nil, "--raw", "get", "large"); err != nil || out != string(value)+"\n" {
				t.Errorf("GET: %v, %d bytes, or others than were set", err, len(out))
			}
		})
	}
	s.stop(t)
}

// TestPipe: redis-cli sends a hundred thousand commands without waiting for an answer.
func TestPipe(t *testing.T) {
	const n = 100_000
	s := startServer(t, netlab.RequirePair(t, netlab.Config{}))
	var commands strings.Builder
	for i := range n {
		commands.WriteString(request("SET", fmt.Sprint("key", i), fmt.Sprint("value", i)))
	}
	out := s.cli(t, strings.NewReader(commands.String()), "--pipe")
	if want := fmt.Sprintf("errors: 0, replies: %d", n); !strings.Contains(out, want) {
		t.Errorf("%s, want %s", out, want)
	}
	if out := s.cli(t, nil, "dbsize"); out != fmt.Sprint(n) {
		t.Errorf("%s keys", out)
	}
	if out := s.cli(t, nil, "get", "key99999"); out != "value99999" {
		t.Errorf("GET: %s", out)
	}
	s.stop(t)
}

// pipeline is commands about keys of its own, and the replies to all of them.
func pipeline(own string, n int) (send, want string) {
	var in, out strings.Builder
	pushed := ""
	for i := range n {
		key, value := fmt.Sprint(own, i), strings.Repeat(own, i%50+1)
		in.WriteString(request("SET", key, value))
		out.WriteString("+OK\r\n")
		fmt.Fprintf(&in, "GET %s\r\n", key) // inline
		fmt.Fprintf(&out, "$%d\r\n%s\r\n", len(value), value)
		in.WriteString(request("INCR", "counter-"+own))
		fmt.Fprintf(&out, ":%d\r\n", i+1)
		in.WriteString(request("RPUSH", "list-"+own, value) + request("GET", "list-"+own))
		fmt.Fprintf(&out, ":%d\r\n-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", i+1)
		pushed += fmt.Sprintf("$%d\r\n%s\r\n", len(value), value)
	}
	in.WriteString(request("LRANGE", "list-"+own, "0", "-1"))
	fmt.Fprintf(&out, "*%d\r\n%s", n, pushed)
	return in.String(), out.String()
}

// TestPipelines: on many connections at once each reply is that to its request, byte for
// byte, on a good cable and on one that loses, reorders and doubles.
func TestPipelines(t *testing.T) {
	const connections, commands = 100, 200
	s, link := startOnLink(t)
	for _, c := range []struct {
		name string
		rule impair.Rule
	}{
		{"good", impair.Rule{}},
		{"bad", impair.Rule{Loss: 0.01, Duplicate: 0.01, Reorder: 0.02, HoldBack: 1e6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			clients := make([]*client, connections)
			for i := range clients {
				clients[i] = s.dial(t)
			}
			both(link, c.rule)
			errs := make([]error, connections)
			var wg sync.WaitGroup
			for i, client := range clients {
				wg.Go(func() {
					send, want := pipeline(fmt.Sprintf("%s-%d-", c.name, i), commands)
					if errs[i] = client.ask(send, want); errs[i] != nil {
						errs[i] = fmt.Errorf("connection %d: %w", i, errs[i])
					}
				})
			}
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
			both(link, impair.Rule{})
			if n, err := clients[0].info("connected_clients"); n != connections || err != nil {
				t.Errorf("%d connections, %v, want %d", n, err, connections)
			}
			for _, client := range clients {
				client.Close()
			}
			s.dial(t).awaitInfo(t, "connected_clients", func(n int) bool { return n == 1 })
		})
	}
	s.stop(t)
}

// TestSlowReader: a client that asks for much and reads nothing holds nobody else up, and
// gets it all when it reads.
func TestSlowReader(t *testing.T) {
	const size, times = 1_000_000, 20
	s := startServer(t, netlab.RequirePair(t, netlab.Config{}))
	value := string(random(2, size))
	slow, other := s.dial(t), s.dial(t)
	must(t, slow.ask(request("SET", "k", value), "+OK\r\n"))
	one := fmt.Sprintf("$%d\r\n%s\r\n", size, value)
	go slow.Write([]byte(strings.Repeat(request("GET", "k"), times)))
	other.awaitInfo(t, "tcp_window_probes", func(n int) bool { return n > 0 }) // the window of slow is closed
	for range 100 {
		must(t, other.ask("PING\r\n", "+PONG\r\n"))
	}
	must(t, slow.ask("", strings.Repeat(one, times)))
	s.stop(t)
}
