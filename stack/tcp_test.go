package stack_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
)

const testTimeout = 2 * time.Minute // a test that waits longer fails

// connect makes a connection from b to a listener of a.
func connect(t testing.TB, a, b *stack.Stack, o stack.TCPOptions) (client, server *stack.TCPConn) {
	t.Helper()
	return connectAt(t, a, b, "10.0.0.1:0", o)
}

func connectAt(t testing.TB, a, b *stack.Stack, at string, o stack.TCPOptions) (client, server *stack.TCPConn) {
	t.Helper()
	l, err := a.ListenTCP(ap(at), stack.TCPListenOptions{TCPOptions: stack.TCPOptions{SendBuffer: o.SendBuffer, ReceiveBuffer: o.ReceiveBuffer}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.SetDeadline(time.Now().Add(testTimeout))
	dialled := make(chan error, 1)
	go func() {
		var err error
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		client, err = b.DialTCP(ctx, netip.AddrPort{}, addrPort(l.Addr()), o)
		dialled <- err
	}()
	server, err = l.AcceptTCP()
	if e := <-dialled; e != nil {
		t.Fatal(e)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*stack.TCPConn{client, server} {
		c.SetDeadline(time.Now().Add(testTimeout))
	}
	stack.Settle(a) // the accepted connection has its route
	return client, server
}

func writeAll(t testing.TB, c *stack.TCPConn, p []byte) {
	t.Helper()
	if n, err := c.Write(p); n != len(p) || err != nil {
		t.Errorf("write: %d of %d, %v", n, len(p), err)
	}
}

func wantEOF(t testing.TB, c *stack.TCPConn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 10)); n != 0 || err != io.EOF {
		t.Errorf("read %d, %v, want EOF", n, err)
	}
}

func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// reader hides the WriteTo of a connection, so that io.Copy calls its Read.
type reader struct{ io.Reader }

// transfer writes n random bytes to client, closes it, and compares what server reads until the
// end.
func transfer(t testing.TB, client, server *stack.TCPConn, n int) {
	t.Helper()
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{5}).Read(data)
	go func() {
		writeAll(t, client, data)
		client.Close()
	}()
	if got, err := io.ReadAll(server); !bytes.Equal(got, data) || err != nil {
		t.Errorf("%d bytes arrived as %d bytes, or the data differs: %v", n, len(got), err)
	}
}

// Data of all sizes goes both ways at once, byte for byte, by reads and writes of
// all sizes, in all ways of waiting.
func TestTCPTransfer(t *testing.T) {
	for _, mode := range waitModes {
		for _, c := range []struct {
			name                   string
			size, piece, read, buf int // bytes in all, of a write, of a read, and of the send and receive buffers
		}{
			{"one byte", 1, 1, 100, 0},
			{"small pieces", 20_000, 7, 5, 0},
			{"segments", 300_000, 1448, 4096, 0},
			{"large", 3_000_000, 300_000, 70_000, 0},
			{"small buffers", 300_000, 10_000, 1000, 4096},
		} {
			t.Run(fmt.Sprintf("%v/%s", mode, c.name), func(t *testing.T) {
				a, b, _, _ := newPair(t, stack.Config{Wait: mode})
				client, server := connect(t, a, b, stack.TCPOptions{SendBuffer: c.buf, ReceiveBuffer: c.buf})
				var wg sync.WaitGroup
				for _, d := range []struct{ from, to *stack.TCPConn }{{client, server}, {server, client}} {
					data := make([]byte, c.size)
					rand.NewChaCha8([32]byte{1}).Read(data)
					wg.Go(func() {
						for rest := data; len(rest) > 0; {
							n := min(c.piece, len(rest))
							writeAll(t, d.from, rest[:n])
							rest = rest[n:]
						}
						if err := d.from.CloseWrite(); err != nil {
							t.Errorf("close: %v", err)
						}
					})
					wg.Go(func() {
						var got []byte
						buf := make([]byte, c.read)
						for {
							n, err := d.to.Read(buf)
							got = append(got, buf[:n]...)
							if err == io.EOF {
								break
							}
							if err != nil {
								t.Errorf("read after %d bytes: %v", len(got), err)
								return
							}
						}
						if !bytes.Equal(got, data) {
							t.Errorf("%d bytes arrived as %d bytes, or the data differs", len(data), len(got))
						}
					})
				}
				wg.Wait()
				client.Close()
				server.Close()
			})
		}
	}
}

