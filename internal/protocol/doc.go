//go:build linux

// Package protocol has the records of the control protocol, which both ends share: requests,
// answers, events and errors, their parsers, and the socket that carries them.
//
// A request is parsed strictly: an unknown field is an error, so a newer application gets an
// error instead of wrong behaviour. An answer or event may have fields that are unknown.
//
// docs/control-protocol.md is the reference.
//
//	record.go, strict.go     requests and their strict parser
//	answer.go, notices.go    answers and events
//	error.go                 errors and their codes
//	seqpacket.go             records and descriptors on a socket
package protocol
