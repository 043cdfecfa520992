package bpf

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/xsk"
)

// Verdicts of an XDP program (enum xdp_action).
const (
	drop     = 1
	pass     = 2
	redirect = 4
)

// lab is the programs, loaded, on a host with two ports that are only names
// for an ifindex: BPF_PROG_TEST_RUN redirects nothing.
type lab struct {
	t            *testing.T
	objs         MuxObjects
	uplink, a, b int // ifindexes
	mac          net.HardwareAddr
}

const testMTU = 1500

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		var v *ebpf.VerifierError
		if errors.As(err, &v) {
			t.Fatalf("%+v", v)
		}
		t.Fatal(err)
	}
}

func openLab(t *testing.T, generic bool) *lab {
	t.Helper()
	must(t, rlimit.RemoveMemlock())
	uplink, err := netlink.LinkByName(netlab.Interface)
	must(t, err)
	l := &lab{t: t, uplink: uplink.Attrs().Index, mac: uplink.Attrs().HardwareAddr}
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "port0"}, PeerName: "port1"}))
	for i, ifindex := range []*int{&l.a, &l.b} {
		port, err := netlink.LinkByName(fmt.Sprintf("port%d", i))
		must(t, err)
		*ifindex = port.Attrs().Index
	}
	spec, err := LoadMux()
	must(t, err)
	must(t, spec.Variables["config"].Set(Config([6]byte(l.mac), l.uplink, 0, testMTU, generic)))
	must(t, spec.LoadAndAssign(&l.objs, nil))
	t.Cleanup(func() { l.objs.Close() })
	return l
}

// reach makes ifindex the only device a redirect can find, so that a frame on
// its way to any other is counted as one whose port is gone.
func (l *lab) reach(ifindex int) {
	l.t.Helper()
	for _, i := range []int{l.uplink, l.a, l.b} {
		if err := l.objs.Devices.Delete(uint32(i)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			l.t.Fatal(err)
		}
	}
	if ifindex != 0 {
		must(l.t, l.objs.Devices.Put(uint32(ifindex), uint32(ifindex)))
	}
}

func (l *lab) claim(tag MuxUnetTag, owner MuxUnetOwner) {
	l.t.Helper()
	must(l.t, l.objs.Tags.Put(tag, owner))
}

func (l *lab) port(ifindex int) MuxUnetOwner { return MuxUnetOwner{Port: uint32(ifindex)} }

func readCounters(t *testing.T, m *ebpf.Map) (c [NumCounters]uint64) {
	t.Helper()
	for i := range c {
		var perCPU []uint64
		must(t, m.Lookup(uint32(i), &perCPU))
		for _, v := range perCPU {
			c[i] += v
		}
	}
	return c
}

// xdpMD is struct xdp_md, linux/bpf.h.
type xdpMD struct {
	Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

// run runs p over frame, as if it came in at ifindex. linear, if not zero, is
// the number of bytes in the first buffer.
func run(p *ebpf.Program, frame []byte, ifindex, linear int) (verdict uint32, err error) {
	if linear == 0 {
		linear = len(frame)
	}
	return p.Run(&ebpf.RunOptions{
		Data:    frame,
		DataOut: make([]byte, len(frame)+256),
		Context: xdpMD{DataEnd: uint32(linear), IngressIfindex: uint32(ifindex)},
	})
}

// want checks a verdict and that exactly one counter moved, by one.
func (l *lab) want(name string, p *ebpf.Program, frame []byte, ifindex, linear int, verdict uint32, counter Counter) {
	l.t.Helper()
	before := readCounters(l.t, l.objs.Counters)
	got, err := run(p, frame, ifindex, linear)
	if err != nil {
		l.t.Errorf("%s: %v", name, err)
		return
	}
	if got != verdict {
		l.t.Errorf("%s: verdict %d, want %d", name, got, verdict)
	}
	after := readCounters(l.t, l.objs.Counters)
	for i := range after {
		moved := after[i] - before[i]
		if Counter(i) == counter && moved != 1 || Counter(i) != counter && moved != 0 {
			l.t.Errorf("%s: %s moved by %d, want %s to move by 1", name, CounterName(Counter(i)), moved, CounterName(counter))
		}
	}
}

// Who is who in the tables of frames.
var (
	shared  = netip.MustParseAddr("10.0.0.1") // the uplink's own address
	whole   = netip.MustParseAddr("10.0.0.77")
	peer    = netip.MustParseAddr("10.0.0.2")
	peerMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0x0b}
	bcast   = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
)

