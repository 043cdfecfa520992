//go:build unetdebug

package stack

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/wire"
)

// quietLink is a link on which a test puts frames.
type quietLink struct {
	frames [][]byte
	wake   chan struct{}
}

func (l *quietLink) Recv(frames []Frame) (n int) {
	for n = 0; n < len(frames) && len(l.frames) > 0; n++ {
		frames[n] = Frame{Data: l.frames[0]}
		l.frames = l.frames[1:]
	}
	return n
}
func (l *quietLink) Release(Frame)           {}
func (l *quietLink) Alloc(int) (Frame, bool) { return Frame{Data: make([]byte, 2048)}, true }
func (l *quietLink) Send(Frame) bool         { return true }
func (l *quietLink) Flush() error            { return nil }
func (l *quietLink) Pending() bool           { return len(l.frames) > 0 }
func (l *quietLink) Wake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *quietLink) Sleep(until time.Time) error {
	if l.Pending() {
		return nil
	}
	var end <-chan time.Time
	if !until.IsZero() {
		pause := time.Until(until)
		if pause <= 0 {
			return nil
		}
		timer := time.NewTimer(pause)
		defer timer.Stop()
		end = timer.C
	}
	select {
	case <-l.wake:
	case <-end:
	}
	return nil
}

// put makes a frame arrive.
func (l *quietLink) put(b []byte) {
	l.frames = append(l.frames, b)
	l.Wake()
}

func port(n uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), n)
}

