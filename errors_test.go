//go:build linux

package unet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/wire"
)

// network has the functions of package net, on a unet.Host or on a kernel.
type network interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
	Listen(ctx context.Context, network, address string) (net.Listener, error)
	ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error)
}

// kernel is package net, on a host of the lab.
type kernel struct{ *netlab.Host }

func (k kernel) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	k.Do(func() error { c, err = new(net.Dialer).DialContext(ctx, network, address); return nil })
	return c, err
}

func (k kernel) Listen(ctx context.Context, network, address string) (l net.Listener, err error) {
	k.Do(func() error { l, err = new(net.ListenConfig).Listen(ctx, network, address); return nil })
	return l, err
}

func (k kernel) ListenPacket(ctx context.Context, network, address string) (c net.PacketConn, err error) {
	k.Do(func() error { c, err = new(net.ListenConfig).ListenPacket(ctx, network, address); return nil })
	return c, err
}

// errorsOf has the errors of calls that fail, by the name of the call.
type errorsOf map[string]error

func (e errorsOf) of(name string) func(_ any, err error) {
	return func(_ any, err error) { e[name] = err }
}

// errorsOfFailingCalls makes calls that fail on a host at 10.0.0.1. At 10.0.0.2 a kernel echoes
// at port 7000, resets at port 7001 when it has read a byte, and listens at nothing else.
func errorsOfFailingCalls(t *testing.T, n network) errorsOf {
	e := errorsOf{}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	dial := func(network, address string) net.Conn {
		c, err := n.DialContext(ctx, network, address)
		testutil.Must(t, err)
		t.Cleanup(func() { c.Close() })
		testutil.Must(t, c.SetDeadline(time.Now().Add(testTimeout)))
		return c
	}
	past := time.Unix(1, 0)
	buf := make([]byte, 100)

	// Dial.
	e.of("dial, refused")(n.DialContext(ctx, "tcp", "10.0.0.2:99"))
	e.of("dial, unreachable")(n.DialContext(ctx, "tcp", "10.0.0.99:80"))
	e.of("dial, unknown network")(n.DialContext(ctx, "xcp", "10.0.0.2:99"))
	e.of("dial, no port")(n.DialContext(ctx, "tcp", "10.0.0.2"))
	e.of("dial, no such port")(n.DialContext(ctx, "udp", "10.0.0.2:99999"))
	// After this dial the host has free ports, and the next dial does not wait for one.
	first, err := n.DialContext(ctx, "udp", "10.0.0.2:7000")
	testutil.Must(t, err)
	testutil.Must(t, first.Close())
	for _, network := range []string{"tcp", "udp"} {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		e.of("dial, cancelled, " + network)(n.DialContext(ended, network, "10.0.0.2:7000"))
		late, cancel := context.WithDeadline(ctx, past)
		defer cancel()
		e.of("dial, too late, " + network)(n.DialContext(late, network, "10.0.0.2:7000"))
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	e.of("dial, timeout")(n.DialContext(short, "tcp", "10.0.0.97:80"))
	soon, stop := context.WithCancelCause(ctx)
	time.AfterFunc(10*time.Millisecond, func() { stop(errors.New("no longer wanted")) })
	e.of("dial, cancelled meanwhile")(n.DialContext(soon, "tcp", "10.0.0.96:80"))

	// Listen and accept.
	e.of("listen, not ours")(n.Listen(ctx, "tcp", "10.0.0.77:80"))
	e.of("listen, unknown network")(n.Listen(ctx, "xcp", "10.0.0.1:80"))
	l, err := n.Listen(ctx, "tcp", "10.0.0.1:0")
	testutil.Must(t, err)
	e.of("listen, in use")(n.Listen(ctx, "tcp", l.Addr().String()))
	testutil.Must(t, l.(interface{ SetDeadline(time.Time) error }).SetDeadline(past))
	e.of("accept, timeout")(l.Accept())
	testutil.Must(t, l.Close())
	e.of("accept, closed")(l.Accept())
	e["close, closed listener"] = l.Close()

	// A connection that we close.
	c := dial("tcp", "10.0.0.2:7000")
	testutil.Must(t, c.SetDeadline(past))
	e.of("read, timeout")(c.Read(buf))
	e.of("write, timeout")(c.Write(buf))
	testutil.Must(t, c.SetDeadline(time.Now().Add(testTimeout)))
	half := c.(interface{ CloseWrite() error })
	testutil.Must(t, half.CloseWrite())
	e.of("write, half closed")(c.Write(buf))
	e.of("read, end")(c.Read(buf))
	testutil.Must(t, c.Close())
	e.of("read, closed")(c.Read(buf))
	e.of("write, closed")(c.Write(buf))
	e["close, closed"] = c.Close()
	e["close half, closed"] = half.CloseWrite()
	e["deadline, closed"] = c.SetDeadline(past)
	e["linger, closed"] = c.(interface{ SetLinger(int) error }).SetLinger(1)
	e["buffer, closed"] = c.(interface{ SetReadBuffer(int) error }).SetReadBuffer(10000)

	// One that the peer resets.
	c = dial("tcp", "10.0.0.2:7001")
	_, err = c.Write(buf[:1])
	testutil.Must(t, err)
	e.of("read, reset")(c.Read(buf))
	e.of("write, reset")(c.Write(buf))
	e["close half, reset"] = c.(interface{ CloseWrite() error }).CloseWrite()

	// UDP.
	e.of("listen for packets, not ours")(n.ListenPacket(ctx, "udp", "10.0.0.77:80"))
	u, err := n.ListenPacket(ctx, "udp", "10.0.0.1:0")
	testutil.Must(t, err)
	e.of("listen for packets, in use")(n.ListenPacket(ctx, "udp", u.LocalAddr().String()))
	e.of("write to, too long")(u.WriteTo(make([]byte, 70000), &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 7000}))
	e.of("write to, no UDP address")(u.WriteTo(buf, &net.TCPAddr{}))
	e.of("write, not connected")(u.(net.Conn).Write(buf))
	testutil.Must(t, u.SetDeadline(past))
	_, _, e["read from, timeout"] = u.ReadFrom(buf)
	testutil.Must(t, u.Close())
	_, _, e["read from, closed"] = u.ReadFrom(buf)
	e.of("write to, closed")(u.WriteTo(buf, &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 7000}))
	e["close, closed packets"] = u.Close()
	e["deadline, closed packets"] = u.SetDeadline(past)

	d := dial("udp", "10.0.0.2:99")
	_, err = d.Write(buf)
	testutil.Must(t, err)
	e.of("read, refused")(d.Read(buf))
	_, err = d.Write(buf)
	testutil.Must(t, err)
	_, _, e["read from, refused"] = d.(net.PacketConn).ReadFrom(buf)
	e.of("write to, connected")(d.(net.PacketConn).WriteTo(buf, &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 7000}))
	e.of("write, too long")(d.Write(make([]byte, 70000)))
	testutil.Must(t, d.Close())
	e.of("read, closed packets")(d.Read(buf))
	e.of("write, closed packets")(d.Write(buf))
	return e
}

