package stack_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
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

// sources is a route service that chooses sources, and notes with which it was asked.
type sources struct {
	mu     sync.Mutex
	choose map[string]string // by destination
	delay  time.Duration
	asked  []string // "source > destination"
}

func (r *sources) Resolve(ctx context.Context, src, dst netip.Addr) (stack.Route, error) {
	r.mu.Lock()
	r.asked = append(r.asked, src.String()+" > "+dst.String())
	chosen, ok := r.choose[dst.String()]
	r.mu.Unlock()
	select {
	case <-time.After(r.delay):
	case <-ctx.Done():
		return stack.Route{}, ctx.Err()
	}
	if !ok {
		return stack.Route{}, syscall.EHOSTUNREACH
	}
	source, _ := netip.ParseAddr(chosen)
	return stack.Route{Source: source, LinkAddr: linkB}, nil
}

func (r *sources) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := r.asked
	r.asked = nil
	slices.Sort(asked)
	return asked
}

func prefixes(s string) (list []netip.Prefix) {
	for _, p := range strings.Fields(s) {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

func newSeveral(t *testing.T, r *sources, addrs string) (*stack.Stack, *memlink.Link, *wiretap) {
	l, _ := memlink.Pair(memlink.Config{})
	s := newStack(t, l, stack.Config{LinkAddr: linkA, Addrs: prefixes(addrs), Resolver: r, Wait: endpoint.WaitBlock})
	return s, l, tap(t, l)
}

// Packets of sockets at all addresses come from the address that the route service chooses, also those
// that were held until it had answered. Where there is one address of the destination's family and scope,
// it is asked with that source, as it is for sockets at one address.
func TestRouteServiceChoosesSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &sources{delay: time.Second, choose: map[string]string{
			"10.9.0.9": "10.9.0.1", "192.0.2.1": "10.9.0.1", "192.0.2.2": "10.7.7.7", "2001:db8::9": "fd01::1", "fe80::9": "", "10.0.0.9": "10.0.0.1",
		}}
		s, _, w := newSeveral(t, r, "10.0.0.1/24 10.9.0.1/24 fd00::1/64 fd01::1/64 fe80::1/64")
		all := testutil.Value(s.ListenUDP(ap("[::]:7"), stack.UDPOptions{}))
		bound := testutil.Value(s.ListenUDP(ap("10.0.0.1:8"), stack.UDPOptions{}))
		const tos, pktInfo = 1, 8
		marked := slices.Concat(message(0, tos, 0b10), message(0, pktInfo, 0, 0, 0, 0, 10, 0, 0, 1, 0, 0, 0, 0))
		for round := range 2 {
			for _, c := range []struct{ to, want string }{
				{"10.0.0.9:9", "10.0.0.1 > 10.0.0.9"},
				{"10.9.0.9:9", "10.9.0.1 > 10.9.0.9"},
				{"192.0.2.1:9", "10.9.0.1 > 192.0.2.1"},
				{"192.0.2.2:9", "10.0.0.1 > 192.0.2.2"}, // an address that is not the stack's was chosen
				{"[2001:db8::9]:9", "fd01::1 > 2001:db8::9"},
				{"[fe80::9]:9", "fe80::1 > fe80::9"},
			} {
				if err := udpSendTo(all, []byte("of any"), ap(c.to)); err != nil {
					t.Fatal(c.to, err)
				}
				if round == 0 {
					expect(t, w) // it is held
				}
				time.Sleep(2 * time.Second)
				expect(t, w, c.want)
			}
			if err := udpSendTo(bound, nil, ap("192.0.2.1:9")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			expect(t, w, "10.0.0.1 > 192.0.2.1")
			// A control message names the source of one datagram, and of no other.
			if _, _, err := all.WriteMsgUDPAddrPort([]byte("x"), marked, ap("192.0.2.1:9")); err != nil {
				t.Fatal(err)
			}
			if err := udpSendTo(all, nil, ap("192.0.2.1:9")); err != nil {
				t.Fatal(err)
			}
			expect(t, w, "10.0.0.1 > 192.0.2.1", "10.9.0.1 > 192.0.2.1")
		}
		want := []string{
			"10.0.0.1 > 192.0.2.1", "fe80::1 > fe80::9",
			"invalid IP > 10.0.0.9", "invalid IP > 10.9.0.9", "invalid IP > 192.0.2.1", "invalid IP > 192.0.2.2", "invalid IP > 2001:db8::9",
		}
		if got := slices.Compact(r.take()); !slices.Equal(got, want) {
			t.Errorf("asked for %q, want %q", got, want)
		}
	})
}

