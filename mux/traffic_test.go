//go:build linux

package mux_test

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/account"
	"github.com/unet-go/unet/internal/frametest"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// listenGRO turns GRO on for host B's end. Without it the kernel there drops what a native XDP program
// sends to a veth.
func listenGRO(t *testing.T, h *netlab.Host) {
	t.Helper()
	setOffload(t, h, "gro", true)
}

// A datagram of the peer's kernel arrives at the endpoint, and the endpoint's answer at the peer. Traffic of the
// host's own kernel is not affected.
func TestTrafficThroughAPort(t *testing.T) {
	t.Parallel()
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeNative} {
		t.Run(mode.String(), func(t *testing.T) {
			l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}
			if mode == mux.ModeNative {
				listenGRO(t, l.B)
			}
			l.openMux(mode)
			if l.mux.Identity().Mode != mode.String() {
				t.Fatalf("identity %+v", l.mux.Identity())
			}
			a := l.open(udpTag("0.0.0.0:7000"), endpoint.MessageTag(7))
			if a.grant.Tags[0] != udpTag("10.0.0.1:7000") {
				t.Fatalf("tags %v", a.grant.Tags)
			}
			b := kernelUDP(t, l.B, "10.0.0.2:0")
			for i := range 5 {
				text := fmt.Sprint("hello ", i)
				sendTo(t, b, "10.0.0.1:7000", text)
				r := a.recv()
				p := packet(t, r.frame)
				udp := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
				if string(udp.Payload) != text || udp.DstPort != 7000 || r.gsoSize != 0 {
					t.Errorf("received %v, gso size %d", p, r.gsoSize)
				}
				a.send(datagram(l.B.LinkAddr, l.A.LinkAddr, "10.0.0.1:7000", b.LocalAddr().String(), "re: "+text))
				if from := readFrom(t, b, "re: "+text); from != netip.MustParseAddrPort("10.0.0.1:7000") {
					t.Errorf("answer came from %v", from)
				}
			}
			// The kernel's own.
			k := kernelUDP(t, l.A, "10.0.0.1:53")
			sendTo(t, b, "10.0.0.1:53", "query")
			sendTo(t, k, readFrom(t, k, "query").String(), "answer")
			readFrom(t, b, "answer")
			ping(t, l.B, "10.0.0.1")
			ping(t, l.B, "10.0.0.1")

			c := l.count()
			if c["rx_port"] != 5 || c["tx_uplink"] != 5 || c["deliver_socket"] != 5 || c["rx_pass"] < 4 {
				t.Errorf("counters: %v", c)
			}
			for name := range c {
				if strings.HasPrefix(name, "lost") {
					t.Errorf("counters: %v", c)
				}
			}
		})
	}
}

