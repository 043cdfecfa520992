package stack_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

var waitModes = []endpoint.WaitMode{endpoint.WaitAdaptive, endpoint.WaitSpin, endpoint.WaitBlock}

// forEachMode runs a test in each mode of waiting.
func forEachMode(t *testing.T, f func(t *testing.T, cfg stack.Config)) {
	for _, mode := range waitModes {
		t.Run(mode.String(), func(t *testing.T) { f(t, stack.Config{Wait: mode}) })
	}
}

// Many goroutines block, each on a socket of its own. The one with the poll role serves all of them,
// and passes the role on.
func TestReadersOfManySockets(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg stack.Config) {
		sa, sb, _, _ := newPair(t, cfg)
		const readers, each = 16, 50
		var wg sync.WaitGroup
		for i := range readers {
			u := testutil.Value(sa.ListenUDP(netip.AddrPortFrom(prefixA.Addr(), uint16(1000+i)), stack.UDPOptions{}))
			wg.Go(func() {
				buf := make([]byte, 8)
				for {
					n, from, err := udpRecvFrom(u, buf)
					if err != nil {
						return
					}
					udpSendTo(u, buf[:n], from)
				}
			})
			defer u.Close()
		}
		var clients sync.WaitGroup
		for i := range readers {
			v := testutil.Value(sb.DialUDP(netip.AddrPort{}, netip.AddrPortFrom(prefixA.Addr(), uint16(1000+i)), stack.UDPOptions{}))
			clients.Go(func() {
				buf := make([]byte, 8)
				for k := range uint64(each) {
					binary.BigEndian.PutUint64(buf, k)
					if err := udpSend(v, buf); err != nil {
						t.Error(err)
					}
					if n, err := udpRecv(v, buf); n != 8 || err != nil || binary.BigEndian.Uint64(buf) != k {
						t.Errorf("client %d, message %d: %d %v", i, k, n, err)
						return
					}
				}
			})
		}
		clients.Wait()
		sa.Close()
		wg.Wait()
	})
}

