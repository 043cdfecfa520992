package test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"

	"github.com/unet-go/unet/internal/netlab"
)

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
	conn.SetDeadline(time.Now().Add(patience))
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
