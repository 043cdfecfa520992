//go:build linux

package bpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// encapsulation makes frames with a segment in another form: fragments, options, extension headers.
type encapsulation struct {
	name   string
	frames func(segment []byte) [][]byte
}

var encapsulations4 = []encapsulation{
	{"plain", func(f []byte) [][]byte { return [][]byte{f} }},
	{"with a priority", func(f []byte) [][]byte { return [][]byte{tagged(f, layers.EthernetTypeDot1Q, 0, 5)} }},
	{"with two priorities", func(f []byte) [][]byte {
		return [][]byte{tagged(tagged(f, layers.EthernetTypeDot1Q, 0, 5), layers.EthernetTypeDot1Q, 0, 5)}
	}},
	{"in fragments with a priority", func(f []byte) [][]byte {
		return [][]byte{tagged(summed4(fragment4(f, 0, 8, true)), layers.EthernetTypeDot1Q, 0, 5), tagged(summed4(fragment4(f, 8, 100, false)), layers.EthernetTypeDot1Q, 0, 5)}
	}},
	{"behind options", func(f []byte) [][]byte { return [][]byte{optioned4(f)} }},
	{"in fragments", func(f []byte) [][]byte {
		return [][]byte{summed4(fragment4(f, 0, 8, true)), summed4(fragment4(f, 8, 100, false))}
	}},
	{"in fragments, the last one first", func(f []byte) [][]byte {
		return [][]byte{summed4(fragment4(f, 16, 100, false)), summed4(fragment4(f, 0, 16, true))}
	}},
	{"in fragments with options", func(f []byte) [][]byte {
		return [][]byte{optioned4(fragment4(f, 0, 8, true)), optioned4(fragment4(f, 8, 100, false))}
	}},
}

var encapsulations6 = []encapsulation{
	{"plain", func(f []byte) [][]byte { return [][]byte{f} }},
	{"behind destination options", func(f []byte) [][]byte { return [][]byte{extended6(f, 60)} }},
	{"behind hop-by-hop options", func(f []byte) [][]byte { return [][]byte{extended6(f, 0)} }},
	{"behind a routing header", func(f []byte) [][]byte { return [][]byte{edit(extended6(f, 43), atIPv6Payload+3, 0)} }},
	{"behind two headers", func(f []byte) [][]byte { return [][]byte{extended6(extended6(f, 60), 0)} }},
	{"behind 20 headers", func(f []byte) [][]byte { return [][]byte{extendedBy(f, 20, 0)} }},
	{"in an atomic fragment", func(f []byte) [][]byte { return [][]byte{fragment6(f, 0, 1000, false)} }},
	{"in fragments", func(f []byte) [][]byte { return [][]byte{fragment6(f, 0, 24, true), fragment6(f, 24, 100, false)} }},
	{"in fragments, the last one first", func(f []byte) [][]byte { return [][]byte{fragment6(f, 24, 100, false), fragment6(f, 0, 24, true)} }},
	{"in a first fragment of 8 bytes", func(f []byte) [][]byte { return [][]byte{fragment6(f, 0, 8, true)} }}, // RFC 8200, 4.5: an ICMP error
	{"behind options in fragments", func(f []byte) [][]byte {
		f = extended6(f, 60)
		return [][]byte{fragment6(f, 0, 40, true), fragment6(f, 40, 100, false)}
	}},
	{"in fragments behind options", func(f []byte) [][]byte {
		return [][]byte{extended6(fragment6(f, 0, 24, true), 60), extended6(fragment6(f, 24, 100, false), 60)}
	}},
}

// optioned4 inserts four no-operation options into an IPv4 header.
func optioned4(frame []byte) []byte {
	f := append(append([]byte{}, frame[:atIPv4Payload]...), 1, 1, 1, 1)
	f = append(f, frame[atIPv4Payload:]...)
	f = edit16(f, atTotalLength, binary.BigEndian.Uint16(frame[atTotalLength:])+4)
	return summed4(edit(f, atVersionIHL, 0x46))
}

