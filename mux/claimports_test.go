package mux_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
)

// reuses are the ways in which a program may ask for a port that is in use.
var reuses = []struct{ addr, port bool }{{false, false}, {true, false}, {false, true}, {true, true}}

// programsAt are programs that want a port of one of the uplink's addresses, the
// address itself or all of them.
func programsAt(tag endpoint.Tag, port uint16) (list []program) {
	network, any, both := "udp", "0.0.0.0", "::"
	if tag.Kind == endpoint.TagTCP {
		network = "tcp"
	}
	one := network + "4"
	if tag.Addr.Is6() {
		one, any = network+"6", "::"
	}
	for _, r := range reuses {
		for _, listen := range []bool{false, true} {
			if listen && tag.Kind == endpoint.TagUDP {
				continue
			}
			for _, at := range []struct{ network, addr string }{{one, tag.Addr.String()}, {one, any}, {network, both}} {
				list = append(list, program{network: at.network, at: fmt.Sprint(netip.AddrPortFrom(netip.MustParseAddr(at.addr), port)),
					reuseAddr: r.addr, reusePort: r.port, listen: listen})
			}
		}
	}
	return list
}

// Ports of each protocol and family, single ones and blocks.
var sharedTags = []endpoint.Tag{
	udpTag("10.0.0.1:7000"), tcpTag("10.0.0.1:7000"), udpTag("[fd00::1]:7000"), tcpTag("[fd00::1]:7000"),
	udpBlock("10.0.0.1:40000"), tcpBlock("10.0.0.1:40000"), udpBlock("[fd00::1]:40000"), tcpBlock("[fd00::1]:40000"),
}

// No program of the kernel's network stack gets a claimed port, whatever it
// does, and it gets every other, and that one when it was given back.
func TestKernelLeavesClaimedPortsAlone(t *testing.T) {
	l := openLab6(t)
	a := l.open()
	for _, tag := range sharedTags {
		before := look(t, l.A)
		if got, err := a.lease.Claim(t.Context(), tag); err != nil || got != tag {
			t.Fatalf("claim %v: %v, %v", tag, got, err)
		}
		l.wantClaims(int(tag.LastPort()-tag.Port)+1, tag)
		try := func(port uint16, want error) {
			t.Helper()
			for _, p := range programsAt(tag, port) {
				fd, err := p.start(l.A)
				if !errors.Is(err, want) {
					t.Errorf("%v is claimed, and %v: %v, want %v", tag, p, err, want)
				}
				if err == nil {
					unix.Close(fd)
				}
			}
		}
		for _, port := range []uint16{tag.Port, tag.Port + (tag.LastPort()-tag.Port)/2, tag.LastPort()} {
			try(port, unix.EADDRINUSE)
		}
		try(tag.Port-1, nil)
		try(tag.LastPort()+1, nil)
		must(t, a.lease.Unclaim(t.Context(), tag))
		l.wantClaims(0)
		try(tag.Port, nil)
		wantTraces(t, l.A, before)
	}
}

// Nobody claims a port that a program has, and one port of a block is enough. A
// refusal leaves nothing.
func TestPortsOfTheKernelAreNotClaimed(t *testing.T) {
	l := openLab6(t)
	a := l.open()
	for _, tag := range sharedTags {
		for _, port := range []uint16{tag.Port, tag.LastPort()} {
			for _, p := range programsAt(tag, port) {
				fd, err := p.start(l.A)
				must(t, err)
				before := look(t, l.A)
				_, err = a.lease.Claim(t.Context(), tag)
				if !errors.Is(err, endpoint.ErrTagHeld) || !strings.Contains(err.Error(), fmt.Sprint("port ", port)) {
					t.Errorf("claim %v beside %v: %v", tag, p, err)
				}
				wantTraces(t, l.A, before)
				unix.Close(fd)
			}
		}
		if _, err := a.lease.Claim(t.Context(), tag); err != nil {
			t.Errorf("claim %v when it is free: %v", tag, err)
		}
		must(t, a.lease.Unclaim(t.Context(), tag))
	}
}

// The same port of another protocol, family or address is another tag.
func TestPortsAreNotConfused(t *testing.T) {
	l := openLab6(t)
	onDevice(t, l.A, l.A.Interface, addAddress("10.0.0.9/24"))
	tags := append(sharedTags, udpTag("10.0.0.9:7000"), tcpBlock("10.0.0.9:40000"))
	l.open(tags[:3]...)
	a := l.open(tags[3:]...)
	l.wantClaims(5+5*64, tags...)
	// A program may have them on the addresses that nobody claimed.
	program{network: "udp4", at: "127.0.0.1:7000"}.keep(t, l.A)
	program{network: "tcp4", at: "10.0.0.9:7000", listen: true}.keep(t, l.A)
	must(t, a.lease.Close())
	l.wantClaims(3, tags[:3]...)
}