// build serializes layers with gopacket, which knows nothing of this project.
func build(ls ...gopacket.SerializableLayer) []byte {
	for i, l := range ls {
		if u, ok := l.(*layers.UDP); ok && i > 0 {
			if ip, ok := ls[i-1].(*layers.IPv4); ok {
				u.SetNetworkLayerForChecksum(ip)
			}
		}
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		panic(err)
	}
	return append([]byte(nil), buf.Bytes()...)
}

func eth(dst, src net.HardwareAddr, t layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{DstMAC: dst, SrcMAC: src, EthernetType: t}
}

func ip4(src, dst netip.Addr, p layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: p, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
}

func udp(src, dst uint16) *layers.UDP {
	return &layers.UDP{SrcPort: layers.UDPPort(src), DstPort: layers.UDPPort(dst)}
}

func datagram(dstMAC, srcMAC net.HardwareAddr, src, dst netip.AddrPort, n int) []byte {
	return build(eth(dstMAC, srcMAC, layers.EthernetTypeIPv4), ip4(src.Addr(), dst.Addr(), layers.IPProtocolUDP),
		udp(src.Port(), dst.Port()), gopacket.Payload(make([]byte, n)))
}

func arp(dstMAC, srcMAC, sender net.HardwareAddr, senderIP, target netip.Addr, op uint16) []byte {
	return build(eth(dstMAC, srcMAC, layers.EthernetTypeARP), &layers.ARP{
		AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: op,
		SourceHwAddress: sender, SourceProtAddress: senderIP.AsSlice(), DstHwAddress: make([]byte, 6), DstProtAddress: target.AsSlice(),
	})
}

// message is written out by hand, from docs/message-format.md.
func message(dstMAC, srcMAC net.HardwareAddr, dst, src byte, length, n int) []byte {
	h := []byte{1, 0, byte(length >> 8), byte(length), 0, 0, 0, dst, 0, 0, 0, src}
	return build(eth(dstMAC, srcMAC, 0x88b5), gopacket.Payload(append(h, make([]byte, n)...)))
}

// quote is an ICMP message that quotes packet.
func quote(dstMAC, srcMAC net.HardwareAddr, src, dst netip.Addr, t uint8, packet []byte) []byte {
	return build(eth(dstMAC, srcMAC, layers.EthernetTypeIPv4), ip4(src, dst, layers.IPProtocolICMPv4),
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(t, 0)}, gopacket.Payload(packet))
}

// edit changes one byte of a copy.
func edit(frame []byte, at int, v byte) []byte {
	f := append([]byte(nil), frame...)
	f[at] = v
	return f
}

// Offsets into a frame with a plain IPv4 header.
const (
	atVersionIHL  = 14
	atTotalLength = 16
	atFragment    = 20
	atProtocol    = 23
	atIP          = 14
	atUDPLength   = 38
)

func TestUplink(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	must(t, pair.A.Do(func() error { testUplink(t, true); return nil }))
	other := netlab.RequirePair(t, netlab.Config{})
	must(t, other.A.Do(func() error { testUplink(t, false); return nil }))
}