// Forbidden frames that an endpoint writes to its send queue are dropped and counted.
func TestForgedFramesAreDropped(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	me := l.open(udpTag("10.0.0.1:7000"), endpoint.MessageTag(7))
	other := l.open(udpTag("10.0.0.1:7001"), endpoint.MessageTag(8), endpoint.AddrTag(netip.MustParseAddr("10.0.0.77")))
	b := kernelUDP(t, l.B, "10.0.0.2:9000")
	A, B := l.A.LinkAddr, l.B.LinkAddr
	good := datagram(B, A, "10.0.0.1:7000", "10.0.0.2:9000", "genuine")
	edit := func(at int, v byte) []byte { f := bytes.Clone(good); f[at] = v; return f }
	tcpFrame := frametest.Build(&layers.Ethernet{DstMAC: B[:], SrcMAC: A[:], EthernetType: layers.EthernetTypeIPv4},
		&layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: net.IPv4(10, 0, 0, 1), DstIP: net.IPv4(10, 0, 0, 2)},
		&layers.TCP{SrcPort: 7000, DstPort: 9000, SYN: true}, gopacket.Payload("forged"))
	for _, c := range []struct {
		what, counter string
		frame         []byte
	}{
		{"another endpoint's port", "tx_forged_tag", datagram(B, A, "10.0.0.1:7001", "10.0.0.2:9000", "forged")},
		{"the kernel's port", "tx_forged_addr", datagram(B, A, "10.0.0.1:53", "10.0.0.2:9000", "forged")},
		{"another endpoint's address", "tx_forged_addr", datagram(B, A, "10.0.0.77:7000", "10.0.0.2:9000", "forged")},
		{"the peer's own address", "tx_forged_addr", datagram(B, A, "10.0.0.2:7000", "10.0.0.2:9000", "forged")},
		{"another MAC address", "tx_forged_link", datagram(B, B, "10.0.0.1:7000", "10.0.0.2:9000", "forged")},
		{"another endpoint's message tag", "tx_forged_tag", messageFrame(B, A, 9, 8, "forged")},
		{"an unknown EtherType", "tx_bad_ethertype", edit(12, 0x86)},
		{"a wrong length", "tx_bad_length", edit(17, 0xff)},
		{"TCP", "tx_forged_addr", tcpFrame},
		{"oversize", "tx_oversize", datagram(B, A, "10.0.0.1:7000", "10.0.0.2:9000", strings.Repeat("x", 1473))},
		{"oversize in several descriptors", "tx_oversize", datagram(B, A, "10.0.0.1:7000", "10.0.0.2:9000", strings.Repeat("x", 5000))},
		{"headers cut off", "tx_truncated", good[:20]},
	} {
		l.wantIncrements(c.what, "tx_", func() { me.send(c.frame) }, c.counter)
	}
	me.send(good)
	readFrom(t, b, "genuine") // the first that arrives
	if c := l.count(); c["tx_uplink"] != 1 {
		t.Errorf("counters: %v", c)
	}
	other.wantNothing("of forged frames")
}

// A full-sized datagram goes out, and one whose frame spans descriptors too.
func TestFrameInSeveralDescriptors(t *testing.T) {
	t.Parallel()
	l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{MTU: 9000})}
	l.openMux(mux.ModeAuto)
	a := l.open(udpTag("10.0.0.1:7000"))
	b := kernelUDP(t, l.B, "10.0.0.2:9000")
	text := strings.Repeat("0123456789", 800)
	sendTo(t, b, "10.0.0.1:7000", text)
	if udp := packet(t, a.recv().frame).Layer(layers.LayerTypeUDP); string(udp.LayerPayload()) != text {
		t.Error("a long datagram was not received as it was sent")
	}
	a.send(datagram(l.B.LinkAddr, l.A.LinkAddr, "10.0.0.1:7000", "10.0.0.2:9000", text))
	big := make([]byte, 9000)
	n, _, err := b.ReadFromUDPAddrPort(big)
	testutil.Must(t, err)
	if string(big[:n]) != text {
		t.Error("a long datagram was not sent as it was written")
	}
}

// The MTU of an untrusted owner's endpoint is the longest packet that it can receive.
func TestMTUOfUntrustedEndpoint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ uplink, frame, want int }{
		{1500, 2048, 1500}, {9000, 2048, 1650}, {9000, 4096, 3698},
	} {
		t.Run(fmt.Sprint(c.uplink, " in frames of ", c.frame), func(t *testing.T) {
			l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{MTU: c.uplink})}
			l.openMux(mux.ModeAuto)
			req := endpoint.Request{Geometry: small, Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}}
			req.Geometry.FrameSize = uint32(c.frame)
			g, lease, err := l.openAs(mux.Owner{PID: os.Getpid()}, mux.Terms{}, req)
			testutil.Must(t, err)
			a := attach(t, g)
			a.lease = lease
			if g.Identity.MTU != uint32(c.want) {
				t.Errorf("granted an MTU of %d, want %d", g.Identity.MTU, c.want)
			}
			b := kernelUDP(t, l.B, "10.0.0.2:9000")
			sendTo(t, b, "10.0.0.1:7000", strings.Repeat("x", c.want-28))
			if n := len(a.recv().frame); n != 14+c.want {
				t.Errorf("received a frame of %d bytes", n)
			}
			if c.want < c.uplink {
				sendTo(t, b, "10.0.0.1:7000", strings.Repeat("x", c.frame)) // some kernels receive a little more than all do
				l.await("deliver_too_long", 1)
			}
		})
	}
}

