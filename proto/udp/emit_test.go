package udp

import (
	"bytes"
	"syscall"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/wire"
)

func TestEmit(t *testing.T) {
	local, peer, other := AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: 1234}, AddrPort{Addr: hostC, Port: 9}
	tab := NewTable(Config{})
	conn := mustOpen(t, tab, local, peer, Options{})
	bound := mustOpen(t, tab, AddrPort{Addr: hostA, Port: 7001}, AddrPort{}, Options{})
	b := make([]byte, 70000)

	check := func(s *Socket, dst AddrPort, payload string) {
		t.Helper()
		ip := &layers.IPv4{Version: 4, Protocol: layers.IPProtocolUDP, TTL: 1, SrcIP: hostA[:], DstIP: dst.Addr[:]}
		want := &layers.UDP{SrcPort: layers.UDPPort(s.Local().Port), DstPort: layers.UDPPort(dst.Port)}
		if err := want.SetNetworkLayerForChecksum(ip); err != nil {
			t.Fatal(err)
		}
		out := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(out, gopacket.SerializeOptions{ComputeChecksums: true, FixLengths: true},
			want, gopacket.Payload(payload)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b[:8+len(payload)], out.Bytes()) {
			t.Errorf("to %v: wrote %x, gopacket %x", dst, b[:8+len(payload)], out.Bytes())
		}
	}
	if n, err := conn.Emit(b, hostA, AddrPort{}, []byte("hello")); n != 13 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	check(conn, peer, "hello")
	if n, err := conn.Emit(b, hostA, other, []byte("elsewhere")); n != 17 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	check(conn, other, "elsewhere")
	copy(b[8:], "composed")
	if err := bound.EmitInPlace(b[:16], hostA, other); err != nil {
		t.Error(err)
	}
	check(bound, other, "composed")
	if n, err := bound.Emit(b, hostA, other, nil); n != 8 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	check(bound, other, "")
	if n, err := bound.Emit(b, hostA, other, make([]byte, wire.MaxUDPPayload)); n != 65515 || err != nil {
		t.Errorf("the largest: %d, %v", n, err)
	}

	for _, c := range []struct {
		s       *Socket
		to      AddrPort
		payload int
		want    error
	}{
		{bound, AddrPort{}, 1, syscall.EDESTADDRREQ},
		{bound, AddrPort{Addr: hostB, Port: 0}, 1, syscall.EINVAL},
		{bound, other, wire.MaxUDPPayload + 1, syscall.EMSGSIZE},
		{conn, AddrPort{}, wire.MaxUDPPayload + 1, syscall.EMSGSIZE},
	} {
		if n, err := c.s.Emit(b, hostA, c.to, make([]byte, c.payload)); n != 0 || err != c.want {
			t.Errorf("to %v, %d bytes: %d, %v, want %v", c.to, c.payload, n, err, c.want)
		}
		if err := c.s.EmitInPlace(b[:8+c.payload], hostA, c.to); err != c.want {
			t.Errorf("in place to %v, %d bytes: %v, want %v", c.to, c.payload, err, c.want)
		}
	}
	if tab.Counters().Sent != 0 {
		t.Errorf("counted %d before anything was handed over", tab.Counters().Sent)
	}
	for _, s := range []*Socket{conn, bound, bound, conn, bound} {
		s.CountSent()
	}
	if conn.Counters().Sent != 2 || bound.Counters().Sent != 3 || tab.Counters().Sent != 5 {
		t.Errorf("counted %d, %d, %d", conn.Counters().Sent, bound.Counters().Sent, tab.Counters().Sent)
	}
}
