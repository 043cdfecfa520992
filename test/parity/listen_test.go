package parity

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"
)

// listenError is a fact about a listen of the server that fails.
func listenError(name, network, address string) fact {
	return fact{name: name, observe: func(w *hostPair) string {
		_, err := w.server.Listen(w.Context(), network, address)
		return describe(err)
	}}
}

func listenPacketError(name, network, address string) fact {
	return fact{name: name, observe: func(w *hostPair) string {
		_, err := w.server.ListenPacket(w.Context(), network, address)
		return describe(err)
	}}
}

var listenFacts = []fact{
	listenError("listen on an unknown network", "xcp", ":0"),
	listenError("listen without a port", "tcp", "127.0.0.1"),
	listenError("listen on a port out of range", "tcp", ":65536"),
	listenError("listen on an unknown service", "tcp", ":nosuchservice"),
	listenError("listen at another host's address", "tcp", "192.0.2.1:0"),
	listenError("listen at another host's address by tcp4", "tcp4", "192.0.2.1:0"),
	listenError("listen at an IPv6 address by tcp4", "tcp4", "[2001:db8::1]:0"),
	listenPacketError("listen for packets on an unknown network", "xdp", ":0"),
	listenPacketError("listen for packets without a port", "udp", "127.0.0.1"),
	listenPacketError("listen for packets at another host's address", "udp", "192.0.2.1:0"),
	listenPacketError("listen for packets at another host's address by udp4", "udp4", "192.0.2.1:0"),
	{name: "listen, the context has been cancelled", observe: func(w *hostPair) string {
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		l, err := w.server.Listen(ctx, "tcp", w.serverIP+":0")
		if err == nil {
			l.Close()
		}
		return describe(err)
	}},
	{name: "listen on a port in use", observe: func(w *hostPair) string {
		l := w.listen()
		_, err := w.server.Listen(w.Context(), "tcp", l.Addr().String())
		return describe(err)
	}},
	{name: "listen for packets on a port in use", observe: func(w *hostPair) string {
		c, err := w.server.ListenPacket(w.Context(), "udp", w.serverIP+":0")
		w.must(err)
		defer c.Close()
		_, err = w.server.ListenPacket(w.Context(), "udp", c.LocalAddr().String())
		return describe(err)
	}},
	{name: "TCP and UDP have ports of their own", observe: func(w *hostPair) string {
		l := w.listen()
		c, err := w.server.ListenPacket(w.Context(), "udp", l.Addr().String())
		w.must(err)
		return describe(c.Close())
	}},
	{name: "a port can be listened on again", observe: func(w *hostPair) string {
		l := w.listen()
		w.must(l.Close())
		l, err := w.server.Listen(w.Context(), "tcp", l.Addr().String())
		w.must(err)
		return describe(l.Close())
	}},
	{name: "address of a listener", observe: func(w *hostPair) string {
		l := w.listen()
		a := l.Addr().(*net.TCPAddr)
		return fmt.Sprint(normalized(a.String()), a.Network(), len(a.IP), a.Zone, a.Port == 0)
	}},
	{name: "address of a packet socket", observe: func(w *hostPair) string {
		a := w.udp().LocalAddr().(*net.UDPAddr)
		return fmt.Sprint(normalized(a.String()), a.Network(), len(a.IP), a.Zone, a.Port == 0)
	}},
	{name: "close a listener twice", observe: func(w *hostPair) string {
		l := w.listen()
		w.must(l.Close())
		return describe(l.Close())
	}},
	{name: "address of a closed listener", observe: func(w *hostPair) string {
		l := w.listen()
		w.must(l.Close())
		return normalized(l.Addr().String())
	}},
	{name: "accept at a closed listener", observe: func(w *hostPair) string {
		l := w.listen()
		w.must(l.Close())
		_, err := l.Accept()
		return describe(err)
	}},
	{name: "close while accepting", observe: func(w *hostPair) string {
		l := w.listen()
		return w.endWhileBlocked(func() error { _, err := l.Accept(); return err }, func() error { return l.Close() })
	}},
	{name: "a deadline that has passed while accepting", observe: func(w *hostPair) string {
		l := w.listen()
		return w.endWhileBlocked(func() error { _, err := l.Accept(); return err }, func() error { return deadlineOf(l, past) })
	}},
	{name: "accept after the deadline", observe: func(w *hostPair) string {
		l := w.listen()
		w.must(deadlineOf(l, past))
		_, err := l.Accept()
		return describe(err)
	}},
	{name: "deadline of a closed listener", observe: func(w *hostPair) string {
		l := w.listen()
		w.must(l.Close())
		return describe(deadlineOf(l, past))
	}},
	{name: "accept after a deadline was taken back", observe: func(w *hostPair) string {
		l := w.listen()
		w.must(deadlineOf(l, past))
		w.must(deadlineOf(l, time.Time{}))
		c, err := w.client.DialContext(w.Context(), "tcp", l.Addr().String())
		w.must(err)
		defer c.Close()
		s, err := l.Accept()
		w.must(err)
		return describe(s.Close())
	}},
	{name: "a connection that was not accepted when the listener closed", observe: func(w *hostPair) string {
		l := w.listen()
		c, err := w.client.DialContext(w.Context(), "tcp", l.Addr().String())
		w.must(err)
		defer c.Close()
		w.must(l.Close())
		_, err = c.Read(make([]byte, 1))
		return describe(err)
	}},
	{name: "an accepted connection is open after its listener was closed", observe: func(w *hostPair) string {
		c, s := w.tcp() // which closes the listener
		_, err := c.Write([]byte("x"))
		w.must(err)
		return read(s, 2)
	}},
	{name: "the two ends agree on their addresses", observe: func(w *hostPair) string {
		c, s := w.tcp()
		return fmt.Sprint(c.LocalAddr().String() == s.RemoteAddr().String(), c.RemoteAddr().String() == s.LocalAddr().String())
	}},
	{name: "data sent before the accept", observe: func(w *hostPair) string {
		l := w.listen()
		c, err := w.client.DialContext(w.Context(), "tcp", l.Addr().String())
		w.must(err)
		_, err = c.Write([]byte("early"))
		w.must(err)
		w.must(c.Close())
		s, err := l.Accept()
		w.must(err)
		defer s.Close()
		b, err := io.ReadAll(s)
		return fmt.Sprintf("%s %v", b, err)
	}},
}

func deadlineOf(l net.Listener, t time.Time) error {
	return l.(interface{ SetDeadline(time.Time) error }).SetDeadline(t)
}

// endWhileBlocked calls end while call is blocked, or is about to block, and describes the error of
// call.
func (w *hostPair) endWhileBlocked(call, end func() error) string {
	w.Helper()
	got := make(chan error)
	go func() { got <- call() }()
	for range 100 { // in most runs call blocks meanwhile; both orders have the same result
		time.Sleep(10 * time.Microsecond)
	}
	w.must(end())
	return describe(<-got)
}
