//go:build linux

package bpf

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/internal/frametest"
)

// randomFrames is the number of frames of each property test.
const randomFrames = 20000

// The seed is fixed, so that a failure can be repeated.
func random() *rand.Rand { return rand.New(rand.NewPCG(1995, 12)) }

// claimForModel gives endpoints a and b tags of each kind, next to one another, and returns the model's table of them.
func (l *lab) claimForModel() *tagTable {
	b := newTagTable(l.mac)
	b.infrastructure[holder(l.a)] = true
	owner := func(w int) Owner {
		o := l.port(w)
		if b.infrastructure[holder(w)] {
			o.Queue = Infrastructure
		}
		return o
	}
	addr := func(a netip.Addr, kind TagKind, port uint16, w int) {
		if a.Is4() {
			l.claim(Key(kind, a.As4(), port), owner(w))
		} else {
			l.claim6(Key6(kind, a.As16(), port), owner(w))
		}
		at := netip.AddrPortFrom(a, port)
		switch kind {
		case TagAddr:
			b.owned[a] = holder(w)
		case TagUDP, TagTCP:
			b.ports[portTag{kind == TagTCP, at}] = holder(w)
		default:
			b.blocks[portTag{kind == TagTCPBlock, at}] = holder(w)
		}
	}
	for _, own := range []struct{ shared, owned, owned2 netip.Addr }{
		{shared, owned, netip.MustParseAddr("10.0.0.78")},
		{shared6, owned6, netip.MustParseAddr("fd00::aa:78")},
	} {
		addr(own.shared, TagUDP, 7000, l.a)
		addr(own.shared, TagTCP, 7000, l.b)
		addr(own.shared, TagUDP, 4791, l.a)
		addr(own.shared, TagUDPBlock, 128, l.b)
		addr(own.shared, TagTCPBlock, 128, l.a)
		addr(own.owned, TagAddr, 0, l.b)
		addr(own.owned, TagUDP, 9, l.a)
		addr(own.owned, TagTCPBlock, 128, l.a)
		addr(own.owned, TagTCP, 130, l.b)
		addr(own.owned2, TagAddr, 0, l.a)
	}
	for tag, w := range map[uint32]int{7: l.a, 8: l.b} {
		l.claim(MessageKey(tag), owner(w))
		b.message[tag] = holder(w)
	}
	return b
}

