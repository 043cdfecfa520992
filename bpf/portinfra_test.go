//go:build linux

package bpf

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/internal/testutil"
)

// Packets that only the infrastructure of a network sends are allowed from an owned address with Infrastructure, and
// dropped without it.
func testPortInfrastructure(l *lab) {
	at := netip.AddrPortFrom
	var frames []sent
	for _, own := range []struct{ owned, peer netip.Addr }{{owned, peer}, {owned6, peer6}} {
		name := "IPv4, "
		if own.owned.Is6() {
			name = "IPv6, "
		}
		add := func(what string, f []byte) {
			frames = append(frames, sent{name + what, f, l.b, l.uplink, txInfrastructure})
		}
		for _, ports := range []struct {
			what     string
			src, dst uint16
		}{
			{"DHCP offer", 67, 68}, {"DHCP offer from another port", 4000, 68}, {"DHCP relay", 67, 67},
			{"DHCPv6 advertisement", 547, 546}, {"DHCPv6 from another port", 4000, 546}, {"DHCPv6 relay", 547, 547},
			{"RIP", 520, 520}, {"RIPng", 521, 521},
		} {
			f := datagram(peerMAC, l.mac, at(own.owned, ports.src), at(own.peer, ports.dst), 300)
			add(ports.what, f)
			if own.owned.Is4() {
				add(ports.what+", first fragment", fragment4(f, 0, 64, true))
			} else {
				add(ports.what+", first fragment", fragment6(f, 0, 64, true))
			}
		}
		for _, p := range []layers.IPProtocol{layers.IPProtocolIGMP, layers.IPProtocolVRRP, layers.IPProtocolOSPF, layers.IPProtocolGRE, layers.IPProtocolSCTP} {
			add(p.String(), packet(peerMAC, l.mac, own.owned, own.peer, p, gopacket.Payload(make([]byte, 32))))
		}
		// Packets that any host may send.
		for _, ports := range [][2]uint16{{68, 67}, {546, 547}, {5353, 5353}, {66, 69}} {
			frames = append(frames, sent{name + "UDP of a client", datagram(peerMAC, l.mac, at(own.owned, ports[0]), at(own.peer, ports[1]), 300), l.b, l.uplink, txUplink})
		}
		frames = append(frames, sent{name + "TCP from port 67", segment(peerMAC, l.mac, at(own.owned, 67), at(own.peer, 68), 8), l.b, l.uplink, txUplink})
	}
	for _, t := range []uint8{13, 15, 17, 18} { // timestamp, information, address masks
		frames = append(frames, sent{"ICMP", quote(peerMAC, l.mac, owned, peer, t, make([]byte, 12)), l.b, l.uplink, txInfrastructure})
	}
	igmp := packet(peerMAC, l.mac, owned, peer, layers.IPProtocolIGMP, gopacket.Payload(make([]byte, 64)))
	frames = append(frames, sent{"IGMP in a later fragment", fragment4(igmp, 8, 16, false), l.b, l.uplink, txInfrastructure})
	for _, t := range []uint8{130, 131, 132, 138, 139, 143, 151} { // multicast listeners and routers, renumbering, node information
		frames = append(frames, sent{"ICMPv6", quote(peerMAC, l.mac, owned6, peer6, t, make([]byte, 20)), l.b, l.uplink, txInfrastructure})
	}
	l.wantSent(frames)

	// A port of an owned address permits no more than the address. A port of the host's address
	// permits what bind(2) permits.
	ports := []Tag{Key(TagUDP, owned.As4(), 67), Key(TagUDPBlock, owned.As4(), 4000&^63), Key(TagUDP, shared.As4(), 67), Key(TagUDPBlock, shared.As4(), 4000&^63)}
	ports6 := []Tag6{Key6(TagUDP, owned6.As16(), 547), Key6(TagUDPBlock, owned6.As16(), 4000&^63)}
	for _, k := range ports {
		l.claim(k, l.port(l.b))
	}
	for _, k := range ports6 {
		l.claim6(k, l.port(l.b))
	}
	l.wantSent(frames)
	l.wantSent([]sent{
		{"own port of an owned address", datagram(peerMAC, l.mac, at(owned, 4000), at(peer, 67), 300), l.b, l.uplink, txUplink},
		{"DHCP offer from a port of the host's address", datagram(peerMAC, l.mac, at(shared, 67), at(peer, 68), 300), l.b, l.uplink, txUplink},
		{"DHCP offer from a block of the host's address", datagram(peerMAC, l.mac, at(shared, 4000), at(peer, 68), 300), l.b, l.uplink, txUplink},
	})
	for _, k := range ports {
		testutil.Must(l.t, l.objs.Tags.Delete(k))
	}
	for _, k := range ports6 {
		testutil.Must(l.t, l.objs.Tags6.Delete(k))
	}

	// With Infrastructure all are allowed.
	right := l.port(l.b)
	right.Queue = Infrastructure
	l.claim(Key(TagAddr, owned.As4(), 0), right)
	l.claim6(Key6(TagAddr, owned6.As16(), 0), right)
	for i := range frames {
		frames[i].counter = txUplink
	}
	l.wantSent(frames)
	l.claim(Key(TagAddr, owned.As4(), 0), l.port(l.b))
	l.claim6(Key6(TagAddr, owned6.As16(), 0), l.port(l.b))
}

