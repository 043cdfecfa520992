//go:build linux

package attack

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

// The receivers of TestTenMillionFrames.
const (
	localPort, remotePort, sinkPort = 7500, 7600, 7700
	localTag, remoteTag             = 0xd0000001, 0xd0000101
)

// framesNetwork is the network of TestTenMillionFrames: unetd on both hosts, an endpoint on each, a
// kernel socket on host B, and the attacker's port.
type framesNetwork struct {
	*world
	remote *unetd.Daemon // on host B

	samples   []sample
	counts    map[string]*sampleCounts
	collector *collector
	sink      *net.UDPConn

	attacker *attacker
	port     string // outer end of the attacker's port
}

func newFramesNetwork(t testing.TB) *framesNetwork {
	t.Helper()
	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	f := &framesNetwork{
		world:   &world{pair: pair, capture: startCapture(t, pair.B, true), unetd: unetd.Serve(t, pair.A, unetd.Options{Policy: policy})},
		remote:  unetd.Serve(t, pair.B, unetd.Options{}),
		samples: samples(localPort, remotePort, sinkPort, localTag, remoteTag),
		counts:  map[string]*sampleCounts{"local": {}, "remote": {}, "kernel": {}},
	}
	f.kernel = startKernelTraffic(t, pair)
	for _, s := range f.samples {
		if s.To != "" {
			f.counts[s.To].samples = append(f.counts[s.To].samples, s)
		}
	}
	receiver := func(d *unetd.Daemon, addr, addr6 netip.Addr, port uint16, tags ...endpoint.Tag) *datapath.Endpoint {
		return attach(t, d.Socket, endpoint.Request{
			Geometry: endpoint.Geometry{FrameCount: 1 << 15, FillSize: 1 << 14, RxSize: 1 << 14},
			Tags:     append(tags, endpoint.UDPTag(netip.AddrPortFrom(addr, port)), endpoint.UDPTag(netip.AddrPortFrom(addr6, port))),
		})
	}
	neighbours := endpoint.UDPTag(netip.AddrPortFrom(hostA, neighbourPort)) // a holder has to exist
	f.collector = collect(t,
		[]*datapath.Endpoint{receiver(f.unetd, hostA, hostA6, localPort, endpoint.MessageTag(localTag), neighbours), receiver(f.remote, hostB, hostB6, remotePort, endpoint.MessageTag(remoteTag))},
		[]*sampleCounts{f.counts["local"], f.counts["remote"]})
	f.sink = openSink(t, pair.B, netip.AddrPortFrom(hostB, sinkPort), f.counts["kernel"])

	a := startAgent(t, pair.A, attackerID)
	f.attacker = &attacker{a, openEndpoint.do(t, a, openArg{f.unetd.Socket, tagged(attackerTags()...)})}
	for _, e := range list(t, f.unetd) {
		if e.ID == f.attacker.ID {
			f.port = e.Device
		}
	}
	return f
}

// counterReading is all that counts frames.
type counterReading struct {
	a, b   map[string]uint64 // of the muxes
	port   uint64            // dropped by the attacker's port before the mux saw them
	uplink uint64            // dropped by host B's uplink before its mux saw them
	sink   uint64            // dropped by the kernel socket
}

func (f *framesNetwork) read(t testing.TB) counterReading {
	t.Helper()
	drops, err := sinkDrops(f.sink)
	if err != nil {
		t.Fatal(err)
	}
	return counterReading{countersOf(t, f.unetd), countersOf(t, f.remote),
		deviceDrops(t, f.pair.A, f.port), deviceDrops(t, f.pair.B, f.pair.B.Interface), drops}
}

func (r counterReading) since(before counterReading) counterReading {
	return counterReading{since(before.a, r.a), since(before.b, r.b), r.port - before.port, r.uplink - before.uplink, r.sink - before.sink}
}