// Data is borrowed in the frames in which it was received. Each frame can be returned, also after
// Close.
func TestTCPBorrow(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{FrameQuota: 8})
	client, server := connect(t, a, b, stack.TCPOptions{})
	data := make([]byte, 50_000)
	rand.NewChaCha8([32]byte{2}).Read(data)
	go func() {
		writeAll(t, client, data)
		client.CloseWrite()
	}()
	var got []byte
	var kept []stack.TCPData
	for {
		piece, err := server.Borrow()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, piece.Data...)
		kept = append(kept, piece)
	}
	if !bytes.Equal(got, data) {
		t.Errorf("%d bytes arrived as %d bytes, or the data differs", len(data), len(got))
	}
	if a.Lent() == 0 || a.Lent() > 8 {
		t.Errorf("%d frames lent", a.Lent())
	}
	server.Close()
	for i := range kept {
		server.Return(&kept[i])
	}
	if a.Lent() != 0 {
		t.Errorf("%d frames lent in the end", a.Lent())
	}
}

func TestTCPHalfClose(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{})
	client, server := connect(t, a, b, stack.TCPOptions{})
	writeAll(t, client, []byte("question"))
	client.CloseWrite()
	if _, err := client.Write([]byte("more")); unwrapped(err) != syscall.EPIPE {
		t.Errorf("write after CloseWrite: %v", err)
	}
	got, err := io.ReadAll(server)
	if string(got) != "question" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	writeAll(t, server, []byte("answer"))
	server.Close()
	if got, err := io.ReadAll(client); string(got) != "answer" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	client.Close()

	client, server = connect(t, a, b, stack.TCPOptions{})
	server.CloseRead()
	wantEOF(t, server)
	writeAll(t, client, make([]byte, 1_000_000)) // the peer discards it, so that the write does not block
	server.Close()
	client.Close()
}

