package tcp

import (
	"strings"
	"testing"
)

// withSack is a configuration without TCP options except SACK.
var withSack = Config{NoTimestamps: true, NoWindowScale: true}

// tenSegments opens a connection over a path with a round trip of 10 ms and sends the
// initial window, ten segments of 1000 bytes; more data waits. The retransmission timeout is
// 30 ms then, and the reordering window of RACK 2.5 ms.
const tenSegments = `
			dial
			> S 0:0
			+10ms
			< SA 0:0 ack 1 win 60000 mss 1000 sackok
			> A 1:0 ack 1
			write 30000
			> A 1:1000 ack 1
			> A 1001:1000 ack 1
			> A 2001:1000 ack 1
			> A 3001:1000 ack 1
			> A 4001:1000 ack 1
			> A 5001:1000 ack 1
			> A 6001:1000 ack 1
			> A 7001:1000 ack 1
			> A 8001:1000 ack 1
			> A 9001:1000 ack 1
			> nothing
			+10ms
			`

func TestRecovery(t *testing.T) {
	runScripts(t, []script{
		{name: "the first segment is lost: the third SACK starts the retransmission", cfg: withSack, text: tenSegments + `
			< A 1:0 ack 1 win 60000 sack 1001-2001
			> A 10001:1000 ack 1	# limited transmit (RFC 3042)
			< A 1:0 ack 1 win 60000 sack 1001-3001
			> A 11001:1000 ack 1
			count fast_recoveries 0
			< A 1:0 ack 1 win 60000 sack 1001-4001
			> A 1:1000 ack 1
			count fast_recoveries 1
			lost 0
			sacked 3000
			# Proportional rate reduction: 8 segments are in the network, and are to be 7.
			< A 1:0 ack 1 win 60000 sack 1001-5001
			< A 1:0 ack 1 win 60000 sack 1001-6001
			< A 1:0 ack 1 win 60000 sack 1001-7001
			> A 12001:1000 ack 1
			< A 1:0 ack 1 win 60000 sack 1001-8001
			> A 13001:1000 ack 1
			< A 1:0 ack 1 win 60000 sack 1001-9001
			> A 14001:1000 ack 1
			< A 1:0 ack 1 win 60000 sack 1001-10001
			> A 15001:1000 ack 1
			+10ms
			< A 1:0 ack 12001 win 60000	# all that was in flight then
			window 7000
			> A 16001:1000 ack 1
			> A 17001:1000 ack 1
			> A 18001:1000 ack 1
			count timeouts 0
			count bytes_retransmitted 1000`},
		{name: "two of ten segments are lost and repaired in one round trip", cfg: withSack, text: tenSegments + `
			< A 1:0 ack 1001 win 60000
			> A 10001:1000 ack 1	# slow start
			> A 11001:1000 ack 1
			< A 1:0 ack 1001 win 60000 sack 2001-3001
			> A 12001:1000 ack 1
			< A 1:0 ack 1001 win 60000 sack 4001-5001,2001-3001
			> A 13001:1000 ack 1
			< A 1:0 ack 1001 win 60000 sack 4001-6001,2001-3001
			> A 1001:1000 ack 1	# both are lost; PRR permits one segment
			lost 1000
			< A 1:0 ack 1001 win 60000 sack 4001-7001,2001-3001
			< A 1:0 ack 1001 win 60000 sack 4001-8001,2001-3001
			< A 1:0 ack 1001 win 60000 sack 4001-9001,2001-3001
			> A 3001:1000 ack 1
			lost 0
			+10ms
			< A 1:0 ack 3001 win 60000 sack 4001-14001
			> A 14001:1000 ack 1
			> A 15001:1000 ack 1
			> A 16001:1000 ack 1
			> A 17001:1000 ack 1
			> A 18001:1000 ack 1
			> A 19001:1000 ack 1
			< A 1:0 ack 14001 win 60000
			> A 20001:1000 ack 1
			window 7700
			count timeouts 0
			count bytes_retransmitted 2000`},
		{name: "reordering within a quarter of a round trip is no loss", cfg: withSack, text: tenSegments + `
			< A 1:0 ack 1 win 60000 sack 1001-2001
			> A 10001:1000 ack 1
			< A 1:0 ack 1 win 60000 sack 1001-3001
			> A 11001:1000 ack 1
			timer 2.5ms
			+2ms
			> nothing
			< A 1:0 ack 3001 win 60000
			> A 12001:1000 ack 1
			> A 13001:1000 ack 1
			> A 14001:1000 ack 1
			> A 15001:1000 ack 1
			count fast_recoveries 0
			# From now on three segments above a hole prove nothing.
			< A 1:0 ack 3001 win 60000 sack 4001-9001
			> A 16001:1000 ack 1
			> A 17001:1000 ack 1
			> A 18001:1000 ack 1
			> A 19001:1000 ack 1
			> A 20001:1000 ack 1
			count fast_recoveries 0
			timer 2.5ms
			+2500us
			> A 3001:1000 ack 1
			count fast_recoveries 1`},
		{name: "reordering of more than a quarter of a round trip is loss until a D-SACK arrives", cfg: withSack, text: tenSegments + `
			< A 1:0 ack 1 win 60000 sack 1001-2001
			> A 10001:1000 ack 1
			+2500us
			> A 1:1000 ack 1
			count fast_recoveries 1
			< A 1:0 ack 2001 win 60000		# it may acknowledge the first or the second transmission
			< A 1:0 ack 10001 win 60000 sack 1-1001
			count recoveries_undone 1
			count duplicate_sacks 1
			window 10000
			> A 11001:1000 ack 1
			> A 12001:1000 ack 1
			> A 13001:1000 ack 1
			> A 14001:1000 ack 1
			> A 15001:1000 ack 1
			> A 16001:1000 ack 1
			> A 17001:1000 ack 1
			> A 18001:1000 ack 1
			> A 19001:1000 ack 1`},
		// As in one batch of frames: nothing is sent in between.
		{name: "an ACK of all segments before the retransmission undoes the recovery", cfg: withSack, text: tenSegments + `
			hold
			< A 1:0 ack 1 win 60000 sack 1001-2001
			< A 1:0 ack 1 win 60000 sack 1001-3001
			< A 1:0 ack 1 win 60000 sack 1001-4001
			count fast_recoveries 1
			lost 1000
			< A 1:0 ack 10001 win 60000
			count recoveries_undone 1
			window 10000
			go
			> A 10001:1000 ack 1
			> A 11001:1000 ack 1
			> A 12001:1000 ack 1
			> A 13001:1000 ack 1
			> A 14001:1000 ack 1
			> A 15001:1000 ack 1
			> A 16001:1000 ack 1
			> A 17001:1000 ack 1
			> A 18001:1000 ack 1
			> A 19001:1000 ack 1
			count bytes_retransmitted 0`},
		{name: "an ACK of all lost segments before the retransmission undoes the recovery", cfg: withSack, text: tenSegments + `
			hold
			< A 1:0 ack 1 win 60000 sack 1001-4001
			lost 1000
			< A 1:0 ack 4001 win 60000
			count recoveries_undone 1
			go
			window 10000
			> A 10001:1000 ack 1
			> A 11001:1000 ack 1
			> A 12001:1000 ack 1
			> A 13001:1000 ack 1`},
		{name: "without SACK: an ACK before the retransmission undoes the recovery", cfg: noOptions, text: tenSegments + `
			hold
			< A 1:0 ack 1 win 60000
			< A 1:0 ack 1 win 60000
			< A 1:0 ack 1 win 60000
			lost 1000
			< A 1:0 ack 10001 win 60000
			count recoveries_undone 1
			go
			window 10000
			> A 10001:1000 ack 1
			> A 11001:1000 ack 1
			> A 12001:1000 ack 1
			> A 13001:1000 ack 1
			> A 14001:1000 ack 1
			> A 15001:1000 ack 1
			> A 16001:1000 ack 1
			> A 17001:1000 ack 1
			> A 18001:1000 ack 1
			> A 19001:1000 ack 1`},
		{name: "an ACK of one of two lost segments does not undo the recovery", cfg: withSack, text: tenSegments + `
			hold
			< A 1:0 ack 1 win 60000 sack 1001-2001,3001-6001
			lost 2000
			< A 1:0 ack 2001 win 60000 sack 3001-6001
			lost 1000
			count recoveries_undone 0
			go
			> A 2001:1000 ack 1
			> A 10001:1000 ack 1
			> A 11001:1000 ack 1
			+10ms
			< A 1:0 ack 10001 win 60000
			window 7000
			> A 12001:1000 ack 1
			> A 13001:1000 ack 1
			> A 14001:1000 ack 1
			> A 15001:1000 ack 1
			> A 16001:1000 ack 1
			count recoveries_undone 0`},
		{name: "an ACK of all segments between timeout and retransmission undoes the timeout", cfg: withSack, text: tenSegments + `
			+10ms
			> A 10001:1000 ack 1		# a loss probe
			hold
			+30ms
			count timeouts 1
			window 1000
			< A 1:0 ack 11001 win 60000
			count recoveries_undone 1
			window 10000
			go
			> A 11001:1000 ack 1
			> A 12001:1000 ack 1
			> A 13001:1000 ack 1
			> A 14001:1000 ack 1
			> A 15001:1000 ack 1
			> A 16001:1000 ack 1
			> A 17001:1000 ack 1
			> A 18001:1000 ack 1
			> A 19001:1000 ack 1
			> A 20001:1000 ack 1`},
		{name: "RACK detects a lost retransmission", cfg: withSack, text: tenSegments + `
			< A 1:0 ack 1 win 60000 sack 1001-4001
			> A 1:1000 ack 1
			+1ms
			< A 1:0 ack 1 win 60000 sack 1001-9001
			> A 10001:1000 ack 1
			> A 11001:1000 ack 1
			> A 12001:1000 ack 1
			> A 13001:1000 ack 1
			> A 14001:1000 ack 1
			+10ms
			< A 1:0 ack 1 win 60000 sack 1001-15001
			> A 1:1000 ack 1
			> A 15001:1000 ack 1
			> A 16001:1000 ack 1
			> A 17001:1000 ack 1
			> A 18001:1000 ack 1
			> A 19001:1000 ack 1
			> A 20001:1000 ack 1
			count timeouts 0
			count bytes_retransmitted 2000`},
		{name: "one SACK shows that five segments are lost", cfg: withSack, text: tenSegments + `
			< A 1:0 ack 1 win 60000 sack 5001-10001	# the first of five
			> A 1:1000 ack 1
			> A 1001:1000 ack 1
			> A 2001:1000 ack 1
			> A 3001:1000 ack 1
			> A 4001:1000 ack 1
			+10ms
			< A 1:0 ack 10001 win 60000
			window 7000
			> A 10001:1000 ack 1
			> A 11001:1000 ack 1
			> A 12001:1000 ack 1
			> A 13001:1000 ack 1
			> A 14001:1000 ack 1
			> A 15001:1000 ack 1
			> A 16001:1000 ack 1
			count timeouts 0`},
		{name: "the peer discards what it has SACKed: a timeout retransmits all of it", cfg: withSack, text: tenSegments + `
			< A 1:0 ack 1 win 60000 sack 1001-10001
			> A 1:1000 ack 1
			> A 10001:1000 ack 1
			> A 11001:1000 ack 1
			> A 12001:1000 ack 1
			> A 13001:1000 ack 1
			> A 14001:1000 ack 1
			> A 15001:1000 ack 1
			+10ms
			< A 1:0 ack 1001 win 60000	# the peer has dropped what it had SACKed
			sacked 9000
			> A 16001:1000 ack 1
			+30ms
			> A 1001:1000 ack 1
			sacked 0
			lost 15000
			< A 1:0 ack 2001 win 60000
			> A 2001:1000 ack 1
			> A 3001:1000 ack 1
			count timeouts 1`},
		{name: "without SACK: three duplicate ACKs start NewReno recovery", cfg: noOptions, text: tenSegments + `
			< A 1:0 ack 1 win 60000
			> A 10001:1000 ack 1
			< A 1:0 ack 1 win 60000
			> A 11001:1000 ack 1
			< A 1:0 ack 1 win 60000
			> A 1:1000 ack 1
			count fast_recoveries 1
			< A 1:0 ack 1 win 60000
			< A 1:0 ack 1 win 60000
			< A 1:0 ack 1 win 60000
			> A 12001:1000 ack 1
			< A 1:0 ack 1 win 60000
			> A 13001:1000 ack 1
			< A 1:0 ack 1 win 60000
			> A 14001:1000 ack 1
			+10ms
			< A 1:0 ack 5001 win 60000	# a partial acknowledgment: 5001 is lost too
			> A 5001:1000 ack 1
			> A 15001:1000 ack 1
			+10ms
			< A 1:0 ack 12001 win 60000
			window 7000
			> A 16001:1000 ack 1
			> A 17001:1000 ack 1
			> A 18001:1000 ack 1
			< A 1:0 ack 12001 win 60000	# perhaps caused by needless retransmissions
			> A 19001:1000 ack 1
			< A 1:0 ack 12001 win 60000
			> A 20001:1000 ack 1
			< A 1:0 ack 12001 win 60000
			> A 21001:1000 ack 1
			count timeouts 0
			count fast_recoveries 1`},
	})
}

