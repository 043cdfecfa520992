package stack

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"

	"github.com/unet-go/unet/proto/udp"
	"github.com/unet-go/unet/wire"
)

// Control messages of ReadMsgUDP and WriteMsgUDP, in the format of Linux (cmsg(3), ip(7),
// ipv6(7), udp(7)).
const (
	levelIP   = 0
	levelUDP  = 17
	levelIPv6 = 41

	messageTOS      = 1   // IP_TOS: the type of service; 1 byte, or 4 in native order
	messagePktInfo  = 8   // IP_PKTINFO: struct in_pktinfo
	messagePktInfo6 = 50  // IPV6_PKTINFO: struct in6_pktinfo
	messageTClass   = 67  // IPV6_TCLASS: the traffic class, 4 bytes in native order
	messageSegment  = 103 // UDP_SEGMENT: bytes of payload of each datagram but the last, 2 bytes

	word          = 4 << (^uint(0) >> 63) // bytes of a size_t, and the alignment of messages
	messageHeader = word + 8              // bytes: length, level, type
	pktInfoLen    = 12                    // bytes: interface, local address, destination of the header
	pktInfo6Len   = 20                    // bytes: local address, interface
)

// Flags that ReadMsgUDP returns (recvmsg(2)).
const (
	flagControlTruncated = 0x8  // MSG_CTRUNC
	flagTruncated        = 0x20 // MSG_TRUNC
)

// maxSegments is the most datagrams that one WriteMsgUDP sends (UDP_MAX_SEGMENTS of Linux).
const maxSegments = 128

func messageSpace(n int) int { return messageHeader + (n+word-1)&^(word-1) }

// putMessage writes the header of a control message with n bytes of data to the start of b.
// It returns the data, and what follows the message.
func putMessage(b []byte, level, kind, n int) (data, rest []byte) {
	space := messageSpace(n)
	clear(b[:space])
	if word == 8 {
		binary.NativeEndian.PutUint64(b, uint64(messageHeader+n))
	} else {
		binary.NativeEndian.PutUint32(b, uint32(messageHeader+n))
	}
	binary.NativeEndian.PutUint32(b[word:], uint32(level))
	binary.NativeEndian.PutUint32(b[word+4:], uint32(kind))
	return b[messageHeader : messageHeader+n], b[space:]
}

// marks are what control messages say about a datagram to send.
type marks struct {
	tos     uint8
	local   wire.Addr // the source; zero: none is named
	segment int       // bytes of payload of each datagram but the last; 0: there is one datagram
}

// parseMessages reads the control messages of a send. The error for one that is malformed, not
// known, or names a local address that is not the socket's, or not of to's family, is EINVAL.
func (c *UDPConn) parseMessages(b []byte, to wire.Addr) (m marks, err error) {
	for len(b) > 0 {
		if len(b) < messageHeader {
			return m, syscall.EINVAL
		}
		n := uint64(binary.NativeEndian.Uint32(b))
		if word == 8 {
			n = binary.NativeEndian.Uint64(b)
		}
		if n < messageHeader || n > uint64(len(b)) {
			return m, syscall.EINVAL
		}
		level, kind := binary.NativeEndian.Uint32(b[word:]), binary.NativeEndian.Uint32(b[word+4:])
		data := b[messageHeader:n]
		b = b[min(messageSpace(len(data)), len(b)):]
		switch {
		case level == levelIP && kind == messageTOS && len(data) == 1:
			m.tos = data[0]
		case level == levelIP && kind == messageTOS && len(data) == 4,
			level == levelIPv6 && kind == messageTClass && len(data) == 4:
			v := binary.NativeEndian.Uint32(data)
			if m.tos = uint8(v); v > 255 {
				return m, syscall.EINVAL
			}
		case level == levelIP && kind == messagePktInfo && len(data) == pktInfoLen:
			if local := wire.AddrFrom4([4]byte(data[4:])); local != wire.Any4 {
				if !c.sendsFrom(local, to) {
					return m, syscall.EINVAL
				}
				m.local = local
			}
		case level == levelIPv6 && kind == messagePktInfo6 && len(data) == pktInfo6Len:
			m.local = wire.AddrFrom16([16]byte(data))
			if m.local != (wire.Addr{}) && (!c.sendsFrom(m.local, to) || m.local.Is4() != to.Is4()) {
				return m, syscall.EINVAL
			}
		case level == levelUDP && kind == messageSegment && len(data) == 2:
			m.segment = int(binary.NativeEndian.Uint16(data))
		default:
			return m, syscall.EINVAL
		}
	}
	return m, nil
}

