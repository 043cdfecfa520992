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
	"time"

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
	stack.Settle(a) // the accepted connection has asked for its route
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

// eventually waits until f is true.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

var waitModes = []stack.WaitMode{stack.WaitAdaptive, stack.WaitSpin, stack.WaitBlock}

// Data of all sizes goes both ways at once, byte for byte, by reads and writes of
// all sizes, in all ways of waiting.
func TestTCPTransfer(t *testing.T) {
	for _, mode := range waitModes {
		for _, c := range []struct {
			name                   string
			size, piece, read, buf int
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
					text := make([]byte, c.size)
					rand.NewChaCha8([32]byte{1}).Read(text)
					wg.Go(func() {
						for rest := text; len(rest) > 0; {
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
						if !bytes.Equal(got, text) {
							t.Errorf("%d bytes arrived as %d bytes, or the data differs", len(text), len(got))
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

// Data is borrowed in the frames that it came in. Each frame is returned, also after the end.
func TestTCPBorrow(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{FrameQuota: 8})
	client, server := connect(t, a, b, stack.TCPOptions{})
	text := make([]byte, 50_000)
	rand.NewChaCha8([32]byte{2}).Read(text)
	go func() {
		writeAll(t, client, text)
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
	if !bytes.Equal(got, text) {
		t.Errorf("%d bytes arrived as %d bytes, or the data differs", len(text), len(got))
	}
	if a.Lent() == 0 || a.Lent() > 8 {
		t.Errorf("%d frames lent", a.Lent())
	}
	server.Close()
	for i := range kept {
		kept[i].Return()
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
	if _, err := client.Write([]byte("more")); bare(err) != syscall.EPIPE {
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
	writeAll(t, client, make([]byte, 1_000_000)) // is discarded by the peer; no write blocks for good
	server.Close()
	client.Close()
}

// The errors of connections that are refused, reset or without an answer.
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
	wantError(t, "dial from an address of somebody else", err, syscall.EADDRNOTAVAIL)

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
	eventually(t, "data arrives", func() bool { return server.Info().Buffered > 0 })
	server.Close()
	_, err = client.Read(make([]byte, 1))
	wantError(t, "read after a close with unread data", err, syscall.ECONNRESET)
	client.Close()

	// The peer does not answer any more.
	client, server = connect(t, a, b, stack.TCPOptions{})
	client.SetUserTimeout(50 * time.Millisecond)
	lb.Filter(func([]byte) bool { return false })
	writeAll(t, client, []byte("into the void"))
	_, err = client.Read(make([]byte, 1))
	wantError(t, "read without an answer", err, syscall.ETIMEDOUT)
	client.Close()

	stop, cancel2 := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel2()
	_, err = b.DialTCP(stop, netip.AddrPort{}, ap("10.0.0.1:99"), stack.TCPOptions{})
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
			client.SetReadDeadline(time.Unix(1, 0))
			wantError(t, "read that blocks", <-read, os.ErrDeadlineExceeded)
			client.SetReadDeadline(time.Time{})
			go func() {
				_, err := client.Read(make([]byte, 1))
				read <- err
			}()
			client.Close()
			wantError(t, "read of a connection that is closed", <-read, net.ErrClosed)
			server.Close()
		})
	}
}

type reader struct{ io.Reader }

func TestTCPListener(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{})
	l := must(a.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{Backlog: 3}))
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
		clients = append(clients, must(b.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{})))
	}
	fourth := make(chan *stack.TCPConn)
	go func() {
		fourth <- must(b.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{}))
	}()
	eventually(t, "a SYN is dropped", func() bool { return counters(a)["tcp_syn_dropped"] > 0 })
	server := must(l.AcceptTCP())
	clients = append(clients, <-fourth)
	if addrPort(server.RemoteAddr()) != addrPort(clients[0].LocalAddr()) {
		t.Errorf("accepted %v first, not %v", addrPort(server.RemoteAddr()), addrPort(clients[0].LocalAddr()))
	}
	accepted := make(chan error)
	for range 3 {
		must(l.AcceptTCP()).Close()
	}
	go func() {
		_, err := l.AcceptTCP()
		accepted <- err
	}()
	extra := must(b.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{}))
	if err := <-accepted; err != nil {
		t.Errorf("accept: %v", err)
	}
	extra.Close()
	go func() {
		_, err := l.AcceptTCP()
		accepted <- err
	}()
	waiting := must(b.DialTCP(t.Context(), netip.AddrPort{}, addrPort(l.Addr()), stack.TCPOptions{}))
	if err := <-accepted; err != nil {
		t.Errorf("accept: %v", err)
	}
	waiting.Close()
	go func() {
		_, err := l.AcceptTCP()
		accepted <- err
	}()
	eventually(t, "accept waits", func() bool { return len(accepted) == 0 })
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
	for _, mode := range []stack.WaitMode{stack.WaitAdaptive, stack.WaitBlock} {
		t.Run(mode.String(), func(t *testing.T) {
			a, b, _, _ := newPair(t, stack.Config{Wait: mode})
			var released atomic.Int32
			o := stack.TCPOptions{Released: func() { released.Add(1) }}
			l := must(a.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{TCPOptions: o}))
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
			eventually(t, "all ports that were dialled from are released", func() bool { return released.Load() == conns })
			l.Close()
			eventually(t, "the port that was listened on is released, too", func() bool { return released.Load() == conns+1 })
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
	data := make([]byte, 300_000)
	rand.NewChaCha8([32]byte{4}).Read(data)
	go func() {
		writeAll(t, client, data)
		client.Close()
	}()
	if got, err := io.ReadAll(server); !bytes.Equal(got, data) || err != nil {
		t.Errorf("%d bytes arrived as %d bytes, or the data differs: %v", len(data), len(got), err)
	}
	server.Close()
	_, err := a.DialTCP(t.Context(), netip.AddrPort{}, ap("127.0.0.1:9"), stack.TCPOptions{})
	wantError(t, "nobody there", err, syscall.ECONNREFUSED)
}

// Close of the stack: what was written arrives, also on connections that are not closed,
// and calls that block return.
func TestStackCloseSendsWrittenData(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{})
	done, doneServer := connect(t, a, b, stack.TCPOptions{})
	open, openServer := connect(t, a, b, stack.TCPOptions{})
	text := make([]byte, 200_000)
	writeAll(t, done, text)
	done.Close()
	writeAll(t, open, text)
	blocked := make(chan error)
	go func() {
		_, err := open.Read(make([]byte, 1))
		blocked <- err
	}()
	got := make(chan int)
	for _, c := range []*stack.TCPConn{doneServer, openServer} {
		go func() {
			p, err := io.ReadAll(c)
			if err != nil {
				t.Errorf("after %d bytes: %v", len(p), err)
			}
			c.Close()
			got <- len(p)
		}()
	}
	b.Close()
	wantError(t, "read that blocks", <-blocked, net.ErrClosed)
	for range 2 {
		if n := <-got; n != len(text) {
			t.Errorf("%d of %d bytes arrived", n, len(text))
		}
	}
	_, err := b.DialTCP(t.Context(), netip.AddrPort{}, ap("10.0.0.1:80"), stack.TCPOptions{})
	wantError(t, "dial", err, net.ErrClosed)
}

