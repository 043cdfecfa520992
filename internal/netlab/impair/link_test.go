//go:build linux

package impair_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
	"github.com/unet-go/unet/internal/testutil"
)

const ms = time.Millisecond

// expected are the frames that the model lets through, in order.
func expected(m *linksim.Model, frames [][]byte) (out [][]byte) {
	for _, f := range frames {
		x := m.Next(0, linksim.Frame{Size: len(f)})
		for _, c := range x.Copy[:x.Copies] {
			g := bytes.Clone(f)
			if c.Flip >= 0 {
				g[c.Flip/8] ^= 1 << (c.Flip % 8)
			}
			out = append(out, g)
		}
	}
	return out
}

// batch is a number of frames that every buffer on the path can hold.
const batch = 500

// TestLinkDeliversWhatModelDecides sends the same frames over the link and to a model of the same seed: the
// frames that arrive are those of the model, byte for byte, in both directions at the same time.
func TestLinkDeliversWhatModelDecides(t *testing.T) {
	n := 8 * batch
	if testing.Short() {
		n = 2 * batch
	}
	for _, c := range []struct {
		name string
		rule impair.Rule
	}{
		{"no impairment", impair.Rule{}},
		{"loss 1 %", impair.Rule{Loss: 0.01}},
		{"loss 30 %", impair.Rule{Loss: 0.3}},
		{"bursts", impair.Rule{Burst: linksim.Burst{Enter: 0.02, Leave: 0.2, Keep: 0.1}}},
		{"duplicated", impair.Rule{Duplicate: 0.1}},
		{"corrupted", impair.Rule{Corrupt: 0.2}},
		{"all, later", impair.Rule{Loss: 0.05, Burst: linksim.Burst{Enter: 0.01, Leave: 0.3}, Duplicate: 0.1, Corrupt: 0.1, Delay: 2 * ms, Jitter: 3 * ms}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := open(t, netlab.Config{}, impair.Config{AtoB: c.rule, BtoA: c.rule})
			for d := range impair.Direction(2) {
				from, to := l.hosts(d)
				frames := make([][]byte, n)
				for i := range frames {
					frames[i] = numbered(from, to, i, 18+i*37%1497)
				}
				want := expected(linksim.New(seed+uint64(d), c.rule), frames)
				out, in := l.packetSocket(t, from), l.packetSocket(t, to)
				t.Run([]string{"A to B", "B to A"}[d], func(t *testing.T) {
					t.Parallel()
					for i, f := range frames {
						out.send(f)
						if i%batch == batch-1 {
							l.settle(t, d, i+1)
						}
					}
					for i, w := range want {
						if got := in.receive(); !bytes.Equal(got, w) {
							t.Fatalf("frame %d of %d that arrive:\n%x, want\n%x", i, len(want), got, w)
						}
					}
					x := l.settle(t, d, n)
					if !in.empty() || x.Passed != uint64(len(want)) {
						t.Errorf("more than %d frames have arrived: %+v", len(want), x)
					}
					if b := c.rule.Burst; b == (linksim.Burst{}) {
						plausible(t, "lost", x.LostByChance, x.Frames, c.rule.Loss)
					}
					plausible(t, "duplicated", x.Duplicated, x.Frames-x.Lost(), c.rule.Duplicate)
					plausible(t, "corrupted", x.Corrupted, x.Copies(), c.rule.Corrupt)
				})
			}
		})
	}
}

func plausible(t *testing.T, what string, k, n uint64, p float64) {
	t.Helper()
	if !linksim.Plausible(k, n, p) {
		t.Errorf("%s: %d of %d, with probability %v", what, k, n, p)
	}
}

