//go:build linux

// Package attach loads the programs of a mux and attaches them to its uplink, with the side programs that count what
// the kernel drops and take what its own host sends, the cutter and the pair of devices by which endpoints reach
// their host (programs.go, sideprograms.go), and the programs of queues in tcx mode (queue.go). It pins all of them
// (pins.go). It adopts what a former process has pinned, or drops it (adopt.go, pins.go).
//
// Pins are complete with the link of the uplink's program, which is pinned last and unpinned first; the state is
// unpinned last.
//
// Package mux is above it, with the leases; packages nic, steer and tables are below.
package attach