// A datagram that was held is whole when it gets another source: its type of service too.
func TestHeldDatagramKeepsTypeOfService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &sources{delay: time.Second, choose: map[string]string{"192.0.2.1": "10.9.0.1", "2001:db8::9": "fd01::1"}}
		s, l, _ := newSeveral(t, r, "10.0.0.1/24 10.9.0.1/24 fd00::1/64 fd01::1/64")
		var sent [][]byte
		l.Filter(func(frame []byte) bool {
			if _, err := describe(frame); err != nil { // it checks checksums
				t.Error(err)
			}
			sent = append(sent, slices.Clone(frame))
			return false
		})
		all := testutil.Value(s.ListenUDP(ap("[::]:7"), stack.UDPOptions{}))
		for _, to := range []string{"192.0.2.1:9", "[2001:db8::9]:9"} {
			kind, level, data := 1, 0, []byte{0x2e}
			if to[0] == '[' {
				kind, level, data = 67, 41, binary.NativeEndian.AppendUint32(nil, 0x2e)
			}
			if _, _, err := all.WriteMsgUDPAddrPort([]byte("odd"), message(level, kind, data...), ap(to)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(sent) != 2 {
			t.Fatalf("%d frames were sent", len(sent))
		}
		for _, frame := range sent {
			ip := frame[wire.EthernetHeaderLen:]
			tos, src := ip[1], netip.AddrFrom4([4]byte(ip[12:]))
			if ip[0]>>4 == 6 {
				tos, src = ip[0]<<4|ip[1]>>4, netip.AddrFrom16([16]byte(ip[8:]))
			}
			if tos != 0x2e || src != netip.MustParseAddr("10.9.0.1") && src != netip.MustParseAddr("fd01::1") {
				t.Errorf("type of service %#x from %v", tos, src)
			}
		}
	})
}

// SourceTo asks the route service where several addresses fit, once for a destination that is in use, and
// passes its verdict on.
func TestSourceTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &sources{delay: time.Second, choose: map[string]string{"192.0.2.1": "10.9.0.1", "2001:db8::9": ""}}
		s, _, _ := newSeveral(t, r, "10.0.0.1/24 10.9.0.1/24 fd00::1/64 fe80::1/64")
		for _, c := range []struct {
			dst, want string
			err       error
			asks      int
		}{
			{"192.0.2.1", "10.9.0.1", nil, 1},
			{"192.0.2.1", "10.9.0.1", nil, 0},
			{"192.0.2.9", "", syscall.EHOSTUNREACH, 1},
			{"2001:db8::9", "fd00::1", nil, 0}, // the only global one
			{"fe80::9", "fe80::1", nil, 0},
			{"10.9.0.1", "10.9.0.1", nil, 0}, // our own
		} {
			got, err := s.SourceTo(t.Context(), netip.MustParseAddr(c.dst))
			if !errors.Is(err, c.err) || err == nil && got.String() != c.want || len(r.take()) != c.asks {
				t.Errorf("to %s: %v, %v; want %s, %v after %d questions", c.dst, got, err, c.want, c.err, c.asks)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := s.SourceTo(ctx, netip.MustParseAddr("198.51.100.1")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the context ended: %v", err)
		}
		time.Sleep(2 * time.Second)
		waits := make(chan error)
		go func() {
			_, err := s.SourceTo(context.Background(), netip.MustParseAddr("198.51.100.2"))
			waits <- err
		}()
		synctest.Wait()
		s.SetRouteService(false) // then nobody can be asked
		if err := <-waits; err != nil {
			t.Errorf("the route service is gone: %v", err)
		}
		if a, err := s.SourceTo(t.Context(), netip.MustParseAddr("192.0.2.1")); err != nil || a.String() != "10.9.0.1" {
			t.Errorf("a known route while the route service is gone: %v, %v", a, err)
		}
		s.SetRouteService(true)
		go func() {
			_, err := s.SourceTo(context.Background(), netip.MustParseAddr("198.51.100.3"))
			waits <- err
		}()
		synctest.Wait()
		s.Close()
		if err := <-waits; err == nil {
			t.Error("the stack was closed")
		}
	})
	v6, _, _ := newSeveral(t, &sources{}, "fd00::1/64")
	if _, err := v6.SourceTo(t.Context(), netip.MustParseAddr("192.0.2.1")); err != syscall.ENETUNREACH {
		t.Errorf("no address of the family: %v", err)
	}
}