var ephemeral = regexp.MustCompile(`10\.0\.0\.1:\d+`)

// describe returns what a user of package net may look at in an error.
func describe(err error) string {
	var b strings.Builder
	var op *net.OpError
	if errors.As(err, &op) {
		fmt.Fprintf(&b, "%s of %s, from %T, to %T", op.Op, op.Net, op.Source, op.Addr)
	}
	var call *os.SyscallError
	if errors.As(err, &call) {
		fmt.Fprintf(&b, ", call %s", call.Syscall)
	}
	var e net.Error
	if errors.As(err, &e) {
		fmt.Fprintf(&b, ", timeout %v, temporary %v", e.Timeout(), e.Temporary()) //lint:ignore SA1019 package net's errors have it
	}
	for _, target := range []error{
		io.EOF, net.ErrClosed, net.ErrWriteToConnected, context.Canceled,
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.EADDRINUSE,
		syscall.EADDRNOTAVAIL, syscall.EMSGSIZE, syscall.EDESTADDRREQ, syscall.ENOTCONN, syscall.EINVAL,
	} {
		if errors.Is(err, target) {
			fmt.Fprintf(&b, ", is %v", target)
		}
	}
	// In package net a dial that runs out of time gets one of the two, by chance.
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		b.WriteString(", is a deadline")
	}
	return b.String()
}

