package impair_test

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
)

// held is what a process holds: descriptors, mappings of packet sockets, goroutines,
// and how many processors its runtime has.
func held(t *testing.T) [4]int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	return [4]int{len(fds), strings.Count(string(maps), "socket:"), runtime.NumGoroutine(), runtime.GOMAXPROCS(0)}
}

func TestNothingIsLeftBehind(t *testing.T) {
	netlab.RequireXDP(t)
	round := func(t *testing.T) {
		p, err := netlab.NewPair(netlab.Config{Cut: true})
		must(t, err)
		if _, err := impair.NewLink(p, impair.Config{AtoB: impair.Rule{Loss: 2}}); err == nil {
			t.Error("a link with a loss of 200 %")
		}
		l, err := impair.NewLink(p, impair.Config{BtoA: impair.Rule{Delay: 1 << 40}})
		must(t, err)
		out := lab{p, l}.packetSocket(t, p.B)
		out.send(numbered(p.B, p.A, 1, 60))
		eventually(t, "a frame is under way", func() bool { return l.Counters(impair.BtoA).UnderWay == 1 })
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
		must(t, p.Close())
		if _, err := impair.NewLink(p, impair.Config{}); err == nil {
			t.Error("a link on a closed pair")
		}
	}
	t.Run("at first", round) // opens what the runtime keeps open: its poller
	before := held(t)
	for range 3 {
		t.Run("again", round)
	}
	eventually(t, "as much is held as before", func() bool { return held(t) == before })
}

func TestWholeCable(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{})
	if _, err := impair.NewLink(p, impair.Config{}); err == nil {
		t.Error("a link in a cable that is whole")
	}
}
