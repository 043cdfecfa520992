package segment

// A packet that is longer than a frame is sent from a run, frames that lie side by side:
// whoever composes it writes on, from one into the next. Runs are cut from the end of
// the segment once. Their frames are the pool's while nobody has them, but come from
// and go back to no other list; a run can be had again when all its frames are back.
type runs struct {
	from   uint32 // the first frame of the first run; the number of frames if there are none
	length uint32 // frames each
	list   stack  // runs that can be had
	away   []uint32
}

// MakeRuns cuts up to count runs of length frames from the end of the segment. The
// frames must be in the pool: it is called once, before anything else is. It returns
// how many runs there are.
func (s *Segment) MakeRuns(count, length int) int {
	free := &s.pools[sendSide]
	count = min(count, len(*free)/max(length, 1))
	if count <= 0 || length <= 0 {
		return 0
	}
	// The list of New has the last frame of the segment at its bottom.
	n := copy(*free, (*free)[count*length:])
	*free = (*free)[:n]
	s.runs = runs{
		from: uint32(len(s.owner) - count*length), length: uint32(length),
		list: make(stack, 0, count), away: make([]uint32, count),
	}
	for i := count - 1; i >= 0; i-- {
		s.runs.list = append(s.runs.list, uint32(i))
	}
	return count
}

// AllocRun takes a run out of the pool, for to, and returns the address of its first
// frame. It is false when none is whole.
func (s *Segment) AllocRun(to Owner) (addr uint64, ok bool) {
	r := &s.runs
	i, ok := r.list.pop()
	if !ok {
		return 0, false
	}
	first := r.from + i*r.length
	for frame := first; frame < first+r.length; frame++ {
		if poisoning {
			s.checkPoison(frame)
		}
		s.owner[frame] = to
	}
	r.away[i] = r.length
	return uint64(first) << s.shift, true
}

// RunBytes are the bytes of the run whose first frame is at addr.
func (s *Segment) RunBytes(addr uint64) []byte {
	end := addr + uint64(s.runs.length)<<s.shift
	return s.mem[addr:end:end]
}

// InRun is how many frames there are from the one that addr lies in to the end of its
// run, or 0 if it is in none.
func (s *Segment) InRun(addr uint64) int {
	frame := uint32(addr >> s.shift)
	if frame < s.runs.from {
		return 0
	}
	return int(s.runs.length - (frame-s.runs.from)%s.runs.length)
}

// free notes that a frame is back.
func (r *runs) free(frame uint32) {
	i := (frame - r.from) / r.length
	if r.away[i]--; r.away[i] == 0 {
		r.list = append(r.list, i)
	}
}

// home is the number of frames that are the pool's.
func (r *runs) home() int {
	n := len(r.away) * int(r.length)
	for _, away := range r.away {
		n -= int(away)
	}
	return n
}
