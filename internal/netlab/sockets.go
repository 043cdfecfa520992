//go:build linux

package netlab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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
	// +checklocks:mu
	conns map[net.Conn]bool // nil once closed
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
	payload := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano())) // identifies our reply
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

// OpenFrames opens a packet socket on the host's end of the cable, for frames of all types, both ways.
func (h *Host) OpenFrames() (f *os.File, err error) {
	err = h.Do(func() error {
		device, err := netlink.LinkByName(h.Interface)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: device.Attrs().Index}); err != nil {
			return errors.Join(os.NewSyscallError("bind", err), unix.Close(fd))
		}
		f = os.NewFile(uintptr(fd), "frames")
		return nil
	})
	return f, err
}

// SuperSocket sends super-frames out of a host: frames of up to 64 KiB that the kernel
// takes for several segments or datagrams. A guest or a container can send such frames.
type SuperSocket struct {
	fd int
	to unix.SockaddrLinklayer
}

// OpenSuper opens a socket on the host's end of the cable.
func (h *Host) OpenSuper() (s *SuperSocket, err error) {
	err = h.Do(func() error {
		device, err := netlink.LinkByName(h.Interface)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		const packetVnetHdr = 15 // PACKET_VNET_HDR, linux/if_packet.h
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, packetVnetHdr, 1); err != nil {
			return errors.Join(os.NewSyscallError("setsockopt", err), unix.Close(fd))
		}
		ipv4 := binary.NativeEndian.Uint16([]byte{unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff})
		s = &SuperSocket{fd, unix.SockaddrLinklayer{Ifindex: device.Attrs().Index, Protocol: ipv4}}
		return nil
	})
	return s, err
}

// Close closes the socket.
func (s *SuperSocket) Close() error { return unix.Close(s.fd) }

// Send sends an IPv4 frame with a plain TCP or UDP header, as segments or datagrams of
// size bytes each. It sends again what the backlog of the other end did not take.
func (s *SuperSocket) Send(frame []byte, size int) error {
	b := SuperFrame(frame, size)
	for {
		err := unix.Sendto(s.fd, b, 0, &s.to)
		if !errors.Is(err, unix.ENOBUFS) {
			return os.NewSyscallError("sendto", err)
		}
	}
}

// SendDivided sends a frame of more than a page whose first linear bytes are in the linear part of
// the kernel's skb.
func (s *SuperSocket) SendDivided(frame []byte, linear uint16) error {
	h := make([]byte, 10)
	binary.NativeEndian.PutUint16(h[2:], linear)
	return os.NewSyscallError("sendto", unix.Sendto(s.fd, append(h, frame...), 0, &s.to))
}

// SuperFrame puts a struct virtio_net_hdr (linux/virtio_net.h) before an IPv4 frame with a
// plain TCP or UDP header, which makes it one of segments or datagrams of size bytes each.
func SuperFrame(frame []byte, size int) []byte {
	h := make([]byte, 10)
	h[0], h[1] = 1, 1          // NEEDS_CSUM, GSO_TCPV4
	const transport = 34       // where the checksum begins
	length, checksum := 54, 16 // of the headers; where the checksum goes
	if frame[23] == unix.IPPROTO_UDP {
		h[1] = 5 // GSO_UDP_L4
		length, checksum = 42, 6
	}
	binary.NativeEndian.PutUint16(h[2:], uint16(length))
	binary.NativeEndian.PutUint16(h[4:], uint16(size))
	binary.NativeEndian.PutUint16(h[6:], transport)
	binary.NativeEndian.PutUint16(h[8:], uint16(checksum))
	return append(h, frame...)
}

var dropAll = []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}

// SetDropAll sets whether a kernel socket drops all that it receives (SO_ATTACH_FILTER).
// Dropped segments are not acknowledged.
func SetDropAll(c syscall.RawConn, drop bool) error {
	var optErr error
	err := c.Control(func(fd uintptr) {
		if drop {
			optErr = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(dropAll)), Filter: &dropAll[0]})
		} else {
			optErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
		}
	})
	return errors.Join(err, optErr)
}
