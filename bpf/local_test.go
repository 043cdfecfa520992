//go:build linux

package bpf

import (
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket/layers"
)

// Frames of an endpoint to its own host are redirected to their owner. The rows run with the claims of
// claimForPorts.
func testPortLocal(l *lab) {
	at := netip.AddrPortFrom
	local := func(src, dst netip.AddrPort) []byte { return datagram(l.mac, l.mac, src, dst, 64) }
	localTCP := func(src, dst netip.AddrPort) []byte { return segment(l.mac, l.mac, src, dst, 64) }
	sentByA := local(at(shared, 7000), at(owned, 5))[atIP:]
	other := netip.MustParseAddr("10.0.0.78") // a second owned address on the host
	l.claim(Key(TagAddr, other.As4(), 0), l.port(l.a))
	l.wantSent([]sent{
		{"local UDP", local(at(shared, 7000), at(owned, 5)), l.a, l.b, txLocal},
		{"local UDP to itself", local(at(shared, 7000), at(shared, 7009)), l.a, l.a, txLocal},
		{"local UDP, port gone", local(at(shared, 7000), at(owned, 5)), l.a, 0, txPortGone},
		{"local UDP to a port without an owner", local(at(shared, 7000), at(shared, 53)), l.a, l.a, txNoOwner},
		{"local UDP to the kernel", local(at(shared, 7000), at(shared, 53)), l.a, lo, txHost},
		{"local UDP to a loopback address", local(at(shared, 7000), at(netip.MustParseAddr("127.0.0.1"), 53)), l.a, lo, txNoOwner},
		{"local UDP to an address that the uplink does not have", local(at(shared, 7000), at(netip.MustParseAddr("10.255.0.9"), 53)), l.a, lo, txNoOwner},
		{"the same, from an owned address", local(at(owned, 7000), at(netip.MustParseAddr("127.255.0.1"), 53)), l.b, lo, txNoOwner},
		{"local UDP to the kernel, forged", local(at(shared, 53), at(shared, 53)), l.a, lo, txForgedAddr},
		{"local UDP to a queue's endpoint", local(at(shared, 7000), at(shared, 7001)), l.a, l.a, txToQueue},
		{"local UDP, forged", local(at(shared, 7000), at(owned, 5)), l.b, l.b, txForgedTag},
		{"local TCP to a block", localTCP(at(owned, 5), at(shared, 32769)), l.b, l.a, txLocal},
		{"local TCP to another's port inside it", localTCP(at(shared, 32769), at(shared, 32770)), l.a, l.b, txLocal},
		{"local TCP to a port that is held in UDP only", localTCP(at(owned, 5), at(shared, 7000)), l.b, l.a, txNoOwner},
		{"local fragment to the owned address", fragment4(local(at(other, 5), at(owned, 5)), 0, 32, true), l.a, l.b, txLocal},
		{"local fragment to a port", fragment4(local(at(owned, 5), at(shared, 7000)), 0, 32, true), l.b, lo, txNoOwner},
		{"local message", message(l.mac, l.mac, 8, 7, 64, 64), l.a, l.b, txLocal},
		{"local message to a tag without an owner", message(l.mac, l.mac, 9, 7, 64, 64), l.a, lo, txNoOwner},
		{"local unreachable", quote(l.mac, l.mac, owned, shared, 3, sentByA), l.b, l.a, txLocal},
		{"local ARP reply to the kernel", arp(l.mac, l.mac, l.mac, owned, shared, 2), l.b, lo, txHost},
		{"local ARP reply", arp(l.mac, l.mac, l.mac, owned, owned, 2), l.b, l.b, txLocal},
		{"ARP request for a local owned address", arp(bcast, l.mac, l.mac, owned, other, 1), l.b, l.a, txLocal},
		{"the same, port gone", arp(bcast, l.mac, l.mac, owned, other, 1), l.b, 0, txPortGone},
		{"ARP request for another host", arp(bcast, l.mac, l.mac, owned, peer, 1), l.b, l.uplink, txUplink},
	})
}

