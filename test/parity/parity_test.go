package parity

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/dnstest"
	"github.com/unet-go/unet/unettest"
)

// netHost is a host with the calls of package net.
type netHost interface {
	Listen(ctx context.Context, network, address string) (net.Listener, error)
	ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error)
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
	// dialer is a Dialer of the host.
	dialer(timeout time.Duration, deadline time.Time, local net.Addr, r *net.Resolver) contextDialer
}

type contextDialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

type kernelHost struct{}

func (kernelHost) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, network, address)
}

func (kernelHost) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	return new(net.ListenConfig).ListenPacket(ctx, network, address)
}

func (kernelHost) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, address)
}

func (kernelHost) dialer(timeout time.Duration, deadline time.Time, local net.Addr, r *net.Resolver) contextDialer {
	return &net.Dialer{Timeout: timeout, Deadline: deadline, LocalAddr: local, Resolver: r}
}

type unetHost struct{ *unet.Host }

func (u unetHost) dialer(timeout time.Duration, deadline time.Time, local net.Addr, r *net.Resolver) contextDialer {
	return &unet.Dialer{Host: u.Host, Timeout: timeout, Deadline: deadline, LocalAddr: local, Resolver: r}
}

// hostPair is two hosts on which the facts of package net are observed.
type hostPair struct {
	*testing.T
	server, client     netHost
	serverIP, clientIP string
	serverIP4          string // of a server with both families
	other              string // an address of the server's network at which nothing answers
	family             string // "4" or "6"
}

func (w *hostPair) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// listen is a listener of the server.
func (w *hostPair) listen() net.Listener {
	w.Helper()
	l, err := w.server.Listen(w.Context(), "tcp", w.serverIP+":0")
	w.must(err)
	w.Cleanup(func() { l.Close() })
	return l
}

// tcp is a connection: the client's end and the server's.
func (w *hostPair) tcp() (client, server tcpConn) {
	w.Helper()
	l := w.listen()
	c, err := w.client.DialContext(w.Context(), "tcp", l.Addr().String())
	w.must(err)
	s, err := l.Accept()
	w.must(err)
	w.must(l.Close())
	w.Cleanup(func() { c.Close(); s.Close() })
	return c.(tcpConn), s.(tcpConn)
}

// udp is a socket of the client.
func (w *hostPair) udp() udpConn {
	w.Helper()
	c, err := w.client.ListenPacket(w.Context(), "udp"+w.family, w.clientIP+":0")
	w.must(err)
	w.Cleanup(func() { c.Close() })
	w.must(c.SetDeadline(time.Now().Add(time.Minute)))
	return c.(udpConn)
}

// connected is a socket of the client that is connected to a socket of the server.
func (w *hostPair) connected() (client, server udpConn) {
	w.Helper()
	s, err := w.server.ListenPacket(w.Context(), "udp"+w.family, w.serverIP+":0")
	w.must(err)
	c, err := w.client.DialContext(w.Context(), "udp", s.LocalAddr().String())
	w.must(err)
	w.Cleanup(func() { c.Close(); s.Close() })
	for _, c := range []interface{ SetDeadline(time.Time) error }{c, s} {
		w.must(c.SetDeadline(time.Now().Add(time.Minute)))
	}
	return c.(udpConn), s.(udpConn)
}

// tcpConn is what *net.TCPConn and *unet.TCPConn have in common.
type tcpConn interface {
	net.Conn
	io.ReaderFrom
	io.WriterTo
	CloseRead() error
	CloseWrite() error
	SetLinger(int) error
	SetNoDelay(bool) error
	SetKeepAlive(bool) error
	SetKeepAlivePeriod(time.Duration) error
	SetKeepAliveConfig(net.KeepAliveConfig) error
	SetReadBuffer(int) error
	SetWriteBuffer(int) error
}

// udpConn is what *net.UDPConn and *unet.UDPConn have in common.
type udpConn interface {
	net.Conn
	net.PacketConn
	ReadFromUDP([]byte) (int, *net.UDPAddr, error)
	ReadFromUDPAddrPort([]byte) (int, netip.AddrPort, error)
	ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error)
	ReadMsgUDPAddrPort(b, oob []byte) (n, oobn, flags int, addr netip.AddrPort, err error)
	WriteToUDP([]byte, *net.UDPAddr) (int, error)
	WriteToUDPAddrPort([]byte, netip.AddrPort) (int, error)
	WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error)
	WriteMsgUDPAddrPort(b, oob []byte, addr netip.AddrPort) (n, oobn int, err error)
	SetReadBuffer(int) error
	SetWriteBuffer(int) error
}

var (
	_ tcpConn = (*net.TCPConn)(nil)
	_ tcpConn = (*unet.TCPConn)(nil)
	_ udpConn = (*net.UDPConn)(nil)
	_ udpConn = (*unet.UDPConn)(nil)
)

// testBytes returns n random bytes, the same at each call.
func testBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

var (
	hostAddress = regexp.MustCompile(`\b(127\.0\.0\.[12]|10\.0\.0\.1?[12])\b|\[?(::1|fd00::1?[12])\b\]?`)
	freePort    = regexp.MustCompile(`:[1-9]\d{3,4}\b`)
)