// A port that a TCP connection of the kernel's has is refused, without a
// listener too and in TIME-WAIT.
func TestPortsOfConnections(t *testing.T) {
	l := openLab6(t)
	a := l.open()
	for _, hosts := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"[fd00::1]", "[fd00::2]"}} {
		network := "tcp4"
		if hosts[0][0] == '[' {
			network = "tcp6"
		}
		peer, err := l.B.Listen(network, hosts[1]+":80")
		must(t, err)
		defer peer.Close()
		service, err := l.A.Listen(network, hosts[0]+":7000")
		must(t, err)
		out, err := l.A.Dial(network, hosts[1]+":80")
		must(t, err)
		in, err := l.B.Dial(network, hosts[0]+":7000")
		must(t, err)
		ours, err := service.Accept()
		must(t, err)
		theirs, err := peer.Accept()
		must(t, err)
		must(t, service.Close())
		tags := []endpoint.Tag{tcpTag(out.LocalAddr().String()), tcpTag(hosts[0] + ":7000")}
		refused := func(when string) {
			t.Helper()
			for _, tag := range tags {
				for _, tag := range []endpoint.Tag{tag, tag.AsBlock()} {
					if _, err := a.lease.Claim(t.Context(), tag); !errors.Is(err, endpoint.ErrTagHeld) {
						t.Errorf("claim %v of a connection %s: %v", tag, when, err)
					}
				}
			}
		}
		refused("established")
		must(t, errors.Join(out.Close(), ours.Close())) // host A first, so TIME-WAIT is there
		must(t, errors.Join(theirs.Close(), in.Close()))
		eventually(t, "two connections in TIME-WAIT", func() bool {
			const timeWait = " 06 " // enum of include/net/tcp_states.h
			return strings.Count(netFile(t, l.A, strings.Replace(network, "4", "", 1)), timeWait) == 2
		})
		refused("in TIME-WAIT")
	}
}

// A connection of the kernel's own gets no claimed port, in whatever way the
// kernel chooses.
func TestConnectionsGetOtherPorts(t *testing.T) {
	l := openLab6(t)
	// The kernel leaves out a port of a range of an odd number, now and then.
	sysctl(t, l.A, "ipv4/ip_local_port_range", "40000 40065")
	l.open(udpBlock("10.0.0.1:40000"), tcpBlock("10.0.0.1:40000"), udpBlock("[fd00::1]:40000"), tcpBlock("[fd00::1]:40000"))
	for _, network := range []string{"udp4", "tcp4", "udp6", "tcp6"} {
		from, any, to := "10.0.0.1:0", "0.0.0.0:0", "10.0.0.2:80"
		if strings.HasSuffix(network, "6") {
			from, any, to = "[fd00::1]:0", "[::]:0", "[fd00::2]:80"
		}
		for _, p := range []program{
			{network: network, at: from},
			{network: network, at: from, reuseAddr: true, reusePort: true},
			{network: network, at: any},
			{network: network, at: from, connects: true},
			{network: network, at: any, connects: true},
		} {
			for range 3 {
				fd, err := p.start(l.A)
				must(t, err)
				err = connect(fd, to)
				if port := boundTo(t, fd); err != nil || port < 40064 {
					t.Errorf("%v got port %d, %v", p, port, err)
				}
				unix.Close(fd)
			}
		}
	}
}

// A wildcard is a port of the kernel's choice.
func TestAnyPort(t *testing.T) {
	l := openLab6(t)
	sysctl(t, l.A, "ipv4/ip_local_port_range", "40000 40001")
	a := l.open()
	for _, c := range []struct {
		tag  endpoint.Tag
		addr string
	}{
		{udpTag("10.0.0.1:0"), "10.0.0.1"},
		{tcpTag("0.0.0.0:0"), "10.0.0.1"},
		{udpTag("[fd00::1]:0"), "fd00::1"},
		{tcpTag("[::]:0"), "fd00::1"},
	} {
		got := map[uint16]bool{}
		for range 2 {
			tag, err := a.lease.Claim(t.Context(), c.tag)
			if err != nil || tag.Kind != c.tag.Kind || tag.Block || tag.Addr.String() != c.addr {
				t.Errorf("claim %v: %v, %v", c.tag, tag, err)
			}
			got[tag.Port] = true
		}
		if !got[40000] || !got[40001] {
			t.Errorf("claim %v: ports %v", c.tag, got)
		}
		if _, err := a.lease.Claim(t.Context(), c.tag); !errors.Is(err, endpoint.ErrTagHeld) {
			t.Errorf("claim %v when all are held: %v", c.tag, err)
		}
	}
	must(t, a.lease.Close())
	l.wantClaims(0)
}
