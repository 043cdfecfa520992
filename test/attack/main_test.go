package attack

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/unet-go/unet/test/internal/unetd"
)

var long = flag.Bool("attack.long", false, "run everything at full length: 10 million frames, 1000 cycles, 20 restarts")

// lengthOf is how often something is done: in full, in the short form, or in the
// short form under the race detector.
func lengthOf(full, short, race int) int {
	switch {
	case *long:
		return full
	case unetd.RaceEnabled:
		return race
	}
	return short
}

// TestMain makes this binary every process of the suite: see agent.
func TestMain(m *testing.M) {
	if role := os.Getenv(agentVariable); role != "" {
		run := runAgent
		if role == roleSharer {
			run = runSharer
		}
		if err := run(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "agent:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	code := m.Run()
	results.print(os.Stdout)
	unetd.Clean()
	os.Exit(code)
}
