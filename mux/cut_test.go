package mux_test

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
)

func openSuper(t *testing.T, h *netlab.Host) *netlab.SuperSocket {
	t.Helper()
	s, err := h.OpenSuper()
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// segment is a TCP frame.
func segment(dst, src [6]byte, from, to string, payload string) []byte {
	f, d := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	return build(&layers.Ethernet{DstMAC: dst[:], SrcMAC: src[:], EthernetType: layers.EthernetTypeIPv4},
		&layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: f.Addr().AsSlice(), DstIP: d.Addr().AsSlice()},
		&layers.TCP{SrcPort: layers.TCPPort(f.Port()), DstPort: layers.TCPPort(d.Port()), ACK: true, Seq: 1, Ack: 1}, gopacket.Payload(payload))
}

// A peer says how many parts a super-frame has. One of very many is dropped and
// counted; one of short segments, as a peer may send that was told no MSS, is cut.
func TestSuperFrameOfManyParts(t *testing.T) {
	l := openLab(t, mux.ModeGeneric)
	l.openFor(mux.Terms{}, endpoint.Request{Tags: []endpoint.Tag{tcpTag("10.0.0.1:7000")}})
	peer := openSuper(t, l.B)
	long := segment(l.A.LinkAddr, l.B.LinkAddr, "10.0.0.2:9000", "10.0.0.1:7000", strings.Repeat("x", 60000))
	const hostile = 100
	for range hostile {
		must(t, peer.Send(long, 1))
	}
	must(t, peer.Send(long, 512))
	const parts = (60000 + 511) / 512
	eventually(t, "each frame is counted, and each part", func() bool {
		c := l.count()
		return c["rx_many_parts"] == hostile && c["rx_cut"] == 1 && c["rx_port"] == parts && c["deliver_socket"] == parts
	})
	if c := l.count(); c["lost_deliver_redirect"] != 0 {
		t.Errorf("counters: %v", c)
	}
}

// An owner's super-frames wait in a line of their own, which takes no more than so
// many parts. What never comes back out of the cutter does not fill it for good.
func TestCutterIsBusy(t *testing.T) {
	l := openLab(t, mux.ModeGeneric)
	a := l.openFor(mux.Terms{}, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
	l.openFor(mux.Terms{}, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7001")}})
	const size, parts = 100, 100
	frame := func(to string) []byte {
		return datagram(l.A.LinkAddr, l.B.LinkAddr, "10.0.0.2:9000", to, strings.Repeat("x", parts*size))
	}
	peer := openSuper(t, l.B)
	cutter := look(t, l.A).cutters[0]
	onDevice(t, l.A, cutter, netlink.LinkSetDown)
	sent := uint64(0)
	eventually(t, "a line is full", func() bool {
		must(t, peer.Send(frame("10.0.0.1:7000"), size))
		sent++
		return l.count()["rx_cutter_busy"] > 0
	})
	l.await("rx_cut", sent-l.count()["rx_cutter_busy"])
	must(t, peer.Send(frame("10.0.0.1:7001"), size))
	l.await("rx_cut", sent-l.count()["rx_cutter_busy"]+1) // the other owner's line is empty
	l.await("lost_cut", l.count()["rx_cut"])
	if c := l.count(); c["rx_port"] != 0 {
		t.Errorf("%d sent, counters: %v", sent+1, c)
	}
	onDevice(t, l.A, cutter, netlink.LinkSetUp)
	eventually(t, "the line has been emptied", func() bool {
		must(t, peer.Send(frame("10.0.0.1:7000"), size))
		return l.count()["rx_port"] > 0
	})
	for range parts {
		p := packet(t, a.recv().frame)
		eth := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
		if n := len(p.Layer(layers.LayerTypeUDP).LayerPayload()); n != size || !bytes.Equal(eth.DstMAC, l.A.LinkAddr[:]) {
			t.Fatalf("received %d bytes to %v", n, eth.DstMAC)
		}
	}
}
