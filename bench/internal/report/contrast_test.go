package report

import (
	"strings"
	"testing"
)

// TestIPv6Goals are printed if they were measured, and only then.
func TestIPv6Goals(t *testing.T) {
	row := func(name string, p50 float64) Row {
		return Row{Key: message("rtt", name).attached("port"), P50: Spread{Median: p50}}
	}
	var out strings.Builder
	Summary{Rows: []Row{row("udp", 10), row("tcp", 10)}}.PrintIPv6Goals(&out)
	if out.Len() > 0 {
		t.Errorf("%s", &out)
	}
	Summary{Rows: []Row{row("udp", 10), row("udp6", 11)}}.PrintIPv6Goals(&out)
	if !strings.Contains(out.String(), "udp6 RTT / udp RTT") || !strings.Contains(out.String(), "short") || strings.Contains(out.String(), "tcp6") {
		t.Errorf("%s", &out)
	}
}
