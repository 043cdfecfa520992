package stack_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// stoppableService is a route service that the test can stop: it answers no request until the
// test starts it again.
type stoppableService struct {
	mu      sync.Mutex
	started chan struct{} // is closed while the service answers
	answer  func(netip.Addr) (stack.Route, error)
}

func (r *stoppableService) Resolve(ctx context.Context, _, dst netip.Addr) (stack.Route, error) {
	r.mu.Lock()
	started := r.started
	r.mu.Unlock()
	select {
	case <-started:
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.answer(dst)
	case <-ctx.Done():
		return stack.Route{}, ctx.Err()
	}
}

func (r *stoppableService) stop() {
	r.mu.Lock()
	r.started = make(chan struct{})
	r.mu.Unlock()
}

func (r *stoppableService) start() { close(r.started) }

func (r *stoppableService) setAnswer(answer func(netip.Addr) (stack.Route, error)) {
	r.mu.Lock()
	r.answer = answer
	r.mu.Unlock()
}

// newStoppableService is a started service that answers each request with the MAC address of B.
func newStoppableService() *stoppableService {
	r := &stoppableService{started: make(chan struct{}), answer: answerWith(stack.Route{LinkAddr: linkB})}
	r.start()
	return r
}

// While the route service is stopped a datagram is answered at the MAC address that it came from, by
// the socket that has accepted it, to the address and port that it came from. All other datagrams
// wait for the service, which gets requests as usual after its start.
func TestDatagramsAreAnsweredWithoutRouteService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := memlink.Pair(memlink.Config{})
		service := newStoppableService()
		s := newStack(t, l, stack.Config{LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, Resolver: service, Wait: endpoint.WaitBlock})
		defer s.Close()
		w := tap(t, l)
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		v := testutil.Value(s.ListenUDP(ap("10.0.0.1:8"), stack.UDPOptions{}))
		from := ap("192.0.2.9:9")
		receiveFrom := func(link wire.LinkAddr) {
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

		service.stop()
		receiveFrom(linkB)
		send(u, from) // waits: the stack does not know yet that the service is stopped
		s.SetRouteService(false)
		send(u, from) // waits: the datagram was received before SetRouteService(false)
		receiveFrom(linkB)
		send(u, from, to(macB))
		receiveFrom(linkC) // the peer has another MAC address, or another host has forged the datagram
		send(u, from, to(macC))
		send(u, ap("192.0.2.9:10"))
		send(v, from)
		s.SetRouteService(false) // no change

		s.SetRouteService(true)
		send(u, from)
		service.start()
		synctest.Wait()
		if got := w.take(); len(got) != 5 || slices.ContainsFunc(got, func(line string) bool { return !strings.HasPrefix(line, macA+" > "+macB) }) {
			t.Errorf("after the start of the service: sent %q, want 5 datagrams to the MAC address of B", got)
		}
		send(u, from, to(macB))

		// Answers that the service has given stay valid while it is stopped.
		s.SetRouteService(false)
		receiveFrom(linkC)
		send(u, from, to(macB))
		service.setAnswer(func(netip.Addr) (stack.Route, error) { return stack.Route{}, syscall.EHOSTUNREACH })
		s.Invalidate(netip.Addr{})
		synctest.Wait()
		receiveFrom(linkC)
		if err := udpSendTo(u, nil, from); !errors.Is(err, syscall.EHOSTUNREACH) {
			t.Errorf("to a host that cannot be reached: %v", err)
		}
	})
}

// The number of peers whose MAC addresses are kept is bounded.
func TestPeersAnsweredWithoutRouteServiceAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := memlink.Pair(memlink.Config{})
		service := newStoppableService()
		service.stop()
		s := newStack(t, l, stack.Config{LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, Resolver: service, Wait: endpoint.WaitBlock})
		defer s.Close()
		s.SetRouteService(false)
		u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
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

// While the route service is stopped, connections are accepted, and connections whose route has
// expired still transfer data.
func TestTCPWithoutRouteService(t *testing.T) {
	for _, dialled := range []bool{false, true} {
		t.Run(fmt.Sprint("dialled ", dialled), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				la, lb := memlink.Pair(memlink.Config{})
				service := newStoppableService()
				a := newStack(t, la, stack.Config{LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, Resolver: service, Wait: endpoint.WaitBlock})
				b := newStack(t, lb, stack.Config{LinkAddr: linkB, Addrs: []netip.Prefix{prefixB}, Resolver: neighbours{}, Wait: endpoint.WaitBlock})
				defer a.Close()
				defer b.Close()
				wantData := func(c *stack.TCPConn, want string) {
					t.Helper()
					buf := make([]byte, 100)
					if n, err := c.Read(buf); string(buf[:n]) != want || err != nil {
						t.Fatalf("read %q, %v, want %q", buf[:n], err, want)
					}
				}
				exchange := func(of, peer *stack.TCPConn) {
					t.Helper()
					writeAll(t, peer, []byte("question"))
					wantData(of, "question")
					writeAll(t, of, []byte("answer"))
					wantData(peer, "answer")
				}
				if !dialled {
					service.stop()
					a.SetRouteService(false)
					client, server := connect(t, a, b, stack.TCPOptions{})
					exchange(server, client)
					a.SetRouteService(true)
					writeAll(t, server, []byte("waits for the route"))
					service.start()
					wantData(client, "waits for the route")
					exchange(server, client)
					return
				}
				l := testutil.Value(b.ListenTCP(ap("10.0.0.2:80"), stack.TCPListenOptions{}))
				ours := testutil.Value(a.DialTCP(t.Context(), ap("10.0.0.1:0"), ap("10.0.0.2:80"), stack.TCPOptions{}))
				theirs := testutil.Value(l.AcceptTCP())
				exchange(ours, theirs)
				time.Sleep(5 * time.Minute) // a drops the unused route
				service.stop()
				a.SetRouteService(false)
				exchange(ours, theirs)
				exchange(ours, theirs)
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
