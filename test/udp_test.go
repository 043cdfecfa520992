//go:build linux

package test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

// open is a host of ours in this process, through unetd's socket.
func open(t *testing.T, socket string, cfg unet.Config) *unet.Host {
	t.Helper()
	cfg.Socket = socket
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	h, err := unet.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("close of a host: %v", err)
		}
	})
	return h
}

func listen(t *testing.T, h *unet.Host, port uint16) *unet.UDPConn {
	t.Helper()
	c, err := h.ListenUDP(t.Context(), netip.AddrPortFrom(h.Addr(), port))
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(testTimeout))
	return c
}

// awaitFree returns when no endpoint holds a UDP address any more.
func awaitFree(t *testing.T, socket, at string) {
	t.Helper()
	h := open(t, socket, unet.Config{})
	for deadline := time.Now().Add(testTimeout); ; {
		c, err := h.ListenPacket(t.Context(), "udp", at)
		if err == nil {
			c.Close()
			return
		}
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

var (
	attachments = []endpoint.Attachment{endpoint.AttachPort, endpoint.AttachQueue}
	waitModes   = []endpoint.WaitMode{endpoint.WaitSpin, endpoint.WaitAdaptive, endpoint.WaitBlock}
)

// TestUDPWithKernel exchanges datagrams of every interesting size with the
// kernel's UDP, in both roles, over both attachments and every way to wait.
func TestUDPWithKernel(t *testing.T) {
	for _, attach := range attachments {
		for _, wait := range waitModes {
			t.Run(fmt.Sprintf("%v/%v", attach, wait), func(t *testing.T) {
				pair := netlab.RequirePair(t, netlab.Config{})
				_, socket := daemon(t, pair.A)
				h := open(t, socket, unet.Config{Attach: attach, HostConfig: unet.HostConfig{Wait: wait}})
				ours := listen(t, h, 7000)
				theirs := kernelDial(t, pair.B, ours.LocalAddr().String())
				buf := make([]byte, 2048)
				for _, size := range []int{0, 1, 2, 3, 17, 18, 19, 63, 64, 65, 255, 1024, 1471, 1472} {
					payload := make([]byte, size)
					for i := range payload {
						payload[i] = byte(i*7 + size)
					}
					if _, err := theirs.Write(payload); err != nil {
						t.Fatal(err)
					}
					n, from, err := ours.ReadFromUDPAddrPort(buf)
					if err != nil || !bytes.Equal(buf[:n], payload) || from.String() != theirs.LocalAddr().String() {
						t.Fatalf("%d bytes arrived as %d from %v, %v", size, n, from, err)
					}
					if _, err := ours.WriteToUDPAddrPort(payload, from); err != nil {
						t.Fatal(err)
					}
					if n, err = theirs.Read(buf); err != nil || !bytes.Equal(buf[:n], payload) {
						t.Fatalf("%d bytes came back as %d, %v", size, n, err)
					}
				}
				if _, err := ours.WriteToUDPAddrPort(make([]byte, 1473), theirs.LocalAddr().(*net.UDPAddr).AddrPort()); !errors.Is(err, syscall.EMSGSIZE) {
					t.Errorf("one byte more than the MTU carries: %v, want EMSGSIZE", err)
				}

				server := kernelListen(t, pair.B, "10.0.0.2:8000")
				conn, err := h.Dial("udp", "10.0.0.2:8000")
				if err != nil {
					t.Fatal(err)
				}
				conn.SetDeadline(time.Now().Add(testTimeout))
				if _, err := conn.Write([]byte("hello")); err != nil {
					t.Fatal(err)
				}
				n, client, err := server.ReadFrom(buf)
				if err != nil || string(buf[:n]) != "hello" || client.String() != conn.LocalAddr().String() {
					t.Fatalf("kernel's server got %q from %v, %v", buf[:n], client, err)
				}
				server.WriteTo([]byte("answer"), client)
				if n, err := conn.Read(buf); err != nil || string(buf[:n]) != "answer" {
					t.Fatalf("dialled socket read %q, %v", buf[:n], err)
				}
			})
		}
	}
}

// TestUDPSuperFrame: what a kernel peer sends with UDP_SEGMENT, as QUIC does,
// arrives as the datagrams it is made of.
func TestUDPSuperFrame(t *testing.T) {
	for _, attach := range attachments {
		t.Run(attach.String(), func(t *testing.T) {
			pair := netlab.RequirePair(t, netlab.Config{})
			_, socket := daemon(t, pair.A)
			ours := listen(t, open(t, socket, unet.Config{Attach: attach}), 7000)
			theirs := kernelDial(t, pair.B, ours.LocalAddr().String())
			raw, err := theirs.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			for _, segment := range []int{100, 1400} {
				raw.Control(func(fd uintptr) {
					err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, segment)
				})
				if err != nil {
					t.Fatal(err)
				}
				const whole = 40
				payload := make([]byte, whole*segment+33)
				for i := range payload {
					payload[i] = byte(i / segment)
				}
				if _, err := theirs.Write(payload); err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, 65536)
				for i := range whole + 1 {
					want := payload[i*segment : min((i+1)*segment, len(payload))]
					n, err := ours.Read(buf)
					if err != nil || !bytes.Equal(buf[:n], want) {
						t.Fatalf("segment %d of %d bytes: %d bytes, %v", i, len(want), n, err)
					}
				}
			}
		})
	}
}

