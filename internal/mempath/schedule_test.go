//go:build linux && unetdebug && !race

package mempath

import (
	"iter"
	"math/bits"
	"testing"

	"github.com/unet-go/unet/internal/testutil"
	"golang.org/x/sys/unix"
)

// actor is one end of a path. It stops before each access to a word that both ends use, and to a bell.
type actor struct {
	path   *Path
	resume func() (bool, bool)
	yield  func(asleep bool) bool
	asleep bool // it waits for its bell
	ended  bool
	seen   uint64 // a hash of all that it has read so far, in this order, which determines what it does next
}

// abandoned is the panic that ends an actor.
type abandoned struct{}

func (a *actor) pause(asleep bool) {
	if !a.yield(asleep) {
		panic(abandoned{})
	}
}

func (a *actor) run(end func(*actor)) {
	defer func() {
		if r := recover(); r != nil && r != any(abandoned{}) {
			panic(r)
		}
	}()
	a.pause(false)
	a.seen = 1 // it has begun
	end(a)
}

// sleep is what an end does when there is nothing to do.
func (a *actor) sleep(pending func() bool) {
	a.path.Flush()
	a.path.SetAsleep(true)
	if !pending() {
		a.pause(true)
	}
	a.path.SetAsleep(false)
	a.path.Drain()
}

func never() bool { return false }

func (a *actor) send(frame []byte, pending func() bool) {
	for !send(a.path, frame) {
		a.sleep(pending)
	}
}

func (a *actor) receive(frames int) {
	var buf [1]byte
	for frames > 0 {
		if n, _ := a.path.Next(buf[:]); n > 0 {
			frames--
		} else {
			a.sleep(a.path.Pending)
		}
	}
	a.path.Scan(1)
	a.path.Flush()
}

// state is all that the rest of a run depends on: each word has one writer, so that what both have read determines the
// words too.
type state struct {
	seen   [2]uint64
	rings  [2]int
	asleep [2]bool
}

// explore runs two ends by all schedules: at each access either of them can be next. None may end with an end that
// sleeps for ever. A schedule that leads to a state for the second time is not continued.
func explore(t *testing.T, prepare func(a, b *Path), ends ...func(*actor)) {
	x, y := make([]byte, memorySize), make([]byte, memorySize)
	pa, pb := pair(t)
	running := (*actor)(nil)
	t.Cleanup(func() { beforeStep = nil })
	known := map[state]bool{}
	var choices, options []int // of the run: which of how many
	for runs := 1; ; runs++ {
		beforeStep = nil
		for _, mem := range [][]byte{x, y} {
			for at := 0; at < memorySize; at += line { // the words, and the first of each line
				*word(mem, uint64(at)) = 0
			}
		}
		actors := [2]*actor{{path: newPath(x, y)}, {path: newPath(y, x)}}
		for i, p := range []*Path{pa, pb} {
			actors[i].path.ring, actors[i].path.bell = p.ring, p.bell
			rings(p)
		}
		prepare(actors[0].path, actors[1].path)
		var stops []func()
		for i, a := range actors {
			resume, stop := iter.Pull(func(yield func(bool) bool) {
				a.yield = yield
				a.run(ends[i])
			})
			a.resume = resume
			stops = append(stops, stop)
			resume()
		}
		beforeStep = func(w *uint64) {
			running.pause(false)
			value := uint64(1)
			if w != nil {
				value = *w
			}
			running.seen = bits.RotateLeft64(running.seen^value*0x9e3779b97f4a7c15, 23)*0xbf58476d1ce4e5b9 + 1
		}
		var ready [2]*actor
		for at := 0; ; at++ {
			n := 0
			var now state
			for i, a := range actors {
				now.seen[i], now.rings[i], now.asleep[i] = a.seen, rung(a.path), a.asleep
				if !a.ended && (!a.asleep || now.rings[i] > 0) {
					ready[n] = a
					n++
				}
			}
			if n == 0 && !(actors[0].ended && actors[1].ended) {
				t.Fatalf("an end sleeps for ever after the choices %v", choices)
			}
			if n == 0 || at == len(choices) && known[now] {
				break
			}
			if at == len(choices) {
				known[now] = true
				choices, options = append(choices, 0), append(options, n)
			}
			running = ready[choices[at]]
			asleep, more := running.resume()
			running.asleep, running.ended = asleep, !more
		}
		for _, stop := range stops {
			stop()
		}
		for len(choices) > 0 && choices[len(choices)-1]+1 == options[len(choices)-1] {
			choices, options = choices[:len(choices)-1], options[:len(choices)-1]
		}
		if len(choices) == 0 {
			t.Logf("%d schedules, %d states", runs, len(known))
			return
		}
		choices[len(choices)-1]++
	}
}

// rung is how often the bell of an end was rung since it was drained.
func rung(p *Path) int { return testutil.Value(unix.IoctlGetInt(p.bell, unix.TIOCINQ)) }

func TestSchedules(t *testing.T) {
	long := make([]byte, ringSize/2)
	t.Run("empty ring", func(t *testing.T) {
		explore(t, func(a, b *Path) {},
			func(a *actor) { a.send([]byte{1}, never); a.send([]byte{2}, never) },
			func(a *actor) { a.receive(2) })
	})
	t.Run("full ring", func(t *testing.T) {
		explore(t, func(a, b *Path) { send(a, long) },
			func(a *actor) { a.send(long, never) },
			func(a *actor) { a.receive(2) })
	})
	// The second frame fits only when the skip before it was taken, for which the reader has to be woken.
	t.Run("skip", func(t *testing.T) {
		explore(t, func(a, b *Path) {
			send(a, long)
			testutil.Value(b.Next(make([]byte, 1)))
			testutil.Value(b.Next(make([]byte, 1)))
			b.Flush()
		},
			func(a *actor) { a.send(make([]byte, MaxFrame), never) },
			func(a *actor) { a.receive(1) })
	})
	t.Run("both ways", func(t *testing.T) {
		explore(t, func(a, b *Path) {},
			func(a *actor) { a.send([]byte{1}, never); a.receive(1) },
			func(a *actor) { a.receive(1); a.send([]byte{2}, never) })
	})
}
