//go:build linux

package mempath

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/unet-go/unet/internal/testutil"
	"golang.org/x/sys/unix"
)

// guarded is memory of a path between two pages that cannot be accessed.
func guarded(t testing.TB) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, memorySize+2*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	testutil.Must(t, err)
	t.Cleanup(func() { unix.Munmap(mem) })
	end := pageSize + memorySize
	testutil.Must(t, errors.Join(unix.Mprotect(mem[:pageSize], unix.PROT_NONE), unix.Mprotect(mem[end:], unix.PROT_NONE)))
	return mem[pageSize:end:end]
}

// hostileWord is a word that the other end must not write, or one that it may.
func hostileWord(rng *rand.Rand, written uint64) uint64 {
	switch rng.IntN(6) {
	case 0:
		return 0
	case 1:
		return rng.Uint64()
	case 2:
		return written + rng.Uint64N(3) - 1
	case 3:
		return skip
	default:
		return tag + rng.Uint64N(1<<rng.IntN(33))
	}
}

// While the victim sends and receives, the other end writes anything anywhere that it can. The victim reads nothing
// outside of the memory (the guard pages), does not panic, and every call ends.
func TestHostileWriter(t *testing.T) {
	own, other := guarded(t), guarded(t)
	var written atomic.Uint64
	var stop atomic.Bool
	done := make(chan bool)
	go func() {
		defer close(done)
		rng := rand.New(rand.NewPCG(5, 5))
		for !stop.Load() {
			off := rng.Uint64N(8) * 64 // the words of the first page, which are read most often, and the first of the ring
			switch rng.IntN(4) {
			case 0:
				off = pageSize + rng.Uint64N(4)*line
			case 1:
				off = rng.Uint64N(memorySize/line) * line
			}
			atomic.StoreUint64(word(other, off), hostileWord(rng, written.Load()))
		}
	}()
	rng := rand.New(rand.NewPCG(6, 6))
	buf := make([]byte, MaxFrame)
	var lies, frames, sent int
	for range 30000 {
		p := newPath(own, other)
		p.ring, p.bell = -1, -1
		for range rng.IntN(40) {
			n := randomSize(rng)
			if room := p.Reserve(n); room != nil {
				if len(room) != n || cap(room) != n {
					t.Fatalf("reserved %d bytes, got %d", n, len(room))
				}
				room[0], room[n-1] = 1, 1
				p.Publish(n)
				written.Store(p.written)
				sent++
			}
			if n, err := p.Scan(rng.IntN(2 * MaxScan)); n < 0 || n > MaxScan || err != nil && !errors.Is(err, ErrLie) {
				t.Fatal(n, err)
			}
			for p.Len() > 0 {
				want := p.Len()
				if n := p.Take(buf[:1+rng.IntN(MaxFrame)]); n != want || n > MaxFrame {
					t.Fatalf("took %d bytes of %d", n, want)
				}
				frames++
			}
			p.Pending()
			p.Flush()
			p.Ready()
			p.Closing()
		}
		if p.Err() != nil {
			lies++
		}
	}
	stop.Store(true)
	<-done
	if lies == 0 || frames == 0 || sent == 0 {
		t.Errorf("%d lies, %d frames received, %d sent", lies, frames, sent)
	}
}

// Each word at the values that matter.
func TestConsumedWord(t *testing.T) {
	const written = ringSize/4 + ringSize - line // see below
	for _, c := range []struct {
		value uint64
		lie   bool
	}{
		{0, true}, {line - 1, true}, {ringSize/4 - 1, true}, {ringSize / 4, false}, {ringSize/4 + 1, false}, {written, false},
		{written + 1, true}, {math.MaxInt64, true}, {1 << 63, true}, {math.MaxUint64, true},
	} {
		a, b := heapPair()
		// A quarter is taken, and the ring full again.
		frame, buf := content(1, line-wordSize), make([]byte, line)
		for send(a, frame) {
		}
		for range ringSize / line / 4 {
			b.Next(buf)
		}
		for send(a, frame) {
		}
		if a.written != written {
			t.Fatalf("%d bytes were written", a.written)
		}
		store(b.own.consumed, c.value)
		send(a, frame)
		if lie := errors.Is(a.Err(), ErrLie); lie != c.lie {
			t.Errorf("consumed %#x: %v", c.value, a.Err())
		}
		if used := a.written - min(c.value, a.written); !c.lie && used+line > ringSize {
			t.Errorf("consumed %#x: %d bytes of the ring are used", c.value, used)
		}
		if a.Err() != nil {
			if n, err := a.Scan(1); n != 0 || err != a.Err() || a.Reserve(1) != nil {
				t.Errorf("after a lie: Scan %d, %v", n, err)
			}
		}
	}
}