// normalized is a text with the addresses of hosts as "host" and ports from 1000 on as "port".
func normalized(text string) string {
	return freePort.ReplaceAllString(hostAddress.ReplaceAllString(text, "host"), ":port")
}

// describe is what an application can see of an error.
func describe(err error) string {
	if err == nil {
		return "nil"
	}
	b := new(strings.Builder)
	b.WriteString(normalized(err.Error()))
	var e net.Error
	if errors.As(err, &e) {
		fmt.Fprintf(b, "; timeout %v, temporary %v", e.Timeout(), e.Temporary()) //lint:ignore SA1019 package net's errors have it
	}
	var op *net.OpError
	if errors.As(err, &op) {
		fmt.Fprintf(b, "; %s %s %T %T", op.Op, op.Net, op.Source, op.Addr)
	}
	if op != nil && strings.HasSuffix(b.String(), "net.addrPortUDPAddr") { // a type that is not exported
		text := strings.TrimSuffix(b.String(), "net.addrPortUDPAddr")
		b.Reset()
		b.WriteString(text + "*net.UDPAddr")
	}
	for _, target := range []error{
		io.EOF, net.ErrClosed, net.ErrWriteToConnected, context.Canceled, context.DeadlineExceeded, os.ErrDeadlineExceeded,
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EADDRINUSE,
		syscall.EADDRNOTAVAIL, syscall.EMSGSIZE, syscall.EDESTADDRREQ, syscall.ENOTCONN, syscall.EINVAL, syscall.ECONNABORTED,
	} {
		if errors.Is(err, target) {
			fmt.Fprintf(b, "; is %v", target)
		}
	}
	return b.String()
}

// fact is one behaviour of package net. observe returns what an application sees of it, as text.
type fact struct {
	name    string
	observe func(w *hostPair) string
	// unet is what an application sees on unet, if that differs on purpose; why is the reason.
	unet, why string
	only4     bool // about IPv4
}

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// resolverOf is a resolver with the given names. A lookup of "slow.test" blocks until its context ends.
func resolverOf(known map[string][]string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			for {
				var size [2]byte
				if _, err := io.ReadFull(theirs, size[:]); err != nil {
					return
				}
				query := make([]byte, binary.BigEndian.Uint16(size[:]))
				if _, err := io.ReadFull(theirs, query); err != nil {
					return
				}
				reply, err := dnstest.Answer(query, known)
				if err != nil {
					continue
				}
				theirs.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
			}
		}()
		return ours, nil
	}}
}

// kernelPair is package net on the loopback interface.
var kernelPair = hostPair{server: kernelHost{}, client: kernelHost{}, serverIP: "127.0.0.1", clientIP: "127.0.0.1", other: "127.0.0.2", family: "4"}

// kernelPair6 is the same over IPv6.
func kernelPair6(t *testing.T) hostPair {
	t.Helper()
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skipf("package net has no IPv6 here: %v", err)
	} else {
		l.Close()
	}
	return hostPair{server: kernelHost{}, client: kernelHost{}, serverIP: "[::1]", clientIP: "[::1]", serverIP4: "127.0.0.1", other: "[::2]", family: "6"}
}

// Each fact of package net holds on unet, or differs as the table says.
func TestParity(t *testing.T) {
	a, b := unettest.Pair(t)
	compareFacts(t, kernelPair, hostPair{server: unetHost{a}, client: unetHost{b}, serverIP: "10.0.0.1", clientIP: "10.0.0.2", other: "10.0.0.9", family: "4"}, dialFacts, listenFacts, tcpFacts, udpFacts)
}

// The facts hold over IPv6 too, except those about IPv4, and so do the facts about hosts of both families.
func TestParityOverIPv6(t *testing.T) {
	kernel := kernelPair6(t)
	lan := unettest.New(t, unettest.Options{IPv6: true})
	a, b := lan.Host("a"), lan.Host("b")
	compareFacts(t, kernel, hostPair{server: unetHost{a}, client: unetHost{b}, serverIP: "[fd00::1]", clientIP: "[fd00::2]", serverIP4: "10.0.0.1", other: "[fd00::9]", family: "6"}, dialFacts, listenFacts, tcpFacts, udpFacts, dualFacts)
}

// compareFacts compares what is observed on two pairs of hosts: on package net, and on unet.
func compareFacts(t *testing.T, kernel, ours hostPair, groups ...[]fact) {
	for _, group := range groups {
		for _, f := range group {
			if f.only4 && ours.family != "4" {
				continue
			}
			t.Run(f.name, func(t *testing.T) {
				kernel, ours := kernel, ours
				kernel.T, ours.T = t, t
				want, got := f.observe(&kernel), f.observe(&ours)
				switch {
				case runtime.GOOS != "linux": // the tables describe Linux
				case f.why == "" && got != want:
					t.Errorf("\n unet: %s\n  net: %s", got, want)
				case f.why != "" && got == want:
					t.Errorf("unet and package net no longer differ: %s", got)
				case f.why != "" && got != f.unet:
					t.Errorf("\n unet: %s\nknown: %s\n  net: %s", got, f.unet, want)
				}
			})
		}
	}
}
