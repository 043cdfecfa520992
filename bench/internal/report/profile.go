package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/unet-go/unet/bench/internal/perf"
)

// Profile is where a message's time, or its instructions, went, and one line of JSON. A
// message is half a round trip. PerMsg is of both processes together.
type Profile struct {
	Bench     string  `json:"bench"` // profile
	Transport string  `json:"transport"`
	Attach    string  `json:"attach"`
	Event     string  `json:"event"`    // time or instructions
	Unit      string  `json:"unit"`     // of per_msg: ns, or instructions
	Messages  int     `json:"messages"` // while samples were taken
	Samples   int     `json:"samples"`
	Lost      uint64  `json:"lost_samples"`
	P50US     float64 `json:"p50_us"`         // round trip, undisturbed
	SampledUS float64 `json:"sampled_p50_us"` // while samples were taken

	Groups    []ProfileShare `json:"groups"`
	Functions []ProfileShare `json:"functions"`

	Programs []ProgramRun `json:"programs"`
	EmptyNS  float64      `json:"empty_program_ns"` // in every program's time: what the measurement of an empty one shows
	StatsUS  float64      `json:"stats_p50_us"`     // round trip while runs were timed
}

// ProfileShare is the part of a group, or of a function.
type ProfileShare struct {
	Function string  `json:"function,omitempty"`
	Group    string  `json:"group"`
	Share    float64 `json:"share"` // of all samples
	PerMsg   float64 `json:"per_msg"`
}

// ProgramRun is the runs of a BPF program.
type ProgramRun struct {
	Name       string  `json:"name"`
	RunsPerMsg float64 `json:"runs_per_msg"`
	NS         float64 `json:"ns_per_run"` // with the measurement's own
}

// SetShares fills in groups and functions: each sample is worth a period, in the event's unit.
func (p *Profile) SetShares(groups, functions []perf.Share, period float64) {
	for _, g := range groups {
		p.Samples += g.Samples
	}
	convert := func(list []perf.Share) (all []ProfileShare) {
		for _, s := range list {
			all = append(all, ProfileShare{
				Function: s.Function, Group: s.Group,
				Share: float64(s.Samples) / float64(max(p.Samples, 1)), PerMsg: float64(s.Samples) * period / float64(max(p.Messages, 1)),
			})
		}
		return all
	}
	p.Groups, p.Functions = convert(groups), convert(functions)
}

func (p Profile) benchmark() (string, int, []figure) {
	var all []figure
	for _, g := range p.Groups {
		all = append(all, figure{g.PerMsg, strings.NewReplacer(" ", "-", ",", "", "(", "", ")", "").Replace(g.Group) + "-" + p.Unit + "/op"})
	}
	for _, r := range p.Programs {
		all = append(all, figure{r.NS, r.Name + "-ns/run"})
	}
	return fmt.Sprintf("Profile/transport=%s/attach=%s/event=%s", p.Transport, p.Attach, p.Event), p.Messages, all
}

// PrintProfile writes the tables of a profile, with so many functions.
func PrintProfile(w io.Writer, p Profile, top int) {
	what := "time of both processors"
	if p.Event != "time" {
		what = "instructions of both processes"
	}
	fmt.Fprintf(w, "\n%s %s: %s for a message (half a round trip) of %d bytes, by %d samples over %d messages\n", p.Transport, p.Attach, what, goalSize, p.Samples, p.Messages)
	fmt.Fprintf(w, "p50 of a round trip: %.2f us; %.2f us while samples were taken.", p.P50US, p.SampledUS)
	if p.Lost > 0 {
		fmt.Fprintf(w, " %d samples were lost.", p.Lost)
	}
	fmt.Fprintln(w)
	g := grid{left: 1}
	g.add("group", p.Unit, "%")
	for _, s := range p.Groups {
		g.add(s.Group, fmt.Sprintf("%.0f", s.PerMsg), fmt.Sprintf("%.1f", 100*s.Share))
	}
	g.print(w)
	fmt.Fprintln(w)
	f := grid{left: 2}
	f.add("function", "group", p.Unit, "%")
	for _, s := range p.Functions[:min(top, len(p.Functions))] {
		f.add(s.Function, s.Group, fmt.Sprintf("%.0f", s.PerMsg), fmt.Sprintf("%.1f", 100*s.Share))
	}
	f.print(w)
	if len(p.Programs) == 0 {
		return
	}
	fmt.Fprintf(w, "\nBPF programs, by the kernel's statistics. Each run contains what an empty program shows, %.0f ns.\n", p.EmptyNS)
	fmt.Fprintf(w, "p50 of a round trip while they were timed: %.2f us.\n", p.StatsUS)
	r := grid{left: 1}
	r.add("program", "runs a message", "ns a run", "less the empty one's")
	for _, s := range p.Programs {
		r.add(s.Name, fmt.Sprintf("%.2f", s.RunsPerMsg), fmt.Sprintf("%.0f", s.NS), fmt.Sprintf("%.0f", s.NS-p.EmptyNS))
	}
	r.print(w)
}