// datagramTo is a datagram of B to port 7 of an address.
func datagramTo(to [4]byte) []byte {
	b, link := make([]byte, 42), linkA
	if to[0]>>4 == 14 {
		link = wire.GroupLink(wire.AddrFrom4(to))
	}
	wire.PutEthernet(b, link, linkB, wire.EtherTypeIPv4)
	n := wire.PutUDPCopy(b[34:], &wire.UDPFlow{Src: wire.AddrFrom4(addrB), Dst: wire.AddrFrom4(to), SrcPort: 9, DstPort: 7}, nil)
	wire.PutIPv4(b[14:], wire.IPv4Fields{TotalLen: uint16(20 + n), TTL: 64, Protocol: wire.ProtocolUDP, Src: addrB, Dst: to})
	return b
}

// Addresses come and go. A socket at all addresses receives at each that is there. One that has gone is
// forgotten unless a socket is bound to it or it is the last one of its kind.
func TestAddressesComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &sources{choose: map[string]string{"10.0.0.2": "", "192.0.2.1": ""}}
		s, l, w := newSeveral(t, r, "")
		all := testutil.Value(s.ListenUDP(ap("[::]:7"), stack.UDPOptions{}))
		receives := func(at string, want bool) {
			t.Helper()
			l.Inject(stack.Frame{Data: datagramTo(netip.MustParseAddr(at).As4())})
			synctest.Wait()
			all.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err := udpRecv(all, make([]byte, 64))
			if (err == nil) != want {
				t.Errorf("a datagram to %s: %v", at, err)
			}
			w.take()
		}
		set := func(a string, here bool, want ...string) {
			t.Helper()
			var got []string
			forgotten, err := s.SetAddress(0, netip.MustParsePrefix(a), here)
			if (err == nil) == strings.HasPrefix(a, "ff") {
				t.Errorf("%s here %t: %v", a, here, err)
			}
			for _, f := range forgotten {
				got = append(got, f.String())
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s here %t: forgotten are %v, want %v", a, here, got, want)
			}
		}
		receives("10.0.0.1", false)
		if err := udpSendTo(all, nil, ap("192.0.2.1:9")); err != syscall.ENETUNREACH {
			t.Errorf("a send without an address: %v", err)
		}
		set("10.0.0.1/24", true)
		receives("10.0.0.1", true)
		set("10.9.0.1/24", true)
		receives("10.9.0.1", true)
		receives("10.0.0.1", true)
		receives("10.9.0.255", false) // broadcast
		if got := udpSendTo(all, nil, ap("10.9.0.255:9")); !errors.Is(got, syscall.EACCES) {
			t.Errorf("a send to the broadcast address of a subnet that came later: %v", got)
		}
		bound := testutil.Value(s.ListenUDP(ap("10.9.0.1:8"), stack.UDPOptions{}))
		set("10.9.0.1/24", false) // it is bound
		if err := udpSendTo(bound, nil, ap("192.0.2.1:9")); err != syscall.EADDRNOTAVAIL {
			t.Errorf("a send from a lost address: %v", err)
		}
		if err := udpSendTo(all, nil, ap("192.0.2.1:9")); err != nil {
			t.Errorf("a send from the address that is left: %v", err)
		}
		time.Sleep(time.Second)
		expect(t, w, "10.0.0.1 > 192.0.2.1")
		bound.Close()
		set("10.8.0.1/24", true, "10.9.0.1")
		receives("10.9.0.1", false)
		if a, err := s.SourceTo(t.Context(), netip.MustParseAddr("192.0.2.1")); err != nil || a != netip.MustParseAddr("10.0.0.1") {
			t.Errorf("source %v, %v", a, err)
		}
		set("10.8.0.1/24", false, "10.8.0.1")
		set("10.8.0.1/24", false)
		set("10.0.0.1/24", false) // the last one
		if err := udpSendTo(all, nil, ap("192.0.2.1:9")); err != syscall.ENETUNREACH {
			t.Errorf("a send when the last address is lost: %v", err)
		}
		set("fd00::1/64", true)
		set("10.0.0.1/24", true)
		receives("10.0.0.1", true)
		set("ff02::1/64", true) // no address of a host
		if _, err := s.ListenUDP(ap("[ff02::1]:5"), stack.UDPOptions{}); err == nil {
			t.Error("a multicast address became one of the stack's")
		}
	})
}

