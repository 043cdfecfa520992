package lab

import (
	"strings"
	"testing"
)

func TestErrorsOfJobsAreReturned(t *testing.T) {
	for in, want := range map[string]string{
		"":                "job",
		"no job\n":        "job",
		`{"bench":"rtt"`:  "job", // it does not end
		`{"bench":"rtt"}`: "unknown transport",
		`{"bench":"rtt","transport":"msg","wait":"nap"}`:                    "wait mode",
		`{"bench":"rtt","transport":"msg","wait":"spin","attach":"tape"}`:   "attachment",
		`{"bench":"rtt","transport":"udp","wait":"spin","attach":"port"}`:   "open udp",
		`{"bench":"rtt","transport":"floor","wait":"spin","attach":"port"}`: "open floor",
	} {
		var out strings.Builder
		if err := RunChild(t.Context(), strings.NewReader(in), &out); err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("%q: said %q, returned %v; want an error about %q", in, &out, err, want)
		}
	}
}
