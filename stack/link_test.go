package stack_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
)

// While packets are sent to a MAC address and none is received from it, the route is requested again
// every half second, once for all destinations behind that MAC address.
func TestRouteOfSilentMACAddressIsResolvedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{answer: answerWith(stack.Route{LinkAddr: linkB})}
		s, l, w := newRouted(t, false, r)
		defer s.Close()
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		const hosts = 20
		send := func(d time.Duration, receive func()) (requests int) {
			before := r.count()
			for ; d > 0; d -= 90 * time.Millisecond {
				for i := range hosts {
					udpSendTo(u, []byte("x"), manyHosts(i))
				}
				receive()
				time.Sleep(90 * time.Millisecond)
			}
			return r.count() - before
		}
		send(90*time.Millisecond, func() {})
		if n := r.count(); n != hosts {
			t.Fatalf("%d route requests for %d new destinations", n, hosts)
		}
		// Frames are received from other MAC addresses, one of which has the same entry in the table.
		others := func() {
			injectFrom(l, linkC)
			injectFrom(l, stack.SamePlace(linkB))
		}
		if n := send(4*time.Second, others); n < 7 || n > 14 {
			t.Errorf("%d route requests in 4 s, want 7 to 14", n)
		}
		if got := counters(s)["routes_doubted"]; got < 7 {
			t.Errorf("routes_doubted is %d, want 7 or more", got)
		}
		// The next hop has another MAC address now, and frames come from that.
		r.set(answerWith(stack.Route{LinkAddr: linkC}))
		w.take()
		send(time.Second, func() { injectFrom(l, linkC) })
		moved := 0
		for _, line := range w.take() {
			if !strings.HasPrefix(line, macA+" > "+macB) {
				moved++
			}
		}
		if moved == 0 {
			t.Error("nothing was sent to the new MAC address")
		}
		asked := r.count()
		s.Invalidate(netip.Addr{}) // the route service reports this for the other destinations behind that hop
		synctest.Wait()
		if n := r.count() - asked; n != hosts {
			t.Errorf("%d route requests after Invalidate, want %d", n, hosts)
		}
		if n := send(4*time.Second, func() { injectFrom(l, linkC) }); n != 0 {
			t.Errorf("%d route requests in 4 s while frames were received from the MAC address, want none", n)
		}
		// One packet without an answer, and then no more packets.
		time.Sleep(10 * time.Second)
		asked = r.count()
		udpSendTo(u, nil, manyHosts(0)) // the route has not been used for 10 s
		time.Sleep(10 * time.Second)
		if n := r.count() - asked; n != 2 {
			t.Errorf("%d route requests for one packet, want 2", n)
		}
	})
}

