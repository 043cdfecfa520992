package tcp

// Counter is a counter of a [Table]. Each segment that is dropped or irregular is counted; it
// causes neither an error nor a log line.
type Counter uint8

const (
	SegmentsReceived Counter = iota // all that Process was given
	SegmentsSent                    // all that were emitted
	BytesReceived                   // bytes of data, in order, each once
	BytesSent                       // bytes of data, each once
	BytesRetransmitted

	BadLength   // truncated, or an impossible data offset
	BadChecksum // wrong, or partial on a link that has no such checksums
	BadAddress  // an address that no single host has, or source and destination are the same
	BadOptions  // an option of impossible length; the segment is processed

	// Segments that the state, the window or the acknowledgment forbids.
	NoConnection    // for no connection and no listener
	ResetsSent      // answers to those, and RSTs of connections that were aborted
	ResetsReceived  // that ended a connection
	ResetsIgnored   // outside the window
	OutOfWindow     // no octet in the window; answered with an ACK
	PawsDropped     // an old timestamp (RFC 7323, section 5.3)
	NoTimestamp     // a timestamp was agreed on and is missing; the segment is taken
	NoAck           // without the ACK bit where each segment has it
	NoSyn           // without the SYN bit in LISTEN or SYN-SENT
	AckUnsent       // acknowledges what has not been sent
	AckTooOld       // older than the largest window (RFC 5961, section 5)
	SynInWindow     // SYN on a connection (RFC 5961, section 4)
	ChallengeAcks   // sent (RFC 5961)
	AcksLimited     // not sent, see challengeBurst
	DuplicateAcks   // received
	UrgentPointers  // received; the data is delivered in line
	DataAfterClose  // data for a connection that the application has closed
	DataAfterFin    // sequence numbers behind the peer's FIN; ignored
	DataDiscarded   // bytes after CloseRead
	BeyondWindow    // bytes cut off at the right edge of the window, a FIN among them
	DuplicateBytes  // bytes that had been received before
	OutOfOrder      // segments received out of order
	OutOfOrderFull  // of those, dropped at least in part because the queue was full
	OverlapMismatch // bytes that differ from what was received first for their place
	NoMemory        // segments dropped at least in part because the table's memory is used up
	Reneged         // bytes received out of order and dropped later, because memory was needed
	NotOpened       // connections not made because the table's memory is used up

	SynsReceived    // for a listener
	SynDropped      // because the accept queue was full, or the SYN queue with NoCookies
	CookiesSent     // SYN cookies
	CookiesAccepted // connections made from one
	CookiesBad      // ACKs to a listener that answer no cookie
	AcceptOverflows // handshakes held back because the accept queue was full

	ActiveOpens  // connections opened by Dial
	PassiveOpens // connections that listeners made
	Handshakes   // connections that reached ESTABLISHED
	Failed       // connections that ended by an error
	TimeWaits    // connections that reached TIME-WAIT
	TimeWaitGone // of those, ended early because there were too many
	TimeWaitUsed // of those, replaced by a new connection (RFC 6191)

	Timeouts         // of the retransmission timer
	LossProbes       // sent before a timeout, see rto.go
	FastRecoveries   // recoveries from losses that were detected without a timeout
	RecoveriesUndone // recoveries that were undone, because nothing was lost
	DuplicateSacks   // D-SACKs: the peer has received something twice
	SackIgnored      // SACK blocks not used because the scoreboard had too many spans
	CongestionMarks  // segments with data that a router has marked (RFC 3168)
	CongestionEchoes // reductions of the window because of ECE, at most one a window (RFC 3168)
	WindowProbes     // sent to a closed window
	KeepAlives       // keepalive probes sent
	Copied           // segments whose data was copied because their frame could not be kept
	Placed           // segments whose data went straight into the reader's memory
	IcmpErrors       // ICMP errors that quote a segment in flight
	IcmpUnmatched    // ICMP errors that quote nothing in flight
	IcmpIgnored      // of IcmpErrors, those without effect, such as source quench
	SackReceived     // segments with SACK blocks

	// ICMP reports that a segment in flight was too large for the path.
	MTUReportsAccepted // that have taken effect
	MTUReportsHeld     // of an MTU below a size that was acknowledged: without effect until the segment is lost; or for the next search
	MTUReportsRefuted  // of the held ones, those whose segment was acknowledged
	MTUReportsBad      // the segment was never that large, or would have passed
	MTUReportsLate     // known already
	BlackHoles         // segments were made smaller because full ones were lost repeatedly
	MTUProbes          // MTU probes sent, see pathmtu.go
	MTUProbesLost      // MTU probes lost

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
