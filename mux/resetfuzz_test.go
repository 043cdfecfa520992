package mux

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/wire"
)

// What is published is read as its author has laid it out, whatever is missing of it.
func FuzzConnections(f *testing.F) {
	one := []byte{10, 0, 0, 1, 10, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8}
	f.Add([]byte{}, uint16(0))
	f.Add(one, uint16(0))
	f.Add(append(make([]byte, 16), one...), uint16(2))
	f.Add(append(bytes.Repeat(one, 300), 1, 2, 3), uint16(5000))
	f.Fuzz(func(t *testing.T, content []byte, hole uint16) {
		path := filepath.Join(t.TempDir(), "table")
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		start := int64(hole) * wire.ConnectionLen
		if _, err := file.WriteAt(content, start); err != nil {
			t.Fatal(err)
		}
		var got, want []wire.Connection
		if err := readConnections(file, func(c wire.Connection) error { got = append(got, c); return nil }); err != nil {
			t.Fatal(err)
		}
		for b := range slices.Chunk(content, wire.ConnectionLen) {
			var c wire.Connection
			if n, err := binary.Decode(b, binary.NativeEndian, &c); err != nil || n != wire.ConnectionLen || c.RemotePort == 0 {
				continue
			}
			want = append(want, c)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// Whatever comes, it is answered to whom it came from, and never if it is a RST (RFC
// 9293, section 3.10.7.1). The independent decoder agrees.
func FuzzAnswers(f *testing.F) {
	segment := func(s layers.TCP, payload string) []byte {
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: []byte{10, 0, 0, 2}, DstIP: []byte{10, 0, 0, 77}}
		s.SrcPort, s.DstPort = 1, 2
		s.SetNetworkLayerForChecksum(ip)
		buf := gopacket.NewSerializeBuffer()
		err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			&layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 2}, DstMAC: []byte{2, 0, 0, 0, 0, 1}, EthernetType: layers.EthernetTypeIPv4}, ip, &s, gopacket.Payload(payload))
		if err != nil {
			f.Fatal(err)
		}
		return bytes.Clone(buf.Bytes())
	}
	f.Add(segment(layers.TCP{ACK: true, Seq: 5, Ack: 7}, "text"))
	f.Add(segment(layers.TCP{FIN: true, Seq: 0xffffffff}, "text"))
	f.Add(segment(layers.TCP{SYN: true, Seq: 1}, ""))
	f.Add(segment(layers.TCP{RST: true, Seq: 1}, ""))
	f.Fuzz(func(t *testing.T, frame []byte) {
		to, fl, h, ok := answerTo(frame)
		if !ok {
			return
		}
		p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
		ip, _ := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
		s, _ := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if ip == nil || s == nil {
			return // it is stricter about options, which are not looked at here
		}
		addr := func(b []byte) netip.Addr { a, _ := netip.AddrFromSlice(b); return a }
		want := flow{netip.AddrPortFrom(addr(ip.DstIP), uint16(s.DstPort)), netip.AddrPortFrom(addr(ip.SrcIP), uint16(s.SrcPort))}
		if fl != want || !bytes.Equal(to[:], frame[6:12]) || s.RST || h.Flags&wire.TCPRst == 0 {
			t.Errorf("%v to %v, %+v: want %v", fl, to, h, want)
		}
		length := uint32(len(s.Payload))
		if s.SYN {
			length++
		}
		if s.FIN {
			length++
		}
		if s.ACK && (h.Seq != s.Ack || h.Flags != wire.TCPRst) ||
			!s.ACK && (h.Seq != 0 || h.Ack != s.Seq+length || h.Flags != wire.TCPRst|wire.TCPAck) {
			t.Errorf("%+v is answered by %+v", s, h)
		}
	})
}
