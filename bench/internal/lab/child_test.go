package lab

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/unet-go/unet/bench/internal/workload"
)

// events runs a child on some input and decodes its output.
func events(t *testing.T, in string) ([]event, error) {
	t.Helper()
	var out strings.Builder
	err := RunChild(strings.NewReader(in), &out)
	var all []event
	for d := json.NewDecoder(strings.NewReader(out.String())); d.More(); {
		var e event
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all, err
}

func TestErrorsOfJobsAreReported(t *testing.T) {
	for in, want := range map[string]string{
		"":                       "job",
		"no job\n":               "job",
		`{"bench":"rtt"}`:        "job", // the line does not end
		`{"bench":"rtt"}` + "\n": "unknown transport",
		`{"bench":"rtt","transport":"msg","wait":"nap"}` + "\n":                    "wait mode",
		`{"bench":"rtt","transport":"msg","wait":"spin","attach":"tape"}` + "\n":   "attachment",
		`{"bench":"rtt","transport":"udp","wait":"spin","attach":"port"}` + "\n":   "open udp",
		`{"bench":"rtt","transport":"floor","wait":"spin","attach":"port"}` + "\n": "open floor",
	} {
		said, err := events(t, in)
		if err == nil || len(said) != 1 || !strings.Contains(said[0].Error, want) {
			t.Errorf("%q: said %+v, returned %v; want one error about %q", in, said, err, want)
		}
	}
}

func TestEventsCrossAsJSON(t *testing.T) {
	want := workload.Report{N: 3, Sent: 4, Lost: 1, Duplicates: 2, Elapsed: 5, Latency: workload.Latency{Mean: 1, P50: 2, P99: 3, P999: 4}, CPU: 6, Mallocs: 7}
	b, err := json.Marshal(event{Report: &want})
	if err != nil {
		t.Fatal(err)
	}
	var got event
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if *got.Report != want || got.Ready || got.Error != "" {
		t.Errorf("got %+v, want %+v", got.Report, want)
	}
}
