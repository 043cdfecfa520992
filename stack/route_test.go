package stack_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// routes is a route service whose answers the test sets.
type routes struct {
	mu     sync.Mutex
	answer func(dst netip.Addr) (stack.Route, error)
	delay  time.Duration
	asked  int
	open   int // requests that have not been answered
	most   int // the largest value of open
}

func (r *routes) Resolve(ctx context.Context, _, dst netip.Addr) (stack.Route, error) {
	r.mu.Lock()
	r.asked++
	r.open++
	r.most = max(r.most, r.open)
	answer, delay := r.answer, r.delay
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.open--
		r.mu.Unlock()
	}()
	if delay <= 0 {
		return answer(dst)
	}
	select {
	case <-time.After(delay):
		return answer(dst)
	case <-ctx.Done():
		return stack.Route{}, ctx.Err()
	}
}

func (r *routes) set(answer func(netip.Addr) (stack.Route, error)) {
	r.mu.Lock()
	r.answer = answer
	r.mu.Unlock()
}

func (r *routes) setDelay(d time.Duration) {
	r.mu.Lock()
	r.delay = d
	r.mu.Unlock()
}

func (r *routes) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

func answerWith(r stack.Route) func(netip.Addr) (stack.Route, error) {
	return func(netip.Addr) (stack.Route, error) { return r, nil }
}

var errNoRoute = errors.New("no entry for the destination")

// newRouted makes a stack with a route service, in the time of a synctest
// bubble, and returns what it sends.
func newRouted(t *testing.T, owned bool, r *routes) (*stack.Stack, *memlink.Link, *wiretap) {
	l, _ := memlink.Pair(memlink.Config{})
	s := newStack(t, l, stack.Config{
		LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, OwnedAddress: owned, Resolver: r, Wait: endpoint.WaitBlock, FrameQuota: 1024, // as many packets are held as can be
	})
	return s, l, tap(t, l)
}

func expect(t *testing.T, w *wiretap, want ...string) {
	t.Helper()
	got := w.take()
	if len(got) != len(want) {
		t.Fatalf("sent %q, want %q", got, want)
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("sent %q, want %q", got[i], want[i])
		}
	}
}

func TestRouteIsResolvedOnceAndRefreshed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{delay: 100 * time.Millisecond, answer: answerWith(stack.Route{LinkAddr: linkB, MTU: 1000})}
		s, l, w := newRouted(t, false, r)
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		defer s.Close()
		start := time.Now()
		for range 3 {
			if err := udpSendTo(u, []byte("x"), ap("192.0.2.9:9")); err != nil {
				t.Error(err)
			}
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("a send waited %v for the route service", d)
		}
		time.Sleep(r.delay - 1)
		expect(t, w)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if n := r.count(); n != 1 {
			t.Errorf("%d route requests, want 1", n)
		}
		to := macA + " > " + macB + " | ip 10.0.0.1 > 192.0.2.9 ttl 64 DF | udp 7 > 9"
		expect(t, w, to, to, to)
		if err := udpSendTo(u, make([]byte, 973), ap("192.0.2.9:9")); err != syscall.EMSGSIZE {
			t.Errorf("beyond the MTU of the route: %v", err)
		}
		// A route in use is refreshed every 5 s, and no sender waits.
		r.set(answerWith(stack.Route{LinkAddr: linkC}))
		sendFor(u, l, 4700*time.Millisecond)
		if n := r.count(); n != 1 {
			t.Errorf("%d route requests within 5 s, want 1", n)
		}
		sendFor(u, l, time.Second)
		if n := r.count(); n != 2 {
			t.Errorf("%d route requests after 5 s, want 2", n)
		}
		w.take()
		udpSendTo(u, []byte("x"), ap("192.0.2.9:9"))
		expect(t, w, macA+" > 02:00:00:00:00:0c | ip")
		sendFor(u, l, 11*time.Second)
		if n := r.count(); n != 4 {
			t.Errorf("%d route requests after 17 s, want 4", n)
		}
		w.take()
		// An unused route is not refreshed. Its next use requests it again if the last request is
		// more than 5 s old; until the answer the old route is used.
		for i, pause := range []time.Duration{3 * time.Second, 20 * time.Second} {
			time.Sleep(pause)
			synctest.Wait()
			if n := r.count(); n != 4 {
				t.Errorf("%d route requests while the route was not used, want 4 in all", n)
			}
			start = time.Now()
			sendFor(u, l, 1)
			if time.Since(start) != 90*time.Millisecond {
				t.Error("a send waited for a stale route")
			}
			expect(t, w, macA+" > 02:00:00:00:00:0c | ip")
			synctest.Wait()
			if n := r.count(); n != 4+i {
				t.Errorf("%d route requests after a send on a stale route, want %d", n, 4+i)
			}
		}
		// A route that is unused for minutes is dropped, and its timer is stopped.
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if _, ok := s.NextDeadline(); ok || stack.Routes(s) != 0 {
			t.Error("a timer is left, or the route")
		}
		if n := r.count(); n != 5 {
			t.Errorf("%d route requests in the end, want 5", n)
		}
	})
}

