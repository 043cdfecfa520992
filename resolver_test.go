package unet

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/dnstest"
)

// serveNames starts a DNS server at 10.0.0.1:53 on a host. Its answers by UDP about "long.test" are
// truncated. counts returns how many queries came by each protocol since its last call.
func serveNames(t *testing.T, h *Host) (counts func() (udp, tcp int)) {
	t.Helper()
	known := map[string][]string{"short.test": {"10.0.0.7"}, "long.test": {"10.0.0.8", "10.0.0.9"}}
	u, err := h.ListenPacket(t.Context(), "udp", "10.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	l, err := h.Listen(t.Context(), "tcp", "10.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	queries := make(chan string, 100)
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			queries <- "udp"
			reply, err := dnstest.Answer(buf[:n], known)
			if err != nil {
				t.Error(err)
				return
			}
			if answers := binary.BigEndian.Uint16(reply[6:]); answers > 1 {
				reply[2] |= 2 // TC
			}
			u.WriteTo(reply, from)
		}
	}()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var size [2]byte
				for {
					if _, err := io.ReadFull(c, size[:]); err != nil {
						return
					}
					query := make([]byte, binary.BigEndian.Uint16(size[:]))
					if _, err := io.ReadFull(c, query); err != nil {
						return
					}
					queries <- "tcp"
					reply, err := dnstest.Answer(query, known)
					if err != nil {
						t.Error(err)
						return
					}
					c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
				}
			}()
		}
	}()
	return func() (udp, tcp int) {
		for len(queries) > 0 {
			if <-queries == "udp" {
				udp++
			} else {
				tcp++
			}
		}
		return udp, tcp
	}
}

// The resolver of a host sends its queries from the host: by UDP, and by TCP after a truncated answer.
func TestResolverAsksOverTheHost(t *testing.T) {
	a, b, _ := newSharedMemHosts(t)
	counts := serveNames(t, a)
	r := b.Resolver()
	dial := r.Dial
	r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dial(ctx, network, "10.0.0.1:53")
	}
	for _, c := range []struct {
		name  string
		addrs []string
		tcp   bool
	}{{"short.test", []string{"10.0.0.7"}, false}, {"long.test", []string{"10.0.0.8", "10.0.0.9"}, true}} {
		got, err := r.LookupHost(t.Context(), c.name)
		slices.Sort(got)
		if udp, tcp := counts(); err != nil || !slices.Equal(got, c.addrs) || udp == 0 || (tcp > 0) != c.tcp {
			t.Errorf("%s: %v, %v; %d queries by UDP, %d by TCP", c.name, got, err, udp, tcp)
		}
	}
	if _, err := r.LookupHost(t.Context(), "nosuch.test"); !isNotFound(err) {
		t.Errorf("an unknown name: %v", err)
	}
}

func isNotFound(err error) bool {
	var e *net.DNSError
	return errors.As(err, &e) && e.IsNotFound
}

// Queries to a server at a loopback address use sockets of the kernel.
func TestResolverAsksLoopbackServersByTheKernel(t *testing.T) {
	a, _, _ := newSharedMemHosts(t)
	server, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	c, err := a.Resolver().Dial(t.Context(), "udp", server.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, ok := c.(*net.UDPConn); !ok {
		t.Errorf("the connection is a %T, want a *net.UDPConn", c)
	}
}

// routelessConn is a UDP socket of a host without a route to the other end, which it learns by a query.
type routelessConn struct {
	net.Conn
	inWrite bool
	closed  bool
}

var errNoRouteToServer = &net.OpError{Op: "write", Net: "udp", Err: os.NewSyscallError("write", syscall.ENETUNREACH)}

func (c *routelessConn) Write(b []byte) (int, error) {
	if c.inWrite {
		return 0, errNoRouteToServer
	}
	return len(b), nil
}
func (c *routelessConn) Read([]byte) (int, error)         { return 0, errNoRouteToServer }
func (c *routelessConn) SetReadDeadline(time.Time) error  { return nil }
func (c *routelessConn) SetWriteDeadline(time.Time) error { return nil }
func (c *routelessConn) Close() error                     { c.closed = true; return nil }

// A query to a server to which the host has no route goes over a socket of the kernel, whether the error comes
// from the write of the query or from the read of its answer; with the deadline that was set.
func TestQueryFallsBackToTheKernel(t *testing.T) {
	server, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	queries := make(chan string, 4)
	go func() {
		for b := make([]byte, 512); ; {
			n, from, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			if queries <- string(b[:n]); string(b[:n]) != "silence" {
				server.WriteTo(b[:n], from)
			}
		}
	}()
	for _, inWrite := range []bool{true, false} {
		host := &routelessConn{inWrite: inWrite}
		var c net.Conn = &serverConn{Conn: host, kernel: func() (net.Conn, error) { return net.Dial("udp4", server.LocalAddr().String()) }}
		if _, ok := c.(net.PacketConn); !ok {
			t.Fatal("not a net.PacketConn, so package net would use it as TCP")
		}
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("who?")); err != nil {
			t.Fatalf("error in Write %v: %v", inWrite, err)
		}
		b := make([]byte, 512)
		n, err := c.Read(b)
		if err != nil || string(b[:n]) != "who?" || !host.closed {
			t.Errorf("error in Write %v: %q, %v; the host's socket is closed: %v", inWrite, b[:n], err, host.closed)
		}
		if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("silence")); err != nil {
			t.Error(err)
		}
		if _, err := c.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after the deadline: %v", err)
		}
		if got := []string{<-queries, <-queries}; !slices.Equal(got, []string{"who?", "silence"}) {
			t.Errorf("error in Write %v: queries %q", inWrite, got)
		}
		c.Close()
	}
	c := &serverConn{Conn: &routelessConn{}, kernel: func() (net.Conn, error) { return nil, errors.New("no kernel") }}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("without a socket of the kernel: %v", err)
	}
}