// The answer for SourceTo is also the route from that source: a dial sends at once, without another question. It follows
// changes of routes.
func TestDialAfterSourceToAsksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &sources{delay: time.Second, choose: map[string]string{"192.0.2.1": "10.9.0.1"}}
		s, _, w := newSeveral(t, r, "10.0.0.1/24 10.9.0.1/24")
		source, err := s.SourceTo(t.Context(), netip.MustParseAddr("192.0.2.1"))
		if err != nil || s.LikelySource(netip.MustParseAddr("192.0.2.1")) != netip.MustParseAddr("10.0.0.1") {
			t.Fatal(source, err)
		}
		c := testutil.Value(s.DialUDP(netip.AddrPortFrom(source, 8), ap("192.0.2.1:9"), stack.UDPOptions{}))
		start := time.Now()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		expect(t, w, "10.9.0.1 > 192.0.2.1")
		if d := time.Since(start); d != 0 {
			t.Errorf("the datagram was held for %v", d)
		}
		if asked := r.take(); len(asked) != 1 || asked[0] != "invalid IP > 192.0.2.1" {
			t.Errorf("asked %q", asked)
		}
		s.Invalidate(netip.MustParseAddr("192.0.2.1"))
		c.Write([]byte("x"))
		time.Sleep(2 * time.Second)
		if asked := r.take(); !slices.Contains(asked, "10.9.0.1 > 192.0.2.1") {
			t.Errorf("after a change of the route: asked %q", asked)
		}
	})
}

// What is sent by a route whose source the route service has chosen leaves from no address that has gone
// meanwhile, not even if the service's answer names it.
func TestNoSourceThatHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &sources{delay: time.Second, choose: map[string]string{"192.0.2.1": "10.9.0.1", "192.0.2.2": "10.9.0.1"}}
		s, _, w := newSeveral(t, r, "10.0.0.1/24 10.9.0.1/24")
		all := testutil.Value(s.ListenUDP(ap("[::]:7"), stack.UDPOptions{}))
		send := func(to string, err error) {
			t.Helper()
			if got := udpSendTo(all, nil, ap(to)); got != err {
				t.Errorf("to %s: %v, want %v", to, got, err)
			}
			time.Sleep(2 * time.Second)
		}
		send("192.0.2.1:9", nil)
		expect(t, w, "10.9.0.1 > 192.0.2.1")
		bound := testutil.Value(s.ListenUDP(ap("10.9.0.1:8"), stack.UDPOptions{})) // so that the address is kept
		if err := udpSendTo(all, nil, ap("192.0.2.2:9")); err != nil {
			t.Fatal(err)
		}
		s.SetAddress(0, netip.MustParsePrefix("10.9.0.1/24"), false) // while the service is asked
		time.Sleep(2 * time.Second)
		expect(t, w, "10.0.0.1 > 192.0.2.2")
		send("192.0.2.1:9", nil)
		expect(t, w, "10.0.0.1 > 192.0.2.1")
		if err := udpSendTo(bound, nil, ap("192.0.2.1:9")); err != syscall.EADDRNOTAVAIL {
			t.Errorf("from the lost address: %v", err)
		}
		s.SetAddress(0, netip.MustParsePrefix("10.0.0.1/24"), false)
		for _, to := range []string{"192.0.2.1:9", "192.0.2.2:9", "192.0.2.3:9"} {
			send(to, syscall.ENETUNREACH)
		}
		if _, err := s.DialUDP(ap("0.0.0.0:0"), ap("192.0.2.1:9"), stack.UDPOptions{}); err != syscall.ENETUNREACH {
			t.Errorf("a dial without an address: %v", err)
		}
		expect(t, w)
		s.SetAddress(0, netip.MustParsePrefix("10.9.0.1/24"), true)
		send("192.0.2.1:9", nil)
		if err := udpSendTo(bound, nil, ap("192.0.2.1:9")); err != nil {
			t.Errorf("the address is back: %v", err)
		}
		time.Sleep(2 * time.Second)
		expect(t, w, "10.9.0.1 > 192.0.2.1", "10.9.0.1 > 192.0.2.1")
	})
}

