//go:build linux

package addresses

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// announcedTo is the MSS that host A announces in the SYN of a connection to an address of host B.
func announcedTo(to string) probe {
	return probe{name: "MSS announced in a SYN to " + to, observe: func(d *side) string {
		l, err := d.peer.Listen(context.Background(), "tcp", net.JoinHostPort(to, "0"))
		if err != nil {
			return err.Error()
		}
		defer l.Close()
		c, err := d.host.dial("tcp", "", l.Addr().String())
		if err != nil {
			return class(err)
		}
		defer c.Close()
		accepted, err := l.Accept()
		if err != nil {
			return err.Error()
		}
		return mss(accepted)
	}}
}

// announcedFrom is the MSS that host A announces in the SYN,ACK to a client at an address of host B.
func announcedFrom(from, to string) probe {
	return probe{name: "MSS announced in a SYN,ACK to " + from, observe: func(d *side) string {
		c, err := d.peer.dial("tcp", from, d.at(d.B, to, port))
		if err != nil {
			return class(err)
		}
		return mss(c)
	}}
}

// mss is what the other end of a connection of the kernel has announced. It closes the connection.
func mss(c net.Conn) string {
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err.Error()
	}
	var n int
	if ctl := raw.Control(func(fd uintptr) { n, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG) }); ctl != nil || err != nil {
		return fmt.Sprint(ctl, err)
	}
	return fmt.Sprint(n) // without what the timestamps take
}

// mayFragment is whether datagrams of host A to an address of host B have DF, and whether their IDs differ.
func mayFragment(to string) probe {
	return probe{name: "DF and ID of datagrams to " + to, observe: func(d *side) string {
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in network order
		tap := -1
		err := d.B.Do(func() (err error) {
			if tap, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
				return err
			}
			return unix.Bind(tap, &unix.SockaddrLinklayer{Protocol: all & 0xffff, Ifindex: d.uplink[d.B]})
		})
		if tap >= 0 {
			defer unix.Close(tap)
		}
		if err != nil {
			return err.Error()
		}
		sink, err := d.peer.ListenPacket(context.Background(), "udp", net.JoinHostPort(to, "0"))
		if err != nil {
			return err.Error()
		}
		defer sink.Close()
		c, err := d.host.dial("udp", "", sink.LocalAddr().String())
		if err != nil {
			return class(err)
		}
		defer c.Close()
		var ids []uint16
		df := false
		frame := make([]byte, 2048)
		ip4 := netip.MustParseAddr(to).Is4()
		for len(ids) < 3 {
			mark := fmt.Appendf(nil, "mark %d", lines.Add(1))
			if _, err := c.Write(mark); err != nil {
				return class(err)
			}
			for end := time.Now().Add(limit); ; {
				if time.Now().After(end) {
					return noAnswer
				}
				poll := []unix.PollFd{{Fd: int32(tap), Events: unix.POLLIN}}
				if n, err := unix.Poll(poll, 100); n == 0 || err != nil {
					continue
				}
				n, _, err := unix.Recvfrom(tap, frame, unix.MSG_DONTWAIT)
				if err == nil && bytes.HasSuffix(frame[:n], mark) {
					break
				}
			}
			if !ip4 {
				return "IPv6"
			}
			ids = append(ids, uint16(frame[18])<<8|uint16(frame[19]))
			df = frame[20]&0x40 != 0
		}
		return fmt.Sprintf("DF %v, IDs differ: %v", df, df || ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2])
	}}
}
