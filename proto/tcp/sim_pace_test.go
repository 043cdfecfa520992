package tcp

import (
	"testing"
	"time"

	"github.com/unet-go/unet/internal/fate"
)

// TestPacing sends 200 kB after every half second of silence through bottlenecks with
// short queues, with and without pacing: at most half is lost with it, and no time.
func TestPacing(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name string
		rule fate.Rule
	}{
		{"20 Mb/s, 20 ms, queue of 15 kB", fate.Rule{Delay: 10 * ms, Rate: 20e6, Queue: 15_000}},
		{"20 Mb/s, 20 ms, queue of 150 kB", fate.Rule{Delay: 10 * ms, Rate: 20e6}},
		{"100 Mb/s, 10 ms, queue of 30 kB", fate.Rule{Delay: 5 * ms, Rate: 100e6, Queue: 30_000}},
		{"100 Mb/s, 2 ms, queue of 15 kB", fate.Rule{Delay: ms, Rate: 100e6, Queue: 15_000}},
	} {
		var lost [2]uint64
		var took [2]time.Duration
		for i, off := range []bool{true, false} {
			b := newBulkWith(t, Config{noPacing: off}, 1, c.rule, fate.Rule{Delay: c.rule.Delay}, 1)
			f := b.flows[0]
			for range 20 {
				f.quota += 200_000
				start := b.w.now
				for f.got < f.quota {
					b.run(ms/4, 1)
				}
				took[i] += time.Duration(b.w.now-start) / 20
				b.run(500*ms, 1)
			}
			lost[i] = b.w.lost
		}
		t.Logf("%s: %d segments lost and %v for 200 kB without pacing, %d and %v with it", c.name, lost[0], took[0], lost[1], took[1])
		if lost[1] > lost[0]/2 || took[1] > took[0]+took[0]/50 {
			t.Errorf("%s: pacing does not help", c.name)
		}
	}
}

// In a LAN nothing is paced.
func TestNoPacingInLAN(t *testing.T) {
	b := newBulkWith(t, Config{}, 1, fate.Rule{Delay: 300 * time.Microsecond}, fate.Rule{Delay: 300 * time.Microsecond}, 1)
	b.run(5*time.Millisecond, 1)
	if c := b.flows[0].from; c.paceNext != 0 || c.paced || b.flows[0].acked() < 1e5 {
		t.Errorf("paced until %v, %d bytes acknowledged", c.paceNext, b.flows[0].acked())
	}
}
