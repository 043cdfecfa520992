package frag

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/unet-go/unet/wire"
)

// both runs a test for IPv4 and for IPv6.
func both(t *testing.T, test func(t *testing.T, v6 bool)) {
	t.Run("IPv4", func(t *testing.T) { test(t, false) })
	t.Run("IPv6", func(t *testing.T) { test(t, true) })
}

// step is a fragment, and the verdict that it must get.
type step struct {
	piece
	at   Time
	want Verdict
}

// zeros is a fragment of n bytes 0.
func zeros(v6 bool, offset, n int, more bool) piece {
	return piece{v6: v6, offset: offset, more: more, data: make([]byte, n)}
}

// run gives fragments to r and checks their verdicts.
func run(t *testing.T, r *Reassembler, steps ...step) {
	t.Helper()
	for i, s := range steps {
		if _, v := input(t, r, s.at, s.packet()); v != s.want {
			t.Fatalf("fragment %d: %v, want %v", i+1, v, s.want)
		}
		r.check(t)
	}
}

// The payload and the header of a reassembled packet.
func TestWholePacket(t *testing.T) {
	both(t, func(t *testing.T, v6 bool) {
		r := New(Config{})
		data := random(rand.New(rand.NewPCG(1, 1)), 3001)
		last := piece{v6: v6, id: 9, offset: 1600, data: data[1600:], tos: 3}
		first := piece{v6: v6, id: 9, more: true, data: data[:1600], tos: 0xb2}
		run(t, r, step{piece: last})
		whole, v := input(t, r, 0, first.packet())
		if v != Complete {
			t.Fatal(v)
		}
		if !bytes.Equal(payload(t, whole), data) {
			t.Error("payload differs")
		}
		if v6 {
			want := make([]byte, 40)
			wire.PutIPv6(want, wire.IPv6Fields{TrafficClass: 0xb3, FlowLabel: 0x54321, PayloadLen: 3001, Protocol: 17, HopLimit: 61, Src: hostA, Dst: hostB})
			if !bytes.Equal(whole[:40], want) {
				t.Errorf("header %x, want %x", whole[:40], want)
			}
			return
		}
		want := make([]byte, 20)
		wire.PutIPv4(want, wire.IPv4Fields{TOS: 0xb3, TTL: 61, Protocol: 17, TotalLen: 3021, ID: 9, Src: [4]byte(hostA[:4]), Dst: [4]byte(hostB[:4])})
		if !bytes.Equal(whole[:20], want) {
			t.Errorf("header %x, want %x", whole[:20], want)
		}
	})
}

// The longest packet is reassembled in the smallest memory, and a longer one is refused.
func TestLongestPacket(t *testing.T) {
	both(t, func(t *testing.T, v6 bool) {
		most := 65535
		if !v6 {
			most -= 20
		}
		r := New(Config{Memory: 1}) // the least
		data := random(rand.New(rand.NewPCG(1, 2)), most)
		var whole []byte
		var v Verdict
		for p := range Pieces(most, 1400) {
			whole, v = input(t, r, 0, piece{v6: v6, offset: p.Offset, more: p.More, data: data[p.Offset:][:p.Len]}.packet())
		}
		if v != Complete || !bytes.Equal(payload(t, whole), data) {
			t.Errorf("%v", v)
		}
		if v6 {
			return // wire refuses a longer one
		}
		run(t, r, step{piece: zeros(v6, 65512, 4, false), want: TooLong})
	})
	// wire refuses it in IPv6; the reassembler must not depend on that.
	var p wire.IPv6
	if err := p.Parse(zeros(true, 65528, 7, false).packet()); err != nil {
		t.Fatal(err)
	}
	p.Payload = make([]byte, 8)
	if _, v := New(Config{}).IPv6(0, &p, linkA); v != TooLong {
		t.Error(v)
	}
}

// Fragments of another source, identification or (IPv4) protocol belong to other datagrams.
func TestKey(t *testing.T) {
	r := New(Config{})
	half := func(v6 bool, change func(f *piece)) piece {
		f := zeros(v6, 800, 800, false)
		change(&f)
		return f
	}
	for _, v6 := range []bool{false, true} {
		run(t, r,
			step{piece: zeros(v6, 0, 800, true), want: Kept},
			step{piece: half(v6, func(f *piece) { f.id = 1 }), want: Kept},
			step{piece: half(v6, func(f *piece) { f.src = [16]byte{10, 0, 0, 3} }), want: Kept},
		)
	}
	run(t, r,
		step{piece: half(false, func(f *piece) { f.protocol = wire.ProtocolICMP }), want: Kept},
		step{piece: half(false, func(*piece) {}), want: Complete},
		// The next header of the first fragment alone counts in IPv6.
		step{piece: half(true, func(f *piece) { f.protocol = 59 }), want: Complete},
	)
}