// TestOwnedAddress: a host with an address of its own answers ARP and pings and
// refuses ports without a listener.
func TestOwnedAddress(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	_, socket := daemon(t, pair.A)
	own := netip.MustParseAddr("10.0.0.50")
	h := open(t, socket, unet.Config{HostConfig: unet.HostConfig{Addrs: []netip.Addr{own}}})
	if n := kernelPing(t, pair.B, own, 5); n != 5 {
		t.Errorf("%d of 5 pings answered", n)
	}
	if n := kernelPing(t, pair.B, pair.A.Addr.Addr(), 5); n != 5 {
		t.Errorf("beside it, the kernel answered %d of 5 pings", n)
	}
	closed := kernelDial(t, pair.B, "10.0.0.50:9")
	closed.Write([]byte("anybody?"))
	if _, err := closed.Read(make([]byte, 8)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a closed port: %v, want ECONNREFUSED", err)
	}
	ours := listen(t, h, 7000)
	theirs := kernelDial(t, pair.B, "10.0.0.50:7000")
	theirs.Write([]byte("hello"))
	buf := make([]byte, 64)
	n, from, err := ours.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	ours.WriteTo(buf[:n], from)
	if n, err := theirs.Read(buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("echo %q, %v", buf[:n], err)
	}
	// The kernel fragments and reassembles what exceeds the MTU; so does an owned address.
	for _, size := range []int{1473, 8192, 65507} {
		large, payload := make([]byte, 65536), bytes.Repeat([]byte{byte(size), 2, 3}, size/3+1)[:size]
		if _, err := theirs.Write(payload); err != nil {
			t.Fatal(err)
		}
		if n, from, err = ours.ReadFrom(large); err != nil || !bytes.Equal(large[:n], payload) {
			t.Fatalf("%d bytes arrived as %d, %v", size, n, err)
		}
		if _, err := ours.WriteTo(payload, from); err != nil {
			t.Fatal(err)
		}
		if n, err := theirs.Read(large); err != nil || !bytes.Equal(large[:n], payload) {
			t.Fatalf("%d bytes came back as %d, %v", size, n, err)
		}
	}
	if _, err := unet.Open(t.Context(), unet.Config{Socket: socket, HostConfig: unet.HostConfig{Addrs: []netip.Addr{own}}}); !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("claiming the address twice: %v, want ErrTagHeld", err)
	}
	if _, err := unet.Open(t.Context(), unet.Config{Socket: socket, HostConfig: unet.HostConfig{Addrs: []netip.Addr{pair.A.Addr.Addr()}}}); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("claiming the kernel's address: %v, want ErrTagDenied", err)
	}
}