func ok[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (sc *scene) open(caretaker bool) *quietLink {
	l := &quietLink{wake: make(chan struct{}, 1)}
	sc.s = ok(New(Config{Link: l, LinkAddr: wire.LinkAddr{2}, Addr: netip.MustParsePrefix("10.0.0.1/24"), OwnedAddress: true, Resolver: noRoutes{},
		Wait: WaitBlock, NoCaretaker: !caretaker}))
	return l
}

// afterwards lets the caretaker take the role, before the actors begin.
func (sc *scene) afterwards() { time.Sleep(20 * time.Millisecond) }

func (sc *scene) udp(n uint16) *UDPConn {
	u := ok(sc.s.ListenUDP(port(n), UDPOptions{}))
	sc.socks = append(sc.socks, u)
	return u
}

// connected makes the two ends of a connection in the stack.
func (sc *scene) connected() (a, b *TCPConn) {
	l := ok(sc.s.ListenTCP(port(80), TCPListenOptions{}))
	a = ok(sc.s.DialTCP(noContext{}, netip.AddrPort{}, port(80), TCPOptions{}))
	b = ok(l.AcceptTCP())
	l.Close()
	sc.conns = append(sc.conns, a, b)
	return a, b
}

type noRoutes struct{}

func (noRoutes) Resolve(context.Context, netip.Addr) (Route, error) {
	return Route{}, syscall.EHOSTUNREACH
}

// noContext never ends, and starts no goroutine.
type noContext struct{}

func (noContext) Deadline() (t time.Time, ok bool) { return }
func (noContext) Done() <-chan struct{}            { return nil }
func (noContext) Err() error                       { return nil }
func (noContext) Value(any) any                    { return nil }

func (sc *scene) receive(u *UDPConn) call {
	buf := make([]byte, 10)
	return call{func() { u.ReadFromUDPAddrPort(buf) }, func() bool { return u.udp.Len() > 0 || u.closed || sc.s.look() >= u.readDeadline }}
}

func (sc *scene) send(u *UDPConn, to uint16) call {
	return call{func() { u.WriteToUDPAddrPort([]byte("x"), port(to)) }, nil}
}

func (sc *scene) read(name string, c *TCPConn, n int) call {
	buf := make([]byte, n)
	sc.bufs[name] = buf
	return call{func() { c.Read(buf) }, sc.toRead(c)}
}

// drain reads until the end of the connection.
func (sc *scene) drain(c *TCPConn) call {
	buf := make([]byte, 1<<20)
	return call{func() {
		for _, err := c.Read(buf); err == nil; {
			_, err = c.Read(buf)
		}
	}, sc.toRead(c)}
}

func (sc *scene) borrow(c *TCPConn) call {
	return call{func() {
		if text, err := c.Borrow(); err == nil {
			text.Return()
		}
	}, sc.toRead(c)}
}

func (sc *scene) toRead(c *TCPConn) func() bool {
	return func() bool { return c.conn.Readable() || c.closed || sc.s.look() >= c.readDeadline }
}

func (sc *scene) write(c *TCPConn, n int) call {
	text := make([]byte, n)
	return call{func() { c.Write(text) }, func() bool {
		return !c.writing || c.closed || sc.s.look() >= c.writeDeadline || c.conn.Room() >= sc.room(c)
	}}
}

// room is how many bytes must be free before a writer that waits is woken.
func (sc *scene) room(c *TCPConn) int { return (c.conn.Room() + c.conn.Unacknowledged()) / 4 }

// In no schedule does a goroutine sleep for ever although what it waits for is there, or
// although no other goroutine polls.
func TestNoWakeupIsLostInAnySchedule(t *testing.T) {
	for name, build := range map[string]func(*scene){
		// The poller leaves and offers its role to a reader whose memory is posted; another
		// goroutine takes the role first, and the reader is parked again as the last one.
		"readers of a connection": func(sc *scene) {
			sc.open(false)
			_, b := sc.connected()
			a := sc.conns[0]
			u, v := sc.udp(1), sc.udp(2)
			sc.actor("poller", sc.receive(u))
			sc.actor("reader 1", sc.read("1", b, 8))
			sc.actor("reader 2", sc.read("2", b, 8))
			sc.actor("newcomer", sc.receive(v))
			sc.actor("writer", sc.send(u, 1), sc.write(a, 5))
		},
		"readers, twice": func(sc *scene) {
			sc.open(false)
			a, b := sc.connected()
			sc.actor("reader 1", sc.read("1", b, 3), sc.read("1", b, 3))
			sc.actor("reader 2", sc.read("2", b, 8))
			sc.actor("writer", sc.write(a, 5), sc.write(a, 5))
			sc.actor("poller", sc.receive(sc.udp(1)))
		},
		"borrowers": func(sc *scene) {
			sc.open(false)
			a, b := sc.connected()
			sc.actor("borrower 1", sc.borrow(b))
			sc.actor("borrower 2", sc.borrow(b))
			sc.actor("reader", sc.read("r", b, 2))
			sc.actor("writer", sc.write(a, 300), sc.write(a, 300))
		},
		"a read of nothing": func(sc *scene) {
			sc.open(false)
			a, b := sc.connected()
			sc.actor("borrower", sc.borrow(b))
			sc.actor("nothing", sc.read("0", b, 0))
			sc.actor("reader", sc.read("r", b, 2))
			sc.actor("writer", sc.write(a, 5))
		},
		"readers with a deadline": func(sc *scene) {
			sc.open(false)
			sc.ticks = 1
			a, b := sc.connected()
			sc.actor("reader 1", sc.read("1", b, 8))
			sc.actor("reader 2", sc.read("2", b, 8))
			sc.actor("deadline", call{func() { b.SetReadDeadline(time.Now().Add(time.Millisecond)) }, nil})
			sc.actor("writer", sc.write(a, 5))
			sc.actor("poller", sc.receive(sc.udp(1)))
		},
		"readers of a connection that ends": func(sc *scene) {
			sc.open(false)
			a, b := sc.connected()
			sc.actor("reader 1", sc.read("1", b, 8))
			sc.actor("reader 2", sc.read("2", b, 8))
			sc.actor("peer", sc.write(a, 5), call{func() { a.Close() }, nil})
			sc.actor("closer", call{func() { b.Close() }, nil})
		},
		"writers": func(sc *scene) {
			sc.open(false)
			a, b := sc.connected()
			a.SetWriteBuffer(4096)
			b.SetReadBuffer(4096)
			sc.actor("writer 1", sc.write(a, 9000))
			sc.actor("writer 2", sc.write(a, 9000))
			sc.actor("reader", sc.drain(b))
			sc.actor("poller", sc.receive(sc.udp(1)))
		},
		"writers, and a larger buffer": func(sc *scene) {
			sc.open(false)
			a, b := sc.connected()
			a.SetWriteBuffer(4096)
			b.SetReadBuffer(4096)
			sc.actor("writer 1", sc.write(a, 120_000))
			sc.actor("writer 2", sc.write(a, 100))
			sc.actor("setter", call{func() { a.SetWriteBuffer(1 << 20) }, nil})
			sc.actor("poller", sc.receive(sc.udp(1)))
		},
		"writers with a deadline, and Close": func(sc *scene) {
			sc.open(false)
			sc.ticks = 2
			a, b := sc.connected()
			a.SetWriteBuffer(4096)
			b.SetReadBuffer(4096)
			sc.actor("writer 1", sc.write(a, 120_000))
			sc.actor("writer 2", sc.write(a, 120_000))
			sc.actor("deadline", call{func() { a.SetWriteDeadline(time.Now().Add(time.Millisecond)) }, nil})
			sc.actor("closer", call{func() { b.Close() }, nil})
		},
		"acceptors": func(sc *scene) {
			sc.open(false)
			l := ok(sc.s.ListenTCP(port(80), TCPListenOptions{}))
			sc.lists = append(sc.lists, l)
			accept := call{func() { l.Accept() }, func() bool { return l.listener.Len() > 0 || l.closed || sc.s.look() >= l.deadline }}
			dial := call{func() { sc.s.DialTCP(noContext{}, netip.AddrPort{}, port(80), TCPOptions{}) }, nil}
			sc.actor("acceptor 1", accept)
			sc.actor("acceptor 2", accept)
			sc.actor("dialer", dial, dial)
			sc.actor("poller", sc.receive(sc.udp(1)))
		},
		"acceptors, deadline and Close": func(sc *scene) {
			sc.open(false)
			sc.ticks = 2
			l := ok(sc.s.ListenTCP(port(80), TCPListenOptions{}))
			sc.lists = append(sc.lists, l)
			accept := call{func() { l.Accept() }, func() bool { return l.listener.Len() > 0 || l.closed || sc.s.look() >= l.deadline }}
			sc.actor("acceptor 1", accept)
			sc.actor("acceptor 2", accept)
			sc.actor("deadline", call{func() { l.SetDeadline(time.Now().Add(time.Millisecond)) }, nil})
			sc.actor("dialer", call{func() { sc.s.DialTCP(noContext{}, netip.AddrPort{}, port(80), TCPOptions{}) }, nil})
		},
		"readers of a UDP socket": func(sc *scene) {
			sc.open(false)
			u, v := sc.udp(1), sc.udp(2)
			sc.actor("reader 1", sc.receive(u))
			sc.actor("reader 2", sc.receive(u))
			sc.actor("poller", sc.receive(v))
			sc.actor("sender", sc.send(v, 1), sc.send(v, 1), sc.send(u, 2))
		},
		"readers of a UDP socket, deadline and Close": func(sc *scene) {
			sc.open(false)
			sc.ticks = 1
			u, v := sc.udp(1), sc.udp(2)
			sc.actor("reader 1", sc.receive(u))
			sc.actor("reader 2", sc.receive(u))
			sc.actor("poller", sc.receive(v))
			sc.actor("deadline", call{func() { u.SetReadDeadline(time.Now().Add(time.Millisecond)) }, nil})
			sc.actor("sender", sc.send(v, 1), call{func() { v.Close() }, nil})
		},
		"the caretaker": func(sc *scene) {
			l := sc.open(true)
			sc.ticks = 2
			u, v := sc.udp(1), sc.udp(2)
			sc.afterwards()
			datagram := make([]byte, 0, 64)
			datagram = append(datagram, make([]byte, headersLen4+wire.UDPHeaderLen+1)...)
			wire.PutEthernet(datagram, wire.LinkAddr{4}, wire.LinkAddr{2}, wire.EtherTypeIPv4)
			wire.PutIPv4(datagram[wire.EthernetHeaderLen:], wire.IPv4Fields{TotalLen: uint16(len(datagram) - wire.EthernetHeaderLen), TTL: 64, Protocol: wire.ProtocolUDP,
				Src: [4]byte{10, 0, 0, 2}, Dst: [4]byte{10, 0, 0, 1}})
			udp := datagram[headersLen4:]
			udp[1], udp[3], udp[5] = 9, 1, wire.UDPHeaderLen+1 // from port 9 to port 1, no checksum
			sc.actor("reader 1", sc.receive(u))
			sc.actor("reader 2", sc.receive(v))
			sc.actor("wire", call{func() { l.put(datagram) }, nil})
			sc.actor("sender", sc.send(v, 2))
		},
	} {
		t.Run(name, func(t *testing.T) { trySchedules(t, build) })
	}
}