// The errors of dials that are refused or get no answer, and of connections that are reset or closed.
func TestTCPErrors(t *testing.T) {
	a, b, _, lb := newPair(t, stack.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	_, err := b.DialTCP(ctx, netip.AddrPort{}, ap("10.0.0.1:99"), stack.TCPOptions{})
	wantError(t, "dial of a port without a listener", err, syscall.ECONNREFUSED)
	_, err = b.DialTCP(ctx, netip.AddrPort{}, ap("10.0.0.77:99"), stack.TCPOptions{})
	wantError(t, "dial of a host that is not there", err, syscall.EHOSTUNREACH)
	_, err = b.DialTCP(ctx, netip.AddrPort{}, ap("192.0.2.1:99"), stack.TCPOptions{})
	wantError(t, "dial without a route", err, syscall.ENETUNREACH)
	_, err = b.DialTCP(ctx, netip.AddrPort{}, ap("10.0.0.255:99"), stack.TCPOptions{})
	wantError(t, "dial of the broadcast address", err, syscall.ENETUNREACH)
	_, err = b.DialTCP(ctx, ap("10.0.0.9:0"), ap("10.0.0.1:99"), stack.TCPOptions{})
	wantError(t, "dial from an address that the stack does not have", err, syscall.EADDRNOTAVAIL)

	client, server := connect(t, a, b, stack.TCPOptions{})
	server.SetLinger(0)
	server.Close()
	_, err = client.Read(make([]byte, 1))
	wantError(t, "read after a reset", err, syscall.ECONNRESET)
	client.Write([]byte("x"))
	_, err = client.Write([]byte("x"))
	wantError(t, "write after a reset", err, syscall.EPIPE)
	client.Close()
	wantError(t, "close again", client.Close(), net.ErrClosed)
	_, err = client.Read(make([]byte, 1))
	wantError(t, "read after close", err, net.ErrClosed)
	_, err = client.Write(make([]byte, 1))
	wantError(t, "write after close", err, net.ErrClosed)

	// Close with unread data: the peer gets a RST.
	client, server = connect(t, a, b, stack.TCPOptions{})
	writeAll(t, client, []byte("unread"))
	testutil.Eventually(t, "data arrives", func() bool { return server.Info().Buffered > 0 })
	server.Close()
	_, err = client.Read(make([]byte, 1))
	wantError(t, "read after a close with unread data", err, syscall.ECONNRESET)
	client.Close()

	// The peer no longer answers.
	client, server = connect(t, a, b, stack.TCPOptions{})
	client.SetUserTimeout(50 * time.Millisecond)
	lb.Filter(func([]byte) bool { return false })
	writeAll(t, client, []byte("no answer"))
	_, err = client.Read(make([]byte, 1))
	wantError(t, "read without an answer", err, syscall.ETIMEDOUT)
	client.Close()

	short, cancelShort := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancelShort()
	_, err = b.DialTCP(short, netip.AddrPort{}, ap("10.0.0.1:99"), stack.TCPOptions{})
	wantError(t, "dial with a context", err, context.DeadlineExceeded)
	lb.Filter(nil)
	server.Close()
}

func TestTCPDeadlines(t *testing.T) {
	for _, mode := range waitModes {
		t.Run(mode.String(), func(t *testing.T) {
			a, b, _, _ := newPair(t, stack.Config{Wait: mode})
			client, server := connect(t, a, b, stack.TCPOptions{})
			soon := func() time.Time { return time.Now().Add(5 * time.Millisecond) }
			client.SetReadDeadline(soon())
			for range 2 {
				_, err := client.Read(make([]byte, 1))
				wantError(t, "read", err, os.ErrDeadlineExceeded)
			}
			client.SetWriteDeadline(soon())
			var err error
			total := 0
			for err == nil {
				var n int
				n, err = client.Write(make([]byte, 100_000))
				total += n
			}
			wantError(t, "write", err, os.ErrDeadlineExceeded)
			// Without deadlines the connection works again.
			client.SetDeadline(time.Time{})
			client.CloseWrite()
			if n, err := io.Copy(io.Discard, reader{server}); n != int64(total) || err != nil {
				t.Errorf("%d of %d bytes, %v", n, total, err)
			}
			// A deadline ends a read that blocks already.
			read := make(chan error)
			go func() {
				_, err := client.Read(make([]byte, 1))
				read <- err
			}()
			testutil.Eventually(t, "the read blocks", func() bool { return stack.Waiting(b) > 0 })
			client.SetReadDeadline(time.Unix(1, 0))
			wantError(t, "read that blocks", <-read, os.ErrDeadlineExceeded)
			client.SetReadDeadline(time.Time{})
			go func() {
				_, err := client.Read(make([]byte, 1))
				read <- err
			}()
			testutil.Eventually(t, "the read blocks", func() bool { return stack.Waiting(b) > 0 })
			client.Close()
			wantError(t, "read of a connection that is closed", <-read, net.ErrClosed)
			server.Close()
		})
	}
}

func TestTCPListener(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{})
	l := testutil.Value(a.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{Backlog: 3}))
	_, err := a.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{})
	wantError(t, "listen twice", err, syscall.EADDRINUSE)
	_, err = a.ListenTCP(ap("10.0.0.7:80"), stack.TCPListenOptions{})
	wantError(t, "listen elsewhere", err, syscall.EADDRNOTAVAIL)
	l.SetDeadline(time.Now())
	_, err = l.AcceptTCP()
	wantError(t, "accept with a deadline", err, os.ErrDeadlineExceeded)
	l.SetDeadline(time.Time{})

	// The backlog takes three; the fourth is established when one is accepted.
	var clients []*stack.TCPConn
	for range 3 {
		clients = append(clients, testutil.Value(b.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{})))
	}
	fourth := make(chan *stack.TCPConn)
	go func() {
		fourth <- testutil.Value(b.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{}))
	}()
	testutil.Eventually(t, "a SYN is dropped", func() bool { return counters(a)["tcp_syn_dropped"] > 0 })
	server := testutil.Value(l.AcceptTCP())
	clients = append(clients, <-fourth)
	if addrPort(server.RemoteAddr()) != addrPort(clients[0].LocalAddr()) {
		t.Errorf("accepted %v first, not %v", addrPort(server.RemoteAddr()), addrPort(clients[0].LocalAddr()))
	}
	accepted := make(chan error)
	for range 3 {
		testutil.Value(l.AcceptTCP()).Close()
	}
	go func() {
		_, err := l.AcceptTCP()
		accepted <- err
	}()
	extra := testutil.Value(b.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{}))
	if err := <-accepted; err != nil {
		t.Errorf("accept: %v", err)
	}
	extra.Close()
	go func() {
		_, err := l.AcceptTCP()
		accepted <- err
	}()
	waiting := testutil.Value(b.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{}))
	if err := <-accepted; err != nil {
		t.Errorf("accept: %v", err)
	}
	waiting.Close()
	go func() {
		_, err := l.AcceptTCP()
		accepted <- err
	}()
	testutil.Eventually(t, "the accept blocks", func() bool { return stack.Waiting(a) > 0 })
	l.Close()
	wantError(t, "accept of a listener that is closed", <-accepted, net.ErrClosed)
	wantError(t, "close again", l.Close(), net.ErrClosed)

	// Accepted connections continue.
	writeAll(t, clients[0], []byte("hello"))
	buf := make([]byte, 10)
	if n, err := server.Read(buf); string(buf[:n]) != "hello" || err != nil {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	_, err = b.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{})
	wantError(t, "dial of a listener that is closed", err, syscall.ECONNREFUSED)
	for _, c := range clients {
		c.Close()
	}
	server.Close()
}