// summed4 sets the checksum of an IPv4 header.
func summed4(frame []byte) []byte {
	f := edit16(frame, atIP+10, 0)
	n, sum := int(f[atVersionIHL]&15)*4, uint32(0)
	for i := 0; i < n; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[atIP+i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return edit16(f, atIP+10, ^uint16(sum))
}

// The kernel does not answer packets to a held port with a reset or ICMP, in whatever headers or fragments they are.
// It answers the same segments to a port that nobody holds with a reset.
func TestKernelDoesNotAnswerForHeldPort(t *testing.T) {
	const held, free, last = 7000, 9, 8 // nobody holds free and last
	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	var l *lab
	testutil.Must(t, pair.A.Do(func() error {
		l = openLab(t, netlab.Interface, func(mac [6]byte, ifindex int) MuxUnetConfig { return Config(mac, ifindex, 0, testMTU, true, false) })
		l.claim(Key(TagTCP, shared.As4(), held), l.port(l.a))
		l.claim6(Key6(TagTCP, shared6.As16(), held), l.port(l.a))
		testutil.Must(t, netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: l.a}}))
		l.reach(l.a)
		xdp, err := link.AttachXDP(link.XDPOptions{Program: l.objs.UnetUplink, Interface: l.uplink, Flags: link.XDPGenericMode})
		testutil.Must(t, err)
		t.Cleanup(func() { xdp.Close() })
		return nil
	}))
	answers := listen(t, pair.B)
	syn := func(to netip.Addr, port uint16) []byte {
		from := peer
		if to.Is6() {
			from = peer6
		}
		return packet(l.mac, peerMAC, from, to, layers.IPProtocolTCP,
			&layers.TCP{SrcPort: 5000, DstPort: layers.TCPPort(port), SYN: true, Window: 1024}, gopacket.Payload(make([]byte, 40)))
	}
	for _, v := range []struct {
		to   netip.Addr
		list []encapsulation
	}{{shared, encapsulations4}, {shared6, encapsulations6}} {
		for _, d := range v.list {
			send := func(port uint16) {
				whole := syn(v.to, port)
				fragmentID++ // so that fragments of two are not reassembled
				if v.to.Is4() {
					whole[atIP+5] = fragmentID
					whole = summed4(whole)
				}
				for _, f := range d.frames(whole) {
					transmit(t, pair.B, f, 1)
				}
			}
			name := fmt.Sprintf("IPv%d, %s", map[bool]int{true: 4, false: 6}[v.to.Is4()], d.name)
			send(held)
			// Answers to earlier frames come before the answer to this one.
			transmit(t, pair.B, syn(v.to, last), 1)
			for _, answer := range answers.until(last) {
				t.Errorf("%s, to a port that is held: the kernel answers %v", name, answer)
			}
			if strings.Contains(d.name, "20 headers") || strings.Contains(d.name, "two priorities") {
				continue // more headers than the program reads: dropped
			}
			send(free)
			transmit(t, pair.B, syn(v.to, last), 1)
			if len(answers.until(last)) != 1 {
				t.Errorf("%s, to a port without an owner: the kernel does not answer", name)
			}
		}
	}
	// Later fragments for a held port have no effect, also on fragments for the kernel.
	for _, network := range []string{"10.0.0.1:53", "[fd00::1]:53"} {
		service, err := pair.A.ListenUDP(network)
		testutil.Must(t, err)
		defer service.Close()
		client, err := pair.B.Dial("udp", network)
		testutil.Must(t, err)
		defer client.Close()
		text := strings.Repeat("0123456789", 500)
		_, err = client.Write([]byte(text))
		testutil.Must(t, err)
		testutil.Must(t, service.SetReadDeadline(time.Now().Add(time.Minute)))
		buf := make([]byte, 8192)
		n, err := service.Read(buf)
		testutil.Must(t, err)
		if string(buf[:n]) != text {
			t.Errorf("%s: the kernel has received %d bytes of %d", network, n, len(text))
		}
	}
}

// answerSocket receives the frames that arrive at a host.
type answerSocket struct {
	t  *testing.T
	fd int
}

// listen opens an answerSocket.
func listen(t *testing.T, h *netlab.Host) *answerSocket {
	t.Helper()
	e := &answerSocket{t: t}
	testutil.Must(t, h.Do(func() (err error) {
		device, err := netlink.LinkByName(h.Interface)
		testutil.Must(t, err)
		e.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		testutil.Must(t, err)
		testutil.Must(t, unix.SetsockoptInt(e.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1))
		testutil.Must(t, unix.SetsockoptTimeval(e.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		return unix.Bind(e.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: device.Attrs().Index})
	}))
	t.Cleanup(func() { unix.Close(e.fd) })
	return e
}

// until returns the resets and ICMP errors that come before a reset from port.
func (e *answerSocket) until(port uint16) (before []string) {
	e.t.Helper()
	buf := make([]byte, 65536)
	for {
		n, _, err := unix.Recvfrom(e.fd, buf, 0)
		if err != nil {
			e.t.Fatalf("no reset from port %d: %v", port, err)
		}
		p := gopacket.NewPacket(buf[:n], layers.LayerTypeEthernet, gopacket.Default)
		if tcp, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP); ok {
			if uint16(tcp.SrcPort) == port {
				return before
			}
			before = append(before, fmt.Sprint("TCP from port ", tcp.SrcPort))
		}
		if icmp, ok := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); ok {
			before = append(before, icmp.TypeCode.String())
		}
		if icmp, ok := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6); ok && icmp.TypeCode.Type() < 128 {
			before = append(before, icmp.TypeCode.String())
		}
	}
}
