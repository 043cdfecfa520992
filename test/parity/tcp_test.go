package parity

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"
)

// closedError is a fact about a call on a closed connection.
func closedError(name string, call func(c tcpConn) error) fact {
	return fact{name: name + " on a closed connection", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		w.must(c.Close())
		return describe(call(c))
	}}
}

// reset is a connection whose peer has sent a RST, which has arrived.
func (w *hostPair) reset() tcpConn {
	c, s := w.tcp()
	w.must(s.SetLinger(0))
	w.must(s.Close())
	return c
}

// fillSendBuffer writes until the send buffer of c is full. It returns the error of the last write.
func fillSendBuffer(c net.Conn) (n int, err error) {
	if err := c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		return 0, err
	}
	for {
		k, err := c.Write(make([]byte, 1<<20))
		if n += k; err != nil {
			return n, err
		}
	}
}

// failingReadWriter fails at each Read and Write.
type failingReadWriter struct{}

var errFails = errors.New("fails")

func (failingReadWriter) Read([]byte) (int, error)  { return 0, errFails }
func (failingReadWriter) Write([]byte) (int, error) { return 0, errFails }

var tcpFacts = []fact{
	closedError("read", func(c tcpConn) error { _, err := c.Read(make([]byte, 1)); return err }),
	closedError("read of no bytes", func(c tcpConn) error { _, err := c.Read(nil); return err }),
	closedError("write", func(c tcpConn) error { _, err := c.Write(make([]byte, 1)); return err }),
	closedError("write of no bytes", func(c tcpConn) error { _, err := c.Write(nil); return err }),
	closedError("close", func(c tcpConn) error { return c.Close() }),
	closedError("CloseRead", func(c tcpConn) error { return c.CloseRead() }),
	closedError("CloseWrite", func(c tcpConn) error { return c.CloseWrite() }),
	closedError("SetDeadline", func(c tcpConn) error { return c.SetDeadline(past) }),
	closedError("SetReadDeadline", func(c tcpConn) error { return c.SetReadDeadline(past) }),
	closedError("SetWriteDeadline", func(c tcpConn) error { return c.SetWriteDeadline(past) }),
	closedError("SetLinger", func(c tcpConn) error { return c.SetLinger(1) }),
	closedError("SetNoDelay", func(c tcpConn) error { return c.SetNoDelay(true) }),
	closedError("SetKeepAlive", func(c tcpConn) error { return c.SetKeepAlive(true) }),
	closedError("SetKeepAlivePeriod", func(c tcpConn) error { return c.SetKeepAlivePeriod(time.Second) }),
	closedError("SetKeepAliveConfig", func(c tcpConn) error { return c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true}) }),
	closedError("SetReadBuffer", func(c tcpConn) error { return c.SetReadBuffer(10000) }),
	closedError("SetWriteBuffer", func(c tcpConn) error { return c.SetWriteBuffer(10000) }),
	closedError("ReadFrom", func(c tcpConn) error { _, err := c.ReadFrom(strings.NewReader("x")); return err }),
	closedError("WriteTo", func(c tcpConn) error { _, err := c.WriteTo(io.Discard); return err }),
	closedError("addresses", func(c tcpConn) error {
		return errors.New(normalized(c.LocalAddr().String() + " " + c.RemoteAddr().String()))
	}),

	{name: "read of no bytes", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		n, err := c.Read(nil)
		return fmt.Sprint(n, err)
	}},
	{name: "write of no bytes", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		n, err := c.Write(nil)
		return fmt.Sprint(n, err)
	}},
	{name: "read of no bytes at the end", observe: func(w *hostPair) string {
		c, s := w.tcp()
		w.must(s.Close())
		_, err := c.Read(make([]byte, 1))
		n, second := c.Read(nil)
		return fmt.Sprint(err, n, second)
	}},
	{name: "the end is io.EOF itself, and stays", observe: func(w *hostPair) string {
		c, s := w.tcp()
		w.must(s.Close())
		_, first := c.Read(make([]byte, 1))
		_, second := c.Read(make([]byte, 1))
		return fmt.Sprint(first == io.EOF, second == io.EOF)
	}},
	{name: "data before the end, without it", observe: func(w *hostPair) string {
		c, s := w.tcp()
		_, err := s.Write([]byte("last"))
		w.must(err)
		w.must(s.Close())
		return read(c, 100)
	}},
	{name: "half close: the peer reads the end and answers", observe: func(w *hostPair) string {
		c, s := w.tcp()
		_, err := c.Write([]byte("question"))
		w.must(err)
		w.must(c.CloseWrite())
		question, err := io.ReadAll(s)
		w.must(err)
		_, err = s.Write([]byte("answer"))
		w.must(err)
		w.must(s.Close())
		answer, err := io.ReadAll(c)
		return fmt.Sprintf("%s %s %v", question, answer, err)
	}},
	{name: "write after CloseWrite", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		w.must(c.CloseWrite())
		_, err := c.Write([]byte("x"))
		return describe(err)
	}},
	{name: "CloseWrite twice", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		w.must(c.CloseWrite())
		return describe(c.CloseWrite())
	}},
	{name: "CloseRead twice", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		w.must(c.CloseRead())
		return describe(c.CloseRead())
	}},
	{name: "read after CloseRead", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		w.must(c.CloseRead())
		_, err := c.Read(make([]byte, 1))
		return describe(err)
	}},
	{name: "write after CloseRead", observe: func(w *hostPair) string {
		c, s := w.tcp()
		w.must(c.CloseRead())
		_, err := c.Write([]byte("x"))
		w.must(err)
		return read(s, 2)
	}},
	{name: "CloseRead while reading", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		return w.endWhileBlocked(func() error { _, err := c.Read(make([]byte, 1)); return err }, c.CloseRead)
	}},
	{name: "CloseWrite at both ends", observe: func(w *hostPair) string {
		c, s := w.tcp()
		w.must(c.CloseWrite())
		w.must(s.CloseWrite())
		_, err1 := c.Read(make([]byte, 1))
		_, err2 := s.Read(make([]byte, 1))
		return fmt.Sprint(err1, err2)
	}},
	{name: "close while reading", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		return w.endWhileBlocked(func() error { _, err := c.Read(make([]byte, 1)); return err }, c.Close)
	}},
	{name: "close while writing", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		return w.endWhileBlocked(func() error {
			for {
				if _, err := c.Write(make([]byte, 1<<20)); err != nil {
					return err
				}
			}
		}, c.Close)
	}},
	{name: "a deadline that has passed while reading", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		return w.endWhileBlocked(func() error { _, err := c.Read(make([]byte, 1)); return err }, func() error { return c.SetReadDeadline(past) })
	}},
	{name: "a deadline that has passed while writing", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		return w.endWhileBlocked(func() error {
			for {
				if _, err := c.Write(make([]byte, 1<<20)); err != nil {
					return err
				}
			}
		}, func() error { return c.SetWriteDeadline(past) })
	}},
	{name: "read after the deadline, with data", observe: func(w *hostPair) string {
		c, s := w.tcp()
		_, err := s.Write([]byte("x"))
		w.must(err)
		_, err = io.ReadFull(c, make([]byte, 1))
		w.must(err)
		_, err = s.Write([]byte("y"))
		w.must(err)
		w.must(c.SetReadDeadline(past))
		_, err = c.Read(make([]byte, 1))
		return describe(err)
	}},
	{name: "read of no bytes after the deadline", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		w.must(c.SetReadDeadline(past))
		_, err := c.Read(nil)
		return describe(err)
	}},
	{name: "write after the deadline", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		w.must(c.SetWriteDeadline(past))
		n, err := c.Write([]byte("x"))
		return fmt.Sprint(n, describe(err))
	}},
	{name: "the read deadline does not concern writes", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		w.must(c.SetReadDeadline(past))
		n, err := c.Write([]byte("x"))
		return fmt.Sprint(n, err)
	}},
	{name: "a deadline that was taken back", observe: func(w *hostPair) string {
		c, s := w.tcp()
		w.must(c.SetDeadline(past))
		_, err := c.Read(make([]byte, 1))
		w.must(c.SetDeadline(time.Time{}))
		_, werr := s.Write([]byte("x"))
		w.must(werr)
		n, again := c.Read(make([]byte, 1))
		return fmt.Sprint(describe(err), n, again)
	}},
	{name: "a write that ends at its deadline returns the bytes written", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		n, err := fillSendBuffer(c)
		return fmt.Sprint(n > 0, describe(err))
	}},
	{name: "linger 0: the peer reads a reset", observe: func(w *hostPair) string {
		_, err := w.reset().Read(make([]byte, 1))
		return describe(err)
	}},
	{name: "reads after a reset", observe: func(w *hostPair) string {
		c := w.reset()
		_, first := c.Read(make([]byte, 1))
		_, second := c.Read(make([]byte, 1))
		return describe(first) + " / " + describe(second)
	}},
	{name: "writes after a reset that was read", observe: func(w *hostPair) string {
		c := w.reset()
		_, err := c.Read(make([]byte, 1))
		_, first := c.Write([]byte("x"))
		_, second := c.Write([]byte("x"))
		return describe(err) + " / " + describe(first) + " / " + describe(second)
	}},
	{name: "writes after a reset that was not read", observe: func(w *hostPair) string {
		c := w.reset()
		var errs []string
		for len(errs) < 3 { // the RST may arrive after some writes
			if _, err := c.Write([]byte("x")); err != nil || len(errs) > 0 {
				errs = append(errs, describe(err))
			}
		}
		_, err := c.Read(make([]byte, 1))
		return strings.Join(errs, " / ") + " / " + describe(err)
	}},
	{name: "CloseWrite after a reset", observe: func(w *hostPair) string {
		c := w.reset()
		_, err := c.Read(make([]byte, 1))
		return describe(err) + " / " + describe(c.CloseWrite())
	}},
	{name: "CloseRead after a reset", observe: func(w *hostPair) string {
		c := w.reset()
		_, err := c.Read(make([]byte, 1))
		return describe(err) + " / " + describe(c.CloseRead())
	}},
	{name: "close after a reset", observe: func(w *hostPair) string {
		c := w.reset()
		_, err := c.Read(make([]byte, 1))
		return describe(err) + " / " + describe(c.Close())
	}},
	{name: "deadlines after a reset", observe: func(w *hostPair) string {
		c := w.reset()
		_, err := c.Read(make([]byte, 1))
		return describe(err) + " / " + describe(c.SetDeadline(past))
	}},
	{name: "close with unread data resets", observe: func(w *hostPair) string {
		c, s := w.tcp()
		_, err := c.Write([]byte("unread"))
		w.must(err)
		_, err = io.ReadFull(s, make([]byte, 1))
		w.must(err)
		w.must(s.Close())
		_, err = c.Read(make([]byte, 1))
		return describe(err)
	}},
	{name: "write to a peer that has closed", observe: func(w *hostPair) string {
		c, s := w.tcp()
		w.must(s.Close())
		_, err := c.Read(make([]byte, 1))
		if err != io.EOF {
			return describe(err)
		}
		for err == io.EOF || err == nil { // the first is answered by a RST
			_, err = c.Write([]byte("x"))
		}
		_, second := c.Write([]byte("x"))
		// The first error depends on whether the RST has been received.
		return fmt.Sprint(errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET), describe(second))
	}},
	{name: "linger of seconds waits for the peer", observe: func(w *hostPair) string {
		c, s := w.tcp()
		w.must(c.SetLinger(60))
		go io.Copy(io.Discard, s)
		_, err := c.Write(make([]byte, 100000))
		w.must(err)
		return describe(c.Close())
	}},
	{name: "options", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		return fmt.Sprint(c.SetNoDelay(false), c.SetKeepAlive(false), c.SetKeepAlivePeriod(time.Minute), c.SetLinger(-1), c.SetReadBuffer(1), c.SetWriteBuffer(1),
			c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3}))
	}},
	{name: "a keepalive that is too long", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		return describe(c.SetKeepAlivePeriod(40000 * time.Second))
	}},
	{name: "a small receive buffer loses nothing", observe: func(w *hostPair) string {
		c, s := w.tcp()
		w.must(s.SetReadBuffer(1))
		w.must(c.SetWriteBuffer(1))
		go func() {
			c.Write(testBytes(100_000))
			c.Close()
		}()
		b, err := io.ReadAll(s)
		return fmt.Sprint(bytes.Equal(b, testBytes(100_000)), err)
	}},
	{name: "ReadFrom", observe: func(w *hostPair) string {
		c, s := w.tcp()
		go func() {
			c.ReadFrom(bytes.NewReader(testBytes(300_000)))
			c.Close()
		}()
		b, err := io.ReadAll(s)
		return fmt.Sprint(bytes.Equal(b, testBytes(300_000)), err)
	}},
	{name: "ReadFrom a reader that fails", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		n, err := c.ReadFrom(failingReadWriter{})
		return fmt.Sprint(n, describe(err), errors.Is(err, errFails))
	}},
	{name: "ReadFrom after CloseWrite", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		w.must(c.CloseWrite())
		n, err := c.ReadFrom(struct{ io.Reader }{strings.NewReader("x")})
		return fmt.Sprint(n, describe(err))
	}},
	{name: "WriteTo", observe: func(w *hostPair) string {
		c, s := w.tcp()
		go func() {
			c.Write(testBytes(300_000))
			c.Close()
		}()
		var b bytes.Buffer
		n, err := s.WriteTo(&b)
		return fmt.Sprint(n, err, bytes.Equal(b.Bytes(), testBytes(300_000)))
	}},
	{name: "WriteTo a writer that fails", observe: func(w *hostPair) string {
		c, s := w.tcp()
		_, err := c.Write([]byte("x"))
		w.must(err)
		n, err := s.WriteTo(failingReadWriter{})
		return fmt.Sprint(n, describe(err), errors.Is(err, errFails))
	}},
	{name: "WriteTo after a reset", observe: func(w *hostPair) string {
		n, err := w.reset().WriteTo(io.Discard)
		return fmt.Sprint(n, describe(err))
	}},
	{name: "io.Copy between connections", observe: func(w *hostPair) string {
		c1, s1 := w.tcp()
		c2, s2 := w.tcp()
		go func() {
			c1.Write(testBytes(300_000))
			c1.Close()
		}()
		go func() {
			io.Copy(c2, s1)
			c2.Close()
		}()
		b, err := io.ReadAll(s2)
		return fmt.Sprint(bytes.Equal(b, testBytes(300_000)), err)
	}},
	{name: "net.Buffers", observe: func(w *hostPair) string {
		c, s := w.tcp()
		v := net.Buffers{[]byte("a"), nil, []byte("bc"), testBytes(100_000)}
		go func() {
			v.WriteTo(c)
			c.Close()
		}()
		b, err := io.ReadAll(s)
		return fmt.Sprint(bytes.Equal(b, append([]byte("abc"), testBytes(100_000)...)), err)
	}},
	{name: "net.Buffers after CloseWrite", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		w.must(c.CloseWrite())
		v := net.Buffers{[]byte("a"), []byte("b")}
		n, err := v.WriteTo(c)
		return fmt.Sprint(n, len(v), errors.Is(err, syscall.EPIPE), strings.Contains(err.Error(), "writev"))
	}, unet: "0 2 true false", why: "net.Buffers.WriteTo knows its gathering interface by a method that is not exported, and calls Write here; TCPConn.WriteBuffers gathers"},
	{name: "SyscallConn", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		_, ok := c.(syscall.Conn)
		return fmt.Sprint(ok)
	}, unet: "false", why: "there is no descriptor; libraries that ask for one go on without it if the method is missing, and take its error for a broken connection"},
}
