package stack_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/ipcheck"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
)

// TestRequirements checks what RFCs require of a host that receives IP packets.
func TestRequirements(t *testing.T) {
	peers := ipcheck.Peers{
		Host: ipcheck.Node{Link: linkA, V4: prefixA.Addr(), V6: prefixes6A[0].Addr()},
		Peer: ipcheck.Node{Link: linkB, V4: prefixB.Addr(), V6: prefixes6B[0].Addr()},
	}
	for _, c := range ipcheck.Checks {
		t.Run(c.Name, func(t *testing.T) {
			clk := newClock()
			l, wire := memlink.Pair(memlink.Config{})
			s := newStack(t, l, stack.Config{
				LinkAddr: linkA, Addrs: append([]netip.Prefix{prefixA}, prefixes6A...), OwnedAddress: true, Resolver: neighbours{}, NoCaretaker: true, Now: clk.now,
			})
			echo := testutil.Value(s.ListenUDP(ap("[::]:7007"), stack.UDPOptions{}))
			testutil.Value(s.ListenTCP(ap("[::]:7007"), stack.TCPListenOptions{}))
			answers := ipcheck.Answers{Peers: peers}
			poll := func() {
				s.Poll(clk.now())
				if counters(s)["udp_received"] > 0 {
					d := testutil.Value(echo.Borrow())
					udpSendTo(echo, d.Payload, d.From)
					echo.Return(&d)
					stack.Settle(s) // the route
					s.Poll(clk.now())
				}
				var frames [64]stack.Frame
				for n := wire.Borrow(frames[:]); n > 0; n = wire.Borrow(frames[:]) {
					for _, f := range frames[:n] {
						answers.Add(f.Data)
						wire.Return(f)
					}
				}
			}
			for _, f := range c.Frames(peers) {
				l.Inject(stack.Frame{Data: f})
			}
			poll()
			if c.Late {
				if early := answers.Result(ipcheck.None); early != ipcheck.None {
					t.Errorf("at once: %s", early)
				}
				clk.advance(61 * time.Second)
				poll()
			}
			if got := answers.Result(c.Want); got != c.Want {
				t.Errorf("RFC %s: %s, want %s; counters %v", c.RFC, got, c.Want, counters(s))
			}
		})
	}
}
