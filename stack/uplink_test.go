package stack_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// routesBy is the route service of one uplink: it has what is in its subnets, and the destinations in by.
type routesBy struct {
	peer   wire.LinkAddr
	source netip.Addr
	nets   []netip.Prefix

	mu sync.Mutex
	by map[netip.Addr]bool
}

func (r *routesBy) Resolve(_ context.Context, src, dst netip.Addr) (stack.Route, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if src.Zone() != "" || dst.Zone() != "" {
		return stack.Route{}, fmt.Errorf("asked with a zone: %v, %v", src, dst)
	}
	if !r.by[dst] && !slices.ContainsFunc(r.nets, func(p netip.Prefix) bool { return p.Contains(dst) }) {
		return stack.Route{}, syscall.ENETUNREACH
	}
	a := stack.Route{LinkAddr: r.peer}
	if dst.IsMulticast() {
		a.LinkAddr = wire.GroupLink(wire.AddrFrom(dst))
	}
	if dst.Is4() {
		a.Source = r.source
	}
	return a, nil
}

func (r *routesBy) set(dst netip.Addr, has bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.by[dst] = has
}

// twoUplinks is a stack with two uplinks, and a stack at the other end of each. Both peers have the address fe80::2, and the stack has
// fe80::1 on both uplinks.
type twoUplinks struct {
	s     *stack.Stack
	peers [2]*stack.Stack
	links [2]*memlink.Link // of s
	route [2]*routesBy
}

func openTwoUplinks(t testing.TB, cfg stack.Config) *twoUplinks {
	t.Helper()
	w := new(twoUplinks)
	var far [2]*memlink.Link
	for i, name := range []string{"eth0", "eth1"} {
		w.links[i], far[i] = memlink.Pair(memlink.Config{})
		on := func(host int) []netip.Prefix {
			return []netip.Prefix{
				netip.MustParsePrefix(fmt.Sprintf("10.0.%d.%d/24", i, host)), netip.MustParsePrefix(fmt.Sprintf("fd00:%d::%d/64", i, host)), netip.MustParsePrefix(fmt.Sprintf("fe80::%d/64", host)),
			}
		}
		own, peer := wire.LinkAddr{2, 0, 0, 0, byte(i), 1}, wire.LinkAddr{2, 0, 0, 0, byte(i), 2}
		w.route[i] = &routesBy{peer: peer, source: on(1)[0].Addr(), nets: on(1), by: make(map[netip.Addr]bool)}
		cfg.Uplinks = append(cfg.Uplinks, stack.Uplink{
			Link: w.links[i], LinkAddr: own, Addrs: on(1), MTU: 1500 + 400*i, Resolver: w.route[i], Name: name, Index: 7 + i,
		})
		w.peers[i] = newStack(t, far[i], stack.Config{LinkAddr: peer, Addrs: on(2), MTU: 1500 + 400*i, Resolver: &routesBy{peer: own, nets: on(2)}})
	}
	var err error
	if w.s, err = stack.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.s.Close()
		for _, l := range w.links {
			if err := l.Audit(); err != nil {
				t.Error(err)
			}
		}
	})
	return w
}

// serveTCP answers each connection with what it has sent, and the address that it came from.
func serveTCP(t testing.TB, s *stack.Stack, at string) {
	t.Helper()
	l, err := s.ListenTCP(ap(at), stack.TCPListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 4)
				if _, err := io.ReadFull(c, b); err == nil {
					fmt.Fprintf(c, "%s %v %v", b, c.RemoteAddr(), c.LocalAddr())
				}
			}()
		}
	}()
}

