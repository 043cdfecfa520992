//go:build linux

package mempath

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/unet-go/unet/internal/testutil"
	"golang.org/x/sys/unix"
)

// pair opens both ends of a path for the length of a test.
func pair(t testing.TB) (a, b *Path) {
	t.Helper()
	da, db, err := Make()
	testutil.Must(t, err)
	a, err = Open(da)
	testutil.Must(t, err)
	b, err = Open(db)
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, errors.Join(a.Close(), b.Close())) })
	return a, b
}

// heapPair is both ends of a path in memory of the Go heap, which the race detector watches, and without bells.
func heapPair() (a, b *Path) {
	x, y := make([]byte, memorySize), make([]byte, memorySize)
	a, b = newPath(x, y), newPath(y, x)
	a.ring, a.bell, b.ring, b.bell = -1, -1, -1, -1
	return a, b
}

// Next is Scan(1) and Take, where no frame is scanned yet.
func (p *Path) Next(buf []byte) (n int, err error) {
	if p.next == p.reader.n {
		if n, err := p.Scan(1); n == 0 {
			return 0, err
		}
	}
	return p.Take(buf), nil
}

// send puts a frame into the ring and wakes the other end. It returns false if there is no room.
func send(p *Path, frame []byte) bool {
	room := p.Reserve(len(frame))
	if room == nil {
		p.Flush()
		return false
	}
	copy(room, frame)
	p.Publish(len(frame))
	p.Flush()
	return true
}

// content is n bytes for frames.
func content(seed uint64, n int) []byte {
	frame := make([]byte, n)
	rng := rand.New(rand.NewPCG(seed, 1))
	for j := 0; j < n; j += 8 {
		v := rng.Uint64()
		if rng.IntN(4) == 0 {
			v = tag | rng.Uint64N(MaxFrame) // what a reader that looks in the wrong place takes for a frame
		}
		for k := j; k < min(j+8, n); k++ {
			frame[k] = byte(v >> (8 * (k - j)))
		}
	}
	return frame
}

func randomSize(rng *rand.Rand) int {
	switch rng.IntN(8) {
	case 0:
		return 1 + rng.IntN(MaxFrame)
	case 1:
		return MaxFrame - rng.IntN(2)
	case 2:
		return 1 + rng.IntN(65000)
	}
	return 1 + rng.IntN(1600)
}

// Frames of random lengths are sent and taken in random turns. All of them arrive as they were sent, none is
// offered that was not sent, and after the ring has been emptied at most twice there is room for any frame:
// once for the skip, and once for the frame.
func TestModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	a, b := heapPair()
	var queue [][]byte
	data, buf := content(0, 2*MaxFrame), make([]byte, MaxFrame)
	take := func() {
		n := b.Len()
		if len(queue) == 0 || n != len(queue[0]) || b.Take(buf) != n || !bytes.Equal(buf[:n], queue[0]) {
			t.Fatalf("took a frame of %d bytes, %d frames are under way", n, len(queue))
		}
		queue = queue[1:]
	}
	scan := func(most int) int {
		n, err := b.Scan(most)
		if err != nil || n > len(queue) || n < min(most, len(queue), MaxScan-b.next) {
			t.Fatalf("Scan(%d): %d of %d frames, %v", most, n, len(queue), err)
		}
		return n
	}
	for i := range 10000 {
		switch rng.IntN(4) {
		case 0:
			n := scan(1 + rng.IntN(MaxScan))
			for range rng.IntN(n + 1) {
				take()
			}
		case 1:
			pending := b.Pending()
			if n, err := b.Next(buf); err != nil || (n > 0) != (len(queue) > 0) || n > 0 && !pending {
				t.Fatalf("Next: %d bytes, %v; %d frames are under way, pending %v", n, err, len(queue), pending)
			} else if n > 0 {
				if !bytes.Equal(buf[:n], queue[0]) {
					t.Fatal("Next: wrong frame")
				}
				queue = queue[1:]
			}
		default:
			at := rng.IntN(MaxFrame)
			frame := data[at : at+randomSize(rng)]
			if rng.IntN(8) == 0 {
				a.Reserve(1 + rng.IntN(MaxFrame)) // and give it up
			}
			sent := send(a, frame)
			for drains := 0; !sent && drains < 2 && i%2 == 0; drains++ {
				for scan(1) > 0 {
					take()
				}
				sent = send(a, frame)
			}
			if sent {
				queue = append(queue, frame)
			} else if i%2 == 0 {
				t.Fatalf("no room for %d bytes in an empty ring", len(frame))
			}
		}
		if used := a.written - b.consumed; used+line > ringSize {
			t.Fatalf("%d bytes of the ring are used", used)
		}
	}
}

