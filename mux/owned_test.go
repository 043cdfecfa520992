//go:build linux

package mux_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/frametest"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// The address of a neighbour or a router cannot be claimed.
func TestClaimOfOtherHostsAddressIsRefused(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	hw := net.HardwareAddr{2, 0, 0, 0, 0, 0x77}
	testutil.Must(t, l.A.Do(func() error {
		uplink, err := netlink.LinkByName(l.A.Interface)
		if err != nil {
			return err
		}
		i := uplink.Attrs().Index
		_, dst, _ := net.ParseCIDR("192.0.2.0/24")
		return errors.Join(
			netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.IPv4(10, 0, 0, 66), LinkIndex: i}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: i, State: netlink.NUD_STALE, IP: net.IPv4(10, 0, 0, 67), HardwareAddr: hw}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: i, State: netlink.NUD_FAILED, IP: net.IPv4(10, 0, 0, 68)}),
		)
	}))
	a := l.open()
	for _, c := range []struct {
		addr string
		want error
		says string
	}{
		{"10.0.0.2", endpoint.ErrTagHeld, l.B.LinkAddr.String()}, // host B answers
		{"10.0.0.66", endpoint.ErrTagDenied, "next hop"},
		{"10.0.0.67", endpoint.ErrTagHeld, hw.String()},
		{"10.0.0.68", nil, ""},
		{"10.0.0.69", nil, ""},
	} {
		_, err := a.lease.Claim(t.Context(), addrTag(c.addr))
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("claim %s: %v; want %v: %s", c.addr, err, c.want, c.says)
		}
	}
	// A refusal has no effect: the address is free when its host is gone.
	addrOff(t, l.B, l.B.Interface, "10.0.0.2/24")
	if _, err := a.lease.Claim(t.Context(), addrTag("10.0.0.2")); err != nil {
		t.Errorf("when host B has gone: %v", err)
	}
}

// packetSocket is a packet socket for frames of an EtherType on a host's end of the cable.
func packetSocket(t *testing.T, h *netlab.Host, etherType uint16) *os.File {
	t.Helper()
	var f *os.File
	testutil.Must(t, h.Do(func() error {
		i, err := net.InterfaceByName(h.Interface)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		f = os.NewFile(uintptr(fd), "packet socket")
		bigEndian := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, etherType))
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian, Ifindex: i.Index})
	}))
	t.Cleanup(func() { f.Close() })
	testutil.Must(t, f.SetReadDeadline(time.Now().Add(testTimeout)))
	return f
}

func arpFrame(dst net.HardwareAddr, p *layers.ARP) []byte {
	p.AddrType, p.Protocol, p.HwAddressSize, p.ProtAddressSize = layers.LinkTypeEthernet, layers.EthernetTypeIPv4, 6, 4
	return frametest.Build(&layers.Ethernet{DstMAC: dst, SrcMAC: p.SourceHwAddress, EthernetType: layers.EthernetTypeARP}, p)
}