func testUplink(t *testing.T, generic bool) {
	l := openLab(t, generic)
	l.claim(UDPKey(shared.As4(), 7000), l.port(l.a))
	l.claim(AddrKey(whole.As4()), l.port(l.b))
	l.claim(UDPKey(whole.As4(), 9), l.port(l.a)) // more specific than the address
	l.claim(MessageKey(7), l.port(l.a))
	l.claim(UDPKey(shared.As4(), 7001), MuxUnetOwner{Queue: 0})
	l.claim(UDPKey(shared.As4(), 7002), MuxUnetOwner{Queue: 5})

	from := func(p uint16) netip.AddrPort { return netip.AddrPortFrom(peer, p) }
	to := func(a netip.Addr, p uint16) []byte {
		return datagram(l.mac, peerMAC, from(5000), netip.AddrPortFrom(a, p), 64)
	}
	hit := to(shared, 7000)
	opts := ip4(peer, shared, layers.IPProtocolUDP)
	opts.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
	optioned := build(eth(l.mac, peerMAC, layers.EthernetTypeIPv4), opts, udp(1, 7000), gopacket.Payload("hello"))
	vlan := build(eth(l.mac, peerMAC, layers.EthernetTypeDot1Q), &layers.Dot1Q{VLANIdentifier: 100, Type: layers.EthernetTypeIPv4},
		ip4(peer, shared, layers.IPProtocolUDP), udp(1, 7000), gopacket.Payload("hello"))
	sent := func(src netip.Addr, port uint16) []byte { // a packet of ours, as an ICMP error quotes it
		return datagram(peerMAC, l.mac, netip.AddrPortFrom(src, port), from(1), 64)[atIP:]
	}
	unreachable := func(to netip.Addr, packet []byte) []byte { return quote(l.mac, peerMAC, peer, to, 3, packet) }
	tcp := build(eth(l.mac, peerMAC, layers.EthernetTypeIPv4), ip4(peer, whole, layers.IPProtocolTCP), gopacket.Payload(make([]byte, 20)))

	const (
		Pass      = MuxUnetCounterUNET_RX_PASS
		Truncated = MuxUnetCounterUNET_RX_PASS_TRUNCATED
		Other     = MuxUnetCounterUNET_RX_PASS_OTHER_QUEUE
		Port      = MuxUnetCounterUNET_RX_PORT
		Queue     = MuxUnetCounterUNET_RX_QUEUE
		BadLength = MuxUnetCounterUNET_RX_BAD_LENGTH
		PortGone  = MuxUnetCounterUNET_RX_PORT_GONE
		QueueGone = MuxUnetCounterUNET_RX_QUEUE_GONE
	)
	for _, c := range []struct {
		name    string
		frame   []byte
		reach   int // the device that must be chosen
		verdict uint32
		counter Counter
	}{
		{"UDP hit", hit, l.a, redirect, Port},
		{"UDP hit behind IP options", optioned, l.a, redirect, Port},
		{"UDP hit with Ethernet padding", append(append([]byte(nil), hit...), 0, 0, 0), l.a, redirect, Port},
		{"UDP to a port nobody holds", to(shared, 53), l.a, pass, Pass},
		{"UDP to another address", to(peer, 7000), l.a, pass, Pass},
		{"UDP hit, port gone", hit, 0, drop, PortGone},
		{"UDP hit for another link address", datagram(peerMAC, peerMAC, from(1), netip.AddrPortFrom(shared, 7000), 64), l.a, pass, Pass},
		{"UDP hit by Ethernet broadcast", datagram(bcast, peerMAC, from(1), netip.AddrPortFrom(shared, 7000), 64), l.a, pass, Pass},
		{"whole address, UDP", to(whole, 1234), l.b, redirect, Port},
		{"whole address, TCP", tcp, l.b, redirect, Port},
		{"the exact tag before the whole address", to(whole, 9), l.a, redirect, Port},
		{"whole address, ping", quote(l.mac, peerMAC, peer, whole, 8, nil), l.b, redirect, Port},
		{"ping of the shared address", quote(l.mac, peerMAC, peer, shared, 8, nil), l.a, pass, Pass},
		{"802.1Q", vlan, l.a, pass, Pass},
		{"first fragment, UDP hit", edit(hit, atFragment, 0x20), l.a, pass, Pass},
		{"later fragment, UDP hit", edit(hit, atFragment+1, 1), l.a, pass, Pass},
		{"don't fragment is no fragment", edit(hit, atFragment, 0x40), l.a, redirect, Port},
		{"first fragment, whole address", edit(to(whole, 9), atFragment, 0x20), l.b, redirect, Port},
		{"later fragment, whole address", edit(to(whole, 9), atFragment+1, 1), l.b, redirect, Port},
		{"IP version 6 in an IPv4 frame", edit(hit, atVersionIHL, 0x65), l.a, pass, Pass},
		{"IHL of 4 words", edit(hit, atVersionIHL, 0x44), l.a, pass, Pass},
		{"IHL beyond the frame", edit(hit[:46], atVersionIHL, 0x4f), l.a, pass, Truncated},
		{"total length beyond the frame", edit(hit, atTotalLength, 1), l.a, drop, BadLength},
		{"total length less than the header's", edit(to(whole, 1), atTotalLength+1, 19), l.b, drop, BadLength},
		{"UDP length beyond the packet", edit(hit, atUDPLength, 1), l.a, drop, BadLength},
		{"UDP length less than the header's", edit(hit, atUDPLength+1, 7), l.a, drop, BadLength},
		{"the same, nobody's", edit(to(shared, 53), atUDPLength+1, 7), l.a, pass, Pass},
		{"the same, whole address: its owner judges", edit(to(whole, 1), atUDPLength+1, 7), l.b, redirect, Port},
		{"UDP header cut off", hit[:41], l.a, pass, Truncated},
		{"UDP header cut off, whole address", edit(edit(to(whole, 1)[:41], atTotalLength, 0), atTotalLength+1, 27), l.b, redirect, Port},
		{"IP header cut off", hit[:33], l.a, pass, Truncated},
		{"port unreachable for our datagram", unreachable(shared, sent(shared, 7000)), l.a, redirect, Port},
		{"the same, only 8 bytes quoted", unreachable(shared, sent(shared, 7000)[:28]), l.a, redirect, Port},
		{"the same, less than 8 bytes quoted", unreachable(shared, sent(shared, 7000)[:27]), l.a, pass, Pass},
		{"time exceeded", quote(l.mac, peerMAC, peer, shared, 11, sent(shared, 7000)), l.a, redirect, Port},
		{"parameter problem", quote(l.mac, peerMAC, peer, shared, 12, sent(shared, 7000)), l.a, redirect, Port},
		{"source quench", quote(l.mac, peerMAC, peer, shared, 4, sent(shared, 7000)), l.a, pass, Pass},
		{"echo that carries our datagram", quote(l.mac, peerMAC, peer, shared, 8, sent(shared, 7000)), l.a, pass, Pass},
		{"unreachable for the kernel's datagram", unreachable(shared, sent(shared, 53)), l.a, pass, Pass},
		{"unreachable that quotes a later fragment", unreachable(shared, edit(sent(shared, 7000), 7, 1)), l.a, pass, Pass},
		{"unreachable that quotes TCP", unreachable(shared, edit(sent(shared, 7000), 9, 6)), l.a, pass, Pass},
		{"unreachable that quotes another's address", unreachable(shared, sent(whole, 9)), l.a, pass, Pass},
		{"unreachable for the whole address", unreachable(whole, sent(whole, 5)), l.b, redirect, Port},
		{"unreachable for a more specific tag of it", unreachable(whole, sent(whole, 9)), l.a, redirect, Port},
		{"ARP request for the whole address", arp(bcast, peerMAC, peerMAC, peer, whole, 1), l.b, redirect, Port},
		{"ARP reply to the whole address", arp(l.mac, peerMAC, peerMAC, peer, whole, 2), l.b, redirect, Port},
		{"ARP request for the shared address", arp(bcast, peerMAC, peerMAC, peer, shared, 1), l.a, pass, Pass},
		{"ARP for the whole address to another host", arp(peerMAC, peerMAC, peerMAC, peer, whole, 2), l.b, pass, Pass},
		{"ARP that is not for IPv4", edit(arp(bcast, peerMAC, peerMAC, peer, whole, 1), 16, 1), l.b, pass, Pass},
		{"ARP cut off", arp(bcast, peerMAC, peerMAC, peer, whole, 1)[:41], l.b, pass, Truncated},
		{"message hit", message(l.mac, peerMAC, 7, 1, 64, 64), l.a, redirect, Port},
		{"message hit with padding", message(l.mac, peerMAC, 7, 1, 4, 64), l.a, redirect, Port},
		{"message for a tag nobody holds", message(l.mac, peerMAC, 8, 1, 64, 64), l.a, pass, Pass},
		{"message by broadcast", message(bcast, peerMAC, 7, 1, 64, 64), l.a, pass, Pass},
		{"message of another version", edit(message(l.mac, peerMAC, 7, 1, 64, 64), 14, 2), l.a, pass, Pass},
		{"message length beyond the frame", message(l.mac, peerMAC, 7, 1, 65, 64), l.a, drop, BadLength},
		{"message cut off", message(l.mac, peerMAC, 7, 1, 0, 0)[:25], l.a, pass, Truncated},
		{"IPv6", build(eth(l.mac, peerMAC, layers.EthernetTypeIPv6), gopacket.Payload(make([]byte, 40))), l.a, pass, Pass},
		{"only an Ethernet header", hit[:14], l.a, pass, Truncated},
		{"owner on another queue", to(shared, 7002), l.a, pass, Other},
		{"owner on this queue, socket gone", to(shared, 7001), l.a, drop, QueueGone},
	} {
		l.reach(c.reach)
		l.want(c.name, l.objs.UnetUplink, c.frame, l.uplink, 0, c.verdict, c.counter)
	}

	sock := openSocket(t, l.uplink)
	must(t, l.objs.Sockets.Put(uint32(0), uint32(sock.Fd())))
	l.want("owner on this queue", l.objs.UnetUplink, to(shared, 7001), l.uplink, 0, redirect, Queue)

	l.reach(l.a)
	long := datagram(l.mac, peerMAC, from(1), netip.AddrPortFrom(shared, 7000), 9000)
	short := edit(edit(long, atTotalLength, 0xff), atTotalLength+1, 0xff)
	if _, err := run(l.objs.UnetUplink, long, l.uplink, 100); err != nil {
		t.Logf("this kernel's test runs cannot choose the first buffer: %v", err)
		return
	}
	l.want("several buffers", l.objs.UnetUplink, long, l.uplink, 100, redirect, Port)
	l.want("several buffers, still too short", l.objs.UnetUplink, short, l.uplink, 100, drop, BadLength)
}

