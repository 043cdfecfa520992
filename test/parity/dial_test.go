package parity

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// dialError is a fact about a dial of the client that fails.
func dialError(name, network, address string) fact {
	return fact{name: name, observe: func(w *hostPair) string {
		_, err := w.client.DialContext(w.Context(), network, address)
		return describe(err)
	}}
}

// refused is an address of the server at which nothing listens.
func (w *hostPair) refused() string { return w.serverIP + ":9" }

// foreignIP is an address that no host has.
func (w *hostPair) foreignIP() net.IP {
	if w.family == "6" {
		return net.ParseIP("2001:db8::1")
	}
	return net.IPv4(192, 0, 2, 1)
}

var dialFacts = []fact{
	dialError("dial an unknown network", "xcp", "127.0.0.1:1"),
	dialError("dial no network", "", "127.0.0.1:1"),
	dialError("dial no address", "tcp", ""),
	dialError("dial no port", "tcp", "127.0.0.1"),
	dialError("dial a port out of range", "tcp", "127.0.0.1:65536"),
	dialError("dial a negative port", "udp", "127.0.0.1:-1"),
	dialError("dial an unknown service", "tcp", "127.0.0.1:nosuchservice"),
	dialError("dial too many colons", "tcp", "127.0.0.1:1:2"),
	dialError("dial a missing bracket", "tcp", "[127.0.0.1:1"),
	dialError("dial an IPv6 address by tcp4", "tcp4", "[2001:db8::1]:80"),
	dialError("dial an IPv6 address by udp4", "udp4", "[2001:db8::1]:80"),
	{name: "dial, refused", observe: func(w *hostPair) string {
		_, err := w.client.DialContext(w.Context(), "tcp", w.refused())
		return describe(err)
	}},
	{name: "dial tcp4, refused", observe: func(w *hostPair) string {
		_, err := w.client.DialContext(w.Context(), "tcp4", w.refused())
		return describe(err)
	}},
	{name: "dial a service by name, refused", observe: func(w *hostPair) string {
		_, err := w.client.DialContext(w.Context(), "tcp", w.serverIP+":discard")
		return describe(err)
	}},
	{name: "dial an IPv4 address in an IPv6 one", only4: true, observe: func(w *hostPair) string {
		_, err := w.client.DialContext(w.Context(), "tcp", "[::ffff:"+w.serverIP+"]:9")
		return describe(err)
	}},
	{name: "dial, the context has been cancelled", observe: func(w *hostPair) string {
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		_, err := w.client.DialContext(ctx, "tcp", w.refused())
		return describe(err)
	}},
	{name: "dial udp, the context has been cancelled", observe: func(w *hostPair) string {
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		_, err := w.client.DialContext(ctx, "udp", w.refused())
		return describe(err)
	}},
	{name: "dial, the context's cause is not in the error", observe: func(w *hostPair) string {
		ctx, cancel := context.WithCancelCause(w.Context())
		cancel(fmt.Errorf("no longer wanted"))
		_, err := w.client.DialContext(ctx, "tcp", w.refused())
		return describe(err)
	}},
	{name: "dial, the deadline has passed", observe: func(w *hostPair) string {
		ctx, cancel := context.WithDeadline(w.Context(), past)
		defer cancel()
		_, err := w.client.DialContext(ctx, "tcp", w.refused())
		return describe(err)
	}},
	{name: "dial udp, the deadline has passed", observe: func(w *hostPair) string {
		ctx, cancel := context.WithDeadline(w.Context(), past)
		defer cancel()
		_, err := w.client.DialContext(ctx, "udp", w.refused())
		return describe(err)
	}},
	{name: "Dialer.Deadline has passed", observe: func(w *hostPair) string {
		_, err := w.client.dialer(0, past, nil, nil).DialContext(w.Context(), "tcp", w.refused())
		return describe(err)
	}},
	{name: "Dialer.Timeout of a nanosecond", observe: func(w *hostPair) string {
		_, err := w.client.dialer(1, time.Time{}, nil, nil).DialContext(w.Context(), "tcp", w.refused())
		return describe(err)
	}},
	{name: "Dialer.Timeout that is not reached", observe: func(w *hostPair) string {
		l := w.listen()
		c, err := w.client.dialer(time.Hour, time.Time{}, nil, nil).DialContext(w.Context(), "tcp", l.Addr().String())
		if err == nil {
			c.Close()
		}
		return describe(err)
	}},
	{name: "Dialer.LocalAddr", observe: func(w *hostPair) string {
		l := w.listen()
		for {
			from := w.udp().LocalAddr().(*net.UDPAddr) // a port that no other test uses for UDP
			c, err := w.client.dialer(0, time.Time{}, &net.TCPAddr{IP: from.IP, Port: from.Port}, nil).DialContext(w.Context(), "tcp", l.Addr().String())
			if errors.Is(err, syscall.EADDRINUSE) {
				continue
			}
			w.must(err)
			defer c.Close()
			return fmt.Sprint(c.LocalAddr().String() == from.String())
		}
	}},
	{name: "Dialer.LocalAddr is a nil pointer", observe: func(w *hostPair) string {
		l := w.listen()
		c, err := w.client.dialer(0, time.Time{}, (*net.TCPAddr)(nil), nil).DialContext(w.Context(), "tcp", l.Addr().String())
		if err == nil {
			c.Close()
		}
		return describe(err)
	}},
	{name: "Dialer.LocalAddr without a port", observe: func(w *hostPair) string {
		l := w.listen()
		c, err := w.client.dialer(0, time.Time{}, &net.TCPAddr{IP: net.ParseIP(strings.Trim(w.clientIP, "[]"))}, nil).DialContext(w.Context(), "tcp", l.Addr().String())
		w.must(err)
		defer c.Close()
		return normalized(c.LocalAddr().String())
	}},
	{name: "Dialer.LocalAddr without an address", observe: func(w *hostPair) string {
		l := w.listen()
		c, err := w.client.dialer(0, time.Time{}, &net.TCPAddr{}, nil).DialContext(w.Context(), "tcp", l.Addr().String())
		w.must(err)
		defer c.Close()
		return normalized(c.LocalAddr().String())
	}},
	{name: "Dialer.LocalAddr of another protocol", observe: func(w *hostPair) string {
		_, err := w.client.dialer(0, time.Time{}, &net.UDPAddr{Port: 7}, nil).DialContext(w.Context(), "tcp", w.refused())
		return describe(err)
	}},
	{name: "Dialer.LocalAddr of another host", observe: func(w *hostPair) string {
		_, err := w.client.dialer(0, time.Time{}, &net.TCPAddr{IP: w.foreignIP()}, nil).DialContext(w.Context(), "tcp", w.refused())
		return describe(err)
	}},
	{name: "Dialer.LocalAddr of another host, udp", observe: func(w *hostPair) string {
		_, err := w.client.dialer(0, time.Time{}, &net.UDPAddr{IP: w.foreignIP()}, nil).DialContext(w.Context(), "udp", w.refused())
		return describe(err)
	}},
	{name: "dial a name that does not exist", observe: func(w *hostPair) string {
		_, err := w.client.dialer(0, time.Time{}, nil, resolverOf(nil)).DialContext(w.Context(), "tcp", "nosuch.test:80")
		return withoutServer(describe(err))
	}},
	{name: "dial a name without addresses", observe: func(w *hostPair) string {
		_, err := w.client.dialer(0, time.Time{}, nil, resolverOf(map[string][]string{"empty.test": {}})).DialContext(w.Context(), "tcp", "empty.test:80")
		return withoutServer(describe(err))
	}},
	{name: "dial a name, cancelled during the lookup", observe: func(w *hostPair) string {
		ctx, cancel := context.WithCancel(w.Context())
		r := resolverOf(nil)
		dial := r.Dial
		r.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			cancel()
			return dial(ctx, network, address)
		}
		_, err := w.client.dialer(0, time.Time{}, nil, r).DialContext(ctx, "tcp", "slow.test:80")
		return withoutServer(describe(err))
	}},
	{name: "dial a name of two addresses, the first refuses", observe: func(w *hostPair) string {
		l := w.listen()
		_, port, err := net.SplitHostPort(l.Addr().String())
		w.must(err)
		r := resolverOf(map[string][]string{"two.test": {w.other, w.serverIP}})
		c, err := w.client.dialer(0, time.Time{}, nil, r).DialContext(w.Context(), "tcp", "two.test:"+port)
		w.must(err)
		defer c.Close()
		return fmt.Sprint(c.RemoteAddr().String() == l.Addr().String())
	}},
	{name: "dial a name of two addresses, both refuse", observe: func(w *hostPair) string {
		r := resolverOf(map[string][]string{"two.test": {w.serverIP, w.other}})
		_, err := w.client.dialer(0, time.Time{}, nil, r).DialContext(w.Context(), "tcp", "two.test:9")
		return describe(err)
	}},
	{name: "dial a name by udp", observe: func(w *hostPair) string {
		r := resolverOf(map[string][]string{"two.test": {w.serverIP, w.other}})
		c, err := w.client.dialer(0, time.Time{}, nil, r).DialContext(w.Context(), "udp", "two.test:9")
		w.must(err)
		defer c.Close()
		return normalized(c.RemoteAddr().String())
	}},
	{name: "types of a dialled connection's addresses", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		u, _ := w.connected()
		return fmt.Sprintf("%T %T %T %T", c.LocalAddr(), c.RemoteAddr(), u.LocalAddr(), u.RemoteAddr())
	}},
	{name: "networks of a dialled connection's addresses", observe: func(w *hostPair) string {
		c, _ := w.tcp()
		u, _ := w.connected()
		return c.LocalAddr().Network() + c.RemoteAddr().Network() + u.LocalAddr().Network() + u.RemoteAddr().Network()
	}},
}

var dnsServer = regexp.MustCompile(` on [0-9a-f.:\[\]]+:53`)

// withoutServer is a text without the address of the DNS server in /etc/resolv.conf.
func withoutServer(text string) string { return dnsServer.ReplaceAllString(text, " on server") }
