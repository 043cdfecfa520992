//go:build linux

package unet_test

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/proto/tcp"
)

// keepAliver is what unet's and package net's connections have in common.
type keepAliver interface {
	net.Conn
	SetKeepAlive(bool) error
	SetKeepAlivePeriod(time.Duration) error
	SetKeepAliveConfig(net.KeepAliveConfig) error
}

// kernelKeepAlive is what a connection of package net has set in the kernel.
func kernelKeepAlive(t *testing.T, c net.Conn) (k tcp.KeepAlive) {
	t.Helper()
	get := func(level, name int) (value int) {
		t.Helper()
		onDescriptor(t, c, func(fd int) (err error) {
			value, err = unix.GetsockoptInt(fd, level, name)
			return err
		})
		return value
	}
	return tcp.KeepAlive{
		Enable:   get(unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 0,
		Idle:     time.Duration(get(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)) * time.Second,
		Interval: time.Duration(get(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL)) * time.Second,
		Count:    get(unix.IPPROTO_TCP, unix.TCP_KEEPCNT),
	}
}

// onDescriptor calls f with the descriptor of a connection of the kernel.
func onDescriptor(t *testing.T, c net.Conn, f func(fd int) error) {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	testutil.Must(t, err)
	var failed error
	testutil.Must(t, raw.Control(func(fd uintptr) { failed = f(int(fd)) }))
	testutil.Must(t, failed)
}

// The calls that set the keepalive have the effect that they have in package net.
func TestTCPSetKeepAlive(t *testing.T) {
	l := openLab(t)
	theirs, err := l.B.Dial("tcp", "10.0.0.2:7000")
	testutil.Must(t, err)
	defer theirs.Close()
	conn, err := l.host.Dial("tcp", "10.0.0.2:7000")
	testutil.Must(t, err)
	defer conn.Close()
	ours := conn.(*unet.TCPConn)
	config := func(k net.KeepAliveConfig) func(keepAliver) error {
		return func(c keepAliver) error { return c.SetKeepAliveConfig(k) }
	}
	for _, step := range []struct {
		name string
		call func(keepAliver) error
	}{
		{"at first", func(keepAliver) error { return nil }},
		{"off", func(c keepAliver) error { return c.SetKeepAlive(false) }},
		{"a period", func(c keepAliver) error { return c.SetKeepAlivePeriod(7 * time.Second) }},
		{"on", func(c keepAliver) error { return c.SetKeepAlive(true) }},
		{"a negative period", func(c keepAliver) error { return c.SetKeepAlivePeriod(-time.Second) }},
		{"all of it", config(net.KeepAliveConfig{Enable: true, Idle: 3 * time.Second, Interval: 2 * time.Second, Count: 5})},
		{"nothing but off", config(net.KeepAliveConfig{Idle: -1, Interval: -1, Count: -1})},
		{"some of it", config(net.KeepAliveConfig{Enable: true, Idle: -1, Interval: 4 * time.Second, Count: -1})},
		{"the default period", func(c keepAliver) error { return c.SetKeepAlivePeriod(0) }},
		{"the defaults", config(net.KeepAliveConfig{Enable: true})},
		{"the most", config(net.KeepAliveConfig{Enable: true, Idle: 32767 * time.Second, Interval: 32767 * time.Second, Count: 127})},
	} {
		if a, b := step.call(ours), step.call(theirs.(keepAliver)); a != nil || b != nil {
			t.Errorf("%s: %v; package net: %v", step.name, a, b)
		}
		got, want := ours.KeepAlive(), kernelKeepAlive(t, theirs)
		got.Idle = cmp.Or(got.Idle, tcp.DefaultKeepAliveIdle)
		got.Interval = cmp.Or(got.Interval, tcp.DefaultKeepAliveInterval)
		got.Count = cmp.Or(got.Count, tcp.DefaultKeepAliveCount)
		if got != want {
			t.Errorf("%s: %+v; package net: %+v", step.name, got, want)
		}
	}
	before := ours.KeepAlive()
	for _, k := range []net.KeepAliveConfig{{Idle: 32768 * time.Second}, {Interval: 32768 * time.Second}, {Count: 128}} {
		for _, c := range []keepAliver{ours, theirs.(keepAliver)} {
			var op *net.OpError
			if err := c.SetKeepAliveConfig(k); !errors.Is(err, syscall.EINVAL) || !errors.As(err, &op) || op.Op != "set" {
				t.Errorf("%T: %+v: %v, want EINVAL", c, k, err)
			}
		}
	}
	if k := ours.KeepAlive(); k != before {
		t.Errorf("a refused call has changed the keepalive to %+v", k)
	}
	ours.Close()
	if err := ours.SetKeepAlive(true); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// count is a counter of the host's stack.
func (l *lab) count(name string) uint64 {
	for _, c := range l.host.Counters() {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}

// awaitCount returns when a counter has grown by n.
func (l *lab) awaitCount(t *testing.T, name string, n uint64) {
	t.Helper()
	until := l.count(name) + n
	testutil.Eventually(t, fmt.Sprintf("%s is %d", name, until), func() bool { return l.count(name) >= until })
}

// checkEcho writes data and expects to read it back.
func checkEcho(t *testing.T, c net.Conn) {
	t.Helper()
	buf := make([]byte, 5)
	c.SetDeadline(time.Now().Add(testTimeout))
	_, err := c.Write([]byte("hello"))
	testutil.Must(t, err)
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "hello" {
		t.Errorf("%q, %v", buf, err)
	}
	c.SetDeadline(time.Time{})
}

// Connections stay open when they are idle for many keepalive times: one with a blocked
// reader, one without, and one without keepalive, which sends nothing.
func TestTCPIdle(t *testing.T) {
	l := openLab(t)
	// By default Linux answers two probes a second at most.
	testutil.Must(t, l.B.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_invalid_ratelimit", []byte("0"), 0) }))
	var conns [3]*unet.TCPConn
	for i := range conns {
		c, err := l.host.Dial("tcp", "10.0.0.2:7000")
		testutil.Must(t, err)
		defer c.Close()
		conns[i] = c.(*unet.TCPConn)
		testutil.Must(t, conns[i].SetKeepAliveConfig(net.KeepAliveConfig{Enable: i < 2, Idle: 10 * time.Millisecond, Interval: 10 * time.Millisecond, Count: 9}))
		checkEcho(t, c)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := conns[0].Read(make([]byte, 1))
		waited <- err
	}()
	l.awaitCount(t, "tcp_keep_alives", 10) // by then all is acknowledged
	before := [3]uint64{}
	for i, c := range conns {
		before[i] = c.Info().SegmentsSent
	}
	l.awaitCount(t, "tcp_keep_alives", 100)
	for i, c := range conns {
		if sent := c.Info().SegmentsSent - before[i]; (sent > 0) != (i < 2) {
			t.Errorf("connection %d has sent %d segments", i, sent)
		}
	}
	testutil.Must(t, conns[0].SetReadDeadline(time.Now()))
	if err := <-waited; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("reader: %v", err)
	}
	for _, c := range conns {
		checkEcho(t, c)
	}
}

// removeAddressesOfB deletes all addresses of B, so that it answers nothing.
func (l *lab) removeAddressesOfB(t *testing.T) {
	t.Helper()
	l.on(t, l.B, func(link netlink.Link) error {
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
		for i := range addrs {
			err = errors.Join(err, netlink.AddrDel(link, &addrs[i]))
		}
		return err
	})
}

// wantPeerGone expects that a connection has ended because its peer is gone: a read fails with want,
// as in package net, and a write fails.
func wantPeerGone(t *testing.T, what string, c net.Conn, want syscall.Errno) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(testTimeout))
	_, err := c.Read(make([]byte, 1))
	var op *net.OpError
	if !errors.Is(err, want) || errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &op) ||
		op.Op != "read" || op.Net != "tcp" || op.Addr.String() != c.RemoteAddr().String() || op.Timeout() != want.Timeout() {
		t.Errorf("%s: read: %v, want %v", what, err, want)
	}
	if _, err := c.Write([]byte("x")); err == nil {
		t.Errorf("%s: write succeeds", what)
	}
}

