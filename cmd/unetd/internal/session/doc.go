//go:build linux

// Package session is unetd's end of the control protocol: a [Server], which gets endpoints
// from a [Provider] (the muxes of all uplinks), and one session for each connection.
//
// The connections and requests of one user are limited ([Limits]) and take turns: unetd works
// on one request of a user at a time, except resolves and requests with an owned address,
// which wait for other hosts. A peer that does not read, or whose descriptor blocks when it
// is closed, delays no other user. The mux limits endpoints, memory and tags.
//
//	server.go, session.go            accepting; one session a connection
//	requests.go, present.go, list.go what a session does for a request
//	limits.go                        what users share (package share)
//	closing.go                       closing what can block; connections that are refused
//	fault.go                         panics, which end one session
//	peer.go                          the process at the other end
//
// docs/control-protocol.md is the reference of the protocol.
package session