// sendFor sends a datagram every 90 ms for the time d. After each, frames are received from
// the MAC addresses that the route had and has.
func sendFor(u *stack.UDPConn, l *memlink.Link, d time.Duration) {
	const pause = 90 * time.Millisecond
	for ; d > 0; d -= pause {
		udpSendTo(u, []byte("x"), ap("192.0.2.9:9"))
		injectFrom(l, linkB)
		injectFrom(l, linkC)
		time.Sleep(pause)
	}
}

// injectFrom delivers a datagram from a MAC address to a port that no socket has.
func injectFrom(l *memlink.Link, from wire.LinkAddr) {
	f := datagramFrame(9, 99, nil)
	wire.PutEthernet(f, linkA, from, wire.EtherTypeIPv4)
	l.Inject(stack.Frame{Data: f})
}

// Many routes are refreshed, eight at a time.
func TestConcurrentRouteRefreshesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{answer: answerWith(stack.Route{LinkAddr: linkB})}
		s, _, _ := newRouted(t, false, r)
		defer s.Close()
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		for i := range 100 {
			udpSendTo(u, nil, manyHosts(i))
			synctest.Wait()
		}
		if r.most != 1 {
			t.Fatalf("%d requests at a time, want 1", r.most)
		}
		r.setDelay(10 * time.Millisecond)
		s.Invalidate(netip.Addr{})
		time.Sleep(45 * time.Millisecond)
		synctest.Wait()
		if n := r.count(); n != 140 || r.most != 8 {
			t.Errorf("%d route requests, at most %d at a time; want 140, 8", n, r.most)
		}
	})
}

func TestRouteSurvivesFailedRefreshes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{answer: answerWith(stack.Route{LinkAddr: linkB})}
		s, _, _ := newRouted(t, false, r)
		defer s.Close()
		u := testutil.Value(s.DialUDP(ap("10.0.0.1:7"), ap("192.0.2.9:9"), stack.UDPOptions{}))
		if err := udpSend(u, nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // for the answer
		r.set(func(netip.Addr) (stack.Route, error) { return stack.Route{}, errNoRoute })
		// The route service fails for minutes: the route is kept, whether it is used or not.
		for i := range 200 {
			time.Sleep(time.Duration(i%20) * time.Second)
			if err := udpSend(u, nil); err != nil {
				t.Fatalf("send %d: %v", i, err)
			}
		}
		if n := stack.Held(s); n != 0 {
			t.Errorf("%d packets are held", n)
		}
		// After a failure requests are made more often than every 5 s.
		asked := r.count()
		for range 20 {
			time.Sleep(100 * time.Millisecond)
			udpSend(u, nil)
		}
		if n := r.count() - asked; n < 4 || n > 10 {
			t.Errorf("%d route requests in 2 s, want 4 to 10", n)
		}
		// The answer that the host is unreachable ends the route.
		r.set(func(netip.Addr) (stack.Route, error) {
			return stack.Route{}, errors.Join(syscall.EHOSTUNREACH, errNoRoute)
		})
		var err error
		for i := 0; i < 30 && err == nil; i++ {
			time.Sleep(100 * time.Millisecond)
			err = udpSend(u, nil)
		}
		if !errors.Is(err, syscall.EHOSTUNREACH) || !errors.Is(err, errNoRoute) {
			t.Errorf("error: %v", err)
		}
	})
}

func TestRouteFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{delay: time.Second}
		s, _, w := newRouted(t, false, r)
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		for _, bad := range []stack.Route{
			{},                         // no MAC address
			{LinkAddr: wire.Broadcast}, // not the address of one host
		} {
			r.set(answerWith(bad))
			if err := udpSendTo(u, nil, ap("192.0.2.1:9")); err != nil {
				t.Errorf("%v: before the answer: %v", bad, err)
			}
			time.Sleep(r.delay)
			synctest.Wait()
			asked := r.count()
			if err := udpSendTo(u, nil, ap("192.0.2.1:9")); !errors.Is(err, syscall.EHOSTUNREACH) || r.count() != asked {
				t.Errorf("%v: send after the failed request: %v, and %d more requests; want EHOSTUNREACH and none", bad, err, r.count()-asked)
			}
			time.Sleep(2 * time.Second) // a failure is kept for a second
		}
		// A request that is not answered ends after 5 s, and is repeated while packets are held. After
		// 10 s the route has failed.
		r.setDelay(time.Hour)
		v := testutil.Value(s.DialUDP(ap("10.0.0.1:8"), ap("192.0.2.5:9"), stack.UDPOptions{}))
		start := time.Now()
		udpSend(v, nil)
		asked := r.count()
		v.SetReadDeadline(start.Add(60 * time.Second))
		const want = "no route to host: 192.0.2.5: the route service has not answered for 10s: context deadline exceeded"
		if _, err := udpRecv(v, make([]byte, 1)); !errors.Is(err, syscall.EHOSTUNREACH) || err.Error() != want || time.Since(start) != 10250*time.Millisecond {
			t.Errorf("read without an answer to the route request: %v after %v", err, time.Since(start))
		}
		if err := udpSend(v, nil); !errors.Is(err, syscall.EHOSTUNREACH) {
			t.Errorf("send to a destination without an answer: %v", err)
		}
		if n := r.count() - asked; n > 2 || stack.Held(s) != 0 { // the first one may not be counted yet in asked
			t.Errorf("%d route requests more, %d packets held; want 2 at most, and 0", n, stack.Held(s))
		}
		expect(t, w)
		// Packets that are held when the stack closes are not sent; newStack checks that their frames
		// are released.
		udpSendTo(u, nil, ap("192.0.2.6:9"))
		s.Close()
		expect(t, w)
	})
}

func manyHosts(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 16 + byte(i>>16), byte(i >> 8), byte(i)}), 9)
}

// The cache is bounded. Routes in use are kept when routes to new peers are added.
func TestRouteCacheKeepsRoutesInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{answer: answerWith(stack.Route{LinkAddr: linkB})}
		l, _ := memlink.Pair(memlink.Config{})
		s := newStack(t, l, stack.Config{LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, Resolver: r, Wait: endpoint.WaitBlock})
		defer s.Close()
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		send := func(i int) {
			if err := udpSendTo(u, nil, manyHosts(i)); err != nil {
				t.Fatal(err)
			}
		}
		const busy, size = 10, 1024
		stack.LimitRoutes(s, size)
		for i := range size + size/2 {
			send(i)
			if i%8 == 0 { // the routes in use: each is used about 12 times while the cache is scanned once
				send(i / 8 % busy)
			}
			if i%100 == 0 {
				synctest.Wait() // for the answers
			}
		}
		synctest.Wait()
		if n := stack.Routes(s); n != size {
			t.Errorf("%d routes", n)
		}
		if n := r.count() - size - size/2; n != 0 {
			t.Errorf("%d requests for routes in use, which were dropped", n)
		}
	})
}

