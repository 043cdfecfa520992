package mux_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
)

// What the kernel of another host sends to a claimed port arrives at who claimed
// it, alone or in a block, on a shared address or on its own, and nowhere else.
func TestClaimedPortsGetTheirFrames(t *testing.T) {
	l := openLab6(t)
	setNeighbour(t, l.B, "10.0.0.77", l.A.LinkAddr)
	setNeighbour(t, l.B, "fd00::77", l.A.LinkAddr)
	whole, whole6 := addrTag("10.0.0.77"), addrTag("fd00::77")
	other := l.open(udpTag("10.0.0.1:7001"), tcpTag("[fd00::1]:7001"), udpBlock("10.0.0.1:40064"), tcpBlock("[fd00::1]:40064"))
	a := l.open(append(sharedTags, whole, whole6,
		tcpTag("10.0.0.77:80"), udpBlock("10.0.0.77:40000"), udpTag("[fd00::77]:80"), tcpBlock("[fd00::77]:40000"))...)
	for _, tag := range a.grant.Tags {
		if tag.Kind == endpoint.TagAddr {
			continue
		}
		for _, port := range []uint16{tag.Port, tag.LastPort()} {
			to := netip.AddrPortFrom(tag.Addr, port)
			p := program{network: "udp4", at: "10.0.0.2:0"}
			if tag.Addr.Is6() {
				p = program{network: "udp6", at: "[fd00::2]:0"}
			}
			if tag.Kind == endpoint.TagTCP {
				p.network = "tcp" + p.network[3:]
			}
			fd := p.keep(t, l.B)
			must(t, connect(fd, to.String())) // TCP: a SYN
			if tag.Kind == endpoint.TagUDP {
				_, err := unix.Write(fd, []byte("hello"))
				must(t, err)
			}
			ours := func(p gopacket.Packet) bool {
				switch l := p.TransportLayer().(type) {
				case *layers.UDP:
					return tag.Kind == endpoint.TagUDP && uint16(l.DstPort) == port && string(l.Payload) == "hello"
				case *layers.TCP:
					return tag.Kind == endpoint.TagTCP && uint16(l.DstPort) == port && l.SYN && !l.ACK
				}
				return false
			}
			p2 := packet(t, a.recv().frame)
			if !ours(p2) || !net.IP(p2.NetworkLayer().NetworkFlow().Dst().Raw()).Equal(tag.Addr.AsSlice()) {
				t.Errorf("sent to %v %v, received %v", p.network, to, p2)
			}
			unix.Close(fd) // no SYN again
		}
	}
	other.nothing("for another endpoint's ports")
	// What nobody has claimed is the kernel's.
	ping(t, l.B, "10.0.0.1")
	ping(t, l.B, "fd00::1")
	service, err := l.A.Listen("tcp6", "[fd00::1]:80")
	must(t, err)
	defer service.Close()
	c, err := l.B.Dial("tcp6", "[fd00::1]:80")
	must(t, err)
	must(t, c.Close())
	a.nothing("of the kernel's traffic")
}

// datagram6 is datagram over IPv6.
func datagram6(dst, src [6]byte, from, to string, payload string) []byte {
	f, d := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: f.Addr().AsSlice(), DstIP: d.Addr().AsSlice()}
	udp := &layers.UDP{SrcPort: layers.UDPPort(f.Port()), DstPort: layers.UDPPort(d.Port())}
	must0(udp.SetNetworkLayerForChecksum(ip))
	buf := gopacket.NewSerializeBuffer()
	must0(gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{DstMAC: dst[:], SrcMAC: src[:], EthernetType: layers.EthernetTypeIPv6}, ip, udp, gopacket.Payload(payload)))
	return buf.Bytes()
}

// The other host's errors about what was sent from a port of a block come to the
// block's owner, and so do the resets of its TCP.
func TestErrorsReachTheOwnerOfTheBlock(t *testing.T) {
	l := openLab6(t)
	a := l.open(udpBlock("10.0.0.1:40000"), udpBlock("[fd00::1]:40000"), tcpBlock("10.0.0.1:40000"))
	b := l.open(udpBlock("10.0.0.1:40064"), udpBlock("[fd00::1]:40064"), udpTag("10.0.0.1:9"))
	A, B := l.A.LinkAddr, l.B.LinkAddr
	a.send(datagram(B, A, "10.0.0.1:40063", "10.0.0.2:9", "anybody?"))
	p := packet(t, a.recv().frame)
	if icmp, ok := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); !ok || icmp.TypeCode != layers.CreateICMPv4TypeCode(3, 3) {
		t.Errorf("received %v", p)
	}
	a.send(datagram6(B, A, "[fd00::1]:40063", "[fd00::2]:9", "anybody?"))
	p = packet(t, a.recv().frame)
	if icmp, ok := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6); !ok || icmp.TypeCode != layers.CreateICMPv6TypeCode(1, 4) {
		t.Errorf("received %v", p)
	}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: net.IPv4(10, 0, 0, 1), DstIP: net.IPv4(10, 0, 0, 2)}
	syn := &layers.TCP{SrcPort: 40001, DstPort: 9, SYN: true, Window: 1000}
	must0(syn.SetNetworkLayerForChecksum(ip))
	a.send(build(&layers.Ethernet{DstMAC: B[:], SrcMAC: A[:], EthernetType: layers.EthernetTypeIPv4}, ip, syn))
	p = packet(t, a.recv().frame)
	if tcp, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP); !ok || !tcp.RST || tcp.DstPort != 40001 {
		t.Errorf("received %v", p)
	}
	b.nothing("errors about another's datagrams")
}

// Solicitations for a whole IPv6 address reach its owner, which answers for
// itself; those for the shared address stay the kernel's.
func TestSolicitationsReachTheOwner(t *testing.T) {
	l := openLab6(t)
	a := l.open(addrTag("fd00::77"))
	fd := program{network: "udp6", at: "[fd00::2]:9000"}.keep(t, l.B)
	must(t, connect(fd, "[fd00::77]:5"))
	_, err := unix.Write(fd, []byte("hello")) // the kernel asks for the link address first
	must(t, err)
	frame := a.recv().frame
	ns, ok := packet(t, frame).Layer(layers.LayerTypeICMPv6NeighborSolicitation).(*layers.ICMPv6NeighborSolicitation)
	if !ok || !ns.TargetAddress.Equal(net.ParseIP("fd00::77")) {
		t.Fatalf("received %x, want a solicitation", frame)
	}
	A, B := net.HardwareAddr(l.A.LinkAddr[:]), net.HardwareAddr(l.B.LinkAddr[:])
	const solicitedOverride = 0x60
	advertisement := append([]byte{136, 0, 0, 0, solicitedOverride, 0, 0, 0}, net.ParseIP("fd00::77")...)
	a.send(ndWith(A, B, "fd00::77", "fd00::2", 255, append(append(advertisement, 2, 1), A...)))
	p := packet(t, a.recv().frame)
	if udp := p.Layer(layers.LayerTypeUDP); udp == nil || string(udp.LayerPayload()) != "hello" {
		t.Fatalf("received %v, want the datagram", p)
	}
	ping(t, l.B, "fd00::1")
	ping(t, l.B, "fd00::1")
	a.nothing("solicitations and ping of the shared address")
}