// Frames between two endpoints of one host do not leave the host.
func TestLocalDelivery(t *testing.T) {
	t.Parallel()
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeNative} {
		t.Run(mode.String(), func(t *testing.T) {
			l := openLab(t, mode)
			a := l.open(udpTag("10.0.0.1:7000"), endpoint.MessageTag(7))
			b := l.open(udpTag("10.0.0.1:7001"), endpoint.MessageTag(8))
			r, err := a.lease.Resolve(t.Context(), netip.Addr{}, netip.MustParseAddr("10.0.0.1"))
			testutil.Must(t, err)
			a.send(datagram(r.LinkAddr, l.A.LinkAddr, "10.0.0.1:7000", "10.0.0.1:7001", "hello"))
			if p := packet(t, b.recv().frame); string(p.ApplicationLayer().Payload()) != "hello" {
				t.Errorf("received %v", p)
			}
			b.send(messageFrame(r.LinkAddr, l.A.LinkAddr, 7, 8, "hi"))
			if f := a.recv().frame; !bytes.HasPrefix(f[26:], []byte("hi")) {
				t.Errorf("received %x", f)
			}
			l.wantIncrements("to a loopback address", "tx_", func() {
				a.send(datagram(r.LinkAddr, l.A.LinkAddr, "10.0.0.1:7000", "127.0.0.1:53", "hello"))
				l.await("tx_no_owner", 1)
			}, "tx_no_owner")
			// A service that is bound to 0.0.0.0 is there for the host's address only.
			k := kernelUDP(t, l.A, "0.0.0.0:53")
			a.send(datagram(r.LinkAddr, l.A.LinkAddr, "10.0.0.1:7000", "10.0.0.1:53", "to the kernel"))
			if from := readFrom(t, k, "to the kernel"); from != netip.MustParseAddrPort("10.0.0.1:7000") {
				t.Errorf("came from %v", from)
			}
			if c := l.count(); c["tx_local"] != 2 || c["deliver_socket"] != 2 || c["tx_uplink"] != 0 {
				t.Errorf("counters: %v", c)
			}
		})
	}
}

// ARP and all else for an owned address arrives at its owner, which answers; ARP for the shared address
// goes to the kernel.
func TestFramesToOwnedAddressReachOwner(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	owned := netip.MustParseAddr("10.0.0.77")
	a := l.open(endpoint.AddrTag(owned))
	b := kernelUDP(t, l.B, "10.0.0.2:9000")
	sendTo(t, b, "10.0.0.77:5", "hello") // the kernel asks for the MAC address first
	p := packet(t, a.recv().frame)
	request, ok := p.Layer(layers.LayerTypeARP).(*layers.ARP)
	if !ok || !net.IP(request.DstProtAddress).Equal(owned.AsSlice()) {
		t.Fatalf("received %v, want an ARP request", p)
	}
	A := l.A.LinkAddr
	a.send(frametest.Build(&layers.Ethernet{DstMAC: request.SourceHwAddress, SrcMAC: A[:], EthernetType: layers.EthernetTypeARP}, &layers.ARP{
		AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: 2,
		SourceHwAddress: A[:], SourceProtAddress: owned.AsSlice(), DstHwAddress: request.SourceHwAddress, DstProtAddress: request.SourceProtAddress,
	}))
	p = packet(t, a.recv().frame)
	if udp := p.Layer(layers.LayerTypeUDP); udp == nil || string(udp.LayerPayload()) != "hello" {
		t.Fatalf("received %v, want the datagram", p)
	}
	ping(t, l.B, "10.0.0.1")
	// Another endpoint of this host resolves it to the uplink's MAC address.
	other := l.open(udpTag("10.0.0.1:7000"))
	r, err := other.lease.Resolve(t.Context(), netip.Addr{}, owned)
	testutil.Must(t, err)
	other.send(datagram(r.LinkAddr, A, "10.0.0.1:7000", "10.0.0.77:5", "neighbour"))
	if p = packet(t, a.recv().frame); string(p.ApplicationLayer().Payload()) != "neighbour" {
		t.Errorf("received %v", p)
	}
	a.wantNothing("of ARP and ping for the shared address")
}

