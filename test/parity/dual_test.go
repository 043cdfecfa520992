package parity

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"
)

// served describes the address of a listener, and the connections to it at each address of the server.
func (w *hostPair) served(network, address string) string {
	l, err := w.server.Listen(w.Context(), network, address)
	w.must(err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	w.must(err)
	results := []string{normalized(l.Addr().String())}
	for _, at := range []string{w.serverIP4, w.serverIP} {
		c, err := w.client.DialContext(w.Context(), "tcp", at+":"+port)
		if err != nil {
			results = append(results, describe(err))
			continue
		}
		s, err := l.Accept()
		w.must(err)
		results = append(results, fmt.Sprint(
			normalized(s.LocalAddr().String()), s.LocalAddr().String() == c.RemoteAddr().String(), s.RemoteAddr().String() == c.LocalAddr().String()))
		c.Close()
		s.Close()
	}
	return strings.Join(results, "; ")
}

// dualSocket is a packet socket of the server, and its port.
func (w *hostPair) dualSocket(network, address string) (udpConn, string) {
	c, err := w.server.ListenPacket(w.Context(), network, address)
	w.must(err)
	w.Cleanup(func() { c.Close() })
	w.must(c.SetDeadline(time.Now().Add(time.Minute)))
	_, port, err := net.SplitHostPort(c.LocalAddr().String())
	w.must(err)
	return c.(udpConn), port
}

// dualFacts are about hosts with addresses of both families.
var dualFacts = []fact{
	{name: "listen by tcp", observe: func(w *hostPair) string { return w.served("tcp", ":0") }},
	{name: "listen by tcp at [::]", observe: func(w *hostPair) string { return w.served("tcp", "[::]:0") }},
	{name: "listen by tcp at 0.0.0.0", observe: func(w *hostPair) string { return w.served("tcp", "0.0.0.0:0") }},
	{name: "listen by tcp4", observe: func(w *hostPair) string {
		return strings.Replace(w.served("tcp4", ":0"), "0.0.0.0:port;", "host:port;", 1) // what is shown differs, docs/compatibility.md
	}},
	{name: "listen by tcp6", observe: func(w *hostPair) string {
		return strings.Replace(w.served("tcp6", ":0"), "[::]:port;", "host:port;", 1)
	}},
	{name: "listen at an IPv4 address", observe: func(w *hostPair) string { return w.served("tcp", w.serverIP4+":0") }},
	{name: "listen at an IPv6 address", observe: func(w *hostPair) string { return w.served("tcp", w.serverIP+":0") }},
	{name: "address of a packet socket of both families", observe: func(w *hostPair) string {
		c, _ := w.dualSocket("udp", ":0")
		return normalized(c.LocalAddr().String())
	}},
	{name: "the families have ports of their own", observe: func(w *hostPair) string {
		l, err := w.server.Listen(w.Context(), "tcp4", ":0")
		w.must(err)
		defer l.Close()
		_, port, err := net.SplitHostPort(l.Addr().String())
		w.must(err)
		l6, err := w.server.Listen(w.Context(), "tcp6", ":"+port)
		w.must(err)
		return describe(l6.Close())
	}},
	{name: "listen at a port that one family has in use", observe: func(w *hostPair) string {
		l, err := w.server.Listen(w.Context(), "tcp4", ":0")
		w.must(err)
		defer l.Close()
		_, port, err := net.SplitHostPort(l.Addr().String())
		w.must(err)
		_, err = w.server.Listen(w.Context(), "tcp", "0.0.0.0:"+port)
		return describe(err)
	}},
	{name: "datagrams of both families", observe: func(w *hostPair) string {
		c, port := w.dualSocket("udp", ":0")
		var results []string
		for _, at := range []string{w.serverIP4, w.serverIP} {
			p, err := w.client.DialContext(w.Context(), "udp", at+":"+port)
			w.must(err)
			defer p.Close()
			w.must(p.SetDeadline(time.Now().Add(time.Minute)))
			_, err = p.Write([]byte(at))
			w.must(err)
			b := make([]byte, 20)
			n, from, err := c.ReadFrom(b)
			w.must(err)
			_, err = c.WriteTo(b[:n], from)
			w.must(err)
			n, err = p.Read(b)
			results = append(results, fmt.Sprint(string(b[:n]) == at, from.String() == p.LocalAddr().String(), err))
		}
		return strings.Join(results, "; ")
	}},
	{name: "the sender of an IPv4 datagram as AddrPort", observe: func(w *hostPair) string {
		c, port := w.dualSocket("udp", ":0")
		p, err := w.client.DialContext(w.Context(), "udp", w.serverIP4+":"+port)
		w.must(err)
		defer p.Close()
		_, err = p.Write([]byte("x"))
		w.must(err)
		_, from, err := c.ReadFromUDPAddrPort(make([]byte, 2))
		return fmt.Sprint(from.Addr().Is4(), err)
	}, unet: "true <nil>", why: "it equals the address that was dialled from"},
	{name: "WriteTo an IPv4 address from a udp6 socket", observe: func(w *hostPair) string {
		c, _ := w.dualSocket("udp6", ":0")
		_, err := c.WriteTo([]byte("x"), &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 9})
		return fmt.Sprint(err != nil)
	}},
	{name: "WriteToUDPAddrPort an IPv4 address from a socket of both families", observe: func(w *hostPair) string {
		c, _ := w.dualSocket("udp", ":0")
		s, port := w.dualSocket("udp4", w.serverIP4+":0")
		_, err := c.WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort(w.serverIP4+":"+port))
		return describe(err) + read(s, 2)
	}},
	{name: "dial an IPv6 address from an IPv4 one", observe: func(w *hostPair) string {
		_, err := w.client.dialer(0, time.Time{}, &net.TCPAddr{IP: net.ParseIP(w.serverIP4)}, nil).DialContext(w.Context(), "tcp", w.refused())
		return fmt.Sprint(err != nil)
	}},
	{name: "dial a name of both families, the first refuses", observe: func(w *hostPair) string {
		l, err := w.server.Listen(w.Context(), "tcp4", w.serverIP4+":0")
		w.must(err)
		defer l.Close()
		_, port, err := net.SplitHostPort(l.Addr().String())
		w.must(err)
		r := resolverOf(map[string][]string{"both.test": {w.serverIP, w.serverIP4}})
		c, err := w.client.dialer(0, time.Time{}, nil, r).DialContext(w.Context(), "tcp", "both.test:"+port)
		w.must(err)
		defer c.Close()
		return fmt.Sprint(c.RemoteAddr().String() == l.Addr().String())
	}},
	{name: "dial a name of both families by tcp6", observe: func(w *hostPair) string {
		r := resolverOf(map[string][]string{"both.test": {w.serverIP4, w.serverIP}})
		_, err := w.client.dialer(0, time.Time{}, nil, r).DialContext(w.Context(), "tcp6", "both.test:9")
		return describe(err)
	}},
	{name: "dial an IPv4 address by tcp6", observe: func(w *hostPair) string {
		_, err := w.client.DialContext(w.Context(), "tcp6", "192.0.2.1:80")
		return describe(err)
	}},
}