// A route that was invalidated is requested again. Until the answer the old route is used.
func TestInvalidatedRouteIsResolvedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{delay: 100 * time.Millisecond, answer: answerWith(stack.Route{LinkAddr: linkB})}
		s, l, w := newRouted(t, false, r)
		defer s.Close()
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		dst := netip.MustParseAddr("192.0.2.1")
		send := func() {
			t.Helper()
			if err := udpSendTo(u, []byte("x"), netip.AddrPortFrom(dst, 9)); err != nil {
				t.Error(err)
			}
			// Later frames are received from its MAC address, so the route is not requested again.
			time.AfterFunc(140*time.Millisecond, func() { injectFrom(l, linkB); injectFrom(l, linkC) })
		}
		wantRequests := func(want int, what string) {
			t.Helper()
			time.Sleep(150 * time.Millisecond)
			synctest.Wait()
			if n := r.count(); n != want {
				t.Errorf("%s: %d route requests in all, want %d", what, n, want)
			}
		}
		s.Invalidate(dst) // a destination without a route in the cache
		s.Invalidate(netip.MustParseAddr("fd00::1"))
		wantRequests(0, "unknown")

		// Invalidated during a request: the answer may be older, so the route is requested again.
		send()
		time.Sleep(50 * time.Millisecond)
		s.Invalidate(dst)
		r.set(answerWith(stack.Route{LinkAddr: linkC}))
		r.mu.Lock()
		r.answer = func(netip.Addr) (stack.Route, error) {
			if r.asked == 1 {
				return stack.Route{LinkAddr: linkB}, nil
			}
			return stack.Route{LinkAddr: linkC}, nil
		}
		r.mu.Unlock()
		time.Sleep(70 * time.Millisecond)
		expect(t, w, macB)
		wantRequests(2, "invalidated while resolving")
		send()
		expect(t, w, "02:00:00:00:00:0c")

		// Invalidated while it is in use: the old route is used until the answer.
		r.set(answerWith(stack.Route{LinkAddr: linkB, MTU: 1000}))
		s.Invalidate(netip.MustParseAddr("::ffff:192.0.2.1"))
		s.Invalidate(dst)
		send()
		expect(t, w, "02:00:00:00:00:0c")
		wantRequests(4, "in use") // two requests, since the second Invalidate came during the first one
		time.Sleep(100 * time.Millisecond)
		send()
		expect(t, w, macB)
		if err := udpSendTo(u, make([]byte, 973), netip.AddrPortFrom(dst, 9)); err != syscall.EMSGSIZE {
			t.Errorf("beyond the new MTU: %v", err)
		}

		// Invalidated while it is unused: the route is requested at its next use.
		time.Sleep(2 * time.Second)
		w.take()
		asked := r.count()
		s.Invalidate(netip.Addr{})
		wantRequests(asked, "unused")
		send()
		expect(t, w, macB)
		wantRequests(asked+1, "used again")

		// Invalidate also removes a failed request.
		dst = netip.MustParseAddr("192.0.2.2")
		r.set(func(netip.Addr) (stack.Route, error) { return stack.Route{}, syscall.EHOSTUNREACH })
		send()
		wantRequests(asked+2, "failure")
		if err := udpSendTo(u, nil, netip.AddrPortFrom(dst, 9)); !errors.Is(err, syscall.EHOSTUNREACH) {
			t.Errorf("send after a failed request: %v, want EHOSTUNREACH", err)
		}
		s.Invalidate(dst)
		r.set(answerWith(stack.Route{LinkAddr: linkB}))
		send()
		wantRequests(asked+3, "after a failure")
		expect(t, w, macB)
		if n := counters(s)["routes_invalidated"]; n == 0 {
			t.Error("routes_invalidated is 0")
		}
	})
}

// If the route service answers that a route no longer exists, sends return the error, also on a
// socket that has sent to the destination before.
func TestSendAfterRouteIsWithdrawn(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EACCES, syscall.EINVAL} {
		synctest.Test(t, func(t *testing.T) {
			r := &routes{answer: answerWith(stack.Route{LinkAddr: linkB})}
			s, _, _ := newRouted(t, false, r)
			defer s.Close()
			u := testutil.Value(s.DialUDP(ap("10.0.0.1:7"), ap("192.0.2.1:9"), stack.UDPOptions{}))
			v := testutil.Value(s.ListenUDP(ap("10.0.0.1:8"), stack.UDPOptions{}))
			udpSend(u, nil)
			synctest.Wait() // for the answer
			if err := udpSend(u, nil); err != nil {
				t.Fatal(err)
			}
			r.set(func(netip.Addr) (stack.Route, error) { return stack.Route{}, fmt.Errorf("%w: %w", errno, errNoRoute) })
			s.Invalidate(netip.MustParseAddr("192.0.2.1"))
			synctest.Wait()
			b := testutil.Value(u.Reserve())
			for _, err := range []error{udpSend(u, nil), udpSendTo(v, nil, ap("192.0.2.1:9")), u.Send(&b, 1, netip.AddrPort{})} {
				if !errors.Is(err, errno) || !errors.Is(err, errNoRoute) {
					t.Errorf("got %v", err)
				}
			}
			u.Cancel(&b)
			// The route exists again.
			r.set(answerWith(stack.Route{LinkAddr: linkB}))
			s.Invalidate(netip.Addr{})
			if err := udpSend(u, nil); err != nil {
				t.Errorf("after the route exists again: %v", err)
			}
			synctest.Wait()
		})
	}
}

