package redis_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
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

// What redis-benchmark does is done: exactly as often as it says, and with its effect.
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
		t.Run(c.name, func(t *testing.T) {
			s := startServer(t, netlab.RequirePair(t, netlab.Config{}))
			s.benchmark(t, c.tests, c.n, c.args...)
			s.cli(t, nil, "del", "mylist", "counter:__rand_int__")
			before, err := s.dial(t).info("total_commands_processed")
			must(t, err)
			s.benchmark(t, "incr", c.n, c.args...)
			s.benchmark(t, "rpush", c.n, c.args...)
			now, err := s.dial(t).info("total_commands_processed")
			must(t, err)
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
