//go:build linux

// Package agent is process 1 of a guest, and the protocol by which a test tells it what to run: on
// a connection, the test sends a [Command], and then [Request]s; the guest answers with an [Event] for
// each line that the command prints and one when it has ended. The command is killed when the
// test closes the connection. All are JSON objects.
package agent

import "syscall"

// Port is the guest's TCP port.
const Port = 1

// Ready is what the guest prints on its console, before its kernel's release, when it accepts connections.
const Ready = "guest is ready:"

// Command is a program to run.
type Command struct {
	Args []string // the first is looked up in PATH
	User uint32   // of which it is run, and the group
	Env  []string // more of its environment
}

// Request is about a running program.
type Request struct {
	Signal syscall.Signal `json:",omitempty"` // to send
	Input  string         `json:",omitempty"` // a line for its standard input
}

// Event is what happened to a program.
type Event struct {
	Line  string `json:",omitempty"` // that it has printed
	Ended bool   `json:",omitempty"` // the last event
	Error string `json:",omitempty"` // why it could not be started, or its status if not 0
}
