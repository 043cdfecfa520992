//go:build linux

// Package uplink is the muxes of unetd. [Check] checks whether it can run on this system, [Open]
// opens a mux on each interface with the policy of package policy, and [Uplinks] is a
// session.Provider. Leases are those of package mux. An [Uplink] opens its mux again when its
// interface was gone and has come back.
//
// Errors are for an operator: one line with the problem and what to do about it.
package uplink