// While the link is down each send fails at once, and reads wait on.
func TestUDPWhileTheLinkIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{answer: answerWith(stack.Route{LinkAddr: linkB})}
		s, l, w := newRouted(t, false, r)
		defer s.Close()
		u := testutil.Value(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
		v := testutil.Value(s.ListenUDP(ap("10.0.0.1:8"), stack.UDPOptions{}))
		udpSend(u, []byte("x"))
		synctest.Wait()
		w.take()

		// Held packets are dropped, and their sockets get the error.
		r.setDelay(time.Second)
		held := testutil.Value(s.DialUDP(ap("10.0.0.1:9"), ap("192.0.2.1:9"), stack.UDPOptions{}))
		udpSend(held, []byte("x"))
		udpSendTo(v, []byte("x"), ap("192.0.2.2:9"))
		// A read that blocks, and a send that blocks because the link takes no frames.
		read := make(chan error, 1)
		go func() {
			_, err := udpRecv(u, make([]byte, 10))
			read <- err
		}()
		l.Stick(true)
		sent := make(chan error, 1)
		go func() {
			for {
				if err := udpSendTo(v, []byte("x"), ap("10.0.0.2:9")); err != nil {
					sent <- err
					return
				}
			}
		}()
		time.Sleep(10 * time.Millisecond)
		select {
		case err := <-sent:
			t.Fatalf("a send to a link that takes no frames returned %v", err)
		default:
		}
		start := time.Now()
		s.SetLink(0, false)
		s.SetLink(0, false)
		if err := <-sent; err != syscall.ENETDOWN || time.Since(start) > time.Millisecond {
			t.Errorf("blocked sender: %v after %v", err, time.Since(start))
		}
		l.Stick(false)
		if _, err := udpRecv(held, nil); err != nil {
			t.Errorf("a read of nothing: %v", err)
		}
		if _, err := udpRecv(held, make([]byte, 1)); err != syscall.ENETDOWN {
			t.Errorf("read after a held packet was dropped: %v, want ENETDOWN", err)
		}
		if n := stack.Held(s); n != 0 {
			t.Errorf("%d packets are still held", n)
		}
		b := testutil.Value(u.Reserve())
		n, batch := udpSendBatch(v, []stack.UDPMessage{{Buf: []byte("x"), Addr: ap("10.0.0.2:9")}})
		for i, err := range []error{udpSend(u, nil), udpSendTo(v, nil, ap("10.0.0.2:9")), udpSendTo(v, nil, ap("192.0.2.7:9")), batch, unwrapped(u.Send(&b, 1, netip.AddrPort{}))} {
			if err != syscall.ENETDOWN || n != 0 {
				t.Errorf("send %d: %v, %d sent", i, err, n)
			}
		}
		u.Cancel(&b)
		// Sockets of the same stack reach each other, and deadlines work.
		if err := u.Close(); err != nil {
			t.Error(err)
		}
		if err := <-read; err == syscall.ENETDOWN {
			t.Error("a read returned the error of the link")
		}
		x := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		if err := udpSendTo(v, []byte("x"), ap("10.0.0.1:7")); err != nil {
			t.Errorf("to a socket of the same stack: %v", err)
		}
		testutil.Value(udpRecv(x, make([]byte, 1)))
		x.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := udpRecv(x, make([]byte, 1)); err != os.ErrDeadlineExceeded {
			t.Errorf("deadline: %v", err)
		}
		// No route is requested while the link is down.
		asked := r.count()
		time.Sleep(time.Hour)
		if _, ok := s.NextDeadline(); ok || r.count() != asked {
			t.Errorf("%d route requests, a timer is left: %v", r.count()-asked, ok)
		}

		// When the link is up, routes are requested again, also after a failed request.
		r.setDelay(0)
		s.SetLink(0, true)
		s.SetLink(0, true)
		x.SetReadDeadline(time.Time{})
		w.take()
		if err := udpSendTo(v, []byte("x"), ap("192.0.2.1:9")); err != nil {
			t.Errorf("up: %v", err)
		}
		synctest.Wait()
		lines := w.take() // also the frames that the link had not moved before
		if n := len(lines); n == 0 || !strings.Contains(lines[n-1], "192.0.2.1") {
			t.Errorf("up: sent %q", lines)
		}
		l.Inject(stack.Frame{Data: datagramFrame(9, 7, []byte("news"))})
		buf := make([]byte, 10)
		if n, err := udpRecv(x, buf); string(buf[:n]) != "news" || err != nil {
			t.Errorf("up: %q %v", buf[:n], err)
		}
		if got := counters(s); got["link_downs"] != 1 || got["held_dropped"] != 2 {
			t.Errorf("counters: %v", got)
		}
	})
}