// A server on one goroutine that sends to many hosts which do not exist never blocks, also if these
// are more than the routes that may be requested at a time.
func TestSendsNeverWaitForRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{delay: time.Hour}
		s, l, w := newRouted(t, false, r)
		defer s.Close()
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		start := time.Now()
		for i := range 300 {
			if err := udpSendTo(u, []byte("x"), manyHosts(i)); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("sends waited %v", d)
		}
		synctest.Wait()
		got := counters(s)
		if got["routes_given_up"] != 300-256 || got["held_dropped"] != 300-256 {
			t.Errorf("counters: %v", got)
		}
		if n := stack.Held(s); n != 256 {
			t.Errorf("%d packets held", n)
		}
		// A host that exists gets a route among them, and the first destination whose request was
		// given up is requested again.
		r.setDelay(time.Millisecond)
		r.set(answerWith(stack.Route{LinkAddr: linkB}))
		if err := udpSendTo(u, []byte("here"), ap("192.0.2.9:9")); err != nil {
			t.Error(err)
		}
		if err := udpSendTo(u, []byte("late"), manyHosts(0)); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		lines := w.take()
		slices.Sort(lines)
		if len(lines) != 2 || !strings.HasSuffix(lines[0], `172.16.0.0 ttl 64 DF | udp 7 > 9 "late"`) || !strings.HasSuffix(lines[1], `192.0.2.9 ttl 64 DF | udp 7 > 9 "here"`) {
			t.Errorf("sent %q", lines)
		}
		// A read does not return the errors of hosts that do not exist.
		l.Inject(stack.Frame{Data: datagramFrame(9, 7, []byte("news"))})
		time.Sleep(10 * time.Second)
		buf := make([]byte, 10)
		if n, err := udpRecv(u, buf); string(buf[:n]) != "news" || err != nil {
			t.Errorf("reader: %q %v", buf[:n], err)
		}
		if n := stack.Held(s); n != 0 {
			t.Errorf("%d packets held in the end", n)
		}
		if got := counters(s); got["held_dropped"]+got["udp_sent"] != 302 || got["udp_sent"] < 250 {
			t.Errorf("counters: %v", got)
		}
	})
}

// The number of held packets is bounded for each destination and for all. The oldest is dropped.
func TestPacketsHeldForARouteAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{delay: time.Second, answer: answerWith(stack.Route{LinkAddr: linkB})}
		l, _ := memlink.Pair(memlink.Config{})
		s := newStack(t, l, stack.Config{LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, Resolver: r, Wait: endpoint.WaitBlock, FrameQuota: 80})
		defer s.Close()
		w := tap(t, l)
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		for i := range 18 {
			udpSendTo(u, []byte{'a' + byte(i)}, ap("192.0.2.1:9"))
		}
		for i := range 6 {
			udpSendTo(u, []byte{'A' + byte(i)}, ap("192.0.2.2:9")) // 20 packets may be held in all: a to d are dropped
		}
		if n := stack.Held(s); n != 20 {
			t.Errorf("%d held", n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		var first, second []string
		for _, line := range w.take() {
			payload := line[len(line)-3:]
			if strings.Contains(line, "192.0.2.1") {
				first = append(first, payload)
			} else {
				second = append(second, payload)
			}
		}
		if got := strings.Join(first, ""); got != `"e""f""g""h""i""j""k""l""m""n""o""p""q""r"` {
			t.Errorf("sent to the first destination: %s", got)
		}
		if got := strings.Join(second, ""); got != `"A""B""C""D""E""F"` {
			t.Errorf("sent to the second destination: %s", got)
		}
		if got := counters(s); got["held_dropped"] != 4 || got["udp_sent"] != 20 {
			t.Errorf("counters: %v", got)
		}
	})
}