// An ICMP error about an unreachable port of the peer arrives at the sender.
func TestICMPErrorReachesTheSender(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeTCX)
	a, b := l.open(udpTag("10.0.0.1:7000")), l.open(udpTag("10.0.0.1:7001"))
	a.send(datagram(l.B.LinkAddr, l.A.LinkAddr, "10.0.0.1:7000", "10.0.0.2:9", "to a closed port"))
	p := packet(t, a.recv().frame)
	icmp, ok := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
	if !ok || icmp.TypeCode != layers.CreateICMPv4TypeCode(3, 3) {
		t.Errorf("received %v", p)
	}
	b.wantNothing("an error about another's datagram")
}

// A super-frame (UDP_SEGMENT) arrives with the size of its parts in its header, on a port and on a
// queue. In native mode the kernel has segmented it, and for an untrusted owner it does so on the way to
// the port.
func TestSuperFrameReachesEndpoint(t *testing.T) {
	t.Parallel()
	const size, total = 1000, 4500
	text := strings.Repeat("abcdefghi ", total/10)
	for _, c := range []struct {
		mode    mux.Mode
		attach  endpoint.Attachment
		trusted bool
		counter string
	}{
		{mux.ModeTCX, endpoint.AttachPort, true, "rx_port"},
		{mux.ModeTCX, endpoint.AttachPort, false, "rx_cut"},
		{mux.ModeTCX, endpoint.AttachQueue, true, "rx_queue"},
		{mux.ModeNative, endpoint.AttachPort, true, "rx_port"},
		{mux.ModeNative, endpoint.AttachPort, false, "rx_port"},
	} {
		t.Run(fmt.Sprint(c.mode, " ", c.attach, " trusted ", c.trusted), func(t *testing.T) {
			l := openLab(t, c.mode)
			a := l.openFor(mux.Terms{Trusted: c.trusted}, endpoint.Request{Attach: c.attach, Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
			b := kernelUDP(t, l.B, "10.0.0.2:9000")
			raw, err := b.SyscallConn()
			testutil.Must(t, err)
			var opt error
			testutil.Must(t, raw.Control(func(fd uintptr) { opt = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size) }))
			testutil.Must(t, opt)
			sendTo(t, b, "10.0.0.1:7000", text)
			if c.mode == mux.ModeNative || !c.trusted {
				for rest := text; rest != ""; {
					r := a.recv()
					payload := string(packet(t, r.frame).Layer(layers.LayerTypeUDP).LayerPayload())
					if want := rest[:min(size, len(rest))]; payload != want || r.gsoSize != 0 {
						t.Fatalf("datagram of %d bytes, gso size %d", len(payload), r.gsoSize)
					}
					rest = rest[len(payload):]
				}
				if l.count()[c.counter] == 0 {
					t.Errorf("counters: %v", l.count())
				}
				return
			}
			r := a.recv()
			if r.gsoSize != size {
				t.Errorf("gso size %d, want %d", r.gsoSize, size)
			}
			if udp := packet(t, r.frame).Layer(layers.LayerTypeUDP); string(udp.LayerPayload()) != text {
				t.Errorf("%d bytes of payload, want %d as sent", len(udp.LayerPayload()), total)
			}
			// A long datagram has no such size.
			testutil.Must(t, raw.Control(func(fd uintptr) { opt = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, 0) }))
			testutil.Must(t, opt)
			sendTo(t, b, "10.0.0.1:7000", text[:1400])
			if r := a.recv(); r.gsoSize != 0 {
				t.Errorf("gso size %d of an ordinary datagram", r.gsoSize)
			}
		})
	}
}

