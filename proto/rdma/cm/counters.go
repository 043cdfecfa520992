package cm

// Counter is a counter of an [Engine].
type Counter uint8

const (
	MadsReceived    Counter = iota // all that Input was given
	MadsSent                       // all that were emitted
	Malformed                      // of no or another class, truncated, or with an impossible length
	Unsupported                    // messages that the engine does not support (SIDR_REQ, LAP, ClassPortInfo and others)
	Duplicates                     // messages that were received before; answered again
	NoConnection                   // messages that name no connection, or one of another host
	WrongState                     // messages without meaning in the connection's state
	NoListener                     // REQs to a service that nobody offers
	BacklogFull                    // REQs dropped because a listener or the engine has too many connections
	BadRequests                    // REQs and REPs with impossible or unsupported content
	Stale                          // REQs and REPs that name the queue pair or the ID of an existing connection
	RejectsSent                    // REJs
	RejectsReceived                // REJs that ended a connection
	RepliesDropped                 // messages without a connection that found their queue full
	Retransmits                    // messages sent again because their answer is overdue
	Timeouts                       // connections ended for lack of an answer
	Handshakes                     // connections established

	numberOfCounts // not a counter
)

var counterNames = [numberOfCounts]string{
	MadsReceived: "mads_received", MadsSent: "mads_sent", Malformed: "malformed", Unsupported: "unsupported",
	Duplicates: "duplicates", NoConnection: "no_connection", WrongState: "wrong_state", NoListener: "no_listener",
	BacklogFull: "backlog_full", BadRequests: "bad_requests", Stale: "stale", RejectsSent: "rejects_sent",
	RejectsReceived: "rejects_received", RepliesDropped: "replies_dropped", Retransmits: "retransmits",
	Timeouts: "timeouts", Handshakes: "handshakes",
}

func (c Counter) String() string {
	if c < numberOfCounts {
		return counterNames[c]
	}
	return "invalid counter"
}

// Count is the value of one counter.
func (e *Engine) Count(c Counter) uint64 { return e.counts[c] }

// EachCounter calls f for every counter, in a fixed order.
func (e *Engine) EachCounter(f func(name string, value uint64)) {
	for c, v := range e.counts {
		f(counterNames[c], v)
	}
}