func TestLossProbe(t *testing.T) {
	// Only ten segments.
	onlyTen := strings.NewReplacer("write 30000", "write 10000", "> A 9001", "> PA 9001").Replace(tenSegments)
	runScripts(t, []script{
		{name: "the last two segments are lost: the SACK of the loss probe starts the recovery", cfg: withSack, text: onlyTen + `
			< A 1:0 ack 8001 win 60000
			timer 20ms			# two round trips
			+20ms
			> PA 9001:1000 ack 1
			count loss_probes 1
			+10ms
			< A 1:0 ack 8001 win 60000 sack 9001-10001
			> A 8001:1000 ack 1
			count fast_recoveries 1
			count timeouts 0
			+10ms
			< A 1:0 ack 10001 win 60000
			timer never`},
		{name: "a SACK of the last segment cancels the loss probe", cfg: withSack, text: onlyTen + `
			< A 1:0 ack 8001 win 60000
			hold
			+20ms				# the loss probe is due
			< A 1:0 ack 8001 win 60000 sack 9001-10001
			go
			> nothing
			sacked 1000
			+3ms				# a quarter of a round trip for reordering
			> A 8001:1000 ack 1
			+10ms
			< A 1:0 ack 10001 win 60000
			timer never`},
		{name: "the last segment is lost and the loss probe repairs it", cfg: withSack, text: onlyTen + `
			< A 1:0 ack 9001 win 60000
			timer 25ms			# the time of the retransmission timer
			+25ms
			> PA 9001:1000 ack 1
			+10ms
			< A 1:0 ack 10001 win 60000	# it may acknowledge the first or the second transmission
			timer never
			window 18000
			write 1000
			> PA 10001:1000 ack 1
			+10ms
			< A 1:0 ack 11001 win 60000	# no D-SACK: it was lost
			window 7000
			count timeouts 0`},
		{name: "the last segment is late: a D-SACK shows that the loss probe was not needed", cfg: withSack, text: onlyTen + `
			< A 1:0 ack 9001 win 60000
			+25ms
			> PA 9001:1000 ack 1
			< A 1:0 ack 10001 win 60000
			+10ms
			< A 1:0 ack 10001 win 60000 sack 9001-10001
			count duplicate_sacks 1
			write 1000
			> PA 10001:1000 ack 1
			timer 51ms			# the peer is left more time
			< A 1:0 ack 11001 win 60000
			window 18000`},
		{name: "the loss probe is new data if there is some", cfg: withSack, text: tenSegments + `
			timer 10ms
			+10ms
			> A 10001:1000 ack 1
			count loss_probes 1
			timer 30ms
			+30ms
			> A 1:1000 ack 1
			count timeouts 1
			window 1000
			timer 60ms`},
		{name: "the loss probe is the last segment with the FIN", cfg: withSack, text: `
			dial
			> S 0:0
			+10ms
			< SA 0:0 ack 1 win 60000 mss 1000 sackok
			> A 1:0 ack 1
			write 2500
			> A 1:1000 ack 1
			> A 1001:1000 ack 1
			closewrite
			> PFA 2001:500 ack 1
			+10ms
			< A 1:0 ack 1001 win 60000
			+25ms
			> PFA 1501:1000 ack 1
			+10ms
			< A 1:0 ack 1001 win 60000 sack 1501-2502
			> A 1001:500 ack 1
			< A 1:0 ack 2502 win 60000
			state FIN-WAIT-2`},
		{name: "without SACK there is no loss probe", cfg: noOptions, text: onlyTen + `
			< A 1:0 ack 9001 win 60000
			+25ms
			> PA 9001:1000 ack 1
			count loss_probes 0
			count timeouts 1`},
	})
}

