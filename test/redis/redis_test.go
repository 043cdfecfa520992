//go:build linux

package redis_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

// tests are those of redis-benchmark that the example answers.
const tests = "ping,set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,lrange,mset"

// benchmark runs redis-benchmark: n requests of each of some tests.
func (s *server) benchmark(t *testing.T, tests string, n int, args ...string) {
	t.Helper()
	args = append([]string{"-t", tests, "-n", strconv.Itoa(n), "--csv"}, args...)
	out, err := s.tool(t, "redis-benchmark", nil, args...)
	if err != nil {
		t.Fatalf("redis-benchmark: %v\n%s", err, out)
	}
	for _, bad := range []string{"Error", "ERR", "Could not"} {
		if strings.Contains(out, bad) {
			t.Errorf("redis-benchmark complains:\n%s", out)
		}
	}
	results := -1 // without the heading
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, `"`) {
			results++
		}
	}
	want := 0
	for test := range strings.SplitSeq(tests, ",") {
		switch test {
		case "ping": // inline and as an array
			want += 2
		case "lrange": // four lengths, and what is there to be read
			want += 5
		default:
			want++
		}
	}
	if results != want {
		t.Errorf("redis-benchmark has results of %d tests, want %d:\n%s", results, want, out)
	}
	t.Log(out)
}

// The server executes redis-benchmark's requests exactly as often as it prints, with their effects.
func TestBenchmark(t *testing.T) {
	for _, c := range []struct {
		name  string
		tests string
		n     int
		args  []string
	}{
		{"one request at a time", tests, 1000, []string{"-c", "1"}},
		{"50 connections", tests, 4800, []string{"-c", "50"}},
		{"pipelines", tests, 8000, []string{"-c", "50", "-P", "16"}},
		{"large values", "set,get,rpush,lpop,hset", 4800, []string{"-c", "50", "-P", "16", "-d", "5000"}},
	} {
		if unetd.RaceEnabled {
			c.n /= 4 // all of it, several times slower, finds no more races
		}
		t.Run(c.name, func(t *testing.T) {
			s := startServer(t, netlab.RequirePair(t, netlab.Config{}))
			s.benchmark(t, c.tests, c.n, c.args...)
			s.cli(t, nil, "del", "mylist", "counter:__rand_int__")
			before, err := s.dial(t).info("total_commands_processed")
			testutil.Must(t, err)
			s.benchmark(t, "incr", c.n, c.args...)
			s.benchmark(t, "rpush", c.n, c.args...)
			now, err := s.dial(t).info("total_commands_processed")
			testutil.Must(t, err)
			if got := s.cli(t, nil, "get", "counter:__rand_int__"); got != strconv.Itoa(c.n) {
				t.Errorf("%d times INCR is %s", c.n, got)
			}
			if got := s.cli(t, nil, "llen", "mylist"); got != strconv.Itoa(c.n) {
				t.Errorf("%d times RPUSH is a list of %s", c.n, got)
			}
			// Twice as many as were asked for, CONFIG GET twice in each run, INFO. More requests
			// than asked for may be under way when a run ends.
			if got, least := now-before, 2*c.n+5; got < least || got > least+2*50*16 {
				t.Errorf("%d commands, want %d, or a few more", got, least)
			}
			if _, connections := s.stop(t); c.args[1] == "50" && connections < 50 {
				t.Errorf("%d connections, want 50 in each test", connections)
			}
		})
	}
}

// Connections that are used for one request each.
func TestBenchmarkReconnecting(t *testing.T) {
	const n = 1000
	s := startServer(t, netlab.RequirePair(t, netlab.Config{}))
	s.benchmark(t, "incr", n, "-c", "20", "-k", "0")
	if got := s.cli(t, nil, "get", "counter:__rand_int__"); got != strconv.Itoa(n) {
		t.Errorf("%d times INCR is %s", n, got)
	}
	if _, connections := s.stop(t); connections < n {
		t.Errorf("%d requests on %d connections", n, connections)
	}
}

// One frame in a hundred is lost, in each direction.
func TestBenchmarkLoss(t *testing.T) {
	const n = 4000
	s, link := startOnLink(t)
	both(link, impair.Rule{Loss: 0.01})
	for _, args := range [][]string{{"-c", "50"}, {"-c", "50", "-P", "16"}} {
		t.Run(fmt.Sprint(args), func(t *testing.T) {
			s.cli(t, nil, "flushall")
			s.benchmark(t, "set,get,incr,rpush,lrange,mset", n, args...)
			if got := s.cli(t, nil, "get", "counter:__rand_int__"); got != strconv.Itoa(n) {
				t.Errorf("%d times INCR is %s", n, got)
			}
		})
	}
	for d := range impair.Direction(2) {
		if c := link.Counters(d); c.LostByChance == 0 || c.Missed+c.Refused > 0 {
			t.Errorf("direction %d: %+v", d, c)
		}
	}
	s.stop(t)
}

