package transport

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
)

// goUDP is a connected UDP socket as Go programs use it: blocking calls, the
// runtime's poller below them.
type goUDP struct {
	*net.UDPConn
	buf  []byte
	last []byte
}

func openGoUDP(_ context.Context, j workload.Job) (workload.Conn, error) {
	c, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(j.Local.UDP), net.UDPAddrFromAddrPort(j.Remote.UDP))
	if err != nil {
		return nil, err
	}
	_ = c.SetReadBuffer(receiveBuffer) // if it fails the default stays
	return &goUDP{UDPConn: c, buf: make([]byte, maxMessage)}, nil
}

func (g *goUDP) Send(b []byte) error {
	for {
		_, err := g.Write(b)
		if !refused(err) {
			return err
		}
	}
}

func (g *goUDP) SendBatch(bs [][]byte) error { return sendEach(g, bs) }

func (g *goUDP) Recv() ([]byte, error) {
	for {
		n, err := g.Read(g.buf)
		if err == nil {
			g.last = g.buf[:n]
			return g.last, nil
		}
		if !refused(err) {
			return nil, err
		}
	}
}

func (g *goUDP) RecvBatch(bs [][]byte) (int, error) { return recvOne(g, bs) }
func (g *goUDP) Reply() error                       { return g.Send(g.last) }
func (g *goUDP) SetDeadline(t time.Time) error      { return g.SetReadDeadline(t) }

// openGoTCP is a TCP connection as Go programs use it.
func openGoTCP(ctx context.Context, j workload.Job) (workload.Conn, error) {
	if j.Role == workload.Server {
		l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(j.Local.UDP))
		if err != nil {
			return nil, err
		}
		return newStream(j, nil, func() (byteConn, error) { return l.AcceptTCP() }, l.Close), nil
	}
	var c net.Conn
	if err := dialRetry(ctx, func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, "tcp4", j.Remote.UDP.String())
		return err
	}); err != nil {
		return nil, err
	}
	return newStream(j, c, nil, func() error { return nil }), nil
}

// refused reports whether err is that of an earlier message, to a peer that had no socket
// yet. The call that returned it has done nothing and can be repeated.
func refused(err error) bool { return err != nil && errors.Is(err, syscall.ECONNREFUSED) }

// sendEach and recvOne are SendBatch and RecvBatch of transports without batches.

func sendEach(c workload.Conn, bs [][]byte) error {
	for _, b := range bs {
		if err := c.Send(b); err != nil {
			return err
		}
	}
	return nil
}

func recvOne(c workload.Conn, bs [][]byte) (int, error) {
	b, err := c.Recv()
	if err != nil {
		return 0, err
	}
	bs[0] = b
	return 1, nil
}

// goDialer and goListener are those of package net.
type goDialer struct {
	net.Dialer
	remote string
}

func dialGoTCP(_ context.Context, j workload.Job) (workload.Dialer, error) {
	return &goDialer{remote: j.Remote.UDP.String()}, nil
}

func (d *goDialer) Dial(ctx context.Context) (workload.Stream, error) {
	c, err := d.DialContext(ctx, "tcp4", d.remote)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

func (d *goDialer) Close() error { return nil }

type goListener struct{ *net.TCPListener }

func listenGoTCP(_ context.Context, j workload.Job) (workload.Listener, error) {
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(j.Local.UDP))
	if err != nil {
		return nil, err
	}
	return goListener{l}, nil
}

func (l goListener) Accept() (workload.Stream, error) {
	c, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return c, nil
}