// A first burst to a new destination arrives whole. Beyond that the oldest are dropped, of the destination
// with the most, so that those of others are kept.
func TestFirstBurst(t *testing.T) {
	for _, tt := range []struct {
		bursts []int // datagrams to each destination, one destination after the other
		want   []int // that arrive
	}{
		{[]int{64}, []int{64}},
		{[]int{104}, []int{104}},
		{[]int{200}, []int{104}},
		{[]int{1, 104, 104, 60, 3}, []int{1, 96, 96, 60, 3}}, // 256 in all
	} {
		synctest.Test(t, func(t *testing.T) {
			r := &routes{delay: time.Second, answer: answerWith(stack.Route{LinkAddr: linkB})}
			s, _, w := newRouted(t, false, r)
			defer s.Close()
			u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
			sent, arrived, last := 0, 0, make([]string, len(tt.bursts))
			for i, n := range tt.bursts {
				for k := range n {
					if err := udpSendTo(u, fmt.Append(nil, k), manyHosts(i)); err != nil {
						t.Fatal(err)
					}
					sent++
				}
				last[i] = fmt.Sprintf("%q", fmt.Sprint(n-1))
			}
			time.Sleep(r.delay)
			synctest.Wait()
			got := make([]int, len(tt.bursts))
			lines := w.take()
			for i := range got {
				to := " > " + manyHosts(i).Addr().String() + " "
				for _, line := range lines {
					if strings.Contains(line, to) {
						got[i]++
						arrived++
						if strings.HasSuffix(line, " "+last[i]) {
							last[i] = ""
						}
					}
				}
				if last[i] != "" {
					t.Errorf("bursts of %d: of burst %d the last datagram does not arrive", tt.bursts, i)
				}
			}
			if c := counters(s); int(c["held_dropped"]) != sent-arrived || int(c["udp_sent"]) != arrived {
				t.Errorf("bursts of %d: counted %v", tt.bursts, c)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("bursts of %d: %d arrive, want %d", tt.bursts, got, tt.want)
			}
		})
	}
}

// On a link with fewer frames than packets may be held, held packets are dropped when a send needs a
// frame.
func TestHeldPacketsAreDroppedWhenASendNeedsAFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := memlink.Pair(memlink.Config{FrameCount: 32})
		s := newStack(t, l, stack.Config{LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, Resolver: &routes{delay: time.Hour}, Wait: endpoint.WaitBlock, FrameQuota: 1024})
		defer s.Close()
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		start := time.Now()
		for i := range 40 {
			if err := udpSendTo(u, nil, manyHosts(i)); err != nil {
				t.Fatalf("send %d: %v", i, err)
			}
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("sends waited %v", d)
		}
		if n := stack.Held(s); n != 16 {
			t.Errorf("%d held", n)
		}
	})
}

// The answer to the route request applies to held packets: the MTU of the route, or the error if
// there is no route.
func TestRouteAppliesToHeldPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{delay: time.Second, answer: answerWith(stack.Route{LinkAddr: linkB, MTU: 1000})}
		s, _, w := newRouted(t, true, r)
		defer s.Close()
		u := testutil.Value(s.DialUDP(ap("10.0.0.1:7"), ap("192.0.2.1:9"), stack.UDPOptions{}))
		v := testutil.Value(s.DialUDP(ap("10.0.0.1:8"), ap("192.0.2.2:9"), stack.UDPOptions{}))
		other := testutil.Value(s.ListenUDP(ap("10.0.0.1:9"), stack.UDPOptions{}))
		buf := make([]byte, 1)
		udpSend(u, make([]byte, 972))
		udpSend(u, make([]byte, 973))
		if _, err := udpRecv(u, buf); err != syscall.EMSGSIZE {
			t.Errorf("too large for the route: %v", err)
		}
		expect(t, w, macB+" | ip 10.0.0.1 > 192.0.2.1")
		r.set(func(netip.Addr) (stack.Route, error) { return stack.Route{}, syscall.EHOSTUNREACH })
		udpSend(v, nil)
		udpSendTo(other, nil, ap("192.0.2.2:9"))
		start := time.Now()
		if _, err := udpRecv(v, buf); !errors.Is(err, syscall.EHOSTUNREACH) || time.Since(start) != r.delay {
			t.Errorf("no route: %v after %v", err, time.Since(start))
		}
		v.SetReadDeadline(start)
		if _, err := udpRecv(v, buf); err != os.ErrDeadlineExceeded {
			t.Errorf("the error came twice: %v", err)
		}
		other.SetReadDeadline(start)
		if _, err := udpRecv(other, buf); err != os.ErrDeadlineExceeded {
			t.Errorf("a socket that is not connected got the error: %v", err)
		}
		if got := counters(s)["held_dropped"]; got != 3 {
			t.Errorf("%d dropped", got)
		}
		expect(t, w)
	})
}

