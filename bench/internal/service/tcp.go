package service

import (
	"context"
	"io"
	"net"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/load"
)

// serveTCP echoes 64 bytes at a time, with a goroutine for each connection.
func serveTCP(ctx context.Context, n unet.Network, address string, ready func(net.Addr)) error {
	return serveConns(ctx, n, address, ready, func(c net.Conn) {
		defer c.Close()
		for b := make([]byte, len(message)); ; {
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	})
}

// stream is an echo over a connection or a stream.
type stream struct {
	io.ReadWriteCloser
	answer []byte
}

func newStream(c io.ReadWriteCloser) stream { return stream{c, make([]byte, len(message))} }

func (s stream) Ask() error {
	if _, err := s.Write(message); err != nil {
		return err
	}
	if _, err := io.ReadFull(s, s.answer); err != nil {
		return err
	}
	return check(s.answer, message)
}

func dialTCP(ctx context.Context, n unet.Network, address string) (load.Conn, error) {
	c, err := n.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return newStream(c), nil
}
