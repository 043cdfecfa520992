package stack_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// routes is a route service of the test's making.
type routes struct {
	mu     sync.Mutex
	answer func(dst netip.Addr) (stack.Route, error)
	delay  time.Duration
	asked  int
}

func (r *routes) Resolve(ctx context.Context, dst netip.Addr) (stack.Route, error) {
	r.mu.Lock()
	r.asked++
	answer, delay := r.answer, r.delay
	r.mu.Unlock()
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

var errNoRoute = errors.New("nobody knows")

// newRouted makes a stack with a route service, in the time of a synctest
// bubble, and returns what it sends.
func newRouted(t *testing.T, whole bool, r *routes) (*stack.Stack, *memlink.Link, *wiretap) {
	l, _ := memlink.Pair(memlink.Config{})
	s := newStack(t, l, stack.Config{
		LinkAddr: linkA, Addr: prefixA, WholeAddress: whole, Resolver: r, Wait: stack.WaitBlock,
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
		s, _, w := newRouted(t, false, r)
		u := must(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		defer s.Close()
		start := time.Now()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := u.SendTo([]byte("x"), ap("192.0.2.9:9")); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := r.count(); n != 1 {
			t.Errorf("asked %d times", n)
		}
		if d := time.Since(start); d != r.delay {
			t.Errorf("the first send took %v", d)
		}
		to := macA + " > " + macB + " | ip 10.0.0.1 > 192.0.2.9 ttl 64 DF | udp 7 > 9"
		expect(t, w, to, to, to)
		if err := u.SendTo(make([]byte, 973), ap("192.0.2.9:9")); err != syscall.EMSGSIZE {
			t.Errorf("beyond the MTU of the route: %v", err)
		}
		// In use, it is refreshed every 5 s, and no sender waits.
		r.set(answerWith(stack.Route{LinkAddr: wire.LinkAddr{2, 0, 0, 0, 0, 0xcc}}))
		time.Sleep(5*time.Second + r.delay)
		synctest.Wait()
		if n := r.count(); n != 2 {
			t.Errorf("asked %d times after 5 s", n)
		}
		start = time.Now()
		u.SendTo([]byte("x"), ap("192.0.2.9:9"))
		if time.Since(start) != 0 {
			t.Error("a send waited for a refresh")
		}
		expect(t, w, macA+" > 02:00:00:00:00:cc | ip")
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if n := r.count(); n != 3 { // once for the send, then unused
			t.Errorf("asked %d times after 16 s", n)
		}
		// Stale: sends at once, asks behind.
		start = time.Now()
		u.SendTo([]byte("x"), ap("192.0.2.9:9"))
		expect(t, w, macA+" > 02:00:00:00:00:cc | ip")
		time.Sleep(time.Second)
		if n := r.count(); n != 4 {
			t.Errorf("asked %d times after a send on a stale route", n)
		}
		// Unused for long: gone, and no timer is left.
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if _, ok := s.NextDeadline(); ok {
			t.Error("a timer is left")
		}
		if n := r.count(); n != 5 { // the send on the stale route was one more use
			t.Errorf("asked %d times in the end", n)
		}
	})
}

func TestRouteSurvivesFailedRefreshes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{answer: answerWith(stack.Route{LinkAddr: linkB})}
		s, _, _ := newRouted(t, false, r)
		defer s.Close()
		u := must(s.DialUDP(ap("10.0.0.1:7"), ap("192.0.2.9:9"), stack.UDPOptions{}))
		if err := u.Send(nil); err != nil {
			t.Fatal(err)
		}
		r.set(func(netip.Addr) (stack.Route, error) { return stack.Route{}, errNoRoute })
		var err error
		start := time.Now()
		for err == nil {
			time.Sleep(time.Second)
			err = u.Send(nil)
		}
		if d := time.Since(start); d < 30*time.Second || d > 40*time.Second {
			t.Errorf("the route was kept for %v", d)
		}
		var unreachable *stack.UnreachableError
		if !errors.Is(err, syscall.EHOSTUNREACH) || !errors.Is(err, errNoRoute) || !errors.As(err, &unreachable) {
			t.Errorf("error: %v", err)
		}
	})
}

func TestRouteFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{delay: time.Second}
		s, _, w := newRouted(t, false, r)
		u := must(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		for _, bad := range []stack.Route{
			{},                         // no link address, and we cannot ask for it
			{LinkAddr: wire.Broadcast}, // not a station
			{LinkAddr: linkB, NextHop: netip.MustParseAddr("fe80::1")},
		} {
			r.set(answerWith(bad))
			if err := u.SendTo(nil, ap("192.0.2.1:9")); !errors.Is(err, syscall.EHOSTUNREACH) {
				t.Errorf("%v: %v", bad, err)
			}
			asked := r.count()
			if err := u.SendTo(nil, ap("192.0.2.1:9")); !errors.Is(err, syscall.EHOSTUNREACH) || r.count() != asked {
				t.Errorf("the failure is not remembered: %v", err)
			}
			time.Sleep(2 * time.Second) // it is for a second
		}
		// The write deadline, set before and while a send waits; and Close.
		r.set(answerWith(stack.Route{LinkAddr: linkB}))
		r.setDelay(4 * time.Second)
		u.SetWriteDeadline(time.Now().Add(time.Second))
		start := time.Now()
		if err := u.SendTo(nil, ap("192.0.2.2:9")); err != os.ErrDeadlineExceeded || time.Since(start) != time.Second {
			t.Errorf("deadline: %v after %v", err, time.Since(start))
		}
		u.SetWriteDeadline(time.Time{})
		time.AfterFunc(time.Second, func() { u.SetWriteDeadline(time.Now()) })
		start = time.Now()
		if err := u.SendTo(nil, ap("192.0.2.3:9")); err != os.ErrDeadlineExceeded || time.Since(start) != time.Second {
			t.Errorf("deadline set meanwhile: %v after %v", err, time.Since(start))
		}
		u.SetWriteDeadline(time.Time{})
		time.AfterFunc(time.Second, func() { u.Close() })
		if err := u.SendTo(nil, ap("192.0.2.4:9")); err != net.ErrClosed {
			t.Errorf("closed meanwhile: %v", err)
		}
		// A resolver that takes for ever is given 5 s.
		v := must(s.ListenUDP(ap("10.0.0.1:8"), stack.UDPOptions{}))
		r.setDelay(time.Hour)
		start = time.Now()
		if err := v.SendTo(nil, ap("192.0.2.5:9")); !errors.Is(err, syscall.EHOSTUNREACH) || time.Since(start) != 5*time.Second {
			t.Errorf("resolver without end: %v after %v", err, time.Since(start))
		}
		time.AfterFunc(time.Second, func() { s.Close() })
		if err := v.SendTo(nil, ap("192.0.2.6:9")); err != net.ErrClosed {
			t.Errorf("stack closed meanwhile: %v", err)
		}
		expect(t, w)
	})
}

// With a whole address and a route service that knows gateways but no link
// addresses, the stack asks for the gateway's itself.
func TestRouteThroughAGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{answer: answerWith(stack.Route{NextHop: netip.MustParseAddr("10.0.0.2")})}
		s, l, w := newRouted(t, true, r)
		defer s.Close()
		u := must(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		u.SendTo([]byte("x"), ap("192.0.2.1:9"))
		u.SendTo([]byte("x"), ap("192.0.2.2:9"))
		expect(t, w, askB)
		l.Inject(stack.Frame{Data: arpFrame(wire.ARPReply, linkB, linkA, addrB, addrA)})
		time.Sleep(time.Second)
		expect(t, w, macB+" | ip 10.0.0.1 > 192.0.2.1", macB+" | ip 10.0.0.1 > 192.0.2.2")
		// The refresh leaves the neighbour as it is.
		u.SendTo([]byte("x"), ap("192.0.2.1:9"))
		time.Sleep(8 * time.Second)
		u.SendTo([]byte("x"), ap("192.0.2.1:9"))
		expect(t, w, macB+" | ip 10.0.0.1 > 192.0.2.1", macB+" | ip 10.0.0.1 > 192.0.2.1")
	})
}

func TestRouteCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{answer: answerWith(stack.Route{LinkAddr: linkB})}
		l, _ := memlink.Pair(memlink.Config{})
		s := newStack(t, l, stack.Config{LinkAddr: linkA, Addr: prefixA, Resolver: r, Wait: stack.WaitBlock})
		defer s.Close()
		u := must(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		for i := range 1500 {
			to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}), 9)
			if err := u.SendTo(nil, to); err != nil {
				t.Fatal(err)
			}
		}
		if n := stack.Routes(s); n != 1024 {
			t.Errorf("%d routes", n)
		}
	})
}
