package attack

import (
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/test/internal/unetd"
)

// crowdArg is a number of connections.
type crowdArg struct {
	Socket string
	Count  int
}

// crowd connects as often as it is told and keeps all its ends, whatever unetd says.
var crowd = teach("crowd", func(a *agent, arg crowdArg) (connected int, err error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
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

// stormArg is how many at once open endpoints, and how often each.
type stormArg struct {
	Socket      string
	Wide, Times int
}

// storm opens and closes endpoints, many at once.
var storm = teach("storm", func(a *agent, arg stormArg) (map[string]int, error) {
	outcomes := map[string]int{}
	var mu sync.Mutex
	var running sync.WaitGroup
	for range arg.Wide {
		running.Go(func() {
			for range arg.Times {
				ctx, cancel := timeout()
				grant, lease, err := control.Open(ctx, arg.Socket, endpoint.Request{Geometry: endpoint.Geometry{FrameCount: 64, FillSize: 32, RxSize: 32, TxSize: 32, CompletionSize: 32}})
				cancel()
				outcome := "granted"
				switch {
				case errors.Is(err, control.ErrBusy):
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

func crowdCases() []attackCase {
	return []attackCase{
		{"10,000 connections", "held open by one user; meanwhile the neighbour and root open endpoints", func(s *scene) {
			count := lengthOf(10_000, 5000, 2000) // 4,096 wait to be refused, 256 are served
			before := descriptorsOf(s, s.unetd.PID())
			done := make(chan error, 1)
			begin := time.Now()
			var crowds []*actor
			for range 1 + count/descriptorLimit(s) {
				crowds = append(crowds, cast(s, s.pair.A, attackerID))
			}
			go func() {
				for _, a := range crowds {
					if _, err := crowd.try(a, crowdArg{s.unetd.Socket, count / len(crowds)}); err != nil {
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
				g := openGun.do(s, s.friend, openArg{s.unetd.Socket, endpoint.Request{}})
				worst = max(worst, time.Since(begin))
				dropGun.do(s, s.friend, gunArg{g.Gun})
				opened++
			}
			for connecting := true; connecting; {
				select {
				case err := <-done:
					if err != nil {
						s.Errorf("the crowd: %v", err)
					}
					connecting = false
				default:
					open()
				}
			}
			took := time.Since(begin)
			for range 10 { // and while they all are there
				open()
			}
			s.row.note("%d connected in %s, by %d processes; the neighbour opened %d endpoints meanwhile, the slowest in %s; unetd has %d descriptors",
				count, rounded(took), len(crowds), opened, rounded(worst), descriptorsOf(s, s.unetd.PID()))
			for _, a := range crowds {
				a.kill()
			}
			// The same user's next connections wait until these are closed.
			if !unetd.Eventually(func() bool { return descriptorsOf(s, s.unetd.PID()) <= before+10 }) {
				s.Errorf("unetd had %d descriptors before the connections, and has %d after their end", before, descriptorsOf(s, s.unetd.PID()))
			}
		}},
		{"open/close storm", "64 at once, each opening and closing endpoints", func(s *scene) {
			a := cast(s, s.pair.A, attackerID)
			outcomes := storm.do(s, a, stormArg{s.unetd.Socket, 64, lengthOf(40, 4, 2)})
			for outcome := range outcomes {
				if outcome != "granted" && outcome != "busy" {
					s.Errorf("an open ended with: %s", outcome)
				}
			}
			s.row.note("%s", countsText(outcomes))
		}},
		{"kill storm", "agents killed while they open endpoints", func(s *scene) {
			for range lengthOf(40, 8, 3) {
				a := cast(s, s.pair.A, attackerID)
				go storm.try(a, stormArg{s.unetd.Socket, 8, 1000})
				deadline := time.Now().Add(50 * time.Millisecond)
				for time.Now().Before(deadline) && len(list(s, s.unetd)) < 6 {
				}
				a.kill()
			}
		}},
	}
}
