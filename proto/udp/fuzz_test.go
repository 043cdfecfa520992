package udp

import (
	"testing"

	"github.com/unet-go/unet/wire"
)

// FuzzProcess gives the table any bytes as the payload of an IP packet. One datagram is counted, or for a
// super-frame as many as it has parts, and what is queued is a part of the input.
func FuzzProcess(f *testing.F) {
	local, peer := AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: 1234}
	f.Add(datagram(peer, local, "payload"), uint16(0), true)
	f.Add(datagram(peer, local, "aaaabbbbcc"), uint16(4), false)
	f.Add(datagram(peer, AddrPort{Addr: hostA, Port: 7001}, "x"), uint16(0), false)
	f.Add([]byte("\x04\xd2\x1b\x58\x00\x08\x00\x00"), uint16(1), false)
	f.Add([]byte("\x04\xd2\x1b\x58\x00\x07\x00\x00"), uint16(0), true)
	f.Add([]byte{}, uint16(9), true)
	f.Fuzz(func(t *testing.T, data []byte, gso uint16, partial bool) {
		tab := NewTable(Config{PartialChecksums: partial})
		s, err := tab.Open(local, AddrPort{}, Options{QueueDatagrams: 5, QueueBytes: 64})
		if err != nil {
			t.Fatal(err)
		}
		got, n, v := tab.Process(&Inbound{Src: peer.Addr, Dst: local.Addr, Data: data, GSOSize: gso, Frame: 9})
		if (n > 0) != (v == Queued) || n != s.Len() || n > 5 {
			t.Errorf("%d datagrams, %d queued, %v", n, s.Len(), v)
		}
		if (got == s) != (v == Queued || v == QueueFull) {
			t.Errorf("%v with socket %v", v, got)
		}
		parts := uint64(1)
		if u, err := wire.ParseUDP(data, peer.Addr, local.Addr, partial); (err == nil || err == wire.ErrChecksum) && gso != 0 {
			parts = max(1, uint64(len(u.Payload)+int(gso)-1)/uint64(gso))
		}
		c := tab.Counters()
		if sum := c.Received + c.NoSocket + c.QueueFull + c.BadLength + c.BadChecksum; sum != parts {
			t.Errorf("%d parts, counted %+v", parts, c)
		}
		var d Datagram
		rest := data[min(len(data), 8):]
		for s.Pop(&d) {
			if d.Frame != 9 || len(d.Payload) > len(rest) || len(d.Payload) > 0 && &d.Payload[0] != &rest[0] {
				t.Fatalf("datagram %q is not the next part of the input", d.Payload)
			}
			rest = rest[len(d.Payload):]
		}
	})
}

// FuzzProcessICMP gives the table any ICMP message with the right checksum. A socket is returned as pending
// if and only if it has an error.
func FuzzProcessICMP(f *testing.F) {
	local, peer := AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: 1234}
	packet := make([]byte, 28)
	wire.PutIPv4(packet, wire.IPv4Fields{TotalLen: 28, Protocol: 17, Src: hostA.As4(), Dst: hostB.As4()})
	copy(packet[20:], datagram(local, peer, ""))
	b := make([]byte, 64)
	f.Add(b[:wire.PutICMPv4Error(b, wire.ICMPUnreachable, 3, 0, packet)])
	f.Add(b[:wire.PutICMPv4Error(b, wire.ICMPUnreachable, 3, 0, packet[:22])])
	f.Add(b[:wire.PutICMPv4Error(b, wire.ICMPUnreachable, 4, 1400, packet)])
	f.Fuzz(func(t *testing.T, data []byte) {
		tab := NewTable(Config{})
		s, err := tab.Open(local, peer, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(data) >= 4 { // otherwise every input fails on its checksum
			data[2], data[3] = 0, 0
			c := ^wire.Fold(wire.Sum(data, 0))
			data[2], data[3] = byte(c>>8), byte(c)
		}
		m, err := wire.ParseICMPv4(data)
		if err != nil {
			return
		}
		q, err := m.Report()
		if err != nil {
			return
		}
		if got, pending := tab.ProcessICMP(&q); pending != (s.TakeError() != nil) || pending && got != s {
			t.Error("pending and no error, or an error and not pending")
		}
	})
}