// A connection that has ended, and is not closed yet, keeps its address: its port is released there.
func TestEndedConnectionKeepsItsAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		la, lb := memlink.Pair(memlink.Config{})
		a := newStack(t, la, stack.Config{LinkAddr: linkA, Addrs: prefixes("10.0.0.1/24 10.9.0.1/24"), Resolver: neighbours{}, Wait: endpoint.WaitBlock})
		b := newStack(t, lb, stack.Config{LinkAddr: linkB, Addrs: []netip.Prefix{prefixB}, OwnedAddress: true, Resolver: neighbours{}, Wait: endpoint.WaitBlock})
		ln := testutil.Value(b.ListenTCP(ap("10.0.0.2:9"), stack.TCPListenOptions{}))
		c := testutil.Value(a.DialTCP(t.Context(), ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.TCPOptions{}))
		peer := testutil.Value(ln.AcceptTCP())
		testutil.Must(t, peer.SetLinger(0))
		testutil.Must(t, peer.Close())
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatal(err)
		}
		set := func(here bool) []netip.Addr {
			forgotten, err := a.SetAddress(0, netip.MustParsePrefix("10.0.0.1/24"), here)
			testutil.Must(t, err)
			return forgotten
		}
		if forgotten := set(false); forgotten != nil {
			t.Errorf("%v was forgotten before the connection was closed", forgotten)
		}
		c.Close()
		set(true)
		if forgotten := set(false); len(forgotten) != 1 {
			t.Errorf("%v was forgotten after the connection was closed", forgotten)
		}
	})
}

// While the route service is gone a socket at all addresses answers from the address that a datagram was
// sent to, or that a control message names, and from one of its own if that was a group.
func TestSourceOfAnswersWithoutRouteService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l, w := newSeveral(t, &sources{}, "10.0.0.1/24 10.9.0.1/24")
		all := testutil.Value(s.ListenUDP(ap("[::]:7"), stack.UDPOptions{}))
		testutil.Must(t, all.JoinGroup(nil, &net.UDPAddr{IP: net.IPv4(239, 1, 1, 1)}))
		s.SetRouteService(false)
		for _, c := range []struct{ sentTo, named, want string }{
			{"10.9.0.1", "", "10.9.0.1"}, {"10.9.0.1", "10.0.0.1", "10.0.0.1"}, {"10.0.0.1", "", "10.0.0.1"}, {"239.1.1.1", "", "10.0.0.1"},
		} {
			l.Inject(stack.Frame{Data: datagramTo(netip.MustParseAddr(c.sentTo).As4())})
			if _, _, err := udpRecvFrom(all, make([]byte, 64)); err != nil {
				t.Fatal(err)
			}
			var oob []byte
			if c.named != "" {
				named := netip.MustParseAddr(c.named).As4()
				oob = message(solIP, ipPktInfo, slices.Concat(make([]byte, 4), named[:], make([]byte, 4))...)
			}
			if _, _, err := all.WriteMsgUDPAddrPort(nil, oob, ap("10.0.0.2:9")); err != nil {
				t.Fatal(err)
			}
			expect(t, w, c.want+" > 10.0.0.2")
		}
	})
}
