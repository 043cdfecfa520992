package netlab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/unet-go/unet/wire"
)

// Listen, ListenUDP and Dial are those of package net, inside the host: what
// they return is a socket of the host's kernel. A name is not resolved.

func (h *Host) Listen(network, address string) (l net.Listener, err error) {
	err = h.Do(func() error { l, err = net.Listen(network, address); return err })
	return l, err
}

func (h *Host) ListenUDP(address string) (c *net.UDPConn, err error) {
	err = h.Do(func() error {
		pc, err := net.ListenPacket("udp", address)
		if err == nil {
			c = pc.(*net.UDPConn)
		}
		return err
	})
	return c, err
}

func (h *Host) Dial(network, address string) (c net.Conn, err error) {
	err = h.Do(func() error { c, err = net.Dial(network, address); return err })
	return c, err
}

// Echo is a service of a host's kernel: it answers every datagram and every TCP
// connection at a port with what it was sent.
type Echo struct {
	udp *net.UDPConn
	tcp net.Listener

	serving sync.WaitGroup
	mu      sync.Mutex
	conns   map[net.Conn]bool // nil once closed
}

// ServeEcho starts an Echo at an address and port. The caller closes it.
func (h *Host) ServeEcho(address string) (*Echo, error) {
	e := &Echo{conns: make(map[net.Conn]bool)}
	var err error
	if e.udp, err = h.ListenUDP(address); err != nil {
		return nil, err
	}
	if e.tcp, err = h.Listen("tcp", address); err != nil {
		return nil, errors.Join(err, e.udp.Close())
	}
	e.serving.Go(e.serveUDP)
	e.serving.Go(e.serveTCP)
	return e, nil
}

func (e *Echo) serveUDP() {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := e.udp.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			e.udp.WriteToUDPAddrPort(buf[:n], from) // the client may have closed its socket
		}
	}
}

func (e *Echo) serveTCP() {
	for {
		c, err := e.tcp.Accept()
		if err != nil {
			return
		}
		e.mu.Lock()
		if e.conns == nil {
			e.mu.Unlock()
			c.Close()
			return
		}
		e.conns[c] = true
		e.serving.Go(func() {
			io.Copy(c, c) // until either side closes
			e.mu.Lock()
			delete(e.conns, c)
			e.mu.Unlock()
			c.Close()
		})
		e.mu.Unlock()
	}
}

// Close ends the service and its connections.
func (e *Echo) Close() error {
	err := errors.Join(e.udp.Close(), e.tcp.Close())
	e.mu.Lock()
	for c := range e.conns {
		c.Close()
	}
	e.conns = nil
	e.mu.Unlock()
	e.serving.Wait()
	return err
}

// pingTimeout is how long Ping waits for a reply.
const pingTimeout = 5 * time.Second

// Ping sends an ICMP echo request from the host's kernel and returns when the reply to
// it has come (RFC 792; RFC 4443, section 4), or an error after five seconds. It needs
// CAP_NET_RAW.
func (h *Host) Ping(to netip.Addr) error {
	network, request, reply := "ip4:icmp", uint8(wire.ICMPEchoRequest), uint8(wire.ICMPEchoReply)
	if to.Is6() {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	var c net.PacketConn
	if err := h.Do(func() (err error) { c, err = net.ListenPacket(network, ""); return err }); err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(pingTimeout)); err != nil {
		return err
	}
	payload := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano())) // tells our reply from others
	b := make([]byte, wire.ICMPv4HeaderLen+len(payload))
	wire.PutEcho(b, wire.EchoFields{Type: request, ID: 0x756e, Seq: 1}, payload) // over IPv6 the kernel writes the checksum
	if _, err := c.WriteTo(b, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return fmt.Errorf("ping %v: %w", to, err)
	}
	for buf := make([]byte, 256); ; {
		n, _, err := c.ReadFrom(buf) // a raw socket receives all of the host's ICMP
		if err != nil {
			return fmt.Errorf("ping %v: %w", to, err)
		}
		if n == len(b) && buf[0] == reply && bytes.Equal(buf[4:n], b[4:]) {
			return nil
		}
	}
}
