package stack

import (
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/udp"
	"github.com/unet-go/unet/wire"
)

// payloadOffset is where the payload stands in a frame that is sent.
const payloadOffset = headersLen + wire.UDPHeaderLen

// Send sends b to the peer of a connected socket. It waits while the link takes
// no more, until the write deadline, and returns ENOBUFS if that lasts for long.
// It does not wait to learn where the peer is: the datagram is held meanwhile,
// and if the peer cannot be found the next call returns EHOSTUNREACH. A datagram that
// the link has queued is sent, or will be: if the link takes it no further, that is the
// error of the next send, of which nothing is queued.
func (c *UDPSocket) Send(b []byte) error {
	s := c.stack
	s.mu.Lock()
	err := c.send(b, c.udp.Remote())
	if s.unflushed {
		s.flush()
	}
	s.mu.Unlock()
	return err
}

// SendTo sends b to an address, which on a connected socket is EISCONN. It waits
// as Send does, and for the link only. If the address cannot be found, which
// this call cannot know yet, sends to it return EHOSTUNREACH for a second.
func (c *UDPSocket) SendTo(b []byte, to netip.AddrPort) error {
	s := c.stack
	dst, err := c.destination(to)
	if err != nil {
		return err
	}
	s.mu.Lock()
	err = c.send(b, dst)
	if s.unflushed {
		s.flush()
	}
	s.mu.Unlock()
	return err
}

// SendBatch sends messages with one kick. It returns how many were sent: all,
// unless there is an error.
func (c *UDPSocket) SendBatch(msgs []UDPMessage) (n int, err error) {
	s := c.stack
	s.mu.Lock()
	for ; n < len(msgs) && err == nil; n++ {
		dst := c.udp.Remote()
		if m := &msgs[n]; m.Addr.IsValid() {
			dst, err = c.destination(m.Addr)
		}
		if err == nil {
			err = c.send(msgs[n].Buf, dst)
		}
		if err != nil {
			break
		}
	}
	if s.unflushed {
		s.flush()
	}
	s.mu.Unlock()
	return n, err
}

func (c *UDPSocket) destination(to netip.AddrPort) (udp.AddrPort, error) {
	dst, ok := wire.AddrPortFrom(to)
	switch {
	case c.udp.Connected():
		return dst, syscall.EISCONN
	case !ok:
		return dst, syscall.EAFNOSUPPORT
	case dst.Port == 0:
		return dst, syscall.EINVAL
	case dst.Addr == [4]byte{}:
		dst.Addr = loopback
	}
	return dst, nil
}

// send queues one datagram; the caller flushes. mu is held, as in all that
// follows, but may be released meanwhile.
func (c *UDPSocket) send(b []byte, to udp.AddrPort) error {
	s := c.stack
	r := c.route
	if c.sendSlow || r == nil || r.dst != to.Addr || r.state != routeReady {
		var err error
		if r, err = c.prepare(to); err != nil {
			return err
		}
		if r == nil {
			return c.loopBack(b, to)
		}
	}
	if len(b) > r.maxPayload {
		return syscall.EMSGSIZE
	}
	f, ok := s.alloc(payloadOffset + len(b))
	if !ok {
		var err error
		if f, err = c.allocWait(payloadOffset + len(b)); err != nil {
			return err
		}
	}
	if payloadOffset+len(b) > len(f.Data) {
		s.link.Release(f)
		return syscall.EMSGSIZE
	}
	n, err := c.udp.Emit(f.Data[headersLen:], s.addr, to, b)
	if err != nil {
		s.link.Release(f)
		return err
	}
	f.Data = f.Data[:headersLen+n]
	if err := c.sendFrame(r, f); err != nil {
		s.link.Release(f)
		return err
	}
	return nil
}

// sendFrame completes the headers of a frame with a UDP datagram. It takes the
// frame unless it fails.
func (c *UDPSocket) sendFrame(r *route, f Frame) error {
	s := c.stack
	if r.state != routeReady {
		return c.sendUnready(r.dst, f)
	}
	r.headers.put(f.Data, wire.ProtocolUDP, len(f.Data)-headersLen)
	r.sent++
	if !s.link.Send(f) {
		if err := c.sendWait(f); err != nil {
			return err
		}
	}
	s.count[framesSent]++
	s.unflushed = true
	c.udp.CountSent()
	return nil
}

// sendUnready is sendFrame for a route that is still to be resolved, or that has
// changed while there was no frame to be had.
func (c *UDPSocket) sendUnready(dst [4]byte, f Frame) error {
	s := c.stack
	r, err := s.usableRoute(dst)
	if err != nil {
		return err
	}
	if len(f.Data)-payloadOffset > r.maxPayload {
		return syscall.EMSGSIZE
	}
	if r.state == routeReady {
		return c.sendFrame(r, f)
	}
	r.headers.put(f.Data, wire.ProtocolUDP, len(f.Data)-headersLen)
	r.sent++
	s.hold(r, f, c)
	return nil
}

