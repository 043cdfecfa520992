package unet

import (
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/udp"
	"github.com/unet-go/unet/stack"
)

// UDPConn is a UDP socket in this process. It is a net.PacketConn and, when it
// was dialled, a net.Conn, and behaves as package net's: deadlines, addresses,
// truncation, net.ErrClosed, os.ErrDeadlineExceeded, and the errnos that arrive
// as ICMP. Datagrams longer than the route's MTU are EMSGSIZE: nothing is
// fragmented. Its methods may be called from any goroutine.
//
// Read, Write and their AddrPort forms do not allocate. ReadBatch and
// WriteBatch take one lock and one kick for many datagrams; Borrow and Reserve
// save the copy.
type UDPConn struct {
	sock          *stack.UDPSocket
	local, remote net.Addr
	close         func() error
}

var (
	_ net.PacketConn = (*UDPConn)(nil)
	_ net.Conn       = (*UDPConn)(nil)
)

// Message is one datagram of a batch.
type Message = stack.UDPMessage

// Datagram is a received datagram in the memory it came in.
type Datagram = stack.UDPDatagram

// Buffer is a frame to compose a datagram in.
type Buffer = stack.UDPBuffer

func newUDPConn(sock *stack.UDPSocket, unclaim func()) *UDPConn {
	c := &UDPConn{sock: sock, local: net.UDPAddrFromAddrPort(sock.LocalAddr())}
	if r := sock.RemoteAddr(); r.IsValid() {
		c.remote = net.UDPAddrFromAddrPort(r)
	}
	var once sync.Once
	c.close = func() error {
		err := net.ErrClosed
		once.Do(func() {
			if err = sock.Close(); err == nil {
				unclaim()
			}
		})
		return err
	}
	return c
}

// fail dresses an error of the socket as package net does; call is the system call
// that it would have made.
func (c *UDPConn) fail(op, call string, err error) error { return c.failTo(op, call, c.remote, err) }

// failTo is fail for a send to an address.
func (c *UDPConn) failTo(op, call string, to net.Addr, err error) error {
	return &net.OpError{Op: op, Net: "udp", Source: c.local, Addr: to, Err: sysError(call, err)}
}

// Read receives a datagram. What does not fit into b is lost.
func (c *UDPConn) Read(b []byte) (int, error) {
	n, err := c.sock.Recv(b)
	if err != nil {
		return 0, c.fail("read", "read", err)
	}
	return n, nil
}

// Write sends a datagram to the address that was dialled.
func (c *UDPConn) Write(b []byte) (int, error) {
	if err := c.sock.Send(b); err != nil {
		return 0, c.fail("write", "write", err)
	}
	return len(b), nil
}

// ReadFromUDPAddrPort receives a datagram and tells its sender.
func (c *UDPConn) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	n, from, err := c.sock.RecvFrom(b)
	if err != nil {
		return 0, netip.AddrPort{}, c.fail("read", "recvfrom", err)
	}
	return n, from, nil
}

// WriteToUDPAddrPort sends a datagram to an address.
func (c *UDPConn) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	err := c.sock.SendTo(b, to)
	switch {
	case err == nil:
		return len(b), nil
	case err == syscall.EISCONN:
		err = net.ErrWriteToConnected
	}
	return 0, c.failTo("write", "sendto", net.UDPAddrFromAddrPort(to), err)
}

// ReadFrom is ReadFromUDPAddrPort for net.PacketConn; the address is a
// *net.UDPAddr.
func (c *UDPConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := c.ReadFromUDPAddrPort(b)
	if err != nil {
		return 0, nil, err
	}
	return n, net.UDPAddrFromAddrPort(from), nil
}

// WriteTo is WriteToUDPAddrPort for net.PacketConn; addr is a *net.UDPAddr.
func (c *UDPConn) WriteTo(b []byte, addr net.Addr) (int, error) {
	a, ok := addr.(*net.UDPAddr)
	if !ok {
		return 0, &net.OpError{Op: "write", Net: "udp", Source: c.local, Addr: addr, Err: syscall.EINVAL}
	}
	return c.WriteToUDPAddrPort(b, a.AddrPort())
}

// ReadBatch waits for a datagram and then takes all that are there, up to
// len(msgs).
func (c *UDPConn) ReadBatch(msgs []Message) (int, error) {
	n, err := c.sock.RecvBatch(msgs)
	if err != nil {
		return n, c.fail("read", "read", err)
	}
	return n, nil
}

// WriteBatch sends datagrams with one kick. It returns how many were sent: all,
// unless there is an error.
func (c *UDPConn) WriteBatch(msgs []Message) (int, error) {
	n, err := c.sock.SendBatch(msgs)
	if err != nil {
		return n, c.fail("write", "write", err)
	}
	return n, nil
}

// Borrow waits for a datagram and lends it where it lies, without a copy. It
// must go back with Return, and holds a frame of the segment until then.
func (c *UDPConn) Borrow() (Datagram, error) {
	d, err := c.sock.Borrow()
	if err != nil {
		return d, c.fail("read", "read", err)
	}
	return d, nil
}

// Return gives a borrowed datagram back.
func (c *UDPConn) Return(d *Datagram) { c.sock.Return(d) }

// Reserve hands out memory to compose a datagram in. It must go to Commit, which
// sends it, or to Cancel.
func (c *UDPConn) Reserve() (Buffer, error) {
	b, err := c.sock.Reserve()
	if err != nil {
		return b, c.fail("write", "write", err)
	}
	return b, nil
}

// Commit sends the first n bytes of a reserved buffer, to the address that was
// dialled if to is the zero value. After an error the buffer is still the
// caller's.
func (c *UDPConn) Commit(b *Buffer, n int, to netip.AddrPort) error {
	if err := c.sock.Commit(b, n, to); err != nil {
		return c.fail("write", "write", err)
	}
	return nil
}

// Cancel gives a reserved buffer back unsent.
func (c *UDPConn) Cancel(b *Buffer) { c.sock.Cancel(b) }

// Close ends the socket and gives its port back, which other processes may have a moment
// later, when unetd has heard of it. Blocked calls return net.ErrClosed.
func (c *UDPConn) Close() error {
	if err := c.close(); err != nil {
		return c.fail("close", "close", err)
	}
	return nil
}

// LocalAddr is the address and port of the socket, a *net.UDPAddr.
func (c *UDPConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the address that was dialled, or nil.
func (c *UDPConn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets the read and the write deadline.
func (c *UDPConn) SetDeadline(t time.Time) error { return c.set(c.sock.SetDeadline(t)) }

// SetReadDeadline sets when reads, also blocked ones, fail with
// os.ErrDeadlineExceeded. Zero is never.
func (c *UDPConn) SetReadDeadline(t time.Time) error { return c.set(c.sock.SetReadDeadline(t)) }

// SetWriteDeadline sets the same for writes, which block only while the send
// queue is full.
func (c *UDPConn) SetWriteDeadline(t time.Time) error { return c.set(c.sock.SetWriteDeadline(t)) }

func (c *UDPConn) set(err error) error {
	if err != nil {
		return &net.OpError{Op: "set", Net: "udp", Addr: c.local, Err: err}
	}
	return nil
}

// Counters are what the socket has received and dropped.
func (c *UDPConn) Counters() udp.SocketCounters { return c.sock.Counters() }
