//go:build linux

package mux_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/frametest"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/wire"
)

// family is a group of one IP family, and the addresses of the hosts.
type family struct{ network, group, a, b string }

var families = []family{
	{"udp4", "239.1.2.3:5000", "10.0.0.1", "10.0.0.2"},
	{"udp6", "[ff15::51]:5000", "[fd00::1]", "[fd00::2]"},
}

func (f family) link() wire.LinkAddr {
	a := netip.MustParseAddrPort(f.group).Addr()
	if a.Is6() {
		return wire.MulticastLink(a.As16())
	}
	return wire.LinkAddr{1, 0, 0x5e, 1, 2, 3}
}

// member is a program on kernel sockets that has joined the group.
func (f family) member(t *testing.T, h *netlab.Host) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	testutil.Must(t, h.Do(func() error {
		i, err := net.InterfaceByName(h.Interface)
		if err != nil {
			return err
		}
		c, err = net.ListenMulticastUDP(f.network, i, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(f.group)))
		return err
	}))
	t.Cleanup(func() { c.Close() })
	testutil.Must(t, c.SetReadDeadline(time.Now().Add(testTimeout)))
	return c
}

func (f family) sender(t *testing.T, h *netlab.Host, addr string) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	testutil.Must(t, h.Do(func() (err error) {
		c, err = net.ListenUDP(f.network, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr+":0")))
		return err
	}))
	t.Cleanup(func() { c.Close() })
	return c
}

// frame is a datagram of an endpoint of host A to the group.
func (f family) frame(l *lab, payload string) []byte {
	src, dst := netip.MustParseAddrPort(f.a+":7000"), netip.MustParseAddrPort(f.group)
	to := f.link()
	udp := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
	if dst.Addr().Is4() {
		return datagram(to, l.A.LinkAddr, src.String(), dst.String(), payload)
	}
	return frametest.Build(&layers.Ethernet{DstMAC: to[:], SrcMAC: l.A.LinkAddr[:], EthernetType: layers.EthernetTypeIPv6},
		&layers.IPv6{Version: 6, HopLimit: 1, NextHeader: layers.IPProtocolUDP, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()},
		udp, gopacket.Payload(payload))
}

// wantNext checks that the next frame of the endpoint is a datagram to the group.
func (f family) wantNext(a *app, payload string) {
	a.t.Helper()
	p := packet(a.t, a.recv().frame)
	udp, ok := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if !ok || string(udp.Payload) != payload || udp.DstPort != 5000 {
		a.t.Fatalf("received %v, want %q", p, payload)
	}
}

// What is sent to a group reaches every endpoint that holds its tag, and the programs on kernel sockets
// that have joined it, in every direction: from the wire, from the kernel of the same host, from an endpoint.
func TestDatagramsToGroupReachAllMembers(t *testing.T) {
	t.Parallel()
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeNative} {
		for _, f := range families {
			t.Run(mode.String()+"/"+f.network, func(t *testing.T) {
				l := &lab{t: t, Pair: requirePair6(t)}
				if mode == mux.ModeNative {
					listenGRO(t, l.B)
				}
				l.openMux(mode)
				tag := udpTag(f.group)
				first := l.open(tag, udpTag(f.a+":7000"))
				second := l.openFor(mux.Terms{}, endpoint.Request{Tags: []endpoint.Tag{tag}})
				other := l.open(udpTag(strings.Replace(f.group, "1", "2", 1)))
				kernelA, kernelB := f.member(t, l.A), f.member(t, l.B)
				fromA, fromB := f.sender(t, l.A, f.a), f.sender(t, l.B, f.b)

				sendTo(t, fromB, f.group, "from the wire")
				f.wantNext(first, "from the wire")
				f.wantNext(second, "from the wire")
				readFrom(t, kernelA, "from the wire")
				readFrom(t, kernelB, "from the wire") // its own host's loopback

				sendTo(t, fromA, f.group, "from the kernel")
				f.wantNext(first, "from the kernel")
				f.wantNext(second, "from the kernel")
				readFrom(t, kernelA, "from the kernel")
				readFrom(t, kernelB, "from the kernel")

				first.send(f.frame(l, "from an endpoint"))
				f.wantNext(second, "from an endpoint")
				readFrom(t, kernelB, "from an endpoint")
				first.wantNothing("of its own datagram")
				other.wantNothing("it holds a tag of another group")
				if c := l.count(); c["rx_group"] != 4 || c["tx_group"] != 1 || c["tx_uplink"] != 1 || c["deliver_socket"] != 5 {
					t.Errorf("counters: %v", c)
				}

				testutil.Must(t, second.lease.Unclaim(t.Context(), tag))
				sendTo(t, fromB, f.group, "again")
				f.wantNext(first, "again")
				testutil.Must(t, first.lease.Close())
				sendTo(t, fromB, f.group, "to the kernel only")
				readFrom(t, kernelA, "again")
				readFrom(t, kernelA, "to the kernel only")
				second.wantNothing("after it has given the tag back")
			})
		}
	}
}

