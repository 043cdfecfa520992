package main

import (
	"strings"
	"testing"
)

// TestGoodput runs every kind of link once, for an instant.
func TestGoodput(t *testing.T) {
	unetd := buildDaemon(t)
	ownTempDir(t)
	want := leftovers(t)
	out, errs, err := execute(t.Context(), "goodput", "--unetd", unetd, "--loss", "1", "--delay", "1ms", "--rounds", "1", "--time", "100ms", "--share-time", "200ms", "--json")
	if err != nil {
		t.Fatalf("%v\n%s", err, errs)
	}
	flows := map[string]int{}
	for _, f := range lines(t, out) {
		flows[f["link"].(string)+" "+f["bench"].(string)]++
		if !(f["bytes"].(float64) > 0 && f["seconds"].(float64) >= 0.1 && f["mbit_per_s"].(float64) > 0 && f["cpu_ms_per_mb"].(float64) > 0) {
			t.Errorf("implausible: %v", f)
		}
		if share := f["share"]; (share != nil) != (f["bench"] == "share") || share != nil && !(share.(float64) > 0 && share.(float64) < 1) {
			t.Errorf("implausible: %v", f)
		}
	}
	for what, n := range map[string]int{"loss 1 %, delay 1ms goodput": 4, "bottleneck goodput": 4, "reordering goodput": 4, "bottleneck share": 6} {
		if flows[what] != n {
			t.Errorf("%s: %d records, want %d:\n%s", what, flows[what], n, out)
		}
	}
	for _, line := range []string{"Goodput", "Shares", "Figures to reach", "tcp > tcp beside go-tcp, share %"} {
		if !strings.Contains(errs, line) {
			t.Errorf("no %q in the tables:\n%s", line, errs)
		}
	}
	if strings.Contains(errs, "not measured") {
		t.Errorf("figures are missing:\n%s", errs)
	}
	if left := leftovers(t); left != want {
		t.Errorf("left behind:\n%s\nbefore:\n%s", left, want)
	}
}
