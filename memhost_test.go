package unet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/notices"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// memLease is a lease that grants every tag that is free. Its routes are those of a link in memory
// with the hosts 10.0.0.1 and 10.0.0.2, or with IPv6 addresses that end in the same bytes.
type memLease struct {
	notices.NoPaths
	done chan struct{}

	mu       sync.Mutex
	silent   bool       // requests get no answer
	deny     netip.Addr // tags on it are denied
	addrs    []netip.Prefix
	held     []endpoint.Tag
	claims   int
	next     uint16
	watchers *notices.Watchers // set by Notices
}

func memLinkAddr(a netip.Addr) wire.LinkAddr { return wire.LinkAddr{2, 0, 0, 0, 0, lastByte(a)} }

func lastByte(a netip.Addr) byte { return a.AsSlice()[a.BitLen()/8-1] }

// request waits for the end of the lease or of ctx if requests get no answer.
func (l *memLease) request(ctx context.Context) error {
	l.mu.Lock()
	silent := l.silent
	l.mu.Unlock()
	if !silent {
		return nil
	}
	select {
	case <-l.done:
		return l.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *memLease) Claim(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	if err := l.request(ctx); err != nil {
		return t, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claims++
	if l.deny.IsValid() && t.Addr == l.deny {
		return t, endpoint.ErrTagDenied
	}
	if t.Port == 0 {
		t.Port = l.free()
		l.next += endpoint.BlockPorts
	}
	if slices.Contains(l.held, t) {
		return t, endpoint.ErrTagHeld
	}
	l.held = append(l.held, t)
	return t, nil
}

// free is the next port that is granted for port 0.
func (l *memLease) free() uint16 {
	return 20000/endpoint.BlockPorts*endpoint.BlockPorts + endpoint.BlockPorts + l.next
}

func (l *memLease) Unclaim(_ context.Context, t endpoint.Tag) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.held, t)
	if i < 0 {
		return errors.New("not held")
	}
	l.held = slices.Delete(l.held, i, i+1)
	return nil
}

// has reports whether t is held, and how often something was claimed.
func (l *memLease) has(t endpoint.Tag) (held bool, claims int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.held, t), l.claims
}

// awaitRelease returns when tag is no longer held.
func (l *memLease) awaitRelease(t *testing.T, tag endpoint.Tag) {
	t.Helper()
	testutil.Eventually(t, fmt.Sprint(tag, " is given back"), func() bool {
		held, _ := l.has(tag)
		return !held
	})
}

func (l *memLease) Resolve(ctx context.Context, src, dst netip.Addr) (endpoint.Route, error) {
	if err := l.request(ctx); err != nil {
		return endpoint.Route{}, err
	}
	if last := lastByte(dst); last != 1 && last != 2 {
		return endpoint.Route{}, endpoint.ErrUnreachable
	}
	return endpoint.Route{LinkAddr: memLinkAddr(dst)}, nil
}

func (l *memLease) Notices(ctx context.Context) iter.Seq[[]endpoint.Notice] {
	l.watchers = notices.New(l.done)
	l.watchers.Granted(l.addrs)
	return l.watchers.Notices(ctx)
}

func (l *memLease) Done() <-chan struct{} { return l.done }
func (l *memLease) Close() error          { return nil }

func (l *memLease) Err() error {
	select {
	case <-l.done:
		return endpoint.ErrLeaseClosed
	default:
		return nil
	}
}

// newSharedMemHosts makes two hosts on a link in memory with shared addresses: 10.0.0.1 and 10.0.0.2,
// and for each format in addrs6 an IPv6 address in which the number of the host replaces the verb.
func newSharedMemHosts(t *testing.T, addrs6 ...string) (a, b *Host, leaseOfA *memLease) {
	t.Helper()
	la, lb := memlink.Pair(memlink.Config{})
	open := func(l *memlink.Link, number byte) (*Host, *memLease) {
		addr, lease := netip.AddrFrom4([4]byte{10, 0, 0, number}), &memLease{done: make(chan struct{})}
		cfg := stack.Config{Link: l, LinkAddr: memLinkAddr(addr), Addrs: []netip.Prefix{netip.PrefixFrom(addr, 24)}}
		for _, format := range addrs6 {
			cfg.Addrs = append(cfg.Addrs, netip.MustParsePrefix(fmt.Sprintf(format, number)))
		}
		lease.addrs = cfg.Addrs
		h, err := newHost(lease, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(h.Close(), l.Audit()); err != nil {
				t.Error(err)
			}
		})
		return h, lease
	}
	a, leaseOfA = open(la, 1)
	b, _ = open(lb, 2)
	return a, b, leaseOfA
}

func TestConnConformsToNetConn(t *testing.T) {
	a, b, _ := newSharedMemHosts(t, "fd00::%d/64")
	for _, at := range []string{"10.0.0.1", "fd00::1"} {
		t.Run(at, func(t *testing.T) { CheckNetConn(t, a, b, at) })
	}
}

