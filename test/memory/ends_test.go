//go:build linux

package memory

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/testutil"
)

// endArg makes this test binary one end of the streams of TestRandomKills, a client or a server. It ends with an error if it has
// received a wrong byte, or a connection has ended in a way that no death explains.
const endArg = "be-an-end"

// A stream goes each way of a connection. The client first sends a header: what defines the two streams, and how long each is.
const headerLen = 16

// contents are the bytes of a stream, which depend on the position and the seed.
func contents(seed uint64) *rand.ChaCha8 {
	var key [32]byte
	binary.BigEndian.PutUint64(key[:], seed)
	return rand.NewChaCha8(key)
}

var (
	errWrong = errors.New("WRONG") // what must not happen, whoever dies
	errEarly = fmt.Errorf("%w: the end of the stream", errWrong)
)

// deaths are how a connection may end when the other end or unetd dies. ENOTCONN is CloseWrite's.
var deaths = []error{syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNREFUSED, syscall.ENOTCONN}

// explained is an error unless a death explains err.
func explained(err error) error {
	for _, d := range deaths {
		if errors.Is(err, d) {
			return nil
		}
	}
	if err == nil || errors.Is(err, errWrong) {
		return err
	}
	return fmt.Errorf("%w: a connection ended with %w", errWrong, err)
}

// transfer sends one stream, receives the other, and compares. It closes the connection.
func transfer(c net.Conn, out, in uint64, size int) error {
	defer c.Close()
	sent := make(chan error, 1)
	go func() { sent <- send(c, out, size) }()
	err := receive(c, in, size)
	if errors.Is(err, errEarly) { // as in the kernel, only one call returns a reset: it was a write, or the end is wrong
		if ended := <-sent; ended != nil {
			return ended
		}
		return err
	}
	if err != nil {
		c.Close() // the write ends too
		<-sent
		return err
	}
	return <-sent
}

func send(c net.Conn, seed uint64, size int) error {
	from, b := contents(seed), make([]byte, 32<<10)
	for size > 0 {
		n := min(len(b), size)
		from.Read(b[:n])
		testutil.Renew(c)
		if _, err := c.Write(b[:n]); err != nil {
			return err
		}
		size -= n
	}
	return c.(*unet.TCPConn).CloseWrite()
}

func receive(c net.Conn, seed uint64, size int) error {
	b, want := make([]byte, 32<<10), make([]byte, 32<<10)
	from := contents(seed)
	for at := 0; ; {
		testutil.Renew(c)
		n, err := c.Read(b)
		from.Read(want[:n])
		if at += n; !bytes.Equal(b[:n], want[:n]) || at > size {
			return fmt.Errorf("%w: other bytes than were sent before byte %d of %d", errWrong, at, size)
		}
		if err == io.EOF && at < size {
			return fmt.Errorf("%w: after %d bytes of %d", errEarly, at, size)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// beEnd is a client or a server until the standard input ends.
func beEnd(role, socket string) error {
	// A connection whose other end dies while no unetd runs gets no RST, and a reader would not notice.
	keepAlive := net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 100}
	host, err := unet.Open(context.Background(), unet.Config{Socket: socket})
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	check := func(err error) {
		if err = explained(err); err != nil {
			select {
			case failed <- err:
			default:
			}
		}
	}
	ended := make(chan struct{})
	var end func()
	var mark atomic.Int64
	switch role {
	case "server":
		l, err := host.Listen(context.Background(), "tcp", at)
		if err != nil {
			return err
		}
		fmt.Println("listening")
		end = func() { l.Close() }
		go func() {
			defer close(ended)
			answer(l, keepAlive, check)
		}()
	case "client":
		var stop atomic.Bool
		end = func() { stop.Store(true) }
		go func() {
			defer close(ended)
			ask(host, keepAlive, &mark, &stop, check)
		}()
	}
	go func() {
		for s := bufio.NewScanner(os.Stdin); s.Scan(); {
			var n int64
			fmt.Sscan(s.Text(), &n)
			mark.Store(n)
		}
		end()
	}()
	select {
	case err := <-failed:
		return err
	case <-ended:
	}
	select {
	case err := <-failed:
		return err
	default:
		return host.Close()
	}
}

// answer serves connections until l is closed and the last one has ended.
func answer(l net.Listener, keepAlive net.KeepAliveConfig, check func(error)) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				check(err)
			}
			return
		}
		all.Go(func() {
			defer c.Close()
			check(c.(*unet.TCPConn).SetKeepAliveConfig(keepAlive))
			var header [headerLen]byte
			testutil.Renew(c)
			if _, err := io.ReadFull(c, header[:]); err != nil {
				check(err)
				return
			}
			seed := binary.BigEndian.Uint64(header[:])
			check(transfer(c, ^seed, seed, int(binary.BigEndian.Uint64(header[8:]))))
		})
	}
}

// ask exchanges streams with the server, four at a time. When one has come and gone by memory as a whole that was begun after a mark was set,
// it prints that the mark is reached.
func ask(host *unet.Host, keepAlive net.KeepAliveConfig, mark *atomic.Int64, stop *atomic.Bool, check func(error)) {
	byMemory := func() (sent, received uint64) {
		return counted(host, "path_frames_sent"), counted(host, "path_frames_received")
	}
	var all sync.WaitGroup
	defer all.Wait()
	var reached atomic.Int64
	for range 4 {
		all.Go(func() {
			for !stop.Load() {
				marked := mark.Load()
				sent, received := byMemory()
				err := oneStream(host, keepAlive)
				check(err)
				s, r := byMemory()
				if was := reached.Load(); err == nil && s > sent && r > received && was < marked && reached.CompareAndSwap(was, marked) {
					fmt.Printf("reached %d.\n", marked)
				}
				if err != nil {
					time.Sleep(time.Millisecond) // nobody listens
				}
			}
		})
	}
}

// oneStream exchanges one stream each way on a new connection.
func oneStream(host *unet.Host, keepAlive net.KeepAliveConfig) error {
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Limit)
	defer cancel()
	c, err := host.DialContext(ctx, "tcp", at)
	if err != nil {
		return err
	}
	seed, size := rand.Uint64(), 1+rand.IntN(1<<(8+rand.IntN(14))) // up to 2 MiB
	header := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, seed), uint64(size))
	testutil.Renew(c)
	if err = c.(*unet.TCPConn).SetKeepAliveConfig(keepAlive); err == nil {
		_, err = c.Write(header)
	}
	if err != nil {
		c.Close()
		return err
	}
	return transfer(c, seed, ^seed, size)
}
