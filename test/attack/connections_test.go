//go:build linux

package attack

import (
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

// connectArg is a number of connections.
type connectArg struct {
	Socket string
	Count  int
}

// raiseDescriptorLimit sets the soft limit of open files to the hard one.
func raiseDescriptorLimit() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
}

// connectMany makes a number of connections and keeps its ends open, whatever unetd answers.
var connectMany = newCommand("connectMany", func(a *agent, arg connectArg) (connected int, err error) {
	if err := raiseDescriptorLimit(); err != nil {
		return 0, err
	}
	for range arg.Count {
		conn, err := dialRaw(arg.Socket)
		if err != nil {
			return connected, err
		}
		a.hold(conn)
		connected++
	}
	return connected, nil
})

// openManyArg is how many goroutines open endpoints at once, and how often each does.
type openManyArg struct {
	Socket            string
	Goroutines, Times int
}

// openConcurrently opens and closes endpoints, many at once.
var openConcurrently = newCommand("openConcurrently", func(a *agent, arg openManyArg) (map[string]int, error) {
	outcomes := map[string]int{}
	var mu sync.Mutex
	var running sync.WaitGroup
	for range arg.Goroutines {
		running.Go(func() {
			for range arg.Times {
				ctx, cancel := timeout()
				grant, lease, err := control.Open(ctx, arg.Socket, endpoint.Request{Geometry: smallGeometry})
				cancel()
				outcome := "granted"
				switch {
				case errors.Is(err, endpoint.ErrBusy):
					outcome = "busy"
				case err != nil:
					outcome = err.Error()
				default:
					if err := errors.Join(grant.Close(), lease.Close()); err != nil {
						outcome = err.Error()
					}
				}
				mu.Lock()
				outcomes[outcome]++
				mu.Unlock()
			}
		})
	}
	running.Wait()
	return outcomes, nil
})

// descriptorLimit is how many connections a process may have.
func descriptorLimit(t testing.TB) int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	return max(int(min(limit.Max, 1<<20))-100, 1)
}

func connectionCases() []attackCase {
	return []attackCase{
		{"10,000 connections", "held open by one user; meanwhile the neighbour and root open endpoints", func(s *caseRun) {
			count := lengthOf(10_000, 5000, 2000) // 256 are served; of the refused ones 4,096 wait to be closed
			before := descriptorsOf(s, s.unetd.PID())
			done := make(chan error, 1)
			begin := time.Now()
			var processes []*agentProcess
			for range 1 + count/descriptorLimit(s) {
				processes = append(processes, startAgent(s, s.pair.A, attackerID))
			}
			go func() {
				for _, a := range processes {
					if _, err := connectMany.try(a, connectArg{s.unetd.Socket, count / len(processes)}); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			var worst time.Duration
			opened := 0
			open := func() {
				begin := time.Now()
				g := openEndpoint.do(s, s.neighbour, openArg{s.unetd.Socket, endpoint.Request{}})
				worst = max(worst, time.Since(begin))
				closeEndpoint.do(s, s.neighbour, endpointArg{g.Endpoint})
				opened++
			}
			for connecting := true; connecting; {
				select {
				case err := <-done:
					if err != nil {
						s.Errorf("the connections: %v", err)
					}
					connecting = false
				default:
					open()
				}
			}
			took := time.Since(begin)
			for range 10 { // and while all connections are open
				open()
			}
			s.row.note("%d connected in %s, by %d processes; the neighbour opened %d endpoints meanwhile, the slowest in %s; unetd has %d descriptors",
				count, rounded(took), len(processes), opened, rounded(worst), descriptorsOf(s, s.unetd.PID()))
			for _, a := range processes {
				a.kill()
			}
			// unetd closes 400 a second.
			if !testutil.Until(func() bool { return descriptorsOf(s, s.unetd.PID()) <= before+10 }) {
				s.Errorf("unetd had %d descriptors before the connections, and has %d after their end", before, descriptorsOf(s, s.unetd.PID()))
			}
		}},
		{"concurrent opens and closes", "64 at once, each opening and closing endpoints", func(s *caseRun) {
			a := startAgent(s, s.pair.A, attackerID)
			outcomes := openConcurrently.do(s, a, openManyArg{s.unetd.Socket, 64, lengthOf(40, 4, 2)})
			for outcome := range outcomes {
				if outcome != "granted" && outcome != "busy" {
					s.Errorf("an open ended with: %s", outcome)
				}
			}
			s.row.note("%s", countsText(outcomes))
		}},
		{"agents killed during opens", "agents killed while they open endpoints", func(s *caseRun) {
			for range lengthOf(40, 8, 3) {
				a := startAgent(s, s.pair.A, attackerID)
				go openConcurrently.try(a, openManyArg{s.unetd.Socket, 8, 1000})
				deadline := time.Now().Add(50 * time.Millisecond)
				for time.Now().Before(deadline) && len(list(s, s.unetd)) < 6 {
				}
				a.kill()
			}
			// unetd closes 400 of a user's connections a second, and those that it has not closed count for the user.
			a := startAgent(s, s.pair.A, attackerID)
			if !testutil.Until(func() bool {
				_, err := openEndpoint.try(a, openArg{s.unetd.Socket, endpoint.Request{}})
				return !errors.Is(err, endpoint.ErrBusy)
			}) {
				s.Errorf("after the end of its processes their user gets no endpoint")
			}
		}},
	}
}

// unreadArg is how many connections there are at once, and what is sent on each: First once,
// then Next, with a number for %d, until unetd ends the connection.
type unreadArg struct {
	Socket      string
	Connections int
	First, Next string
}

// sendUnread keeps connections on which it sends requests and never reads answers. A new
// connection replaces one that unetd has ended.
var sendUnread = newCommand("sendUnread", func(a *agent, arg unreadArg) (nothing, error) {
	if err := raiseDescriptorLimit(); err != nil {
		return nothing{}, err
	}
	for range arg.Connections {
		a.repeatTask(func(stop <-chan struct{}) error {
			conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: arg.Socket, Net: "unixpacket"})
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EMFILE) {
				time.Sleep(time.Millisecond)
				return nil
			}
			if err != nil {
				return err
			}
			arg.send(conn, stop)
			conn.Close()
			return nil
		})
	}
	return nothing{}, nil
})

