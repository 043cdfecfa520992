//go:build linux && race

package unetd

// RaceEnabled: the race detector slows everything down, and allocates.
const RaceEnabled = true

var buildFlags = []string{"-race"}
