//go:build linux

package mux_test

import (
	"net/netip"
	"testing"

	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/frametest"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// addInterface gives a host an interface of its own with addresses.
func addInterface(t *testing.T, h *netlab.Host, prefixes ...string) {
	t.Helper()
	testutil.Must(t, h.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "elsewhere"}, PeerName: "nowhere"})
	}))
	onDevice(t, h, "elsewhere", netlink.LinkSetUp)
	for _, p := range prefixes {
		addrOn(t, h, "elsewhere", p)
	}
}

// martians are the sources that no other host can have, by what endpoints and the host have in these tests.
var martians = map[bool][]string{
	true:  {"10.0.0.1", "10.0.0.77", "192.0.2.9", "10.0.0.255", "127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255"},
	false: {"fd00::1", "fd00::77", "fd77::9", "::1", "::", "ff02::1", "::ffff:10.0.0.2"},
}

// Frames from the wire whose source is an address of this host, of an endpoint, or of no host are dropped, to ports of a
// shared address, to owned addresses and to queues, in all modes, also for addresses that came after the mux was opened.
// The kernel's own sockets show which of them the kernel takes.
func TestMartiansFromWireAreDropped(t *testing.T) {
	t.Parallel()
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeNative} {
		t.Run(mode.String(), func(t *testing.T) {
			l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{IPv6: true})}
			l.openMux(mode)
			for _, setting := range []string{"all", l.A.Interface} {
				sysctl(t, l.A, "ipv4/conf/"+setting+"/rp_filter", "0")
			}
			addInterface(t, l.A, "192.0.2.9/32", "fd77::9/128")
			addr := func(s string) endpoint.Tag { return endpoint.AddrTag(netip.MustParseAddr(s)) }
			port := l.open(udpTag("10.0.0.1:7000"), udpTag("[fd00::1]:7000"))
			owner := l.open(addr("10.0.0.77"), addr("fd00::77"))
			targets := map[string]*app{"10.0.0.1:7000": port, "[fd00::1]:7000": port, "10.0.0.77:5": owner, "[fd00::77]:5": owner}
			if mode != mux.ModeNative { // one queue has one owner
				queue := l.openRequest(endpoint.Request{Attach: endpoint.AttachQueue, Tags: []endpoint.Tag{udpTag("10.0.0.1:7002"), udpTag("[fd00::1]:7002")}})
				targets["10.0.0.1:7002"], targets["[fd00::1]:7002"] = queue, queue
			}
			send := func(from, to, payload string) {
				t.Helper()
				sendRaw(t, l.B, frametest.Datagram(l.A.LinkAddr, l.B.LinkAddr, netip.AddrPortFrom(netip.MustParseAddr(from), 7001), netip.MustParseAddrPort(to), payload))
			}
			peer := map[bool]string{true: "10.0.0.2", false: "fd00::2"}
			testutil.Eventually(t, "the programs know the addresses of the other interface", func() bool {
				before := l.count()["rx_martian"]
				send("192.0.2.9", "10.0.0.1:7000", "early")
				send("fd77::9", "[fd00::1]:7000", "early")
				return l.count()["rx_martian"] == before+2
			})
			for ok := true; ok; _, ok = port.poll() {
			}
			for to, app := range targets {
				four := netip.MustParseAddrPort(to).Addr().Is4()
				for _, from := range martians[four] {
					l.wantIncrements(from+" to "+to, "rx_", func() { send(from, to, "martian") }, "rx_martian")
				}
				send(peer[four], to, "genuine")
				p := packet(t, app.recv().frame)
				for p.Layer(layers.LayerTypeARP) != nil || p.Layer(layers.LayerTypeICMPv6) != nil { // announcements of its address by the mux
					p = packet(t, app.recv().frame)
				}
				if string(p.ApplicationLayer().Payload()) != "genuine" {
					t.Errorf("to %s: received %v", to, p)
				}
			}
			k := kernelUDP(t, l.A, "10.0.0.1:53")
			for _, from := range martians[true] {
				if from != "10.0.0.77" && from != "10.0.0.255" { // it compares neither with addresses of endpoints nor, without rp_filter, of broadcast
					send(from, "10.0.0.1:53", "martian")
				}
			}
			send("10.0.0.2", "10.0.0.1:53", "genuine")
			readFrom(t, k, "genuine")

			// What the host has given up may come from another host.
			addrOff(t, l.A, "elsewhere", "192.0.2.9/32")
			testutil.Eventually(t, "packets from an address that the host has given up arrive", func() bool {
				send("192.0.2.9", "10.0.0.1:7000", "again")
				_, ok := port.poll()
				return ok
			})
		})
	}
}

// Two services that answer every datagram do not answer each other because a frame claims to come from one of them.
func TestForgedFrameStartsNoLoop(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	one, two := l.open(udpTag("10.0.0.1:7000")), l.open(udpTag("10.0.0.1:7001"))
	sendRaw(t, l.B, datagram(l.A.LinkAddr, l.B.LinkAddr, "10.0.0.1:7001", "10.0.0.1:7000", "echo"))
	l.await("rx_martian", 1)
	one.wantNothing("of a frame from the wire whose source is another service of the host")
	// By the mux, which knows the sender, the services talk to each other.
	two.send(datagram(l.A.LinkAddr, l.A.LinkAddr, "10.0.0.1:7001", "10.0.0.1:7000", "local"))
	if p := packet(t, one.recv().frame); string(p.ApplicationLayer().Payload()) != "local" {
		t.Errorf("received %v", p)
	}
}

// Copies of datagrams to groups are not made of martians, except from a host without an address.
func TestMartiansToGroups(t *testing.T) {
	t.Parallel()
	l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{IPv6: true})}
	addInterface(t, l.A, "192.0.2.9/32", "fd77::9/128")
	l.openMux(mux.ModeAuto)
	l.open(endpoint.AddrTag(netip.MustParseAddr("10.0.0.77")), endpoint.AddrTag(netip.MustParseAddr("fd00::77")))
	a := l.open(udpTag("255.255.255.255:5000"), udpTag("239.1.2.3:5000"), udpTag("[ff15::51]:5000"))
	all := [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	send := func(to [6]byte, from, dst string) {
		t.Helper()
		sendRaw(t, l.B, frametest.Datagram(to, l.B.LinkAddr, netip.AddrPortFrom(netip.MustParseAddr(from), 4000), netip.AddrPortFrom(netip.MustParseAddr(dst), 5000), from+" to "+dst))
	}
	for _, f := range families {
		group := netip.MustParseAddrPort(f.group).Addr()
		for _, from := range martians[group.Is4()] {
			if group.Is4() {
				if from != "0.0.0.0" {
					send(all, from, "255.255.255.255")
				}
				send(all, from, "10.0.0.255")
			}
			send(f.link(), from, group.String())
		}
	}
	for _, c := range []struct{ from, to string }{{"0.0.0.0", "255.255.255.255"}, {"10.0.0.2", "10.0.0.255"}, {"10.0.0.2", "239.1.2.3"}, {"fd00::2", "ff15::51"}} {
		link := all
		for _, f := range families {
			if netip.MustParseAddrPort(f.group).Addr().String() == c.to {
				link = f.link()
			}
		}
		send(link, c.from, c.to)
		if got := string(packet(t, a.recv().frame).ApplicationLayer().Payload()); got != c.from+" to "+c.to {
			t.Errorf("received %q, want %s to %s", got, c.from, c.to)
		}
	}
	a.wantNothing("of martians")
}
