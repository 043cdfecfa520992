//go:build linux

package bpf

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket/layers"
)

const rxMartian = MuxUnetCounterUNET_RX_MARTIAN

// Addresses of other interfaces of the host.
var (
	elsewhere  = netip.MustParseAddr("192.0.2.9")
	elsewhere6 = netip.MustParseAddr("fd77::9")
)

// martian4 and martian6 are sources that no other host can have, beside addresses of the host and its endpoints.
var (
	martian4 = []netip.Addr{netip.IPv4Unspecified(), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.255.0.2"),
		netip.MustParseAddr("224.0.0.1"), netip.MustParseAddr("239.255.0.1"), netip.MustParseAddr("255.255.255.255"), subnetBroadcast}
	martian6 = []netip.Addr{netip.IPv6Loopback(), nodes6, netip.MustParseAddr("ff15::1"), netip.MustParseAddr("::ffff:10.0.0.2")}
)

// Packets from the wire whose source no other host can have are dropped in each program of the uplink, whether the tag
// belongs to a port or a queue.
func TestMartians(t *testing.T) {
	inLab(t, true, func(l *lab) {
		own := map[bool][]netip.Addr{
			true:  append([]netip.Addr{shared, owned, elsewhere}, martian4...),
			false: append([]netip.Addr{shared6, owned6, elsewhere6, nobody6}, martian6...),
		}
		fine := map[bool][]netip.Addr{
			true:  {peer, netip.MustParseAddr("192.0.2.8"), netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.77"), netip.MustParseAddr("240.0.0.1"), netip.MustParseAddr("0.1.2.3"), netip.MustParseAddr("126.255.255.255")},
			false: {peer6, netip.MustParseAddr("fd78::9"), netip.MustParseAddr("fd01::1"), netip.MustParseAddr("::2"), netip.MustParseAddr("fe80::1")},
		}
		for _, of := range []struct{ shared, owned netip.Addr }{{shared, owned}, {shared6, owned6}} {
			for port, o := range map[uint16]Owner{7000: l.port(l.a), 7001: {Queue: 0}} {
				if of.shared.Is4() {
					l.claim(Key(TagUDP, of.shared.As4(), port), o)
					l.claim(Key(TagTCPBlock, of.shared.As4(), port&^63), o)
				} else {
					l.claim6(Key6(TagUDP, of.shared.As16(), port), o)
				}
			}
			if of.owned.Is4() {
				l.claim(Key(TagAddr, of.owned.As4(), 0), l.port(l.a))
			} else {
				l.claim6(Key6(TagAddr, of.owned.As16(), 0), l.port(l.a))
			}
			l.reach(l.a)
			frame := func(src, dst netip.Addr, port uint16) []byte {
				return datagram(l.mac, peerMAC, netip.AddrPortFrom(src, 5000), netip.AddrPortFrom(dst, port), 64)
			}
			ping := func(src netip.Addr) []byte {
				return quote(l.mac, peerMAC, src, of.owned, map[bool]uint8{true: 8, false: 128}[src.Is4()], nil)
			}
			for _, src := range own[of.shared.Is4()] {
				name := src.String()
				l.wantUplink(name+" to a port", frame(src, of.shared, 7000), rxMartian)
				l.wantUplink(name+" to an owned address", frame(src, of.owned, 9), rxMartian)
				l.wantUplink(name+" behind a tag of VLAN 0", tagged(frame(src, of.shared, 7000), layers.EthernetTypeDot1Q, 0, 0), rxMartian)
				if src != nobody6 {
					l.wantUplink(name+", ping of an owned address", ping(src), rxMartian)
				}
				l.wantUplink(name+" to the kernel", frame(src, of.shared, 53), rxPass)
				toQueue := frame(src, of.shared, 7001)
				l.want(name+" to a queue", l.objs.UnetUplink, toQueue, l.uplink, 0, rxMartian)
				l.want(name+" to a queue, unet_queue", l.objs.UnetQueue, toQueue, l.uplink, 0, rxMartian)
				if got, err := l.countedTCX(toQueue); err != nil || got != rxMartian {
					l.t.Errorf("%s to a queue, tcx: %s, %v", name, CounterName(got), err)
				}
				l.want(name+" on the cutter", l.objs.UnetUplink, frame(src, of.shared, 7000), int(l.cutter()), 0, rxPort)
			}
			for _, src := range fine[of.shared.Is4()] {
				l.wantUplink(src.String()+" to a port", frame(src, of.shared, 7000), rxPort)
				l.wantUplink(src.String()+" to an owned address", frame(src, of.owned, 9), rxPort)
			}
		}
		// What a host sends about an address that it wants, or has too, concerns its owner.
		group, groupMAC := solicitedNode(owned6)
		l.wantReceived([]received{
			{"a probe for an owned address", nd(groupMAC, peerMAC, nobody6, group, 135, solicits(owned6, nil)), l.a, rxPort},
			{"ARP probe", arp(bcast, peerMAC, peerMAC, netip.IPv4Unspecified(), owned, 1), l.a, rxPort},
			{"ARP from an owned address", arp(bcast, peerMAC, peerMAC, owned, owned, 1), l.a, rxPort},
		})
		// The answer to a message goes to the MAC address of its sender.
		l.claim(MessageKey(7), l.port(l.a))
		for from, want := range map[string]Counter{l.mac.String(): rxMartian, peerMAC.String(): rxPort} {
			src, _ := net.ParseMAC(from)
			l.wantUplink("message from "+from, message(l.mac, src, 7, 8, 64, 64), want)
		}
	})
}

// cutter is its ifindex in the constants of inLab.
func (l *lab) cutter() uint32 { return lo }