// Before an IPv4 address is claimed the mux sends ARP probes for it. Probes and conflicts are those of
// RFC 5227, 2.1.1.
func TestARPProbesAndConflicts(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	wire := packetSocket(t, l.B, unix.ETH_P_ARP)
	a := l.open()
	none, zero := net.HardwareAddr{0, 0, 0, 0, 0, 0}, net.IPv4zero.To4()
	broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	addr := net.IPv4(10, 0, 0, 88).To4()
	ours, theirs := net.HardwareAddr(l.A.LinkAddr[:]), net.HardwareAddr(l.B.LinkAddr[:])
	other := net.HardwareAddr{2, 0, 0, 0, 0, 0x99}
	for _, c := range []struct {
		what     string
		answer   []byte
		conflict string
	}{
		{"a probe by another host", arpFrame(broadcast, &layers.ARP{Operation: 1, SourceHwAddress: other, SourceProtAddress: zero, DstHwAddress: none, DstProtAddress: addr}), other.String()},
		{"a reply", arpFrame(ours, &layers.ARP{Operation: 2, SourceHwAddress: other, SourceProtAddress: addr, DstHwAddress: ours, DstProtAddress: zero}), other.String()},
		{"a request by its holder to a third", arpFrame(broadcast, &layers.ARP{Operation: 1, SourceHwAddress: theirs, SourceProtAddress: addr, DstHwAddress: none, DstProtAddress: net.IPv4(10, 0, 0, 99).To4()}), theirs.String()},
		{"a reply in a VLAN", slices.Insert(arpFrame(ours, &layers.ARP{Operation: 2, SourceHwAddress: other, SourceProtAddress: addr, DstHwAddress: ours, DstProtAddress: zero}), 12, 0x81, 0, 0, 7), ""},
		{"our own probe, reflected", arpFrame(broadcast, &layers.ARP{Operation: 1, SourceHwAddress: ours, SourceProtAddress: zero, DstHwAddress: none, DstProtAddress: addr}), ""},
		{"a request for it", arpFrame(broadcast, &layers.ARP{Operation: 1, SourceHwAddress: theirs, SourceProtAddress: net.IPv4(10, 0, 0, 2).To4(), DstHwAddress: none, DstProtAddress: addr}), ""},
		{"a probe for another address", arpFrame(broadcast, &layers.ARP{Operation: 1, SourceHwAddress: other, SourceProtAddress: zero, DstHwAddress: none, DstProtAddress: net.IPv4(10, 0, 0, 89).To4()}), ""},
	} {
		claimed := make(chan error, 1)
		go func() {
			_, err := a.lease.Claim(context.Background(), addrTag("10.0.0.88"))
			claimed <- err
		}()
		frame := make([]byte, 256)
		n, err := wire.Read(frame)
		testutil.Must(t, err)
		p := gopacket.NewPacket(frame[:n], layers.LayerTypeEthernet, gopacket.Default)
		probe, ok := p.Layer(layers.LayerTypeARP).(*layers.ARP)
		if eth := p.LinkLayer().(*layers.Ethernet); !ok || eth.DstMAC.String() != broadcast.String() || eth.SrcMAC.String() != ours.String() ||
			probe.Operation != 1 || net.HardwareAddr(probe.SourceHwAddress).String() != ours.String() || !net.IP(probe.SourceProtAddress).Equal(zero) ||
			net.HardwareAddr(probe.DstHwAddress).String() != none.String() || !net.IP(probe.DstProtAddress).Equal(addr) {
			t.Fatalf("not a probe for %v: %v", addr, p)
		}
		_, err = wire.Write(c.answer)
		testutil.Must(t, err)
		err = <-claimed
		switch {
		case c.conflict == "" && err == nil:
			testutil.Must(t, a.lease.Unclaim(t.Context(), addrTag("10.0.0.88")))
		case c.conflict == "", !errors.Is(err, endpoint.ErrTagHeld), !strings.Contains(err.Error(), c.conflict):
			t.Errorf("%s: %v; want a conflict with %q", c.what, err, c.conflict)
		}
		drain(t, wire) // the other probes of this claim
		testutil.Must(t, wire.SetReadDeadline(time.Now().Add(testTimeout)))
	}
}

// Of several claims of an address at the same time one succeeds.
func TestOneOfManyClaimsOfAddressSucceeds(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	apps := []*app{l.open(), l.open(), l.open(), l.open()}
	var wg sync.WaitGroup
	results := make(chan error, 2*len(apps))
	for _, a := range apps {
		for range 2 { // also for the same endpoint
			wg.Go(func() {
				_, err := a.lease.Claim(context.Background(), addrTag("10.0.0.77"))
				results <- err
			})
		}
	}
	wg.Wait()
	close(results)
	granted := 0
	for err := range results {
		if err == nil {
			granted++
		} else if !errors.Is(err, endpoint.ErrTagHeld) {
			t.Errorf("got %v", err)
		}
	}
	if granted != 1 {
		t.Errorf("granted %d times", granted)
	}
}