// TestSetChangesRuleOfOneDirection: a frame that was sent before a change of the rule is under the old rule, and
// the rule of the other direction does not change.
func TestSetChangesRuleOfOneDirection(t *testing.T) {
	l := open(t, netlab.Config{}, impair.Config{})
	out, in, back, here := l.packetSocket(t, l.A), l.packetSocket(t, l.B), l.packetSocket(t, l.B), l.packetSocket(t, l.A)
	m := linksim.New(seed, linksim.Rule{})
	sent := 0
	for _, r := range []impair.Rule{{Loss: 0.5}, {Blackout: linksim.Down}, {Duplicate: 0.5}, {Corrupt: 1}, {}, {Loss: 1}, {Delay: 20 * ms}, {Loss: 0.1}} {
		l.Set(impair.AtoB, r)
		m.Set(0, r)
		set := r
		set.Queue = linksim.DefaultQueue
		if got := l.Rule(impair.AtoB); got != set {
			t.Errorf("the rule is %+v, was set to %+v", got, set)
		}
		frames := make([][]byte, 100)
		for i := range frames {
			frames[i] = numbered(l.A, l.B, sent, 60)
			sent++
			out.send(frames[i])
			back.send(numbered(l.B, l.A, i, 60))
		}
		for i, w := range expected(m, frames) {
			if got := in.receive(); !bytes.Equal(got, w) {
				t.Fatalf("%+v: frame %d:\n%x, want\n%x", r, i, got, w)
			}
		}
		for i := range frames {
			if got := here.receive(); !bytes.Equal(got, numbered(l.B, l.A, i, 60)) {
				t.Fatalf("%+v: frame %d the other way: %x", r, i, got)
			}
		}
	}
	l.settle(t, impair.AtoB, sent)
	if !in.empty() {
		t.Error("more frames have arrived")
	}
	if c := l.Counters(impair.BtoA); c.Lost()+c.Duplicated+c.Corrupted != 0 {
		t.Errorf("the other way: %+v", c)
	}
}

// TestSetAppliesAtOnce: each frame is under the rule at the time at which it was sent, also if the test does not
// wait until it arrives.
func TestSetAppliesAtOnce(t *testing.T) {
	l := open(t, netlab.Config{}, impair.Config{AtoB: impair.Rule{Delay: 5 * ms}})
	out := l.packetSocket(t, l.A)
	for i := range 200 {
		l.Set(impair.AtoB, impair.Rule{Delay: 5 * ms})
		out.send(numbered(l.A, l.B, i, 60))
		l.Set(impair.AtoB, impair.Rule{Blackout: linksim.Down})
		out.send(numbered(l.A, l.B, i, 60))
	}
	if c := l.settle(t, impair.AtoB, 400); c.LostInBlackouts != 200 {
		t.Errorf("%+v", c)
	}
}

// TestOnlyHeldBackFramesAreOvertaken: frames that are held back arrive after later ones. The others keep their
// order.
func TestOnlyHeldBackFramesAreOvertaken(t *testing.T) {
	r := impair.Rule{Delay: ms, Reorder: 0.2, HoldBack: 30 * ms}
	l := open(t, netlab.Config{}, impair.Config{AtoB: r})
	out, in := l.packetSocket(t, l.A), l.packetSocket(t, l.B)
	m := linksim.New(seed, r)
	const n = 400
	held := make([]bool, n)
	for i := range n {
		held[i] = m.Next(0, linksim.Frame{Size: 60}).Copy[0].At != ms
		out.send(numbered(l.A, l.B, i, 60))
	}
	last, overtaken := -1, uint64(0)
	seen := make([]bool, n)
	for range n {
		i := int(binary.BigEndian.Uint32(in.receive()[14:]))
		switch {
		case seen[i]:
			t.Fatalf("frame %d arrives twice", i)
		case held[i] && i < last:
			overtaken++
		case !held[i] && i < last:
			t.Errorf("frame %d after %d, and was not held back", i, last)
		}
		seen[i] = true
		if !held[i] {
			last = i
		}
	}
	if c := l.settle(t, impair.AtoB, n); c.HeldBack != m.Counters().HeldBack || overtaken == 0 || overtaken > c.HeldBack {
		t.Errorf("%d overtaken, %+v", overtaken, c)
	}
}

