package tcp

import (
	"math/bits"

	"github.com/unet-go/unet/wire"
)

// blockPorts is how many ports a [PortBlock] is about.
const blockPorts = 64

// PortBlock is a set of ports among 64 that begin at a multiple of 64.
type PortBlock struct {
	First uint16 // a multiple of 64
	Ports uint64 // a bit for each of the 64 ports that may be chosen, the lowest for First
}

// portSteps is the size of the table of RFC 6056, section 3.3.4.
const portSteps = 64

// pairUse has a bit for each of 64 local ports that is in use for one destination: in conns
// by a connection that was opened here, in waits by a record of one in TIME-WAIT. It is
// derived from these, so that ChoosePort can check 64 ports at once.
type pairUse struct{ conns, waits uint64 }

// fullBlocks has a bit for each block of local ports of which every port has a connection,
// opened here, to one destination.
type fullBlocks [1 << 16 / blockPorts / 64]uint64

func (f *fullBlocks) bit(port uint64) (word *uint64, bit uint64) {
	block := uint16(port) / blockPorts
	return &f[block/64], 1 << (block % 64)
}

// destination is the key of a fullBlocks: id without the local port.
func destination(id tuple) tuple { return tuple{id.local, id.remote, id.ports &^ 0xffff} }

// pairBlock is the key of a pairUse, and the bit of id in it.
func pairBlock(id tuple) (key tuple, bit uint64) {
	i := id.ports % blockPorts
	return tuple{id.local, id.remote, id.ports - i}, 1 << i
}

// usePair notes that a connection that was opened here uses id.
func (t *Table) usePair(id tuple) *pairUse {
	key, bit := pairBlock(id)
	u := t.pairs[key]
	if u == nil {
		u = &pairUse{}
		t.pairs[key] = u
	}
	if u.conns |= bit; u.conns == ^uint64(0) {
		f := t.full[destination(id)]
		if f == nil {
			f = &fullBlocks{}
			t.full[destination(id)] = f
		}
		word, bit := f.bit(id.ports)
		*word |= bit
	}
	return u
}

// leavePair notes that id is not used any more, by a connection or by a record of
// TIME-WAIT. u is what usePair returned, or nil for what was not opened here.
func (t *Table) leavePair(u *pairUse, id tuple, waits bool) {
	if u == nil {
		return
	}
	key, bit := pairBlock(id)
	if waits {
		u.waits &^= bit
	} else {
		if u.conns == ^uint64(0) {
			f := t.full[destination(id)]
			word, bit := f.bit(id.ports)
			if *word &^= bit; *f == (fullBlocks{}) {
				delete(t.full, destination(id))
			}
		}
		u.conns &^= bit
	}
	if *u == (pairUse{}) {
		delete(t.pairs, key)
	}
}

// freshBlocks is how many blocks are searched for a pair that is not in TIME-WAIT, if a pair
// in TIME-WAIT has been found.
const freshBlocks = 8

// ChoosePort picks a local port for a connection to remote from blocks: one that has no
// connection to remote and no listener. It may have connections to other destinations. A
// pair of ends in TIME-WAIT is taken if there is no other, or none in the first
// freshBlocks. The port is 0 if every pair has a connection.
//
// It is the double-hash algorithm of RFC 6056, section 3.3.4: for one destination the
// ports follow one another, so that a pair of ends is not used again soon, from a
// start that depends on the secret and the destination. So the first pair in TIME-WAIT that
// is found is one of the oldest. Blocks in which every port has a connection to remote are
// skipped, 64 ports at a step.
func (t *Table) ChoosePort(local wire.Addr, remote AddrPort, blocks []PortBlock) uint16 {
	if len(blocks) == 0 {
		return 0
	}
	to := makeTuple(AddrPort{Addr: local}, remote)
	n := uint64(len(blocks)) * blockPorts
	step := &t.portSteps[t.hashed(usePortStep, &to)%portSteps]
	start := (t.hashed(usePort, &to)%n + uint64(*step)) % n
	full := t.full[to]
	// The block of start is searched twice: first from start on, at the end before start.
	behind := ^uint64(0) << (start % blockPorts)
	var old tuple // in TIME-WAIT; port 0: none
	for i := range len(blocks) + 1 {
		at := (start/blockPorts + uint64(i)) % uint64(len(blocks))
		b := &blocks[at]
		if full != nil {
			if word, bit := full.bit(uint64(b.First)); *word&bit != 0 {
				continue
			}
		}
		if old.localPort() != 0 && i >= freshBlocks {
			break
		}
		id := to
		id.ports += uint64(b.First)
		var u pairUse
		if p := t.pairs[id]; p != nil {
			u = *p
		}
		ports := b.Ports &^ u.conns
		switch i {
		case 0:
			ports &= behind
		case len(blocks):
			ports &^= behind
		}
		for free := ports &^ u.waits; free != 0; free &= free - 1 {
			bit := uint64(bits.TrailingZeros64(free))
			id.ports = to.ports + uint64(b.First) + bit
			if t.conns[id] == nil && t.waits.records[id] == nil && t.mayDialFrom(id) {
				*step += uint32((at*blockPorts+bit+n-start)%n) + 1
				return id.localPort()
			}
		}
		for waits := ports & u.waits; waits != 0 && old.localPort() == 0; waits &= waits - 1 {
			id.ports = to.ports + uint64(b.First) + uint64(bits.TrailingZeros64(waits))
			if t.mayDialFrom(id) {
				old = id
			}
		}
	}
	if old.localPort() == 0 {
		return 0
	}
	*step++
	return old.localPort()
}

// mayDialFrom reports whether the local end of id is neither a listener's nor the
// remote end.
func (t *Table) mayDialFrom(id tuple) bool { return !id.toItself() && t.listenerFor(id) == nil }

// ephemeralPort picks a local port from the ranges of the table, the first range
// that has one.
func (t *Table) ephemeralPort(local wire.Addr, remote AddrPort) uint16 {
	for _, blocks := range t.ports {
		if p := t.ChoosePort(local, remote, blocks); p != 0 {
			return p
		}
	}
	return 0
}

// listenerPort picks a port that no listener has, from the first range that has one;
// 0 if there is none.
func (t *Table) listenerPort() uint16 {
	for _, blocks := range t.ports {
		n := uint64(len(blocks)) * blockPorts
		start := t.hash.sum(usePort, uint64(len(t.listeners)))
		for i := range n {
			at := (start%n + i) % n
			b, bit := &blocks[at/blockPorts], at%blockPorts
			if p := b.First + uint16(bit); b.Ports&(1<<bit) != 0 && t.listeners[p] == nil {
				return p
			}
		}
	}
	return 0
}

// blocks is a range of ports as blocks.
func (r PortRange) blocks() (list []PortBlock) {
	const all = ^uint64(0)
	for first := int(r.First) &^ (blockPorts - 1); first <= int(r.Last); first += blockPorts {
		b := PortBlock{First: uint16(first), Ports: all}
		if before := int(r.First) - first; before > 0 {
			b.Ports &= all << before
		}
		if after := first + blockPorts - 1 - int(r.Last); after > 0 {
			b.Ports &= all >> after
		}
		if b.Ports != 0 { // 0: an empty range
			list = append(list, b)
		}
	}
	return list
}