// testPortLocal6 is testPortLocal for IPv6.
func testPortLocal6(l *lab) {
	at := netip.AddrPortFrom
	local := func(src, dst netip.AddrPort) []byte { return datagram(l.mac, l.mac, src, dst, 64) }
	localTCP := func(src, dst netip.AddrPort) []byte { return segment(l.mac, l.mac, src, dst, 64) }
	sentByA := local(at(shared6, 7000), at(owned6, 5))[atIP:]
	other := netip.MustParseAddr("fd00::aa:78") // a second owned address on the host
	l.claim6(Key6(TagAddr, other.As16(), 0), l.port(l.a))
	group, groupMAC := solicitedNode(other)
	peerGroup, peerGroupMAC := solicitedNode(peer6)
	onQueue := netip.MustParseAddr("fd00::aa:79")
	queueGroup, queueMAC := solicitedNode(onQueue)
	l.claim6(Key6(TagAddr, onQueue.As16(), 0), Owner{Queue: 0})
	link := linkOption(layers.ICMPv6OptSourceAddress, l.mac)
	l.wantSent([]sent{
		{"local UDP", local(at(shared6, 7000), at(owned6, 5)), l.a, l.b, txLocal},
		{"local UDP to itself", local(at(shared6, 7000), at(shared6, 7009)), l.a, l.a, txLocal},
		{"local UDP, port gone", local(at(shared6, 7000), at(owned6, 5)), l.a, 0, txPortGone},
		{"local UDP to a port without an owner", local(at(shared6, 7000), at(shared6, 53)), l.a, l.a, txNoOwner},
		{"local UDP to the kernel", local(at(shared6, 7000), at(shared6, 53)), l.a, lo, txHost},
		{"local UDP to the loopback address", local(at(shared6, 7000), at(netip.IPv6Loopback(), 53)), l.a, lo, txNoOwner},
		{"local UDP to an address that the uplink does not have", local(at(shared6, 7000), at(netip.MustParseAddr("fd77::5"), 53)), l.a, lo, txNoOwner},
		{"local UDP to a queue's endpoint", local(at(shared6, 7000), at(shared6, 7001)), l.a, l.a, txToQueue},
		{"local UDP, forged", local(at(shared6, 7000), at(owned6, 5)), l.b, l.b, txForgedTag},
		{"local TCP to a block", localTCP(at(owned6, 5), at(shared6, 32769)), l.b, l.a, txLocal},
		{"local TCP to another's port inside it", localTCP(at(shared6, 32769), at(shared6, 32770)), l.a, l.b, txLocal},
		{"local fragment to the owned address", fragment6(local(at(other, 5), at(owned6, 5)), 0, 32, true), l.a, l.b, txLocal},
		{"local fragment to a port", fragment6(local(at(owned6, 5), at(shared6, 7000)), 0, 32, true), l.b, lo, txNoOwner},
		{"local unreachable", quote(l.mac, l.mac, owned6, shared6, 1, sentByA), l.b, l.a, txLocal},
		{"solicitation for a local owned address", nd(groupMAC, l.mac, owned6, group, 135, solicits(other, link)), l.b, l.a, txLocal},
		{"the same, port gone", nd(groupMAC, l.mac, owned6, group, 135, solicits(other, link)), l.b, 0, txPortGone},
		{"the same by unicast", nd(l.mac, l.mac, owned6, other, 135, solicits(other, link)), l.b, l.a, txLocal},
		{"for one on a queue", nd(queueMAC, l.mac, owned6, queueGroup, 135, solicits(onQueue, link)), l.b, l.a, txToQueue},
		{"for another host", nd(peerGroupMAC, l.mac, owned6, peerGroup, 135, solicits(peer6, link)), l.b, l.uplink, txUplink},
		{"local advertisement", nd(l.mac, l.mac, other, owned6, 136, advertises(other, 0x60, linkOption(layers.ICMPv6OptTargetAddress, l.mac))), l.a, l.b, txLocal},
	})
}