// The verdicts of fragments of one datagram.
func TestVerdicts(t *testing.T) {
	both(t, func(t *testing.T, v6 bool) {
		other := zeros(v6, 0, 800, true)
		other.data[3] = 1
		tos := func(offset int, more bool, tos uint8) piece {
			f := zeros(v6, offset, 800, more)
			f.tos = tos
			return f
		}
		first, last := zeros(v6, 0, 800, true), zeros(v6, 800, 801, false)
		for name, steps := range map[string][]step{
			"in order":                         {{piece: first}, {piece: last, want: Complete}},
			"reversed":                         {{piece: last}, {piece: first, want: Complete}},
			"again":                            {{piece: first}, {piece: last, want: Complete}, {piece: first}, {piece: last, want: Complete}},
			"duplicate":                        {{piece: first}, {piece: first, want: Duplicate}, {piece: last, want: Complete}},
			"duplicate of the last":            {{piece: last}, {piece: last, want: Duplicate}, {piece: first, want: Complete}},
			"a part again":                     {{piece: first}, {piece: zeros(v6, 80, 80, true), want: Duplicate}, {piece: last, want: Complete}},
			"other bytes":                      {{piece: first}, {piece: other, want: Overlap}, {piece: last, want: Refused}, {piece: first, want: Refused}},
			"overlap at the end":               {{piece: first}, {piece: zeros(v6, 792, 800, true), want: Overlap}, {piece: last, want: Refused}},
			"overlap at the start":             {{piece: last}, {piece: zeros(v6, 0, 808, true), want: Overlap}},
			"overlap around":                   {{piece: zeros(v6, 80, 80, true)}, {piece: first, want: Overlap}},
			"beyond the end":                   {{piece: last}, {piece: zeros(v6, 1608, 80, true), want: WrongEnd}},
			"an end too early":                 {{piece: zeros(v6, 1600, 80, true)}, {piece: zeros(v6, 0, 80, false).at(800), want: WrongEnd}},
			"two ends":                         {{piece: last}, {piece: zeros(v6, 2000, 80, false), want: WrongEnd}},
			"two ends, the second one earlier": {{piece: last}, {piece: zeros(v6, 800, 800, false), want: WrongEnd}, {piece: first, want: Refused}},
			"no data":                          {{piece: zeros(v6, 800, 0, false), want: Empty}, {piece: first}},
			"congestion and no ECN":            {{piece: tos(0, true, 3)}, {piece: tos(800, false, 0), want: WrongECN}, {piece: tos(800, false, 3), want: Refused}},
			"congestion and ECN":               {{piece: tos(0, true, 2)}, {piece: tos(800, false, 3), want: Complete}},
			"ECN and none":                     {{piece: tos(0, true, 2)}, {piece: tos(800, false, 0), want: Complete}},
		} {
			t.Run(name, func(t *testing.T) { run(t, New(Config{}), steps...) })
		}
	})
}

// at is f at another offset.
func (f piece) at(offset int) piece {
	f.offset = offset
	return f
}

// A fragment of a wrong length is dropped, and its datagram can still become complete.
func TestDroppedFragmentKeepsDatagram(t *testing.T) {
	r := New(Config{})
	run(t, r,
		step{piece: zeros(false, 0, 801, true), want: Misaligned},
		step{piece: zeros(false, 0, 800, true), want: Kept},
		step{piece: zeros(false, 800, 60, true), want: Misaligned},
		step{piece: zeros(false, 800, 1, false), want: Complete},
		step{piece: zeros(false, 0, 8, true), want: Kept}, // neither has a least length
		step{piece: zeros(true, 0, 8, true), want: Kept},
	)
	// wire refuses it in IPv6; the reassembler must not depend on that.
	var p wire.IPv6
	if err := p.Parse(zeros(true, 8, 16, true).packet()); err != nil {
		t.Fatal(err)
	}
	p.Payload = p.Payload[:15]
	if _, v := r.IPv6(0, &p, linkA); v != Misaligned {
		t.Error(v)
	}
}

