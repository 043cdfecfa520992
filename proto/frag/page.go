package frag

import "math/bits"

// Fragments begin at multiples of 8 bytes.
const unit = 8

// PageSize is the unit in which data is held, in bytes.
const PageSize = 2048

const unitsPerPage = PageSize / unit

// page holds the data of a datagram from a multiple of PageSize on.
type page struct {
	data [PageSize]byte
	have [unitsPerPage / 64]uint64 // the units that have been received
}

// mask is the bits of word w for the units from first to end, of which end is not one.
func mask(w, first, end int) uint64 {
	first, end = max(first-64*w, 0), min(end-64*w, 64)
	if first >= end {
		return 0
	}
	return ^uint64(0) >> (64 - (end - first)) << first
}

// received is how many of the units from first to end have been received.
func (p *page) received(first, end int) (n int) {
	for w, have := range p.have {
		n += bits.OnesCount64(have & mask(w, first, end))
	}
	return n
}

// note notes that the units from first to end have been received.
func (p *page) note(first, end int) {
	for w := range p.have {
		p.have[w] |= mask(w, first, end)
	}
}
