package rdma

// Counter is a counter of a [Device]. Each packet that is dropped or irregular is counted; it
// causes no log line.
type Counter uint8

const (
	PacketsReceived Counter = iota // all that Process was given
	PacketsSent                    // all that were emitted

	BadHeader    // truncated, an unknown version or opcode, a wrong pad count
	BadICRC      // a wrong ICRC
	NoQP         // for a queue pair that does not exist
	BadState     // for a queue pair whose state takes no such packets
	BadPKey      // of another partition
	BadTransport // of another transport service
	BadSource    // not from the peer's address

	// The requester's.
	Timeouts             // retransmission timeouts
	Retransmitted        // packets sent again
	ResponsesOutside     // responses to what is not outstanding: duplicates
	ResponsesMissing     // gaps in responses
	ResponsesBad         // responses that do not fit the request
	SequenceNAKsReceived // NAKs: PSN sequence error
	RNRNAKsReceived      // NAKs: receiver not ready

	CNPsSent
	CNPsReceived
	CQOverruns // completion queues that have overrun

	// The responder's.
	SequenceGaps         // requests behind a gap: RC answers the first with a NAK
	Duplicates           // requests that came again; UC: and late ones
	DuplicatesUnanswered // of those, READs and atomics too old or different from what they were
	NAKsSent             // of all kinds
	ReceiverNotReady     // messages without a receive; RC answers with an RNR NAK
	RequestsInvalid      // requests that break a rule of their operation, or of the queue pair
	AccessesRefused      // keys that are wrong or may not be used so, ranges beyond their memory
	ReceivesTooShort     // messages longer than their receive
	ReceivesUnusable     // receives whose memory is not registered for local writing
	MessagesDropped      // UC: messages of which a packet was lost or refused
	BadQKey              // UD: another Q_Key

	numberOfCounts
)

var counterNames = [...]string{
	PacketsReceived: "packets_received", PacketsSent: "packets_sent", BadHeader: "bad_header", BadICRC: "bad_icrc", NoQP: "no_qp",
	BadState: "bad_state", BadPKey: "bad_pkey", BadTransport: "bad_transport", BadSource: "bad_source", Timeouts: "timeouts",
	Retransmitted: "retransmitted", ResponsesOutside: "responses_outside", ResponsesMissing: "responses_missing", ResponsesBad: "responses_bad", SequenceNAKsReceived: "sequence_naks_received",
	RNRNAKsReceived: "rnr_naks_received", CNPsSent: "cnps_sent", CNPsReceived: "cnps_received", CQOverruns: "cq_overruns", SequenceGaps: "sequence_gaps",
	Duplicates: "duplicates", DuplicatesUnanswered: "duplicates_unanswered", NAKsSent: "naks_sent", ReceiverNotReady: "receiver_not_ready", RequestsInvalid: "requests_invalid",
	AccessesRefused: "accesses_refused", ReceivesTooShort: "receives_too_short", ReceivesUnusable: "receives_unusable", MessagesDropped: "messages_dropped", BadQKey: "bad_qkey",
}

func (c Counter) String() string { return name(counterNames[:], int(c)) }

// Count is the value of one counter.
func (d *Device) Count(c Counter) uint64 { return d.counts[c] }

// EachCounter calls f for every counter, in a fixed order.
func (d *Device) EachCounter(f func(name string, value uint64)) {
	for c, v := range d.counts {
		f(counterNames[c], v)
	}
}
