//go:build linux

package main

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/wire"
)

// packetSocket sends whole frames on a host's interface.
type packetSocket struct {
	t  *testing.T
	fd int
	to unix.SockaddrLinklayer
}

func openPacketSocket(t *testing.T, h *netlab.Host) *packetSocket {
	t.Helper()
	r := &packetSocket{t: t}
	if err := h.Do(func() error {
		i, err := net.InterfaceByName(h.Interface)
		if err != nil {
			return err
		}
		r.to = unix.SockaddrLinklayer{Ifindex: i.Index}
		r.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(r.fd) })
	return r
}

func (r *packetSocket) send(frame []byte) {
	r.t.Helper()
	if err := unix.Sendto(r.fd, frame, 0, &r.to); err != nil {
		r.t.Fatal(err)
	}
}

// udpHeaders are the headers of a datagram of which tests change fields.
type udpHeaders struct {
	linkSource wire.LinkAddr
	etherType  wire.EtherType
	fragment   uint16 // flags and offset
}

const moreFragments = 0x2000

// udpFrame is a frame with a datagram. change, if it is not nil, changes its headers first.
func udpFrame(src, dst *netlab.Host, sport, dport uint16, change func(*udpHeaders)) []byte {
	h := udpHeaders{linkSource: src.LinkAddr, etherType: wire.EtherTypeIPv4}
	if change != nil {
		change(&h)
	}
	payload := strings.Repeat("payload ", 10)
	from, to := src.Addr.Addr().As4(), dst.Addr.Addr().As4()
	b := make([]byte, wire.EthernetHeaderLen+wire.IPv4HeaderLen+wire.UDPHeaderLen+len(payload))
	ip := b[wire.EthernetHeaderLen:]
	wire.PutEthernet(b, dst.LinkAddr, h.linkSource, h.etherType)
	wire.PutIPv4(ip, wire.IPv4Fields{TotalLen: uint16(len(ip)), Fragment: h.fragment, TTL: 64, Protocol: wire.ProtocolUDP, Src: from, Dst: to})
	wire.PutUDPCopy(ip[wire.IPv4HeaderLen:], &wire.UDPFlow{Src: wire.AddrFrom4(from), Dst: wire.AddrFrom4(to), SrcPort: sport, DstPort: dport}, []byte(payload))
	return b
}

