// Package workload has the client and the server of each benchmark, over any transport.
//
//	rtt        client sends a message, server sends it back, client reads the clock
//	rate       client sends as fast as it can, server counts what arrives
//	oneway     the same for a fixed number of messages, inside a credit window
//	connect    client opens a connection, has one message sent back, closes it
//	bandwidth  client writes to one connection, server counts bytes
//	rdma       client keeps operations of package verbs in flight; server waits for the end
//
// The same loops run for every transport. They use it as a [Conn], which costs an
// interface call a message, or, where connections are opened, as a [Dialer] or a
// [Listener] with its [Stream]s. A server listens before its client starts, and ends with its process.
//
// # Phases
//
// Every message carries its phase and its number. A client first sends messages that
// are not measured, then a mark. The server takes its baseline (processor time,
// allocations) when it receives the mark, and sends it back; both take a second reading at
// the end. The measured section begins and ends with these messages only: no clock is
// shared, and a mark that is lost is sent again.
//
//	client                                server
//	  warm-up ...        ─────────▶
//	  mark               ─────────▶       baseline
//	  baseline           ◀─────────       mark
//	  data 0, 1, 2, ...  ─────────▶       (rtt: returned; else counted)
//	  end                ─────────▶       second reading, report
//	  second reading     ◀─────────       end
//
// In connect each message has a connection of its own.
//
// A reading is one getrusage(2), and nothing else calls it: package syscount, which counts
// from outside, takes the last two for the borders of the measured section.
package workload