// The link goes down and up again: connections continue.
func TestTCPAfterLinkDownAndAfterFail(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{})
	client, server := connect(t, a, b, stack.TCPOptions{})
	b.SetLink(false)
	writeAll(t, client, []byte("meanwhile"))
	_, err := b.DialTCP(t.Context(), netip.AddrPort{}, ap("10.0.0.1:80"), stack.TCPOptions{})
	wantError(t, "dial", err, syscall.ENETDOWN)
	b.SetLink(true)
	buf := make([]byte, 20)
	if n, err := server.Read(buf); string(buf[:n]) != "meanwhile" || err != nil {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	boom := errors.New("boom")
	writeAll(t, server, []byte("last words"))
	eventually(t, "they arrive", func() bool { return client.Info().Buffered > 0 })
	b.Fail(boom)
	if n, err := client.Read(buf); string(buf[:n]) != "last words" || err != nil {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	_, err = client.Read(buf)
	wantError(t, "read", err, boom)
	_, err = client.Write(buf)
	wantError(t, "write", err, boom)
	client.Close()
	server.Close()
}

// On a link that loses frames and has few of them, all data arrives, and all frames are returned.
func TestTCPLossAndFewFrames(t *testing.T) {
	la, lb := memlink.Pair(memlink.Config{FrameCount: 32, TxSize: 4})
	a := newStack(t, la, stack.Config{LinkAddr: linkA, Addr: prefixA, OwnedAddress: true, Resolver: neighbours{}, FrameQuota: 4})
	b := newStack(t, lb, stack.Config{LinkAddr: linkB, Addr: prefixB, OwnedAddress: true, Resolver: neighbours{}, FrameQuota: 4})
	client, server := connect(t, a, b, stack.TCPOptions{})
	var n atomic.Uint32
	lb.Filter(func([]byte) bool { return n.Add(1)%50 != 0 })
	text := make([]byte, 400_000)
	rand.NewChaCha8([32]byte{3}).Read(text)
	go func() {
		writeAll(t, client, text)
		client.Close()
	}()
	if got, err := io.ReadAll(server); !bytes.Equal(got, text) || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	server.Close()
}

// Close waits for the peer, at most for the time that SetLinger has set.
func TestTCPLinger(t *testing.T) {
	a, b, _, lb := newPair(t, stack.Config{})
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
	client.Close()
	if st := client.Info().State; st != tcp.Closed {
		t.Errorf("%v after Close", st)
	}
	lb.Filter(nil)
	server.Close()
}

// While data is in flight small writes are gathered. They are sent soon, though nobody polls.
// The first one does not wait.
func TestTCPSmallWritesAreGathered(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{Wait: stack.WaitBlock})
	client, server := connect(t, a, b, stack.TCPOptions{})
	writeAll(t, client, make([]byte, 64))
	if n := client.Info().InFlight; n != 64 {
		t.Errorf("%d bytes in flight after the first write", n)
	}
	for range 10 {
		writeAll(t, client, make([]byte, 64))
	}
	if n := client.Info().SegmentsSent; n > 5 {
		t.Errorf("%d segments", n)
	}
	eventually(t, "the rest leaves", func() bool { return client.Info().Unsent == 0 })
	if _, err := io.ReadFull(server, make([]byte, 11*64)); err != nil {
		t.Error(err)
	}
	client.Close()
	server.Close()
}