// Many connections at once, each with requests of its own, served by goroutines.
func TestTCPManyConnections(t *testing.T) {
	for _, mode := range []endpoint.WaitMode{endpoint.WaitAdaptive, endpoint.WaitBlock} {
		t.Run(mode.String(), func(t *testing.T) {
			a, b, _, _ := newPair(t, stack.Config{Wait: mode})
			var released atomic.Int32
			o := stack.TCPOptions{Released: func() { released.Add(1) }}
			l := testutil.Value(a.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{TCPOptions: o}))
			go func() {
				for {
					c, err := l.AcceptTCP()
					if err != nil {
						return
					}
					go func() {
						defer c.Close()
						buf := make([]byte, 100)
						for {
							n, err := c.Read(buf)
							if err != nil {
								return
							}
							if _, err := c.Write(buf[:n]); err != nil {
								return
							}
						}
					}()
				}
			}()
			const conns = 100
			var wg sync.WaitGroup
			for i := range conns {
				wg.Go(func() {
					c, err := b.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), o)
					if err != nil {
						t.Error(err)
						return
					}
					defer c.Close()
					c.SetDeadline(time.Now().Add(testTimeout))
					buf := make([]byte, 100)
					for k := range 20 {
						want := fmt.Sprintf("request %d of %d", k, i)
						writeAll(t, c, []byte(want))
						if n, err := io.ReadFull(c, buf[:len(want)]); err != nil || string(buf[:n]) != want {
							t.Errorf("read %q, %v", buf[:n], err)
							return
						}
					}
				})
			}
			wg.Wait()
			testutil.Eventually(t, "all ports that were dialled from are released", func() bool { return released.Load() == conns })
			l.Close()
			testutil.Eventually(t, "the port that was listened on is released, too", func() bool { return released.Load() == conns+1 })
		})
	}
}

// Each write to a shared connection arrives in one piece.
func TestTCPConcurrentWritesAreNotMixed(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{})
	client, server := connect(t, a, b, stack.TCPOptions{SendBuffer: 4096, ReceiveBuffer: 4096})
	var wg sync.WaitGroup
	const size = 20_000
	for i := range 5 {
		wg.Go(func() { writeAll(t, client, bytes.Repeat([]byte{byte('a' + i)}, size)) })
	}
	buf := make([]byte, size)
	for range 5 {
		if _, err := io.ReadFull(server, buf); err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(buf, buf[:1]); n != size {
			t.Errorf("%d bytes of %q among %d", n, buf[0], size)
		}
	}
	wg.Wait()
	client.Close()
	server.Close()
}

// A connection within one stack.
func TestTCPLoopback(t *testing.T) {
	a, _, _, _ := newPair(t, stack.Config{})
	client, server := connect(t, a, a, stack.TCPOptions{})
	transfer(t, client, server, 300_000)
	server.Close()
	_, err := a.DialTCP(t.Context(), netip.AddrPort{}, ap("127.0.0.1:9"), stack.TCPOptions{})
	wantError(t, "dial of a loopback port without a listener", err, syscall.ECONNREFUSED)
}

