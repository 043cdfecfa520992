package stack_test

import (
	"testing"

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
	cfg := stack.Config{LinkAddr: linkA, Addr: prefixA, WholeAddress: true, Resolver: neighbours{}, NoCaretaker: true, Now: c.now}
	if change != nil {
		change(&cfg)
	}
	return newStack(t, l, cfg), l, c
}

const (
	macA  = "02:00:00:00:00:0a"
	macB  = "02:00:00:00:00:0b"
	tellB = macA + " > " + macB + " | arp reply 10.0.0.1 is " + macA + ", to 10.0.0.2 " + macB
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
		{At: 8, In: [][]byte{arpFrame(wire.ARPReply, linkB, linkA, addrB, addrA)}},
	})
	got := counters(s)
	if got["arp_bogus"] != 4 || got["arp_conflict"] != 1 || got["arp_replies_sent"] != 2 || got["arp_not_ours"] != 2 {
		t.Errorf("counters: %v", got)
	}
}

// A stack with a port of a shared address leaves ARP to the kernel.
func TestARPIsNotOursWithoutWholeAddress(t *testing.T) {
	s, l, c := newScripted(t, func(cfg *stack.Config) { cfg.WholeAddress = false })
	runScript(t, s, l, c, []step{{In: [][]byte{arpFrame(wire.ARPRequest, linkB, wire.Broadcast, addrB, addrA)}}})
	if n := counters(s)["arp_not_ours"]; n != 1 {
		t.Errorf("counted %d times", n)
	}
}

// A frame that waits when a timer runs out is received first: the link address that it comes
// from is not silent.
func TestInputBeforeTimers(t *testing.T) {
	r := &routes{answer: answerWith(stack.Route{LinkAddr: linkB})}
	s, l, c := newScripted(t, func(cfg *stack.Config) { cfg.Resolver = r })
	u := must(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
	for range 8 {
		udpSend(u, []byte("x"))
		stack.Settle(s)
		at, ok := s.NextDeadline()
		if !ok {
			t.Fatal("no timer")
		}
		l.Inject(stack.Frame{Data: datagramFrame(9, 99, nil)})
		s.Poll(c.set(at))
	}
	if n := r.count(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}