// TestNoFrameArrivesEarly: no frame arrives before the end of its delay, or faster than the rate. (How much later
// it arrives depends on the machine.)
func TestNoFrameArrivesEarly(t *testing.T) {
	l := open(t, netlab.Config{}, impair.Config{})
	out, in := l.packetSocket(t, l.A), l.packetSocket(t, l.B)
	for i, delay := range []time.Duration{100 * time.Microsecond, ms, 20 * ms, 50 * ms} {
		l.Set(impair.AtoB, impair.Rule{Delay: delay, Jitter: delay})
		for k := range 10 {
			start := time.Now()
			out.send(numbered(l.A, l.B, i*10+k, 60))
			in.receive()
			if took := time.Since(start); took < delay {
				t.Errorf("a delay of %v took %v", delay, took)
			}
		}
	}
	const n = 100
	l.Set(impair.AtoB, impair.Rule{Rate: 10e6, Queue: n * 1000})
	start := time.Now()
	for i := range n {
		out.send(numbered(l.A, l.B, i, 1000))
	}
	for i := range n {
		if got := in.receive(); binary.BigEndian.Uint32(got[14:]) != uint32(i) {
			t.Fatalf("frame %d is %x", i, got)
		}
	}
	if took := time.Since(start); took < n*1000*8*time.Second/10e6 {
		t.Errorf("%d bytes at 10 Mb/s have taken %v", n*1000, took)
	}
}

// TestFullQueueDropsFrames: of frames that are sent at once, as many pass as fit the queue, and as leave it
// meanwhile. The others are lost.
func TestFullQueueDropsFrames(t *testing.T) {
	const size, perFrame = 1000, 8 * ms // at 1 Mb/s
	l := open(t, netlab.Config{}, impair.Config{AtoB: impair.Rule{Rate: 1e6, Queue: 10 * size}})
	out, in := l.packetSocket(t, l.A), l.packetSocket(t, l.B)
	const n = 200
	start := time.Now()
	for i := range n {
		out.send(numbered(l.A, l.B, i, size))
	}
	left := int(time.Since(start) / perFrame)
	c := l.settle(t, impair.AtoB, n)
	if passed := int(c.Passed); passed < 10 || passed > 11+left || c.LostInQueue != uint64(n-passed) {
		t.Errorf("%d frames could leave the queue meanwhile: %+v", left, c)
	}
	for i := range 10 {
		if got := in.receive(); !bytes.Equal(got, numbered(l.A, l.B, i, size)) {
			t.Errorf("frame %d: %x", i, got)
		}
	}
}

// TestBlackout: no frame that is sent during the blackout arrives. After its length frames pass again, without
// another call of Set.
func TestBlackout(t *testing.T) {
	const length = 100 * ms
	l := open(t, netlab.Config{}, impair.Config{})
	out, in := l.packetSocket(t, l.A), l.packetSocket(t, l.B)
	before := time.Now()
	l.Set(impair.AtoB, impair.Rule{Blackout: linksim.Blackout{Length: length}})
	set := time.Now()
	n := 0
	for time.Since(set) < length {
		out.send(numbered(l.A, l.B, n, 60))
		n++
		time.Sleep(ms)
	}
	out.send(numbered(l.A, l.B, n, 60))
	first := int(binary.BigEndian.Uint32(in.receive()[14:]))
	if took := time.Since(before); took < length {
		t.Errorf("a frame arrives %v after the blackout has begun", took)
	}
	c := l.settle(t, impair.AtoB, n+1)
	if c.LostInBlackouts == 0 || c.LostInBlackouts != uint64(first) || c.Lost() != c.LostInBlackouts {
		t.Errorf("frame %d is the first to arrive: %+v", first, c)
	}
}

