package stack_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// gone is a route service that cannot be asked: it answers nothing until it is back.
type gone struct {
	mu   sync.Mutex
	back chan struct{}
	then func(netip.Addr) (stack.Route, error)
}

func (g *gone) Resolve(ctx context.Context, dst netip.Addr) (stack.Route, error) {
	g.mu.Lock()
	back := g.back
	g.mu.Unlock()
	select {
	case <-back:
		return g.then(dst)
	case <-ctx.Done():
		return stack.Route{}, ctx.Err()
	}
}

func (g *gone) leave() {
	g.mu.Lock()
	g.back = make(chan struct{})
	g.mu.Unlock()
}

// openService is a route service that is there: every host is behind the MAC address of B.
func openService() *gone {
	g := &gone{back: make(chan struct{}), then: answerWith(stack.Route{LinkAddr: linkB})}
	close(g.back)
	return g
}

// While the route service is gone a datagram is answered at the MAC address that it came from, by
// the socket that has accepted it, to the address and port that it came from. All else waits for
// the service, which is asked as usual when it is back.
func TestDatagramsAreAnsweredWithoutRouteService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := memlink.Pair(memlink.Config{})
		g := openService()
		s := newStack(t, l, stack.Config{LinkAddr: linkA, Addr: prefixA, Resolver: g, Wait: stack.WaitBlock})
		defer s.Close()
		w := tap(t, l)
		u := must(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		v := must(s.ListenUDP(ap("10.0.0.1:8"), stack.UDPOptions{}))
		from := ap("192.0.2.9:9")
		hear := func(link wire.LinkAddr) {
			t.Helper()
			f := ipFrame(wire.IPv4Fields{Protocol: wire.ProtocolUDP, Src: from.Addr().As4()}, udpBytes(from, 7))
			copy(f[6:], link[:])
			l.Inject(stack.Frame{Data: f})
			if _, got, err := udpRecvFrom(u, make([]byte, 10)); got != from || err != nil {
				t.Fatalf("received from %v, %v", got, err)
			}
		}
		send := func(c *stack.UDPConn, to netip.AddrPort, want ...string) {
			t.Helper()
			if err := udpSendTo(c, []byte("x"), to); err != nil {
				t.Fatalf("to %v: %v", to, err)
			}
			synctest.Wait()
			expect(t, w, want...)
		}
		to := func(mac string) string { return macA + " > " + mac + " | ip 10.0.0.1 > 192.0.2.9 " }
		macC := linkC.String()

		g.leave()
		hear(linkB)
		send(u, from) // the service is about to answer
		s.SetRouteService(false)
		send(u, from) // this datagram was received before
		hear(linkB)
		send(u, from, to(macB))
		hear(linkC) // it has moved, or another host pretends to be it
		send(u, from, to(macC))
		send(u, ap("192.0.2.9:10"))
		send(v, from)
		s.SetRouteService(false) // no change

		s.SetRouteService(true)
		send(u, from)
		close(g.back)
		synctest.Wait()
		if got := w.take(); len(got) != 5 || slices.ContainsFunc(got, func(line string) bool { return line[:len(macA+" > "+macB)] != macA+" > "+macB }) {
			t.Errorf("when the service was back: %q", got)
		}
		send(u, from, to(macB))

		// Answers that the service has given stay valid while it is gone.
		s.SetRouteService(false)
		hear(linkC)
		send(u, from, to(macB))
		g.then = func(netip.Addr) (stack.Route, error) { return stack.Route{}, syscall.EHOSTUNREACH }
		s.Invalidate(netip.Addr{})
		synctest.Wait()
		hear(linkC)
		if err := udpSendTo(u, nil, from); !errors.Is(err, syscall.EHOSTUNREACH) {
			t.Errorf("to a host that cannot be reached: %v", err)
		}
	})
}

// The number of peers whose MAC addresses are kept is bounded.
func TestPeersAnsweredWithoutRouteServiceAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := memlink.Pair(memlink.Config{})
		g := openService()
		g.leave()
		s := newStack(t, l, stack.Config{LinkAddr: linkA, Addr: prefixA, Resolver: g, Wait: stack.WaitBlock})
		defer s.Close()
		s.SetRouteService(false)
		u := must(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		var sent int
		l.Filter(func([]byte) bool { sent++; return false })
		const peers = 10_000
		for i := range peers {
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), 9)
			l.Inject(stack.Frame{Data: ipFrame(wire.IPv4Fields{Protocol: wire.ProtocolUDP, Src: from.Addr().As4()}, udpBytes(from, 7))})
			if _, _, err := udpRecvFrom(u, make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			if err := udpSendTo(u, nil, from); err != nil {
				t.Fatal(err)
			}
		}
		if n := stack.Answers(s); sent != peers || n != 4096 {
			t.Errorf("%d of %d answered, %d remembered", sent, peers, n)
		}
	})
}

// While the route service is gone, connections are accepted, and those whose route has been
// forgotten are used, as before.
func TestTCPWithoutRouteService(t *testing.T) {
	for _, dialled := range []bool{false, true} {
		t.Run(fmt.Sprint("dialled ", dialled), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				la, lb := memlink.Pair(memlink.Config{})
				g := openService()
				a := newStack(t, la, stack.Config{LinkAddr: linkA, Addr: prefixA, Resolver: g, Wait: stack.WaitBlock})
				b := newStack(t, lb, stack.Config{LinkAddr: linkB, Addr: prefixB, Resolver: neighbours{}, Wait: stack.WaitBlock})
				defer a.Close()
				defer b.Close()
				talk := func(of, peer *stack.TCPConn) {
					t.Helper()
					writeAll(t, peer, []byte("question"))
					if n, err := of.Read(make([]byte, 100)); n != 8 || err != nil {
						t.Fatalf("read %d, %v", n, err)
					}
					writeAll(t, of, []byte("answer"))
					if n, err := peer.Read(make([]byte, 100)); n != 6 || err != nil {
						t.Fatalf("read %d, %v", n, err)
					}
				}
				if !dialled {
					g.leave()
					a.SetRouteService(false)
					client, server := connect(t, a, b, stack.TCPOptions{})
					talk(server, client)
					a.SetRouteService(true)
					writeAll(t, server, []byte("waits for the route"))
					close(g.back)
					if n, err := client.Read(make([]byte, 100)); n != 19 || err != nil {
						t.Errorf("read %d, %v", n, err)
					}
					talk(server, client)
					return
				}
				l := must(b.ListenTCP(ap("10.0.0.2:80"), stack.TCPListenOptions{}))
				ours := must(a.DialTCP(t.Context(), ap("10.0.0.1:0"), ap("10.0.0.2:80"), stack.TCPOptions{}))
				theirs := must(l.AcceptTCP())
				talk(ours, theirs)
				time.Sleep(5 * time.Minute) // a drops the unused route
				g.leave()
				a.SetRouteService(false)
				talk(ours, theirs)
				talk(ours, theirs)
			})
		})
	}
}

// udpBytes is an empty datagram, with its header.
func udpBytes(from netip.AddrPort, to uint16) []byte {
	b := make([]byte, wire.UDPHeaderLen)
	wire.PutUDPCopy(b, &wire.UDPFlow{Src: wire.AddrFrom4(from.Addr().As4()), Dst: wire.AddrFrom4(addrA), SrcPort: from.Port(), DstPort: to}, nil)
	return b
}