// An endpoint on a queue receives frames of its tags, and sends directly out of the uplink.
func TestEndpointOnQueue(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeTCX)
	q := l.openRequest(endpoint.Request{Attach: endpoint.AttachQueue, Tags: []endpoint.Tag{udpTag("10.0.0.1:7000"), endpoint.MessageTag(7)}})
	p := l.open(udpTag("10.0.0.1:7001"))
	b := kernelUDP(t, l.B, "10.0.0.2:9000")
	sendTo(t, b, "10.0.0.1:7000", "hello")
	if f := packet(t, q.recv().frame); string(f.ApplicationLayer().Payload()) != "hello" {
		t.Errorf("received %v", f)
	}
	q.send(datagram(l.B.LinkAddr, l.A.LinkAddr, "10.0.0.1:7000", "10.0.0.2:9000", "answer"))
	readFrom(t, b, "answer")
	sendTo(t, b, "10.0.0.1:7001", "to the port")
	p.recv()
	l.wantIncrements("from a port to a queue", "tx_", func() {
		p.send(datagram(l.A.LinkAddr, l.A.LinkAddr, "10.0.0.1:7001", "10.0.0.1:7000", "hello"))
	}, "tx_to_queue")
	if c := l.count(); c["rx_queue"] != 1 || c["rx_port"] != 1 {
		t.Errorf("counters: %v", c)
	}
	ping(t, l.B, "10.0.0.1")
}

// Frames that the kernel drops after a redirect are counted, so that the sums of counters agree.
func TestCountersAddUp(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeTCX)
	a := l.open(udpTag("10.0.0.1:7000"))
	b := kernelUDP(t, l.B, "10.0.0.2:9000")
	k := kernelUDP(t, l.A, "10.0.0.1:53")
	const frames = 500 // more than the rings of the endpoint, which reads nothing
	for range frames {
		sendTo(t, b, "10.0.0.1:7000", "to the endpoint")
		sendTo(t, b, "10.0.0.1:53", "to the kernel")
		readFrom(t, k, "to the kernel") // so the one before has arrived
	}
	c := l.count()
	if c["rx_port"] != frames || c["rx_pass"] < frames || c["deliver_socket"] != frames {
		t.Errorf("counters: %v", c)
	}
	st, err := a.sock.Statistics()
	testutil.Must(t, err)
	waiting := uint64(a.sock.RX.Pending())
	if c["lost_deliver_redirect"] != frames-waiting || waiting != 128 {
		t.Errorf("%d frames wait of %d, counters: %v, socket: %+v", waiting, frames, c, st)
	}
	// Frames of endpoints are lost if the uplink is down.
	onDevice(t, l.A, l.A.Interface, netlink.LinkSetDown)
	a.send(datagram(l.B.LinkAddr, l.A.LinkAddr, "10.0.0.1:7000", "10.0.0.2:9000", "hello"))
	l.await("lost_port_redirect", 1)
}

// XDP redirects frames to a port that is down; traffic control goes past its outer end.
func TestFramesToPortThatIsDownAreCounted(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeNative)
	a := l.open(udpTag("10.0.0.1:7000"))
	b := kernelUDP(t, l.B, "10.0.0.2:9000")
	onDevice(t, l.A, fmt.Sprintf("unet%d", a.grant.ID), netlink.LinkSetDown)
	sendTo(t, b, "10.0.0.1:7000", "to a port that is down")
	l.await("lost_uplink_redirect", 1)
	other := l.open(udpTag("10.0.0.1:7001"))
	other.send(datagram(l.A.LinkAddr, l.A.LinkAddr, "10.0.0.1:7001", "10.0.0.1:7000", "to a port that is down"))
	l.await("lost_local_redirect", 1)
	if b := account.Check(l.counters()); b.Missing() != 0 {
		t.Errorf("%+v", b)
	}
}

