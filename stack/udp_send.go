package stack

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/unet-go/unet/proto/udp"
	"github.com/unet-go/unet/wire"
)

// UDPBuffer is a frame in which a datagram is composed.
type UDPBuffer struct {
	Payload []byte // the room for the payload; what Send sends is its start

	frame  Frame
	uplink *uplink // of the frame
	conn   *UDPConn
}

// How long a send waits for a link that takes nothing.
const (
	yieldsBeforeSleep = 64
	sendTimeout       = second
)

// Write sends a datagram to the address that was dialled.
func (c *UDPConn) Write(b []byte) (int, error) {
	if err := c.send(c.udp.Remote(), b, nil); err != nil {
		return 0, c.fail("write", "write", c.remote, err)
	}
	return len(b), nil
}

// WriteToUDPAddrPort sends a datagram to an address.
func (c *UDPConn) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	dst, err := c.destination(to)
	switch from := c.stack.groupSource(to.Addr()); {
	case err != nil:
	case from != wire.Addr{}:
		err = c.sendMarked(dst, b, marks{local: from})
	default:
		err = c.send(dst, b, nil)
	}
	if err == nil {
		return len(b), nil
	}
	if !to.IsValid() {
		return 0, c.fail("write", "", nil, err)
	}
	return 0, c.fail("write", "sendto", net.UDPAddrFromAddrPort(to), err)
}

// WriteTo is WriteToUDPAddrPort for net.PacketConn; addr is a *net.UDPAddr.
func (c *UDPConn) WriteTo(b []byte, addr net.Addr) (int, error) {
	a, ok := addr.(*net.UDPAddr)
	if !ok {
		return 0, &net.OpError{Op: "write", Net: c.network, Source: c.local, Addr: addr, Err: syscall.EINVAL}
	}
	return c.WriteToUDP(b, a)
}

// WriteBatch sends datagrams with one kick. It returns how many were sent: all,
// unless there is an error.
func (c *UDPConn) WriteBatch(msgs []UDPMessage) (n int, err error) {
	s := c.stack
	s.mu.Lock()
	for ; n < len(msgs); n++ {
		var dst udp.AddrPort
		if dst, err = c.destinationOrRemote(msgs[n].Addr); err != nil {
			break
		}
		if err = c.queue(dst, msgs[n].Buf, nil); err != nil {
			err = c.retry(err, func() error { return c.queue(dst, msgs[n].Buf, nil) }) // +checklocksignore: retry calls this with mu held
		}
		if err != nil {
			break
		}
	}
	if s.unflushed {
		s.flush()
	}
	s.mu.Unlock()
	if err != nil {
		err = c.fail("write", "write", c.remote, err)
	}
	return n, err
}

// Reserve hands out a frame to compose a datagram in. It must go to Send or
// Cancel, and counts against the stack's frame quota until then. If the quota is used up the
// error is ENOBUFS. Like a send it waits while no frame is free.
func (c *UDPConn) Reserve() (UDPBuffer, error) {
	f, u, err := c.reserve()
	if err != nil {
		return UDPBuffer{}, c.fail("write", "write", c.remote, err)
	}
	end := min(len(f.Data), wire.EthernetHeaderLen+u.mtu)
	// If the family of the destination is another one, queue moves the payload.
	head := headersLen(c.udp.Remote().Addr)
	if !c.udp.Connected() && c.stack.own.Load().ipv4 {
		head = headersLen4
	}
	return UDPBuffer{Payload: f.Data[head+wire.UDPHeaderLen : end : end], frame: f, uplink: u, conn: c}, nil
}

// reserve reserves a frame of the uplink where the socket sends.
func (c *UDPConn) reserve() (f Frame, u *uplink, err error) {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	u = c.uplink()
	if err := c.sendTrouble(); err != nil {
		return f, u, err
	}
	if s.lent >= s.quota {
		return f, u, syscall.ENOBUFS
	}
	if err = u.reserveInto(&f); err != nil {
		err = c.retry(err, func() error { return u.reserveInto(&f) })
	}
	if err == nil {
		s.lent++
	}
	return f, u, err
}

