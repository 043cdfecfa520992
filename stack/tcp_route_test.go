package stack_test

import (
	"context"
	"encoding/binary"
	"io"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// segmentFrame is a whole frame from src, by way of B, to A.
func segmentFrame(src [4]byte, f wire.TCPFields) []byte {
	b := make([]byte, wire.TCPHeaderLen)
	wire.PutTCP(b, &f, len(b), wire.PseudoHeader4(src, addrA, wire.ProtocolTCP, uint16(len(b))))
	return ipFrame(wire.IPv4Fields{Protocol: wire.ProtocolTCP, Src: src}, b)
}

// A connection waits for its route without a frame, and is told if there is none.
func TestTCPWaitsForRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{delay: time.Second, answer: answerWith(stack.Route{LinkAddr: linkB})}
		s, _, w := newRouted(t, false, r)
		defer s.Close()
		dial := func() chan error {
			result := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				_, err := s.DialTCP(ctx, ap("10.0.0.1:7"), ap("192.0.2.1:9"), stack.TCPOptions{})
				result <- err
			}()
			return result
		}
		first := dial()
		time.Sleep(900 * time.Millisecond)
		expect(t, w)
		time.Sleep(200 * time.Millisecond)
		expect(t, w, macA+" > "+macB+" | ip 10.0.0.1 > 192.0.2.1 ttl 64 DF | tcp 7 > 9 S 0 bytes")
		wantError(t, "dial without an answer", <-first, context.DeadlineExceeded)

		r.set(func(netip.Addr) (stack.Route, error) { return stack.Route{}, syscall.EHOSTUNREACH })
		s.Invalidate(netip.Addr{})
		wantError(t, "dial by a route that ends", <-dial(), syscall.EHOSTUNREACH)
		w.take()                    // what went by it until then
		time.Sleep(5 * time.Second) // the failure is forgotten
		before := time.Now()
		wantError(t, "dial of what has no route", <-dial(), syscall.EHOSTUNREACH)
		if took := time.Since(before); took != time.Second {
			t.Errorf("told after %v", took)
		}
		expect(t, w)
	})
}

// SYNs of hosts that nobody has heard of are answered to where they came from, and
// nobody is asked for the hosts, not even when they do not answer. The answer may have been
// lost, or the answer to it, so it is sent again.
func TestTCPSYNsAskForNoRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{answer: answerWith(stack.Route{LinkAddr: linkC})}
		s, l, w := newRouted(t, false, r)
		defer s.Close()
		must(s.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{}))
		for i := range 100 {
			src := [4]byte{192, 0, 2, byte(i)}
			l.Inject(stack.Frame{Data: segmentFrame(src, wire.TCPFields{SrcPort: 9, DstPort: 80, Seq: 1, Flags: wire.TCPSyn, Window: 1000})})
		}
		time.Sleep(6 * time.Second)
		answers := w.take()
		if len(answers) != 300 { // at once, after 1 s and after 3 s
			t.Errorf("%d answers", len(answers))
		}
		for _, a := range answers {
			if !strings.HasPrefix(a, macA+" > "+macB) || !strings.HasSuffix(a, "tcp 80 > 9 SA 0 bytes") {
				t.Errorf("answered %q", a)
			}
		}
		if n := r.count(); n != 0 {
			t.Errorf("asked for %d routes", n)
		}
	})
}

// What a router says of the path's MTU is believed, and the segments that it has
// dropped are sent again as smaller ones.
func TestTCPPathMTU(t *testing.T) {
	a, b, _, lb := newPair(t, stack.Config{})
	client, server := connect(t, a, b, stack.TCPOptions{})
	var small, large atomic.Int32
	errors := make(chan []byte, 1000)
	lb.Filter(func(frame []byte) bool {
		if len(frame) <= 14+1000 {
			small.Add(1)
			return true
		}
		large.Add(1)
		m := make([]byte, wire.MaxUnreachableLen)
		m = m[:wire.PutUnreachable(m, wire.ICMPFragmentationNeeded, 1000, wire.IPv4(frame[14:]))]
		back := ipFrame(wire.IPv4Fields{Protocol: wire.ProtocolICMP, Src: addrA, Dst: addrB}, m)
		copy(back[:6], linkB[:])
		select {
		case errors <- back:
		default:
		}
		return false
	})
	go func() {
		for frame := range errors {
			lb.Inject(stack.Frame{Data: frame})
		}
	}()
	go func() {
		writeAll(t, client, make([]byte, 200_000))
		client.Close()
	}()
	if got, err := io.ReadAll(server); len(got) != 200_000 || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	server.Close()
	lb.Filter(nil)
	close(errors)
	if small.Load() < 200 || large.Load() > 50 {
		t.Errorf("%d small segments, %d too large", small.Load(), large.Load())
	}
	if n := counters(b)["path_mtu_lowered"]; n != 1 {
		t.Errorf("lowered %d times", n)
	}
}

// ICMP errors end a connection that is being opened, and no other.
func TestTCPUnreachable(t *testing.T) {
	a, b, _, lb := newPair(t, stack.Config{})
	client, server := connect(t, a, b, stack.TCPOptions{})
	unreachable := func(code uint8, frame []byte) {
		m := make([]byte, wire.MaxUnreachableLen)
		m = m[:wire.PutUnreachable(m, code, 0, wire.IPv4(frame[14:]))]
		back := ipFrame(wire.IPv4Fields{Protocol: wire.ProtocolICMP, Src: addrA, Dst: addrB}, m)
		copy(back[:6], linkB[:])
		lb.Inject(stack.Frame{Data: back})
	}
	sent := make(chan []byte, 1000)
	lb.Filter(func(frame []byte) bool {
		sent <- append([]byte(nil), frame...)
		return false
	})
	result := make(chan error)
	go func() {
		_, err := b.DialTCP(t.Context(), netip.AddrPort{}, ap("10.0.0.1:80"), stack.TCPOptions{})
		result <- err
	}()
	unreachable(wire.ICMPHostUnreachable, <-sent)
	wantError(t, "dial", <-result, syscall.EHOSTUNREACH)

	writeAll(t, client, []byte("hello"))
	frame := <-sent
	unreachable(wire.ICMPHostUnreachable, frame)
	eventually(t, "the error is counted", func() bool { return counters(b)["tcp_icmp_errors"] == 2 })
	lb.Filter(nil)
	buf := make([]byte, 10)
	if n, err := server.Read(buf); string(buf[:n]) != "hello" || err != nil {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	// A quote of what was never sent.
	binary.BigEndian.PutUint32(frame[38:], 12345)
	unreachable(wire.ICMPHostUnreachable, frame)
	eventually(t, "the lie is counted", func() bool { return counters(b)["tcp_icmp_unmatched"] == 1 })
	client.Close()
	server.Close()
}
