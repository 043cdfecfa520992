package segment

import (
	"errors"
	"fmt"
	"math/bits"
)

// Owner is the party that may access a frame.
type Owner uint8

const (
	Pool           Owner = iota // free
	KernelReceive               // on the fill ring, or received and not yet peeked
	Stack                       // peeked or allocated, in the stack's hands
	Application                 // delivered, until it is freed
	KernelTransmit              // on the TX ring, until its completion is taken
	owners
)

var ownerNames = [owners]string{"pool", "kernel-receive", "stack", "application", "kernel-transmit"}

func (o Owner) String() string {
	if o < owners {
		return ownerNames[o]
	}
	return fmt.Sprintf("Owner(%d)", uint8(o))
}

// ErrSize: the memory cannot be cut into frames.
var ErrSize = errors.New("memory is not a whole number of frames")

// Segment is memory cut into frames.
type Segment struct {
	mem   []byte
	shift uint // log2 of the frame size
	owner []Owner
	pools [2]frames // by side
	runs  runs
}

// frames is a list of free frames, last in, first out: the frame freed last is most
// likely in the cache.
type frames []uint32

func (p *frames) pop() (frame uint32, ok bool) {
	n := len(*p) - 1
	if n < 0 {
		return 0, false
	}
	frame = (*p)[n]
	*p = (*p)[:n]
	return frame, true
}

// The pool has two sides. The cache lines of a frame that was received are in the cache
// of the core that wrote it, so that writing to the frame here is slow. Those of a frame
// that was sent are in the cache of this core. So frames that were received are used to
// receive again, and frames that were sent to send again, as long as each side has some.
const (
	receiveSide = iota
	sendSide
)

func sideOf(o Owner) int {
	if o == KernelTransmit {
		return sendSide
	}
	return receiveSide
}

// New cuts mem into frames of frameSize bytes, a power of two. The first
// received of them are on the fill ring already; the others are in the pool.
func New(mem []byte, frameSize uint32, received int) (*Segment, error) {
	if frameSize == 0 || frameSize&(frameSize-1) != 0 || len(mem) == 0 || len(mem)%int(frameSize) != 0 {
		return nil, fmt.Errorf("%w: %d bytes in frames of %d", ErrSize, len(mem), frameSize)
	}
	n := len(mem) / int(frameSize)
	if received < 0 || received > n {
		return nil, fmt.Errorf("%w: %d frames, of which %d are on the fill ring", ErrSize, n, received)
	}
	s := &Segment{
		mem:   mem,
		shift: uint(bits.TrailingZeros32(frameSize)),
		owner: make([]Owner, n),
	}
	for i := range s.pools {
		s.pools[i] = make(frames, 0, n)
	}
	s.runs.from = uint32(n)
	for i := range received {
		s.owner[i] = KernelReceive
	}
	for i := n - 1; i >= received; i-- {
		if poisoning {
			s.poison(uint32(i))
		}
		s.pools[sendSide] = append(s.pools[sendSide], uint32(i))
	}
	return s, nil
}

// FrameSize is the size of a frame in bytes.
func (s *Segment) FrameSize() uint32 { return 1 << s.shift }

// Available is the number of frames in the pool, without those of runs.
func (s *Segment) Available() int { return len(s.pools[receiveSide]) + len(s.pools[sendSide]) }

// Bytes are the n bytes from addr on. It panics if they do not lie in one frame or one run.
func (s *Segment) Bytes(addr uint64, n uint32) []byte {
	end := addr + uint64(n)
	if n > 0 && addr>>s.shift != (end-1)>>s.shift {
		s.checkRun(addr, n)
	}
	return s.mem[addr:end:end]
}

// checkRun panics if the n bytes from addr on do not lie in one run.
func (s *Segment) checkRun(addr uint64, n uint32) {
	if end := (addr>>s.shift + uint64(s.InRun(addr))) << s.shift; addr+uint64(n) > end {
		panic(fmt.Sprintf("BUG: %d bytes at %#x leave their frame of %d", n, addr, s.FrameSize()))
	}
}

