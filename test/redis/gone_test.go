package redis_test

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/unet-go/unet/internal/fate"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
	"github.com/unet-go/unet/test/internal/unetd"
)

// keepAlive has a silent client probed so soon that a test need not wait long, and as
// seldom as Linux answers: twice a second at most (tcp_invalid_ratelimit).
var keepAlive = []string{"--keepalive", "600ms"}

var down = impair.Rule{Blackout: fate.Down}

// TestClientKilled: clients that die in the middle of a pipeline do the server no harm.
func TestClientKilled(t *testing.T) {
	s := startServer(t, netlab.RequirePair(t, netlab.Config{}))
	watcher := s.dial(t)
	for range 3 {
		p := unetd.Start(t, s.B, netlab.Bound(), unetd.Tool(t, "redis-benchmark"), "-h", s.A.Addr.Addr().String(), "-p", port,
			"-t", "set,lrange", "-l", "-q", "-c", "50", "-P", "16")
		before, err := watcher.info("total_commands_processed")
		must(t, err)
		watcher.awaitInfo(t, "total_commands_processed", func(n int) bool { return n > before+10_000 })
		p.Kill(t)
		watcher.awaitInfo(t, "connected_clients", func(n int) bool { return n == 1 })
	}
	must(t, watcher.ask("PING\r\n", "+PONG\r\n"))
	s.stop(t)
}

// TestClientCutOff: the cable is down, and no FIN and no RST tell of it. The keepalive
// finds the connections that are idle, and those that wait for an acknowledgment go on
// when the cable is up again.
func TestClientCutOff(t *testing.T) {
	s, link := startOnLink(t, keepAlive...)
	idle, waiting := s.dial(t), s.dial(t)
	for _, c := range []*client{idle, waiting} {
		must(t, c.ask("PING\r\n", "+PONG\r\n"))
	}
	// What waiting asks for fits into no window, and then nothing comes through any more.
	const size, times = 1_000_000, 20
	value := string(random(3, size))
	must(t, waiting.ask(request("SET", "k", value), "+OK\r\n"))
	must(t, waiting.ask(strings.Repeat(request("GET", "k"), times), "$"))
	both(link, down)
	s.Await(t, fmt.Sprintf("%v: read tcp %s->%v: read: connection timed out", idle.LocalAddr(), s.at, idle.LocalAddr()))
	both(link, impair.Rule{})
	one := fmt.Sprintf("$%d\r\n%s\r\n", size, value)
	must(t, waiting.ask("", strings.Repeat(one, times)[1:]))

	// The client that was idle knows nothing yet, and learns it from a RST.
	if err := idle.ask("PING\r\n", "+PONG\r\n"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a client that was given up: %v, want ECONNRESET", err)
	}
	s.stop(t)
}

// TestIdle: redis-cli is idle on its connection for many keepalives, and then goes on
// there. A cable that is down for less than the keepalive's patience is nothing.
func TestIdle(t *testing.T) {
	s, link := startOnLink(t, keepAlive...)
	watcher := s.dial(t)
	cmd := exec.Command(unetd.Tool(t, "redis-cli"), "-h", s.A.Addr.Addr().String(), "-p", port)
	cmd.SysProcAttr = netlab.Bound()
	stdin, err := cmd.StdinPipe()
	must(t, err)
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
		must(t, err)
		watcher.awaitInfo(t, "tcp_keep_alives", func(n int) bool { return n >= before+more })
	}
	probes(5)
	say("append k -second\nget k", "first-second")

	// One probe is lost, those after it are not.
	link.Set(impair.AtoB, impair.Rule{Loss: 1})
	if !unetd.Eventually(func() bool { return link.Counters(impair.AtoB).LostByChance > 0 }) {
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