// A program on kernel sockets sends neither under the tag of an endpoint nor as the RDMA device that one is, neither by
// lo nor by the uplink.
func testKernelForges(l *lab) {
	at := netip.AddrPortFrom
	none := net.HardwareAddr(make([]byte, 6))
	l.reach(l.a)
	for _, a := range []struct{ shared, owned, peer netip.Addr }{{shared, owned, peer}, {shared6, owned6, peer6}} {
		device := at(a.shared, 4791)
		if a.shared.Is4() {
			l.claim(Key(TagUDP, a.shared.As4(), 4791), l.port(l.a))
		} else {
			l.claim6(Key6(TagUDP, a.shared.As16(), 4791), l.port(l.a))
		}
		fragment := fragment4
		if a.shared.Is6() {
			fragment = fragment6
		}
		// A routing header of 8 and 8*more bytes. IPv4 has none.
		routed := func(frame []byte, more byte) []byte { return frame }
		if a.shared.Is6() {
			routed = func(frame []byte, more byte) []byte {
				return edit(edit(extendedBy(frame, 1, more), atNextHeader, 43), atIPv6Payload+3, 0)
			}
		}
		other := a.peer.Next() // an address of the host that no endpoint holds a port of
		for _, c := range []struct {
			name    string
			program *ebpf.Program
			frame   []byte
			want    Counter // rxPass: none
		}{
			{"by lo under a port", l.objs.UnetLo, datagram(none, none, at(a.shared, 7000), at(a.shared, 7000), 64), rxForgedTag},
			{"by the uplink under a port", l.objs.UnetEgress, datagram(peerMAC, l.mac, at(a.shared, 7000), at(a.peer, 9), 64), rxForgedTag},
			{"by the uplink under a port, behind a routing header", l.objs.UnetEgress, routed(datagram(peerMAC, l.mac, at(a.shared, 7000), at(a.peer, 9), 64), 0), rxForgedTag},
			{"by the uplink under a port, behind a routing header of 24 bytes", l.objs.UnetEgress, routed(datagram(peerMAC, l.mac, at(a.shared, 7000), at(a.peer, 9), 64), 2), rxForgedTag},
			{"by the uplink under a port, behind a routing header of 2,048 bytes", l.objs.UnetEgress, routed(datagram(peerMAC, l.mac, at(a.shared, 7000), at(a.peer, 9), 64), 255), rxForgedTag},
			{"by the uplink, behind a routing header", l.objs.UnetEgress, routed(datagram(peerMAC, l.mac, at(a.shared, 4000), at(a.peer, 4791), 64), 2), rxForgedRDMA},
			{"by the uplink under the device's port", l.objs.UnetEgress, datagram(peerMAC, l.mac, device, at(a.peer, 4791), 64), rxForgedTag},
			{"by the uplink from the next port", l.objs.UnetEgress, datagram(peerMAC, l.mac, at(a.shared, 7004), at(a.peer, 9), 64), rxPass},
			{"by the uplink by TCP from a port of UDP", l.objs.UnetEgress, segment(peerMAC, l.mac, at(a.shared, 4791), at(a.peer, 9), 64), rxPass},
			{"by lo", l.objs.UnetLo, datagram(none, none, at(a.shared, 4000), device, 64), rxForgedRDMA},
			{"by lo from another address", l.objs.UnetLo, datagram(none, none, at(other, 4000), device, 64), rxHost},
			{"by lo to another port", l.objs.UnetLo, datagram(none, none, at(a.shared, 4000), at(a.shared, 7000), 64), rxHost},
			{"by the uplink", l.objs.UnetEgress, datagram(peerMAC, l.mac, at(a.shared, 4000), at(a.peer, 4791), 64), rxForgedRDMA},
			{"by the uplink in fragments", l.objs.UnetEgress, fragment(datagram(peerMAC, l.mac, at(a.shared, 4000), at(a.peer, 4791), 64), 0, 32, true), rxForgedRDMA},
			{"by the uplink, a later fragment", l.objs.UnetEgress, fragment(datagram(peerMAC, l.mac, at(a.shared, 4000), at(a.peer, 4791), 64), 32, 32, false), rxPass},
			{"by the uplink from another address", l.objs.UnetEgress, datagram(peerMAC, l.mac, at(other, 4000), at(a.peer, 4791), 64), rxPass},
			{"by the uplink to another port", l.objs.UnetEgress, datagram(peerMAC, l.mac, at(a.shared, 4000), at(a.peer, 4790), 64), rxPass},
			{"by the uplink by TCP", l.objs.UnetEgress, segment(peerMAC, l.mac, at(a.shared, 4000), at(a.peer, 4791), 64), rxPass},
		} {
			verdict, moved, err := l.runCounted(func() (uint32, error) {
				return c.program.Run(&ebpf.RunOptions{Data: c.frame, DataOut: make([]byte, len(c.frame)+256)})
			})
			switch passes := err == nil && verdict == 0xffffffff && moved == nil; {
			case c.want == rxPass && !passes:
				l.t.Errorf("%s, %v: verdict %d, %v, %v; want it to pass, and no counter", c.name, a.shared, int32(verdict), names(moved), err)
			case c.want != rxPass && (err != nil || len(moved) != 1 || moved[0] != c.want):
				l.t.Errorf("%s, %v: %v, %v; want %s", c.name, a.shared, names(moved), err, CounterName(c.want))
			}
		}
	}
}