// prepare does all that stands before a send and is not always there: errors,
// the deadline, finding the route. A nil route means a destination within the
// stack. It waits for nothing.
func (c *UDPSocket) prepare(to udp.AddrPort) (*route, error) {
	if err := c.sendTrouble(); err != nil {
		return nil, err
	}
	if to.Addr == [4]byte{} {
		return nil, syscall.EDESTADDRREQ
	}
	if c.isLoopBack(to) {
		return nil, nil
	}
	if err := c.stack.unsendable(to.Addr); err != nil {
		return nil, err
	}
	if c.stack.kickErr != nil {
		if err := c.stack.flush(); err != nil {
			return nil, err
		}
	}
	r, err := c.stack.usableRoute(to.Addr)
	if err != nil {
		return nil, err
	}
	c.route = r
	return r, nil
}

func (c *UDPSocket) sendTrouble() error {
	if err := c.trouble(); err != nil {
		return err
	}
	if err := c.stack.broken; err != nil {
		return err
	}
	if c.writeDeadline != never && c.stack.readClock() >= c.writeDeadline {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// How long a send waits for a link that takes nothing.
const (
	yieldsBeforeSleep = 64
	sendPause         = 50 * time.Microsecond
	sendPatience      = second
)

// allocWait gets a frame when there is none at first. If the link has none to
// give back, those who wait for a route give way.
func (c *UDPSocket) allocWait(n int) (f Frame, err error) {
	s := c.stack
	tries := 0
	err = c.retry(func() (ok bool) {
		f, ok = s.alloc(n)
		if tries++; !ok && tries > yieldsBeforeSleep && len(s.held) > 0 {
			s.dropHeld(0)
			f, ok = s.alloc(n)
		}
		return ok
	})
	return f, err
}

// sendWait queues f when there is no room at first. f stays the caller's if it
// fails.
func (c *UDPSocket) sendWait(f Frame) error {
	s := c.stack
	return c.retry(func() bool { return s.link.Send(f) })
}

// retry tries again while the link moves on. If try fails for sendPatience the
// link is stuck: ENOBUFS.
func (c *UDPSocket) retry(try func() bool) error {
	s := c.stack
	s.count[sendBlocked]++
	s.retrying++
	err := c.retryUntil(s.readClock()+sendPatience, try)
	if s.retrying--; s.closed {
		s.noteLeft()
	}
	return err
}

func (c *UDPSocket) retryUntil(giveUp instant, try func() bool) error {
	s := c.stack
	for i := 0; ; i++ {
		if err := s.flush(); err != nil {
			return err
		}
		s.input()
		if try() {
			return nil
		}
		if s.readClock() >= giveUp {
			return syscall.ENOBUFS
		}
		s.mu.Unlock()
		if i < yieldsBeforeSleep {
			runtime.Gosched()
		} else {
			time.Sleep(sendPause)
		}
		s.mu.Lock()
		if err := c.sendTrouble(); err != nil {
			return err
		}
		if s.down != 0 {
			return s.down
		}
	}
}

// isLoopBack reports whether a datagram to that address stays in the stack. If
// our address is shared, a port that is not ours may be another endpoint's.
func (c *UDPSocket) isLoopBack(to udp.AddrPort) bool {
	s := c.stack
	if to.Addr[0] == 127 {
		return true
	}
	return to.Addr == s.addr &&
		(s.wholeAddress || s.udp.Lookup(c.loopBackSource(to), to) != nil)
}

// loopBackSource is whom a datagram to an address of our own comes from: from
// 127.0.0.1 to 127.0.0.1, and from our address to our address.
func (c *UDPSocket) loopBackSource(to udp.AddrPort) udp.AddrPort {
	return udp.AddrPort{Addr: to.Addr, Port: c.udp.Local().Port}
}

// loopBack hands a datagram to a socket of this stack: no frame, no link. The
// host's own loopback network cannot be reached from here: what is for it and
// not for one of our sockets is not refused by anybody, it has no way to go.
func (c *UDPSocket) loopBack(b []byte, to udp.AddrPort) error {
	s := c.stack
	if len(b) > wire.MaxUDPPayload {
		return syscall.EMSGSIZE
	}
	from := c.loopBackSource(to)
	if to.Addr[0] == 127 && s.udp.Lookup(from, to) == nil {
		return syscall.ENETUNREACH
	}
	data := make([]byte, wire.UDPHeaderLen+len(b))
	if _, err := c.udp.Emit(data, from.Addr, to, b); err != nil {
		return err
	}
	sock, n, verdict := s.udp.Process(&udp.Inbound{Src: from.Addr, Dst: to.Addr, Data: data, Heap: true})
	switch {
	case verdict == udp.NoSocket:
		if c.udp.Connected() {
			c.setError(syscall.ECONNREFUSED)
		}
		return nil
	case n > 0:
		s.signal(&sock.Owner.(*UDPSocket).readable)
	}
	s.count[loopedBack]++
	c.udp.CountSent()
	return nil
}
