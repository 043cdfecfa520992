package stack_test

import (
	"errors"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
)

// newKicked makes a stack that knows the way to 10.0.0.2, a link whose kicks can fail,
// and what is on its wire.
func newKicked(t *testing.T) (*stack.Stack, *memlink.Link, *wiretap) {
	s, l, w := newRouted(t, false, &routes{answer: answerWith(stack.Route{LinkAddr: linkB})})
	u := must(s.ListenUDP(ap("10.0.0.1:6"), stack.UDPOptions{}))
	if err := udpSendTo(u, nil, ap("10.0.0.2:9")); err != nil {
		t.Fatal(err)
	}
	u.Close()
	synctest.Wait()
	w.take()
	return s, l, w
}

var kickFailed = os.NewSyscallError("sendto of an AF_XDP socket", syscall.ENETDOWN)

// A datagram that is queued when the kick fails leaves with a later kick: its send
// has succeeded. Sends that come then fail, and of these nothing is ever sent.
func TestDatagramsWhenTheKickFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l, w := newKicked(t)
		defer s.Close()
		to := ap("10.0.0.2:9")
		u := must(s.DialUDP(ap("10.0.0.1:7"), to, stack.UDPOptions{}))
		v := must(s.ListenUDP(ap("10.0.0.1:8"), stack.UDPOptions{}))
		must(s.ListenUDP(ap("10.0.0.1:5"), stack.UDPOptions{}))
		b := must(u.Reserve())
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
			"commit": func() error { return u.Commit(&b, 1, netip.AddrPort{}) },
		}
		for name, send := range sends {
			l.BreakKicks(kickFailed)
			if err := send(); err != nil {
				t.Errorf("%s, which is queued: %v", name, err)
			}
			for other, again := range sends {
				if name != "commit" || other != "commit" { // its buffer has gone
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
				b = must(u.Reserve())
			}
		}
		u.Cancel(&b)
		if n := counters(s)["flush_failed"]; n == 0 {
			t.Error("not counted")
		}
	})
}

// A connection hears that the link takes nothing: a dial at once, and one that is
// established when its user timeout ends it.
func TestConnectionsWhenTheKickFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sa, sb, la, _ := newPair(t, stack.Config{Wait: stack.WaitBlock})
		l := must(sb.ListenTCP(ap("10.0.0.2:80"), stack.TCPListenOptions{}))
		c := must(sa.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{}))
		c.SetUserTimeout(3 * time.Second)
		u := must(sa.DialUDP(netip.AddrPort{}, ap("10.0.0.2:9"), stack.UDPOptions{}))
		la.BreakKicks(kickFailed)
		if n, err := c.Write([]byte("into the buffer")); n != 15 || err != nil {
			t.Errorf("write: %d, %v", n, err)
		}
		start := time.Now()
		for range 2 { // the first one's SYN is queued, the second one's is not
			if _, err := sa.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{}); !errors.Is(err, syscall.ENETDOWN) {
				t.Errorf("dial: %v", err)
			}
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("the dials have waited %v", d)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ENETDOWN) {
			t.Errorf("read: %v", err)
		}
		la.BreakKicks(nil)
		if err := udpSend(u, nil); err != nil {
			t.Errorf("after the kick succeeded: %v", err)
		}
		d := must(sa.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{}))
		d.Close()
	})
}
