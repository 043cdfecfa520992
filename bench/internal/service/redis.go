package service

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/load"
)

// redis is a client of RESP2 (redis.io/docs/latest/develop/reference/protocol-spec) that gets one key.
type redis struct {
	net.Conn
	in     *bufio.Reader
	answer []byte
}

// Requests and the beginnings of replies of RESP2.
var (
	setRequest = fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$%d\r\n%s\r\n", len(message), message)
	getRequest = []byte("*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n")
	setReply   = "+OK\r\n"
	getReply   = fmt.Sprintf("$%d\r\n", len(message))
)

// dialRedis sets the key.
func dialRedis(ctx context.Context, n unet.Network, address string) (load.Conn, error) {
	c, err := n.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	r := &redis{c, bufio.NewReader(c), make([]byte, len(message)+len("\r\n"))}
	if err := r.request(setRequest, setReply); err != nil {
		c.Close()
		return nil, fmt.Errorf("SET: %w", err)
	}
	return r, nil
}

// request sends a request and reads the first line of its reply.
func (r *redis) request(request []byte, want string) error {
	if _, err := r.Write(request); err != nil {
		return err
	}
	line, err := r.in.ReadSlice('\n')
	if err == nil && string(line) != want {
		err = fmt.Errorf("reply %q, want %q", line, want)
	}
	return err
}

func (r *redis) Ask() error {
	if err := r.request(getRequest, getReply); err != nil {
		return err
	}
	if _, err := io.ReadFull(r.in, r.answer); err != nil {
		return err
	}
	return check(r.answer[:len(message)], message)
}