// openSocket binds an XSK to queue 0 of a device.
func openSocket(t *testing.T, ifindex int) *os.File {
	t.Helper()
	segment, err := xsk.NewSegment(64*2048, false)
	must(t, err)
	defer segment.Close()
	sock, err := xsk.Create(xsk.Params{Ifindex: ifindex, FrameSize: 2048, FrameCount: 64, FillSize: 32, CompletionSize: 32,
		RxSize: 32, TxSize: 32, Prefill: 32, Mode: xsk.ModeCopy, SG: true, NeedWakeup: true}, segment)
	must(t, err)
	t.Cleanup(func() { sock.Close() })
	return sock
}

func TestPort(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	must(t, pair.A.Do(func() error { testPort(t); return nil }))
}

func testPort(t *testing.T) {
	l := openLab(t, true)
	l.claim(UDPKey(shared.As4(), 7000), l.port(l.a)) // a: two ports, a message tag
	l.claim(UDPKey(shared.As4(), 7009), l.port(l.a))
	l.claim(MessageKey(7), l.port(l.a))
	l.claim(AddrKey(whole.As4()), l.port(l.b)) // b: a whole address, a message tag
	l.claim(MessageKey(8), l.port(l.b))
	l.claim(UDPKey(whole.As4(), 9), l.port(l.a)) // but this one is a's
	l.claim(UDPKey(shared.As4(), 7001), MuxUnetOwner{Queue: 0})

	nobody := netip.IPv4Unspecified()
	at := netip.AddrPortFrom
	out := func(src, dst netip.AddrPort) []byte { return datagram(peerMAC, l.mac, src, dst, 64) }
	local := func(src, dst netip.AddrPort) []byte { return datagram(l.mac, l.mac, src, dst, 64) }
	ping := func(src netip.Addr) []byte { return quote(peerMAC, l.mac, src, peer, 8, nil) }
	good := out(at(shared, 7000), at(peer, 1))
	mine := out(at(whole, 5), at(peer, 1))
	vlan := build(eth(peerMAC, l.mac, layers.EthernetTypeDot1Q), &layers.Dot1Q{VLANIdentifier: 100, Type: layers.EthernetTypeIPv4},
		ip4(shared, peer, layers.IPProtocolUDP), udp(7000, 7000), gopacket.Payload("hello"))
	sentByA := local(at(shared, 7000), at(whole, 5))[atIP:]

	const (
		Uplink     = MuxUnetCounterUNET_TX_UPLINK
		Local      = MuxUnetCounterUNET_TX_LOCAL
		Truncated  = MuxUnetCounterUNET_TX_TRUNCATED
		BadLength  = MuxUnetCounterUNET_TX_BAD_LENGTH
		BadHeader  = MuxUnetCounterUNET_TX_BAD_HEADER
		Oversize   = MuxUnetCounterUNET_TX_OVERSIZE
		BadType    = MuxUnetCounterUNET_TX_BAD_ETHERTYPE
		ForgedLink = MuxUnetCounterUNET_TX_FORGED_LINK
		ForgedAddr = MuxUnetCounterUNET_TX_FORGED_ADDR
		ForgedTag  = MuxUnetCounterUNET_TX_FORGED_TAG
		ForgedARP  = MuxUnetCounterUNET_TX_FORGED_ARP
		NoOwner    = MuxUnetCounterUNET_TX_NO_OWNER
		ToQueue    = MuxUnetCounterUNET_TX_TO_QUEUE
		PortGone   = MuxUnetCounterUNET_TX_PORT_GONE
		UplinkGone = MuxUnetCounterUNET_TX_UPLINK_GONE
	)
	for _, c := range []struct {
		name    string
		frame   []byte
		from    int
		reach   int // the device that must be chosen
		verdict uint32
		counter Counter
	}{
		{"UDP", good, l.a, l.uplink, redirect, Uplink},
		{"UDP, uplink gone", good, l.a, 0, drop, UplinkGone},
		{"UDP to broadcast", datagram(bcast, l.mac, at(shared, 7000), at(netip.MustParseAddr("10.0.0.255"), 1), 8), l.a, l.uplink, redirect, Uplink},
		{"UDP of another endpoint", good, l.b, l.uplink, drop, ForgedTag},
		{"UDP of a queue's endpoint", out(at(shared, 7001), at(peer, 1)), l.a, l.uplink, drop, ForgedTag},
		{"UDP of the kernel", out(at(shared, 53), at(peer, 1)), l.a, l.uplink, drop, ForgedAddr},
		{"UDP from another host's address", out(at(peer, 7000), at(peer, 1)), l.a, l.uplink, drop, ForgedAddr},
		{"UDP from the whole address", mine, l.b, l.uplink, redirect, Uplink},
		{"UDP from another's whole address", mine, l.a, l.uplink, drop, ForgedAddr},
		{"UDP from another's tag on the own whole address", out(at(whole, 9), at(peer, 1)), l.b, l.uplink, drop, ForgedTag},
		{"that tag's owner", out(at(whole, 9), at(peer, 1)), l.a, l.uplink, redirect, Uplink},
		{"source link address of somebody else", edit(good, 11, 0x99), l.a, l.uplink, drop, ForgedLink},
		{"source link address of broadcast", edit(good, 6, 0xff), l.a, l.uplink, drop, ForgedLink},
		{"first fragment of a UDP tag", edit(good, atFragment, 0x20), l.a, l.uplink, drop, ForgedAddr},
		{"later fragment of a UDP tag", edit(good, atFragment+1, 1), l.a, l.uplink, drop, ForgedAddr},
		{"fragment of the whole address", edit(mine, atFragment, 0x20), l.b, l.uplink, redirect, Uplink},
		{"TCP from a UDP tag's address", edit(good, atProtocol, 6), l.a, l.uplink, drop, ForgedAddr},
		{"TCP from the whole address", edit(mine, atProtocol, 6), l.b, l.uplink, redirect, Uplink},
		{"ping from a UDP tag's address", ping(shared), l.a, l.uplink, drop, ForgedAddr},
		{"ping from the whole address", ping(whole), l.b, l.uplink, redirect, Uplink},
		{"IP version 6 in an IPv4 frame", edit(good, atVersionIHL, 0x65), l.a, l.uplink, drop, BadHeader},
		{"IHL of 4 words", edit(good, atVersionIHL, 0x44), l.a, l.uplink, drop, BadHeader},
		{"IHL of 15 words, beyond the total length", edit(edit(good, atVersionIHL, 0x4f), atTotalLength+1, 59), l.a, l.uplink, drop, BadLength},
		{"total length beyond the frame", edit(good, atTotalLength, 1), l.a, l.uplink, drop, BadLength},
		{"UDP length beyond the packet", edit(good, atUDPLength, 1), l.a, l.uplink, drop, BadLength},
		{"UDP length less than its header's", edit(good, atUDPLength+1, 7), l.a, l.uplink, drop, BadLength},
		{"UDP header cut off", edit(good[:41], atTotalLength+1, 27), l.a, l.uplink, drop, Truncated},
		{"IP header cut off", good[:33], l.a, l.uplink, drop, Truncated},
		{"padded", append(append([]byte(nil), good...), 0, 0, 0), l.a, l.uplink, redirect, Uplink},
		{"as long as the uplink carries", datagram(peerMAC, l.mac, at(shared, 7000), at(peer, 1), testMTU-28), l.a, l.uplink, redirect, Uplink},
		{"a byte more", datagram(peerMAC, l.mac, at(shared, 7000), at(peer, 1), testMTU-27), l.a, l.uplink, drop, Oversize},
		{"as long, behind a short packet", append(append([]byte(nil), good...), make([]byte, testMTU)...), l.a, l.uplink, drop, Oversize},
		{"802.1Q", vlan, l.a, l.uplink, drop, BadType},
		{"IPv6", build(eth(peerMAC, l.mac, layers.EthernetTypeIPv6), gopacket.Payload(make([]byte, 40))), l.a, l.uplink, drop, BadType},
		{"only an Ethernet header", good[:14], l.a, l.uplink, drop, Truncated},

		{"ARP request of the whole address", arp(bcast, l.mac, l.mac, whole, peer, 1), l.b, l.uplink, redirect, Uplink},
		{"ARP reply of the whole address", arp(peerMAC, l.mac, l.mac, whole, peer, 2), l.b, l.uplink, redirect, Uplink},
		{"its announcement", arp(bcast, l.mac, l.mac, whole, whole, 1), l.b, l.uplink, redirect, Uplink},
		{"a probe for it", arp(bcast, l.mac, l.mac, nobody, whole, 1), l.b, l.uplink, redirect, Uplink},
		{"a probe for another's whole address", arp(bcast, l.mac, l.mac, nobody, whole, 1), l.a, l.uplink, drop, ForgedARP},
		{"a probe for a foreign address", arp(bcast, l.mac, l.mac, nobody, peer, 1), l.b, l.uplink, drop, ForgedARP},
		{"a probe that names another link address", arp(bcast, l.mac, peerMAC, nobody, whole, 1), l.b, l.uplink, drop, ForgedARP},
		{"a reply without a sender", arp(peerMAC, l.mac, l.mac, nobody, whole, 2), l.b, l.uplink, drop, ForgedARP},
		{"ARP for another's whole address", arp(bcast, l.mac, l.mac, whole, peer, 1), l.a, l.uplink, drop, ForgedARP},
		{"ARP for the shared address", arp(bcast, l.mac, l.mac, shared, peer, 1), l.a, l.uplink, drop, ForgedARP},
		{"ARP for a foreign address", arp(bcast, l.mac, l.mac, peer, peer, 1), l.b, l.uplink, drop, ForgedARP},
		{"ARP that names another link address", arp(bcast, l.mac, peerMAC, whole, peer, 1), l.b, l.uplink, drop, ForgedARP},
		{"ARP that is not for IPv4", edit(arp(bcast, l.mac, l.mac, whole, peer, 1), 18, 8), l.b, l.uplink, drop, BadHeader},
		{"ARP cut off", arp(bcast, l.mac, l.mac, whole, peer, 1)[:41], l.b, l.uplink, drop, Truncated},

		{"message", message(peerMAC, l.mac, 1, 7, 64, 64), l.a, l.uplink, redirect, Uplink},
		{"message under another's tag", message(peerMAC, l.mac, 1, 7, 64, 64), l.b, l.uplink, drop, ForgedTag},
		{"message under nobody's tag", message(peerMAC, l.mac, 1, 9, 64, 64), l.a, l.uplink, drop, ForgedTag},
		{"message of another version", edit(message(peerMAC, l.mac, 1, 7, 64, 64), 14, 2), l.a, l.uplink, drop, BadHeader},
		{"message length beyond the frame", message(peerMAC, l.mac, 1, 7, 65, 64), l.a, l.uplink, drop, BadLength},
		{"message cut off", message(peerMAC, l.mac, 1, 7, 0, 0)[:25], l.a, l.uplink, drop, Truncated},

		{"local UDP", local(at(shared, 7000), at(whole, 5)), l.a, l.b, redirect, Local},
		{"local UDP to itself", local(at(shared, 7000), at(shared, 7009)), l.a, l.a, redirect, Local},
		{"local UDP, port gone", local(at(shared, 7000), at(whole, 5)), l.a, 0, drop, PortGone},
		{"local UDP to nobody", local(at(shared, 7000), at(shared, 53)), l.a, l.a, drop, NoOwner},
		{"local UDP to a queue's endpoint", local(at(shared, 7000), at(shared, 7001)), l.a, l.a, drop, ToQueue},
		{"local UDP, forged", local(at(shared, 7000), at(whole, 5)), l.b, l.b, drop, ForgedTag},
		{"local message", message(l.mac, l.mac, 8, 7, 64, 64), l.a, l.b, redirect, Local},
		{"local message to nobody", message(l.mac, l.mac, 9, 7, 64, 64), l.a, l.b, drop, NoOwner},
		{"local unreachable", quote(l.mac, l.mac, whole, shared, 3, sentByA), l.b, l.a, redirect, Local},
		{"local ARP reply", arp(l.mac, l.mac, l.mac, whole, whole, 2), l.b, l.b, redirect, Local},
	} {
		l.reach(c.reach)
		l.want(c.name, l.objs.UnetPort, c.frame, c.from, 0, c.verdict, c.counter)
	}

	other := netip.MustParseAddr("10.0.0.78") // a second whole address on the host
	l.claim(AddrKey(other.As4()), l.port(l.a))
	l.reach(l.a)
	l.want("ARP request for a local whole address", l.objs.UnetPort, arp(bcast, l.mac, l.mac, whole, other, 1), l.b, 0, redirect, Local)

	l.reach(l.uplink)
	long := datagram(peerMAC, l.mac, at(shared, 7000), at(peer, 1), 1000)
	if _, err := run(l.objs.UnetPort, long, l.a, 100); err != nil {
		t.Logf("this kernel's test runs cannot choose the first buffer: %v", err)
		return
	}
	l.want("several buffers", l.objs.UnetPort, long, l.a, 100, redirect, Uplink)
	l.want("headers in the second buffer", l.objs.UnetPort, long, l.a, 30, drop, Truncated)
	hidden := append(append([]byte(nil), good...), make([]byte, 2000)...)
	l.want("oversize in the second buffer", l.objs.UnetPort, hidden, l.a, len(good), drop, Oversize)
}

