package stack_test

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
)

// heldLink is a link whose Sleep returns late, as that of a goroutine which gets no
// processor.
type heldLink struct {
	*memlink.Link
	release chan struct{}
}

func (l *heldLink) Sleep(until time.Time) error {
	err := l.Link.Sleep(until)
	<-l.release
	return err
}

// Whoever closes a stack may end the link when Close has returned, also if
// somebody else has called it too: the second Close returns with the first.
func TestCloseTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		la, _ := memlink.Pair(memlink.Config{})
		l := &heldLink{la, make(chan struct{})}
		s := must(stack.New(stack.Config{Link: l, LinkAddr: linkA, Addr: prefixA, WholeAddress: true, Resolver: neighbours{}}))
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
			t.Errorf("%d calls of Close have returned while the caretaker is in the link", n)
		}
		close(l.release)
		for range closers {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Errorf("once more: %v", err)
		}
	})
}

// While Close waits for what was written to arrive, nothing is opened, and a second
// Close gives nothing up that the first waits for.
func TestCloseWhileClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sa, sb, la, _ := newPair(t, stack.Config{Wait: stack.WaitBlock})
		l := must(sb.ListenTCP(ap("10.0.0.2:80"), stack.TCPListenOptions{}))
		c := must(sa.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{}))
		la.Filter(func([]byte) bool { return false })
		must(c.Write([]byte("on its way")))
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
			t.Errorf("closed after %v and %v: want the same, and a second for the text", a, b)
		}
	})
}

// The port of a dial that a Close ends stays the caller's: the dial does not release it.
func TestCloseWhileDialling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sa, _, la, _ := newPair(t, stack.Config{Wait: stack.WaitBlock})
		la.Filter(func([]byte) bool { return false })
		dialled := make(chan error)
		go func() {
			_, err := sa.DialTCP(t.Context(), ap("10.0.0.1:7"), ap("10.0.0.2:80"), stack.TCPOptions{
				Released: func() { t.Error("released") },
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