// A first fragment in IPv6 must have all headers (RFC 8200, section 4.5).
func TestHeaderChain(t *testing.T) {
	options := func(next uint8, rest ...byte) []byte { return append([]byte{next, 1, 1, 12, 15: 0}, rest...) }
	for name, test := range map[string]struct {
		protocol uint8
		data     []byte
		want     Verdict
	}{
		"UDP":                          {17, make([]byte, 8), Kept},
		"TCP":                          {6, make([]byte, 24), Kept},
		"half of TCP":                  {6, make([]byte, 16), HeaderChain},
		"ICMPv6":                       {58, make([]byte, 8), Kept},
		"options and UDP":              {60, options(17, make([]byte, 8)...), Kept},
		"options and a routing header": {60, options(43, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), Kept},
		"options and no more":          {60, options(17), HeaderChain},
		"half of the options":          {60, options(17)[:8], HeaderChain},
		"options before options":       {60, options(60), HeaderChain},
		"hop-by-hop options":           {0, options(17, make([]byte, 8)...), HeaderChain},
		"a fragment header":            {44, make([]byte, 16), HeaderChain},
		"one after options":            {60, options(44, make([]byte, 16)...), HeaderChain},
		"an unknown header":            {200, make([]byte, 8), Kept},
	} {
		t.Run(name, func(t *testing.T) {
			r := New(Config{})
			b := piece{v6: true, more: true, data: test.data}.packet()
			b[wire.IPv6HeaderLen] = test.protocol
			if _, v := input(t, r, 0, b); v != test.want {
				t.Errorf("%v, want %v", v, test.want)
			}
			if held := len(r.datagrams); held != 0 && test.want == HeaderChain {
				t.Errorf("%d datagrams held", held)
			}
			// In a fragment that is not the first one this is data.
			run(t, r, step{piece: piece{v6: true, more: true, offset: 80, data: test.data}, want: Kept})
		})
	}
}

// An atomic fragment must not be mixed with fragments of the same identification (RFC 6946).
func TestAtomic(t *testing.T) {
	r := New(Config{})
	run(t, r, step{piece: zeros(true, 0, 800, true)})
	b := zeros(true, 0, 800, false).packet()
	whole, v := input(t, r, 0, b)
	if v != Atomic || !bytes.Equal(whole, b) {
		t.Errorf("%v, %d bytes", v, len(whole))
	}
	run(t, r, step{piece: zeros(true, 800, 8, false), want: Complete})
}

// A datagram that is not complete in time is dropped and counted. Further fragments do not make the time longer.
func TestTimeout(t *testing.T) {
	both(t, func(t *testing.T, v6 bool) {
		limit := 30 * second
		if v6 {
			limit = 60 * second
		}
		first, last := zeros(v6, 0, 800, true), zeros(v6, 1600, 800, false)
		middle := zeros(v6, 800, 800, true)
		r := New(Config{})
		run(t, r,
			step{piece: first, at: second},
			step{piece: last, at: limit}, // does not make the time longer
			step{piece: middle, at: limit + second - 1, want: Complete},
			step{piece: first, at: limit + second},
			step{piece: last, at: 2 * limit},
			step{piece: middle, at: 2*limit + second, want: Kept},
		)
		if n := r.Count(TimedOut); n != 1 {
			t.Errorf("%d datagrams timed out", n)
		}
		if r.Expire(4 * limit); len(r.datagrams) != 0 || r.Count(TimedOut) != 2 {
			t.Errorf("%d datagrams left, %d timed out", len(r.datagrams), r.Count(TimedOut))
		}
		r.check(t)
		// A datagram that ended with an error is not counted when its time is over.
		bad := zeros(v6, 0, 808, true)
		bad.data[0] = 1
		run(t, r, step{piece: first, at: 4 * limit}, step{piece: bad, at: 4 * limit, want: Overlap})
		run(t, r, step{piece: first, at: 5 * limit}, step{piece: middle, at: 5 * limit}, step{piece: last, at: 5 * limit, want: Complete})
		if n := r.Count(TimedOut); n != 2 {
			t.Errorf("%d datagrams timed out", n)
		}
	})
}

