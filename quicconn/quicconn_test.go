//go:build linux

package quicconn_test

import (
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/net/ipv4"

	"github.com/unet-go/unet/quicconn"
	"github.com/unet-go/unet/unettest"
)

// The calls by which quic-go sets up a connection, and then receives and sends.
func TestCallsOfQUICGo(t *testing.T) {
	a, b := unettest.Pair(t)
	server, err := a.ListenUDP(t.Context(), netip.AddrPortFrom(a.Addr(), 443))
	if err != nil {
		t.Fatal(err)
	}
	c, err := quicconn.New(server)
	if err != nil {
		t.Fatal(err)
	}
	var _ interface { // quic.OOBCapablePacketConn, and the other methods that quic-go uses if they exist
		net.PacketConn
		SyscallConn() (syscall.RawConn, error)
		SetReadBuffer(int) error
		SetWriteBuffer(int) error
		ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error)
		WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error)
		ReadBatch(ms []ipv4.Message, flags int) (int, error)
	} = c
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		for name, option := range map[string][3]int{
			"do not fragment": {syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, 3}, // IP_PMTUDISC_PROBE
			"receive ECN":     {syscall.IPPROTO_IP, syscall.IP_RECVTOS, 1},
			"packet info":     {syscall.IPPROTO_IP, syscall.IP_PKTINFO, 1},
		} {
			if err := syscall.SetsockoptInt(int(fd), option[0], option[1], option[2]); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_UDP, 103); err != nil { // UDP_SEGMENT
			t.Errorf("segments: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}

	peer, err := b.DialUDP(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(a.Addr(), 443))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := peer.WriteMsgUDP([]byte("hello"), (&ipv4.ControlMessage{Src: peer.LocalAddr().(*net.UDPAddr).IP}).Marshal(), nil); err != nil {
		t.Fatal(err)
	}
	ms := []ipv4.Message{{Buffers: [][]byte{make([]byte, 100)}, OOB: make([]byte, 128)}, {}}
	n, err := c.ReadBatch(ms, 0)
	if err != nil || n != 1 || string(ms[0].Buffers[0][:ms[0].N]) != "hello" || ms[0].Addr.String() != peer.LocalAddr().String() {
		t.Fatalf("%d messages, %q of %v, %v", n, ms[0].Buffers[0][:ms[0].N], ms[0].Addr, err)
	}
	var info ipv4.ControlMessage
	if err := info.Parse(ms[0].OOB[:ms[0].NN]); err != nil || info.Dst.String() != a.Addr().String() {
		t.Errorf("control message %+v, %v", info, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.ReadBatch(ms, 0); err == nil {
		t.Error("read after Close")
	}
	if err := raw.Control(func(uintptr) {}); err == nil {
		t.Error("the socket for options is open after Close")
	}
}
