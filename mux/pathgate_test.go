//go:build linux

package mux

import (
	"testing"
	"time"
)

// In any time t an endpoint asks for at most pathBurst paths and one in each pathInterval of t.
func TestPathGate(t *testing.T) {
	var g pathGate
	now := time.Now()
	ask := func(times int) (passed int) {
		for range times {
			if g.pass(now) {
				passed++
			}
		}
		return passed
	}
	for _, c := range []struct {
		later time.Duration
		want  int
	}{{0, pathBurst}, {pathInterval / 2, 0}, {pathInterval / 2, 1}, {10 * pathInterval, 10}, {time.Hour, pathBurst}} {
		now = now.Add(c.later)
		if got := ask(3 * pathBurst); got != c.want {
			t.Errorf("%v later: %d passed, want %d", c.later, got, c.want)
		}
	}
}