// reserveInto reserves a frame of the largest size. The error is errNoFrame. The stack's mu is held.
func (u *uplink) reserveInto(f *Frame) error {
	var ok bool
	if *f, ok = u.link.Reserve(0); !ok {
		return errNoFrame
	}
	return nil
}

// Send sends the first n bytes of b's payload, to the address that was dialled if to is
// the zero value. After an error b is still the caller's, to send again or to cancel.
func (c *UDPConn) Send(b *UDPBuffer, n int, to netip.AddrPort) error {
	c.own(b)
	dst, err := c.destinationOrRemote(to)
	if n < 0 || n > len(b.Payload) {
		err = syscall.EMSGSIZE
	}
	if err == nil {
		err = c.send(dst, b.Payload[:n], b)
	}
	if err != nil {
		return c.fail("write", "write", c.remote, err)
	}
	*b = UDPBuffer{}
	return nil
}

// Cancel gives a reserved frame back unsent.
func (c *UDPConn) Cancel(b *UDPBuffer) {
	c.own(b)
	s := c.stack
	s.mu.Lock()
	s.lent--
	if !s.closed {
		b.uplink.link.Cancel(b.frame)
	}
	s.mu.Unlock()
	*b = UDPBuffer{}
}

// own panics if b is not a buffer that c has handed out.
func (c *UDPConn) own(b *UDPBuffer) {
	if b.conn != c {
		panic("BUG: stack: a buffer that was not reserved here, or is used up")
	}
}

func (c *UDPConn) destination(to netip.AddrPort) (udp.AddrPort, error) {
	s, local := c.stack, c.udp.Local().Addr
	dst := s.addrPortOf(to)
	switch {
	case c.udp.Connected():
		return dst, net.ErrWriteToConnected
	case !to.IsValid():
		return dst, errMissingAddress
	case dst.Port == 0, s.lacksZone(dst.Addr):
		return dst, syscall.EINVAL
	case dst.Addr == wire.Any6: // no wildcard of the caller's, but ff..ff
		return dst, syscall.ENETUNREACH
	case dst.Addr.IsWildcard():
		dst.Addr = s.loopback(c.network)
	case dst.Addr.Is4():
		if !local.Is4() && local != (wire.Addr{}) {
			return dst, syscall.ENETUNREACH
		}
	case local.Is4():
		return dst, &net.AddrError{Err: "non-IPv4 address", Addr: to.Addr().String()}
	}
	return dst, nil
}

// destinationOrRemote is destination, but for the zero value the address that was dialled.
func (c *UDPConn) destinationOrRemote(to netip.AddrPort) (udp.AddrPort, error) {
	if !to.IsValid() {
		return c.udp.Remote(), nil
	}
	return c.destination(to)
}

// The link cannot take a datagram now.
var (
	errNoFrame = errors.New("stack: no free frame")
	errNoRoom  = errors.New("stack: the send queue is full")
)

// send sends one datagram with the payload b. If reserved is not nil it is the frame that b
// lies in, which is taken unless send fails.
func (c *UDPConn) send(to udp.AddrPort, b []byte, reserved *UDPBuffer) error {
	s := c.stack
	s.mu.Lock()
	err := c.queue(to, b, reserved)
	if err != nil {
		err = c.retry(err, func() error { return c.queue(to, b, reserved) }) // +checklocksignore: retry calls this with mu held
	}
	if err == nil && reserved != nil {
		s.lent--
	}
	if s.unflushed {
		s.flush()
	}
	s.mu.Unlock()
	return err
}

