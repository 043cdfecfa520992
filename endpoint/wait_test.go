package endpoint

import "testing"

// TestParseWaitMode: ParseWaitMode reads the text of each mode and no other.
func TestParseWaitMode(t *testing.T) {
	for _, m := range []WaitMode{WaitAdaptive, WaitSpin, WaitBlock} {
		if got, err := ParseWaitMode(m.String()); err != nil || got != m {
			t.Errorf("%v read back as %v, %v", m, got, err)
		}
	}
	for _, s := range []string{"", "Spin", "poll", WaitMode(3).String()} {
		if m, err := ParseWaitMode(s); err == nil {
			t.Errorf("ParseWaitMode(%q) = %v", s, m)
		}
	}
}
