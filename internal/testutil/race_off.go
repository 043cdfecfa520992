//go:build !race

package testutil

// UnderRace tells that the race detector is on, which slows goroutines that wait for each other down tenfold and more. Tests
// that judge who had how many turns do so without it, and run shorter with it.
const UnderRace = false
