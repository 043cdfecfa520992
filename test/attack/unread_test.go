package attack

import (
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/test/internal/unetd"
)

// unreadArg is how many connections there are at once, what is sent on each first, and
// what is sent then, with a number in it, for as long as unetd takes it.
type unreadArg struct {
	Socket      string
	Wide        int
	First, Next string
}

// unread keeps connections on which answers are asked for and never read. One that
// unetd has ended is followed by another.
var unread = teach("unread", func(a *agent, arg unreadArg) (nothing, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nothing{}, err
	}
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nothing{}, err
	}
	for range arg.Wide {
		a.begin(func(stop <-chan struct{}) error {
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: arg.Socket, Net: "unixpacket"})
				if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EMFILE) {
					time.Sleep(time.Millisecond)
					continue
				}
				if err != nil {
					return err
				}
				arg.send(conn, stop)
				conn.Close()
			}
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

type opensArg struct {
	Socket string
	Times  int
}

// opens opens and closes an endpoint again and again, and says how long each opening took.
var opens = teach("opens", func(a *agent, arg opensArg) (took []time.Duration, err error) {
	small := endpoint.Request{Geometry: endpoint.Geometry{FrameCount: 64, FillSize: 32, RxSize: 32, TxSize: 32, CompletionSize: 32}}
	for range arg.Times {
		ctx, cancel := timeout()
		begin := time.Now()
		grant, lease, err := control.Open(ctx, arg.Socket, small)
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

// openWithin is how long a neighbour's opening may take beside any flood, as the
// median of several.
const openWithin = 50 * time.Millisecond

func unreadCases() []attackCase {
	unclaim := `{"v":1,"id":%d,"op":"unclaim","tag":"udp:10.0.0.1:7"}`
	return []attackCase{
		{"answers unread", "300 connections of one user ask for endpoints, then for more and more, and never read", func(s *scene) {
			s.openBeside(unreadArg{s.unetd.Socket, 300, openRecord, unclaim})
		}},
		{"refusals unread", "400 connections of one user send nonsense and never read; each that is ended is followed by another", func(s *scene) {
			s.openBeside(unreadArg{s.unetd.Socket, 400, "x", "x"})
		}},
	}
}

// openBeside has the neighbour open endpoints beside a flood. Of some rounds the best
// counts: other work on this machine delays an opening, too. The time is judged in the
// long suite, which runs alone, and noted elsewhere.
func (s *scene) openBeside(flood unreadArg) {
	s.Helper()
	const rounds, times = 5, 15
	before := median(opens.do(s, s.friend, opensArg{s.unetd.Socket, times}))
	a := cast(s, s.pair.A, attackerID)
	unread.do(s, a, flood)
	var best time.Duration
	for round := range rounds {
		if took := median(opens.do(s, s.friend, opensArg{s.unetd.Socket, times})); round == 0 || took < best {
			best = took
		}
		if best < openWithin {
			break
		}
	}
	if best >= openWithin && *long && !unetd.RaceEnabled {
		s.Errorf("the neighbour's opening takes %v (median), %v without the flood", best, before)
	}
	s.row.note("the neighbour's opening took %s (median), %s before", rounded(best), rounded(before))
}

func median(of []time.Duration) time.Duration {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}