// At every place of the ring a frame is sent that ends at the end of the ring, or does not fit there, by a byte more or less.
func TestWrapAtEveryOffset(t *testing.T) {
	a, b := pair(t)
	data, buf := content(0, MaxFrame), make([]byte, MaxFrame)
	pass := func(n int) {
		t.Helper()
		for tries := 0; !send(a, data[:n]); tries++ {
			if m, err := b.Next(buf); m != 0 || err != nil || tries == 2 {
				t.Fatalf("no room for %d bytes in an empty ring at %d; Next: %d, %v", n, a.head, m, err)
			}
		}
		if !b.Pending() {
			t.Fatal("a frame waits and is not pending")
		}
		if m, err := b.Next(buf); m != n || err != nil || !bytes.Equal(buf[:n], data[:n]) {
			t.Fatalf("Next: %d bytes, %v, want %d", m, err, n)
		}
		if m, err := b.Next(buf); m != 0 || err != nil || b.Pending() {
			t.Fatalf("Next of an empty ring: %d bytes, %v, pending %v", m, err, b.Pending())
		}
	}
	moveTo := func(at int) {
		for int(a.head) != at {
			to := at
			if at < int(a.head) {
				to = ringSize
			}
			pass(min(to-int(a.head)-wordSize, MaxFrame))
		}
	}
	for at := 0; at < ringSize; at += line {
		left := ringSize - at - wordSize // the longest frame without a skip
		for _, n := range []int{1, left - line, left - 1, left, left + 1, left + line} {
			if n >= 1 && n <= MaxFrame {
				moveTo(at)
				pass(n)
			}
		}
	}
}

// While nothing is taken, frames fit until a line is left, and no further. The reader gives room back when it has taken a
// quarter of the ring, and when nothing is left.
func TestFullRing(t *testing.T) {
	a, b := heapPair()
	frame := content(1, line-wordSize)
	fill := func() (n int) {
		for send(a, frame) {
			n++
		}
		return n
	}
	if n := fill(); n != ringSize/line-1 {
		t.Errorf("%d frames of a line fit", n)
	}
	buf := make([]byte, line)
	for taken := 1; taken < ringSize/line; taken++ {
		if n, err := b.Next(buf); n != len(frame) || err != nil || !bytes.Equal(buf[:n], frame) {
			t.Fatalf("Next: %d bytes, %v", n, err)
		}
		if got := load(a.other.consumed); got != uint64(taken*line)/(ringSize/4)*(ringSize/4) {
			t.Fatalf("%d bytes consumed after %d were taken", got, taken*line)
		}
	}
	b.Next(buf)
	if n := fill(); n != ringSize/line-1 {
		t.Errorf("%d frames of a line fit after all were taken", n)
	}
}

// Scan offers what was published before it, and no more, also if it was not taken at once. A buffer that is too
// short gets the beginning of the frame, and nothing is written after it.
func TestScanIsAMoment(t *testing.T) {
	a, b := heapPair()
	send(a, []byte("one"))
	send(a, []byte("two"))
	if n, err := b.Scan(MaxScan); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	send(a, []byte("three"))
	buf := []byte("----")
	if n := b.Take(buf[:2]); n != 3 || string(buf) != "on--" {
		t.Errorf("Take: %d, %s", n, buf)
	}
	if n := b.Take(buf); n != 3 || string(buf) != "two-" {
		t.Errorf("Take: %d, %s", n, buf)
	}
	if n := b.Take(buf); n != 0 || b.Len() != 0 || !b.Pending() {
		t.Errorf("Take: %d, Len %d, Pending %v", n, b.Len(), b.Pending())
	}
	if n, err := b.Scan(1); n != 1 || err != nil || b.Len() != 5 {
		t.Errorf("Scan: %d, %v; Len %d", n, err, b.Len())
	}
}