// Close of the stack sends the data that was written, also on connections that are not closed, and
// ends calls that block.
func TestStackCloseSendsWrittenData(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{})
	done, doneServer := connect(t, a, b, stack.TCPOptions{})
	open, openServer := connect(t, a, b, stack.TCPOptions{})
	data := make([]byte, 200_000)
	rand.NewChaCha8([32]byte{7}).Read(data)
	writeAll(t, done, data)
	done.Close()
	writeAll(t, open, data)
	blocked := make(chan error)
	go func() {
		_, err := open.Read(make([]byte, 1))
		blocked <- err
	}()
	got := make(chan []byte)
	for _, c := range []*stack.TCPConn{doneServer, openServer} {
		go func() {
			p, err := io.ReadAll(c)
			if err != nil {
				t.Errorf("after %d bytes: %v", len(p), err)
			}
			c.Close()
			got <- p
		}()
	}
	b.Close()
	wantError(t, "read that blocks", <-blocked, net.ErrClosed)
	for range 2 {
		if p := <-got; !bytes.Equal(p, data) {
			t.Errorf("%d bytes arrived as %d bytes, or the data differs", len(data), len(p))
		}
	}
	_, err := b.DialTCP(t.Context(), netip.AddrPort{}, ap("10.0.0.1:80"), stack.TCPOptions{})
	wantError(t, "dial", err, net.ErrClosed)
}

// After the link was down, connections continue. After Fail, data that was received can be read, and
// then calls return the error of Fail.
func TestTCPAfterLinkDownAndAfterFail(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{})
	client, server := connect(t, a, b, stack.TCPOptions{})
	b.SetLink(0, false)
	writeAll(t, client, []byte("meanwhile"))
	_, err := b.DialTCP(t.Context(), netip.AddrPort{}, ap("10.0.0.1:80"), stack.TCPOptions{})
	wantError(t, "dial", err, syscall.ENETDOWN)
	b.SetLink(0, true)
	buf := make([]byte, 30)
	if n, err := server.Read(buf); string(buf[:n]) != "meanwhile" || err != nil {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	failure := errors.New("the link has failed")
	writeAll(t, server, []byte("received before Fail"))
	testutil.Eventually(t, "the data arrives", func() bool { return client.Info().Buffered > 0 })
	b.Fail(failure)
	if n, err := client.Read(buf); string(buf[:n]) != "received before Fail" || err != nil {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	_, err = client.Read(buf)
	wantError(t, "read", err, failure)
	_, err = client.Write(buf)
	wantError(t, "write", err, failure)
	client.Close()
	server.Close()
}

// On a link that loses frames and has few of them, all data arrives, and all frames are returned.
func TestTCPLossAndFewFrames(t *testing.T) {
	la, lb := memlink.Pair(memlink.Config{FrameCount: 32, TxSize: 4})
	a := newStack(t, la, stack.Config{LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, OwnedAddress: true, Resolver: neighbours{}, FrameQuota: 4})
	b := newStack(t, lb, stack.Config{LinkAddr: linkB, Addrs: []netip.Prefix{prefixB}, OwnedAddress: true, Resolver: neighbours{}, FrameQuota: 4})
	client, server := connect(t, a, b, stack.TCPOptions{})
	var n atomic.Uint32
	lb.Filter(func([]byte) bool { return n.Add(1)%50 != 0 })
	transfer(t, client, server, 400_000)
	server.Close()
}

// Close waits for the peer, at most for the time that SetLinger has set.
func TestTCPLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _, lb := newPair(t, stack.Config{Wait: endpoint.WaitBlock})
		client, server := connect(t, a, b, stack.TCPOptions{})
		client.SetLinger(int(testTimeout / time.Second))
		writeAll(t, client, []byte("x"))
		client.Close()
		if n := client.Info().InFlight; n != 0 {
			t.Errorf("%d bytes in flight after Close", n)
		}
		server.Close()
		client, server = connect(t, a, b, stack.TCPOptions{})
		lb.Filter(func([]byte) bool { return false })
		client.SetLinger(1)
		writeAll(t, client, []byte("x"))
		start := time.Now()
		client.Close()
		if took, state := time.Since(start), client.Info().State; took != time.Second || state != tcp.Closed {
			t.Errorf("Close without an acknowledgment took %v, want 1s; then the state is %v, want %v", took, state, tcp.Closed)
		}
		lb.Filter(nil)
		server.Close()
	})
}