func (arg *unreadArg) send(conn *net.UnixConn, stop <-chan struct{}) {
	stopped := make(chan struct{})
	defer close(stopped)
	go func() {
		select {
		case <-stop:
			conn.SetWriteDeadline(time.Unix(1, 0))
		case <-stopped:
		}
	}()
	if _, err := conn.Write([]byte(arg.First)); err != nil {
		return
	}
	for i := 2; ; i++ {
		if _, err := conn.Write([]byte(strings.Replace(arg.Next, "%d", strconv.Itoa(i), 1))); err != nil {
			return
		}
	}
}

type timeOpensArg struct {
	Socket string
	Times  int
}

// timeOpens opens and closes an endpoint repeatedly, and returns how long each open took.
var timeOpens = newCommand("timeOpens", func(a *agent, arg timeOpensArg) (took []time.Duration, err error) {
	for range arg.Times {
		ctx, cancel := timeout()
		begin := time.Now()
		grant, lease, err := control.Open(ctx, arg.Socket, endpoint.Request{Geometry: smallGeometry})
		took = append(took, time.Since(begin))
		cancel()
		if err != nil {
			return nil, err
		}
		if err := errors.Join(grant.Close(), lease.Close()); err != nil {
			return nil, err
		}
	}
	return took, nil
})

// openLimit is how long a neighbour's open may take during any flood, as the
// median of several.
const openLimit = 50 * time.Millisecond

func unreadCases() []attackCase {
	unclaim := `{"v":1,"id":%d,"op":"unclaim","tag":"udp:10.0.0.1:7"}`
	return []attackCase{
		{"answers unread", "300 connections of one user ask for endpoints, then for more and more, and never read", func(s *caseRun) {
			s.openBeside(unreadArg{s.unetd.Socket, 300, openRecord, unclaim})
		}},
		{"refusals unread", "400 connections of one user send malformed records and never read; each that is ended is followed by another", func(s *caseRun) {
			s.openBeside(unreadArg{s.unetd.Socket, 400, "x", "x"})
		}},
	}
}

// openBeside opens endpoints of the neighbour during a flood. The best of some rounds
// counts, because other work on this machine delays an open too. The time is checked in
// the long suite, which runs alone; otherwise it is only printed.
func (s *caseRun) openBeside(flood unreadArg) {
	s.Helper()
	const rounds, times = 5, 15
	before := median(timeOpens.do(s, s.neighbour, timeOpensArg{s.unetd.Socket, times}))
	a := startAgent(s, s.pair.A, attackerID)
	sendUnread.do(s, a, flood)
	var best time.Duration
	for round := range rounds {
		if took := median(timeOpens.do(s, s.neighbour, timeOpensArg{s.unetd.Socket, times})); round == 0 || took < best {
			best = took
		}
		if best < openLimit {
			break
		}
	}
	if best >= openLimit && *long && !unetd.RaceEnabled {
		s.Errorf("the neighbour's opening takes %v (median), %v without the flood", best, before)
	}
	s.row.note("the neighbour's opening took %s (median), %s before", rounded(best), rounded(before))
}

func median(of []time.Duration) time.Duration {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}