// queue writes one datagram into a frame and queues it on the link; the caller flushes.
// errNoFrame and errNoRoom: the link takes nothing now.
//
// +checklocks:c.stack.mu
func (c *UDPConn) queue(to udp.AddrPort, b []byte, reserved *UDPBuffer) error {
	s, r := c.stack, c.route
	if c.sendSlow || r == nil || r.to != to.Addr || c.routeFrom != c.from || r.state != routeReady {
		var err error
		if r, err = c.prepare(to); err != nil {
			return err
		}
		if r == nil {
			return c.loopBack(to, b, reserved)
		}
	}
	head := r.headers.len
	n := head + wire.UDPHeaderLen + len(b)
	flow := wire.UDPFlow{Src: r.source, Dst: to.Addr, SrcPort: c.udp.Local().Port, DstPort: to.Port}
	if len(b) > r.maxPayload {
		return c.queueFragments(r, &flow, b, reserved)
	}
	var f Frame
	u := r.uplink
	inPlace := reserved != nil && reserved.uplink == u
	if inPlace {
		f = reserved.frame
		if n > len(f.Data) {
			return syscall.EMSGSIZE
		}
		f.Data = f.Data[:n]
		if at := f.Data[head+wire.UDPHeaderLen:]; len(b) > 0 && &at[0] != &b[0] {
			copy(at, b)
		}
		wire.PutUDPInPlace(f.Data[head:], &flow)
	} else {
		var ok bool
		if f, ok = u.link.Reserve(n); !ok {
			return errNoFrame
		}
		if n > len(f.Data) {
			u.link.Cancel(f)
			return syscall.EMSGSIZE
		}
		f.Data = f.Data[:n]
		wire.PutUDPCopy(f.Data[head:], &flow, b)
	}
	r.headers.put(f.Data, wire.ProtocolUDP, n-head)
	if c.tos != 0 {
		setTOS(f.Data, c.tos)
	}
	var looped []byte
	if r.group {
		looped = c.toGroup(f.Data, &flow)
	}
	r.sent++
	switch {
	case r.state != routeReady:
		s.hold(r, f, c.udp)
	case u.link.Send(f):
		s.count[framesSent]++
		s.unflushed, u.unflushed = true, true
		c.udp.CountSent()
		if looped != nil {
			c.loopToGroup(&flow, looped)
		}
	default:
		if !inPlace {
			u.link.Cancel(f)
		} else {
			copy(b, f.Data[head+wire.UDPHeaderLen:]) // moved above if b was made for the other family
		}
		return errNoRoom
	}
	if reserved != nil && !inPlace {
		reserved.uplink.link.Cancel(reserved.frame)
	}
	return nil
}

// uplink is where the socket sends, unless another destination is by another one.
//
// +checklocks:c.stack.mu
func (c *UDPConn) uplink() *uplink {
	if c.route != nil {
		return c.route.uplink
	}
	return c.stack.uplinkOf(c.boundSource())
}

// prepare looks at all that may keep a datagram from being sent: errors, the deadline, the
// link, the route. A nil route means a destination within the stack.
//
// +checklocks:c.stack.mu
func (c *UDPConn) prepare(to udp.AddrPort) (*route, error) {
	s := c.stack
	if err := c.sendTrouble(); err != nil {
		return nil, err
	}
	if to.IsZero() {
		return nil, syscall.EDESTADDRREQ
	}
	// If our address is shared, a port that is not ours may be another endpoint's.
	if to.Addr.IsLoopback() || s.isOurs(to.Addr) && (s.ownedAddress || s.udp.Lookup(c.loopBackSource(to), to) != nil) {
		return nil, nil
	}
	from := c.boundSource()
	if err := s.unsendable(from, to.Addr); err != nil {
		return nil, err
	}
	if c.udp.Local().Addr.IsMulticast() {
		return nil, errGroupSends
	}
	if s.isGroup(to.Addr) {
		r, err := s.groupRoute(from, to.Addr)
		if err == nil && !to.Addr.IsMulticast() && !c.broadcasts {
			err = errNoBroadcast
		}
		if err == nil {
			err = s.working(r.uplink)
		}
		if err == nil {
			c.route, c.routeFrom = r, c.from
		}
		return r, err
	}
	if r := s.answerUDP(c.udp, from, to); r != nil {
		return r, s.working(r.uplink) // c.route is used for all ports of an address
	}
	r, err := s.usableRoute(from, to.Addr)
	if err == nil {
		err = s.working(r.uplink)
	}
	if err == nil {
		c.route, c.routeFrom = r, c.from
	}
	return r, err
}

