package tcp

import (
	"strings"
	"testing"
)

// Of tenSegments the timer has run out, and the first has been sent again.
const timedOut = tenSegments + `
			+20ms
			> A 1:1000 ack 1
			count timeouts 1
			window 1000
			`

// The same with SACK, where a probe comes first.
const timedOutProbed = tenSegments + `
			+10ms
			> A 10001:1000 ack 1
			+30ms
			> A 1:1000 ack 1
			count timeouts 1
			window 1000
			`

func TestForwardRecovery(t *testing.T) {
	onlyTen := strings.NewReplacer("write 30000", "write 10000", "> A 9001", "> PA 9001")
	runScripts(t, []script{
		{name: "without SACK: it was too early", cfg: noOptions, text: timedOut + `
			< A 1:0 ack 1001 win 60000
			> A 10001:1000 ack 1	# two that were never sent
			> A 11001:1000 ack 1
			timer 60ms
			< A 1:0 ack 2001 win 60000	# and what was not sent again arrives
			count recoveries_undone 1
			lost 0
			window 10000
			< A 1:0 ack 3001 win 60000
			> A 12001:1000 ack 1
			> A 13001:1000 ack 1
			timer 122ms			# twice, and the backoff stays (RFC 6298)
			count bytes_retransmitted 1000`},
		{name: "without SACK: a duplicate says that it was not", cfg: noOptions, text: timedOut + `
			< A 1:0 ack 1001 win 60000
			> A 10001:1000 ack 1
			> A 11001:1000 ack 1
			< A 1:0 ack 1001 win 60000
			> A 1001:1000 ack 1
			count recoveries_undone 0
			window 2000`},
		{name: "without SACK: so does one before the first", cfg: noOptions, text: timedOut + `
			< A 1:0 ack 1 win 60000
			< A 1:0 ack 1001 win 60000
			> A 1001:1000 ack 1
			> A 2001:1000 ack 1`},
		{name: "the second timeout in a row, for which the path is blamed", cfg: noOptions, text: timedOut + `
			+60ms
			> A 1:984 ack 1
			> A 985:16 ack 1
			count black_holes 1
			< A 1:0 ack 1001 win 60000
			> A 1001:984 ack 1
			> A 1985:984 ack 1
			count recoveries_undone 0`},
		{name: "nobody answers the new ones: the next timeout sends all of it", cfg: noOptions, text: timedOut + `
			< A 1:0 ack 1001 win 60000
			> A 10001:1000 ack 1
			> A 11001:1000 ack 1
			+60ms
			> A 1001:984 ack 1
			< A 1:0 ack 1985 win 60000
			> A 1985:984 ack 1
			> A 2969:984 ack 1
			count recoveries_undone 0`},
		{name: "nothing is new", cfg: noOptions, text: onlyTen.Replace(timedOut) + `
			< A 1:0 ack 1001 win 60000
			> A 1001:1000 ack 1
			> A 2001:1000 ack 1
			< A 1:0 ack 3001 win 60000
			> A 3001:1000 ack 1
			> A 4001:1000 ack 1
			> A 5001:1000 ack 1
			> A 6001:1000 ack 1
			count recoveries_undone 0`},
		{name: "there is no room for what is new", cfg: noOptions, text: timedOut + `
			< A 1:0 ack 1001 win 9000
			> A 1001:1000 ack 1
			> A 2001:1000 ack 1`},
		{name: "everything has arrived", cfg: noOptions, text: timedOut + `
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
		{name: "SACK: what was not sent again arrives", cfg: withSack, text: timedOutProbed + `
			< A 1:0 ack 1001 win 60000
			> A 11001:1000 ack 1
			> A 12001:1000 ack 1
			< A 1:0 ack 1001 win 60000 sack 2001-3001
			count recoveries_undone 1
			lost 0
			window 10000
			timer 2.5ms`},
		{name: "SACK: only what is new arrives", cfg: withSack, text: timedOutProbed + `
			< A 1:0 ack 1001 win 60000
			> A 11001:1000 ack 1
			> A 12001:1000 ack 1
			< A 1:0 ack 1001 win 60000 sack 11001-12001
			> A 1001:1000 ack 1
			count recoveries_undone 0`},
		{name: "SACK: what comes before the first says nothing", cfg: withSack, text: timedOutProbed + `
			< A 1:0 ack 1 win 60000 sack 1001-2001
			> nothing
			< A 1:0 ack 2001 win 60000
			> A 11001:1000 ack 1
			> A 12001:1000 ack 1
			< A 1:0 ack 3001 win 60000
			count recoveries_undone 1`},
		{name: "not after a recovery that was under way", cfg: withSack, text: tenSegments + `
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
		{name: "timestamps say it at once", cfg: Config{NoWindowScale: true, NoSACK: true}, text: `
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
	})
}