// While the host does not have the address of the stack each send fails, also to another endpoint
// with the same MAC address, whether the link is up or down.
func TestSendsFailWhileTheAddressIsRemoved(t *testing.T) {
	l, _ := memlink.Pair(memlink.Config{})
	w := tap(t, l)
	s := newStack(t, l, stack.Config{LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, Resolver: &routes{answer: answerWith(stack.Route{LinkAddr: linkA})}})
	u := testutil.Value(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
	defer u.Close()
	wantSends := func(what string, want error) {
		t.Helper()
		if err := udpSend(u, []byte("x")); err != want {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
		if _, err := s.DialTCP(t.Context(), ap("10.0.0.1:8"), ap("10.0.0.2:9"), stack.TCPOptions{}); want != nil && err != want {
			t.Errorf("%s: dial %v, want %v", what, err, want)
		}
	}
	s.SetAddress(0, prefixA, true) // no change
	if err := udpSend(u, []byte("x")); err != nil {
		t.Error(err)
	}
	testutil.Eventually(t, "the route is known", func() bool { return len(w.take()) > 0 })
	s.SetAddress(0, prefixA, false)
	wantSends("address removed", syscall.EADDRNOTAVAIL)
	s.SetLink(0, false)
	wantSends("address removed, link down", syscall.EADDRNOTAVAIL)
	s.SetAddress(0, prefixA, true)
	wantSends("to the same MAC address while the link is down", nil)
	s.SetAddress(0, prefixA, false)
	s.SetLink(0, true)
	wantSends("address removed, link up again", syscall.EADDRNOTAVAIL)
	s.SetAddress(0, prefixA, true)
	if err := udpSend(u, []byte("x")); err != nil {
		t.Errorf("address added again: %v", err)
	}
}

// Only sends from the removed address fail, and packets from it that wait for a route are dropped. Sockets of
// all addresses send from another one, if there is one of the family.
func TestSendsFailFromTheRemovedAddressOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := memlink.Pair(memlink.Config{})
		w := tap(t, l)
		four, six := ap("10.0.0.2:9"), ap("[fd00::2]:9")
		answers := make(chan stack.Route)
		s := newStack(t, l, stack.Config{LinkAddr: linkA, Addrs: []netip.Prefix{prefixA, netip.MustParsePrefix("fd00::1/64"), netip.MustParsePrefix("fe80::1/64")},
			Resolver: &routes{answer: func(netip.Addr) (stack.Route, error) { return <-answers, nil }}})
		all := testutil.Value(s.ListenUDP(ap("[::]:7"), stack.UDPOptions{}))
		only6 := testutil.Value(s.DialUDP(ap("[fd00::1]:8"), six, stack.UDPOptions{}))
		removed := netip.MustParsePrefix("fd00::1/64")

		// Of the packets that wait for a route, only that from the removed address is dropped.
		for _, to := range []netip.AddrPort{four, six, ap("[fe80::2]:9")} {
			if err := udpSendTo(all, []byte("held"), to); err != nil {
				t.Fatal(err)
			}
		}
		s.SetAddress(0, removed, false)
		for range 3 {
			answers <- stack.Route{LinkAddr: linkB}
		}
		synctest.Wait()
		sent := w.take()
		slices.Sort(sent)
		if len(sent) != 2 || !strings.Contains(sent[0], "10.0.0.1 > 10.0.0.2") || !strings.Contains(sent[1], "fe80::1 > fe80::2") {
			t.Errorf("sent %q, want the datagrams from 10.0.0.1 and fe80::1", sent)
		}
		for _, c := range []struct {
			what string
			err  error
			want error
		}{
			{"IPv4", udpSendTo(all, nil, four), nil},
			{"link-local", udpSendTo(all, nil, ap("[fe80::2]:9")), nil},
			{"from another address instead", udpSendTo(all, nil, six), nil}, // the route service may know a route
			{"by a socket of that address", udpSend(only6, nil), syscall.EADDRNOTAVAIL},
		} {
			if c.err != c.want {
				t.Errorf("%s: %v, want %v", c.what, c.err, c.want)
			}
		}
		if _, err := s.DialTCP(t.Context(), ap("[fd00::1]:0"), six, stack.TCPOptions{}); err != syscall.EADDRNOTAVAIL {
			t.Errorf("dial: %v", err)
		}
		s.SetAddress(0, netip.MustParsePrefix("fe80::1/64"), false)
		if err := udpSendTo(all, nil, six); err != syscall.ENETUNREACH {
			t.Errorf("all IPv6 addresses are removed: %v", err)
		}
		s.SetAddress(0, removed, true)
		if err := udpSendTo(all, nil, six); err != nil {
			t.Errorf("address added again: %v", err)
		}
		close(answers) // of routes that were requested again
	})
}