// Connections to a peer that is cut off end: an idle one by its keepalive, one with unacknowledged data
// by its user timeout. The error of the read is that of package net.
func TestTCPPeerCutOff(t *testing.T) {
	for name, cut := range map[string]func(*lab){
		"addresses deleted": func(l *lab) { l.removeAddressesOfB(t) },
		"cable down":        func(l *lab) { l.on(t, l.B, netlink.LinkSetDown) },
	} {
		t.Run(name, func(t *testing.T) {
			l := openLab(t)
			open := func(dial func(network, address string) (net.Conn, error)) keepAliver {
				c, err := dial("tcp", "10.0.0.2:7000")
				testutil.Must(t, err)
				t.Cleanup(func() { c.Close() })
				return c.(keepAliver)
			}
			idle, waiting, kernel := open(l.host.Dial), open(l.host.Dial), open(l.A.Dial)
			for _, c := range []keepAliver{idle, waiting, kernel} {
				checkEcho(t, c)
			}
			testutil.Must(t, waiting.(*unet.TCPConn).SetUserTimeout(50*time.Millisecond))
			testutil.Must(t, waiting.SetKeepAlive(false))
			cut(l)
			testutil.Must(t, idle.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 50 * time.Millisecond, Interval: 20 * time.Millisecond, Count: 3}))
			testutil.Must(t, kernel.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 1}))
			_, err := waiting.Write([]byte("unacknowledged"))
			testutil.Must(t, err)
			var wg sync.WaitGroup
			wg.Go(func() { wantPeerGone(t, "by keepalive", idle, syscall.ETIMEDOUT) })
			wg.Go(func() { wantPeerGone(t, "by user timeout", waiting, syscall.ETIMEDOUT) })
			wg.Go(func() { wantPeerGone(t, "package net", kernel, syscall.ETIMEDOUT) })
			wg.Wait()
		})
	}
}

// A peer that has been restarted has no state of a connection, and answers a keepalive
// probe, or data, with a RST.
func TestTCPPeerRebooted(t *testing.T) {
	t.Parallel()
	l := openLab(t)
	for _, probe := range []string{"by keepalive", "by data"} {
		listener, err := l.B.Listen("tcp", "10.0.0.2:0")
		testutil.Must(t, err)
		defer listener.Close()
		c, err := l.host.Dial("tcp", listener.Addr().String())
		testutil.Must(t, err)
		defer c.Close()
		peer, err := listener.Accept()
		testutil.Must(t, err)
		// A connection in repair mode is closed without a FIN or RST.
		onDescriptor(t, peer, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1) })
		testutil.Must(t, peer.Close())
		if probe == "by keepalive" {
			testutil.Must(t, c.(*unet.TCPConn).SetKeepAlivePeriod(10*time.Millisecond))
		} else {
			_, err := c.Write([]byte("data"))
			testutil.Must(t, err)
		}
		wantPeerGone(t, probe, c, syscall.ECONNRESET)
	}
}