// After tenSegments the timer has expired, and the first segment has been sent again.
const timedOut = tenSegments + `
			+20ms
			> A 1:1000 ack 1
			count timeouts 1
			window 1000
			`

// The same with SACK, where a loss probe comes first.
const timedOutProbed = tenSegments + `
			+10ms
			> A 10001:1000 ack 1
			+30ms
			> A 1:1000 ack 1
			count timeouts 1
			window 1000
			`

func TestFRTO(t *testing.T) {
	onlyTen := strings.NewReplacer("write 30000", "write 10000", "> A 9001", "> PA 9001")
	runScripts(t, []script{
		{name: "without SACK: an ACK of data that was not sent again undoes the timeout", cfg: noOptions, text: timedOut + `
			< A 1:0 ack 1001 win 60000
			> A 10001:1000 ack 1	# two new segments
			> A 11001:1000 ack 1
			timer 60ms
			< A 1:0 ack 2001 win 60000	# acknowledges data that was not sent again
			count recoveries_undone 1
			lost 0
			window 10000
			< A 1:0 ack 3001 win 60000
			> A 12001:1000 ack 1
			> A 13001:1000 ack 1
			timer 122ms			# twice the timeout: the backoff stays (RFC 6298)
			count bytes_retransmitted 1000`},
		{name: "without SACK: a duplicate ACK after the new data confirms the timeout", cfg: noOptions, text: timedOut + `
			< A 1:0 ack 1001 win 60000
			> A 10001:1000 ack 1
			> A 11001:1000 ack 1
			< A 1:0 ack 1001 win 60000
			> A 1001:1000 ack 1
			count recoveries_undone 0
			window 2000`},
		{name: "without SACK: a duplicate ACK before the first ACK confirms the timeout", cfg: noOptions, text: timedOut + `
			< A 1:0 ack 1 win 60000
			< A 1:0 ack 1001 win 60000
			> A 1001:1000 ack 1
			> A 2001:1000 ack 1`},
		{name: "timeouts for three seconds start black-hole detection", cfg: noOptions, text: timedOut + `
			+60ms
			> A 1:1000 ack 1
			+120ms
			> A 1:1000 ack 1
			+240ms
			> A 1:1000 ack 1
			+480ms
			> A 1:1000 ack 1
			+960ms
			> A 1:1000 ack 1
			count black_holes 0
			+1920ms
			> A 1:984 ack 1
			> A 985:16 ack 1
			count black_holes 1
			< A 1:0 ack 1001 win 60000
			> A 1001:984 ack 1
			> A 1985:984 ack 1
			count recoveries_undone 0`},
		{name: "a timeout after the new segments retransmits all segments", cfg: noOptions, text: timedOut + `
			< A 1:0 ack 1001 win 60000
			> A 10001:1000 ack 1
			> A 11001:1000 ack 1
			+60ms
			> A 1001:1000 ack 1
			< A 1:0 ack 2001 win 60000
			> A 2001:1000 ack 1
			> A 3001:1000 ack 1
			count recoveries_undone 0`},
		{name: "without new data all segments are sent again", cfg: noOptions, text: onlyTen.Replace(timedOut) + `
			< A 1:0 ack 1001 win 60000
			> A 1001:1000 ack 1
			> A 2001:1000 ack 1
			< A 1:0 ack 3001 win 60000
			> A 3001:1000 ack 1
			> A 4001:1000 ack 1
			> A 5001:1000 ack 1
			> A 6001:1000 ack 1
			count recoveries_undone 0`},
		{name: "without room in the window for new data all segments are sent again", cfg: noOptions, text: timedOut + `
			< A 1:0 ack 1001 win 9000
			> A 1001:1000 ack 1
			> A 2001:1000 ack 1`},
		{name: "an ACK of all segments after the timeout", cfg: noOptions, text: timedOut + `
			< A 1:0 ack 10001 win 60000
			lost 0
			> A 10001:1000 ack 1
			> A 11001:1000 ack 1
			> A 12001:1000 ack 1
			> A 13001:1000 ack 1
			> A 14001:1000 ack 1
			> A 15001:1000 ack 1
			> A 16001:1000 ack 1
			> A 17001:1000 ack 1
			> A 18001:1000 ack 1
			count recoveries_undone 0`},
		{name: "SACK of data that was not sent again undoes the timeout", cfg: withSack, text: timedOutProbed + `
			< A 1:0 ack 1001 win 60000
			> A 11001:1000 ack 1
			> A 12001:1000 ack 1
			< A 1:0 ack 1001 win 60000 sack 2001-3001
			count recoveries_undone 1
			lost 0
			window 10000
			timer 2.5ms`},
		{name: "SACK of only the new data confirms the timeout", cfg: withSack, text: timedOutProbed + `
			< A 1:0 ack 1001 win 60000
			> A 11001:1000 ack 1
			> A 12001:1000 ack 1
			< A 1:0 ack 1001 win 60000 sack 11001-12001
			> A 1001:1000 ack 1
			count recoveries_undone 0`},
		{name: "SACK before the first ACK has no effect", cfg: withSack, text: timedOutProbed + `
			< A 1:0 ack 1 win 60000 sack 1001-2001
			> nothing
			< A 1:0 ack 2001 win 60000
			> A 11001:1000 ack 1
			> A 12001:1000 ack 1
			< A 1:0 ack 3001 win 60000
			count recoveries_undone 1`},
		{name: "no F-RTO for a timeout during fast recovery", cfg: withSack, text: tenSegments + `
			< A 1:0 ack 1 win 60000 sack 1001-4001
			> A 1:1000 ack 1
			+30ms
			> A 1:1000 ack 1
			sacked 3000
			lost 6000
			< A 1:0 ack 4001 win 60000
			> A 4001:1000 ack 1
			> A 5001:1000 ack 1
			> A 6001:1000 ack 1
			> A 7001:1000 ack 1
			> A 8001:1000 ack 1
			count recoveries_undone 0`},
		{name: "a timestamp of the first transmission undoes the timeout at once", cfg: Config{NoWindowScale: true, NoSACK: true}, text: `
			dial
			> S 0:0 ts 0/0
			+10ms
			< SA 0:0 ack 1 win 60000 mss 1012 ts 500/0
			> A 1:0 ack 1
			write 3000
			> A 1:1000 ack 1 ts 10/500
			> A 1001:1000 ack 1
			> PA 2001:1000 ack 1
			+30ms
			> A 1:1000 ack 1 ts 40/500
			< A 1:0 ack 1001 win 60000 ts 501/10
			lost 0
			count recoveries_undone 1`},
		{name: "a timestamp that was not agreed on does not undo the timeout", cfg: noOptions, text: timedOut + `
			< A 1:0 ack 1001 win 60000 ts 501/0
			> A 10001:1000 ack 1
			> A 11001:1000 ack 1
			count recoveries_undone 0`},
		{name: "an ACK without a timestamp does not undo the timeout", cfg: Config{NoWindowScale: true, NoSACK: true}, text: `
			dial
			> S 0:0 ts 0/0
			+10ms
			< SA 0:0 ack 1 win 60000 mss 1012 ts 500/0
			> A 1:0 ack 1
			write 3000
			> A 1:1000 ack 1 ts 10/500
			> A 1001:1000 ack 1
			> PA 2001:1000 ack 1
			+30ms
			> A 1:1000 ack 1 ts 40/500
			< A 1:0 ack 1001 win 60000
			count recoveries_undone 0
			> A 1001:1000 ack 1
			> PA 2001:1000 ack 1`},
	})
}