// transmitted is the sum of all counters of the attacker's frames, and a text with its
// parts.
func (r counterReading) transmitted() (sum uint64, parts string) {
	some := map[string]int{}
	for name, n := range r.a {
		if strings.HasPrefix(name, "tx_") {
			sum += n
			some[name] = int(n)
		}
	}
	return sum, countsText(some)
}

// TestTenMillionFrames has an attacker send permitted and forged frames, mixed at random,
// as fast as it can. Each frame is counted once, by the counter of its kind. Each permitted frame
// reaches its receiver or is counted as lost. No forged frame is delivered.
func TestTenMillionFrames(t *testing.T) {
	const seed = 20261121
	frames := lengthOf(10_000_000, 200_000, 50_000)
	row := results.add(t, fmt.Sprintf("%d frames", frames), "permitted and forged ones, mixed at random, at full speed; every one accounted for")

	f := newFramesNetwork(t)
	countsBefore, before, begin := f.snapshot(t), f.read(t), time.Now()
	result := sendMix.do(t, f.attacker.agentProcess, mixArg{f.attacker.Endpoint, frames, seed, f.samples})
	took := time.Since(begin)
	counted, to := map[string]uint64{}, map[string]uint64{} // what was sent
	for i, s := range f.samples {
		counted[s.Want] += result.Sent[i]
		to[s.To] += result.Sent[i]
	}
	if result.Result.Frames != uint64(frames) || result.Result.Errno != "" || result.Result.Refused != 0 {
		t.Fatalf("%+v", result.Result)
	}

	var r counterReading
	if !testutil.Until(func() bool {
		r = f.read(t).since(before)
		sum, _ := r.transmitted()
		return sum+r.port >= uint64(frames)
	}) {
		t.Error("the counters show fewer frames than were sent")
	}
	f.collector.end() // all frames have arrived: the sender's system calls do the receive work
	// Datagrams to the kernel still wait for its threads, and then for the reader of the
	// socket. Whether all have come is judged below.
	testutil.Until(func() bool {
		r = f.read(t).since(before)
		got, _ := f.counts["kernel"].snapshot()
		return got+r.sink+r.port+r.uplink >= to["kernel"]
	})

	// Each frame once, by the counter of its kind.
	sum, parts := r.transmitted()
	row.note("%d in %s, %.2f million a second, seed %d", frames, rounded(took), float64(frames)/1e6/took.Seconds(), seed)
	row.note("the counters add up to %d: %s", sum, parts)
	if sum+r.port != uint64(frames) {
		t.Errorf("the counters add up to %d, the port dropped %d: want %d", sum, r.port, frames)
	}
	for name, n := range r.a {
		if missing := counted[name] - n; strings.HasPrefix(name, "tx_") && missing != 0 && (r.port == 0 || missing > r.port) {
			t.Errorf("%s: %d, of which %d were sent", name, n, counted[name])
		}
	}
	// To the right receiver, and to no other.
	lost := map[string]uint64{
		"local":  r.a["lost_deliver_redirect"] + r.a["lost_deliver_backlog"] + r.a["lost_local_redirect"],
		"remote": r.b["lost_deliver_redirect"] + r.b["lost_deliver_backlog"] + r.b["lost_uplink_redirect"],
		"kernel": r.sink,
	}
	for _, name := range slices.Sorted(maps.Keys(f.counts)) {
		got, wrong := f.counts[name].snapshot()
		row.note("%s receiver: %d sent to it, %d received, %d lost in its queues", name, to[name], got, lost[name])
		for _, w := range wrong {
			t.Errorf("%s receiver: %s", name, w)
		}
		if missing := to[name] - got - lost[name]; missing != 0 && missing > r.port+r.uplink {
			t.Errorf("%s receiver: %d sent, %d received, %d lost", name, to[name], got, lost[name])
		}
	}
	if r.port+r.uplink != 0 {
		row.note("%d dropped by the attacker's port and %d by host B's uplink, before a mux saw them", r.port, r.uplink)
	}
	f.unharmed(t, row, countsBefore)
}

