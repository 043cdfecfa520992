package frag

import (
	"math/rand/v2"
	"testing"

	"github.com/unet-go/unet/wire"
)

const second = Time(1e9)

var (
	hostA = [16]byte{10, 0, 0, 1}
	hostB = [16]byte{10, 0, 0, 2}
	linkA = wire.LinkAddr{2, 0, 0, 0, 0, 1}
)

// piece is a fragment that a test makes.
type piece struct {
	v6       bool
	src      [16]byte
	protocol uint8
	id       uint32
	tos      uint8
	offset   int
	more     bool
	data     []byte
}

// packet is the IP packet of a fragment.
func (f piece) packet() []byte {
	if f.protocol == 0 {
		f.protocol = wire.ProtocolUDP
	}
	if f.src == [16]byte{} {
		f.src = hostA
	}
	field := Piece{Offset: f.offset, More: f.more}.Field(f.v6)
	if f.v6 {
		const headers = wire.IPv6HeaderLen + wire.IPv6FragmentLen
		b := make([]byte, headers, headers+len(f.data))
		wire.PutIPv6(b, wire.IPv6Fields{
			TrafficClass: f.tos, FlowLabel: 0x54321, PayloadLen: uint16(wire.IPv6FragmentLen + len(f.data)),
			Protocol: wire.ProtocolFragment, HopLimit: 61, Src: f.src, Dst: hostB,
		})
		wire.PutIPv6Fragment(b[wire.IPv6HeaderLen:], f.protocol, field, f.id)
		return append(b, f.data...)
	}
	b := make([]byte, wire.IPv4HeaderLen, wire.IPv4HeaderLen+len(f.data))
	wire.PutIPv4(b, wire.IPv4Fields{
		TOS: f.tos, TTL: 61, Protocol: f.protocol, Fragment: field, ID: uint16(f.id),
		TotalLen: uint16(wire.IPv4HeaderLen + len(f.data)), Src: [4]byte(f.src[:4]), Dst: [4]byte(hostB[:4]),
	})
	return append(b, f.data...)
}

// input gives a packet to r.
func input(t testing.TB, r *Reassembler, now Time, packet []byte) ([]byte, Verdict) {
	t.Helper()
	if packet[0]>>4 == 6 {
		var p wire.IPv6
		if err := p.Parse(packet); err != nil {
			t.Fatal(err)
		}
		return r.IPv6(now, &p, linkA)
	}
	var p wire.IPv4
	if err := p.Parse(packet); err != nil {
		t.Fatal(err)
	}
	return r.IPv4(now, &p, linkA)
}

// payload is the payload of a whole packet, which must be no fragment.
func payload(t testing.TB, packet []byte) []byte {
	t.Helper()
	if packet[0]>>4 == 6 {
		var p wire.IPv6
		if err := p.Parse(packet); err != nil || p.HasFragment || len(p.Packet) != len(packet) {
			t.Fatalf("whole packet of %d bytes: %v", len(packet), err)
		}
		return p.Payload
	}
	var p wire.IPv4
	if err := p.Parse(packet); err != nil || p.Fragment != 0 || len(p.Packet) != len(packet) {
		t.Fatalf("whole packet of %d bytes: %v", len(packet), err)
	}
	return p.Payload
}

// random are n random bytes.
func random(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// check fails the test if the lists and counts of r do not agree or a bound is exceeded.
func (r *Reassembler) check(t testing.TB) {
	t.Helper()
	pages, perSource := 0, map[*source][2]int{}
	for _, d := range r.datagrams {
		n, have := 0, 0
		for _, p := range d.pages {
			if p != nil {
				n++
				have += p.received(0, unitsPerPage)
			}
		}
		pages += n
		count := perSource[d.source]
		perSource[d.source] = [2]int{count[0] + 1, count[1] + n}
		switch {
		case d.ended && n != 0:
			t.Fatalf("an ended datagram holds %d pages", n)
		case !d.ended && have != d.units:
			t.Fatalf("%d units received, %d counted", have, d.units)
		case d.fragments > r.cfg.Fragments:
			t.Fatalf("%d fragments", d.fragments)
		case d.due < r.nextDue:
			t.Fatalf("due at %d, before %d", d.due, r.nextDue)
		case d.source.origin != d.key.origin():
			t.Fatal("a datagram has another's source")
		}
		if r.byKey[d.key] != d {
			t.Fatal("a datagram is not found by its key")
		}
	}
	if len(perSource) != len(r.sources) || len(r.byKey) != len(r.datagrams) {
		t.Fatalf("%d sources, %d in the list; %d datagrams, %d", len(perSource), len(r.sources), len(r.datagrams), len(r.byKey))
	}
	for s, count := range perSource {
		if count != [2]int{s.datagrams, s.pages} || s.datagrams > r.cfg.PerSource {
			t.Fatalf("source with %d, %d, counted %v", s.datagrams, s.pages, count)
		}
	}
	if pages+len(r.freePages) != r.pages || r.pages > r.maxPages || len(r.datagrams) > r.cfg.Datagrams {
		t.Fatalf("%d pages used, %d free, %d made, %d datagrams", pages, len(r.freePages), r.pages, len(r.datagrams))
	}
}
