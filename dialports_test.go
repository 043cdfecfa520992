//go:build linux

package unet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/hoststack"
	"github.com/unet-go/unet/internal/testutil"
)

// kernelServer accepts connections in the kernel of host B. If closesFirst, it closes them at once, so
// that its end goes to TIME-WAIT; otherwise it waits until the peer has closed.
func (l *lab) kernelServer(t *testing.T, at string, closesFirst bool) {
	t.Helper()
	server, err := l.B.Listen("tcp", at)
	testutil.Must(t, err)
	t.Cleanup(func() { server.Close() })
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if !closesFirst {
					io.Copy(io.Discard, c)
				}
			}()
		}
	}()
}

// Many connections are opened to one destination and closed, and each dial gets a port, as in the
// kernel. Dials one after another use the 64 ports of one block. Fifty dials at a time use 1,024
// ports, because many connections wait for their last acknowledgment. Either end closes first, and
// then has the pair in TIME-WAIT; with timestamps and without.
func TestTCPChurn(t *testing.T) {
	t.Parallel()
	for _, timestamps := range []string{"1", "0"} {
		t.Run("timestamps "+timestamps, func(t *testing.T) {
			t.Parallel()
			testTCPChurn(t, timestamps)
		})
	}
}

// testTCPChurn is TestTCPChurn for a value of the kernel's tcp_timestamps.
func testTCPChurn(t *testing.T, timestamps string) {
	const dials = 10_000
	l := openLab(t)
	testutil.Must(t, l.B.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/tcp_timestamps", []byte(timestamps), 0)
	}))
	at := func(kernelFirst bool) netip.AddrPort {
		port := map[bool]uint16{false: 80, true: 81}[kernelFirst]
		return netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), port)
	}
	for _, kernelFirst := range []bool{false, true} {
		l.kernelServer(t, at(kernelFirst).String(), kernelFirst)
	}
	for _, goroutines := range []int{1, 50} {
		l.lease.boundBlocks(1)
		if goroutines > 1 {
			l.lease.boundBlocks(16)
		}
		for _, kernelFirst := range []bool{false, true} {
			t.Run(fmt.Sprintf("kernel first %v/%d at a time", kernelFirst, goroutines), func(t *testing.T) {
				var left, failed atomic.Int32
				left.Store(dials)
				var wg sync.WaitGroup
				for range goroutines {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							if err := openAndClose(t.Context(), l.host, at(kernelFirst), kernelFirst); err != nil && failed.Add(1) == 1 {
								t.Error(err)
							}
						}
					})
				}
				wg.Wait()
				if n := failed.Load(); n != 0 {
					t.Errorf("%d of %d failed", n, dials)
				}
			})
		}
	}
}

// openAndClose opens a connection and closes it, before the peer does or after.
func openAndClose(ctx context.Context, host *unet.Host, to netip.AddrPort, peerFirst bool) error {
	c, err := host.DialTCP(ctx, netip.AddrPort{}, to)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(testTimeout))
	if !peerFirst {
		if err := c.CloseWrite(); err != nil {
			return err
		}
	}
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		return fmt.Errorf("read: %w", err)
	}
	return c.Close()
}

// dialAll opens n connections to each destination, several at a time, and keeps them.
func (l *lab) dialAll(t *testing.T, host *unet.Host, n int, to ...netip.AddrPort) (conns []*unet.TCPConn) {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var left atomic.Int32
	left.Store(int32(n * len(to)))
	for range 16 {
		wg.Go(func() {
			for i := left.Add(-1); i >= 0; i = left.Add(-1) {
				c, err := host.DialTCP(t.Context(), netip.AddrPort{}, to[int(i)%len(to)])
				if err != nil {
					t.Errorf("%d connections before the last: %v", i, err)
					return
				}
				mu.Lock()
				conns = append(conns, c)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return conns
}

// Connections to different destinations share the ports of one block. When all ports of the block
// are in use to a destination, the error is that of package net. After the end of a connection
// there can be another one to its destination.
func TestTCPDialsShareAPort(t *testing.T) {
	t.Parallel()
	l := openLab(t)
	l.lease.boundBlocks(1)
	var to []netip.AddrPort
	for i := range uint16(5) {
		at := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), 80+i)
		l.kernelServer(t, at.String(), false)
		to = append(to, at)
	}
	conns := l.dialAll(t, l.host, endpoint.BlockPorts, to...)
	pairs, ports := map[[2]string]bool{}, map[int]bool{}
	for _, c := range conns {
		pairs[[2]string{c.LocalAddr().String(), c.RemoteAddr().String()}] = true
		ports[c.LocalAddr().(*net.TCPAddr).Port] = true
	}
	if len(conns) != endpoint.BlockPorts*len(to) || len(pairs) != len(conns) || len(ports) != endpoint.BlockPorts {
		t.Fatalf("%d connections, %d pairs, %d ports", len(conns), len(pairs), len(ports))
	}
	_, err := l.host.Dial("tcp", to[3].String())
	var op *net.OpError
	var call *os.SyscallError
	if !errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EADDRINUSE) || !errors.As(err, &op) || op.Op != "dial" || op.Addr.String() != to[3].String() ||
		!errors.As(err, &call) || call.Syscall != "connect" || !strings.Contains(err.Error(), "connect: cannot assign requested address") {
		t.Errorf("all ports are in use to the destination: %v", err)
	}
	// A listener cannot have a port that connections share.
	if _, err := l.host.Listen(t.Context(), "tcp", conns[0].LocalAddr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listen on a port in use: %v", err)
	}
	// To another destination there is room.
	other := netip.MustParseAddrPort("10.0.0.2:99")
	if _, err := l.host.Dial("tcp", other.String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial of %v: %v", other, err)
	}
	for _, c := range conns {
		if c.RemoteAddr().String() == to[3].String() {
			testutil.Must(t, c.CloseWrite())
			if _, err := c.Read(make([]byte, 1)); err != io.EOF {
				t.Fatal(err)
			}
			testutil.Must(t, c.Close())
			break
		}
	}
	last, err := l.host.Dial("tcp", to[3].String()) // the pair in TIME-WAIT
	testutil.Must(t, err)
	for _, c := range append(conns, last.(*unet.TCPConn)) {
		c.SetLinger(0)
		c.Close()
	}
	// The port of a listener is not chosen.
	port := uint16(last.LocalAddr().(*net.TCPAddr).Port)
	listener, err := l.host.Listen(t.Context(), "tcp", fmt.Sprint(":", port))
	testutil.Must(t, err)
	defer listener.Close()
	conns = l.dialAll(t, l.host, endpoint.BlockPorts-1, to[0])
	if _, err := l.host.Dial("tcp", to[0].String()); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("from the port of a listener: %v", err)
	}
	for _, c := range conns {
		c.SetLinger(0)
		c.Close()
	}
}