// randomBytes is n bytes, the same ones each time.
func randomBytes(seed byte, n int) []byte {
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
			value := randomBytes(1, 10_000_000)
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

// TestPipeMode: redis-cli sends a hundred thousand commands without waiting for an answer.
func TestPipeMode(t *testing.T) {
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

// TestSlowReader: a client that requests much and reads nothing does not delay others, and
// gets all of it when it reads.
func TestSlowReader(t *testing.T) {
	const size, times = 1_000_000, 20
	s := startServer(t, netlab.RequirePair(t, netlab.Config{}))
	value := string(randomBytes(2, size))
	slow, other := s.dial(t), s.dial(t)
	testutil.Must(t, slow.ask(request("SET", "k", value), "+OK\r\n"))
	one := fmt.Sprintf("$%d\r\n%s\r\n", size, value)
	go slow.Write([]byte(strings.Repeat(request("GET", "k"), times)))
	other.awaitInfo(t, "tcp_window_probes", func(n int) bool { return n > 0 }) // the window of slow is closed
	for range 100 {
		testutil.Must(t, other.ask("PING\r\n", "+PONG\r\n"))
	}
	testutil.Must(t, slow.ask("", strings.Repeat(one, times)))
	s.stop(t)
}

// keepAlive is short, so that a test need not wait long. It is longer than 500 ms, because Linux
// answers at most two probes a second (tcp_invalid_ratelimit).
var keepAlive = []string{"--keepalive", "600ms"}

var linkDown = impair.Rule{Blackout: linksim.Down}

// TestClientKilled: clients that are killed in the middle of a pipeline do not disturb the server.
func TestClientKilled(t *testing.T) {
	s := startServer(t, netlab.RequirePair(t, netlab.Config{}))
	watcher := s.dial(t)
	for range 3 {
		p := unetd.Start(t, s.B, netlab.Bound(), unetd.Tool(t, "redis-benchmark"), "-h", s.A.Addr.Addr().String(), "-p", port,
			"-t", "set,lrange", "-l", "-q", "-c", "50", "-P", "16")
		before, err := watcher.info("total_commands_processed")
		testutil.Must(t, err)
		watcher.awaitInfo(t, "total_commands_processed", func(n int) bool { return n > before+10_000 })
		p.Kill(t)
		watcher.awaitInfo(t, "connected_clients", func(n int) bool { return n == 1 })
	}
	testutil.Must(t, watcher.ask("PING\r\n", "+PONG\r\n"))
	s.stop(t)
}

// TestKeepaliveEndsUnreachableClients: the cable is down, without a FIN or RST. The keepalive ends idle
// connections; connections that wait for an acknowledgment continue when the cable is up
// again.
func TestKeepaliveEndsUnreachableClients(t *testing.T) {
	s, link := startOnLink(t, keepAlive...)
	idle, waiting := s.dial(t), s.dial(t)
	for _, c := range []*client{idle, waiting} {
		testutil.Must(t, c.ask("PING\r\n", "+PONG\r\n"))
	}
	// The replies to waiting exceed every window, and then no frame gets through any more.
	const size, times = 1_000_000, 20
	value := string(randomBytes(3, size))
	testutil.Must(t, waiting.ask(request("SET", "k", value), "+OK\r\n"))
	testutil.Must(t, waiting.ask(strings.Repeat(request("GET", "k"), times), "$"))
	both(link, linkDown)
	s.Await(t, fmt.Sprintf("%v: read tcp %s->%v: read: connection timed out", idle.LocalAddr(), s.at, idle.LocalAddr()))
	both(link, impair.Rule{})
	one := fmt.Sprintf("$%d\r\n%s\r\n", size, value)
	testutil.Must(t, waiting.ask("", strings.Repeat(one, times)[1:]))

	// The idle client's own end still exists, and gets a RST.
	if err := idle.ask("PING\r\n", "+PONG\r\n"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a client that was given up: %v, want ECONNRESET", err)
	}
	s.stop(t)
}

// TestIdleClientStaysConnected: redis-cli is idle on its connection for many keepalives, and then continues
// there. A cable that is down for less than the keepalive's limit has no effect.
func TestIdleClientStaysConnected(t *testing.T) {
	s, link := startOnLink(t, keepAlive...)
	watcher := s.dial(t)
	cmd := exec.Command(unetd.Tool(t, "redis-cli"), "-h", s.A.Addr.Addr().String(), "-p", port)
	cmd.SysProcAttr = netlab.Bound()
	stdin, err := cmd.StdinPipe()
	testutil.Must(t, err)
	p := unetd.StartCommand(t, s.B, cmd)
	say := func(commands, want string) {
		t.Helper()
		if _, err := io.WriteString(stdin, commands+"\n"); err != nil {
			t.Fatal(err)
		}
		p.Await(t, want)
	}
	say("set k first\nget k", "first")
	probes := func(more int) {
		t.Helper()
		before, err := watcher.info("tcp_keep_alives")
		testutil.Must(t, err)
		watcher.awaitInfo(t, "tcp_keep_alives", func(n int) bool { return n >= before+more })
	}
	probes(5)
	say("append k -second\nget k", "first-second")

	// One probe is lost, those after it are not.
	link.Set(impair.AtoB, impair.Rule{Loss: 1})
	if !testutil.Until(func() bool { return link.Counters(impair.AtoB).LostByChance > 0 }) {
		t.Fatal("nothing is lost")
	}
	link.Set(impair.AtoB, impair.Rule{})
	probes(5)
	say("set k third\nget k", "third")
	stdin.Close() // redis-cli ends
	if err := p.End(t); err != nil {
		t.Errorf("redis-cli: %v", err)
	}
	if strings.Contains(s.Output(), "timed out") {
		t.Error("the server has given the idle client up")
	}
	if _, connections := s.stop(t); connections != 2 {
		t.Errorf("%d connections, want those of redis-cli and of the test", connections)
	}
}