// To the port of RDMA devices only the device of an address sends from there: the holder of its port 4791, or of the
// owned address. The source port is any.
func testPortRDMA(l *lab) {
	for _, a := range []struct{ shared, owned, peer netip.Addr }{{shared, owned, peer}, {shared6, owned6, peer6}} {
		at := netip.AddrPortFrom
		to := func(link net.HardwareAddr, src netip.AddrPort, port uint16) []byte {
			return datagram(link, l.mac, src, at(a.peer, port), 64)
		}
		local := func(src, dst netip.AddrPort) []byte { return datagram(l.mac, l.mac, src, dst, 64) }
		l.wantSent([]sent{
			{"from a port of an address without a device", to(peerMAC, at(a.shared, 7000), 4791), l.a, l.uplink, txForgedRDMA},
			{"to the next port", to(peerMAC, at(a.shared, 7000), 4792), l.a, l.uplink, txUplink},
			{"from the owned address", to(peerMAC, at(a.owned, 5), 4791), l.b, l.uplink, txUplink},
			{"from another's port of it", to(peerMAC, at(a.owned, 9), 4791), l.a, l.uplink, txForgedRDMA},
			{"the same to an endpoint", local(at(a.owned, 9), at(a.owned, 4791)), l.a, l.b, txForgedRDMA},
			{"by TCP", segment(peerMAC, l.mac, at(a.shared, 32769), at(a.peer, 4791), 64), l.a, l.uplink, txUplink},
		})
		claim := func(addr netip.Addr, w int) {
			if addr.Is4() {
				l.claim(Key(TagUDP, addr.As4(), 4791), l.port(w))
			} else {
				l.claim6(Key6(TagUDP, addr.As16(), 4791), l.port(w))
			}
		}
		claim(a.shared, l.a)
		claim(a.owned, l.a)
		l.wantSent([]sent{
			{"from the device", to(peerMAC, at(a.shared, 4791), 4791), l.a, l.uplink, txUplink},
			{"from another port of the device", to(peerMAC, at(a.shared, 7000), 4791), l.a, l.uplink, txUplink},
			{"the same to an endpoint", local(at(a.shared, 7000), at(a.owned, 4791)), l.a, l.a, txLocal},
			{"from an owned address whose port another has", to(peerMAC, at(a.owned, 5), 4791), l.b, l.uplink, txForgedRDMA},
			{"that port from the owned address", to(peerMAC, at(a.owned, 4791), 4791), l.b, l.uplink, txForgedTag},
		})
	}
}

// Infrastructure applies to owned addresses only.
func TestInfrastructureNeedsOwnedAddress(t *testing.T) {
	inLab(t, true, func(l *lab) {
		claimForPorts(l)
		right := l.port(l.a)
		right.Queue = Infrastructure
		l.claim(Key(TagUDP, shared.As4(), 7000), right)
		l.wantSent([]sent{
			{"VRRP from a UDP tag's address", packet(peerMAC, l.mac, shared, peer, layers.IPProtocolVRRP, gopacket.Payload(make([]byte, 32))), l.a, l.uplink, txForgedAddr},
			{"VRRP from another's address", packet(peerMAC, l.mac, owned, peer, layers.IPProtocolVRRP, gopacket.Payload(make([]byte, 32))), l.a, l.uplink, txForgedAddr},
		})
	})
}
