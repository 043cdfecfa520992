package report

import (
	"fmt"
	"io"

	"github.com/unet-go/unet/bench/internal/workload"
)

// Idle is the resident memory of an idle connection, and one line of JSON.
type Idle struct {
	Bench     workload.Bench `json:"bench"`
	Transport string         `json:"transport"`
	Attach    string         `json:"attach"`
	N         int            `json:"n"`            // connections that it was found from
	Client    float64        `json:"client_bytes"` // each
	Server    float64        `json:"server_bytes"`
}

const kibibyte = 1 << 10

// PrintIdle writes the table of idle connections.
func PrintIdle(w io.Writer, idle []Idle) {
	fmt.Fprintf(w, "\nResident memory of an idle connection (VmRSS over %d of them), KiB\n", idle[0].N)
	g := grid{left: 2}
	g.add("connection of", "attach", "client", "server")
	for _, x := range idle {
		g.add(x.Transport, x.Attach, fmt.Sprintf("%.2f", x.Client/kibibyte), fmt.Sprintf("%.2f", x.Server/kibibyte))
	}
	g.print(w)
}

// idleGoal is about the heavier of the two sides.
func idleGoal(attach string, idle []Idle) Goal {
	g := Goal{Figure: "KiB resident of an idle tcp connection", Attach: attach, Bound: 4, AtMost: true, format: "%.2f"}
	for _, x := range idle {
		if x.Attach == attach {
			g.Known = true
			g.Measured = max(g.Measured, x.Client/kibibyte, x.Server/kibibyte)
		}
	}
	return g
}
