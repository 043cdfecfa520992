//go:build linux

package mux_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/frametest"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// startContainer makes a namespace with a macvlan on a host's interface, at 10.0.0.5 and fd00::5.
func startContainer(t *testing.T, h *netlab.Host, mode netlink.MacvlanMode) *netlab.Host {
	t.Helper()
	c, err := netlab.NewHost("container")
	testutil.Must(t, err)
	t.Cleanup(func() { c.Close() })
	c.Interface = "macvlan0"
	var in netns.NsHandle
	testutil.Must(t, c.Do(func() (err error) { in, err = netns.Get(); return err }))
	defer in.Close()
	onDevice(t, h, h.Interface, func(parent netlink.Link) error {
		return netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: c.Interface, ParentIndex: parent.Attrs().Index, Namespace: netlink.NsFd(in)}, Mode: mode})
	})
	sysctl(t, c, "ipv6/conf/"+c.Interface+"/disable_ipv6", "0")
	onDevice(t, c, c.Interface, netlink.LinkSetUp)
	addrOn(t, c, c.Interface, "10.0.0.5/24")
	addrOn(t, c, c.Interface, "fd00::5/64")
	return c
}

// reflect makes a host return each frame that is not for the host itself alone, as a switch with reflective
// relay does (IEEE 802.1Qbg). It sends copies, since generic XDP passes over what traffic control has redirected.
func reflect(t *testing.T, h *netlab.Host) {
	t.Helper()
	f := packetSocket(t, h, unix.ETH_P_ALL)
	raw, err := f.SyscallConn()
	testutil.Must(t, err)
	testutil.Must(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	}))
	testutil.Must(t, err)
	ended := make(chan struct{})
	t.Cleanup(func() { f.Close(); <-ended })
	go func() {
		defer close(ended)
		for frame := make([]byte, 65536); ; {
			n, err := f.Read(frame)
			if err != nil {
				return
			}
			if n >= 14 && [6]byte(frame[:6]) != h.LinkAddr {
				f.Write(frame[:n])
			}
		}
	}()
}

// A container with a macvlan on the uplink reaches the kernel of its host and its endpoints by a switch that returns frames,
// as without a mux: the mux takes none of its frames on their way to the wire, and no endpoint gets one twice.
func TestMacvlanOnUplink(t *testing.T) {
	t.Parallel()
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeNative} {
		for name, vlan := range map[string]netlink.MacvlanMode{"vepa": netlink.MACVLAN_MODE_VEPA, "bridge": netlink.MACVLAN_MODE_BRIDGE} {
			t.Run(fmt.Sprintf("%v/%s", mode, name), func(t *testing.T) {
				l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{IPv6: true})}
				listenGRO(t, l.B)
				reflect(t, l.B)
				c := startContainer(t, l.A, vlan)
				sysctl(t, c, "ipv4/neigh/"+c.Interface+"/mcast_solicit", "1") // it asks once, since the owned address does not answer
				l.openMux(mode)
				shared := l.open(udpTag("10.0.0.1:7000"), udpTag("[fd00::1]:7000"), udpTag("239.1.2.3:7000"))
				owned := l.open(endpoint.AddrTag(netip.MustParseAddr("10.0.0.77")))
				for range 4 {
					ping(t, c, "10.0.0.1")
					ping(t, c, "fd00::1")
					ping(t, c, "10.0.0.2")
					ping(t, l.A, "10.0.0.5")
				}
				send := func(network, to string) {
					t.Helper()
					s, err := c.Dial(network, to)
					testutil.Must(t, err)
					defer s.Close()
					_, err = s.Write([]byte(to))
					testutil.Must(t, err)
				}
				for _, to := range []struct{ network, at string }{{"udp4", "10.0.0.1:7000"}, {"udp6", "[fd00::1]:7000"}, {"udp4", "239.1.2.3:7000"}} {
					if to.at[0] == '2' {
						onDevice(t, c, c.Interface, func(d netlink.Link) error {
							return netlink.RouteReplace(&netlink.Route{LinkIndex: d.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4(239, 0, 0, 0), Mask: net.CIDRMask(8, 32)}})
						})
					}
					send(to.network, to.at)
					if p := packet(t, shared.recv().frame); string(p.ApplicationLayer().Payload()) != to.at {
						t.Errorf("received %v, want what was sent to %s", p, to.at)
					}
				}
				send("udp4", "10.0.0.77:5") // which asks for its MAC address
				// The switch returns unetd's announcements of the address, too.
				asks := func(frame []byte) bool {
					request, is := packet(t, frame).Layer(layers.LayerTypeARP).(*layers.ARP)
					if !is || request.Operation != layers.ARPRequest {
						t.Errorf("the owner received %x", frame)
					}
					return !is || string(request.SourceProtAddress) != string(request.DstProtAddress)
				}
				for !asks(owned.recv().frame) {
				}
				ping(t, c, "10.0.0.1") // so all that was sent has arrived
				shared.wantNothing("twice")
				for r, ok := owned.poll(); ok; r, ok = owned.poll() {
					if asks(r.frame) {
						t.Errorf("a second request: %x", r.frame)
					}
				}
				if c := l.count(); c["rx_martian"] != 0 {
					t.Errorf("counters: %v", c)
				}
			})
		}
	}
}