// talk dials by TCP and is what the other side answers, without ports.
func talk(t testing.TB, s *stack.Stack, from, to string) string {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	local := netip.AddrPort{}
	if from != "" {
		local = netip.AddrPortFrom(netip.MustParseAddr(from), 0)
	} else if source, err := s.SourceTo(ctx, ap(to).Addr()); err != nil {
		return err.Error()
	} else {
		local = netip.AddrPortFrom(source, 0)
	}
	c, err := s.DialTCP(ctx, local, ap(to), stack.TCPOptions{})
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	if _, err := c.Write([]byte("ping")); err != nil {
		return err.Error()
	}
	b, err := io.ReadAll(c)
	if err != nil {
		return err.Error()
	}
	var word string
	var client, server netip.AddrPort
	fields := bytes.Fields(b)
	if len(fields) != 3 {
		return string(b)
	}
	word, client, server = string(fields[0]), netip.MustParseAddrPort(string(fields[1])), netip.MustParseAddrPort(string(fields[2]))
	return fmt.Sprintf("%s from %v at %v", word, client.Addr(), server.Addr())
}

// A connection leaves by the uplink of its source, which the route services choose, and each peer reaches the listener at the addresses of its
// uplink. The link-local addresses of both uplinks are the same.
func TestConnectionsOverTwoUplinks(t *testing.T) {
	w := openTwoUplinks(t, stack.Config{Wait: endpoint.WaitBlock})
	for _, p := range w.peers {
		serveTCP(t, p, "[::]:80")
	}
	serveTCP(t, w.s, "[::]:80")
	serveTCP(t, w.s, "10.0.1.1:81")
	serveTCP(t, w.s, "[fe80::1%eth1]:82")
	far := netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct{ from, to, want string }{
		{"", "10.0.0.2:80", "ping from 10.0.0.1 at 10.0.0.2"},
		{"", "10.0.1.2:80", "ping from 10.0.1.1 at 10.0.1.2"},
		{"", "[fd00:1::2]:80", "ping from fd00:1::1 at fd00:1::2"},
		{"", "[fe80::2%eth0]:80", "ping from fe80::1 at fe80::2"},
		{"", "[fe80::2%8]:80", "ping from fe80::1 at fe80::2"},
		{"10.0.1.1", "10.0.1.2:80", "ping from 10.0.1.1 at 10.0.1.2"},
		{"10.0.0.1", "10.0.1.2:80", "network is unreachable: 10.0.1.2: network is unreachable"},
		{"", "192.0.2.1:80", "network is unreachable: 192.0.2.1: network is unreachable"},
		{"fe80::1%eth1", "[fe80::2%eth1]:80", "ping from fe80::1 at fe80::2"},
		{"", "[fe80::2]:80", "invalid argument"},
		{"fe80::1", "[fe80::2%eth1]:80", "invalid argument"},
	} {
		if got := talk(t, w.s, c.from, c.to); got != c.want {
			t.Errorf("from %q to %s: %s; want %s", c.from, c.to, got, c.want)
		}
	}
	for i, c := range []struct{ to, want string }{
		{"10.0.0.1:80", "ping from 10.0.0.2 at 10.0.0.1"},
		{"[fe80::1]:80", "ping from fe80::2%eth0 at fe80::1%eth0"},
		{"10.0.1.1:80", "ping from 10.0.1.2 at 10.0.1.1"},
		{"[fe80::1]:80", "ping from fe80::2%eth1 at fe80::1%eth1"},
		{"10.0.1.1:81", "ping from 10.0.1.2 at 10.0.1.1"},
		{"[fe80::1]:82", "ping from fe80::2%eth1 at fe80::1%eth1"},
	} {
		peer := w.peers[min(i/2, 1)]
		if got := talk(t, peer, "", c.to); got != c.want {
			t.Errorf("peer to %s: %s; want %s", c.to, got, c.want)
		}
	}
	if got := talk(t, w.peers[0], "", "[fe80::1]:82"); got != "connection refused" {
		t.Errorf("a listener at the address of the other uplink: %s", got)
	}
	// The route moves from one uplink to the other.
	stack.ForgetRoutes(w.s)
	for i := range w.peers {
		if _, err := w.peers[i].SetAddress(0, netip.PrefixFrom(far, 32), true); err != nil {
			t.Fatal(err)
		}
		w.route[i].set(far, true)
		w.route[1-i].set(far, false)
		w.s.Invalidate(netip.Addr{})
		stack.Settle(w.s)
		if got, want := talk(t, w.s, "", "192.0.2.1:80"), fmt.Sprintf("ping from 10.0.%d.1 at 192.0.2.1", i); got != want {
			t.Errorf("the route by uplink %d: %s; want %s", i, got, want)
		}
	}
}