// A claim that waits for the answers to its probes delays no other claim, ends with its context or its
// lease, and can be repeated afterwards.
func TestProbeDoesNotDelayOtherClaims(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	release := l.mux.HoldProbes()
	a, b := l.open(), l.open()
	tag := addrTag("10.0.0.77")
	claim := func(ctx context.Context) <-chan error {
		claimed := make(chan error, 1)
		go func() {
			_, err := a.lease.Claim(ctx, tag)
			claimed <- err
		}()
		testutil.Eventually(t, "the address is being claimed", func() bool { return l.mux.BeingClaimed() > 0 })
		return claimed
	}
	ctx, cancel := context.WithCancel(t.Context())
	claimed := claim(ctx)
	limited, stop := context.WithTimeout(t.Context(), testTimeout) // the test ends, also if the claim waits
	defer stop()
	if _, err := b.lease.Claim(limited, tag); !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("an address that is being claimed: %v", err)
	}
	if _, err := b.lease.Claim(t.Context(), udpTag("10.0.0.77:9")); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("a port of an address that is being claimed: %v", err)
	}
	if _, err := b.lease.Claim(t.Context(), udpTag("10.0.0.1:7000")); err != nil {
		t.Errorf("another claim meanwhile: %v", err)
	}
	l.open(endpoint.MessageTag(7))
	cancel()
	if err := <-claimed; !errors.Is(err, context.Canceled) {
		t.Errorf("a claim that was canceled: %v", err)
	}
	claimed = claim(t.Context())
	testutil.Must(t, a.lease.Close())
	if err := <-claimed; !errors.Is(err, endpoint.ErrLeaseClosed) {
		t.Errorf("a claim whose lease was closed: %v", err)
	}
	release()
	if _, err := b.lease.Claim(t.Context(), tag); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// The addresses of one request are probed at the same time. A request of which one address is another host's
// holds none.
func TestManyAddressesAreProbedTogether(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	var tags []endpoint.Tag
	for i := range 100 {
		tags = append(tags, endpoint.AddrTag(netip.AddrFrom4([4]byte{10, 0, 0, byte(100 + i)})))
	}
	l.open(tags...)
	b := l.open()
	tags = append(tags[:0], addrTag("10.0.0.50"), addrTag("10.0.0.2"))
	_, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: tags})
	if !errors.Is(err, endpoint.ErrTagHeld) || !strings.Contains(err.Error(), l.B.LinkAddr.String()) {
		t.Errorf("got %v", err)
	}
	if _, err := b.lease.Claim(t.Context(), tags[0]); err != nil {
		t.Errorf("of a request that failed: %v", err)
	}
}

// ndFrame is a solicitation (135) or advertisement (136).
func ndFrame(from, to net.HardwareAddr, src, dst string, hops uint8, kind, code uint8, target string) []byte {
	return ndWith(from, to, src, dst, hops, append([]byte{kind, code, 0, 0, 0, 0, 0, 0}, net.ParseIP(target).To16()...))
}

func ndWith(from, to net.HardwareAddr, src, dst string, hops uint8, body []byte) []byte {
	ip := &layers.IPv6{Version: 6, HopLimit: hops, NextHeader: layers.IPProtocolICMPv6, SrcIP: net.ParseIP(src), DstIP: net.ParseIP(dst)}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(body[0], body[1])}
	return frametest.Build(&layers.Ethernet{SrcMAC: from, DstMAC: to, EthernetType: layers.EthernetTypeIPv6}, ip, icmp, gopacket.Payload(body[4:]))
}

// panicOn is must for functions without a test.
func panicOn(err error) {
	if err != nil {
		panic(err)
	}
}

// nextSolicitation is the next probe for an address.
func nextSolicitation(t *testing.T, wire *os.File) []byte {
	t.Helper()
	testutil.Must(t, wire.SetReadDeadline(time.Now().Add(testTimeout)))
	frame := make([]byte, 256)
	for {
		n, err := wire.Read(frame)
		testutil.Must(t, err)
		if n > 54 && frame[20] == 58 && frame[54] == 135 {
			return frame[:n]
		}
	}
}