// Every error has the text, type and properties of the error of the kernel's socket. If unet adds a
// reason, it follows the text of the kernel.
func TestErrorsAreThoseOfPackageNet(t *testing.T) {
	l := openLab(t)
	for name, v := range map[string]string{"mcast_solicit": "1", "retrans_time_ms": "10"} {
		l.setNeighSysctl(t, l.A, name, v)
	}
	l.on(t, l.A, func(link netlink.Link) error { // two neighbours that never answer
		var err error
		for _, last := range []byte{96, 97} {
			err = errors.Join(err, netlink.NeighSet(&netlink.Neigh{
				LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.IPv4(10, 0, 0, last), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0x99},
			}))
		}
		return err
	})
	resetter, err := l.B.Listen("tcp", "10.0.0.2:7001")
	testutil.Must(t, err)
	defer resetter.Close()
	go func() {
		for {
			c, err := resetter.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 1))
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	}()
	ours, want := errorsOfFailingCalls(t, l.host), errorsOfFailingCalls(t, kernel{l.A})
	for name, err := range want {
		got := ours[name]
		if err == nil || got == nil {
			t.Errorf("%s: got %v, want %v", name, got, err)
			continue
		}
		text, wantText := ephemeral.ReplaceAllString(got.Error(), "10.0.0.1:P"), ephemeral.ReplaceAllString(err.Error(), "10.0.0.1:P")
		if text != wantText && !strings.HasPrefix(text, wantText+": ") {
			t.Errorf("%s:\n got %s\nwant %s", name, text, wantText)
		}
		if a, b := describe(got), describe(err); a != b {
			t.Errorf("%s, %s:\n got %s\nwant %s", name, text, a, b)
		}
	}
}

// After the end of the lease all calls return an error with the reason: calls that were blocked, and
// later ones.
func TestCallsReturnWhyTheLeaseEnded(t *testing.T) {
	t.Parallel()
	l := openLab(t)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	c, err := l.host.DialContext(ctx, "tcp", "10.0.0.2:7000")
	testutil.Must(t, err)
	u, err := l.host.ListenPacket(ctx, "udp", ":0")
	testutil.Must(t, err)
	listener, err := l.host.Listen(ctx, "tcp", ":0")
	testutil.Must(t, err)
	calls := map[string]func() error{
		"read":      func() error { _, err := c.Read(make([]byte, 1)); return err },
		"read from": func() error { _, _, err := u.ReadFrom(make([]byte, 1)); return err },
		"accept":    func() error { _, err := listener.Accept(); return err },
	}
	type result struct {
		call string
		err  error
	}
	got := make(chan result, 100)
	for name, f := range calls {
		go func() { got <- result{name + ", blocked", f()} }()
	}
	l.on(t, l.A, netlink.LinkDel)
	n := len(calls)
	for name, f := range map[string]func() error{
		"write":              func() error { _, err := c.Write(make([]byte, 1)); return err },
		"write to":           func() error { _, err := u.WriteTo(nil, &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 7}); return err },
		"dial tcp":           func() error { _, err := l.host.DialContext(ctx, "tcp", "10.0.0.2:7000"); return err },
		"dial udp":           func() error { _, err := l.host.DialContext(ctx, "udp", "10.0.0.2:7000"); return err },
		"listen":             func() error { _, err := l.host.Listen(ctx, "tcp", ":0"); return err },
		"listen for packets": func() error { _, err := l.host.ListenPacket(ctx, "udp", ":0"); return err },
		"claim":              func() error { _, err := l.lease.Claim(ctx, endpoint.MessageTag(0)); return err },
	} {
		calls[name] = f
	}
	<-l.lease.Done()
	for range n {
		e := <-got
		calls[e.call] = func() error { return e.err }
	}
	for name, f := range calls {
		err := f()
		if !errors.Is(err, endpoint.ErrLeaseClosed) || name != "claim" && !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
		if why := l.lease.Err().Error(); name != "claim" && !strings.HasSuffix(err.Error(), ": "+why) {
			t.Errorf("%s: %v, want the reason: %s", name, err, why)
		}
	}
}

// After the uplink is deleted, an endpoint of messages returns the reason from a Wait that blocks, from
// later Waits and from Flush.
func TestMessageEndpointReturnsWhyTheLeaseEnded(t *testing.T) {
	t.Parallel()
	l := openLab(t)
	grant, lease, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(7)}})
	testutil.Must(t, err)
	ep, err := datapath.Attach(grant, datapath.Config{Lease: lease})
	testutil.Must(t, err)
	defer ep.Close()
	waited := make(chan error)
	go func() { waited <- ep.Wait(time.Time{}) }()
	l.on(t, l.A, netlink.LinkDel)
	if err := <-waited; !errors.Is(err, mux.ErrUplinkChanged) {
		t.Errorf("wait: %v", err)
	}
	ch := ep.NewChannel(wire.LinkAddr{2}, 9, 7, 1500)
	testutil.Must(t, ep.Write(&ch, nil))
	for name, f := range map[string]func() error{"flush": ep.Flush, "wait": func() error { return ep.Wait(time.Time{}) }} {
		if err := f(); !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, mux.ErrUplinkChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