// pick is a random element.
func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// frame makes a frame of a random kind, mostly correct, between the addresses and ports of claimForModel.
func (l *lab) frame(r *rand.Rand) []byte {
	six := r.IntN(2) == 0
	addr := func() netip.Addr {
		if six {
			return pick(r, shared6, owned6, netip.MustParseAddr("fd00::aa:78"), peer6)
		}
		return pick(r, shared, owned, netip.MustParseAddr("10.0.0.78"), peer)
	}
	port := func() uint16 {
		return pick[uint16](r, 7000, 128, 130, 191, 192, 9, 53, 4791, pick[uint16](r, 67, 68, 520, 521, 546, 547))
	}
	mac := func() net.HardwareAddr {
		return pick(r, l.mac, l.mac, l.mac, l.mac, l.mac, l.mac, peerMAC, bcast, partMAC(l.a, 0), partMAC(l.b, 7))
	}
	src := l.mac
	if r.IntN(16) == 0 {
		src = peerMAC
	}
	payload := make([]byte, r.IntN(64))

	ip := func(dst net.HardwareAddr, from, to netip.Addr) []byte {
		if r.IntN(8) == 0 { // mostly to the group's MAC address
			to = pick(r, group4, subnetBroadcast)
			if six {
				to = nodes6
			}
			if r.IntN(4) != 0 {
				dst = groupMAC(to)
			}
		}
		f := datagram(dst, src, netip.AddrPortFrom(from, port()), netip.AddrPortFrom(to, port()), len(payload))
		if r.IntN(2) == 0 {
			f = segment(dst, src, netip.AddrPortFrom(from, port()), netip.AddrPortFrom(to, port()), len(payload))
		}
		if r.IntN(6) != 0 {
			return f
		}
		offset := pick(r, 0, 0, 8, 16)
		if six {
			return fragment6(f, offset, pick(r, 8, 24, 200), r.IntN(2) == 0)
		}
		return fragment4(f, offset, pick(r, 8, 24, 200), r.IntN(2) == 0)
	}
	from, to := addr(), addr()
	if r.IntN(16) == 0 {
		from = pick(r, append(martian4, elsewhere)...)
		if six {
			from = pick(r, append(martian6, elsewhere6, nobody6)...)
		}
	}
	switch r.IntN(10) {
	case 0, 1, 2, 3:
		return ip(mac(), from, to)
	case 4: // possibly an error about a packet of an endpoint
		quoted := ip(peerMAC, pick(r, to, to, addr()), pick(r, from, from, addr()))[atIP:]
		t := pick[uint8](r, 3, 11, 12, 8, 3, 11, 12, 8, 4, 5, 9, 10, 0, 13, 17)
		if six {
			t = pick[uint8](r, 1, 2, 3, 4, 128, 1, 2, 3, 4, 128, 0, 100, 127, 129, 130, 143)
		}
		f := quote(mac(), src, from, to, t, quoted[:min(len(quoted), pick(r, 19, 20, 27, 28, 39, 40, 47, 48, 200))])
		switch {
		case r.IntN(8) != 0:
			return f
		case six:
			return fragment6(f, 0, pick(r, 8, 48, 200), r.IntN(2) == 0)
		}
		return fragment4(f, 0, pick(r, 8, 32, 200), r.IntN(2) == 0)
	case 5, 6:
		if !six {
			return arp(mac(), src, pick(r, l.mac, l.mac, peerMAC), pick(r, from, from, netip.IPv4Unspecified()), to, pick[uint16](r, 1, 2))
		}
		return l.discovery(r, mac(), src, pick(r, from, from, nobody6), to, addr())
	case 7:
		return message(mac(), src, byte(6+r.IntN(4)), byte(6+r.IntN(4)), pick(r, len(payload), len(payload), len(payload)+r.IntN(60)), len(payload))
	case 8:
		f := ip(mac(), from, to)
		for range pick(r, 1, 1, 1, 2) {
			f = tagged(f, pick(r, layers.EthernetTypeDot1Q, layers.EthernetTypeQinQ), pick[uint16](r, 0, 0, 0, 100), byte(r.IntN(16)))
		}
		return f
	}
	if six {
		f := ip(mac(), from, to)
		for range 1 + r.IntN(3) {
			f = extended6(f, pick[byte](r, 0, 43, 44, 51, 60, 135))
			if r.IntN(4) == 0 {
				f = fragment6(f, pick(r, 0, 0, 8), pick(r, 8, 24, 200), r.IntN(2) == 0)
			}
			if r.IntN(2) == 0 && f[atNextHeader] == 43 {
				f[atIPv6Payload+3] = 0 // segments left
			}
		}
		return f
	}
	opts := ip4(from, to, layers.IPProtocolUDP)
	opts.Options = []layers.IPv4Option{{OptionType: 131, OptionLength: 7, OptionData: []byte{4, 10, 0, 0, 9}}, {OptionType: 0}}
	if r.IntN(2) == 0 {
		opts.Protocol = pick(r, layers.IPProtocolIGMP, layers.IPProtocolVRRP, layers.IPProtocolOSPF, layers.IPProtocolGRE)
	}
	return frametest.Build(eth(mac(), src, layers.EthernetTypeIPv4), opts, udp(port(), port()), gopacket.Payload(payload))
}

// discovery is a neighbour discovery message, allowed for a host or not.
func (l *lab) discovery(r *rand.Rand, dst, src net.HardwareAddr, from, to, target netip.Addr) []byte {
	if group, link := solicitedNode(target); r.IntN(2) == 0 {
		to, dst = group, link
	}
	option := linkOption(pick(r, layers.ICMPv6OptSourceAddress, layers.ICMPv6OptTargetAddress), pick(r, l.mac, l.mac, peerMAC))
	if r.IntN(3) == 0 {
		option = nil
	}
	var f []byte
	switch r.IntN(5) {
	case 0, 1:
		f = nd(dst, src, from, to, 135, solicits(target, option))
	case 2, 3:
		f = nd(dst, src, from, to, 136, advertises(pick(r, from, target), pick[uint8](r, 0x60, 0x60, 0xe0), option))
	default:
		f = nd(dst, src, from, to, pick[uint8](r, 133, 134, 137), solicits(target, option))
	}
	if r.IntN(6) == 0 {
		return fragment6(f, 0, pick(r, 8, 200), r.IntN(2) == 0)
	}
	return f
}