// What a program of the host sends to the uplink's own MAC address goes to the wire, except what is for an endpoint on a port.
func TestFramesToOwnLinkAddress(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeTCX)
	owned := l.open(endpoint.AddrTag(netip.MustParseAddr("10.0.0.77")), endpoint.MessageTag(7))
	queue := l.openRequest(endpoint.Request{Attach: endpoint.AttachQueue, Tags: []endpoint.Tag{endpoint.MessageTag(8)}})
	seen := openCapture(t, l.B)
	A, other := l.A.LinkAddr, [6]byte{2, 0, 0, 0, 0, 0x55}
	for _, c := range []struct {
		what  string
		frame []byte
		wire  bool
	}{
		{"to-an-address-of-nobody", datagram(A, A, "10.0.0.1:4000", "10.0.0.66:5", "to-an-address-of-nobody"), true},
		{"to-the-kernel", datagram(A, A, "10.0.0.1:4000", "10.0.0.1:53", "to-the-kernel"), true},
		{"of-a-bridge-port", datagram(A, other, "10.0.0.1:4000", "10.0.0.77:5", "of-a-bridge-port"), true},
		{"of-an-unknown-type", frametest.Build(&layers.Ethernet{DstMAC: A[:], SrcMAC: A[:], EthernetType: 0x88b6}, gopacket.Payload("of-an-unknown-type, which is long enough")), true},
		{"to-a-queue", messageFrame(A, A, 8, 9, "to-a-queue"), true},
		{"to-an-owned-address", datagram(A, A, "10.0.0.1:4000", "10.0.0.77:5", "to-an-owned-address"), false},
		{"to-a-message-tag", messageFrame(A, A, 7, 9, "to-a-message-tag"), false},
	} {
		sendRaw(t, l.A, c.frame)
		if c.wire {
			if got := seen.first("of-", "to-"); got == "" {
				t.Errorf("%s: not on the wire", c.what)
			}
			owned.wantNothing(c.what)
			continue
		}
		if got := owned.recv().frame; !bytes.Contains(got, []byte(c.what)) { // a short one is padded
			t.Errorf("%s: received %x", c.what, got)
		}
	}
	queue.wantNothing("of the host's own")
	sendRaw(t, l.A, datagram(A, A, "10.0.0.1:4000", "10.0.0.66:5", "of-the-end"))
	if got := seen.first("of-the-end", "to-an-owned", "to-a-message"); got != "of-the-end" {
		t.Errorf("%q was on the wire", got)
	}
}

// A broadcast needs the tag of its source port, also in a frame to the MAC address of one host.
func TestBroadcastInUnicastFrame(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	addrOn(t, l.A, l.A.Interface, "10.0.0.33/26")
	a, b := l.open(udpTag("10.0.0.1:7000")), kernelUDP(t, l.B, "0.0.0.0:9000")
	testutil.Eventually(t, "the programs know the broadcast address of the second subnet", func() bool {
		before := l.count()["tx_broadcast"]
		a.send(datagram(l.B.LinkAddr, l.A.LinkAddr, "10.0.0.1:7000", "10.0.0.63:9001", "early"))
		return l.count()["tx_broadcast"] > before
	})
	for _, to := range []string{"255.255.255.255:9000", "10.0.0.255:9000", "10.0.0.63:9000"} {
		l.wantIncrements(to, "tx_", func() { a.send(datagram(l.B.LinkAddr, l.A.LinkAddr, "10.0.0.1:7000", to, "broadcast")) }, "tx_broadcast")
	}
	l.wantIncrements("a group", "tx_", func() { a.send(datagram(l.B.LinkAddr, l.A.LinkAddr, "10.0.0.1:7000", "239.1.2.3:9000", "group")) }, "tx_forged_group")
	a.send(datagram(l.B.LinkAddr, l.A.LinkAddr, "10.0.0.1:7000", "10.0.0.2:9000", "to the host"))
	readFrom(t, b, "to the host")
}

// The network's and the broadcast address of any subnet of the uplink cannot be owned, also where another subnet contains it as an
// ordinary address, and an endpoint ends whose address becomes one.
func TestBroadcastOfSecondSubnetIsNotOwned(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	addrOn(t, l.A, l.A.Interface, "10.0.0.33/26")
	onDevice(t, l.A, l.A.Interface, func(device netlink.Link) error {
		return changeAddress(device, "10.0.0.129/27", func(d netlink.Link, a *netlink.Addr) error {
			a.Broadcast = net.IPv4(10, 0, 0, 150).To4()
			return netlink.AddrAdd(d, a)
		})
	})
	a := l.open()
	for _, addr := range []string{"10.0.0.0", "10.0.0.255", "10.0.0.63", "10.0.0.128", "10.0.0.159", "10.0.0.150"} {
		if _, err := a.lease.Claim(t.Context(), addrTag(addr)); !errors.Is(err, endpoint.ErrTagDenied) || !strings.Contains(err.Error(), "broadcast") {
			t.Errorf("claim of %s: %v", addr, err)
		}
	}
	b := l.open(addrTag("10.0.0.95"))
	addrOn(t, l.A, l.A.Interface, "10.0.0.70/27")
	testutil.Eventually(t, "the endpoint has ended", func() bool { return b.lease.Err() != nil })
	if err := b.lease.Err(); !errors.Is(err, mux.ErrAddrTaken) {
		t.Errorf("ended by %v", err)
	}
}