// Datagrams leave by the uplink of the destination, also those that were reserved or held before that was known, and groups by that which
// the kernel or a zone names.
func TestDatagramsOverTwoUplinks(t *testing.T) {
	w := openTwoUplinks(t, stack.Config{Wait: endpoint.WaitBlock})
	c, err := w.s.ListenUDP(ap("[::]:53"), stack.UDPOptions{})
	if err != nil {
		t.Fatal(err)
	}
	group, group6 := netip.MustParseAddr("239.1.1.1"), netip.MustParseAddr("ff02::5")
	w.route[1].set(group, true)
	var at [2]*stack.UDPConn
	for i, p := range w.peers {
		if at[i], err = p.ListenUDP(ap("[::]:53"), stack.UDPOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, g := range []netip.Addr{group, group6} {
			if err := at[i].JoinGroup(nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(g, 53))); err != nil {
				t.Fatal(err)
			}
		}
	}
	received := func(i int, want string) {
		t.Helper()
		b := make([]byte, 100)
		at[i].SetReadDeadline(time.Now().Add(time.Minute))
		n, from, err := at[i].ReadFromUDPAddrPort(b)
		if got := fmt.Sprintf("%s from %v", b[:n], from.Addr()); err != nil || got != want {
			t.Errorf("peer %d: %s, %v; want %s", i, got, err, want)
		}
	}
	for _, d := range []struct {
		to   string
		peer int
		from string
	}{
		{"10.0.0.2", 0, "10.0.0.1"}, {"10.0.1.2", 1, "10.0.1.1"}, {"fd00:1::2", 1, "fd00:1::1"},
		{"fe80::2%eth0", 0, "fe80::1"}, {"fe80::2%eth1", 1, "fe80::1"}, {"239.1.1.1", 1, "10.0.1.1"},
		{"ff02::5%eth0", 0, "fe80::1"}, {"ff02::5%eth1", 1, "fe80::1"},
	} {
		to := netip.AddrPortFrom(netip.MustParseAddr(d.to), 53)
		if _, err := c.WriteToUDPAddrPort([]byte(d.to), to); err != nil {
			t.Errorf("to %v: %v", to, err)
			continue
		}
		received(d.peer, d.to+" from "+d.from)
		if to.Addr().IsMulticast() {
			continue
		}
		stack.ForgetRoutes(w.s)
		buf, err := c.Reserve()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Send(&buf, copy(buf.Payload, "reserved"), to); err != nil {
			t.Errorf("reserved, to %v: %v", to, err)
			c.Cancel(&buf)
			continue
		}
		received(d.peer, "reserved from "+d.from)
	}
	if _, err := c.WriteToUDPAddrPort([]byte("x"), ap("[fe80::2]:53")); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("without a zone: %v", err)
	}
	for i, zone := range []string{"eth0", "eth1"} {
		if _, err := at[i].WriteToUDPAddrPort([]byte("back"), ap("[fe80::1]:53")); err != nil {
			t.Fatal(err)
		}
		_, from, err := c.ReadFromUDPAddrPort(make([]byte, 10))
		if want := netip.MustParseAddr("fe80::2%" + zone); err != nil || from.Addr() != want {
			t.Errorf("from %v, %v; want %v", from, err, want)
		}
	}
}