// While one goroutine changes routes and the link, another one sends. In the end every frame has
// been released, which newStack checks.
func TestRouteAndLinkChangesWhileSending(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg stack.Config) {
		l, _ := memlink.Pair(memlink.Config{})
		r := &routes{answer: answerWith(stack.Route{LinkAddr: linkB})}
		cfg.LinkAddr, cfg.Addrs, cfg.Resolver = linkA, []netip.Prefix{prefixA}, r
		s := newStack(t, l, cfg)
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				switch i % 5 {
				case 0:
					s.Invalidate(netip.Addr{})
				case 1:
					s.Invalidate(manyHosts(i % 30).Addr())
				case 2:
					s.SetLink(0, i%3 == 0)
				case 3:
					r.set(answerWith(stack.Route{LinkAddr: linkC}))
				case 4:
					r.set(func(netip.Addr) (stack.Route, error) { return stack.Route{}, syscall.EHOSTUNREACH })
				}
			}
		}()
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		for i := range 20_000 {
			err := udpSendTo(u, []byte("x"), manyHosts(i%40))
			if err != nil && err != syscall.ENETDOWN && !errors.Is(err, syscall.EHOSTUNREACH) && err != syscall.ENOBUFS {
				t.Fatal(err)
			}
		}
		close(stop)
		<-done
	})
}

// A connection stays open while the link is down or the address is removed. If that lasts, its user
// timeout ends the connection, as it does when the peer does not answer.
func TestConnectionsWhileTheLinkIsDown(t *testing.T) {
	for name, down := range map[string]func(*stack.Stack){
		"link":    func(s *stack.Stack) { s.SetLink(0, false) },
		"address": func(s *stack.Stack) { s.SetAddress(0, prefixA, false) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, _, _ := newPair(t, stack.Config{Wait: endpoint.WaitBlock})
				l := testutil.Value(b.ListenTCP(ap("10.0.0.2:80"), stack.TCPListenOptions{}))
				c := testutil.Value(a.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{}))
				c.SetUserTimeout(3 * time.Second)
				down(a)
				testutil.Value(c.Write([]byte("into the buffer")))
				if _, err := c.Read(make([]byte, 1)); unwrapped(err) != syscall.ETIMEDOUT {
					t.Errorf("read: %v", err)
				}
			})
		})
	}
}

// newKicked makes a stack that has a route to 10.0.0.2, its link, whose kicks can fail, and
// a wiretap on it.
func newKicked(t *testing.T) (*stack.Stack, *memlink.Link, *wiretap) {
	s, l, w := newRouted(t, false, &routes{answer: answerWith(stack.Route{LinkAddr: linkB})})
	u := testutil.Value(s.ListenUDP(ap("10.0.0.1:6"), stack.UDPOptions{}))
	if err := udpSendTo(u, nil, ap("10.0.0.2:9")); err != nil {
		t.Fatal(err)
	}
	u.Close()
	synctest.Wait()
	w.take()
	return s, l, w
}

var kickFailed = os.NewSyscallError("sendto of an AF_XDP socket", syscall.ENETDOWN)

