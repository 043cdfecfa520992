package service

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"

	"github.com/quic-go/quic-go"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/load"
	"github.com/unet-go/unet/quicconn"
)

const quicProtocol = "echo" // that both ends name in the TLS handshake

// listenQUIC opens a UDP socket that quic-go uses in full on both networks.
func listenQUIC(ctx context.Context, n unet.Network, address string) (net.PacketConn, error) {
	c, err := n.ListenPacket(ctx, "udp", address)
	if err != nil {
		return nil, err
	}
	socket, ok := c.(*unet.UDPConn)
	if !ok {
		return c, nil
	}
	wrapped, err := quicconn.New(socket)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return wrapped, nil
}

// quietQUIC turns off quic-go's warning about the receive buffer of the kernel: 64 bytes need none.
func quietQUIC() { os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true") }

// serveQUIC echoes 64 bytes at a time on each stream.
func serveQUIC(ctx context.Context, n unet.Network, address string, ready func(net.Addr)) error {
	quietQUIC()
	c, err := certificate()
	if err != nil {
		return err
	}
	socket, err := listenQUIC(ctx, n, address)
	if err != nil {
		return err
	}
	defer socket.Close()
	t := &quic.Transport{Conn: socket}
	defer t.Close()
	l, err := t.Listen(&tls.Config{Certificates: []tls.Certificate{c}, NextProtos: []string{quicProtocol}}, nil)
	if err != nil {
		return err
	}
	ready(socket.LocalAddr())
	for {
		conn, err := l.Accept(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		go func() {
			s, err := conn.AcceptStream(ctx)
			if err != nil {
				return // the client has closed the connection
			}
			for b := make([]byte, len(message)); ; {
				if _, err := io.ReadFull(s, b); err != nil {
					return
				}
				if _, err := s.Write(b); err != nil {
					return
				}
			}
		}()
	}
}

// quicStream is a stream with its connection and its socket.
type quicStream struct {
	stream
	conn      *quic.Conn
	transport *quic.Transport
	socket    net.PacketConn
}

// dialQUIC opens a connection on a socket of its own, as quic.DialAddr does, with one stream.
func dialQUIC(ctx context.Context, n unet.Network, address string) (_ load.Conn, err error) {
	quietQUIC()
	to, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, err
	}
	q := quicStream{}
	if q.socket, err = listenQUIC(ctx, n, ":0"); err != nil {
		return nil, err
	}
	q.transport = &quic.Transport{Conn: q.socket}
	defer func() {
		if err != nil {
			err = errors.Join(err, q.transport.Close(), q.socket.Close())
		}
	}()
	cfg := unverified()
	cfg.NextProtos = []string{quicProtocol}
	if q.conn, err = q.transport.Dial(ctx, to, cfg, nil); err != nil {
		return nil, err
	}
	s, err := q.conn.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	q.stream = newStream(s)
	return q, nil
}

func (q quicStream) Close() error {
	return errors.Join(q.conn.CloseWithError(0, ""), q.transport.Close(), q.socket.Close())
}