// Who has sent the first fragment of a datagram is told when its time is over, once, with as much of it as an ICMP
// error may quote (RFC 1812, section 4.3.2.3; RFC 4443, section 2.4).
func TestReport(t *testing.T) {
	both(t, func(t *testing.T, v6 bool) {
		var link wire.LinkAddr
		var quotes [][]byte
		r := New(Config{Report: func(l wire.LinkAddr, packet []byte) { link, quotes = l, append(quotes, bytes.Clone(packet)) }})
		most := 576 - 20 - 8
		if v6 {
			most = 1280 - 40 - 8
		}
		rng := rand.New(rand.NewPCG(1, 3))
		for id, n := range []int{8, 400, 1600, 3200} {
			first := piece{v6: v6, id: uint32(id), more: true, data: random(rng, n)}
			run(t, r, step{piece: piece{v6: v6, id: uint32(id), offset: 4000, more: true, data: random(rng, 80)}}, step{piece: first}, step{piece: first, want: Duplicate})
			if r.Expire(r.NextDeadline() - 1); len(quotes) != 0 {
				t.Errorf("%d bytes: reported too early", n)
			}
			r.Expire(r.NextDeadline())
			b := first.packet()
			if len(quotes) != 1 || !bytes.Equal(quotes[0], b[:min(len(b), most)]) || link != linkA {
				t.Errorf("%d bytes: %d reports, to %v", n, len(quotes), link)
			}
			quotes = nil
		}
		run(t, r, step{piece: zeros(v6, 800, 80, true)}, // without the first
			step{piece: piece{v6: v6, id: 1, more: true, data: make([]byte, 80)}}, step{piece: piece{v6: v6, id: 1, offset: 72, more: true, data: make([]byte, 80)}, want: Overlap})
		if r.Expire(200 * second); len(quotes) != 0 || r.NextDeadline() != never {
			t.Errorf("%d reports, next deadline %d", len(quotes), r.NextDeadline())
		}
	})
}

// A datagram in more fragments than Config.Fragments is dropped.
func TestFragmentBound(t *testing.T) {
	both(t, func(t *testing.T, v6 bool) {
		run(t, New(Config{Fragments: 3}),
			step{piece: zeros(v6, 0, 80, true)},
			step{piece: zeros(v6, 80, 80, true)},
			step{piece: zeros(v6, 80, 80, true), want: Duplicate},
			step{piece: zeros(v6, 160, 80, true)},
			step{piece: zeros(v6, 160, 80, true), want: Duplicate},
			step{piece: zeros(v6, 240, 80, false), want: TooMany},
			step{piece: zeros(v6, 0, 80, true), want: Refused},
		)
	})
}

// from is a first fragment of 80 bytes of a source.
func from(source byte, id uint32) piece {
	f := zeros(false, 0, 80, true)
	f.src, f.id = [16]byte{10, 0, 1, source}, id
	return f
}

// holds reports which of some fragments r still has.
func holds(r *Reassembler, pieces ...piece) (out []bool) {
	for _, f := range pieces {
		_, ok := r.byKey[key{src: f.src, dst: hostB, id: f.id, protocol: wire.ProtocolUDP}]
		out = append(out, ok)
	}
	return out
}

// Beyond the bounds of datagrams the oldest is evicted: of the source, or of all.
func TestDatagramBounds(t *testing.T) {
	r := New(Config{Datagrams: 4, PerSource: 3})
	run(t, r, step{piece: from(1, 1)}, step{piece: from(1, 2)}, step{piece: from(1, 3)}, step{piece: from(1, 4)})
	if got := holds(r, from(1, 1), from(1, 2), from(1, 4)); got[0] || !got[1] || !got[2] {
		t.Errorf("of one source: %v", got)
	}
	run(t, r, step{piece: from(2, 1)}, step{piece: from(3, 1)})
	if got := holds(r, from(1, 2), from(1, 3), from(2, 1), from(3, 1)); got[0] || !got[1] || !got[2] || !got[3] {
		t.Errorf("of several sources: %v", got)
	}
	if n := r.Count(Evicted); n != 2 {
		t.Errorf("%d evicted", n)
	}
}