// +checklocks:c.stack.mu
func (c *UDPConn) sendTrouble() error {
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

// retry is called when a send has failed with err. If err is errNoFrame or errNoRoom, it
// calls try until that returns something else; after sendTimeout it returns ENOBUFS. If no
// frame becomes free, held packets are dropped. mu is held, but released between the calls.
//
// +checklocks:c.stack.mu
func (c *UDPConn) retry(err error, try func() error) error {
	if err != errNoFrame && err != errNoRoom {
		return err
	}
	s := c.stack
	s.count[sendBlocked]++
	s.retrying++
	giveUp := s.readClock() + sendTimeout
	for i := 0; ; i++ {
		short := err == errNoFrame
		if err = s.kick(c.uplink()); err != nil {
			break
		}
		s.input()
		if short && i >= yieldsBeforeSleep && len(s.held) > 0 {
			s.dropHeldOfMost()
		}
		if err = try(); err != errNoFrame && err != errNoRoom {
			break
		}
		if s.readClock() >= giveUp {
			err = syscall.ENOBUFS
			break
		}
		s.mu.Unlock()
		if i < yieldsBeforeSleep {
			runtime.Gosched()
		} else {
			time.Sleep(sendPause)
		}
		s.mu.Lock()
		if e := c.sendTrouble(); e != nil {
			err = e
			break
		}
		if why := s.downFrom(c.boundSource()); why != nil {
			err = why
			break
		}
	}
	if s.retrying--; s.closed {
		s.noteLeft()
	}
	return err
}

// boundSource is the source that the control messages or the socket's local address name. Zero:
// they name none.
func (c *UDPConn) boundSource() wire.Addr {
	if c.from != (wire.Addr{}) {
		return c.from
	}
	if a := c.udp.Local().Addr; !a.IsWildcard() {
		return a
	}
	return wire.Addr{}
}

// loopBackSource is the source of a datagram to an address of our own: that address, unless
// another one of ours is named. To a loopback address it is always that.
func (c *UDPConn) loopBackSource(to udp.AddrPort) udp.AddrPort {
	from := to.Addr
	if a := c.boundSource(); a != (wire.Addr{}) && !to.Addr.IsLoopback() {
		from = a
	}
	return udp.AddrPort{Addr: from, Port: c.udp.Local().Port}
}

// loopBack hands a datagram to a socket of this stack, without a frame. The host's own
// loopback network is not reached from here: ENETUNREACH.
//
// +checklocks:c.stack.mu
func (c *UDPConn) loopBack(to udp.AddrPort, b []byte, reserved *UDPBuffer) error {
	s := c.stack
	if len(b) > wire.MaxUDPPayload {
		return syscall.EMSGSIZE
	}
	from := c.loopBackSource(to)
	if to.Addr.IsLoopback() && s.udp.Lookup(from, to) == nil {
		return syscall.ENETUNREACH
	}
	data := make([]byte, wire.UDPHeaderLen+len(b))
	wire.PutUDPCopy(data, &wire.UDPFlow{Src: from.Addr, Dst: to.Addr, SrcPort: from.Port, DstPort: to.Port}, b)
	sock, n, verdict := s.udp.Process(&udp.Inbound{Src: from.Addr, Dst: to.Addr, Data: data, Heap: true, ECN: c.tos & wire.ECNMask})
	if verdict == udp.NoSocket {
		if c.udp.Connected() {
			c.setError(syscall.ECONNREFUSED)
		}
	} else {
		switch owner := sock.Owner.(type) {
		case *UDPConn:
			if n > 0 {
				s.role.signal(&owner.readable)
			}
		case *UDPPort:
			owner.discard() // what the port takes is a packet, with its IPv4 header
		}
		s.count[loopedBack]++
		c.udp.CountSent()
	}
	if reserved != nil {
		reserved.uplink.link.Cancel(reserved.frame)
	}
	return nil
}
