package netlab

import (
	"encoding/binary"
	"errors"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

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
