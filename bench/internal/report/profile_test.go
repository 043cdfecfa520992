package report

import (
	"strings"
	"testing"

	"github.com/unet-go/unet/bench/internal/perf"
)

// TestProfileFigures: a sample is worth a period, and what a message has of it is divided by the messages; a
// program is shown with its run and without what an empty program shows.
func TestProfileFigures(t *testing.T) {
	p := Profile{Transport: "udp", Attach: "port", Event: "time", Unit: "ns", Messages: 500, EmptyNS: 30, Lost: 2,
		Programs: []ProgramRun{{"unet_port", 1, 246}}}
	place := perf.Place{Function: "veth_xmit", Group: perf.Veth}
	p.SetShares(
		[]perf.Share{{Place: perf.Place{Group: perf.Veth}, Samples: 30}, {Place: perf.Place{Group: perf.Ours}, Samples: 10}},
		[]perf.Share{{Place: place, Samples: 20}, {Place: perf.Place{Function: "left out"}, Samples: 10}}, 50_000)
	if p.Samples != 40 || p.Groups[0].Share != 0.75 || p.Groups[0].PerMsg != 3000 || p.Functions[0].PerMsg != 2000 || p.Functions[0].Function != "veth_xmit" {
		t.Errorf("%+v", p)
	}
	var out, line strings.Builder
	PrintProfile(&out, p, 1)
	for _, want := range []string{"2 samples were lost", "veth and backlog  3000  75.0\n", "veth_xmit  veth and backlog  2000  50.0\n", "unet_port            1.00       246                   216\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "left out") {
		t.Errorf("more functions than asked for:\n%s", &out)
	}
	if err := WriteBenchmark(&line, p); err != nil || !strings.Contains(line.String(), " 3000 veth-and-backlog-ns/op 1000 unet-user-ns/op 246 unet_port-ns/run\n") {
		t.Errorf("%q, %v", &line, err)
	}
}