// deviceDrops is how many received frames a device of a host has dropped.
func deviceDrops(t testing.TB, h *netlab.Host, device string) uint64 {
	t.Helper()
	handle, err := netlink.NewHandleAt(h.NS)
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	l, err := handle.LinkByName(device)
	if err != nil {
		t.Fatal(err)
	}
	if s := l.Attrs().Statistics; s != nil {
		return s.RxDropped
	}
	return 0
}

// sample is a frame that is sent many times, each time with another number in it.
type sample struct {
	Name  string
	Frame []byte
	Count int    // how often, in a round of all samples
	Want  string // the counter that counts it
	To    string // the receiver; empty: none
}

// sampleMark is a mark and room for a number.
func sampleMark(verdict byte) []byte { return append(mark(verdict, 0), make([]byte, 8)...) }

// numberAt is the offset of a frame's number, which follows its mark.
func numberAt(frame []byte) int {
	i := indexOfMark(frame)
	if i < 0 || i+markLen+8 > len(frame) {
		return -1
	}
	return i + markLen
}

// mixArg is a number of frames of many kinds in a random order that a seed gives.
type mixArg struct {
	Endpoint, Frames int
	Seed             uint64
	Samples          []sample
}

// mixResult is how many of each were sent.
type mixResult struct {
	Sent   []uint64
	Result sendResult
}

// sendMix sends. Frames are numbered from 1.
var sendMix = newCommand("sendMix", func(a *agent, arg mixArg) (m mixResult, err error) {
	random := rand.New(rand.NewPCG(arg.Seed, 1))
	var draw, at []int
	for i, s := range arg.Samples {
		for range s.Count {
			draw = append(draw, i)
		}
		at = append(at, numberAt(s.Frame))
	}
	m.Sent = make([]uint64, len(arg.Samples))
	m.Result, err = a.endpoints[arg.Endpoint].send(func(yield func(outFrame) bool) {
		for n := 1; n <= arg.Frames; n++ {
			i := draw[random.IntN(len(draw))]
			s := &arg.Samples[i]
			if at[i] >= 0 {
				binary.BigEndian.PutUint64(s.Frame[at[i]:], uint64(n))
			}
			m.Sent[i]++
			if !yield(outFrame{Frame: s.Frame}) {
				return
			}
		}
	})
	return m, err
})

