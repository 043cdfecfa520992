//go:build linux

package addresses

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/netlab"
)

const (
	port      = 7000             // of the service on host A
	limit     = 10 * time.Second // of one exchange
	noAnswer  = "no answer"      // and no error, within limit
	datagrams = "datagrams"      // the network of UDP sockets that are not connected
)

// sockets opens sockets of a host.
type sockets interface {
	Listen(ctx context.Context, network, address string) (net.Listener, error)
	ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error)
	dial(network, from, to string) (net.Conn, error)
}

type kernelSockets struct {
	*netlab.Host
	errors bool // sockets that are not connected return ICMP errors
}

func (k kernelSockets) Listen(ctx context.Context, network, address string) (l net.Listener, err error) {
	err = k.Do(func() error { l, err = new(net.ListenConfig).Listen(ctx, network, address); return err })
	return l, err
}

func (k kernelSockets) ListenPacket(ctx context.Context, network, address string) (c net.PacketConn, err error) {
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			if k.errors { // one of these has no meaning for the socket
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, 1)
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
			}
		})
	}}
	err = k.Do(func() error { c, err = lc.ListenPacket(ctx, network, address); return err })
	return c, err
}

func (k kernelSockets) dial(network, from, to string) (c net.Conn, err error) {
	d := net.Dialer{Timeout: limit, LocalAddr: local(network, from)}
	err = k.Do(func() error { c, err = d.Dial(network, to); return err })
	return c, err
}

type unetSockets struct{ *unet.Host }

func (u unetSockets) dial(network, from, to string) (net.Conn, error) {
	return (&unet.Dialer{Host: u.Host, Timeout: limit, LocalAddr: local(network, from)}).Dial(network, to)
}

// local is the LocalAddr of a dialer for an address and any port; nil if it is empty.
func local(network, address string) net.Addr {
	switch {
	case address == "":
		return nil
	case network == "tcp":
		return &net.TCPAddr{IP: net.ParseIP(address)}
	default:
		return &net.UDPAddr{IP: net.ParseIP(address)}
	}
}

// toward is a socket that is not connected, and the one peer that it is used with.
type toward struct {
	net.PacketConn
	to, from net.Addr // from is the sender of the last datagram
}

func openToward(k sockets, from, to string) (net.Conn, error) {
	peer := netip.MustParseAddrPort(to)
	network := "udp6"
	if peer.Addr().Is4() {
		network = "udp4"
	}
	c, err := k.ListenPacket(context.Background(), network, net.JoinHostPort(from, "0"))
	if err != nil {
		return nil, err
	}
	return &toward{PacketConn: c, to: net.UDPAddrFromAddrPort(peer)}, nil
}

func (c *toward) RemoteAddr() net.Addr              { return c.to }
func (c *toward) Write(b []byte) (n int, err error) { return c.WriteTo(b, c.to) }
func (c *toward) Read(b []byte) (n int, err error) {
	n, c.from, err = c.ReadFrom(b)
	return n, err
}

// service answers each line with the line and the addresses of both ends, as far as it sees them.
type service struct {
	l      net.Listener
	p      net.PacketConn
	port   int
	failed sync.Map // the error of an answer that could not be sent, by the line
}

// serve serves TCP and UDP at the same address and port.
func serve(k sockets, family, address string) (*service, error) {
	l, err := k.Listen(context.Background(), "tcp"+family, address)
	if err != nil {
		return nil, err
	}
	s := &service{l: l, port: l.Addr().(*net.TCPAddr).Port}
	address = fmt.Sprintf("%s:%d", address[:strings.LastIndexByte(address, ':')], s.port)
	if s.p, err = k.ListenPacket(context.Background(), "udp"+family, address); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	go s.serveTCP()
	go s.serveUDP()
	return s, nil
}

func (s *service) serveTCP() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for lines := bufio.NewScanner(c); lines.Scan(); {
				fmt.Fprintf(c, "%s %s at %s\n", lines.Bytes(), host(c.RemoteAddr()), host(c.LocalAddr()))
			}
		}()
	}
}

func (s *service) serveUDP() {
	b := make([]byte, 2048)
	for {
		n, from, err := s.p.ReadFrom(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue
		}
		line := strings.TrimSuffix(string(b[:n]), "\n")
		if _, err := s.p.WriteTo([]byte(line+" "+host(from)+"\n"), from); err != nil {
			s.failed.Store(line, class(err))
		}
	}
}

func (s *service) close() { errors.Join(s.l.Close(), s.p.Close()) }

// host is the IP address of an address, without a zone.
func host(a net.Addr) string {
	return netip.MustParseAddrPort(a.String()).Addr().Unmap().WithZone("").String()
}

func connect(k sockets, network, from, to string) (net.Conn, error) {
	if network == datagrams {
		return openToward(k, from, to)
	}
	return k.dial(network, from, to)
}

// talk connects from an address to a service, and is one exchange with it.
func talk(k sockets, network, from, to string, served *service) string {
	c, err := connect(k, network, from, to)
	if err != nil {
		return class(err)
	}
	defer c.Close()
	again := limit / 20 // a datagram may be lost while unet does not know the route
	if network == "tcp" {
		again = 0
	}
	sees := exchange(c, "", served, again)
	client, _, _ := strings.Cut(sees, " ")
	if t, ok := c.(*toward); ok && t.from != nil {
		sees += ", answered from " + host(t.from)
	} else if says := host(c.LocalAddr()); !ok && net.ParseIP(client) != nil && client != says {
		sees += ", which says " + says
	}
	return sees
}

var lines atomic.Int64

// exchange is what a service answers to one line, which it has to repeat: the client as the service sees it. If served
// is given, errors of its answers are looked for. Without an answer the line is sent again at an interval, unless that is 0.
func exchange(c net.Conn, filler string, served *service, again time.Duration) string {
	line := fmt.Sprintf("line%d.%s", lines.Add(1), filler)
	var sent time.Time
	var got string
	b := make([]byte, 64<<10)
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if sent.IsZero() || again > 0 && time.Since(sent) > again {
			if _, err := c.Write([]byte(line + "\n")); err != nil {
				return class(err)
			}
			sent = time.Now()
		}
		c.SetReadDeadline(time.Now().Add(limit / 400))
		n, err := c.Read(b)
		got += string(b[:n])
		if _, rest, ok := strings.Cut(got, line); ok && strings.HasSuffix(rest, "\n") {
			return strings.TrimSpace(rest)
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return class(err)
		}
		if served == nil {
			continue
		}
		if failed, ok := served.failed.Load(line); ok {
			return "cannot answer: " + failed.(string)
		}
	}
	return noAnswer
}

// class is an error by the name of its errno.
func class(err error) string {
	var errno syscall.Errno
	var e net.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e) && e.Timeout():
		return noAnswer
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	default:
		return err.Error()
	}
}