// reports returns the next membership report for a group that reaches a host: joined or left.
func reports(t *testing.T, f family, h *netlab.Host) (next func() string) {
	t.Helper()
	c := packetSocket(t, h, unix.ETH_P_ALL)
	group := net.IP(netip.MustParseAddrPort(f.group).Addr().AsSlice())
	return func() string {
		t.Helper()
		for b := make([]byte, 2048); ; {
			n, err := c.Read(b)
			testutil.Must(t, err)
			p := gopacket.NewPacket(b[:n], layers.LayerTypeEthernet, gopacket.Default)
			if igmp, ok := p.Layer(layers.LayerTypeIGMP).(*layers.IGMP); ok && igmp.Version == 3 {
				for _, r := range igmp.GroupRecords {
					if r.MulticastAddress.Equal(group) {
						return map[layers.IGMPv3GroupRecordType]string{layers.IGMPToEx: "joined", layers.IGMPToIn: "left"}[r.Type]
					}
				}
			}
			if mld, ok := p.Layer(layers.LayerTypeMLDv2MulticastListenerReport).(*layers.MLDv2MulticastListenerReportMessage); ok {
				for _, r := range mld.MulticastAddressRecords {
					if r.MulticastAddress.Equal(group) {
						return map[layers.MLDv2MulticastAddressRecordType]string{
							layers.MLDv2MulticastAddressRecordTypeChangeToExcludeMode: "joined",
							layers.MLDv2MulticastAddressRecordTypeChangeToIncludeMode: "left",
						}[r.RecordType]
					}
				}
			}
		}
	}
}

// The first claim of a group joins it, and the last one to end leaves it, as the reports on the wire show
// (RFC 3376, RFC 3810).
func TestGroupMembership(t *testing.T) {
	t.Parallel()
	for _, f := range families {
		t.Run(f.network, func(t *testing.T) {
			l := &lab{t: t, Pair: requirePair6(t)}
			l.openMux(mux.ModeAuto)
			next := reports(t, f, l.B)
			want := func(state string) {
				t.Helper()
				for { // the kernel repeats its reports
					switch next() {
					case state:
						return
					case "left":
						t.Fatalf("left, want %s", state)
					}
				}
			}
			first := l.open(udpTag(f.group))
			second := l.open(udpTag(f.group))
			want("joined")
			testutil.Must(t, first.lease.Close())
			testutil.Must(t, second.lease.Close())
			want("left")
		})
	}
}

// After the death of the process that serves the mux, members go on receiving, and the next process joins
// the group again.
func TestGroupsAreTakenOver(t *testing.T) {
	t.Parallel()
	f := families[0]
	l := newPinLab(t)
	c := l.serve(order{})
	first := l.openIn(c, endpoint.Request{Tags: []endpoint.Tag{udpTag(f.group)}})
	second := l.openIn(c, endpoint.Request{Tags: []endpoint.Tag{udpTag(f.group)}})
	fromB := f.sender(t, l.B, f.b)
	c.kill()
	sendTo(t, fromB, f.group, "nobody serves the mux")
	f.wantNext(first, "nobody serves the mux")
	f.wantNext(second, "nobody serves the mux")
	second.close() // so its port is gone when the next process looks

	next := reports(t, f, l.B)
	l.mux = openPinned(t, l.A, mux.Config{Pin: l.pin})
	if info := l.present(first); len(info.Tags) != 1 || info.Tags[0] != udpTag(f.group) {
		t.Errorf("taken over with %v", info.Tags)
	}
	for next() != "joined" {
	}
	sendTo(t, fromB, f.group, "taken over")
	f.wantNext(first, "taken over")
	testutil.Must(t, l.mux.CheckTagCounts())
	testutil.Must(t, first.lease.Unclaim(t.Context(), udpTag(f.group)))
	testutil.Must(t, l.mux.CheckTagCounts())
	sendTo(t, fromB, f.group, "without a tag")
	first.wantNothing("after it has given the tag back")
	testutil.Must(t, l.mux.Close())
}