// samples are permitted frames to each receiver, and every kind of forged ones.
func samples(localPort, remotePort, sinkPort int, localTag, remoteTag uint32) []sample {
	good, bad := sampleMark(legal), sampleMark(forged)
	local := func(etherType int, rest ...[]byte) []byte { return ether(linkA, linkA, etherType, rest...) }
	remote := func(etherType int, rest ...[]byte) []byte { return ether(linkB, linkA, etherType, rest...) }
	u := func(src, dst int, m []byte) []byte { return udp(src, dst, m) }
	all := []sample{
		{"local message", local(typeMessage, message(localTag, attackerTag, good)), 6, "tx_local", "local"},
		{"local datagram", local(typeIPv4, ipv4(hostA, hostA, protocolUDP, u(attackerPort, localPort, good))), 6, "tx_local", "local"},
		{"local datagram of an own address", local(typeIPv4, ipv4(attackerAddr, hostA, protocolUDP, u(discard, localPort, good))), 2, "tx_local", "local"},
		{"message", remote(typeMessage, message(remoteTag, attackerTag, good)), 6, "tx_uplink", "remote"},
		{"datagram", remote(typeIPv4, ipv4(hostA, hostB, protocolUDP, u(attackerPort, remotePort, good))), 6, "tx_uplink", "remote"},
		{"datagram over IPv6", remote(typeIPv6, ipv6(hostA6, hostB6, protocolUDP, u(attackerPort, remotePort, good))), 4, "tx_uplink", "remote"},
		{"datagram of a block", remote(typeIPv4, ipv4(hostA, hostB, protocolUDP, u(attackerBlock+9, remotePort, good))), 2, "tx_uplink", "remote"},
		{"datagram to the kernel", remote(typeIPv4, ipv4(hostA, hostB, protocolUDP, u(attackerPort, sinkPort, good))), 1, "tx_uplink", "kernel"},
	}
	for _, to := range []struct {
		frame func(int, ...[]byte) []byte
		tag   uint32
		port  int
		path  path
		path6 path
	}{{local, localTag, localPort, path{hostA, hostA}, path{hostA6, hostA6}}, {remote, remoteTag, remotePort, path{hostA, hostB}, path{hostA6, hostB6}}} {
		message := to.frame(typeMessage, message(to.tag, attackerTag, bad))
		datagram := to.frame(typeIPv4, to.path.v4(protocolUDP, u(attackerPort, to.port, bad)))
		datagram6 := to.frame(typeIPv6, to.path6.v6(protocolUDP, u(attackerPort, to.port, bad)))
		all = append(all,
			sample{"MAC address", edit(message, 6, forgedLink[:]...), 1, "tx_forged_link", ""},
			sample{"MAC address of host B", edit(datagram, 6, linkB[:]...), 1, "tx_forged_link", ""},
			sample{"address of the neighbour", edit(datagram, atNetwork+12, neighbourAddr.AsSlice()...), 2, "tx_forged_addr", ""},
			sample{"IPv6 address", edit(datagram6, atNetwork+8, neighbourAddr6.AsSlice()...), 2, "tx_forged_addr", ""},
			sample{"nobody's port", edit(datagram, atTransport4, be16(nobodysPort)...), 1, "tx_forged_addr", ""},
			sample{"the neighbour's port", edit(datagram, atTransport4, be16(neighbourPort)...), 1, "tx_forged_tag", ""},
			sample{"message tag", edit(message, atNetwork+8, be32(neighbourTag)...), 2, "tx_forged_tag", ""},
			sample{"long total length", edit(datagram, atTotalLength, be16(1400)...), 1, "tx_bad_length", ""},
			sample{"long datagram", edit(datagram, atTransport4+4, be16(1400)...), 1, "tx_bad_length", ""},
			sample{"long message", edit(message, atNetwork+2, be16(1400)...), 1, "tx_bad_length", ""},
			sample{"message of version 2", edit(message, atNetwork, 2), 1, "tx_bad_header", ""},
			sample{"IPv5", edit(datagram, atNetwork, 0x55), 1, "tx_bad_header", ""},
			sample{"extension header", edit(datagram6, atNextHeader, 60), 1, "tx_bad_header", ""},
			sample{"VLAN", join(message[:atEtherType], be16(typeVLAN), be16(1), message[atEtherType:]), 1, "tx_bad_ethertype", ""},
			sample{"EtherType", edit(message, atEtherType, be16(0x88b6)...), 1, "tx_bad_ethertype", ""},
			sample{"half a header", message[:atNetwork+6], 1, "tx_truncated", ""},
			sample{"too long", join(message, make([]byte, 1500)), 1, "tx_oversize", ""},
			sample{"ARP for the kernel", to.frame(typeARP, arp(arpReply, linkA, hostA, linkB, hostB), bad), 1, "tx_forged_arp", ""},
			sample{"advertisement", to.frame(typeIPv6, discovery(attackerAddr6, to.path6.dst, neighbourAdvert, 0x60, neighbourAddr6, linkOption(2, linkA)), bad), 1, "tx_forged_nd", ""},
		)
	}
	return append(all,
		sample{"to a tag that nobody has", local(typeMessage, message(localTag+1, attackerTag, bad)), 1, "tx_no_owner", ""},
		sample{"to a loopback address", local(typeIPv4, ipv4(attackerAddr, loopback, protocolUDP, u(discard, kernelPort, bad))), 1, "tx_no_owner", ""})
}
