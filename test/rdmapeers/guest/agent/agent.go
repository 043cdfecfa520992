// Package agent is the protocol between package rdmapeers and its guest: on a connection, the
// client sends a JSON array of strings, the command, and the guest answers with an [Event] for
// each line that the command prints and one when it has ended. To kill the command, the client
// closes the connection.
package agent

// Port is the guest's TCP port.
const Port = 1

// Ready is what the guest prints on its console when it accepts connections.
const Ready = "guest is ready:"

// Event is a JSON object that the guest sends.
type Event struct {
	Line  string `json:",omitempty"` // that the command has printed
	Ended bool   `json:",omitempty"` // the last event
	Error string `json:",omitempty"` // why the command could not be started, or its status if not 0
}