// Frames go both ways between two goroutines, in memory that the race detector watches, with random rests of both.
func TestConcurrent(t *testing.T) {
	a, b := heapPair()
	const frames = 800
	done := make(chan bool)
	run := func(p *Path, seed uint64) {
		defer func() { done <- true }()
		rng := rand.New(rand.NewPCG(seed, 0))
		peer := rand.New(rand.NewPCG(3-seed, 0)) // draws the lengths that the other end draws
		sizes, theirs := rand.New(rand.NewPCG(rng.Uint64(), 0)), rand.New(rand.NewPCG(peer.Uint64(), 0))
		data, buf := content(9, MaxFrame), make([]byte, MaxFrame)
		size := randomSize(sizes)
		for sent, got := 0, 0; sent < frames || got < frames; {
			for range rng.IntN(20) {
				if sent < frames && send(p, data[:size]) {
					size = randomSize(sizes)
					sent++
				}
			}
			if rng.IntN(10) == 0 {
				runtime.Gosched()
			}
			n, err := p.Scan(1 + rng.IntN(MaxScan))
			if err != nil {
				t.Error(err)
				return
			}
			for range n {
				if want, n := randomSize(theirs), p.Take(buf); n != want || !bytes.Equal(buf[:n], data[:n]) {
					t.Errorf("frame %d has %d bytes, want %d, or other content", got, n, want)
					return
				}
				got++
			}
			p.Flush()
			if n == 0 {
				runtime.Gosched()
			}
		}
	}
	go run(a, 1)
	go run(b, 2)
	<-done
	<-done
}

// sleep waits for the bell as an application does.
func sleep(p *Path, pending func() bool) {
	p.SetAsleep(true)
	if !pending() {
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(p.bell), Events: unix.POLLIN}}, -1)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	p.SetAsleep(false)
	p.Drain()
}

// A sender sleeps when the ring is full, and a receiver when it is empty. Each is woken.
func TestSleep(t *testing.T) {
	a, b := pair(t)
	const frames = 3000
	done := make(chan bool)
	go func() {
		defer close(done)
		rng := rand.New(rand.NewPCG(1, 1))
		data := content(3, MaxFrame)
		for range frames {
			n := randomSize(rng)
			for !send(a, data[:n]) {
				sleep(a, func() bool { return false })
			}
		}
	}()
	rng := rand.New(rand.NewPCG(1, 1))
	data, buf := content(3, MaxFrame), make([]byte, MaxFrame)
	for got := 0; got < frames; {
		n, err := b.Next(buf)
		switch {
		case err != nil:
			t.Fatal(err)
		case n == 0:
			b.Flush()
			sleep(b, b.Pending)
		default:
			if want := randomSize(rng); n != want || !bytes.Equal(buf[:n], data[:n]) {
				t.Fatalf("frame %d has %d bytes, want %d, or other content", got, n, want)
			}
			got++
		}
		if got%7 == 0 {
			b.Flush()
		}
	}
	<-done
}

// Nothing on the way of a frame allocates.
func TestNoAllocations(t *testing.T) {
	a, b := pair(t)
	frame, buf := content(1, 1514), make([]byte, 1514)
	if n := testing.AllocsPerRun(1000, func() {
		b.SetAsleep(true)
		for range 100 { // more than fit
			send(a, frame)
		}
		b.SetAsleep(false)
		b.Drain()
		for n := 1; n > 0; {
			n, _ = b.Next(buf)
		}
		b.Flush()
		a.Drain()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