// While a link is down, its kick fails, or it has ended, only what leaves there fails. Errors name the uplink.
func TestOneOfTwoUplinksFails(t *testing.T) {
	w := openTwoUplinks(t, stack.Config{Wait: endpoint.WaitBlock})
	for _, p := range w.peers {
		serveTCP(t, p, "[::]:80")
	}
	send := func(i int) error {
		c, err := w.s.DialUDP(netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("10.0.%d.1", i)), 0), ap(fmt.Sprintf("10.0.%d.2:53", i)), stack.UDPOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return udpSend(c, []byte("x"))
	}
	check := func(what string, want error) {
		t.Helper()
		if err := send(0); err != nil {
			t.Errorf("%s: the other uplink: %v", what, err)
		}
		if got := talk(t, w.s, "", "10.0.0.2:80"); got != "ping from 10.0.0.1 at 10.0.0.2" {
			t.Errorf("%s: the other uplink: %s", what, got)
		}
		err := send(1)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
		if want == syscall.ENETDOWN && err.Error() != "network is down: eth1" {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("at first", nil)
	w.s.SetLink(1, false)
	check("down", syscall.ENETDOWN)
	w.s.SetLink(1, true)
	check("up", nil)
	w.links[1].BreakKicks(syscall.ENXIO)
	send(1) // the next send sees the error of this one's kick
	check("kicks fail", syscall.ENXIO)
	w.links[1].BreakKicks(nil)
	check("kicks work", nil)
	w.s.EndUplink(1)
	check("ended", syscall.ENETDOWN)
	w.s.SetLink(1, true)
	check("ended for good", syscall.ENETDOWN)
	w.s.EndUplink(0) // the last one stays
	if err := w.s.Close(); err != nil {
		t.Error(err)
	}
}

// An address that goes from one uplink to the other is that of the other then; one that both have belongs to the first.
func TestAddressMovesToTheOtherUplink(t *testing.T) {
	w := openTwoUplinks(t, stack.Config{Wait: endpoint.WaitBlock})
	for _, p := range w.peers {
		serveTCP(t, p, "[::]:80")
	}
	moving := netip.MustParsePrefix("10.0.9.1/24")
	set := func(uplink int, here bool) {
		t.Helper()
		if _, err := w.s.SetAddress(uplink, moving, here); err != nil {
			t.Fatal(err)
		}
	}
	sends := func(what string, uplink int) {
		t.Helper()
		for i := range w.peers { // each can be reached from there, if the address is on its uplink
			c, err := w.s.DialUDP(netip.AddrPortFrom(moving.Addr(), 0), ap(fmt.Sprintf("10.0.%d.2:53", i)), stack.UDPOptions{})
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			defer c.Close()
			udpSend(c, []byte("x")) // its route is not known yet
			stack.Settle(w.s)
			if err := udpSend(c, []byte("x")); (err == nil) != (i == uplink) {
				t.Errorf("%s: by uplink %d: %v", what, i, err)
			}
		}
		stack.ForgetRoutes(w.s)
	}
	set(0, true)
	sends("on the first", 0)
	set(1, true)
	sends("on both", 0)
	stays, err := w.s.ListenTCP(netip.AddrPortFrom(moving.Addr(), 80), stack.TCPListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer stays.Close() // so that the address is not forgotten
	set(1, false)
	sends("gone from the second", 0)
	set(0, false)
	set(1, true)
	sends("moved", 1)
}

// Received and sent packets cost no allocation, also with several uplinks, and each link gets its own frames back.
func TestTwoUplinksDoNotAllocate(t *testing.T) {
	w := openTwoUplinks(t, stack.Config{Wait: endpoint.WaitSpin, NoCaretaker: true})
	var conns, peers [2]*stack.UDPConn
	for i := range peers {
		var err error
		to := ap(fmt.Sprintf("10.0.%d.2:53", i))
		if peers[i], err = w.peers[i].ListenUDP(to, stack.UDPOptions{}); err != nil {
			t.Fatal(err)
		}
		if conns[i], err = w.s.DialUDP(netip.AddrPortFrom(w.route[i].source, 0), to, stack.UDPOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	b := make([]byte, 100)
	round := func() {
		for i, c := range conns {
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
			_, from, err := peers[i].ReadFromUDPAddrPort(b)
			if err == nil {
				_, err = peers[i].WriteToUDPAddrPort(b, from)
			}
			if err == nil {
				_, err = c.Read(b)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n >= 1 {
		t.Errorf("%v allocations a round", n)
	}
}
