package stack_test

import (
	"io"
	"testing"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// What the engine knows of congestion stands in the IP header: text may be marked and
// ACKs may not, and a mark comes back.
func TestTCPECN(t *testing.T) {
	a, b, _, lb := newPair(t, stack.Config{TCP: stack.TCPConfig{ECN: tcp.ECNOn}})
	mark, sent := false, map[uint32]bool{}
	lb.Filter(func(frame []byte) bool {
		ip, err := wire.ParseIPv4(frame[wire.EthernetHeaderLen:])
		if err != nil {
			t.Error(err)
			return false
		}
		want := uint8(0)
		if s := wire.TCP(ip.Payload()); len(s.Payload()) > 0 && !sent[s.Seq()] { // else it is sent again
			want, sent[s.Seq()] = wire.ECNCapable, true
		}
		if ip.TOS() != want {
			t.Errorf("type of service %#x, want %#x", ip.TOS(), want)
		}
		if mark && want != 0 {
			wire.PutIPv4(frame[wire.EthernetHeaderLen:], wire.IPv4Fields{TOS: wire.ECNMarked, TTL: ip.TTL(), Protocol: ip.Protocol(),
				DontFragment: true, TotalLen: uint16(len(ip)), Src: ip.Src(), Dst: ip.Dst()})
		}
		return true
	})
	client, server := connect(t, a, b, stack.TCPOptions{})
	read := func(c *stack.TCPConn) {
		t.Helper()
		if _, err := io.ReadFull(c, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	if !client.Info().ECN || !server.Info().ECN {
		t.Error("it was not agreed on")
	}
	writeAll(t, client, make([]byte, 100))
	read(server)
	mark = true
	writeAll(t, client, make([]byte, 100))
	read(server)
	writeAll(t, client, make([]byte, 100))
	read(server)
	eventually(t, "the sender hears of the mark", func() bool { return counters(b)["tcp_congestion_echoes"] > 0 })
	if counters(a)["tcp_congestion_marks"] == 0 {
		t.Error("the mark was not seen")
	}
	client.Close()
	server.Close()
}