// Several readers on one socket and several writers lose nothing and get
// nothing twice.
func TestManyReadersOfOneSocket(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg stack.Config) {
		sa, sb, _, _ := newPair(t, cfg)
		u := testutil.Value(sa.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		const readers, writers, each = 4, 3, 200
		first := testutil.Value(sb.ListenUDP(netip.AddrPort{}, stack.UDPOptions{}))
		udpSendTo(first, nil, addrPort(u.LocalAddr())) // few packets are held for a new route
		testutil.Value(udpRecv(u, make([]byte, 1)))
		var seen [writers * each]atomic.Int32
		var total atomic.Int32
		var wg sync.WaitGroup
		credit := make(chan struct{}, 64) // datagrams on their way at most
		for range readers {
			wg.Go(func() {
				buf := make([]byte, 8)
				for {
					n, err := udpRecv(u, buf)
					if err != nil {
						if err != net.ErrClosed {
							t.Error(err)
						}
						return
					}
					seen[binary.BigEndian.Uint32(buf[:n])].Add(1)
					<-credit
					if total.Add(1) == writers*each {
						u.Close()
					}
				}
			})
		}
		for w := range writers {
			v := testutil.Value(sb.DialUDP(netip.AddrPort{}, ap("10.0.0.1:7"), stack.UDPOptions{}))
			wg.Go(func() {
				var b [4]byte
				for i := range each {
					credit <- struct{}{}
					binary.BigEndian.PutUint32(b[:], uint32(w*each+i))
					if err := udpSend(v, b[:]); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		for i := range seen {
			if n := seen[i].Load(); n != 1 {
				t.Fatalf("message %d was received %d times", i, n)
			}
		}
	})
}

func TestUDPReadDeadlines(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg stack.Config) {
		sa, sb, _, _ := newPair(t, cfg)
		u := testutil.Value(sa.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		v := testutil.Value(sb.DialUDP(ap("10.0.0.2:9"), ap("10.0.0.1:7"), stack.UDPOptions{}))

		// Passed already: even with data there.
		udpSend(v, []byte("there"))
		d := testutil.Value(u.Borrow())
		u.Return(&d)
		udpSend(v, []byte("there"))
		u.SetReadDeadline(time.Unix(1, 0))
		for range 3 {
			if _, err := udpRecv(u, make([]byte, 1)); err != os.ErrDeadlineExceeded {
				t.Fatalf("deadline long past: %v", err)
			}
		}
		u.SetReadDeadline(time.Time{})
		testutil.Value(udpRecv(u, make([]byte, 1)))

		// Deadlines in the future, of the poller itself and of those that are parked.
		var wg sync.WaitGroup
		for i := range 4 {
			w := testutil.Value(sa.ListenUDP(netip.AddrPort{}, stack.UDPOptions{}))
			w.SetReadDeadline(time.Now().Add(time.Duration(4-i) * 3 * time.Millisecond))
			wg.Go(func() {
				start := time.Now()
				if _, err := udpRecv(w, make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("reader %d: %v after %v", i, err, time.Since(start))
				}
			})
		}
		wg.Wait()

		// A deadline that is set, or set earlier, while readers block; also Close.
		for _, end := range []func(*stack.UDPConn){
			func(u *stack.UDPConn) { u.SetReadDeadline(time.Now()) },
			func(u *stack.UDPConn) {
				u.SetReadDeadline(time.Now().Add(time.Hour))
				u.SetReadDeadline(time.Now().Add(time.Millisecond))
			},
			func(u *stack.UDPConn) { u.Close() },
		} {
			w := testutil.Value(sa.ListenUDP(netip.AddrPort{}, stack.UDPOptions{}))
			before := stack.Parked(sa)
			for range 3 {
				wg.Go(func() {
					if _, err := udpRecv(w, make([]byte, 1)); err != os.ErrDeadlineExceeded && err != net.ErrClosed {
						t.Errorf("blocked reader: %v", err)
					}
				})
			}
			testutil.Eventually(t, "the readers block", func() bool { return stack.Parked(sa) >= before+2 }) // one of the three polls
			end(w)
			wg.Wait()
		}

		// A reader that always finds data gets the deadline's error, too.
		u.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		self := addrPort(u.LocalAddr())
		var err error
		for i := 0; err == nil && i < 1_000_000; i++ {
			udpSendTo(u, []byte("x"), self)
			_, err = udpRecv(u, make([]byte, 1))
		}
		if err != os.ErrDeadlineExceeded {
			t.Errorf("reader with data at hand: %v", err)
		}
	})
}

// While no goroutine of the application waits, the caretaker answers pings, also after goroutines
// have waited and taken the poll role from it.
func TestCaretakerAnswersPings(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg stack.Config) {
		sa, sb, _, lb := newPair(t, cfg)
		w := tap(t, lb)
		u := testutil.Value(sa.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		wantAnswer := func(line string) {
			t.Helper()
			testutil.Eventually(t, "the ping is answered", func() bool { return slices.Contains(w.take(), line) })
		}
		reply := macB + " > " + macA + " | ip 10.0.0.2 > 10.0.0.1 ttl 64 DF | icmp EchoReply id 1 seq 2 2 bytes"
		ping := make([]byte, 44)
		wire.PutEthernet(ping, linkB, linkA, wire.EtherTypeIPv4)
		n := wire.PutEcho(ping[34:], wire.EchoFields{Type: wire.ICMPEchoRequest, ID: 1, Seq: 2}, []byte("hi"))
		wire.PutIPv4(ping[14:], wire.IPv4Fields{TotalLen: uint16(20 + n), TTL: 64, Protocol: wire.ProtocolICMP, Src: addrA, Dst: addrB})
		lb.Inject(stack.Frame{Data: ping})
		wantAnswer(reply)

		// Both caretakers poll, and sleep in the link.
		testutil.Eventually(t, "both caretakers sleep in the link", func() bool { return stack.CaretakerPolls(sa) && stack.CaretakerPolls(sb) })
		v := testutil.Value(sb.DialUDP(ap("10.0.0.2:9"), ap("10.0.0.1:7"), stack.UDPOptions{}))
		for range 3 {
			if err := udpSend(v, []byte("x")); err != nil {
				t.Fatal(err)
			}
			testutil.Value(udpRecv(u, make([]byte, 1)))
		}
		lb.Inject(stack.Frame{Data: ping})
		wantAnswer(reply)
	})
}

// While a goroutine of the application waits for datagrams and computes between the waits, the
// caretaker does not take the poll role.
func TestCaretakerDoesNotPollBetweenWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sa, sb, _, _ := newPair(t, stack.Config{Wait: endpoint.WaitBlock})
		u := testutil.Value(sa.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		v := testutil.Value(sb.DialUDP(ap("10.0.0.2:9"), ap("10.0.0.1:7"), stack.UDPOptions{}))
		udpSend(v, nil) // the routes are resolved
		testutil.Value(udpRecv(u, make([]byte, 1)))
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				if _, err := udpRecv(u, make([]byte, 1)); err != nil {
					return
				}
				time.Sleep(500 * time.Microsecond) // the goroutine computes
				if stack.CaretakerPolls(sa) {
					t.Error("the caretaker polls between two waits")
				}
			}
		}()
		for range 50 {
			time.Sleep(time.Millisecond)
			udpSend(v, []byte("x"))
		}
		u.Close()
		<-done
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		if !stack.CaretakerPolls(sa) || !stack.CaretakerPolls(sb) {
			t.Error("no goroutine waits, and the caretaker does not poll")
		}
		sa.Close()
		sb.Close()
	})
}