func TestRingWord(t *testing.T) {
	for _, c := range []struct {
		at, value uint64
		n         int // length of the frame; 0: none, -1: a lie
	}{
		{0, 0, 0}, {0, 1, -1}, {0, math.MaxUint64, -1}, {0, 1 << 63, -1}, {0, tag - 1, -1}, {0, skip, -1}, {line, skip, 0}, {ringSize - line, skip, 0},
		{0, tag + 1, 1}, {0, tag + MaxFrame, MaxFrame}, {0, tag + MaxFrame + 1, -1}, {0, tag + math.MaxUint32, -1}, {0, tag + 1<<32 + 1, -1}, {0, tag ^ 1<<63 + 1, -1},
		{ringSize - line, tag + line - wordSize, line - wordSize}, {ringSize - line, tag + line - wordSize + 1, -1}, {ringSize - line, tag + MaxFrame, -1},
		{line, tag + MaxFrame, MaxFrame}, {2 * line, tag + MaxFrame, -1},
	} {
		a, b := heapPair()
		b.off = c.at
		b.at.Store(word(b.in, c.at))
		store(word(a.out, c.at), c.value)
		if got := b.Pending(); got != (c.value != 0) {
			t.Errorf("%#x at %d: pending %v", c.value, c.at, got)
		}
		n, err := b.Next(make([]byte, MaxFrame))
		if want := max(c.n, 0); n != want || errors.Is(err, ErrLie) != (c.n < 0) || err != b.Err() {
			t.Errorf("%#x at %d: %d bytes, %v, want %d", c.value, c.at, n, err, c.n)
		}
	}
}

// Each bit of the word of a frame, and of the bytes taken, is wrong, between frames that are true. What the word then says is
// taken for true where it can be, and is a lie where it cannot.
func TestFlippedBits(t *testing.T) {
	const size = 100
	frame, buf := content(1, size), make([]byte, MaxFrame)
	for bit := range 64 {
		a, b := heapPair()
		for range 3 {
			send(a, frame)
		}
		b.Next(buf)
		at := span(size)
		flipped := *word(a.out, at) ^ 1<<bit
		store(word(a.out, at), flipped)
		want := flipped - tag
		lie := flipped>>32 != tag>>32 || want > min(MaxFrame, ringSize-wordSize-at)
		if n, err := b.Next(buf); errors.Is(err, ErrLie) != lie || !lie && (uint64(n) != want || string(buf[:n]) != string(b.in[at+wordSize:at+wordSize+want])) {
			t.Errorf("bit %d of a frame's word: %d bytes, %v", bit, n, err)
		}
	}
	for bit := range 64 {
		a, b := heapPair()
		for send(a, frame) { // full
		}
		for n := 1; n > 0; n, _ = b.Next(buf) {
		}
		consumed := *b.own.consumed ^ 1<<bit
		store(b.own.consumed, consumed)
		sent := send(a, frame)
		if lie := consumed > a.written; errors.Is(a.Err(), ErrLie) != lie || lie && sent || consumed == 0 && sent {
			t.Errorf("bit %d of the bytes taken, %#x of %#x: sent %v, %v", bit, consumed, a.written, sent, a.Err())
		}
	}
}

