package mux_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
)

// hearND is a packet socket for neighbour discovery on a host's end of the cable.
func hearND(t *testing.T, h *netlab.Host) *os.File {
	t.Helper()
	var f *os.File
	must(t, h.Do(func() error {
		i, err := net.InterfaceByName(h.Interface)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		f = os.NewFile(uintptr(fd), "nd")
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0xdd86, Ifindex: i.Index})
	}))
	t.Cleanup(func() { f.Close() })
	return f
}

// ndFrame is a solicitation (135) or advertisement (136).
func ndFrame(from, to net.HardwareAddr, src, dst string, hops uint8, kind, code uint8, target string) []byte {
	return ndWith(from, to, src, dst, hops, append([]byte{kind, code, 0, 0, 0, 0, 0, 0}, net.ParseIP(target).To16()...))
}

func ndWith(from, to net.HardwareAddr, src, dst string, hops uint8, body []byte) []byte {
	ip := &layers.IPv6{Version: 6, HopLimit: hops, NextHeader: layers.IPProtocolICMPv6, SrcIP: net.ParseIP(src), DstIP: net.ParseIP(dst)}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(body[0], body[1])}
	must0(icmp.SetNetworkLayerForChecksum(ip))
	return build(&layers.Ethernet{SrcMAC: from, DstMAC: to, EthernetType: layers.EthernetTypeIPv6}, ip, icmp, gopacket.Payload(body[4:]))
}

func must0(err error) {
	if err != nil {
		panic(err)
	}
}

// nextSolicitation is the next probe for an address.
func nextSolicitation(t *testing.T, wire *os.File) []byte {
	t.Helper()
	must(t, wire.SetReadDeadline(time.Now().Add(5*time.Second)))
	frame := make([]byte, 256)
	for {
		n, err := wire.Read(frame)
		must(t, err)
		if n > 54 && frame[20] == 58 && frame[54] == 135 {
			return frame[:n]
		}
	}
}

// What goes over the wire is a solicitation as RFC 4862, 5.4.2, has it, and what
// is a conflict is as in 5.4.3 and 5.4.4.
func TestSolicitations(t *testing.T) {
	l := openLab6(t)
	wire := hearND(t, l.B)
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
		must(t, err)
		err = <-claimed
		switch {
		case c.conflict == "" && err == nil:
			must(t, a.lease.Unclaim(t.Context(), addrTag(addr)))
		case c.conflict == "", !errors.Is(err, endpoint.ErrTagHeld), !strings.Contains(err.Error(), c.conflict):
			t.Errorf("%s: %v; want a conflict with %q", c.what, err, c.conflict)
		}
		drain(t, wire)
	}
}

// drain reads what waits in a packet socket.
func drain(t *testing.T, wire *os.File) {
	t.Helper()
	raw, err := wire.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		for err == nil {
			_, _, err = unix.Recvfrom(int(fd), make([]byte, 256), unix.MSG_DONTWAIT)
		}
	}))
}

// Addresses of both families are asked for in one request, many at once, and one
// that somebody has is found among them.
func TestManyWholeAddressesOfBothFamilies(t *testing.T) {
	l := openLab6(t)
	var tags []endpoint.Tag
	for i := range 70 {
		tags = append(tags, addrTag(fmt.Sprintf("fd00::%x:77%02x", i%3, i))) // some share a group
	}
	tags = append(tags, addrTag("10.0.0.77"), addrTag("10.0.0.78"))
	a := l.open(tags...)
	l.wantClaims(70, tags...)
	must(t, a.lease.Close())
	_, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: append(tags, addrTag("fd00::2"))})
	if !errors.Is(err, endpoint.ErrTagHeld) || !strings.Contains(err.Error(), l.B.LinkAddr.String()) {
		t.Errorf("got %v", err)
	}
	l.wantClaims(0)
}