// An acknowledgment waits for the answer of a reader that it has woken, and does
// not wait if there is none.
func TestTCPAnswersCarryTheAcknowledgment(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{NoCaretaker: true, Wait: stack.WaitSpin})
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
		writeAll(t, client, []byte("ping"))
		if _, err := client.Read(buf); err != nil {
			t.Fatal(err)
		}
	}
	if n := server.Info().SegmentsSent - before; n > 120 {
		t.Errorf("%d segments for 100 answers", n)
	}
	client.Close()
}

// onePort is stack.TCPPorts with one port.
type onePort struct{}

func (onePort) Choose(_ netip.Addr, pick func([]tcp.PortBlock) uint16) uint16 {
	return pick([]tcp.PortBlock{{First: 6400, Ports: 1}})
}

func (onePort) Release(netip.Addr, uint16) {}

// The pair of ends of a connection can be used again once its last acknowledgment has come,
// also if nobody has polled since.
func TestTCPDialProcessesReceivedSegmentsFirst(t *testing.T) {
	for _, from := range []string{"10.0.0.2:0", "10.0.0.2:5000"} {
		a, b, _, _ := newPair(t, stack.Config{NoCaretaker: true, TCPPorts: onePort{}})
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		to := ap("10.0.0.1:80")
		l := must(a.ListenTCP(to, stack.TCPListenOptions{}))
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
				t.Fatalf("%v although nobody has polled", state)
			}
		}
	}
}