// A batch to a destination with a route and to one without: the first datagram does not wait for
// the route of the second one.
func TestBatchDoesNotWaitForRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{answer: answerWith(stack.Route{LinkAddr: linkB})}
		s, _, w := newRouted(t, false, r)
		defer s.Close()
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		udpSendTo(u, nil, ap("192.0.2.1:9"))
		synctest.Wait()
		w.take()
		r.setDelay(700 * time.Millisecond)
		start := time.Now()
		n, err := udpSendBatch(u, []stack.UDPMessage{{Buf: []byte("x"), Addr: ap("192.0.2.1:9")}, {Buf: []byte("y"), Addr: ap("192.0.2.2:9")}})
		if n != 2 || err != nil || time.Since(start) != 0 {
			t.Errorf("sent %d after %v, %v", n, time.Since(start), err)
		}
		expect(t, w, `192.0.2.1 ttl 64 DF | udp 7 > 9 "x"`)
		time.Sleep(700 * time.Millisecond)
		synctest.Wait()
		expect(t, w, `192.0.2.2 ttl 64 DF | udp 7 > 9 "y"`)
	})
}

// On a route with a locked MTU packets have no DF and IDs of their own, and a router's report of a smaller
// path MTU has no effect on datagrams and connections. Without the lock all is as before.
func TestLockedMTU(t *testing.T) {
	r := &routes{answer: answerWith(stack.Route{LinkAddr: linkB, MTU: 1300, MTULocked: true})}
	la, lb := memlink.Pair(memlink.Config{})
	cfg := stack.Config{OwnedAddress: true, LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, Resolver: r}
	a := newStack(t, la, cfg)
	cfg.LinkAddr, cfg.Addrs, cfg.Resolver = linkB, []netip.Prefix{prefixB}, neighbours{}
	b := newStack(t, lb, cfg)
	reports := make(chan stack.Frame, 1000)
	var mu sync.Mutex
	var reported atomic.Bool
	ids, dont := map[uint16]int{}, 0
	la.Filter(func(frame []byte) bool {
		var ip wire.IPv4
		if wire.EtherType(binary.BigEndian.Uint16(frame[12:])) != wire.EtherTypeIPv4 {
			return true
		}
		if err := ip.Parse(frame[wire.EthernetHeaderLen:]); err != nil {
			t.Errorf("%x: %v", frame, err)
			return true
		}
		if ip.Dst != addrB {
			return true
		}
		mu.Lock()
		defer mu.Unlock()
		if ids[binary.BigEndian.Uint16(frame[18:])]++; frame[20]&0x40 != 0 {
			dont++
		}
		if len(frame) > 1200 {
			m := make([]byte, wire.MaxICMPv4ErrorLen)
			m = m[:wire.PutICMPv4Error(m, wire.ICMPUnreachable, wire.ICMPFragmentationNeeded, 1000, frame[wire.EthernetHeaderLen:])]
			report := ipFrame(wire.IPv4Fields{Protocol: wire.ProtocolICMP, Src: addrB, Dst: addrA}, m)
			copy(report[:6], linkA[:])
			reports <- stack.Frame{Data: report}
			return reported.Load() // the first ones are lost, so that they are not acknowledged before the report comes
		}
		return true
	})
	go func() {
		for f := range reports {
			la.Inject(f)
			reported.Store(true)
		}
	}()
	defer func() {
		la.Filter(nil)
		close(reports)
	}()
	u := testutil.Value(a.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
	defer u.Close()
	sink := testutil.Value(b.ListenUDP(ap("10.0.0.2:9"), stack.UDPOptions{}))
	defer sink.Close()
	udpSend(u, nil)
	testutil.Eventually(t, "the route is known", func() bool { return counters(a)["routes_failed"] == 0 && r.count() > 0 })
	client, server := connect(t, a, b, stack.TCPOptions{})
	transfer(t, server, client, 20_000)
	testutil.Eventually(t, "reports about segments have come", func() bool { return counters(a)["tcp_mtu_reports_bad"] > 0 })
	if got := server.Info(); got.PathMTU != 1300 {
		t.Errorf("after reports the path's MTU of the connection is %d, want 1300", got.PathMTU)
	}
	if err := udpSend(u, make([]byte, 1300-28)); err != nil {
		t.Errorf("a datagram as long as the route's MTU: %v", err)
	}
	testutil.Eventually(t, "the report about the datagram has come", func() bool { return counters(a)["path_mtu_ignored"] > 0 })
	v := testutil.Value(a.ListenUDP(ap("10.0.0.1:8"), stack.UDPOptions{}))
	defer v.Close()
	for range 2 { // then the routes are known
		for i := range 200 { // whose headers have different checksums
			udpSendTo(v, nil, netip.AddrPortFrom(netip.AddrFrom4([4]byte{byte(20 + i), byte(i), 2, byte(7 * i)}), 9))
		}
		testutil.Eventually(t, "the routes are known", func() bool { return r.count() > 200 && stack.Held(a) == 0 })
	}
	mu.Lock()
	first, last := ids[0], len(ids)
	if dont > first || last < 15 { // a SYN,ACK may have left before the route was known
		t.Errorf("%d packets with DF, %d different IDs, ID 0 %d times", dont, last, first)
	}
	for id, n := range ids {
		if id != 0 && n > 1 {
			t.Errorf("ID %d %d times", id, n)
		}
	}
	clear(ids)
	dont = 0
	mu.Unlock()
	r.set(answerWith(stack.Route{LinkAddr: linkB, MTU: 1300}))
	a.Invalidate(netip.Addr{})
	testutil.Eventually(t, "the next datagram has DF and ID 0", func() bool {
		udpSend(u, nil)
		mu.Lock()
		defer mu.Unlock()
		return dont > 0 && ids[0] == dont
	})
	client.Close()
	server.Close()
}

// A SYN and a SYN,ACK announce the MSS of the route, but no more than the link takes.
func TestAdvertisedMSS(t *testing.T) {
	for _, c := range []struct {
		route stack.Route
		want  uint16
	}{
		{stack.Route{}, 1460}, {stack.Route{AdvMSS: 1000}, 1000}, {stack.Route{AdvMSS: 9000}, 1460}, {stack.Route{AdvMSS: 1}, 28},
		{stack.Route{MTU: 1300}, 1260}, {stack.Route{MTU: 1300, AdvMSS: 1400}, 1400}, {stack.Route{MTU: 1300, AdvMSS: 1100}, 1100},
	} {
		c.route.LinkAddr = linkB
		r := &routes{answer: answerWith(c.route)}
		l, _ := memlink.Pair(memlink.Config{})
		announced := make(chan uint16, 10)
		s := newStack(t, l, stack.Config{LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, OwnedAddress: true, Resolver: r})
		l.Filter(func(frame []byte) bool {
			var ip wire.IPv4
			var segment wire.TCP
			if ip.Parse(frame[wire.EthernetHeaderLen:]) == nil && ip.Protocol == wire.ProtocolTCP && segment.Parse(ip.Payload) == nil && segment.Flags&wire.TCPSyn != 0 {
				var o wire.TCPOptions
				segment.ReadOptions(&o)
				announced <- o.MSS
			}
			return true
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			s.DialTCP(ctx, ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.TCPOptions{})
			close(ended)
		}()
		if got := <-announced; got != c.want {
			t.Errorf("%+v: a SYN announces %d, want %d", c.route, got, c.want)
		}
		cancel()
		<-ended
		testutil.Value(s.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{}))
		l.Inject(stack.Frame{Data: segmentFrame(addrB, wire.TCPFields{SrcPort: 8, DstPort: 80, Seq: 1, Flags: wire.TCPSyn, Window: 1000})})
		for got := range announced {
			if len(announced) == 0 && got == c.want {
				break
			} else if got != c.want {
				t.Errorf("%+v: a SYN,ACK announces %d, want %d", c.route, got, c.want)
				break
			}
		}
		l.Filter(nil)
		s.Close()
	}
}
