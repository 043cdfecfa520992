//go:build race

package tcp

import "testing"

const underRace = true

// skipUnderRace skips a long test of one goroutine, in which the race detector has
// nothing to look for.
func skipUnderRace(t *testing.T) {
	t.Helper()
	t.Skip("one goroutine")
}