// TestUDPErrors: the errors that users of package net test for.
func TestUDPErrors(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	_, socket := daemon(t, pair.A)
	h := open(t, socket, unet.Config{})
	other := open(t, socket, unet.Config{})
	c := listen(t, h, 7000)
	buf := make([]byte, 64)

	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(buf)
	var ne net.Error
	if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("read past its deadline: %v", err)
	}
	if _, err := other.ListenPacket(t.Context(), "udp", c.LocalAddr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port that another endpoint has: %v, want EADDRINUSE", err)
	}
	kernel := kernelListen(t, pair.A, "10.0.0.1:7001")
	if _, err := h.ListenPacket(t.Context(), "udp", "10.0.0.1:7001"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port that the kernel has: %v, want EADDRINUSE", err)
	}
	kernel.Close()
	if err := pair.A.Do(func() error {
		conn, err := net.ListenPacket("udp4", "10.0.0.1:7000")
		if err == nil {
			conn.Close()
			t.Error("the kernel gave a claimed port away")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.ListenPacket(t.Context(), "udp", "10.0.0.9:7000"); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("an address that is not ours: %v, want EADDRNOTAVAIL", err)
	}
	if _, err := h.Dial("sctp", "10.0.0.2:1"); !errors.As(err, new(net.UnknownNetworkError)) {
		t.Errorf("an unknown network: %v", err)
	}

	refused, err := h.Dial("udp", "10.0.0.2:9")
	if err != nil {
		t.Fatal(err)
	}
	refused.SetDeadline(time.Now().Add(testTimeout))
	if _, err := refused.Write([]byte("anybody?")); err != nil {
		t.Fatal(err)
	}
	if _, err := refused.Read(buf); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a port without a socket: %v, want ECONNREFUSED", err)
	}
	absent, err := h.Dial("udp", "10.0.0.77:9")
	if err != nil {
		t.Fatal(err)
	}
	absent.SetDeadline(time.Now().Add(testTimeout))
	if _, err := absent.Write([]byte("anybody?")); err != nil {
		t.Errorf("a first write, before the ICMP error: %v", err)
	}
	if _, err := absent.Read(buf); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("an address without a host: %v, want EHOSTUNREACH", err)
	}

	blocked := make(chan error)
	c.SetDeadline(time.Time{})
	go func() { _, err := c.Read(make([]byte, 8)); blocked <- err }()
	if err := c.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := <-blocked; !errors.Is(err, net.ErrClosed) {
		t.Errorf("read on a socket being closed: %v, want net.ErrClosed", err)
	}
	if _, err := c.Write(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write on a closed socket: %v, want net.ErrClosed", err)
	}
	if err := c.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second close: %v, want net.ErrClosed", err)
	}
	// Close does not wait until unetd has released the port.
	again, err := other.ListenPacket(t.Context(), "udp", "10.0.0.1:7000")
	for deadline := time.Now().Add(testTimeout); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(deadline); {
		again, err = other.ListenPacket(t.Context(), "udp", "10.0.0.1:7000")
	}
	if err != nil {
		t.Fatalf("the port of a closed socket: %v", err)
	}
	again.Close()
}

