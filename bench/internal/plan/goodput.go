package plan

import (
	"fmt"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab/impair"
)

// Link is an impaired link, the same in each direction.
type Link struct {
	Name string
	Rule impair.Rule
}

// Opening is the rule while connections are opened: the same delay, rate and queue, and no
// loss or reordering.
func (r Link) Opening() impair.Rule {
	return impair.Rule{Delay: r.Rule.Delay, Rate: r.Rule.Rate, Queue: r.Rule.Queue}
}

// Flow is one connection, from the host that sends to the one that receives.
type Flow struct{ From, To transport.Transport }

func (f Flow) String() string { return f.From.Name + " > " + f.To.Name }

// Kernel reports whether both ends are the kernel's.
func (f Flow) Kernel() bool { return !f.From.Granted && !f.To.Granted }

// Run is what is measured at a time: one flow, or two that share a link.
type Run struct {
	Link  Link
	Flows []Flow
}

func (r Run) String() string {
	s := r.Link.Name + ": " + r.Flows[0].String()
	for _, f := range r.Flows[1:] {
		s += " beside " + f.String()
	}
	return s
}

// Shared reports whether flows share the link.
func (r Run) Shared() bool { return len(r.Flows) > 1 }

// Goodput is what to measure over impaired links, and how.
type Goodput struct {
	Loss      []float64       // percent of frames
	Delay     []time.Duration // of a frame
	Rate      int64           // of the link with losses, bits a second
	Others    []Link          // beside every loss with every delay
	Shares    []Link          // that two flows share
	Attach    string
	Wait      string
	Rounds    int
	Time      time.Duration // of one flow
	ShareTime time.Duration // of flows that share
}

// bottleneck is a link with a queue of one bandwidth-delay product, 250 kB.
var bottleneck = impair.Rule{Rate: 100e6, Delay: 10 * time.Millisecond, Queue: 250_000}

// Bottleneck and Reordering are the links without random loss.
func Bottleneck() Link { return Link{"bottleneck", bottleneck} }

func Reordering() Link {
	r := bottleneck
	r.Reorder, r.HoldBack = 0.02, 4*time.Millisecond
	return Link{"reordering", r}
}

// Runs checks the selection and lists what is to be measured in each round.
func (g Goodput) Runs() (runs []Run, err error) {
	if err := g.check(); err != nil {
		return nil, err
	}
	ours, err := transport.ByName(transport.TCP)
	if err != nil {
		return nil, err
	}
	kernel, err := transport.ByName(transport.GoTCP)
	if err != nil {
		return nil, err
	}
	var links []Link
	for _, d := range g.Delay {
		for _, p := range g.Loss {
			rule := impair.Rule{Loss: p / 100, Delay: d, Rate: g.Rate}
			links = append(links, Link{fmt.Sprintf("loss %v %%, delay %v", p, d), rule})
		}
	}
	for _, link := range append(links, g.Others...) {
		for _, f := range []Flow{{kernel, kernel}, {ours, ours}, {ours, kernel}, {kernel, ours}} {
			runs = append(runs, Run{link, []Flow{f}})
		}
	}
	for _, link := range g.Shares {
		for _, f := range [][]Flow{{{kernel, kernel}, {kernel, kernel}}, {{ours, ours}, {ours, ours}}, {{ours, ours}, {kernel, kernel}}} {
			runs = append(runs, Run{link, f})
		}
	}
	if len(runs) == 0 {
		return nil, fmt.Errorf("nothing to measure: no --loss, and nothing else")
	}
	for _, r := range runs {
		if err := r.Link.Rule.Validate(); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Link.Name, err)
		}
	}
	return runs, nil
}

func (g Goodput) check() error {
	if _, err := endpoint.ParseAttachment(g.Attach); err != nil {
		return err
	}
	if _, err := unet.ParseWaitMode(g.Wait); err != nil {
		return err
	}
	switch {
	case g.Rounds < 1:
		return fmt.Errorf("--rounds %d: want at least 1", g.Rounds)
	case g.Time <= 0 || g.ShareTime <= 0:
		return fmt.Errorf("--time %v and --share-time %v: want more than 0", g.Time, g.ShareTime)
	case len(g.Loss) > 0 && len(g.Delay) == 0:
		return fmt.Errorf("--delay is empty")
	}
	for _, p := range g.Loss {
		if !(p >= 0 && p < 100) {
			return fmt.Errorf("--loss %v: want a percentage below 100", p)
		}
	}
	return nil
}
