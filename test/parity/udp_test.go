package parity

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

// closedSocketError is a fact about a call on a closed socket.
func closedSocketError(name string, call func(c udpConn) error) fact {
	return fact{name: name + " on a closed socket", observe: func(w *hostPair) string {
		c := w.udp()
		w.must(c.Close())
		return describe(call(c))
	}}
}

// unreachableAddr is an address of a socket's family.
func unreachableAddr(c udpConn) netip.AddrPort {
	if c.LocalAddr().(*net.UDPAddr).IP.To4() == nil {
		return netip.MustParseAddrPort("[2001:db8::1]:9")
	}
	return netip.MustParseAddrPort("192.0.2.1:9")
}

// read returns the length and the data of a received datagram, and the error.
func read(c net.Conn, size int) string {
	b := make([]byte, size)
	n, err := c.Read(b)
	return fmt.Sprintf("%d %q %s", n, b[:n], describe(err))
}

// send sends datagrams to a server from a connected socket. It returns the server.
func (w *hostPair) send(payloads ...string) (client, server udpConn) {
	w.Helper()
	c, s := w.connected()
	for _, p := range payloads {
		n, err := c.Write([]byte(p))
		w.must(err)
		if n != len(p) {
			w.Errorf("wrote %d", n)
		}
	}
	return c, s
}