// The kernel lets IPv6 sockets send from any address (IPV6_FREEBIND).
func testKernelForges6(l *lab) {
	own := netip.MustParseAddr("fd00::aa:88")
	l.claim6(Key6(TagAddr, own.As16(), 0), l.port(l.a))
	at := netip.AddrPortFrom
	whole := datagram(peerMAC, l.mac, at(own, 5), at(peer6, 9), 64)
	for name, frame := range map[string][]byte{"UDP": whole, "TCP": segment(peerMAC, l.mac, at(own, 5), at(peer6, 9), 64), "a later fragment": fragment6(whole, 32, 32, false)} {
		if got, err := l.countedControl(l.objs.UnetEgress, frame); err != nil || got != rxForgedTag {
			l.t.Errorf("%s from an owned address: %s, %v", name, CounterName(got), err)
		}
	}
}

// Frames of the kernel on lo are redirected to their owner. All others pass, and are not counted.
func testLo(l *lab) {
	at := netip.AddrPortFrom
	none := net.HardwareAddr(make([]byte, 6))
	on := func(dst netip.AddrPort) []byte { return datagram(none, none, at(shared, 4000), dst, 64) }
	l.reach(l.a)
	for _, c := range []struct {
		name  string
		frame []byte
		want  Counter
	}{
		{"UDP to a port", on(at(shared, 7000)), rxHost},
		{"UDP with the uplink's addresses", datagram(l.mac, l.mac, at(shared, 4000), at(shared, 7000), 64), rxHost},
		{"a length that is wrong", edit(on(at(shared, 7000)), atTotalLength, 1), rxBadLength},
		{"a fragment", fragment4(on(at(shared, 7000)), 0, 32, true), rxFragment},
		{"UDP to a port without an owner", on(at(shared, 53)), rxPass},
		{"UDP to a queue's endpoint", on(at(shared, 7001)), rxPass},
		{"UDP to a loopback address", on(at(netip.MustParseAddr("127.0.0.1"), 7000)), rxPass},
		{"UDP to another MAC address", datagram(peerMAC, l.mac, at(shared, 4000), at(shared, 7000), 64), rxPass},
	} {
		if c.want == rxPass { // passes without a counter
			verdict, moved, err := l.runCounted(func() (uint32, error) {
				return l.objs.UnetLo.Run(&ebpf.RunOptions{Data: c.frame, DataOut: make([]byte, len(c.frame)+256)})
			})
			if err != nil || verdict != 0xffffffff || moved != nil {
				l.t.Errorf("%s, unet_lo: verdict %d, %v, %v; want the verdict to pass, and no counter", c.name, int32(verdict), names(moved), err)
			}
			continue
		}
		if got, err := l.countedControl(l.objs.UnetLo, c.frame); err != nil || got != c.want {
			l.t.Errorf("%s, unet_lo: %s, %v; want %s", c.name, CounterName(got), err, CounterName(c.want))
		}
	}
}
