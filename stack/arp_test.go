package stack_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// newScripted makes a stack A with a whole address on one end of a memlink, for
// runScript. Nothing is on the other end.
func newScripted(t *testing.T, change func(*stack.Config)) (*stack.Stack, *memlink.Link, *clock) {
	t.Helper()
	c := newClock()
	l, _ := memlink.Pair(memlink.Config{})
	cfg := stack.Config{LinkAddr: linkA, Addr: prefixA, WholeAddress: true, NoCaretaker: true, Now: c.now}
	if change != nil {
		change(&cfg)
	}
	return newStack(t, l, cfg), l, c
}

const (
	macA  = "02:00:00:00:00:0a"
	macB  = "02:00:00:00:00:0b"
	askB  = macA + " > ff:ff:ff:ff:ff:ff | arp request 10.0.0.1 is " + macA + ", to 10.0.0.2 00:00:00:00:00:00"
	pollB = macA + " > " + macB + " | arp request 10.0.0.1 is " + macA + ", to 10.0.0.2 00:00:00:00:00:00"
	tellB = macA + " > " + macB + " | arp reply 10.0.0.1 is " + macA + ", to 10.0.0.2 " + macB
	toB   = macA + " > " + macB + " | ip 10.0.0.1 > 10.0.0.2 ttl 64 DF | udp 7 > 9 "
)

func TestARPAnswers(t *testing.T) {
	s, l, c := newScripted(t, nil)
	request := arpFrame(wire.ARPRequest, linkB, wire.Broadcast, addrB, addrA)
	probe := arpFrame(wire.ARPRequest, linkB, wire.Broadcast, [4]byte{}, addrA)
	runScript(t, s, l, c, []step{
		{At: 0, In: [][]byte{request}, Want: []string{tellB}},
		{At: 1, In: [][]byte{probe}, Want: []string{macB + " | arp reply 10.0.0.1 is " + macA + ", to 0.0.0.0"}},
		{At: 2, In: [][]byte{arpFrame(wire.ARPRequest, linkB, wire.Broadcast, addrB, [4]byte{10, 0, 0, 3})}},
		{At: 3, In: [][]byte{arpFrame(wire.ARPRequest, wire.Broadcast, linkA, addrB, addrA)}},
		{At: 4, In: [][]byte{arpFrame(wire.ARPRequest, linkB, linkA, [4]byte{224, 0, 0, 1}, addrA)}},
		{At: 5, In: [][]byte{arpFrame(wire.ARPRequest, linkB, linkA, [4]byte{10, 0, 0, 255}, addrA)}},
		{At: 6, In: [][]byte{arpFrame(7, linkB, linkA, addrB, addrA)}},
		{At: 7, In: [][]byte{arpFrame(wire.ARPRequest, linkB, wire.Broadcast, addrA, addrA)}},
	})
	got := counters(s)
	if got["arp_bogus"] != 4 || got["arp_conflict"] != 1 || got["arp_replies_sent"] != 2 {
		t.Errorf("counters: %v", got)
	}
}

