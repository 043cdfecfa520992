package frag

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/ip4defrag"
	"github.com/google/gopacket/layers"
)

// model is a datagram as RFC 8200 describes it, byte by byte.
type model struct {
	bytes   map[int]byte
	total   int // -1: not known
	ended   bool
	pieces  int
	expires Time
}

// take returns the verdict that a fragment must get. The only bound of the model is that of
// fragments.
func (m *model) take(f *piece, maxPieces int) Verdict {
	if f.offset == 0 && !f.more {
		return Atomic
	}
	if m.ended {
		return Refused
	}
	known, same := 0, true
	beyond := false
	end := f.offset + len(f.data)
	for at := range m.bytes {
		beyond = beyond || !f.more && at >= end
	}
	for i, b := range f.data {
		if have, ok := m.bytes[f.offset+i]; ok {
			known++
			same = same && have == b
		}
	}
	switch {
	case m.total >= 0 && (end > m.total || !f.more && end != m.total), beyond:
		m.ended = true
		return WrongEnd
	case known == len(f.data) && same:
		if !f.more {
			m.total = end
		}
		return Duplicate
	case known > 0:
		m.ended = true
		return Overlap
	case m.pieces == maxPieces:
		m.ended = true
		return TooMany
	}
	m.pieces++
	for i, b := range f.data {
		m.bytes[f.offset+i] = b
	}
	if !f.more {
		m.total = end
	}
	if len(m.bytes) == m.total {
		return Complete
	}
	return Kept
}

// TestModel compares the verdicts of random fragments of several datagrams, some left out, repeated or damaged, with a
// model.
func TestModel(t *testing.T) {
	seen := map[Verdict]int{}
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 1))
		r := New(Config{Fragments: 12})
		var schedule []piece
		for n := range 1 + rng.IntN(6) {
			schedule = append(schedule, randomDatagram(rng, uint32(n))...)
		}
		rng.Shuffle(len(schedule), func(i, j int) { schedule[i], schedule[j] = schedule[j], schedule[i] })
		models := map[string]*model{}
		now := 5 * second
		for i, f := range schedule {
			now += Time(rng.Int64N(int64(second) * 2))
			name := fmt.Sprint(f.v6, f.id)
			if m := models[name]; m == nil || now >= m.expires {
				models[name] = &model{bytes: map[int]byte{}, total: -1, expires: now + 30*second}
				if f.v6 {
					models[name].expires = now + 60*second
				}
			}
			m := models[name]
			want := m.take(&f, 12)
			whole, got := input(t, r, now, f.packet())
			if got != want {
				t.Fatalf("seed %d, fragment %d (%d bytes at %d, more %v): %v, want %v", seed, i, len(f.data), f.offset, f.more, got, want)
			}
			seen[got]++
			if got == Complete {
				delete(models, name)
				data := payload(t, whole)
				for at, b := range data {
					if m.bytes[at] != b {
						t.Fatalf("seed %d: byte %d differs", seed, at)
					}
				}
				if len(data) != m.total {
					t.Fatalf("seed %d: %d bytes, want %d", seed, len(data), m.total)
				}
			}
			r.check(t)
		}
	}
	for _, v := range []Verdict{Kept, Complete, Atomic, Duplicate, Overlap, WrongEnd, TooMany, Refused} {
		if seen[v] < 10 {
			t.Errorf("verdict %v occurred only %d times", v, seen[v])
		}
	}
}

// randomDatagram is the fragments of a datagram, some left out, repeated or damaged.
func randomDatagram(rng *rand.Rand, id uint32) (out []piece) {
	v6 := rng.IntN(2) == 0
	data := random(rng, 50+rng.IntN(9000))
	room := 48 + rng.IntN(3000)
	for p := range Pieces(len(data), room) {
		f := piece{v6: v6, id: id, offset: p.Offset, more: p.More, data: data[p.Offset:][:p.Len]}
		switch rng.IntN(40) {
		case 0:
			continue
		case 1, 2:
			out = append(out, f)
		case 3:
			g := f
			g.data = bytes.Clone(f.data)
			g.data[rng.IntN(len(g.data))]++
			out = append(out, g)
		case 4:
			g := f
			g.offset += 8 * (1 + rng.IntN(200))
			out = append(out, g)
		case 5:
			g := f
			g.data = f.data[:len(f.data)&^7]
			if g.more = !f.more; len(g.data) >= 48 {
				out = append(out, g)
			}
		case 6:
			if n := len(f.data) / 16 * 8; n >= 48 {
				g, h := f, f
				g.data, g.more = f.data[:n], true
				h.data, h.offset = f.data[n:], f.offset+n
				out = append(out, g, h)
			}
		}
		out = append(out, f)
	}
	return out
}

// TestSameAsGopacket reassembles fragments in random order here and with gopacket: the results are the same.
func TestSameAsGopacket(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	r, other := New(Config{}), ip4defrag.NewIPv4Defragmenter()
	for id := range uint32(200) {
		data := random(rng, 8*(200+rng.IntN(1000))) // gopacket refuses a last fragment of less than 8 bytes
		var packets [][]byte
		for p := range Pieces(len(data), 500+rng.IntN(1000)) {
			packets = append(packets, piece{id: id, offset: p.Offset, more: p.More, data: data[p.Offset:][:p.Len]}.packet())
		}
		rng.Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
		for _, b := range packets {
			got, v := input(t, r, 0, b)
			ip := gopacket.NewPacket(b, layers.LayerTypeIPv4, gopacket.Default).NetworkLayer().(*layers.IPv4)
			want, err := other.DefragIPv4(ip)
			if err != nil || (want == nil) != (v == Kept) {
				t.Fatalf("datagram %d: %v, gopacket: %v, %v", id, v, want != nil, err)
			}
			if v == Complete && (!bytes.Equal(payload(t, got), want.Payload) || !bytes.Equal(want.Payload, data)) {
				t.Fatalf("datagram %d: payloads differ", id)
			}
		}
	}
}
