//go:build linux

package bpf

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/internal/frametest"
)

// completeFrames are correct frames without padding, one with each stack of headers, that an endpoint sends or
// receives.
func completeFrames(dst, src net.HardwareAddr, sent bool) map[string][]byte {
	end := func(ours, theirs netip.Addr, port uint16) (from, to netip.AddrPort) {
		if sent {
			return netip.AddrPortFrom(ours, port), netip.AddrPortFrom(theirs, 4000)
		}
		return netip.AddrPortFrom(theirs, 4000), netip.AddrPortFrom(ours, port)
	}
	frames := map[string][]byte{"message": message(dst, src, 8, 8, 40, 40)}
	for _, v := range []struct {
		name                string
		shared, owned, peer netip.Addr
	}{{"IPv4", shared, owned, peer}, {"IPv6", shared6, owned6, peer6}} {
		from, to := end(v.shared, v.peer, 7000)
		frames[v.name+" UDP"] = datagram(dst, src, from, to, 30)
		from, to = end(v.shared, v.peer, 32769)
		frames[v.name+" TCP"] = segment(dst, src, from, to, 30)
		from, to = end(v.owned, v.peer, 80)
		frames[v.name+" TCP of an owned address"] = segment(dst, src, from, to, 30)
		quoted := datagram(src, dst, to, from, 30)[atIP:]
		frames[v.name+" error"] = quote(dst, src, from.Addr(), to.Addr(), 3, quoted)
		if v.name == "IPv6" {
			frames["IPv6 fragment"] = fragment6(datagram(dst, src, from, to, 30), 0, 32, true)
			frames["IPv6 solicitation"] = nd(dst, src, from.Addr(), to.Addr(), 135, solicits(to.Addr(), linkOption(layers.ICMPv6OptSourceAddress, src)))
			frames["IPv6 advertisement"] = nd(dst, src, from.Addr(), to.Addr(), 136, advertises(from.Addr(), 0x60, linkOption(layers.ICMPv6OptTargetAddress, src)))
			continue
		}
		frames["IPv4 fragment"] = fragment4(datagram(dst, src, from, to, 30), 0, 32, true)
		frames["ARP"] = arp(dst, src, src, from.Addr(), to.Addr(), 2)[:42] // without gopacket's padding
		options := ip4(from.Addr(), to.Addr(), layers.IPProtocolTCP)
		options.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
		frames["IPv4 options"] = frametest.Build(eth(dst, src, layers.EthernetTypeIPv4), options, tcp(from.Port(), to.Port()), gopacket.Payload("hello"))
	}
	return frames
}

// A frame truncated at any byte is passed to the kernel or dropped by the uplink program, and dropped by
// the port program. A complete frame whose headers are not all in the first buffer is handled as the
// complete one or as truncated.
func TestTruncatedFrames(t *testing.T) {
	inLab(t, true, func(l *lab) {
		for _, port := range []struct {
			kind  TagKind
			first uint16
		}{{TagUDP, 7000}, {TagTCPBlock, 32768}} {
			l.claim(Key(port.kind, shared.As4(), port.first), l.port(l.a))
			l.claim6(Key6(port.kind, shared6.As16(), port.first), l.port(l.a))
		}
		l.claim(Key(TagAddr, owned.As4(), 0), l.port(l.a))
		l.claim6(Key6(TagAddr, owned6.As16(), 0), l.port(l.a))
		l.claim(MessageKey(8), l.port(l.a))
		l.reach(l.uplink, l.a, l.b)
		for name, f := range completeFrames(l.mac, peerMAC, false) {
			l.want(name, l.objs.UnetUplink, f, l.uplink, 0, rxPort)
			for n := 14; n < len(f); n++ {
				l.wantOneOf(fmt.Sprintf("%s, %d bytes of it", name, n), l.objs.UnetUplink, f[:n], l.uplink, 0, rxTruncated, rxBadLength, rxPass)
				l.wantOneOf(fmt.Sprintf("%s, %d bytes of it in the first buffer", name, n), l.objs.UnetUplink, f, l.uplink, n, rxPort, rxTruncated, rxPass)
			}
		}
		for name, f := range completeFrames(peerMAC, l.mac, true) {
			l.want(name+" sent", l.objs.UnetPort, f, l.a, 0, txUplink)
			for n := 14; n < len(f); n++ {
				l.wantOneOf(fmt.Sprintf("%s sent, %d bytes of it", name, n), l.objs.UnetPort, f[:n], l.a, 0, txTruncated, txBadLength)
				l.wantOneOf(fmt.Sprintf("%s sent, %d bytes of it in the first buffer", name, n), l.objs.UnetPort, f, l.a, n, txUplink, txTruncated)
			}
		}
	})
}

// wantOneOf checks that the counter of a frame is one of several.
func (l *lab) wantOneOf(name string, p *ebpf.Program, frame []byte, ifindex, linear int, counters ...Counter) {
	l.t.Helper()
	got, err := l.counted(func() (uint32, error) { return run(p, frame, ifindex, linear) })
	if err != nil {
		l.t.Errorf("%s: %v", name, err)
	} else if !slices.Contains(counters, got) {
		l.t.Errorf("%s: %s, want one of %v", name, CounterName(got), names(counters))
	}
}
