//go:build unetdebug && !race

package stack

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/wire"
)

// queueLink is a link on which a test puts frames.
type queueLink struct {
	frames [][]byte
	wake   chan struct{}
}

func (l *queueLink) Borrow(frames []Frame) (n int) {
	for n = 0; n < len(frames) && len(l.frames) > 0; n++ {
		frames[n] = Frame{Data: l.frames[0]}
		l.frames = l.frames[1:]
	}
	return n
}
func (l *queueLink) Return(Frame)              {}
func (l *queueLink) Cancel(Frame)              {}
func (l *queueLink) Reserve(int) (Frame, bool) { return Frame{Data: make([]byte, 2048)}, true }
func (l *queueLink) Send(Frame) bool           { return true }
func (l *queueLink) Flush() error              { return nil }
func (l *queueLink) Pending() bool             { return len(l.frames) > 0 }
func (l *queueLink) Frames() int               { return 4096 }
func (l *queueLink) Wake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *queueLink) Sleep(until time.Time, _ bool) error {
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
func (l *queueLink) put(b []byte) {
	l.frames = append(l.frames, b)
	l.Wake()
}

func port(n uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), n)
}

func (r *scheduleRun) open(caretaker bool) *queueLink {
	l := &queueLink{wake: make(chan struct{}, 1)}
	r.s = testutil.Value(New(Config{Link: l, LinkAddr: wire.LinkAddr{2}, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}, OwnedAddress: true, Resolver: noRoutes{},
		Wait: endpoint.WaitBlock, NoCaretaker: !caretaker}))
	return l
}

// letCaretakerPoll lets the caretaker take the role, before the actors begin.
func (r *scheduleRun) letCaretakerPoll() { time.Sleep(20 * time.Millisecond) }

func (r *scheduleRun) udp(n uint16) *UDPConn {
	u := testutil.Value(r.s.ListenUDP(port(n), UDPOptions{}))
	r.udpConns = append(r.udpConns, u)
	return u
}

// connected makes the two ends of a connection in the stack.
func (r *scheduleRun) connected() (a, b *TCPConn) {
	l := testutil.Value(r.s.ListenTCP(port(80), TCPListenOptions{}))
	a = testutil.Value(r.s.DialTCP(noContext{}, netip.AddrPort{}, port(80), TCPOptions{}))
	b = testutil.Value(l.AcceptTCP())
	l.Close()
	r.conns = append(r.conns, a, b)
	return a, b
}

type noRoutes struct{}

func (noRoutes) Resolve(context.Context, netip.Addr, netip.Addr) (Route, error) {
	return Route{}, syscall.EHOSTUNREACH
}

// noContext never ends, and starts no goroutine.
type noContext struct{}

func (noContext) Deadline() (t time.Time, ok bool) { return }
func (noContext) Done() <-chan struct{}            { return nil }
func (noContext) Err() error                       { return nil }
func (noContext) Value(any) any                    { return nil }

func (r *scheduleRun) receive(u *UDPConn) call {
	buf := make([]byte, 10)
	return call{func() { u.ReadFromUDPAddrPort(buf) }, func() bool { return u.udp.Len() > 0 || u.closed || r.s.look() >= u.readDeadline }}
}

func (r *scheduleRun) send(u *UDPConn, to uint16) call {
	return call{func() { u.WriteToUDPAddrPort([]byte("x"), port(to)) }, nil}
}

func (r *scheduleRun) read(name string, c *TCPConn, n int) call {
	buf := make([]byte, n)
	r.bufs[name] = buf
	return call{func() { c.Read(buf) }, r.toRead(c)}
}

// drain reads until the end of the connection.
func (r *scheduleRun) drain(c *TCPConn) call {
	buf := make([]byte, 1<<20)
	return call{func() {
		for _, err := c.Read(buf); err == nil; {
			_, err = c.Read(buf)
		}
	}, r.toRead(c)}
}

func (r *scheduleRun) borrow(c *TCPConn) call {
	return call{func() {
		if text, err := c.Borrow(); err == nil {
			c.Return(&text)
		}
	}, r.toRead(c)}
}

func (r *scheduleRun) toRead(c *TCPConn) func() bool {
	return func() bool { return c.conn.Readable() || c.closed || r.s.look() >= c.readDeadline }
}