var udpFacts = []fact{
	closedSocketError("Read", func(c udpConn) error { _, err := c.Read(make([]byte, 1)); return err }),
	closedSocketError("ReadFrom", func(c udpConn) error { _, _, err := c.ReadFrom(make([]byte, 1)); return err }),
	closedSocketError("ReadFromUDP", func(c udpConn) error { _, _, err := c.ReadFromUDP(make([]byte, 1)); return err }),
	closedSocketError("ReadFromUDPAddrPort", func(c udpConn) error { _, _, err := c.ReadFromUDPAddrPort(make([]byte, 1)); return err }),
	closedSocketError("ReadMsgUDP", func(c udpConn) error { _, _, _, _, err := c.ReadMsgUDP(make([]byte, 1), nil); return err }),
	closedSocketError("ReadMsgUDPAddrPort", func(c udpConn) error { _, _, _, _, err := c.ReadMsgUDPAddrPort(make([]byte, 1), nil); return err }),
	closedSocketError("Write", func(c udpConn) error { _, err := c.Write(nil); return err }),
	closedSocketError("WriteTo", func(c udpConn) error {
		_, err := c.WriteTo(nil, net.UDPAddrFromAddrPort(unreachableAddr(c)))
		return err
	}),
	closedSocketError("WriteToUDP", func(c udpConn) error {
		_, err := c.WriteToUDP(nil, net.UDPAddrFromAddrPort(unreachableAddr(c)))
		return err
	}),
	closedSocketError("WriteToUDPAddrPort", func(c udpConn) error { _, err := c.WriteToUDPAddrPort(nil, unreachableAddr(c)); return err }),
	closedSocketError("WriteMsgUDP", func(c udpConn) error {
		_, _, err := c.WriteMsgUDP(nil, nil, net.UDPAddrFromAddrPort(unreachableAddr(c)))
		return err
	}),
	closedSocketError("WriteMsgUDPAddrPort", func(c udpConn) error { _, _, err := c.WriteMsgUDPAddrPort(nil, nil, unreachableAddr(c)); return err }),
	closedSocketError("Close", func(c udpConn) error { return c.Close() }),
	closedSocketError("SetDeadline", func(c udpConn) error { return c.SetDeadline(past) }),
	closedSocketError("SetReadBuffer", func(c udpConn) error { return c.SetReadBuffer(1) }),
	closedSocketError("SetWriteBuffer", func(c udpConn) error { return c.SetWriteBuffer(1) }),
	closedSocketError("addresses", func(c udpConn) error { return fmt.Errorf("%v %v", c.LocalAddr(), c.RemoteAddr()) }),

	{name: "an empty datagram", observe: func(w *hostPair) string {
		_, s := w.send("", "x")
		return read(s, 10) + read(s, 10)
	}},
	{name: "a datagram that is longer than the buffer", observe: func(w *hostPair) string {
		_, s := w.send("0123456789", "next")
		return read(s, 4) + read(s, 4)
	}},
	{name: "read of no bytes takes no datagram", observe: func(w *hostPair) string {
		_, s := w.send("x")
		return read(s, 0) + read(s, 1)
	}},
	{name: "read of no bytes from an address takes a datagram", observe: func(w *hostPair) string {
		_, s := w.send("x", "y")
		n, from, err := s.ReadFrom(nil)
		return fmt.Sprint(n, normalized(fmt.Sprint(from)), err) + read(s, 1)
	}},
	{name: "the sender's address", observe: func(w *hostPair) string {
		c, s := w.send("x")
		_, from, err := s.ReadFrom(make([]byte, 1))
		w.must(err)
		return fmt.Sprintf("%T %v", from, from.String() == c.LocalAddr().String())
	}},
	{name: "the sender's address as AddrPort is IPv4", only4: true, observe: func(w *hostPair) string {
		_, s := w.send("x")
		_, from, err := s.ReadFromUDPAddrPort(make([]byte, 1))
		return fmt.Sprint(from.Addr().Is4(), err)
	}},
	{name: "ReadFromUDP", observe: func(w *hostPair) string {
		c, s := w.send("x")
		b := make([]byte, 10)
		n, from, err := s.ReadFromUDP(b)
		return fmt.Sprint(string(b[:n]), from.String() == c.LocalAddr().String(), err)
	}},
	{name: "ReadFrom on a connected socket", observe: func(w *hostPair) string {
		c, s := w.send("x")
		_, from, err := s.ReadFrom(make([]byte, 1))
		w.must(err)
		_, err = s.WriteTo([]byte("y"), from)
		w.must(err)
		_, from, err = c.ReadFrom(make([]byte, 1))
		w.must(err)
		return fmt.Sprint(from.String() == s.LocalAddr().String())
	}},
	{name: "WriteTo on a connected socket", observe: func(w *hostPair) string {
		c, s := w.connected()
		_, err := c.WriteTo(nil, s.LocalAddr())
		return describe(err)
	}},
	{name: "WriteToUDP on a connected socket", observe: func(w *hostPair) string {
		c, s := w.connected()
		_, err := c.WriteToUDP(nil, s.LocalAddr().(*net.UDPAddr))
		return describe(err)
	}},
	{name: "WriteToUDPAddrPort on a connected socket", observe: func(w *hostPair) string {
		c, _ := w.connected()
		_, err := c.WriteToUDPAddrPort(nil, unreachableAddr(c))
		return describe(err)
	}},
	{name: "WriteMsgUDP to an address on a connected socket", observe: func(w *hostPair) string {
		c, s := w.connected()
		_, _, err := c.WriteMsgUDP(nil, nil, s.LocalAddr().(*net.UDPAddr))
		return describe(err)
	}},
	{name: "WriteMsgUDP on a connected socket", observe: func(w *hostPair) string {
		c, s := w.connected()
		n, oobn, err := c.WriteMsgUDP([]byte("x"), nil, nil)
		return fmt.Sprint(n, oobn, err) + read(s, 2)
	}},
	{name: "WriteMsgUDPAddrPort on a connected socket", observe: func(w *hostPair) string {
		c, s := w.connected()
		n, oobn, err := c.WriteMsgUDPAddrPort([]byte("x"), nil, netip.AddrPort{})
		return fmt.Sprint(n, oobn, err) + read(s, 2)
	}},
	{name: "WriteMsgUDP", observe: func(w *hostPair) string {
		_, s := w.connected()
		n, oobn, err := w.udp().WriteMsgUDP([]byte("x"), nil, s.LocalAddr().(*net.UDPAddr))
		return fmt.Sprint(n, oobn, err) + read(s, 2)
	}},
	{name: "WriteMsgUDP without an address", observe: func(w *hostPair) string {
		_, _, err := w.udp().WriteMsgUDP(nil, nil, nil)
		return describe(err)
	}},
	{name: "WriteMsgUDPAddrPort without an address", observe: func(w *hostPair) string {
		_, _, err := w.udp().WriteMsgUDPAddrPort(nil, nil, netip.AddrPort{})
		return strings.Replace(normalized(err.Error()), "->invalid AddrPort", "", 1)
	}},
	{name: "WriteMsgUDP of a malformed control message", observe: func(w *hostPair) string {
		c, _ := w.connected()
		oob := make([]byte, 24) // a message of 0 bytes
		_, _, err := c.WriteMsgUDP([]byte("x"), oob, nil)
		return describe(err)
	}},
	{name: "WriteMsgUDP with the segment size 4", observe: func(w *hostPair) string {
		c, s := w.connected()
		n, oobn, err := c.WriteMsgUDP([]byte("aaaabbbbcc"), segmentsOf4, nil)
		return fmt.Sprint(n, oobn, err) + read(s, 10) + read(s, 10) + read(s, 10)
	}},
	{name: "WriteTo nil", observe: func(w *hostPair) string {
		_, err := w.udp().WriteTo([]byte("x"), (*net.UDPAddr)(nil))
		return describe(err)
	}},
	{name: "WriteToUDP nil", observe: func(w *hostPair) string {
		_, err := w.udp().WriteToUDP([]byte("x"), nil)
		return describe(err)
	}},
	{name: "WriteToUDPAddrPort of no address", observe: func(w *hostPair) string {
		_, err := w.udp().WriteToUDPAddrPort([]byte("x"), netip.AddrPort{})
		return strings.Replace(normalized(err.Error()), "->invalid AddrPort", "", 1)
	}},
	{name: "WriteTo an address of another protocol", observe: func(w *hostPair) string {
		_, err := w.udp().WriteTo([]byte("x"), &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 9})
		return describe(err)
	}},
	{name: "WriteTo port 0", observe: func(w *hostPair) string {
		c := w.udp()
		_, err := c.WriteTo([]byte("x"), &net.UDPAddr{IP: unreachableAddr(c).Addr().AsSlice()})
		return describe(err)
	}},
	{name: "WriteTo an IPv6 address from an IPv4 socket", only4: true, observe: func(w *hostPair) string {
		_, err := w.udp().WriteTo([]byte("x"), &net.UDPAddr{IP: net.ParseIP("2001:db8::1"), Port: 9})
		return describe(err)
	}},
	{name: "WriteToUDPAddrPort of an IPv6 address from an IPv4 socket", only4: true, observe: func(w *hostPair) string {
		_, err := w.udp().WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort("[2001:db8::1]:9"))
		return describe(err)
	}},
	{name: "WriteTo an IPv4 address in an IPv6 one", only4: true, observe: func(w *hostPair) string {
		_, s := w.connected()
		a := s.LocalAddr().(*net.UDPAddr)
		_, err := w.udp().WriteTo([]byte("x"), &net.UDPAddr{IP: a.IP.To16(), Port: a.Port})
		return describe(err) + read(s, 2)
	}},
	{name: "WriteToUDPAddrPort of an IPv4 address in an IPv6 one", only4: true, observe: func(w *hostPair) string {
		_, s := w.connected()
		a := s.LocalAddr().(*net.UDPAddr).AddrPort()
		_, err := w.udp().WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port()))
		return describe(err)
	}},
	{name: "Write on a socket that is not connected", observe: func(w *hostPair) string {
		_, err := w.udp().Write([]byte("x"))
		return describe(err)
	}},
	{name: "remote address of a socket that is not connected", observe: func(w *hostPair) string {
		return fmt.Sprint(w.udp().RemoteAddr() == nil)
	}},
	{name: "write of a datagram that is too long", observe: func(w *hostPair) string {
		c, _ := w.connected()
		n, err := c.Write(make([]byte, 1<<16))
		return fmt.Sprint(n, describe(err))
	}},
	{name: "WriteTo of a datagram that is too long", observe: func(w *hostPair) string {
		_, s := w.connected()
		n, err := w.udp().WriteTo(make([]byte, 1<<16), s.LocalAddr())
		return fmt.Sprint(n, describe(err))
	}},
	{name: "WriteMsgUDP of a datagram that is too long", observe: func(w *hostPair) string {
		c, _ := w.connected()
		n, _, err := c.WriteMsgUDP(make([]byte, 1<<16), nil, nil)
		return fmt.Sprint(n, describe(err))
	}},
	{name: "a port that refuses: the next read", observe: func(w *hostPair) string {
		c, err := w.client.DialContext(w.Context(), "udp", w.refused())
		w.must(err)
		defer c.Close()
		w.must(c.SetDeadline(time.Now().Add(time.Minute)))
		_, err = c.Write([]byte("x"))
		w.must(err)
		return read(c, 1)
	}},
	{name: "a port that refuses: the next ReadMsgUDP", observe: func(w *hostPair) string {
		c, err := w.client.DialContext(w.Context(), "udp", w.refused())
		w.must(err)
		defer c.Close()
		w.must(c.SetDeadline(time.Now().Add(time.Minute)))
		_, err = c.Write([]byte("x"))
		w.must(err)
		_, _, _, _, err = c.(udpConn).ReadMsgUDP(make([]byte, 1), nil)
		return describe(err)
	}},
	{name: "a port that refuses: the error is returned once", observe: func(w *hostPair) string {
		c, err := w.client.DialContext(w.Context(), "udp", w.refused())
		w.must(err)
		defer c.Close()
		_, err = c.Write([]byte("x"))
		w.must(err)
		w.must(c.SetDeadline(time.Now().Add(time.Minute)))
		_, first := c.Read(make([]byte, 1))
		w.must(c.SetReadDeadline(past))
		_, second := c.Read(make([]byte, 1))
		return describe(first) + " / " + describe(second)
	}},
	{name: "a connected socket receives no datagram from others", observe: func(w *hostPair) string {
		c, s := w.connected()
		other, err := w.server.ListenPacket(w.Context(), "udp"+w.family, w.serverIP+":0")
		w.must(err)
		defer other.Close()
		_, err = other.WriteTo([]byte("other"), c.LocalAddr())
		w.must(err)
		_, err = s.WriteTo([]byte("peer"), c.LocalAddr())
		w.must(err)
		return read(c, 10)
	}},
	{name: "close while receiving", observe: func(w *hostPair) string {
		c := w.udp()
		return w.endWhileBlocked(func() error { _, _, err := c.ReadFrom(make([]byte, 1)); return err }, c.Close)
	}},
	{name: "close while receiving, connected", observe: func(w *hostPair) string {
		c, _ := w.connected()
		return w.endWhileBlocked(func() error { _, err := c.Read(make([]byte, 1)); return err }, c.Close)
	}},
	{name: "a deadline that has passed while receiving", observe: func(w *hostPair) string {
		c := w.udp()
		return w.endWhileBlocked(func() error { _, _, err := c.ReadFrom(make([]byte, 1)); return err }, func() error { return c.SetReadDeadline(past) })
	}},
	{name: "read after the deadline, connected", observe: func(w *hostPair) string {
		c, _ := w.connected()
		w.must(c.SetReadDeadline(past))
		return read(c, 1)
	}},
	{name: "ReadMsgUDP after the deadline", observe: func(w *hostPair) string {
		c := w.udp()
		w.must(c.SetReadDeadline(past))
		_, _, _, _, err := c.ReadMsgUDP(make([]byte, 1), nil)
		return describe(err)
	}},
	{name: "write after the deadline, connected", observe: func(w *hostPair) string {
		c, _ := w.connected()
		w.must(c.SetWriteDeadline(past))
		_, err := c.Write([]byte("x"))
		return describe(err)
	}},
	{name: "ReadMsgUDP", observe: func(w *hostPair) string {
		c, s := w.send("x")
		b := make([]byte, 10)
		n, oobn, flags, from, err := s.ReadMsgUDP(b, nil)
		return fmt.Sprint(string(b[:n]), oobn, flags, from.String() == c.LocalAddr().String(), err)
	}},
	{name: "ReadMsgUDP of a datagram that is longer than the buffer", observe: func(w *hostPair) string {
		_, s := w.send("0123456789")
		b := make([]byte, 4)
		n, oobn, flags, _, err := s.ReadMsgUDP(b, nil)
		return fmt.Sprint(string(b[:n]), oobn, flags, err)
	}},
	{name: "ReadMsgUDP of an empty datagram", observe: func(w *hostPair) string {
		_, s := w.send("")
		n, oobn, flags, _, err := s.ReadMsgUDP(make([]byte, 4), nil)
		return fmt.Sprint(n, oobn, flags, err)
	}},
	{name: "ReadMsgUDPAddrPort on a connected socket", observe: func(w *hostPair) string {
		c, s := w.connected()
		_, err := s.WriteTo([]byte("x"), c.LocalAddr())
		w.must(err)
		b := make([]byte, 4)
		n, oobn, flags, from, err := c.ReadMsgUDPAddrPort(b, nil)
		return fmt.Sprint(string(b[:n]), oobn, flags, from.String() == s.LocalAddr().String(), err)
	}},
	{name: "control messages without options", observe: func(w *hostPair) string {
		_, s := w.send("x")
		_, oobn, flags, _, err := s.ReadMsgUDP(make([]byte, 4), make([]byte, 64))
		return fmt.Sprint(oobn > 0, flags, err)
	}, unet: "true 0 <nil>", why: "there is no descriptor to turn them on by"},
	{name: "buffers", observe: func(w *hostPair) string {
		c := w.udp()
		return fmt.Sprint(c.SetReadBuffer(1), c.SetWriteBuffer(1))
	}},
	{name: "a small receive buffer takes one datagram at least", observe: func(w *hostPair) string {
		c, s := w.connected()
		w.must(s.SetReadBuffer(1))
		_, err := c.Write([]byte("x"))
		w.must(err)
		return read(s, 2)
	}},
	{name: "SyscallConn of a packet socket", observe: func(w *hostPair) string {
		_, ok := w.udp().(syscall.Conn)
		return fmt.Sprint(ok)
	}, unet: "false", why: "there is no descriptor; libraries that ask for one go on without it if the method is missing, and take its error for a broken socket"},
}

// segmentsOf4 is the control message UDP_SEGMENT with the value 4, of 64 bits.
var segmentsOf4 = []byte{18, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 103, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0}