// A dropped frame has the reason of the drop as its comment: a forged frame of the endpoint, a fragment and a
// frame of a wrong length from the wire, and frames for which its socket has no room. Other frames have no comment.
func TestCaptureOfDroppedFrames(t *testing.T) {
	const flood = 200 // more than the receive queue has room for
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	s.serve(t, "--mode", "tcx")
	grant, lease, err := control.Open(t.Context(), s.socket, endpoint.Request{
		Tags:     []endpoint.Tag{endpoint.UDPTag(netip.AddrPortFrom(pair.A.Addr.Addr(), 7000))},
		Geometry: smallGeometry(128),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Close()
	ep, err := datapath.Attach(grant, datapath.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	_, other := s.open(t, ":7001")
	defer other.Close()
	file := filepath.Join(t.TempDir(), "a.pcapng")
	c := startCapture(t, s, nil, "1", "-w", file, "-c", fmt.Sprint(4+2+flood))

	for _, frame := range [][]byte{
		udpFrame(pair.A, pair.B, 7000, 9, nil),
		udpFrame(pair.A, pair.B, 7000, 9, func(h *udpHeaders) { h.linkSource = pair.B.LinkAddr }),
		udpFrame(pair.A, pair.B, 7001, 9, nil),
		udpFrame(pair.A, pair.B, 7000, 9, func(h *udpHeaders) { h.etherType = wire.EtherTypeVLAN }),
	} {
		d, ok := ep.Frames().Reserve(0)
		if !ok {
			t.Fatal("no frame")
		}
		d.Len = uint32(copy(ep.Frames().Bytes(datapath.Desc{Addr: d.Addr, Len: 2048}), frame))
		if !ep.Frames().Send(d) {
			t.Fatal("no room in the send queue")
		}
	}
	if err := ep.Flush(); err != nil {
		t.Fatal(err)
	}
	b := openPacketSocket(t, pair.B)
	fragment := udpFrame(pair.B, pair.A, 9, 7000, func(h *udpHeaders) { h.fragment = moreFragments })
	short := udpFrame(pair.B, pair.A, 9, 7000, nil)
	b.send(fragment)
	b.send(short[:len(short)-3])
	for _, port := range []uint16{9, 7001} { // the kernel's and another endpoint's
		b.send(udpFrame(pair.B, pair.A, 9, port, func(h *udpHeaders) { h.fragment = moreFragments }))
	}
	for range flood {
		b.send(udpFrame(pair.B, pair.A, 9, 7000, nil))
	}

	if code, stderr := c.end(); code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	got := map[string]int{}
	for _, p := range tshark(t, file) {
		name, _, _ := strings.Cut(p.comment, ":")
		got[p.iface+" "+p.direction+" "+name]++
	}
	lost := got["unet1 in lost_deliver_redirect"]
	want := map[string]int{
		"unet1 out ": 1, "unet1 out tx_forged_link": 1, "unet1 out tx_forged_tag": 1, "unet1 out tx_bad_ethertype": 1,
		"uplink in rx_fragment": 1, "uplink in rx_bad_length": 1,
		"unet1 in ": flood - lost, "unet1 in lost_deliver_redirect": lost,
	}
	if lost == 0 || lost == flood || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v\nwant %v", got, want)
	}
}

// With --interface all endpoints are captured, each at its own device, and with --kernel also frames that no tag
// claims. A VLAN tag that the kernel has taken out of the frame is shown. Without -w there is a line for each packet.
func TestCaptureInterface(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	s.serve(t, "--mode", "tcx")
	_, one := s.open(t, ":7000")
	two, _ := s.open(t, ":7001")
	to := fmt.Sprintf("%v:7000", pair.A.Addr.Addr())
	client, err := two.DialContext(t.Context(), "udp", to)
	if err != nil {
		t.Fatal(err)
	}
	port := client.LocalAddr().(*net.UDPAddr).Port
	c := startCapture(t, s, nil, "--interface", pair.A.Interface, "-c", "4")
	exchange(t, client, one, []byte("hello"))
	if code, stderr := c.end(); code != 0 || stderr != "4 packets captured, 0 lost because the buffer was full\n" {
		t.Errorf("exit %d: %s", code, stderr)
	}
	there, back := fmt.Sprintf("IP 10.0.0.1.%d > 10.0.0.1.7000: UDP, length 5\n", port), fmt.Sprintf("IP 10.0.0.1.7000 > 10.0.0.1.%d: UDP, length 5\n", port)
	want := "unet2 Out " + there + "unet1 In  " + there + "unet1 Out " + back + "unet2 In  " + back
	if got := withoutTimes(c.stdout.String()); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}

	if err := pair.A.Ping(pair.B.IP()); err != nil { // so no ARP is in the capture
		t.Fatal(err)
	}
	c = startCapture(t, s, nil, "--interface", pair.A.Interface, "--kernel", "-c", "3")
	b := openPacketSocket(t, pair.B)
	b.send(udpFrame(pair.B, pair.A, 9, 7000, nil)) // an endpoint's
	b.send(udpFrame(pair.B, pair.A, 9, 7002, nil)) // the kernel's
	tagged := udpFrame(pair.B, pair.A, 9, 7003, nil)
	b.send(bytes.Join([][]byte{tagged[:12], {0x81, 0, 0, 100}, tagged[12:]}, nil))
	if code, stderr := c.end(); code != 0 {
		t.Errorf("exit %d: %s", code, stderr)
	}
	lines := strings.SplitAfter(withoutTimes(c.stdout.String()), "\n")
	slices.Sort(lines) // the frames may have been received by several processors
	want = "unet1 In  IP 10.0.0.2.9 > 10.0.0.1.7000: UDP, length 80\n" +
		"uplink In  IP 10.0.0.2.9 > 10.0.0.1.7002: UDP, length 80\n" +
		"uplink In  vlan 100, IP 10.0.0.2.9 > 10.0.0.1.7003: UDP, length 80\n"
	if got := strings.Join(lines, ""); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// withoutTimes is lines without their first word.
func withoutTimes(lines string) (rest string) {
	for line := range strings.Lines(lines) {
		_, line, _ = strings.Cut(line, " ")
		rest += line
	}
	return rest
}

// A capture of an endpoint on a queue has the frames that it receives, and those for which its socket has no room. A
// warning says that frames which it sends are not captured.
func TestCaptureOfQueueEndpoint(t *testing.T) {
	const flood = 200 // more than the receive queue has room for
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	s.serve(t, "--mode", "tcx")
	grant, lease, err := control.Open(t.Context(), s.socket, endpoint.Request{
		Attach:   endpoint.AttachQueue,
		Tags:     []endpoint.Tag{endpoint.UDPTag(netip.AddrPortFrom(pair.A.Addr.Addr(), 7000))},
		Geometry: smallGeometry(128),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Close()
	defer grant.Close()
	s.open(t, ":7001")
	file := filepath.Join(t.TempDir(), "a.pcapng")
	c := startCapture(t, s, nil, "1", "-w", file, "-c", fmt.Sprint(flood))
	b := openPacketSocket(t, pair.B)
	for range flood {
		b.send(udpFrame(pair.B, pair.A, 9, 7001, nil))
		b.send(udpFrame(pair.B, pair.A, 9, 7000, nil))
	}
	code, stderr := c.end()
	if code != 0 || !strings.HasPrefix(stderr, "warning: endpoint 1 is on a queue") {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	got := map[string]int{}
	for _, p := range tshark(t, file) {
		name, _, _ := strings.Cut(p.comment, ":")
		got[p.iface+" "+p.direction+" "+p.dport+" "+name]++
	}
	lost := got["uplink in 7000 lost_queue_redirect"]
	want := map[string]int{"uplink/0 in 7000 ": flood - lost, "uplink in 7000 lost_queue_redirect": lost}
	if lost == 0 || lost == flood || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v\nwant %v", got, want)
	}
}