// damage changes some of a frame's bytes, mostly in the headers.
func damage(r *rand.Rand, f []byte) []byte {
	f = slices.Clone(f)
	for range r.IntN(3) {
		at := r.IntN(min(len(f), 100))
		switch r.IntN(4) {
		case 0:
			f[at] = byte(r.Uint32())
		case 1:
			f[at] ^= 1 << r.IntN(8)
		case 2:
			f[at] += byte(r.IntN(3)) - 1
		case 3:
			f[at] = pick[byte](r, 0, 6, 17, 44, 58, 60, 64, 128, 135, 136, 255)
		}
	}
	switch r.IntN(6) {
	case 0:
		if n := 14 + r.IntN(len(f)-13); n < len(f) {
			f = f[:n]
		}
	case 1:
		f = padded(f, r.IntN(40))
	}
	return f
}

// The uplink program and the model find the same owner of a frame.
func TestUplinkAgainstModel(t *testing.T) {
	inLab(t, true, func(l *lab) {
		b, r := l.claimForModel(), random()
		for i := range randomFrames {
			f := damage(r, l.frame(r))
			owner, counter := b.receives(f)
			if owner == noHolder {
				l.reach(l.uplink, l.a, l.b)
			} else {
				l.reach(int(owner)) // to another, it would count as rx_pass_port_gone
			}
			l.wantUplink(named(i, f), f, counter)
			if t.Failed() {
				return
			}
		}
		for _, c := range []Counter{rxPass, rxTruncated, rxVLAN, rxPort, rxBadLength, rxStalePart, rxFragment, rxExtension, rxTaggedTwice, rxMartian} {
			l.wantAll(c, c)
		}
	})
}

// The port program allows frames without an error in the model, and counts one of the errors of each
// other frame. Frames to this host go to the owner that the uplink program finds.
func TestPortAgainstModel(t *testing.T) {
	inLab(t, true, func(l *lab) {
		b, r := l.claimForModel(), random()
		for i := range randomFrames {
			f, from := damage(r, l.frame(r)), pick(r, l.a, l.b)
			wrong := b.errorsOf(holder(from), f)
			if len(wrong) == 0 {
				l.wantSentOn(named(i, f), b, f, from)
			} else if got, err := l.counted(func() (uint32, error) { return run(l.objs.UnetPort, f, from, 0) }); err != nil {
				t.Errorf("%s: %v", named(i, f), err)
			} else if !slices.Contains(wrong, got) {
				t.Errorf("%s from %d: %s, want one of %v", named(i, f), from, CounterName(got), names(wrong))
			}
			if t.Failed() {
				return
			}
		}
		for _, c := range []Counter{txUplink, txLocal, txNoOwner} {
			l.wantAll(c, c)
		}
		l.wantAll(txTruncated, txBadHeader)
		l.wantAll(txBadType, txForgedQuote)
		l.wantAll(txInfrastructure, txInfrastructure)
	})
}

// wantSentOn checks the destination of an allowed frame.
func (l *lab) wantSentOn(name string, b *tagTable, f []byte, from int) {
	l.t.Helper()
	ours := net.HardwareAddr(f[:6]).String() == l.mac.String()
	owner, _ := b.receivesWhole(f, ours)
	switch {
	case ours && owner == noHolder:
		l.reach(l.uplink, l.a, l.b)
		l.want(name, l.objs.UnetPort, f, from, 0, txNoOwner)
	case ours || owner != noHolder && owner != holder(from):
		l.reach(int(owner))
		l.want(name, l.objs.UnetPort, f, from, 0, txLocal)
	default:
		l.reach(l.uplink)
		l.want(name, l.objs.UnetPort, f, from, 0, txUplink)
	}
}

// named is the name of a random frame in errors.
func named(i int, f []byte) string { return fmt.Sprintf("frame %d, %s", i, hex.EncodeToString(f)) }

// names are the names of counters.
func names(list []Counter) (text []string) {
	for _, c := range list {
		text = append(text, CounterName(c))
	}
	return text
}