// sendsFrom reports whether a is a local address of the socket. A loopback address is one for
// what is sent to it.
func (c *UDPConn) sendsFrom(a, to wire.Addr) bool {
	return (c.stack.isOurs(a) || a.IsLoopback() && a == to) && c.udp.Local().Addr.Takes(a)
}

// putMessages writes the control messages of a received datagram to oob: IP_TOS with its ECN
// bits, and IP_PKTINFO with the local address, or those of IPv6. For one to a group the address is the group.
func (c *UDPConn) putMessages(oob []byte, d *udp.Datagram, group wire.Addr) (n, flags int) {
	var to wire.Addr
	switch from := d.From.Addr; {
	case from.IsLoopback():
		to = from // see loopBackSource
	case group != (wire.Addr{}):
		to = group
	default:
		to = d.To
	}
	level, tos, tosLen, info, infoLen := levelIP, messageTOS, 1, messagePktInfo, pktInfoLen
	if !to.Is4() {
		level, tos, tosLen, info, infoLen = levelIPv6, messageTClass, 4, messagePktInfo6, pktInfo6Len
	}
	rest := oob
	if messageSpace(tosLen)+messageSpace(infoLen) > len(oob) {
		flags = flagControlTruncated
	}
	var data []byte
	if messageSpace(tosLen) <= len(rest) {
		if data, rest = putMessage(rest, level, tos, tosLen); tosLen == 1 {
			data[0] = d.ECN
		} else {
			binary.NativeEndian.PutUint32(data, uint32(d.ECN))
		}
	}
	if messageSpace(infoLen) <= len(rest) {
		if data, rest = putMessage(rest, level, info, infoLen); level == levelIPv6 {
			to.Put(data)
		} else {
			a := to.As4()
			copy(data[4:], a[:])
			copy(data[8:], a[:])
		}
	}
	return len(oob) - len(rest), flags
}

// ReadMsgUDPAddrPort receives a datagram and its control messages: IP_TOS with the ECN bits
// (RFC 3168), and IP_PKTINFO with the local address, or IPV6_TCLASS and IPV6_PKTINFO, in the
// format of Linux. They need 64 bytes of oob; no option is needed to get them. flags has MSG_TRUNC if
// the datagram did not fit into b, and MSG_CTRUNC if a control message did not fit into a non-empty oob.
func (c *UDPConn) ReadMsgUDPAddrPort(b, oob []byte) (n, oobn, flags int, addr netip.AddrPort, err error) {
	s := c.stack
	var d udp.Datagram
	var group wire.Addr
	s.mu.Lock()
	if err = c.take(&d); err == nil {
		group = c.udp.GroupAt(d.Group)
		if n = copy(b, d.Payload); n < len(d.Payload) {
			flags = flagTruncated
		}
		s.giveBack(d.Frame, d.Heap)
	}
	s.mu.Unlock()
	if err != nil {
		return 0, 0, 0, addr, c.fail("read", "recvmsg", c.remote, err)
	}
	if len(oob) > 0 {
		var cut int
		oobn, cut = c.putMessages(oob, &d, group)
		flags |= cut
	}
	return n, oobn, flags, s.netipPort(d.From), nil
}

// ReadMsgUDP is ReadMsgUDPAddrPort with a *net.UDPAddr.
func (c *UDPConn) ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error) {
	n, oobn, flags, from, err := c.ReadMsgUDPAddrPort(b, oob)
	if err == nil {
		addr = net.UDPAddrFromAddrPort(from)
	}
	return n, oobn, flags, addr, err
}

// WriteMsgUDPAddrPort sends a datagram with control messages in the format of Linux: IP_TOS
// or IPV6_TCLASS sets the type of service, of which two bits are ECN (RFC 3168); IP_PKTINFO or
// IPV6_PKTINFO names the local address, which must be the socket's; UDP_SEGMENT sends b with one kick
// as several datagrams, 128 at most, of that many bytes of payload; the last may be shorter. The
// error for other messages is EINVAL. The zero value of addr stands for the address that was dialled.
func (c *UDPConn) WriteMsgUDPAddrPort(b, oob []byte, addr netip.AddrPort) (n, oobn int, err error) {
	var to net.Addr
	if addr.IsValid() {
		to = net.UDPAddrFromAddrPort(addr)
	}
	return c.writeMsg(b, oob, addr, to)
}