// If a sender fills the table from forged sources, a fragment each, a datagram of several pages is
// not the first to be evicted.
func TestDatagramBoundAgainstForgedSources(t *testing.T) {
	r := New(Config{Datagrams: 4})
	large := zeros(false, 0, 8*PageSize, true)
	large.src, large.id = [16]byte{10, 0, 1, 9}, 1
	run(t, r, step{piece: from(1, 1)}, step{piece: from(2, 1)}, step{piece: large}, step{piece: from(3, 1)}, step{piece: from(4, 1)}, step{piece: from(5, 1)})
	if got := holds(r, from(1, 1), from(2, 1), large); got[0] || got[1] || !got[2] {
		t.Errorf("held: %v", got)
	}
}

// A host can use all addresses of a /64, so these are one source.
func TestPrefixIsOneSource(t *testing.T) {
	r := New(Config{PerSource: 2})
	for i := range byte(3) {
		f := zeros(true, 0, 80, true)
		f.src = [16]byte{0: 0xfd, 15: i}
		run(t, r, step{piece: f})
	}
	if n := r.Count(Evicted); n != 1 {
		t.Errorf("%d evicted", n)
	}
}

// Beyond the bound of memory the oldest datagram of the source with most memory is evicted.
func TestMemoryBound(t *testing.T) {
	r := New(Config{Memory: 64 << 10})
	big := func(source byte, id uint32, offset int) piece {
		f := zeros(false, offset, 8*PageSize, true)
		f.src, f.id = [16]byte{10, 0, 1, source}, id
		return f
	}
	run(t, r, step{piece: from(3, 1)}, step{piece: big(1, 1, 0)}, step{piece: big(2, 1, 0)}, step{piece: big(1, 2, 0)})
	// 25 of 32 pages are used. Source 1 holds most.
	run(t, r, step{piece: big(2, 2, 0)})
	if got := holds(r, from(3, 1), big(1, 1, 0), big(1, 2, 0), big(2, 1, 0), big(2, 2, 0)); !got[0] || got[1] || !got[2] || !got[3] || !got[4] {
		t.Errorf("held: %v", got)
	}
	// Now source 2 holds most, and its oldest datagram is the one that needs the memory.
	run(t, r, step{piece: big(2, 1, 8*PageSize), want: NoMemory})
	if got := holds(r, big(2, 1, 0)); got[0] {
		t.Errorf("held: %v", got)
	}
	if r.pages != 32 {
		t.Errorf("%d pages made", r.pages)
	}
}

// Each verdict has a counter with a name of its own.
func TestCounters(t *testing.T) {
	r := New(Config{})
	run(t, r, step{piece: zeros(false, 0, 80, true)}, step{piece: zeros(false, 0, 80, true), want: Duplicate}, step{piece: zeros(false, 80, 8, false), want: Complete})
	got := map[string]uint64{}
	r.EachCounter(func(name string, n uint64) {
		if _, again := got[name]; again || name == "" {
			t.Errorf("name %q", name)
		}
		got[name] = n
	})
	if got["kept"] != 1 || got["duplicate"] != 1 || got["complete"] != 1 || len(got) != int(verdicts) {
		t.Errorf("%v", got)
	}
}

// A reassembler that has received fragments allocates nothing for further ones.
func TestAllocations(t *testing.T) {
	r := New(Config{})
	var packets []wire.IPv4
	for i := range uint32(8) {
		for p := range Pieces(9000, 1480) {
			var ip wire.IPv4
			if err := ip.Parse(piece{id: i, offset: p.Offset, more: p.More, data: make([]byte, p.Len)}.packet()); err != nil {
				t.Fatal(err)
			}
			packets = append(packets, ip)
		}
	}
	rand.New(rand.NewPCG(3, 3)).Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
	n := testing.AllocsPerRun(20, func() {
		for i := range packets {
			r.IPv4(0, &packets[i], linkA)
		}
	})
	if n != 0 || r.Count(Complete) != 8*21 {
		t.Errorf("%v allocations, %d complete", n, r.Count(Complete))
	}
	// The same with a flood of fragments of different sources.
	var ip wire.IPv4
	if err := ip.Parse(zeros(false, 0, 80, true).packet()); err != nil {
		t.Fatal(err)
	}
	flood := func(n uint32) {
		for range n {
			binary.BigEndian.PutUint32(ip.Src[:], binary.BigEndian.Uint32(ip.Src[:])+1)
			r.IPv4(0, &ip, linkA)
		}
	}
	flood(10_000)
	if n := testing.AllocsPerRun(20, func() { flood(1000) }); n != 0 {
		t.Errorf("%v allocations for 1,000 datagrams of a flood", n)
	}
}