// A stack with a port of a shared address leaves ARP to the kernel.
func TestARPIsNotOursWithoutWholeAddress(t *testing.T) {
	s, l, c := newScripted(t, func(cfg *stack.Config) { cfg.WholeAddress = false })
	runScript(t, s, l, c, []step{{In: [][]byte{arpFrame(wire.ARPRequest, linkB, wire.Broadcast, addrB, addrA)}}})
	u := must(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
	if err := u.SendTo([]byte("x"), ap("10.0.0.2:9")); err != syscall.ENETUNREACH {
		t.Errorf("send without routes: %v", err)
	}
}

func TestARPResolvesHoldsAndVerifies(t *testing.T) {
	s, l, c := newScripted(t, nil)
	u := must(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
	send := func(p string) func() {
		return func() {
			if err := u.Send([]byte(p)); err != nil {
				t.Errorf("send: %v", err)
			}
		}
	}
	reply := [][]byte{arpFrame(wire.ARPReply, linkB, linkA, addrB, addrA)}
	runScript(t, s, l, c, []step{
		{At: 0, Do: send("one"), Want: []string{askB}},
		{At: 500 * time.Millisecond, Do: send("two")},
		{At: time.Second, Want: []string{askB}},
		{At: 1100 * time.Millisecond, In: reply, Want: []string{toB + `"one"`, toB + `"two"`}},
		{At: 2 * time.Second, Do: send("three"), Want: []string{toB + `"three"`}},
		// In use when its time is up: asked for again, alone, and used meanwhile.
		{At: 31100 * time.Millisecond, Want: []string{pollB}},
		{At: 31200 * time.Millisecond, Do: send("four"), Want: []string{toB + `"four"`}},
		{At: 31300 * time.Millisecond, In: reply},
		{At: 50 * time.Second, Do: send("five"), Want: []string{toB + `"five"`}},
		{At: 61300 * time.Millisecond, Want: []string{pollB}},
		{At: 62300 * time.Millisecond, Want: []string{pollB}},
		{At: 63300 * time.Millisecond, Want: []string{pollB}},
		// Gone: resolved anew.
		{At: 64400 * time.Millisecond, Do: send("six"), Want: []string{askB}},
		{At: 64500 * time.Millisecond, In: reply, Want: []string{toB + `"six"`}},
		// Unused: forgotten in silence.
		{At: 200 * time.Second, Do: send("seven"), Want: []string{askB}},
		// Used, then not any more: verified once, then forgotten.
		{At: 200100 * time.Millisecond, In: reply, Want: []string{toB + `"seven"`}},
		{At: 201 * time.Second, Do: send("eight"), Want: []string{toB + `"eight"`}},
		{At: 230100 * time.Millisecond, Want: []string{pollB}},
		{At: 230200 * time.Millisecond, In: reply},
		{At: 300 * time.Second, Do: send("nine"), Want: []string{askB}},
	})
}

// Nobody answers: the sender of what was held hears of it, once, and so does
// the next one for a while.
func TestARPFails(t *testing.T) {
	s, l, c := newScripted(t, nil)
	u := must(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
	other := must(s.ListenUDP(ap("10.0.0.1:8"), stack.UDPOptions{}))
	runScript(t, s, l, c, []step{
		{At: 0, Do: func() { u.Send([]byte("x")); other.SendTo([]byte("y"), ap("10.0.0.2:9")) }, Want: []string{askB}},
		{At: 1 * time.Second, Want: []string{askB}},
		{At: 2 * time.Second, Want: []string{askB}},
		{At: 3 * time.Second},
	})
	if _, err := u.Recv(make([]byte, 1)); err != syscall.EHOSTUNREACH {
		t.Errorf("connected socket: %v", err)
	}
	if err := other.SendTo([]byte("y"), ap("10.0.0.2:9")); err != syscall.EHOSTUNREACH {
		t.Errorf("send to a dead neighbour: %v", err)
	}
	runScript(t, s, l, c, []step{
		{At: 2 * time.Second, Do: func() { u.Send([]byte("again")) }, Want: []string{askB}},
		{At: 2100 * time.Millisecond, In: [][]byte{arpFrame(wire.ARPReply, linkB, linkA, addrB, addrA)}, Want: []string{toB + `"again"`}},
	})
	if got := counters(s); got["neighbour_failed"] != 1 || got["held_dropped"] != 2 {
		t.Errorf("counters: %v", got)
	}
}

func TestARPHoldsABoundedNumber(t *testing.T) {
	s, l, c := newScripted(t, nil)
	u := must(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
	var want []string
	for i := range 20 {
		if i >= 4 {
			want = append(want, toB+fmt.Sprintf(`"%02d"`, i))
		}
	}
	runScript(t, s, l, c, []step{
		{Do: func() {
			for i := range 20 {
				u.Send(fmt.Appendf(nil, "%02d", i))
			}
		}, Want: []string{askB}},
		{At: 1, In: [][]byte{arpFrame(wire.ARPReply, linkB, linkA, addrB, addrA)}, Want: want},
	})
	if got := counters(s)["held_dropped"]; got != 4 {
		t.Errorf("%d dropped, want 4", got)
	}
}

// RFC 826: what is known is brought up to date by any packet of the sender, and
// nobody is learned from what is not for us.
func TestARPMerges(t *testing.T) {
	s, l, c := newScripted(t, nil)
	u := must(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
	moved := wire.LinkAddr{2, 0, 0, 0, 0, 0xcc}
	send := func() { u.Send([]byte("x")) }
	runScript(t, s, l, c, []step{
		{At: 0, In: [][]byte{arpFrame(wire.ARPReply, moved, linkA, addrB, addrA)}}, // unasked
		{At: 1, Do: send, Want: []string{askB}},
		{At: 2, In: [][]byte{arpFrame(wire.ARPReply, linkB, linkA, addrB, addrA)}, Want: []string{toB}},
		{At: 3, In: [][]byte{arpFrame(wire.ARPRequest, moved, wire.Broadcast, addrB, addrB)}}, // gratuitous
		{At: 4, Do: send, Want: []string{macA + " > 02:00:00:00:00:cc | ip"}},
	})
}

// More neighbours than the table holds, none of which answers, neither grow it
// nor keep frames.
func TestARPTableIsBounded(t *testing.T) {
	clk := newClock()
	l, _ := memlink.Pair(memlink.Config{FrameCount: 2048})
	s := newStack(t, l, stack.Config{LinkAddr: linkA, Addr: must(prefixA.Addr().Prefix(16)), WholeAddress: true, NoCaretaker: true, Now: clk.now})
	u := must(s.ListenUDP(ap("10.0.0.0:7"), stack.UDPOptions{}))
	full := 0
	for i := range 600 {
		err := u.SendTo([]byte("x"), ap(fmt.Sprintf("10.0.%d.%d:9", 1+i/200, 1+i%200)))
		if errors.Is(err, syscall.ENOBUFS) {
			full++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if full != 600-256 {
		t.Errorf("%d sends refused, want %d", full, 600-256)
	}
	for range 4 {
		s.Poll(clk.advance(time.Second))
	}
	if err := u.SendTo([]byte("x"), ap("10.0.9.9:9")); err != nil {
		t.Errorf("after all others have failed: %v", err)
	}
}

// An answer that is there already when time runs out counts: what waits to be
// received goes before what is due.
func TestReplyBeforeTimeout(t *testing.T) {
	s, l, c := newScripted(t, nil)
	w := tap(t, l)
	u := must(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
	u.Send([]byte("x"))
	for range 2 {
		s.Poll(c.advance(time.Second))
	}
	expect(t, w, askB, askB, askB)
	l.Inject(stack.Frame{Data: arpFrame(wire.ARPReply, linkB, linkA, addrB, addrA)})
	s.Poll(c.advance(time.Second))
	expect(t, w, macB+" | ip")
	if n := counters(s)["neighbour_failed"]; n != 0 {
		t.Error("the neighbour was given up")
	}
}