// A goroutine that sends to a socket of the same stack ends the wait of the goroutine that polls for
// that socket, in each mode of waiting.
func TestDeliveryEndsPollingOfTheReader(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg stack.Config) {
		sa, _, _, _ := newPair(t, cfg)
		u := testutil.Value(sa.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		v := testutil.Value(sa.ListenUDP(ap("10.0.0.1:8"), stack.UDPOptions{}))
		got := make(chan error)
		for i := range 20 {
			go func() {
				_, err := udpRecv(u, make([]byte, 1))
				got <- err
			}()
			if i%2 == 0 {
				time.Sleep(time.Duration(i) * 20 * time.Microsecond)
			}
			if err := udpSendTo(v, []byte("x"), ap("10.0.0.1:7")); err != nil {
				t.Fatal(err)
			}
			if err := <-got; err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Sockets are used, opened and closed concurrently, while a goroutine calls Poll.
func TestConcurrentUse(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg stack.Config) {
		sa, sb, _, _ := newPair(t, cfg)
		var wg sync.WaitGroup
		stop := make(chan struct{})
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					sa.Poll(time.Now())
					sa.NextDeadline()
					sb.Counters()
					time.Sleep(10 * time.Microsecond)
				}
			}
		})
		var work sync.WaitGroup
		for i := range 6 {
			work.Go(func() {
				for k := range 20 {
					u, err := sa.ListenUDP(netip.AddrPortFrom(prefixA.Addr(), uint16(2000+i)), stack.UDPOptions{})
					if err != nil {
						t.Error(err)
						return
					}
					v := testutil.Value(sb.DialUDP(netip.AddrPort{}, addrPort(u.LocalAddr()), stack.UDPOptions{}))
					u.SetDeadline(time.Now().Add(time.Minute))
					v.SetDeadline(time.Now().Add(time.Minute))
					msg := fmt.Appendf(nil, "%d %d", i, k)
					if err := udpSend(v, msg); err != nil {
						t.Errorf("send: %v", err)
					}
					d, err := u.Borrow()
					if err != nil || string(d.Payload) != string(msg) {
						t.Errorf("%q %v", d.Payload, err)
						return
					}
					b := testutil.Value(u.Reserve())
					u.Send(&b, copy(b.Payload, d.Payload), d.From)
					u.Return(&d)
					buf := make([]byte, 100)
					if n, err := udpRecv(v, buf); err != nil || string(buf[:n]) != string(msg) {
						t.Errorf("%q %v", buf[:n], err)
					}
					u.Close()
					v.Close()
				}
			})
		}
		work.Wait()
		close(stop)
		wg.Wait()
	})
}

