package account

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/unet-go/unet/endpoint"
)

// Outcome is what has become of the frames that a counter counts.
type Outcome string

const (
	Passed     Outcome = "passed"     // left to the kernel of this host
	Redirected Outcome = "redirected" // to a port, a socket, the uplink or the kernel; it may be counted as Lost later
	Cut        Outcome = "cut"        // segmented: its parts are counted again
	Dropped    Outcome = "dropped"    // by a program
	Lost       Outcome = "lost"       // by the kernel, after it was counted as Redirected or before any program saw it
)

// OutcomeOf is the outcome of the frames that a counter of a mux counts. ok is false for counters that do
// not count frames (lease_*), and for those of one endpoint, which are parts of others.
func OutcomeOf(counter string) (f Outcome, ok bool) {
	switch counter {
	case "rx_port", "rx_queue", "rx_host", "rx_group", "tx_uplink", "tx_local", "tx_host", "tx_group", "deliver_socket", "mux_uplink", "mux_local", "mux_host":
		return Redirected, true
	case "rx_cut":
		return Cut, true
	}
	stage, _, _ := strings.Cut(counter, "_")
	switch {
	case strings.Contains(counter, "."):
		return "", false
	case counter == "rx_pass", strings.HasPrefix(counter, "rx_pass_"):
		return Passed, true
	case stage == "lost":
		return Lost, true
	case slices.Contains(Stages, stage):
		return Dropped, true
	}
	return "", false
}

// Stages are the prefixes of counters: received by the uplink or from the kernel of this host, sent by an
// endpoint, sent by the mux itself for an endpoint, at the inner end of a port.
var Stages = []string{"rx", "tx", "mux", "deliver"}

// Balance compares the frames that were redirected to ports, or sent there by the kernel itself, with those that have
// reached the inner ends of ports or are counted as lost on the way. On a mux at rest In equals Out.
type Balance struct {
	In  uint64 `json:"in"`
	Out uint64 `json:"out"`
}

// Missing is In - Out: frames that have disappeared, or, while traffic flows, are on their way. It
// is negative if more came out than went in: another program has sent into a port.
func (b Balance) Missing() int64 { return int64(b.In - b.Out) }

// The counters of both sides. All whose names begin with deliver_ count frames that came out.
var (
	inFrom  = []string{"rx_port", "rx_host", "rx_group", "tx_local", "tx_group", "deliver_kernel", "mux_local"}
	outFrom = []string{"lost_uplink_redirect", "lost_local_redirect", "lost_port_full", "lost_port_down", "lost_deliver_backlog"}
)

// Check compares the counters of a mux, as control.Operator.Counters returns them.
func Check(list []endpoint.Counter) (b Balance) {
	for _, c := range list {
		if slices.Contains(inFrom, c.Name) {
			b.In += c.Value
		}
		if slices.Contains(outFrom, c.Name) || strings.HasPrefix(c.Name, "deliver_") {
			b.Out += c.Value
		}
	}
	return b
}

// Proven is how many frames are missing in two readings, one after the other, while traffic may
// flow. It is the least that explains both: frames that were
// counted between the reading of one counter and that of another are not missing. Frames that were on
// their way during both readings are.
func Proven(first, second []endpoint.Counter) int64 {
	b, a := Check(first), Check(second)
	// All of b.In went in before a.Out was read, and all of b.Out came out before a.In was.
	lost, alien := int64(b.In-a.Out), int64(a.In-b.Out)
	return max(lost, min(alien, 0))
}

// Total is the frames of one stage by outcome.
type Total struct {
	Stage  string             `json:"stage"` // one of Stages, or lost
	Frames uint64             `json:"frames"`
	Of     map[Outcome]uint64 `json:"of"`
}

// copies are the counters of copies of datagrams to groups, which count as other frames of their stage, too.
var copies = []string{"rx_group", "tx_group"}

// Totals are the frames of each stage without such copies, and those that the kernel has lost.
func Totals(list []endpoint.Counter) []Total {
	totals := make([]Total, 0, len(Stages)+1)
	for _, stage := range append(slices.Clone(Stages), string(Lost)) {
		t := Total{Stage: stage, Of: map[Outcome]uint64{}}
		for _, c := range list {
			if f, ok := OutcomeOf(c.Name); ok && strings.HasPrefix(c.Name, stage+"_") && !slices.Contains(copies, c.Name) {
				t.Frames += c.Value
				t.Of[f] += c.Value
			}
		}
		totals = append(totals, t)
	}
	return totals
}

// Verdict is the result of checks that were repeated while traffic may have flowed.
type Verdict struct {
	Balance
	// Moving: the counters did not come to rest, so what is missing may be on its way and is not
	// proven to be lost. The balance is that of the reading in which the least was missing; since
	// counters are read one after another, that can be negative, too.
	Moving bool `json:"moving"`
}

// Balanced reports whether the counters add up.
func (v Verdict) Balanced() bool { return v.Missing() == 0 }

// How Settle reads.
const (
	settlePause = 20 * time.Millisecond
	settleReads = 50
	settleQuiet = 5 // readings in a row without a change: nothing is on its way
)

// Settle reads counters until they add up, or have not changed for 100 ms, but for one second at
// most: frames on their way at one reading have arrived at a later one. What is missing on a mux
// at rest is lost.
func Settle(ctx context.Context, read func() ([]endpoint.Counter, error)) (Verdict, error) {
	size := func(b Balance) uint64 { return max(b.In, b.Out) - min(b.In, b.Out) }
	var last, least Balance
	same := 0
	for i := range settleReads {
		if i > 0 {
			select {
			case <-time.After(settlePause):
			case <-ctx.Done():
				return Verdict{}, context.Cause(ctx)
			}
		}
		list, err := read()
		if err != nil {
			return Verdict{}, err
		}
		now := Check(list)
		if i > 0 && now == last {
			same++
		} else {
			same = 0
		}
		if now.Missing() == 0 || same == settleQuiet {
			return Verdict{Balance: now}, nil
		}
		if i == 0 || size(now) < size(least) {
			least = now
		}
		last = now
	}
	return Verdict{least, true}, nil
}
