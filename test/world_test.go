//go:build linux

package test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

const testTimeout = unetd.TestTimeout

func TestMain(m *testing.M) { unetd.Main(m) }

// daemon starts unetd on a host, for all users, and returns it and its socket.
func daemon(t *testing.T, h *netlab.Host, flags ...string) (*unetd.Daemon, string) {
	t.Helper()
	d := unetd.Serve(t, h, unetd.Options{Flags: flags})
	return d, d.Socket
}

// kernelDial and kernelListen are sockets of a host's kernel.
func kernelDial(t *testing.T, h *netlab.Host, to string) *net.UDPConn {
	t.Helper()
	conn, err := h.Dial("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(testTimeout))
	return conn.(*net.UDPConn)
}

func kernelListen(t *testing.T, h *netlab.Host, at string) *net.UDPConn {
	t.Helper()
	conn, err := h.ListenUDP(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(testTimeout))
	return conn
}

func interfaceIndex(name string) (int, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	return i.Index, nil
}

// kernelPing sends echo requests from a host's kernel, and returns how many
// were answered with what they carried.
func kernelPing(t *testing.T, h *netlab.Host, to netip.Addr, count int) (answered int) {
	t.Helper()
	var conn *icmp.PacketConn
	if err := h.Do(func() (err error) {
		conn, err = icmp.ListenPacket("ip4:icmp", "0.0.0.0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(testTimeout))
	for seq := range count {
		echo := &icmp.Echo{ID: 77, Seq: seq, Data: make([]byte, 56+100*seq)}
		request, err := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: echo}).Marshal(nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.WriteTo(request, &net.IPAddr{IP: to.AsSlice()}); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				t.Logf("ping %v seq %d: %v", to, seq, err)
				return answered
			}
			m, err := icmp.ParseMessage(1, buf[:n])
			if err != nil || m.Type != ipv4.ICMPTypeEchoReply || from.String() != to.String() {
				continue
			}
			if got, ok := m.Body.(*icmp.Echo); ok && got.ID == 77 && got.Seq == seq && len(got.Data) == len(echo.Data) {
				answered++
				break
			}
		}
	}
	return answered
}

// A user of unetd has a connection to a destination from each port that the policy
// permits, from blocks and then one by one, and as many to the next destination from the
// same ports. The error then names the limit.
func TestPolicyLimitsPorts(t *testing.T) {
	const (
		ports = 20*endpoint.BlockPorts + 3 // more than the 1,024 that were once a lease's end
		user  = 65520                      // of no other package: the kernel counts a user's registered memory for the whole machine
	)
	p := netlab.RequirePair(t, netlab.Config{})
	d := unetd.Serve(t, p.A, unetd.Options{Policy: fmt.Sprintf(
		`rules: [{name: a, users: ["%d"], tags: ["tcp:*:*"], endpoints: 1, memory: 64MiB, ports: %d}]`, user, ports)})
	var host *unet.Host
	netlab.AsUser(user, func() {
		var err error
		if host, err = unet.Open(t.Context(), unet.Config{Socket: d.Socket}); err != nil {
			t.Fatal(err)
		}
	})
	defer host.Close()
	for i := range uint16(2) {
		to := netip.AddrPortFrom(p.B.Addr.Addr(), 80+i)
		server, err := p.B.Listen("tcp", to.String())
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		go func() {
			for {
				c, err := server.Accept()
				if err != nil {
					return
				}
				defer c.Close()
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		begun := time.Now()
		for n := range ports {
			c, err := host.DialTCP(ctx, netip.AddrPort{}, to)
			if err != nil {
				t.Fatalf("dial %d to %v: %v", n, to, err)
			}
			c.SetLinger(0)
			defer c.Close()
		}
		t.Logf("%d connections in %v", ports, time.Since(begun))
		_, err = host.DialTCP(ctx, netip.AddrPort{}, to)
		if !errors.Is(err, syscall.EADDRNOTAVAIL) || !errors.Is(err, endpoint.ErrBusy) ||
			!strings.Contains(err.Error(), fmt.Sprintf("connect: cannot assign requested address: busy: uid %d has %d of at most %d tags", user, ports, ports)) {
			t.Errorf("one more to %v: %v", to, err)
		}
	}
}