// Alloc takes a frame out of the pool, for to, and returns its address. It is
// false when the pool is empty.
func (s *Segment) Alloc(to Owner) (addr uint64, ok bool) {
	side := sendSide
	if to == KernelReceive {
		side = receiveSide
	}
	frame, ok := s.pools[side].pop()
	if !ok {
		if frame, ok = s.pools[1-side].pop(); !ok {
			return 0, false
		}
	}
	if poisoning {
		s.checkPoison(frame)
	}
	s.owner[frame] = to
	return uint64(frame) << s.shift, true
}

// Free gives the frame that addr lies in back to the pool. It panics if from does not own
// the frame.
func (s *Segment) Free(addr uint64, from Owner) {
	frame := s.Move(addr, from, Pool)
	if poisoning {
		s.poison(frame)
	}
	if frame >= s.runs.from {
		s.runs.free(frame)
		return
	}
	side := sideOf(from)
	s.pools[side] = append(s.pools[side], frame)
}

// Move passes the frame that addr lies in from one owner to another and returns its
// number. A frame goes to the pool by Free.
func (s *Segment) Move(addr uint64, from, to Owner) uint32 {
	frame := addr >> s.shift
	if frame >= uint64(len(s.owner)) || s.owner[frame] != from {
		s.misuse(addr, from, to)
	}
	s.owner[frame] = to
	return uint32(frame)
}

func (s *Segment) misuse(addr uint64, from, to Owner) {
	frame := addr >> s.shift
	if frame >= uint64(len(s.owner)) {
		panic(fmt.Sprintf("BUG: address %#x is outside the segment of %d frames", addr, len(s.owner)))
	}
	panic(fmt.Sprintf("BUG: frame %d passed from %v to %v, but it is owned by %v", frame, from, to, s.owner[frame]))
}

// Audit is how many frames each owner holds.
type Audit [owners]int

func (a Audit) String() string {
	return fmt.Sprintf("pool %d, kernel-receive %d, stack %d, application %d, kernel-transmit %d",
		a[Pool], a[KernelReceive], a[Stack], a[Application], a[KernelTransmit])
}

// Audit counts the frames by owner. It panics if the pool's list and the
// owners disagree. Its cost grows with the number of frames: it is for tests
// and for a check at the end.
func (s *Segment) Audit() Audit {
	var a Audit
	for _, o := range s.owner {
		a[o]++
	}
	if have := s.Available() + s.runs.home(); a[Pool] != have {
		panic(fmt.Sprintf("BUG: %d frames are the pool's, %d are on its lists", a[Pool], have))
	}
	for _, p := range s.pools {
		for _, f := range p {
			if s.owner[f] != Pool {
				panic(fmt.Sprintf("BUG: frame %d is on the pool's list and owned by %v", f, s.owner[f]))
			}
		}
	}
	return a
}

// runs are the adjacent frames from which packets longer than a frame are sent. They are
// cut from the end of the segment once. A free frame of a run is owned by the pool but is
// in none of its lists; a run can be allocated when all its frames are free.
type runs struct {
	from   uint32   // the first frame of the first run; the number of frames if there are none
	length uint32   // frames each
	list   frames   // runs whose frames are all in the pool, by number
	away   []uint32 // by run: how many of its frames are not in the pool
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
	// New has put the last frame of the segment first on the list.
	n := copy(*free, (*free)[count*length:])
	*free = (*free)[:n]
	s.runs = runs{
		from: uint32(len(s.owner) - count*length), length: uint32(length),
		list: make(frames, 0, count), away: make([]uint32, count),
	}
	for i := count - 1; i >= 0; i-- {
		s.runs.list = append(s.runs.list, uint32(i))
	}
	return count
}

// AllocRun takes a run out of the pool, for to, and returns the address of its first
// frame. It is false when of each run some frames are in use.
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

// InRun is how many frames there are from the one that addr lies in to the end of its
// run, or 0 if it is in none.
func (s *Segment) InRun(addr uint64) int {
	frame := uint32(addr >> s.shift)
	if frame < s.runs.from {
		return 0
	}
	return int(s.runs.length - (frame-s.runs.from)%s.runs.length)
}

// free notes that a frame of a run is in the pool again.
func (r *runs) free(frame uint32) {
	i := (frame - r.from) / r.length
	if r.away[i]--; r.away[i] == 0 {
		r.list = append(r.list, i)
	}
}

// home is the number of frames that are in the pool.
func (r *runs) home() int {
	n := len(r.away) * int(r.length)
	for _, away := range r.away {
		n -= int(away)
	}
	return n
}
