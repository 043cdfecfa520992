//go:build linux && !race

package unetd

// RaceEnabled: the race detector slows everything down, and allocates.
const RaceEnabled = false

var buildFlags []string
