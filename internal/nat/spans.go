package nat

// span is the ports from first to last.
type span struct{ first, last uint16 }

// spans are in order and do not overlap.
type spans []span

var everyPort = spans{{0, 1<<16 - 1}}

// and are the ports in both.
func (s spans) and(o spans) spans {
	var both spans
	for _, a := range s {
		for _, b := range o {
			if first, last := max(a.first, b.first), min(a.last, b.last); first <= last {
				both = append(both, span{first, last})
			}
		}
	}
	return both
}

// others are the ports that are not in s.
func (s spans) others() spans {
	var list spans
	next := 0
	for _, in := range s {
		if next < int(in.first) {
			list = append(list, span{uint16(next), in.first - 1})
		}
		next = int(in.last) + 1
	}
	if next < 1<<16 {
		list = append(list, span{uint16(next), 1<<16 - 1})
	}
	return list
}
