package plan

import (
	"testing"
	"time"
)

func testGoodput() Goodput {
	return Goodput{
		Loss: []float64{0.1, 5}, Delay: []time.Duration{time.Millisecond, 20 * time.Millisecond}, Rate: 1e8,
		Others: []Link{Bottleneck(), Reordering()}, Shares: []Link{Bottleneck()},
		Attach: "port", Wait: "spin", Rounds: 1, Time: time.Second, ShareTime: time.Second,
	}
}

// TestEveryRoadHasItsBaseline: four flows on each, one of them the kernel's.
func TestEveryRoadHasItsBaseline(t *testing.T) {
	runs, err := testGoodput().Runs()
	if err != nil {
		t.Fatal(err)
	}
	flows, kernels, shared := map[string]int{}, map[string]int{}, 0
	for _, r := range runs {
		if r.Shared() {
			shared++
			continue
		}
		flows[r.Link.Name]++
		if r.Flows[0].Kernel() {
			kernels[r.Link.Name]++
		}
		if o := r.Link.Opening(); o.Loss != 0 || o.Reorder != 0 || o.Delay != r.Link.Rule.Delay || o.Rate != r.Link.Rule.Rate {
			t.Errorf("%s is opened under %+v", r.Link.Name, o)
		}
	}
	if len(flows) != 6 || shared != 3 {
		t.Errorf("%d links and %d shared ones: %v", len(flows), shared, flows)
	}
	for link, n := range flows {
		if n != 4 || kernels[link] != 1 {
			t.Errorf("%s: %d flows, %d of the kernel", link, n, kernels[link])
		}
	}
}

func TestBadGoodputIsRefused(t *testing.T) {
	for name, spoil := range map[string]func(*Goodput){
		"loss":       func(g *Goodput) { g.Loss = []float64{100} },
		"less":       func(g *Goodput) { g.Loss = []float64{-1} },
		"delay":      func(g *Goodput) { g.Delay = []time.Duration{-1} },
		"no delay":   func(g *Goodput) { g.Delay = nil },
		"rate":       func(g *Goodput) { g.Rate = -1 },
		"attach":     func(g *Goodput) { g.Attach = "tape" },
		"wait":       func(g *Goodput) { g.Wait = "not" },
		"rounds":     func(g *Goodput) { g.Rounds = 0 },
		"time":       func(g *Goodput) { g.Time = 0 },
		"share time": func(g *Goodput) { g.ShareTime = 0 },
		"nothing":    func(g *Goodput) { g.Loss, g.Others, g.Shares = nil, nil, nil },
	} {
		g := testGoodput()
		if spoil(&g); g.check() == nil {
			if _, err := g.Runs(); err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
	}
}
