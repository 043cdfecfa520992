//go:build linux

// Package uplink is the mux of unetd. [Check] checks whether it can run on this system, [Open]
// opens it with the policy of package policy, and [Uplink] is a session.Provider. Leases are those
// of package mux.
//
// Errors are for an operator: one line with the problem and what to do about it.
package uplink
