//go:build linux

package bpf

import (
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/unet-go/unet/internal/testutil"
)

// join gives ports the tag of a group: the set of devices for copies of received frames has the ports, that for
// copies of sent frames (GroupDevices) also the uplink.
func (l *lab) join(group netip.AddrPort, ports ...int) {
	l.t.Helper()
	l.countTag(TagUDP, group.Port())
	testutil.Must(l.t, l.objs.Groups.Put(GroupKey(group), uint32(len(ports))))
	for _, sets := range []*ebpf.Map{l.objs.GroupPorts, l.objs.GroupDevices} {
		set, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.DevMapHash, KeySize: 4, ValueSize: 4, MaxEntries: GroupPorts + 1})
		testutil.Must(l.t, err)
		for _, p := range ports {
			testutil.Must(l.t, set.Put(uint32(p), uint32(p)))
		}
		if sets == l.objs.GroupDevices {
			testutil.Must(l.t, set.Put(uint32(l.uplink), uint32(l.uplink)))
		}
		testutil.Must(l.t, sets.Put(GroupKey(group), uint32(set.FD())))
		testutil.Must(l.t, set.Close())
	}
}

// Frames of endpoints to groups: the MAC address must be the group's, a broadcast needs the tag of its source
// port or the owned address, and other holders of the tag get copies. The rows run with the claims of
// claimForPorts.
func testPortGroups(l *lab) {
	at := netip.AddrPortFrom
	all := netip.MustParseAddr("255.255.255.255")
	foreign := netip.MustParseAddr("10.0.1.255")
	group6 := netip.MustParseAddr("ff15::a1:b2c3")
	to := func(mac netip.Addr, src, dst netip.AddrPort) []byte {
		return datagram(groupMAC(mac), l.mac, src, dst, 64)
	}
	l.join(at(all, 7009), l.a)
	l.wantSent([]sent{
		{"broadcast without the tag", to(all, at(shared, 7000), at(subnetBroadcast, 1)), l.a, l.uplink, txBroadcast},
		{"broadcast with the tag", to(all, at(shared, 7009), at(subnetBroadcast, 1)), l.a, l.uplink, txUplink},
		{"limited broadcast with the tag", to(all, at(shared, 7009), at(all, 1)), l.a, l.uplink, txUplink},
		{"broadcast to another subnet", to(all, at(shared, 7009), at(foreign, 1)), l.a, l.uplink, txForgedGroup},
		{"broadcast to one host", to(all, at(shared, 7009), at(peer, 1)), l.a, l.uplink, txForgedGroup},
		{"broadcast of a group", to(all, at(shared, 7009), at(group4, 1)), l.a, l.uplink, txForgedGroup},
		{"broadcast from another's port with its tag", to(all, at(shared, 7009), at(all, 1)), l.b, l.uplink, txForgedTag},
		{"broadcast from the owned address", to(all, at(owned, 5), at(subnetBroadcast, 1)), l.b, l.uplink, txUplink},
		{"TCP by broadcast", segment(bcast, l.mac, at(shared, 32769), at(all, 1), 64), l.a, l.uplink, txBroadcast},
		{"a group", to(group4, at(shared, 7000), at(group4, 1)), l.a, l.uplink, txUplink},
		{"a group that shares its MAC address", to(group4, at(shared, 7000), at(netip.MustParseAddr("224.1.2.3"), 1)), l.a, l.uplink, txUplink},
		{"another group's MAC address", to(group4, at(shared, 7000), at(netip.MustParseAddr("239.129.2.4"), 1)), l.a, l.uplink, txForgedGroup},
		{"one host by a group's MAC address", to(group4, at(shared, 7000), at(peer, 1)), l.a, l.uplink, txForgedGroup},
		{"a group by that of IPv6", to(group6, at(shared, 7000), at(group4, 1)), l.a, l.uplink, txForgedGroup},
		{"an IPv6 group", to(group6, at(shared6, 7000), at(group6, 1)), l.a, l.uplink, txUplink},
		{"another IPv6 group's MAC address", to(group6, at(shared6, 7000), at(nodes6, 1)), l.a, l.uplink, txForgedGroup},
		{"one host by an IPv6 group's MAC address", to(group6, at(shared6, 7000), at(peer6, 1)), l.a, l.uplink, txForgedGroup},
		{"IPv6 by broadcast", to(all, at(shared6, 7000), at(nodes6, 1)), l.a, l.uplink, txForgedGroup},
		{"limited broadcast by a host's MAC address", datagram(peerMAC, l.mac, at(shared, 7000), at(all, 1), 64), l.a, l.uplink, txBroadcast},
		{"broadcast of the subnet by a host's MAC address", datagram(peerMAC, l.mac, at(shared, 7000), at(subnetBroadcast, 1), 64), l.a, l.uplink, txBroadcast},
		{"the same as TCP", segment(peerMAC, l.mac, at(shared, 32769), at(subnetBroadcast, 1), 64), l.a, l.uplink, txBroadcast},
		{"the same with the tag", datagram(peerMAC, l.mac, at(shared, 7009), at(subnetBroadcast, 1), 64), l.a, l.uplink, txForgedGroup},
		{"the same from the owned address", datagram(peerMAC, l.mac, at(owned, 5), at(all, 1), 64), l.b, l.uplink, txForgedGroup},
		{"broadcast of another subnet by a host's MAC address", datagram(peerMAC, l.mac, at(shared, 7000), at(foreign, 1), 64), l.a, l.uplink, txUplink},
		{"an address of 240.0.0.0/4", datagram(peerMAC, l.mac, at(shared, 7000), at(netip.MustParseAddr("240.1.2.3"), 1), 64), l.a, l.uplink, txUplink},
		{"a group by a host's MAC address", datagram(peerMAC, l.mac, at(shared, 7000), at(group4, 1), 64), l.a, l.uplink, txForgedGroup},
		{"an IPv6 group by a host's MAC address", datagram(peerMAC, l.mac, at(shared6, 7000), at(group6, 1), 64), l.a, l.uplink, txForgedGroup},
		{"broadcast by the host's own MAC address", datagram(l.mac, l.mac, at(shared, 7000), at(subnetBroadcast, 1), 64), l.a, lo, txNoOwner},
		{"a source that is a group", to(group4, at(group4, 7000), at(group4, 1)), l.a, l.uplink, txForgedAddr},
	})
	for _, c := range []struct {
		name    string
		members []int
		want    []Counter
	}{
		{"held by the sender only", []int{l.a}, []Counter{txUplink}},
		{"held by another", []int{l.b}, []Counter{txUplink, txGroup}},
		{"held by both", []int{l.a, l.b}, []Counter{txUplink, txGroup}},
	} {
		for i, f := range [][]byte{to(group4, at(shared, 7000), at(group4, 5000)), to(group6, at(shared6, 7000), at(group6, 5000))} {
			l.join(at([]netip.Addr{group4, group6}[i], 5000), c.members...)
			l.reach(l.uplink, l.a, l.b)
			verdict, moved, err := l.runCounted(func() (uint32, error) { return run(l.objs.UnetPort, f, l.a, 0) })
			if err != nil || verdict != redirect || !slices.Equal(moved, c.want) {
				l.t.Errorf("%s, %d: verdict %d, %v, %v; want %v", c.name, i, verdict, names(moved), err, names(c.want))
			}
		}
	}
}