// The first small write is sent at once. While its data is in flight small writes are gathered. They
// are sent soon, also if no goroutine polls.
func TestTCPSmallWritesAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _, _ := newPair(t, stack.Config{Wait: endpoint.WaitBlock})
		client, server := connect(t, a, b, stack.TCPOptions{})
		data := make([]byte, 11*64)
		rand.NewChaCha8([32]byte{8}).Read(data)
		writeAll(t, client, data[:64])
		if n := client.Info().InFlight; n != 64 {
			t.Errorf("%d bytes in flight after the first write", n)
		}
		for i := 64; i < len(data); i += 64 {
			writeAll(t, client, data[i:i+64])
		}
		if n := client.Info().SegmentsSent; n > 5 {
			t.Errorf("%d segments sent, with the handshake, want 5 at most", n)
		}
		testutil.Eventually(t, "the gathered data is sent", func() bool { return client.Info().Unsent == 0 })
		got := make([]byte, len(data))
		if _, err := io.ReadFull(server, got); err != nil || !bytes.Equal(got, data) {
			t.Errorf("the data differs, or %v", err)
		}
		client.Close()
		server.Close()
	})
}

// The acknowledgment of a request is sent in the segment of the answer, from the first request on.
func TestTCPAnswersCarryTheAcknowledgment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _, _ := newPair(t, stack.Config{NoCaretaker: true, Wait: endpoint.WaitBlock})
		client, server := connect(t, a, b, stack.TCPOptions{})
		go func() {
			buf := make([]byte, 100)
			for {
				n, err := server.Read(buf)
				if err != nil {
					break
				}
				server.Write(buf[:n])
			}
			server.Close()
		}()
		buf := make([]byte, 100)
		before := server.Info().SegmentsSent
		for range 100 {
			synctest.Wait() // the server waits in Read
			writeAll(t, client, []byte("ping"))
			if n, err := client.Read(buf); string(buf[:n]) != "ping" || err != nil {
				t.Fatalf("read %q, %v", buf[:n], err)
			}
		}
		if n := server.Info().SegmentsSent - before; n != 100 { // the first one has the larger window, too
			t.Errorf("%d segments for 100 answers", n)
		}
		client.Close()
	})
}

// onePort is stack.TCPPorts with one port.
type onePort struct{}

func (onePort) Choose(_ netip.Addr, pick func([]tcp.PortBlock) uint16) uint16 {
	return pick([]tcp.PortBlock{{First: 6400, Ports: 1}})
}

func (onePort) Release(netip.Addr, uint16) {}

// A dial processes the frames that wait on the link first: with the last acknowledgment of a closed
// connection its pair of addresses and ports is free again.
func TestTCPDialProcessesReceivedSegmentsFirst(t *testing.T) {
	for _, from := range []string{"10.0.0.2:0", "10.0.0.2:5000"} {
		a, b, _, _ := newPair(t, stack.Config{NoCaretaker: true, TCPPorts: onePort{}})
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		to := ap("10.0.0.1:80")
		l := testutil.Value(a.ListenTCP(to, stack.TCPListenOptions{}))
		for range 2 {
			accepted := make(chan *stack.TCPConn)
			go func() {
				c, _ := l.AcceptTCP()
				accepted <- c
			}()
			client, err := b.DialTCP(ctx, ap(from), to, stack.TCPOptions{})
			if err != nil {
				l.Close()
				t.Fatalf("from %s: %v", from, err)
			}
			server := <-accepted
			server.Close()
			if _, err := client.Read(make([]byte, 1)); err != io.EOF {
				t.Fatal(err)
			}
			client.Close()
			a.Poll(time.Now())
			if state := client.Info().State; state != tcp.LastAck {
				t.Fatalf("state %v, want %v: the last acknowledgment waits on the link", state, tcp.LastAck)
			}
		}
	}
}