// TestBorrowedDatagramOutlivesClose: what the application has borrowed stays readable when the host is closed,
// and can be given back afterwards.
func TestBorrowedDatagramOutlivesClose(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	_, socket := daemon(t, pair.A)
	h := open(t, socket, unet.Config{})
	c := listen(t, h, 7000)
	theirs := kernelDial(t, pair.B, c.LocalAddr().String())
	theirs.Write([]byte("keep this"))
	d, err := c.Borrow()
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	st, err := h.Stats()
	if err != nil || st.Received == 0 || st.KernelRxRingFull != 0 {
		t.Errorf("statistics %+v, %v", st, err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if string(d.Payload) != "keep this" {
		t.Errorf("after Close the borrowed datagram is %q", d.Payload)
	}
	copy(b.Payload, "too late")
	if err := c.Send(&b, 8, d.From); !errors.Is(err, net.ErrClosed) {
		t.Errorf("commit after Close: %v, want net.ErrClosed", err)
	}
	c.Cancel(&b)
	c.Return(&d)
	if _, err := h.Stats(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("statistics after Close: %v, want net.ErrClosed", err)
	}
}

// TestReadersOfManySockets: the readers of many sockets of one host are all served, by
// whichever of them polls, while kernel clients talk to all at once.
func TestReadersOfManySockets(t *testing.T) {
	const sockets, messages = 16, 200
	pair := netlab.RequirePair(t, netlab.Config{})
	_, socket := daemon(t, pair.A)
	h := open(t, socket, unet.Config{})
	var servers, clients sync.WaitGroup
	for i := range sockets {
		ours := listen(t, h, uint16(7000+i))
		servers.Go(func() {
			buf := make([]byte, 64)
			for {
				n, from, err := ours.ReadFromUDPAddrPort(buf)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err == nil {
					_, err = ours.WriteToUDPAddrPort(buf[:n], from)
				}
				if err != nil {
					t.Errorf("server %d: %v", i, err)
					return
				}
			}
		})
		theirs := kernelDial(t, pair.B, ours.LocalAddr().String())
		clients.Go(func() {
			buf := make([]byte, 64)
			for seq := range uint64(messages) {
				out := binary.BigEndian.AppendUint64(nil, seq<<8|uint64(i))
				theirs.Write(out)
				n, err := theirs.Read(buf)
				if err != nil || !bytes.Equal(buf[:n], out) {
					t.Errorf("client %d message %d: % x, %v", i, seq, buf[:n], err)
					return
				}
			}
		})
	}
	clients.Wait()
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	servers.Wait()
}

// TestUDPBetweenOwnHosts: two of our hosts, on two machines and on one, with batches
// and without copies, and nothing allocated.
func TestUDPBetweenOwnHosts(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	_, socketA := daemon(t, pair.A)
	_, socketB := daemon(t, pair.B)
	for name, socket := range map[string]string{"other machine": socketB, "same machine": socketA} {
		t.Run(name, func(t *testing.T) {
			a := listen(t, open(t, socketA, unet.Config{HostConfig: unet.HostConfig{Wait: endpoint.WaitSpin}}), 0)
			b := listen(t, open(t, socket, unet.Config{HostConfig: unet.HostConfig{Wait: endpoint.WaitSpin}}), 0)
			toA := a.LocalAddr().(*net.UDPAddr).AddrPort()
			toB := b.LocalAddr().(*net.UDPAddr).AddrPort()

			out, in := []byte("sixty-four bytes or a little less"), make([]byte, 64)
			roundTrip := func() {
				if _, err := a.WriteToUDPAddrPort(out, toB); err != nil {
					t.Fatal(err)
				}
				n, from, err := b.ReadFromUDPAddrPort(in)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := b.WriteToUDPAddrPort(in[:n], from); err != nil {
					t.Fatal(err)
				}
				if n, err := a.Read(in); err != nil || !bytes.Equal(in[:n], out) {
					t.Fatalf("%q, %v", in[:n], err)
				}
			}
			roundTrip() // resolves the routes
			if n := testing.AllocsPerRun(200, roundTrip); n != 0 && !unetd.RaceEnabled {
				t.Errorf("%v allocations a round trip", n)
			}

			batch := make([]unet.UDPMessage, 32)
			for i := range batch {
				batch[i] = unet.UDPMessage{Buf: fmt.Appendf(nil, "message %d", i), Addr: toB}
			}
			if n, err := a.WriteBatch(batch); n != len(batch) || err != nil {
				t.Fatalf("sent %d of the batch, %v", n, err)
			}
			for i := 0; i < len(batch); i++ {
				d, err := b.Borrow()
				if err != nil || string(d.Payload) != fmt.Sprintf("message %d", i) || d.From != toA {
					t.Fatalf("message %d: %q from %v, %v", i, d.Payload, d.From, err)
				}
				b.Return(&d)
			}
			buf, err := b.Reserve()
			if err != nil {
				t.Fatal(err)
			}
			n := copy(buf.Payload, "composed in place")
			if err := b.Send(&buf, n, toA); err != nil {
				t.Fatal(err)
			}
			if n, err := a.Read(in); err != nil || string(in[:n]) != "composed in place" {
				t.Fatalf("%q, %v", in[:n], err)
			}
		})
	}
}
