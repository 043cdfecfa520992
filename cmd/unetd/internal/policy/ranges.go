package policy

import (
	"cmp"
	"slices"
)

// span is the numbers from first to last.
type span struct{ first, last uint32 }

// spans are in order, and numbers lie between any two of them.
type spans []span

// merge makes spans of numbers in any order that may overlap.
func merge(list []span) spans {
	slices.SortFunc(list, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	var merged spans
	for _, s := range list {
		if n := len(merged); n > 0 && uint64(s.first) <= uint64(merged[n-1].last)+1 {
			merged[n-1].last = max(merged[n-1].last, s.last)
		} else {
			merged = append(merged, s)
		}
	}
	return merged
}

// cover reports whether all numbers from first to last are among them.
func (s spans) cover(first, last uint32) bool {
	return slices.ContainsFunc(s, func(in span) bool { return in.first <= first && last <= in.last })
}

// from leaves out the numbers below first.
func (s spans) from(first uint32) spans {
	var left spans
	for _, in := range s {
		if in.last >= first {
			left = append(left, span{max(in.first, first), in.last})
		}
	}
	return left
}

// aligned are the n for which all numbers from n*size to n*size+size-1 are there.
func (s spans) aligned(size uint32) spans {
	var whole spans
	for _, in := range s {
		first := (uint64(in.first) + uint64(size) - 1) / uint64(size)
		end := (uint64(in.last) + 1) / uint64(size)
		if first < end {
			whole = append(whole, span{uint32(first), uint32(end - 1)})
		}
	}
	return whole
}

func (s spans) count() uint64 {
	var n uint64
	for _, in := range s {
		n += uint64(in.last) - uint64(in.first) + 1
	}
	return n
}

// at is the i-th number.
func (s spans) at(i uint64) uint32 {
	for _, in := range s {
		if n := uint64(in.last) - uint64(in.first) + 1; i >= n {
			i -= n
		} else {
			return uint32(uint64(in.first) + i)
		}
	}
	panic("BUG: no such number in the spans")
}
