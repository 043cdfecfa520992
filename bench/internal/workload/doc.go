// Package workload is what the two processes of a measurement do: the client
// and the server of each benchmark, over any transport.
//
//	rtt     client sends a message, server sends it back, client reads the clock
//	rate    client sends as fast as it can, server counts what arrives
//	oneway  the same for a fixed number of messages, inside a credit window
//	connect client opens a connection, has one message sent back, closes it
//	idle    client opens connections, has one message sent back on each, keeps them
//
// The same loops run for every transport; all they see of it is a [Conn], at
// the price of one interface call a message, or, of connections that come and
// go, a [Dialer], a [Listener] and their [Stream]s.
//
// # Phases
//
// Every message carries its phase and its number. A client first sends some
// messages to warm both processes up, then a mark. The server takes its
// baseline (processor time, allocations) when it sees the mark and returns it;
// so do both at the end. Nothing else tells the two where the measured section
// begins and ends: no clock is shared, and a lost mark is sent again.
//
//	client                                server
//	  warm-up ...        ─────────▶
//	  mark               ─────────▶       baseline
//	  baseline           ◀─────────       mark
//	  data 0, 1, 2, ...  ─────────▶       (rtt: returned; else counted)
//	  end                ─────────▶       second reading, report
//	  second reading     ◀─────────       end
//
// In connect and idle each message has a connection of its own.
//
// The readings are one getrusage(2) each and nothing else here calls it, which
// is how package syscount knows, from outside, which system calls of a process
// lie in the measured section.
package workload
