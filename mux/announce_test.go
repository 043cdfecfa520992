//go:build linux

package mux_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// knows makes a host's kernel have a MAC address, which it will not doubt soon, for an IP address.
func knows(t *testing.T, h *netlab.Host, addr string, at net.HardwareAddr) {
	t.Helper()
	onDevice(t, h, h.Interface, func(device netlink.Link) error {
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: device.Attrs().Index, State: netlink.NUD_REACHABLE, IP: net.ParseIP(addr), HardwareAddr: at})
	})
}

// learns waits until a host's kernel has another MAC address for an IP address.
func learns(t *testing.T, h *netlab.Host, addr string, at net.HardwareAddr) {
	t.Helper()
	family := netlink.FAMILY_V4
	if net.ParseIP(addr).To4() == nil {
		family = netlink.FAMILY_V6
	}
	testutil.Eventually(t, fmt.Sprintf("the peer has %v for %s", at, addr), func() (has bool) {
		onDevice(t, h, h.Interface, func(device netlink.Link) error {
			list, err := netlink.NeighList(device.Attrs().Index, family)
			for _, n := range list {
				has = has || n.IP.Equal(net.ParseIP(addr)) && n.HardwareAddr.String() == at.String()
			}
			return err
		})
		return has
	})
}

// A peer that knows the MAC address of an address's former holder sends its next packet to the endpoint that has
// claimed the address, without a timeout of its neighbour entry.
func TestOwnedAddressIsAnnounced(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	former, ours := net.HardwareAddr{2, 0, 0, 0, 0, 0x99}, net.HardwareAddr(l.A.LinkAddr[:])
	a := l.open()
	for _, c := range []struct {
		addr, from string
		frames     uint64 // probes and announcements
	}{{"10.0.0.50", "10.0.0.2:0", 3 + 2}, {"fd00::50", "[fd00::2]:0", 3 + 3}} {
		knows(t, l.B, c.addr, former)
		b, err := l.B.ListenUDP(c.from)
		testutil.Must(t, err)
		defer b.Close()
		sent := l.count()["mux_uplink"]
		_, err = a.lease.Claim(t.Context(), addrTag(c.addr))
		testutil.Must(t, err)
		learns(t, l.B, c.addr, ours)
		sendTo(t, b, net.JoinHostPort(c.addr, "7000"), "to its new holder")
		notOurs := func(p gopacket.Packet) {
			if arp, is := p.Layer(layers.LayerTypeARP).(*layers.ARP); is && slices.Equal(arp.SourceProtAddress, arp.DstProtAddress) {
				t.Errorf("the owner gets the announcement: %v", arp)
			}
		}
		for isData := false; !isData; { // requests for its MAC address may come before
			p := packet(t, a.recv().frame)
			notOurs(p)
			isData = p.ApplicationLayer() != nil && string(p.ApplicationLayer().Payload()) == "to its new holder"
		}
		l.await("mux_uplink", sent+c.frames)
		for r, more := a.poll(); more; r, more = a.poll() {
			notOurs(packet(t, r.frame))
		}
	}
}

// An owned address is announced again when the link is up again, and when another process takes the mux over;
// not when it was given back.
func TestOwnedAddressIsAnnouncedAgain(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	l.openConfig(mux.Config{Pin: l.pin})
	a := l.open(addrTag("10.0.0.50"))
	given := l.open(addrTag("10.0.0.51"))
	testutil.Must(t, given.lease.Unclaim(t.Context(), addrTag("10.0.0.51")))
	wire := packetSocket(t, l.B, unix.ETH_P_ARP)
	announced := func(what string) {
		t.Helper()
		for {
			frame := make([]byte, 128)
			n, err := wire.Read(frame)
			if err != nil {
				t.Fatalf("%s: no announcement: %v", what, err)
			}
			if sender := net.IP(frame[28:32]); n >= 42 && sender.Equal(net.IPv4(10, 0, 0, 51)) {
				t.Errorf("%s: an address that was given back is announced", what)
			} else if sender.Equal(net.IPv4(10, 0, 0, 50)) && net.IP(frame[38:42]).Equal(sender) {
				return
			}
		}
	}
	announced("2 s after the claim")
	l.onUplink(netlink.LinkSetDown)
	testutil.Eventually(t, "the link is down", func() bool { return !l.mux.Uplink().Up })
	drain(t, wire)
	wire = packetSocket(t, l.B, unix.ETH_P_ARP)
	l.onUplink(netlink.LinkSetUp)
	announced("the link is up again")
	announced("2 s later")
	testutil.Must(t, l.mux.Abandon())
	l.openConfig(mux.Config{Pin: l.pin})
	l.present(a)
	announced("another process has taken over")
}

// An address of the uplink that is back is announced if tags on it are in effect again.
func TestReturnedAddressIsAnnounced(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	addrOn(t, l.A, l.A.Interface, "10.0.0.4/24")
	l.open(udpTag("10.0.0.4:7000"))
	addrOff(t, l.A, l.A.Interface, "10.0.0.4/24")
	testutil.Eventually(t, "the tag is suspended", func() bool { held, _, err := l.mux.Suspended(); testutil.Must(t, err); return len(held) == 1 })
	knows(t, l.B, "10.0.0.4", net.HardwareAddr{2, 0, 0, 0, 0, 0x99})
	addrOn(t, l.A, l.A.Interface, "10.0.0.4/24")
	learns(t, l.B, "10.0.0.4", net.HardwareAddr(l.A.LinkAddr[:]))
	// Not once more when it is gone again: another host may have it.
	addrOff(t, l.A, l.A.Interface, "10.0.0.4/24")
	testutil.Eventually(t, "the tag is suspended again", func() bool { held, _, err := l.mux.Suspended(); testutil.Must(t, err); return len(held) == 1 })
	if l.mux.IsAnnouncing(netip.MustParseAddr("10.0.0.4")) {
		t.Error("an address that the uplink has lost is announced")
	}
}

// Announcements that the rates do not permit are given up, and counted.
func TestAnnouncementsArePaid(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	// Enough bytes for the claim, and never for one more frame.
	l.openFor(mux.Terms{Rates: endpoint.Rates{Endpoint: bytesAtOnce(4 * 90)}}, endpoint.Request{Tags: []endpoint.Tag{addrTag("10.0.0.50")}})
	l.await("mux_uplink", 4)
	l.await("mux_rate", 1)
}