// Before an IPv6 address is claimed the mux sends solicitations for it, as RFC 4862 says in 5.4.2. Conflicts
// are those of 5.4.3 and 5.4.4.
func TestIPv6ProbesAndConflicts(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	wire := packetSocket(t, l.B, unix.ETH_P_IPV6)
	a := l.open()
	const addr, group, nodes = "fd00::1:2:77", "ff02::1:ff02:77", "ff02::1"
	ours, theirs := net.HardwareAddr(l.A.LinkAddr[:]), net.HardwareAddr(l.B.LinkAddr[:])
	other, toGroup, toNodes := parseMAC("02:00:00:00:00:99"), parseMAC("33:33:ff:02:00:77"), parseMAC("33:33:00:00:00:01")
	probe := ndFrame(ours, toGroup, "::", group, 255, 135, 0, addr)
	vlan := slices.Insert(ndFrame(other, toNodes, addr, nodes, 255, 136, 0, addr), 12, 0x81, 0, 0, 7)
	for _, c := range []struct {
		what     string
		answer   []byte
		conflict string
	}{
		{"an advertisement to all", ndFrame(other, toNodes, addr, nodes, 255, 136, 0, addr), other.String()},
		{"an advertisement to us", ndFrame(other, ours, "fe80::99", "fd00::1", 255, 136, 0, addr), other.String()},
		{"a probe by another host", ndFrame(other, toGroup, "::", group, 255, 135, 0, addr), other.String()},
		{"a solicitation by its holder for a third", ndFrame(theirs, parseMAC("33:33:ff:00:00:99"), addr, "ff02::1:ff00:99", 255, 135, 0, "fd00::99"), theirs.String()},
		{"an advertisement with options", ndWith(other, toNodes, addr, nodes, 255,
			append(append([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, net.ParseIP(addr)...), 2, 1, 2, 0, 0, 0, 0, 0x99)), other.String()},
		{"our own probe, reflected", probe, ""},
		{"a solicitation for it", ndFrame(theirs, toGroup, "fd00::2", group, 255, 135, 0, addr), ""},
		{"a probe for another address of the group", ndFrame(other, toGroup, "::", group, 255, 135, 0, "fd00::2:2:77"), ""},
		{"an advertisement of another", ndFrame(other, toNodes, "fd00::99", nodes, 255, 136, 0, "fd00::99"), ""},
		{"an advertisement that came over a router", ndFrame(other, toNodes, addr, nodes, 254, 136, 0, addr), ""},
		{"an advertisement of an unknown code", ndFrame(other, toNodes, addr, nodes, 255, 136, 1, addr), ""},
		{"an advertisement cut off", ndFrame(other, toNodes, addr, nodes, 255, 136, 0, addr)[:77], ""},
		{"a packet of another protocol", ndFrame(other, toNodes, addr, nodes, 255, 128, 0, addr), ""},
		{"an advertisement in a VLAN", vlan, ""},
	} {
		claimed := make(chan error, 1)
		go func() {
			_, err := a.lease.Claim(context.Background(), addrTag(addr))
			claimed <- err
		}()
		if frame := nextSolicitation(t, wire); !bytes.Equal(frame, probe) {
			t.Fatalf("the probe is %x, want %x", frame, probe)
		}
		_, err := wire.Write(c.answer)
		testutil.Must(t, err)
		err = <-claimed
		switch {
		case c.conflict == "" && err == nil:
			testutil.Must(t, a.lease.Unclaim(t.Context(), addrTag(addr)))
		case c.conflict == "", !errors.Is(err, endpoint.ErrTagHeld), !strings.Contains(err.Error(), c.conflict):
			t.Errorf("%s: %v; want a conflict with %q", c.what, err, c.conflict)
		}
		drain(t, wire)
	}
}

// drain reads all queued frames of a packet socket.
func drain(t *testing.T, wire *os.File) {
	t.Helper()
	raw, err := wire.SyscallConn()
	testutil.Must(t, err)
	testutil.Must(t, raw.Control(func(fd uintptr) {
		for err == nil {
			_, _, err = unix.Recvfrom(int(fd), make([]byte, 256), unix.MSG_DONTWAIT)
		}
	}))
}

// One request probes many addresses of both families at the same time, and is refused if another host has
// one of them.
func TestManyAddressesOfBothFamiliesAreProbedTogether(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	var tags []endpoint.Tag
	for i := range 70 {
		tags = append(tags, addrTag(fmt.Sprintf("fd00::%x:77%02x", i%3, i))) // some share a group
	}
	tags = append(tags, addrTag("10.0.0.77"), addrTag("10.0.0.78"))
	a := l.open(tags...)
	l.wantClaims(70, tags...)
	testutil.Must(t, a.lease.Close())
	_, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: append(tags, addrTag("fd00::2"))})
	if !errors.Is(err, endpoint.ErrTagHeld) || !strings.Contains(err.Error(), l.B.LinkAddr.String()) {
		t.Errorf("got %v", err)
	}
	l.wantClaims(0)
}