// TestFramesOfAllSizesWithVLANTags: short and long frames, with no, one and two VLAN tags, with several MTUs.
func TestFramesOfAllSizesWithVLANTags(t *testing.T) {
	for _, mtu := range []int{576, 1500, 9000} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			l := open(t, netlab.Config{MTU: mtu}, impair.Config{BtoA: impair.Rule{Delay: ms}})
			for d := range impair.Direction(2) {
				from, to := l.hosts(d)
				out, in := l.packetSocket(t, from), l.packetSocket(t, to)
				for _, size := range []int{14, 15, 16, 60, mtu, mtu + 14} {
					f := numbered(from, to, 1, max(size, 18))[:size]
					tag := append(append(append([]byte{}, f[:12]...), 0x81, 0, 0x20, 5), f[12:]...)
					service := append(append(append([]byte{}, f[:12]...), 0x88, 0xa8, 0, 9), tag[12:]...)
					frames := [][]byte{f}
					if size >= 16 { // the kernel drops a tag with nothing behind it
						frames = append(frames, tag)
					}
					if size >= 16 && size <= mtu {
						frames = append(frames, service)
					}
					for _, f := range frames {
						out.send(f)
						if got := in.receive(); !bytes.Equal(got, f) {
							t.Errorf("sent %x, received %x", f, got)
						}
					}
				}
			}
		})
	}
}

// held is what a process holds: descriptors, mappings of packet sockets, goroutines,
// and how many processors its runtime has.
func held(t *testing.T) [4]int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	testutil.Must(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	testutil.Must(t, err)
	return [4]int{len(fds), strings.Count(string(maps), "socket:"), runtime.NumGoroutine(), runtime.GOMAXPROCS(0)}
}

// TestCloseFreesDescriptorsAndMappings: after Close there are not more descriptors, mappings, goroutines and
// processors of the runtime than before.
func TestCloseFreesDescriptorsAndMappings(t *testing.T) {
	netlab.RequireXDP(t)
	round := func(t *testing.T) {
		p, err := netlab.NewPair(netlab.Config{Cut: true})
		testutil.Must(t, err)
		if _, err := impair.NewLink(p, impair.Config{AtoB: impair.Rule{Loss: 2}}); err == nil {
			t.Error("a link with a loss of 200 %")
		}
		l, err := impair.NewLink(p, impair.Config{BtoA: impair.Rule{Delay: 1 << 40}})
		testutil.Must(t, err)
		out := lab{p, l}.packetSocket(t, p.B)
		out.send(numbered(p.B, p.A, 1, 60))
		testutil.Eventually(t, "a frame is in flight", func() bool { return l.Counters(impair.BtoA).InFlight == 1 })
		runtime.GC() // stops the relay's thread, too
		for range 2 {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		if c := l.Counters(impair.BtoA); c.Frames != 1 {
			t.Errorf("after Close: %+v", c)
		}
		l.Set(impair.AtoB, impair.Rule{Loss: 1})
		testutil.Must(t, p.Close())
		if _, err := impair.NewLink(p, impair.Config{}); err == nil {
			t.Error("a link on a closed pair")
		}
	}
	t.Run("at first", round) // opens what the runtime keeps open: its poller
	before := held(t)
	for range 3 {
		t.Run("again", round)
	}
	// There may be fewer, if a goroutine of an earlier test has ended meanwhile. If each round
	// left one there would be at least three more.
	testutil.Eventually(t, "no more is held than before", func() bool {
		now := held(t)
		return now[0] <= before[0] && now[1] <= before[1] && now[2] <= before[2] && now[3] == before[3]
	})
}

// TestNewLinkNeedsCutCable: NewLink refuses a pair whose cable is not cut.
func TestNewLinkNeedsCutCable(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{})
	if _, err := impair.NewLink(p, impair.Config{}); err == nil {
		t.Error("a link on a cable that is not cut")
	}
}