// A pair of addresses and ports that becomes free while the host asks unetd for more ports is used:
// the dial succeeds although unetd refuses.
func TestTCPDialUsesPortThatBecomesFree(t *testing.T) {
	t.Parallel()
	l := openLab(t)
	l.lease.boundBlocks(1)
	to := netip.MustParseAddrPort("10.0.0.2:80")
	l.kernelServer(t, to.String(), false)
	conns := l.dialAll(t, l.host, endpoint.BlockPorts, to)
	l.lease.refusing = func() { // a connection ends, in TIME-WAIT, and its owner has not closed it
		c := conns[7]
		if err := c.CloseWrite(); err != nil {
			t.Error(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("read: %v", err)
		}
	}
	last, err := l.host.DialTCP(t.Context(), netip.AddrPort{}, to)
	testutil.Must(t, err)
	if last.LocalAddr().String() != conns[7].LocalAddr().String() {
		t.Errorf("from %v when %v was free", last.LocalAddr(), conns[7].LocalAddr())
	}
	for _, c := range append(conns, last) {
		c.SetLinger(0)
		c.Close()
	}
}

// From an owned address a host has more connections to one destination than the kernel's port range
// has ports (28,232), and the next destination has all ports again. TestAllPortsOfOwnedAddress of package tcp uses all ports. The peer's kernel holds all connections;
// one that is not accepted needs no descriptor.
func TestManyTCPConnectionsFromOwnedAddress(t *testing.T) {
	l := openLab(t)
	host := newHost(t, l.mux, new(countedLease), unet.HostConfig{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.77")}})
	testutil.Must(t, l.B.Do(func() error {
		return os.WriteFile("/proc/sys/net/core/somaxconn", []byte("100000"), 0)
	}))
	start, total := time.Now(), 0
	for i, n := range []int{30_000, 1500} {
		at := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), 80+uint16(i))
		server, err := l.B.Listen("tcp", at.String())
		testutil.Must(t, err)
		t.Cleanup(func() { server.Close() })
		raw, err := server.(*net.TCPListener).SyscallConn()
		testutil.Must(t, err)
		testutil.Must(t, raw.Control(func(fd uintptr) { err = syscall.Listen(int(fd), 100000) }))
		testutil.Must(t, err)
		l.dialAll(t, host, n, at)
		total += n
	}
	t.Logf("%d connections in %v", total, time.Since(start))
	if u := hoststack.Of(host).TCPUsage(); u.Connections != total {
		t.Errorf("the host has %+v, want %d connections", u, total)
	}
	// The kernel counts a connection when it has handled our ACK of the SYN-ACK, which can be later.
	testutil.Eventually(t, fmt.Sprintf("the kernel has %d connections", total), func() bool {
		got, err := l.B.Counted("TcpCurrEstab")
		testutil.Must(t, err)
		return got == uint64(total)
	})
}

// Each dial of a UDP socket gets a port that no other open socket has, as in the kernel.
func TestUDPChurn(t *testing.T) {
	t.Parallel()
	l := openLab(t)
	var inUse sync.Map // the local addresses of open sockets
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 100 {
				c, err := l.host.Dial("udp", "10.0.0.2:7000")
				if err != nil {
					t.Error(err)
					return
				}
				local := c.LocalAddr().String()
				if _, taken := inUse.LoadOrStore(local, true); taken {
					t.Errorf("two open sockets have the address %s", local)
				}
				inUse.Delete(local)
				c.Close()
			}
		})
	}
	wg.Wait()
}
