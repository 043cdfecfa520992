package frag

import (
	"slices"
	"testing"

	"github.com/unet-go/unet/wire"
)

// FuzzReassemble gives a small reassembler any packets, with time between them. No bound may be exceeded, each fragment
// must be counted once, and a reassembled packet must be no fragment.
//
// The input is a sequence of packets: the length, the seconds since the one before, the bytes. The
// IPv4 checksum is put right.
func FuzzReassemble(f *testing.F) {
	for _, v6 := range []bool{false, true} {
		sequence := func(seconds byte, pieces ...piece) (out []byte) {
			for _, p := range pieces {
				b := p.packet()
				out = append(append(out, byte(len(b)), seconds), b...)
			}
			return out
		}
		first, middle, last := zeros(v6, 0, 48, true), zeros(v6, 48, 48, true), zeros(v6, 96, 9, false)
		options := piece{v6: v6, protocol: 60, more: true, data: append([]byte{17, 0, 1, 4}, make([]byte, 44)...)}
		f.Add(sequence(0, first, middle, last))
		f.Add(sequence(0, last, middle, first, first, last, middle))
		f.Add(sequence(0, first, middle.at(40), last))
		f.Add(sequence(29, first, middle, last))
		f.Add(sequence(1, first, middle.at(65000), last.at(4096), first.at(2040)))
		f.Add(sequence(0, options, last, middle))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r := New(Config{Memory: 1, Datagrams: 3, PerSource: 2, Fragments: 4})
		now, given := Time(0), uint64(0)
		for len(in) >= 2 {
			n := min(int(in[0]), len(in)-2)
			now += Time(in[1]) * second
			b := slices.Clone(in[2 : 2+n])
			in = in[2+n:]
			var whole []byte
			var v Verdict
			if n > 0 && b[0]>>4 == 6 {
				var p wire.IPv6
				if p.Parse(b) != nil {
					continue
				}
				whole, v = r.IPv6(now, &p, linkA)
			} else {
				if n >= wire.IPv4HeaderLen {
					header := b[:max(wire.IPv4HeaderLen, min(n, int(b[0]&15)*4))]
					b[10], b[11] = 0, 0
					sum := ^wire.Fold(wire.Sum(header, 0))
					b[10], b[11] = byte(sum>>8), byte(sum)
				}
				var p wire.IPv4
				if p.Parse(b) != nil {
					continue
				}
				whole, v = r.IPv4(now, &p, linkA)
			}
			given++
			if (whole != nil) != (v == Complete || v == Atomic) || v > WrongECN {
				t.Fatalf("%v with %d bytes", v, len(whole))
			}
			if v == Complete {
				if whole[0]>>4 == 4 {
					payload(t, whole)
				} else if !hasHeaders(whole[6], whole[wire.IPv6HeaderLen:]) {
					t.Fatal("a whole packet without all headers")
				}
			}
			r.check(t)
		}
		counted := uint64(0)
		for v := range WrongECN + 1 {
			counted += r.Count(v)
		}
		if counted != given {
			t.Fatalf("%d fragments, %d counted", given, counted)
		}
		r.Expire(now + 100*second)
		if r.check(t); len(r.datagrams) != 0 || len(r.freePages) != r.pages {
			t.Fatalf("%d datagrams are left", len(r.datagrams))
		}
	})
}