// A datagram that is queued when the kick fails is sent with a later kick: its send has
// succeeded. Later sends fail until a kick succeeds, and their datagrams are never sent.
func TestDatagramsWhenTheKickFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l, w := newKicked(t)
		defer s.Close()
		to := ap("10.0.0.2:9")
		u := testutil.Value(s.DialUDP(ap("10.0.0.1:7"), to, stack.UDPOptions{}))
		v := testutil.Value(s.ListenUDP(ap("10.0.0.1:8"), stack.UDPOptions{}))
		testutil.Value(s.ListenUDP(ap("10.0.0.1:5"), stack.UDPOptions{}))
		b := testutil.Value(u.Reserve())
		sends := map[string]func() error{
			"send":    func() error { return udpSend(u, []byte("x")) },
			"send to": func() error { return udpSendTo(v, []byte("x"), to) },
			"batch": func() error {
				n, err := udpSendBatch(v, []stack.UDPMessage{{Buf: []byte("x"), Addr: to}})
				if (n == 1) != (err == nil) {
					t.Errorf("batch: %d sent, %v", n, err)
				}
				return err
			},
			"commit": func() error { return u.Send(&b, 1, netip.AddrPort{}) },
		}
		for name, send := range sends {
			l.BreakKicks(kickFailed)
			if err := send(); err != nil {
				t.Errorf("%s of the datagram that is queued: %v", name, err)
			}
			for other, again := range sends {
				if name != "commit" || other != "commit" { // its buffer has been used up
					if err := again(); !errors.Is(err, syscall.ENETDOWN) {
						t.Errorf("%s after %s: %v, want the error of the kick", other, name, err)
					}
				}
			}
			if err := udpSendTo(v, []byte("x"), ap("10.0.0.1:5")); err != nil {
				t.Errorf("to a socket of the same stack: %v", err)
			}
			l.BreakKicks(nil)
			if err := udpSend(u, []byte("y")); err != nil {
				t.Errorf("after the kick succeeded: %v", err)
			}
			synctest.Wait()
			if n := len(w.take()); n != 2 {
				t.Errorf("%s: %d frames sent, want that one and the last", name, n)
			}
			if name == "commit" {
				b = testutil.Value(u.Reserve())
			}
		}
		u.Cancel(&b)
		if n := counters(s)["flush_failed"]; n == 0 {
			t.Error("flush_failed is 0")
		}
	})
}

// A connection ends with an error if kicks fail: a dial at once, an established one when its
// user timeout expires.
func TestConnectionsWhenTheKickFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sa, sb, la, _ := newPair(t, stack.Config{Wait: endpoint.WaitBlock})
		l := testutil.Value(sb.ListenTCP(ap("10.0.0.2:80"), stack.TCPListenOptions{}))
		c := testutil.Value(sa.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{}))
		c.SetUserTimeout(3 * time.Second)
		la.BreakKicks(kickFailed)
		start := time.Now()
		for _, queued := range []uint64{1, 0} { // the SYN of the first dial is queued, that of the second one is not
			before := counters(sa)["frames_sent"]
			if _, err := sa.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{}); !errors.Is(err, syscall.ENETDOWN) {
				t.Errorf("dial: %v", err)
			}
			if n := counters(sa)["frames_sent"] - before; n != queued {
				t.Errorf("a dial has queued %d frames, want %d", n, queued)
			}
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("the dials have waited %v", d)
		}
		before := counters(sa)["frames_sent"]
		if n, err := c.Write([]byte("into the buffer")); n != 15 || err != nil {
			t.Errorf("write: %d, %v", n, err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ENETDOWN) {
			t.Errorf("read: %v", err)
		}
		if n := counters(sa)["frames_sent"] - before; n != 0 {
			t.Errorf("the connection has queued %d frames", n)
		}
		la.BreakKicks(nil)
		d := testutil.Value(sa.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{}))
		defer d.Close()

		// A connection goes on by itself once kicks succeed again.
		la.BreakKicks(kickFailed)
		if _, err := d.Write([]byte("later")); err != nil {
			t.Errorf("write: %v", err)
		}
		time.Sleep(10 * time.Second)
		la.BreakKicks(nil)
		var e net.Conn
		for e == nil || addrPort(e.RemoteAddr()) != addrPort(d.LocalAddr()) {
			e = testutil.Value(l.Accept())
		}
		b := make([]byte, 10)
		e.SetReadDeadline(time.Now().Add(time.Hour))
		if n, err := e.Read(b); err != nil || string(b[:n]) != "later" {
			t.Errorf("after kicks succeeded: %q, %v", b[:n], err)
		}
	})
}
