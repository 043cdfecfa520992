//go:build linux

// Package quicconn makes of a UDP socket of a host what quic-go expects of a *net.UDPConn, its
// OOBCapablePacketConn: ECN, several packets in one call (UDP_SEGMENT), and packets that
// are not fragmented, by which it finds the path's MTU. Without it quic-go uses ReadFrom and
// WriteTo, and none of these.
//
//	conn, err := host.ListenUDP(ctx, netip.AddrPortFrom(host.Addr(), 443))
//	wrapped, err := quicconn.New(conn)
//	listener, err := quic.Listen(wrapped, tlsConfig, nil)
package quicconn

import (
	"os"
	"syscall"

	"golang.org/x/net/ipv4"

	"github.com/unet-go/unet/stack"
)

// Conn is a socket with the methods that quic-go looks for.
type Conn struct {
	*stack.UDPConn
	options *os.File
}

// New wraps a socket. It opens a UDP socket of the kernel, which is bound to nothing and
// carries no packet: quic-go sets its options there, all of which the host's socket has
// anyway. If the kernel bounds receive buffers to less than 7 MiB (net.core.rmem_max), quic-go
// logs a warning about that socket, which does not concern this one; the environment variable
// QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING turns it off.
func New(c *stack.UDPConn) (*Conn, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	c.SetDontFragment(true)
	return &Conn{UDPConn: c, options: os.NewFile(uintptr(fd), "options of a UDP socket")}, nil
}

// SyscallConn is the socket for options; see New. Nothing can be read or written there.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.options.SyscallConn() }

// Close closes the socket.
func (c *Conn) Close() error {
	c.options.Close()
	return c.UDPConn.Close()
}

// ReadBatch waits for a datagram, and returns it with its control messages in ms[0], as
// ReadMsgUDP does. quic-go would read from SyscallConn without it. No flag has a meaning here: the
// error for any is EINVAL.
func (c *Conn) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	if flags != 0 {
		return 0, syscall.EINVAL
	}
	if len(ms) == 0 {
		return 0, nil
	}
	m := &ms[0]
	n, oobn, got, from, err := c.ReadMsgUDP(m.Buffers[0], m.OOB)
	if err != nil {
		return 0, err
	}
	m.N, m.NN, m.Flags, m.Addr = n, oobn, got, from
	return 1, nil
}