func TestDeliver(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	must(t, pair.A.Do(func() error {
		for _, generic := range []bool{false, true} {
			testDeliver(t, generic)
		}
		return nil
	}))
}

func testDeliver(t *testing.T, generic bool) {
	must(t, rlimit.RemoveMemlock())
	spec, err := LoadDeliver()
	must(t, err)
	must(t, spec.Variables["deliver_generic"].Set(generic))
	var objs DeliverObjects
	must(t, spec.LoadAndAssign(&objs, nil))
	t.Cleanup(func() { objs.Close() })
	l := &lab{t: t}
	l.objs.Counters = objs.Counters
	uplink, err := netlink.LinkByName(netlab.Interface)
	must(t, err)
	ifindex := uplink.Attrs().Index
	frame := datagram(peerMAC, peerMAC, netip.AddrPortFrom(peer, 1), netip.AddrPortFrom(shared, 1), 64)
	l.want("no socket", objs.UnetDeliver, frame, ifindex, 0, drop, MuxUnetCounterUNET_DELIVER_NO_SOCKET)
	sock := openSocket(t, ifindex)
	must(t, objs.Socket.Put(uint32(0), uint32(sock.Fd())))
	l.want("socket", objs.UnetDeliver, frame, ifindex, 0, redirect, MuxUnetCounterUNET_DELIVER_SOCKET)
	must(t, sock.Close())
}