// WriteMsgUDP is WriteMsgUDPAddrPort with a *net.UDPAddr; nil is the address that was dialled.
func (c *UDPConn) WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error) {
	if addr == nil {
		return c.writeMsg(b, oob, netip.AddrPort{}, nil)
	}
	return c.writeMsg(b, oob, addrPort(addr), addr)
}

func (c *UDPConn) writeMsg(b, oob []byte, addr netip.AddrPort, to net.Addr) (int, int, error) {
	dst, err := c.destinationOrRemote(addr)
	var m marks
	switch {
	case err != nil:
	case !c.udp.Connected() && !addr.IsValid():
		err = errMissingAddress
	default:
		if m, err = c.parseMessages(oob, dst.Addr); err == nil {
			err = c.sendMarked(dst, b, m)
		}
	}
	if err != nil {
		return 0, 0, c.fail("write", "sendmsg", to, err)
	}
	return len(b), len(oob), nil
}

// sendMarked sends b as one datagram, or as several.
func (c *UDPConn) sendMarked(to udp.AddrPort, b []byte, m marks) error {
	size := m.segment
	if size == 0 {
		size = len(b)
	}
	if size > 0 && len(b) > size*maxSegments {
		return syscall.EINVAL
	}
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	for first := true; first || len(b) > 0; first = false {
		part := b[:min(size, len(b))]
		err := c.queueMarked(to, part, m)
		if err != nil {
			err = c.retry(err, func() error { return c.queueMarked(to, part, m) }) // +checklocksignore: retry calls this with mu held
		}
		if err != nil {
			if s.unflushed {
				s.flush()
			}
			return err
		}
		b = b[len(part):]
	}
	if s.unflushed {
		s.flush()
	}
	return nil
}

// ReadFromUDP is ReadFromUDPAddrPort with a *net.UDPAddr.
func (c *UDPConn) ReadFromUDP(b []byte) (int, *net.UDPAddr, error) {
	n, from, err := c.ReadFromUDPAddrPort(b)
	if err != nil {
		return 0, nil, err
	}
	return n, net.UDPAddrFromAddrPort(from), nil
}

// queueMarked is queue with what control messages say. mu is held.
//
// +checklocks:c.stack.mu
func (c *UDPConn) queueMarked(to udp.AddrPort, b []byte, m marks) error {
	c.tos, c.from = m.tos, m.local
	err := c.queue(to, b, nil)
	c.tos, c.from = 0, wire.Addr{}
	return err
}

// WriteToUDP is WriteToUDPAddrPort with a *net.UDPAddr.
func (c *UDPConn) WriteToUDP(b []byte, addr *net.UDPAddr) (int, error) {
	if addr == nil {
		return 0, c.fail("write", "", nil, errMissingAddress)
	}
	return c.WriteToUDPAddrPort(b, addrPort(addr))
}

// SetReadBuffer bounds the receive queue: bytes of payload, and one datagram for each 1024
// of these bytes, but 16 at least. The frames that all sockets hold are bounded by
// Config.FrameQuota; what exceeds it is copied.
func (c *UDPConn) SetReadBuffer(bytes int) error {
	bytes = max(bytes, minReadBuffer)
	return c.set(func() { c.udp.SetQueue(bytes/(udp.DefaultQueueBytes/udp.DefaultQueueDatagrams), bytes) })
}

const minReadBuffer = 16 << 10 // bytes, of SetReadBuffer

// SetWriteBuffer fails if the socket is closed, and otherwise changes nothing: there is no send
// buffer. A datagram is queued on the link by the call that sends it, or waits in that call.
func (c *UDPConn) SetWriteBuffer(int) error { return c.set(func() {}) }

// addrPort is the address of a *net.UDPAddr; one without an IP is the unspecified address.
func addrPort(a *net.UDPAddr) netip.AddrPort {
	if len(a.IP) == 0 {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(a.Port))
	}
	return a.AddrPort()
}