// In native mode a device may refuse all redirects, or some frames of a bulk.
func TestNativeLossIsCounted(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeNative) // host B has neither GRO nor a program yet
	a := l.open(udpTag("10.0.0.1:7000"))
	frame := datagram(l.B.LinkAddr, l.A.LinkAddr, "10.0.0.1:7000", "10.0.0.2:9000", strings.Repeat("x", 1400))
	a.send(frame)
	l.await("lost_port_redirect", 1)
	listenGRO(t, l.B)
	onDevice(t, l.B, l.B.Interface, mtu(1000)) // less than the frame
	a.send(frame)
	l.await("lost_device_full", 1)
	if c := l.count(); c["tx_uplink"] != 2 || c["lost_port_redirect"] != 1 {
		t.Errorf("counters: %v", c)
	}
}

// The parts of a super-frame can be longer than the uplink's MTU if the sender's MTU is larger. They
// are dropped, not segmented again.
func TestLongPartsOfSuperFrameAreDropped(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeTCX)
	onDevice(t, l.B, l.B.Interface, mtu(9000))
	l.openFor(mux.Terms{}, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
	b := kernelUDP(t, l.B, "10.0.0.2:9000")
	raw, err := b.SyscallConn()
	testutil.Must(t, err)
	var opt error
	testutil.Must(t, raw.Control(func(fd uintptr) { opt = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, 4000) }))
	testutil.Must(t, opt)
	sendTo(t, b, "10.0.0.1:7000", strings.Repeat("x", 16000))
	testutil.Eventually(t, "each part has been counted as too long", func() bool {
		c := l.count()
		return c["rx_cut"] == 1 && c["rx_port"] == 4 && c["deliver_too_long"] == 4
	})
}

// A frame can be in several parts of memory, of which the first may have only the link header. In tcx
// mode the program makes the kernel copy the bytes that it reads into the first part.
func TestHeadersInSeveralParts(t *testing.T) {
	t.Parallel()
	l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{MTU: 9000})}
	l.openMux(mux.ModeTCX)
	a := l.open(udpTag("10.0.0.1:7000"), tcpTag("10.0.0.1:7000"), endpoint.MessageTag(7))
	A, B := l.A.LinkAddr, l.B.LinkAddr
	long := strings.Repeat("x", 6000) // the kernel does not divide shorter frames
	mine := datagram(B, A, "10.0.0.1:7000", "10.0.0.2:9", long)[14:]
	frames := map[string][]byte{
		"UDP":     datagram(A, B, "10.0.0.2:9", "10.0.0.1:7000", long),
		"TCP":     segment(A, B, "10.0.0.2:9", "10.0.0.1:7000", long),
		"message": messageFrame(A, B, 7, 9, long),
		"an error": frametest.Build(&layers.Ethernet{DstMAC: A[:], SrcMAC: B[:], EthernetType: layers.EthernetTypeIPv4},
			&layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolICMPv4, SrcIP: net.IPv4(10, 0, 0, 2), DstIP: net.IPv4(10, 0, 0, 1)},
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 3)}, gopacket.Payload(mine)),
	}
	peer := openSuper(t, l.B)
	for name, frame := range frames {
		for _, linear := range []uint16{14, 34, 42, 62, 70} {
			testutil.Must(t, peer.SendDivided(frame, linear))
			if got := a.recv().frame; !bytes.Equal(got, frame) {
				t.Errorf("%s, %d bytes in the first part: received %d bytes, sent %d", name, linear, len(got), len(frame))
			}
		}
	}
}
