package tcp

// Counter names a counter of a [Table]. All that is dropped or irregular is counted, and
// causes neither an error nor a log line.
type Counter uint8

const (
	SegmentsReceived Counter = iota // all that Process was given
	SegmentsSent                    // all that were emitted
	BytesReceived                   // of data, in order, each once
	BytesSent                       // of data, each once
	BytesRetransmitted

	BadLength   // truncated, or an impossible data offset
	BadChecksum // wrong, or partial on a link that has no such checksums
	BadAddress  // an address that no single host has, or source and destination are the same
	BadOptions  // an option of impossible length; the segment is processed

	// Segments that the state, the window or the acknowledgment forbids.
	NoConnection    // for no connection and no listener
	ResetsSent      // answers to those, and connections given up
	ResetsReceived  // that ended a connection
	ResetsIgnored   // outside the window
	OutOfWindow     // no octet in the window; answered with an ACK
	PawsDropped     // an old timestamp (RFC 7323, section 5.3)
	NoTimestamp     // a timestamp was agreed on and is missing
	NoAck           // without the ACK bit where each segment has it
	NoSyn           // without the SYN bit in SYN-SENT
	AckUnsent       // acknowledges what has not been sent
	AckTooOld       // older than the largest window (RFC 5961, section 5)
	SynInWindow     // SYN on a connection (RFC 5961, section 4)
	ChallengeAcks   // sent (RFC 5961)
	AcksLimited     // not sent, see challengeBurst
	DuplicateAcks   // received
	UrgentPointers  // received; the data is delivered in line
	DataAfterClose  // data for a connection that the application has closed
	DataAfterFin    // bytes that claim to follow the peer's FIN
	DataDiscarded   // bytes after CloseRead
	BeyondWindow    // bytes cut off at the right edge of the window, a FIN among them
	DuplicateBytes  // bytes that had been received before
	OutOfOrder      // segments that were queued out of order
	OutOfOrderFull  // segments dropped because that queue was full
	OverlapMismatch // bytes that differ from what was received first for their place
	NoMemory        // segments dropped because the table's memory is used up
	Reneged         // bytes given up that had come out of order, because memory was needed
	NotOpened       // connections not made because the table's memory is used up

	SynsReceived    // for a listener
	SynDropped      // because the accept queue was full, or no cookie could be sent
	CookiesSent     // SYN cookies
	CookiesAccepted // connections made from one
	CookiesBad      // ACKs to a listener that were no cookie of ours
	AcceptOverflows // handshakes held back because the accept queue was full

	ActiveOpens  // connections opened by Dial
	PassiveOpens // connections that listeners made
	Handshakes   // connections that reached ESTABLISHED
	Failed       // connections that ended by an error
	TimeWaits    // connections that reached TIME-WAIT
	TimeWaitGone // of those, given up early because there were too many
	TimeWaitUsed // of those, replaced by a new connection (RFC 6191)

	Timeouts         // of the retransmission timer
	LossProbes       // sent before that, see rto.go
	FastRecoveries   // losses that were found before that
	RecoveriesUndone // after either, because nothing was lost
	DuplicateSacks   // D-SACKs: the peer has received something twice
	SackIgnored      // SACK blocks that would have torn a connection's scoreboard into too many pieces
	CongestionMarks  // segments with data that a router has marked (RFC 3168)
	CongestionEchoes // of the peer, that there is congestion, one a window
	WindowProbes     // sent to a closed window
	KeepAlives       // keepalive probes sent
	Copied           // segments whose data was copied because their frame could not be kept
	Placed           // segments whose data went straight into the reader's memory
	IcmpErrors       // that quote a segment in flight
	IcmpUnmatched    // that quote nothing in flight
	IcmpIgnored      // of IcmpErrors, those without effect, as source quench
	SackReceived     // segments with SACK blocks

	// Reports of ICMP that a segment in flight was too large for the path.
	MTUReportsAccepted // that have taken effect
	MTUReportsHeld     // below a size that was acknowledged before: until the segment is lost, or acknowledged
	MTUReportsRefuted  // of those, the segment was acknowledged
	MTUReportsBad      // the segment was never that large, or would have passed
	MTUReportsLate     // known already
	BlackHoles         // segments were made smaller because full ones were lost again and again
	MTUProbes          // sent, pathmtu.go
	MTUProbesLost      // of those

	numberOfCounts // not a counter
)

