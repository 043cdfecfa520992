package tcp

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/fate"
)

// pick chooses one of several values.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// anyRule is a direction of a link, out of all that fate can do to it. rtt is about how
// long the round trip is.
func anyRule(r *rand.Rand) fate.Rule {
	rule := fate.Rule{
		Loss:  pick(r, 0, 0, 0.001, 0.01, 0.05, 0.2),
		Delay: pick(r, 0, 20*time.Microsecond, time.Millisecond, 10*time.Millisecond, 50*time.Millisecond),
	}
	if r.IntN(3) == 0 { // a little late, or by more than anybody's patience
		rule.Reorder, rule.HoldBack = pick(r, 0.02, 0.3, 1), max(rule.Delay, 50*time.Microsecond)*pick[time.Duration](r, 1, 4, 20)/4
	}
	if r.IntN(4) == 0 {
		rule.Jitter = max(rule.Delay, 50*time.Microsecond) / pick[time.Duration](r, 1, 8)
	}
	if r.IntN(4) == 0 {
		rule.Duplicate = pick(r, 0.01, 0.3)
	}
	if r.IntN(5) == 0 {
		rule.Corrupt = pick(r, 0.001, 0.05)
	}
	if r.IntN(5) == 0 {
		rule.Burst = fate.Burst{Enter: 0.01, Leave: 0.5, Keep: pick(r, 0, 0.3)}
	}
	if r.IntN(3) == 0 {
		rule.Rate, rule.Queue = pick[int64](r, 1e6, 20e6, 500e6), pick(r, 3000, 20_000, 0)
		if r.IntN(3) == 0 {
			rule.MarkAbove = 5000
		}
	}
	if r.IntN(8) == 0 {
		rule.Blackout = fate.Blackout{After: time.Duration(r.IntN(int(200 * time.Millisecond))), Length: pick(r, 20*time.Millisecond, time.Second, 5*time.Second)}
		if rule.Blackout.Length < 5*time.Second && r.IntN(2) == 0 {
			rule.Blackout.Every = 7 * time.Second // of which no multiple is a minute, the longest timeout
		}
	}
	return rule
}

// TestTransfers is the matrix: loss, delay, reordering, duplication, corruption, bursts,
// rate, queue and blackouts, each direction by itself, times buffers, options and
// congestion control, times one way, both ways, and requests and answers.
func TestTransfers(t *testing.T) { eachSeed(t, 100, transfers) }

func transfers(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 79))
	cfg, o := [2]Config{}, [2]Options{}
	for i := range o {
		cfg[i] = Config{
			NoTimestamps:  r.IntN(5) == 0,
			NoSACK:        r.IntN(5) == 0,
			NoWindowScale: r.IntN(8) == 0,
			NewCongestion: pick(r, nil, nil, NewReno),
		}
		o[i] = Options{
			MTU:           pick(r, 576, 1500, 9000),
			ReceiveBuffer: pick(r, 2048, 16384, 200_000, 1<<20),
			SendBuffer:    pick(r, 2048, 30000, 1<<20),
			Nagle:         r.IntN(6) == 0,
			AdaptiveAck:   r.IntN(3) == 0,
			UserTimeout:   -1,
			KeepAlive:     KeepAlive{Enable: r.IntN(4) == 0, Count: 100},
		}
	}
	w := newWorld(t, seed, cfg)
	for i := range w.hosts {
		w.hosts[i].memory = Memory(r.IntN(3))
		w.impair(i, anyRule(r))
	}
	apps := [2]*blockingApp{}
	for i := range apps {
		apps[i] = &blockingApp{app: app{h: w.hosts[i], total: r.IntN(pick(r, 100, 10_000, 400_000))}, lendMode: r.IntN(3) == 0, poster: r.IntN(2) == 0}
	}
	switch r.IntN(3) {
	case 0: // one way
		apps[r.IntN(2)].total = 0
	case 1: // requests and answers
		turn := pick(r, 1, 100, 5000)
		n := 1 + r.IntN(60)
		for _, a := range apps {
			a.turn, a.total = turn, turn*n
		}
	}
	runBlocking(w, apps, o)
}