// An end that gives the pages of its memory back to the kernel while the other one uses them makes it read zeros: there is no
// frame, nothing was taken. No access fails.
func TestHolesInTheMemory(t *testing.T) {
	da, db, err := Make()
	testutil.Must(t, err)
	hostile, err := unix.FcntlInt(da.Own.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	testutil.Must(t, err)
	defer unix.Close(hostile)
	a, err := Open(da)
	testutil.Must(t, err)
	defer a.Close()
	b, err := Open(db)
	testutil.Must(t, err)
	defer b.Close()
	frame, buf := content(1, 1000), make([]byte, MaxFrame)
	hole := func(off, size int64) {
		t.Helper()
		testutil.Must(t, unix.Fallocate(hostile, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, size))
	}
	for send(b, frame) { // b has to look at what a has taken
	}
	for send(a, frame) {
	}
	if n, err := b.Scan(MaxScan); n == 0 || err != nil {
		t.Fatalf("%d frames, %v", n, err)
	}
	hole(pageSize, ringSize)
	for b.Len() > 0 { // scanned before
		if n := b.Take(buf); n != len(frame) || string(buf[:n]) != string(make([]byte, n)) {
			t.Fatalf("%d bytes of what is a hole now", n)
		}
	}
	if n, err := b.Scan(MaxScan); n != 0 || err != nil || b.Pending() {
		t.Errorf("%d frames in a hole, %v", n, err)
	}
	hole(0, pageSize)
	if b.Ready() || b.Closing() || send(b, frame) || b.Err() != nil {
		t.Errorf("with a hole instead of the words: ready %v, closing %v, %v", b.Ready(), b.Closing(), b.Err())
	}
	b.Flush()
}

// rings is how often a bell was rung since the last call.
func rings(p *Path) int {
	var buf [4096]byte
	n, _ := unix.Read(p.bell, buf[:])
	return max(n, 0)
}

// A bell is rung once for a sleep, however often frames are published during it, and never for an end that is awake; and when
// something was taken, if the other end wants room.
func TestWakeWords(t *testing.T) {
	a, b := pair(t)
	for _, c := range []struct {
		asleep, wantsRoom uint64
		publish, free     bool
		want              int
	}{
		{asleep: 1, want: 0}, {asleep: 0, publish: true, want: 0}, {asleep: 1, publish: true, want: 1}, {asleep: 1, publish: true, want: 0},
		{asleep: 2, publish: true, want: 0}, {asleep: 3, publish: true, want: 1}, {asleep: 1, publish: true, want: 1}, {asleep: math.MaxUint64, publish: true, want: 1},
		{asleep: math.MaxUint64 - 1, publish: true, want: 0}, {asleep: math.MaxUint64, publish: true, want: 0}, {asleep: 1 << 63, publish: true, want: 0},
		{wantsRoom: 1, want: 0}, {wantsRoom: 1, free: true, want: 1}, {wantsRoom: 1, free: true, want: 1}, {wantsRoom: math.MaxUint64, free: true, want: 1}, {free: true, want: 0},
		{asleep: 5, wantsRoom: 1, publish: true, free: true, want: 1}, {asleep: 5, wantsRoom: 1, publish: true, free: true, want: 1}, {asleep: 5, wantsRoom: 1, publish: true, want: 0},
	} {
		store(b.own.asleep, c.asleep)
		store(b.own.wantsRoom, c.wantsRoom)
		a.sent, a.freed = c.publish, c.free
		a.Flush()
		a.Flush() // there is nothing new to tell
		if got := rings(b); got != c.want {
			t.Errorf("%+v: %d rings", c, got)
		}
	}
	store(b.own.wantsRoom, 0)
	for i, asleep := range []bool{true, true, false, true, false, false} { // a second sleep in a row is a new one
		b.SetAsleep(asleep)
		send(a, []byte{1})
		if got := rings(b); (got == 1) != asleep {
			t.Errorf("sleep %d: %d rings", i, got)
		}
	}
}

func TestStateWord(t *testing.T) {
	a, b := pair(t)
	for value, want := range map[uint64][2]bool{0: {}, stateOpen: {true, false}, stateClosed: {false, true}, stateClosing: {false, true}, 4: {}, math.MaxUint64: {}} {
		store(b.own.state, value)
		if got := [2]bool{a.Ready(), a.Closing()}; got != want {
			t.Errorf("state %#x: ready, closed %v, want %v", value, got, want)
		}
	}
}

// An other end that does not empty its bell, sets it to blocking, or has closed it does not stop this end.
func TestBellOfHostileEnd(t *testing.T) {
	da, db, err := Make()
	testutil.Must(t, err)
	defer db.Close()
	a, err := Open(da)
	testutil.Must(t, err)
	testutil.Must(t, errors.Join(unix.SetNonblock(int(db.Bell.Fd()), false), unix.SetNonblock(int(db.Ring.Fd()), false)))
	for range 3 * pageSize {
		a.wake()
	}
	var pipe [4 * pageSize]byte
	n, err := unix.Read(int(db.Bell.Fd()), pipe[:])
	if err != nil || n > pageSize {
		t.Errorf("the bell had %d bytes, %v", n, err)
	}
	a.Drain() // empty, and never blocks
	testutil.Must(t, db.Bell.Close())
	a.wake()
	testutil.Must(t, db.Ring.Close())
	a.Drain()
	db.Bell, db.Ring = nil, nil
	testutil.Must(t, a.Close())
}

// FuzzReader reads a ring with any words in any places, and compares with a simple reading of it.
func FuzzReader(f *testing.F) {
	entry := func(at, w uint64) []byte {
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint16(nil, uint16(at/line)), w)
	}
	join := func(start uint64, entries ...[]byte) []byte {
		b := binary.BigEndian.AppendUint16(nil, uint16(start/line))
		for _, e := range entries {
			b = append(b, e...)
		}
		return b
	}
	f.Add(join(0))
	f.Add(join(0, entry(0, tag+60), entry(2*line, tag+1514), entry(26*line, 0)))
	f.Add(join(ringSize-line, entry(ringSize-line, skip), entry(0, tag+MaxFrame), entry(ringSize-line, skip)))
	f.Add(join(line, entry(line, skip), entry(0, skip)))
	f.Add(join(ringSize-2*line, entry(ringSize-2*line, tag+120), entry(0, tag+56), entry(line, tag+math.MaxUint32)))
	f.Add(join(ringSize-2*line, entry(ringSize-2*line, tag+121)))
	f.Add(join(0, entry(0, tag+ringSize/2), entry(ringSize/2+line, skip))) // for ever
	buf := make([]byte, MaxFrame)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 2 {
			return
		}
		own, other := make([]byte, memorySize), make([]byte, memorySize)
		p := newPath(own, other)
		p.ring, p.bell = -1, -1
		at := uint64(binary.BigEndian.Uint16(b)) % (ringSize / line) * line
		p.off = at
		p.at.Store(word(p.in, at))
		for b = b[2:]; len(b) >= 10; b = b[10:] {
			store(word(p.in, uint64(binary.BigEndian.Uint16(b))%(ringSize/line)*line), binary.BigEndian.Uint64(b[2:]))
		}
		for skipped, frames := false, 0; frames < 300; {
			w := *word(p.in, at)
			n := w & math.MaxUint32
			lie := w>>32 != tag>>32 || n > MaxFrame || at+wordSize+n > ringSize || n == 0 && at == 0
			switch {
			case w != 0 && !lie && n == 0 && !skipped:
				at, skipped = 0, true
				continue
			case w == 0 || lie:
				if got, err := p.Next(buf); got != 0 || errors.Is(err, ErrLie) != (w != 0) {
					t.Fatalf("%d bytes, %v at %d, where the word is %#x", got, err, at, w)
				}
				return
			}
			if got, err := p.Next(buf); got != int(n) || err != nil || string(buf[:n]) != string(p.in[at+wordSize:at+wordSize+n]) {
				t.Fatalf("%d bytes, %v at %d, want %d", got, err, at, n)
			}
			at = (at + span(n)) % ringSize
			skipped = false
			frames++
		}
	})
}