// A claim of a group that is not possible is refused with the reason.
func TestRefusedClaimsOfGroups(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a := l.open(udpTag("239.1.2.3:5000"))
	queue := l.openRequest(endpoint.Request{Attach: endpoint.AttachQueue})
	for _, c := range []struct {
		by   *app
		tag  endpoint.Tag
		want error
		says string
	}{
		{a, udpTag("239.1.2.3:0"), endpoint.ErrTagDenied, "name it"},
		{a, udpBlock("239.1.2.3:6400"), endpoint.ErrTagDenied, "name it"},
		{a, tcpTag("239.1.2.3:5000"), endpoint.ErrTagDenied, "does not have this address"},
		{a, addrTag("239.1.2.3"), endpoint.ErrTagDenied, "not the address of a host"},
		{a, udpTag("[ff01::1]:5000"), endpoint.ErrTagDenied, "never leaves a host"},
		{a, udpTag("239.1.2.3:5000"), endpoint.ErrTagHeld, "already"},
		{queue, udpTag("239.1.2.3:5000"), endpoint.ErrTagDenied, "on a queue"},
	} {
		if _, err := c.by.lease.Claim(t.Context(), c.tag); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v, want %v with %q", c.tag, err, c.want, c.says)
		}
	}
}

// A user holds at most 64 tags of groups.
func TestGroupLimit(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	g, lease, err := l.openAs(mux.Owner{PID: os.Getpid(), UID: 1001}, mux.Terms{}, endpoint.Request{Geometry: small})
	testutil.Must(t, err)
	t.Cleanup(func() { g.Close() })
	for port := range uint16(64) {
		_, err := lease.Claim(t.Context(), endpoint.UDPTag(netip.AddrPortFrom(netip.MustParseAddr("239.1.2.3"), 5000+port)))
		testutil.Must(t, err)
	}
	if _, err := lease.Claim(t.Context(), udpTag("239.1.2.3:4000")); !errors.Is(err, endpoint.ErrBusy) {
		t.Errorf("one more: %v, want %v", err, endpoint.ErrBusy)
	}
	testutil.Must(t, lease.Unclaim(t.Context(), udpTag("239.1.2.3:5000")))
	_, err = lease.Claim(t.Context(), udpTag("239.1.2.3:4000"))
	testutil.Must(t, err)
}

// Broadcasts reach the endpoints that hold udp:255.255.255.255:PORT, which may also send from that port.
func TestBroadcastsReachHoldersOfTag(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	tag := udpTag("255.255.255.255:7000")
	a := l.open(tag, udpTag("10.0.0.1:7000"))
	b := l.open(udpTag("10.0.0.1:7001"))
	all := wire.Broadcast
	k := kernelUDP(t, l.B, "0.0.0.0:7000")
	raw, err := k.SyscallConn()
	testutil.Must(t, err)
	testutil.Must(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1) }))
	testutil.Must(t, err)
	sendTo(t, k, "10.0.0.255:7000", "to the subnet")
	if p := packet(t, a.recv().frame); string(p.ApplicationLayer().Payload()) != "to the subnet" {
		t.Errorf("received %v", p)
	}
	readFrom(t, k, "to the subnet") // looped back
	for _, to := range []string{"10.0.0.255:7000", "255.255.255.255:7000"} {
		a.send(datagram(all, l.A.LinkAddr, "10.0.0.1:7000", to, "to all"))
		readFrom(t, k, "to all")
	}
	a.wantNothing("of its own broadcasts")
	b.wantNothing("of broadcasts, without the tag")
	l.wantIncrements("without the tag", "tx_", func() { b.send(datagram(all, l.A.LinkAddr, "10.0.0.1:7001", "10.0.0.255:7000", "forged")) }, "tx_broadcast")
	l.wantIncrements("to one host", "tx_", func() { a.send(datagram(all, l.A.LinkAddr, "10.0.0.1:7000", "10.0.0.2:7000", "forged")) }, "tx_forged_group")
	l.wantIncrements("of another network", "tx_", func() { a.send(datagram(all, l.A.LinkAddr, "10.0.0.1:7000", "10.0.1.255:7000", "forged")) }, "tx_forged_group")
	group := wire.LinkAddr{1, 0, 0x5e, 1, 2, 3}
	l.wantIncrements("to one host by multicast", "tx_", func() { a.send(datagram(group, l.A.LinkAddr, "10.0.0.1:7000", "10.0.0.2:7000", "forged")) }, "tx_forged_group")
	a.send(datagram(all, l.A.LinkAddr, "10.0.0.1:7000", "10.0.0.255:7000", "the last"))
	readFrom(t, k, "the last")
}