// The port of a listener is held until the listener is closed and the last connection that was
// accepted there has ended. Until then another listener at that port claims nothing.
func TestListenPortIsHeldUntilItsConnectionsEnd(t *testing.T) {
	a, b, lease := newSharedMemHosts(t)
	at := netip.MustParseAddrPort("10.0.0.1:7000")
	listen := func() *TCPListener {
		t.Helper()
		l, err := a.ListenTCP(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := listen()
	client, err := b.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, before := lease.has(endpoint.TCPTag(at))
	l = listen()
	if held, claims := lease.has(endpoint.TCPTag(at)); !held || claims != before {
		t.Errorf("held %v, claimed %d times more", held, claims-before)
	}
	l.Close()
	if _, err := client.Write([]byte("after Close")); err != nil {
		t.Error(err)
	}
	buf := make([]byte, 11)
	if _, err := io.ReadFull(server, buf); err != nil || string(buf) != "after Close" {
		t.Errorf("read %q, %v", buf, err)
	}
	if held, _ := lease.has(endpoint.TCPTag(at)); !held {
		t.Error("the port is given back although a connection uses it")
	}
	server.Close()
	client.Close()
	lease.awaitRelease(t, endpoint.TCPTag(at))
}

// Errors are those of package net.
func TestErrorTexts(t *testing.T) {
	a, b, _ := newSharedMemHosts(t)
	ctx := t.Context()
	for want, call := range map[string]func() error{
		"dial tcp 10.0.0.1:99: connect: connection refused": func() error { _, err := b.Dial("tcp", "10.0.0.1:99"); return err },
		"dial xcp: unknown network xcp":                     func() error { _, err := b.Dial("xcp", "10.0.0.1:99"); return err },
		"listen udp: unknown network udp":                   func() error { _, err := b.Listen(ctx, "udp", ":1"); return err },
		"listen tcp: unknown network tcp":                   func() error { _, err := b.ListenPacket(ctx, "tcp", ":1"); return err },
		"listen tcp 10.0.0.9:80: bind: cannot assign requested address": func() error {
			_, err := a.Listen(ctx, "tcp", "10.0.0.9:80")
			return err
		},
	} {
		if err := call(); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	u, err := a.ListenPacket(ctx, "udp", ":7")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.ListenPacket(ctx, "udp", ":7"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port in use: %v", err)
	}
	u.SetReadDeadline(time.Unix(1, 0))
	_, _, err = u.ReadFrom(make([]byte, 1))
	if op, ok := err.(*net.OpError); !ok || !errors.Is(err, os.ErrDeadlineExceeded) || !op.Timeout() || op.Op != "read" || op.Net != "udp" {
		t.Errorf("deadline: %v", err)
	}
	if err := u.Close(); err != nil {
		t.Error(err)
	}
	if err := u.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	c, err := a.Dial("udp", "10.0.0.2:9")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.(net.PacketConn).WriteTo(nil, &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 9}); !errors.Is(err, net.ErrWriteToConnected) {
		t.Errorf("write to an address on a connected socket: %v", err)
	}
	c.Close()
}

// Notices has the notices that concern the host, after the host has acted on them. It ends with the host.
func TestHostNotices(t *testing.T) {
	a, _, lease := newSharedMemHosts(t)
	c, err := a.Dial("udp", "10.0.0.2:9")
	if err != nil {
		t.Fatal(err)
	}
	var got []endpoint.NoticeKind
	var errs []error
	next, stop := iter.Pull(a.Notices(t.Context()))
	defer stop()
	other := netip.MustParseAddr("10.0.0.3")
	for _, n := range []endpoint.Notice{
		{Kind: endpoint.NoticeLinkDown},
		{Kind: endpoint.NoticeAddrHere, Addr: other, Bits: 24},
		{Kind: endpoint.NoticeLinkUp},
		{Kind: endpoint.NoticeAddrGone, Addr: a.Addr()},
		{Kind: endpoint.NoticeAddrGone, Addr: other},
		{Kind: endpoint.NoticeAddrHere, Addr: a.Addr(), Bits: 24},
		{Kind: endpoint.NoticeRoute},
		{Kind: endpoint.NoticeUnetdGone},
		{Kind: endpoint.NoticeUnetdBack},
	} {
		lease.watchers.Tell(n)
		n, _ := next()
		got = append(got, n.Kind)
		_, err := c.Write(nil)
		errs = append(errs, err)
	}
	if want := []endpoint.NoticeKind{endpoint.NoticeLinkDown, endpoint.NoticeAddrHere, endpoint.NoticeLinkUp, endpoint.NoticeAddrGone, endpoint.NoticeAddrGone, endpoint.NoticeAddrHere, endpoint.NoticeRoute, endpoint.NoticeUnetdGone, endpoint.NoticeUnetdBack}; !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i, want := range []error{syscall.ENETDOWN, syscall.ENETDOWN, nil, syscall.EADDRNOTAVAIL, syscall.EADDRNOTAVAIL, nil, nil, nil, nil} {
		if !errors.Is(errs[i], want) {
			t.Errorf("notice %d: write: %v, want %v", got[i], errs[i], want)
		}
	}
	a.Close()
	if n, ok := next(); ok {
		t.Errorf("after Close, %v", n)
	}
}

// The loop over a host's notices ends with the lease.
func TestHostNoticesEndWithLease(t *testing.T) {
	a, _, lease := newSharedMemHosts(t)
	changes := a.Notices(t.Context())
	close(lease.done)
	for n := range changes {
		t.Errorf("notice %v", n)
	}
}

// Every error of a host and its sockets is a net.Error with the right Timeout.
func TestErrorsAreNetErrors(t *testing.T) {
	a, b, lease := newSharedMemHosts(t)
	ctx := t.Context()
	late, cancel := context.WithDeadline(ctx, time.Unix(1, 0))
	defer cancel()
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	past := time.Unix(1, 0)
	l, err := a.ListenTCP(ctx, netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := b.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	u, err := a.ListenUDP(ctx, netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	buf := make([]byte, 1)
	check := func(name string, err error, timeout bool, is error) {
		t.Helper()
		if e, ok := err.(net.Error); !ok || e.Timeout() != timeout || !errors.Is(err, is) {
			t.Errorf("%s: %T: %v, want timeout %v and %v", name, err, err, timeout, is)
		}
	}
	of := func(_ any, err error) error { return err }
	check("dial, too late", of(b.DialContext(late, "tcp", at.String())), true, context.DeadlineExceeded)
	check("dial, cancelled", of(b.DialContext(cancelled, "tcp", at.String())), false, context.Canceled)
	check("dial udp, cancelled", of(b.DialContext(cancelled, "udp", at.String())), false, context.Canceled)
	check("dial, unreachable", of(b.Dial("tcp", "10.0.0.9:80")), false, syscall.EHOSTUNREACH)
	check("dial, refused", of(b.Dial("tcp", "10.0.0.1:9")), false, syscall.ECONNREFUSED)
	check("dial, from another address", of(b.DialTCP(ctx, netip.MustParseAddrPort("10.0.0.9:9"), at)), false, syscall.EADDRNOTAVAIL)
	check("listen, in use", of(a.ListenTCP(ctx, at)), false, syscall.EADDRINUSE)
	l.SetDeadline(past)
	check("accept, too late", of(l.Accept()), true, os.ErrDeadlineExceeded)
	l.Close()
	check("accept, closed", of(l.Accept()), false, net.ErrClosed)
	c.SetDeadline(past)
	check("read, too late", of(c.Read(buf)), true, os.ErrDeadlineExceeded)
	c.Close()
	check("read, closed", of(c.Read(buf)), false, net.ErrClosed)
	u.SetDeadline(past)
	check("read from, too late", of(u.Read(buf)), true, os.ErrDeadlineExceeded)
	u.Close()
	close(lease.done)
	check("dial, the lease has ended", of(a.Dial("udp", "10.0.0.2:9")), false, endpoint.ErrLeaseClosed)
	check("listen, the lease has ended", of(a.Listen(ctx, "tcp", ":0")), false, net.ErrClosed)
}

// idleHandler ignores what is received and sends nothing.
type idleHandler struct{}

func (idleHandler) Datagram(int64, *stack.UDPPacket) {}
func (idleHandler) Run(int64) int64                  { return stack.Never }
func (idleHandler) Failed(error)                     {}

// A second socket on a port fails with EADDRINUSE and claims nothing. The first keeps the port.
func TestPortInUse(t *testing.T) {
	a, _, lease := newSharedMemHosts(t)
	ctx := t.Context()
	at := netip.MustParseAddrPort("10.0.0.1:7000")
	remote := netip.MustParseAddrPort("10.0.0.2:9")
	listenTCP := func() (io.Closer, error) { return a.ListenTCP(ctx, at) }
	listenUDP := func() (io.Closer, error) { return a.ListenUDP(ctx, at) }
	dialUDP := func() (io.Closer, error) { return a.DialUDP(ctx, at, remote) }
	openPort := func() (io.Closer, error) { return a.openUDPPort(ctx, at, idleHandler{}) }
	for _, c := range []struct {
		name          string
		tag           endpoint.Tag
		first, second func() (io.Closer, error)
	}{
		{"listen TCP twice", endpoint.TCPTag(at), listenTCP, listenTCP},
		{"listen UDP twice", endpoint.UDPTag(at), listenUDP, listenUDP},
		{"dial UDP from a listener's port", endpoint.UDPTag(at), listenUDP, dialUDP},
		{"dial UDP twice", endpoint.UDPTag(at), dialUDP, dialUDP},
		{"open a UDP port twice", endpoint.UDPTag(at), openPort, openPort},
		{"open a UDP port at a listener's", endpoint.UDPTag(at), listenUDP, openPort},
	} {
		first, err := c.first()
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		_, before := lease.has(c.tag)
		if _, err := c.second(); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s: %v", c.name, err)
		}
		if held, claims := lease.has(c.tag); !held || claims != before {
			t.Errorf("%s: held %v, claimed %d times more", c.name, held, claims-before)
		}
		if err := first.Close(); err != nil {
			t.Error(err)
		}
		lease.awaitRelease(t, c.tag)
	}
}