// unet_group copies a frame to all ports that hold the tag of its group.
func testGroup(l *lab) {
	at := netip.AddrPortFrom
	group6 := netip.MustParseAddr("ff15::a1:b2c3")
	all := netip.MustParseAddr("255.255.255.255")
	for _, group := range []netip.Addr{group4, group6, all} {
		l.join(at(group, 5000), l.a, l.b)
	}
	received := func(src, mac, dst netip.Addr, port uint16) []byte {
		return datagram(groupMAC(mac), peerMAC, at(src, 4000), at(dst, port), 64)
	}
	for _, c := range []struct {
		name   string
		frame  []byte
		copies int
	}{
		{"a group", received(peer, group4, group4, 5000), 2},
		{"an IPv6 group", received(peer6, group6, group6, 5000), 2},
		{"limited broadcast", received(peer, all, all, 5000), 2},
		{"broadcast of the subnet", received(peer, all, subnetBroadcast, 5000), 2},
		{"broadcast of another subnet", received(peer, all, netip.MustParseAddr("10.0.1.255"), 5000), 0},
		{"one host by broadcast", received(peer, all, shared, 5000), 0},
		{"a group by broadcast", received(peer, all, group4, 5000), 0},
		{"another port", received(peer, group4, group4, 5001), 0},
		{"another group", received(peer, netip.MustParseAddr("239.129.2.4"), netip.MustParseAddr("239.129.2.4"), 5000), 0},
		{"another group's MAC address", received(peer, netip.MustParseAddr("239.129.2.4"), group4, 5000), 0},
		{"IPv6 by another group's MAC address", received(peer6, nodes6, group6, 5000), 0},
		{"a fragment", fragment4(received(peer, group4, group4, 5000), 0, 32, true), 0},
		{"TCP", segment(groupMAC(group4), peerMAC, at(peer, 4000), at(group4, 5000), 64), 0},
		{"a truncated header", received(peer, group4, group4, 5000)[:40], 0},
	} {
		verdict, moved, err := l.runCounted(func() (uint32, error) { return run(l.objs.UnetGroup, c.frame, l.uplink, 0) })
		want := slices.Repeat([]Counter{MuxUnetCounterUNET_RX_GROUP}, c.copies)
		if err != nil || !slices.Equal(moved, want) || verdict != map[bool]uint32{true: redirect, false: drop}[c.copies > 0] {
			l.t.Errorf("%s: verdict %d, %v, %v; want %d copies", c.name, verdict, names(moved), err, c.copies)
		}
	}
}
