package tcp

// portSteps is the size of the table of RFC 6056, section 3.3.4.
const portSteps = 64

// ephemeralPort picks a local port for a connection to remote by the double-hash
// algorithm of RFC 6056, section 3.3.4: for one destination the ports follow one
// another, so that a pair of ends is not used again soon, from a start that
// nobody else knows; and what happens to one destination says little of others.
//
// A pair in TIME-WAIT that could be replaced is taken only if there is no other.
func (t *Table) ephemeralPort(now Time, local, remote AddrPort) (uint16, bool) {
	n := t.portCount()
	addr := AddrPort{Addr: local.Addr}.Word()
	offset := t.hash.sum(usePort, addr, remote.Word()) % uint64(n)
	step := &t.portSteps[t.hash.sum(usePortStep, addr, remote.Word())%portSteps]
	fallback := uint16(0)
	for range n {
		p := t.portAt(uint32((offset + uint64(*step)) % uint64(n)))
		*step++
		id := makeTuple(AddrPort{Addr: local.Addr, Port: p}, remote)
		if t.conns[id] != nil || t.listenerFor(id) != nil || id.local == id.remote {
			continue
		}
		w := t.waits.records[id]
		if w == nil {
			return p, true
		}
		if fallback == 0 && w.reusable(now) {
			fallback = p
		}
	}
	return fallback, fallback != 0
}

// listenerPort picks a port that no listener has.
func (t *Table) listenerPort() (uint16, bool) {
	n := t.portCount()
	start := t.hash.sum(usePort, uint64(len(t.listeners)))
	for i := range n {
		if p := t.portAt(uint32((start + uint64(i)) % uint64(n))); t.listeners[p] == nil {
			return p, true
		}
	}
	return 0, false
}

// portCount is how many ports the ranges have.
func (t *Table) portCount() (n uint32) {
	for _, r := range t.cfg.Ports {
		n += r.size()
	}
	return n
}

// portAt is the i-th port of the ranges.
func (t *Table) portAt(i uint32) uint16 {
	for _, r := range t.cfg.Ports {
		if i < r.size() {
			return r.First + uint16(i)
		}
		i -= r.size()
	}
	panic("BUG: tcp: no such port")
}

func (r PortRange) size() uint32 {
	if r.Last < r.First {
		return 0
	}
	return uint32(r.Last-r.First) + 1
}