// An endless flood of frames for no socket delays neither a reader's deadline nor a writer
// that wants the lock.
func TestFloodDelaysNoDeadline(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg stack.Config) {
		l := &feedLink{frame: datagramFrame(9, 99, nil), waiting: 1 << 62}
		cfg.Link, cfg.LinkAddr, cfg.Addrs, cfg.Resolver = l, linkA, []netip.Prefix{prefixA}, neighbours{}
		s := testutil.Value(stack.New(cfg))
		defer s.Close()
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		u.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		done := make(chan error)
		go func() {
			_, err := udpRecv(u, make([]byte, 1))
			done <- err
		}()
		for range 10 {
			s.Counters() // needs the lock
		}
		if err := <-done; err != os.ErrDeadlineExceeded {
			t.Errorf("reader: %v", err)
		}
	})
}

// lateLink is a link whose Sleep returns only after release, as if its goroutine got no processor
// before.
type lateLink struct {
	*memlink.Link
	release chan struct{}
}

func (l *lateLink) Sleep(until time.Time, again bool) error {
	err := l.Link.Sleep(until, again)
	<-l.release
	return err
}

// When Close of the stack has returned, the stack no longer uses the link, also if several goroutines
// have called Close: no call returns before the others.
func TestConcurrentStackCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		la, _ := memlink.Pair(memlink.Config{})
		l := &lateLink{la, make(chan struct{})}
		s := testutil.Value(stack.New(stack.Config{Link: l, LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, OwnedAddress: true, Resolver: neighbours{}}))
		for !stack.CaretakerPolls(s) {
			time.Sleep(time.Millisecond)
		}
		const closers = 3
		done := make(chan error, closers)
		for range closers {
			go func() { done <- s.Close() }()
		}
		synctest.Wait()
		if n := len(done); n > 0 {
			t.Errorf("%d calls of Close have returned while the caretaker is in Sleep of the link", n)
		}
		close(l.release)
		for range closers {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Errorf("Close of a closed stack: %v", err)
		}
	})
}

// While Close waits until written data is acknowledged, nothing can be opened, and a second Close
// waits as long as the first.
func TestOpenAndCloseWhileTheStackCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sa, sb, la, _ := newPair(t, stack.Config{Wait: endpoint.WaitBlock})
		l := testutil.Value(sb.ListenTCP(ap("10.0.0.2:80"), stack.TCPListenOptions{}))
		c := testutil.Value(sa.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{}))
		la.Filter(func([]byte) bool { return false })
		testutil.Value(c.Write([]byte("not acknowledged")))
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		done := make(chan time.Duration, 2)
		for range 2 {
			go func() {
				sa.Close()
				done <- time.Since(start)
			}()
		}
		synctest.Wait()
		if _, err := sa.ListenUDP(netip.AddrPort{}, stack.UDPOptions{}); err != net.ErrClosed {
			t.Errorf("listen for UDP while the stack closes: %v", err)
		}
		if _, err := sa.ListenTCP(netip.AddrPort{}, stack.TCPListenOptions{}); err != net.ErrClosed {
			t.Errorf("listen for TCP while the stack closes: %v", err)
		}
		if _, err := sa.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{}); err != net.ErrClosed {
			t.Errorf("dial while the stack closes: %v", err)
		}
		if a, b := <-done, <-done; a != b || a < time.Second {
			t.Errorf("closed after %v and %v: want the same, and a second for the data", a, b)
		}
	})
}

// A dial that ends with Close of the stack does not call Released: the caller still has the port.
func TestDialEndedByStackCloseKeepsItsPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sa, _, la, _ := newPair(t, stack.Config{Wait: endpoint.WaitBlock})
		la.Filter(func([]byte) bool { return false })
		dialled := make(chan error)
		go func() {
			_, err := sa.DialTCP(t.Context(), ap("10.0.0.1:7"), ap("10.0.0.2:80"), stack.TCPOptions{
				Released: func() { t.Error("Released was called") },
			})
			dialled <- err
		}()
		synctest.Wait()
		if err := sa.Close(); err != nil {
			t.Error(err)
		}
		if err := <-dialled; err != net.ErrClosed {
			t.Errorf("dial: %v", err)
		}
	})
}
