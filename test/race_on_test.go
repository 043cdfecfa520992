//go:build race

package test

// raceEnabled: the race detector allocates on its own.
const raceEnabled = true