func (r *scheduleRun) write(c *TCPConn, n int) call {
	text := make([]byte, n)
	return call{func() { c.Write(text) }, func() bool {
		return !c.writing || c.closed || r.s.look() >= c.writeDeadline || c.conn.Room() >= r.room(c)
	}}
}

// room is how many bytes must be free before a writer that waits is woken.
func (r *scheduleRun) room(c *TCPConn) int { return (c.conn.Room() + c.conn.Unacknowledged()) / 4 }

// In no schedule does a goroutine sleep for ever although what it waits for has happened, or
// although no other goroutine polls.
func TestNoWakeupIsLostInAnySchedule(t *testing.T) {
	for name, build := range map[string]func(*scheduleRun){
		// The poller leaves and offers its role to a reader whose memory is posted; another
		// goroutine takes the role first, and the reader is parked again as the last one.
		"readers of a connection": func(r *scheduleRun) {
			r.open(false)
			_, b := r.connected()
			a := r.conns[0]
			u, v := r.udp(1), r.udp(2)
			r.actor("poller", r.receive(u))
			r.actor("reader 1", r.read("1", b, 8))
			r.actor("reader 2", r.read("2", b, 8))
			r.actor("newcomer", r.receive(v))
			r.actor("writer", r.send(u, 1), r.write(a, 5))
		},
		"readers, twice": func(r *scheduleRun) {
			r.open(false)
			a, b := r.connected()
			r.actor("reader 1", r.read("1", b, 3), r.read("1", b, 3))
			r.actor("reader 2", r.read("2", b, 8))
			r.actor("writer", r.write(a, 5), r.write(a, 5))
			r.actor("poller", r.receive(r.udp(1)))
		},
		"borrowers": func(r *scheduleRun) {
			r.open(false)
			a, b := r.connected()
			r.actor("borrower 1", r.borrow(b))
			r.actor("borrower 2", r.borrow(b))
			r.actor("reader", r.read("r", b, 2))
			r.actor("writer", r.write(a, 300), r.write(a, 300))
		},
		"a read of nothing": func(r *scheduleRun) {
			r.open(false)
			a, b := r.connected()
			r.actor("borrower", r.borrow(b))
			r.actor("nothing", r.read("0", b, 0))
			r.actor("reader", r.read("r", b, 2))
			r.actor("writer", r.write(a, 5))
		},
		"readers with a deadline": func(r *scheduleRun) {
			r.open(false)
			r.timeSteps = 1
			a, b := r.connected()
			r.actor("reader 1", r.read("1", b, 8))
			r.actor("reader 2", r.read("2", b, 8))
			r.actor("deadline", call{func() { b.SetReadDeadline(time.Now().Add(time.Millisecond)) }, nil})
			r.actor("writer", r.write(a, 5))
			r.actor("poller", r.receive(r.udp(1)))
		},
		"readers of a connection that ends": func(r *scheduleRun) {
			r.open(false)
			a, b := r.connected()
			r.actor("reader 1", r.read("1", b, 8))
			r.actor("reader 2", r.read("2", b, 8))
			r.actor("peer", r.write(a, 5), call{func() { a.Close() }, nil})
			r.actor("closer", call{func() { b.Close() }, nil})
		},
		"writers": func(r *scheduleRun) {
			r.open(false)
			a, b := r.connected()
			a.SetWriteBuffer(4096)
			b.SetReadBuffer(4096)
			r.actor("writer 1", r.write(a, 9000))
			r.actor("writer 2", r.write(a, 9000))
			r.actor("reader", r.drain(b))
			r.actor("poller", r.receive(r.udp(1)))
		},
		"writers, and a larger buffer": func(r *scheduleRun) {
			r.open(false)
			a, b := r.connected()
			a.SetWriteBuffer(4096)
			b.SetReadBuffer(4096)
			r.actor("writer 1", r.write(a, 120_000))
			r.actor("writer 2", r.write(a, 100))
			r.actor("setter", call{func() { a.SetWriteBuffer(1 << 20) }, nil})
			r.actor("poller", r.receive(r.udp(1)))
		},
		"writers with a deadline, and Close": func(r *scheduleRun) {
			r.open(false)
			r.timeSteps = 2
			a, b := r.connected()
			a.SetWriteBuffer(4096)
			b.SetReadBuffer(4096)
			r.actor("writer 1", r.write(a, 120_000))
			r.actor("writer 2", r.write(a, 120_000))
			r.actor("deadline", call{func() { a.SetWriteDeadline(time.Now().Add(time.Millisecond)) }, nil})
			r.actor("closer", call{func() { b.Close() }, nil})
		},
		"acceptors": func(r *scheduleRun) {
			r.open(false)
			l := testutil.Value(r.s.ListenTCP(port(80), TCPListenOptions{}))
			r.listeners = append(r.listeners, l)
			accept := call{func() { l.Accept() }, func() bool { return l.listener.Len() > 0 || l.closed || r.s.look() >= l.deadline }}
			dial := call{func() { r.s.DialTCP(noContext{}, netip.AddrPort{}, port(80), TCPOptions{}) }, nil}
			r.actor("acceptor 1", accept)
			r.actor("acceptor 2", accept)
			r.actor("dialer", dial, dial)
			r.actor("poller", r.receive(r.udp(1)))
		},
		"acceptors, deadline and Close": func(r *scheduleRun) {
			r.open(false)
			r.timeSteps = 2
			l := testutil.Value(r.s.ListenTCP(port(80), TCPListenOptions{}))
			r.listeners = append(r.listeners, l)
			accept := call{func() { l.Accept() }, func() bool { return l.listener.Len() > 0 || l.closed || r.s.look() >= l.deadline }}
			r.actor("acceptor 1", accept)
			r.actor("acceptor 2", accept)
			r.actor("deadline", call{func() { l.SetDeadline(time.Now().Add(time.Millisecond)) }, nil})
			r.actor("dialer", call{func() { r.s.DialTCP(noContext{}, netip.AddrPort{}, port(80), TCPOptions{}) }, nil})
		},
		"readers of a UDP socket": func(r *scheduleRun) {
			r.open(false)
			u, v := r.udp(1), r.udp(2)
			r.actor("reader 1", r.receive(u))
			r.actor("reader 2", r.receive(u))
			r.actor("poller", r.receive(v))
			r.actor("sender", r.send(v, 1), r.send(v, 1), r.send(u, 2))
		},
		"readers of a UDP socket, deadline and Close": func(r *scheduleRun) {
			r.open(false)
			r.timeSteps = 1
			u, v := r.udp(1), r.udp(2)
			r.actor("reader 1", r.receive(u))
			r.actor("reader 2", r.receive(u))
			r.actor("poller", r.receive(v))
			r.actor("deadline", call{func() { u.SetReadDeadline(time.Now().Add(time.Millisecond)) }, nil})
			r.actor("sender", r.send(v, 1), call{func() { v.Close() }, nil})
		},
		"the caretaker": func(r *scheduleRun) {
			l := r.open(true)
			r.timeSteps = 2
			u, v := r.udp(1), r.udp(2)
			r.letCaretakerPoll()
			datagram := make([]byte, 0, 64)
			datagram = append(datagram, make([]byte, headersLen4+wire.UDPHeaderLen+1)...)
			wire.PutEthernet(datagram, wire.LinkAddr{4}, wire.LinkAddr{2}, wire.EtherTypeIPv4)
			wire.PutIPv4(datagram[wire.EthernetHeaderLen:], wire.IPv4Fields{TotalLen: uint16(len(datagram) - wire.EthernetHeaderLen), TTL: 64, Protocol: wire.ProtocolUDP,
				Src: [4]byte{10, 0, 0, 2}, Dst: [4]byte{10, 0, 0, 1}})
			udp := datagram[headersLen4:]
			udp[1], udp[3], udp[5] = 9, 1, wire.UDPHeaderLen+1 // from port 9 to port 1, no checksum
			r.actor("reader 1", r.receive(u))
			r.actor("reader 2", r.receive(v))
			r.actor("wire", call{func() { l.put(datagram) }, nil})
			r.actor("sender", r.send(v, 2))
		},
	} {
		t.Run(name, func(t *testing.T) { trySchedules(t, build) })
	}
}
