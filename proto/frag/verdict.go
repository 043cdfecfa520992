package frag

// Verdict is what became of a fragment or a datagram. Each is counted: of each fragment one of
// those up to WrongECN, which are returned.
type Verdict uint8

const (
	Kept      Verdict = iota // more fragments are to come
	Complete                 // the datagram is whole
	Atomic                   // whole by itself (RFC 6946); it touches nothing that is held
	Duplicate                // all its bytes had been received with the same values

	// Dropped alone.
	Empty       // no data
	Misaligned  // not the last one, and its data is no multiple of 8 bytes
	TooLong     // ends beyond the longest packet
	HeaderChain // the first one of IPv6 has not all headers (RFC 7112), or one that belongs before the fragment header
	Refused     // of a datagram that had been ended by one of the following
	NoMemory    // of the datagram that was evicted to make room for it

	// Dropped with the datagram.
	Overlap  // has bytes that had been received and others, or other values
	WrongEnd // ends beyond the end, or is a second end
	TooMany  // more fragments than Config.Fragments
	WrongECN // CE in one and Not-ECT in another (RFC 3168, section 5.3)

	// Datagrams that were dropped before they were complete.
	TimedOut
	Evicted // for others

	verdicts
)

var verdictNames = [verdicts]string{
	Kept:        "kept",
	Complete:    "complete",
	Atomic:      "atomic",
	Duplicate:   "duplicate",
	Empty:       "empty",
	Misaligned:  "misaligned",
	TooLong:     "too_long",
	HeaderChain: "header_chain",
	Refused:     "refused",
	NoMemory:    "no_memory",
	Overlap:     "overlap",
	WrongEnd:    "wrong_end",
	TooMany:     "too_many",
	WrongECN:    "wrong_ecn",
	TimedOut:    "timed_out",
	Evicted:     "evicted",
}

// String is the verdict's name in counters.
func (v Verdict) String() string { return verdictNames[v] }

// Count is how often v was the verdict.
func (r *Reassembler) Count(v Verdict) uint64 { return r.counts[v] }

// EachCounter calls f for every verdict, in a fixed order.
func (r *Reassembler) EachCounter(f func(name string, value uint64)) {
	for v, n := range r.counts {
		f(verdictNames[v], n)
	}
}