var counterNames = [numberOfCounts]string{
	SegmentsReceived: "segments_received", SegmentsSent: "segments_sent", BytesReceived: "bytes_received",
	BytesSent: "bytes_sent", BytesRetransmitted: "bytes_retransmitted",
	BadLength: "bad_length", BadChecksum: "bad_checksum", BadAddress: "bad_address", BadOptions: "bad_options",
	NoConnection: "no_connection", ResetsSent: "resets_sent", ResetsReceived: "resets_received",
	ResetsIgnored: "resets_ignored", OutOfWindow: "out_of_window", PawsDropped: "paws_dropped",
	NoTimestamp: "no_timestamp", NoAck: "no_ack", NoSyn: "no_syn", AckUnsent: "ack_unsent", AckTooOld: "ack_too_old",
	SynInWindow: "syn_in_window", ChallengeAcks: "challenge_acks", AcksLimited: "acks_limited",
	DuplicateAcks: "duplicate_acks", UrgentPointers: "urgent_pointers", DataAfterClose: "data_after_close",
	DataAfterFin: "data_after_fin", DataDiscarded: "data_discarded", BeyondWindow: "beyond_window", DuplicateBytes: "duplicate_bytes",
	OutOfOrder: "out_of_order", OutOfOrderFull: "out_of_order_full", OverlapMismatch: "overlap_mismatch",
	NoMemory: "no_memory", Reneged: "reneged", NotOpened: "not_opened", SynsReceived: "syns_received", SynDropped: "syn_dropped", CookiesSent: "cookies_sent",
	CookiesAccepted: "cookies_accepted", CookiesBad: "cookies_bad", AcceptOverflows: "accept_overflows",
	ActiveOpens: "active_opens", PassiveOpens: "passive_opens", Handshakes: "handshakes", Failed: "failed",
	TimeWaits: "time_waits", TimeWaitGone: "time_wait_gone", TimeWaitUsed: "time_wait_used",
	Timeouts: "timeouts", LossProbes: "loss_probes", FastRecoveries: "fast_recoveries", RecoveriesUndone: "recoveries_undone",
	DuplicateSacks: "duplicate_sacks", SackIgnored: "sack_ignored",
	CongestionMarks: "congestion_marks", CongestionEchoes: "congestion_echoes",
	WindowProbes: "window_probes", KeepAlives: "keep_alives", Copied: "copied",
	Placed: "placed", IcmpErrors: "icmp_errors", IcmpUnmatched: "icmp_unmatched", SackReceived: "sack_received", IcmpIgnored: "icmp_ignored",
	MTUReportsAccepted: "mtu_reports_accepted", MTUReportsHeld: "mtu_reports_held", MTUReportsRefuted: "mtu_reports_refuted",
	MTUReportsBad: "mtu_reports_bad", MTUReportsLate: "mtu_reports_late", BlackHoles: "black_holes",
	MTUProbes: "mtu_probes", MTUProbesLost: "mtu_probes_lost",
}

func (c Counter) String() string {
	if c < numberOfCounts {
		return counterNames[c]
	}
	return "invalid counter"
}

// Count is the value of one counter.
func (t *Table) Count(c Counter) uint64 { return t.counts[c] }

// EachCounter calls f for every counter, in a fixed order.
func (t *Table) EachCounter(f func(name string, value uint64)) {
	for c, v := range t.counts {
		f(counterNames[c], v)
	}
}
