package tcp

import "testing"

// A connection over a path with a round trip of 10 ms that is believed to take 1500 bytes.
// fresh has four segments in flight and has never seen one of them arrive; proven has, and
// has four more in flight.
const (
	fresh = `
			dial
			> S 0:0
			+10ms
			< SA 0:0 ack 1 win 60000 mss 1460 sackok
			> A 1:0 ack 1
			events writable connected
			write 5840
			> A 1:1460 ack 1
			> A 1461:1460 ack 1
			> A 2921:1460 ack 1
			> PA 4381:1460 ack 1
			`
	proven = fresh + `
			+10ms
			< A 1:0 ack 5841 win 60000
			write 5840
			> A 5841:1460 ack 1
			> A 7301:1460 ack 1
			> A 8761:1460 ack 1
			> PA 10221:1460 ack 1
			`
)

func TestPathMTU(t *testing.T) {
	runScripts(t, []script{
		{name: "no segment of that size was ever acknowledged: believed at once, sent again at once, no congestion", cfg: withSack, text: fresh + `
			toolarge 1:1500 1400
			> A 1:1360 ack 1
			> A 1361:1360 ack 1
			> A 2721:1360 ack 1
			> A 4081:1360 ack 1
			> PA 5441:400 ack 1
			path 1400
			events path
			toolarge 1461:1500 1400	# of the others
			toolarge 2921:1500 1400
			count mtu_reports_accepted 1
			count mtu_reports_late 2
			count fast_recoveries 0
			window 14600
			+10ms
			< A 1:0 ack 5841 win 60000
			window 14600
			count timeouts 0`},
		{name: "against what was acknowledged: not before the segment is lost", cfg: withSack, text: proven + `
			toolarge 5841:1500 1400
			path 1500
			count mtu_reports_held 1
			count mtu_reports_accepted 0
			+19ms
			path 1500
			+1ms			# two round trips: instead of a probe of the tail
			> A 5841:1360 ack 1
			> A 7201:1360 ack 1
			> A 8561:1360 ack 1
			> A 9921:1360 ack 1
			> PA 11281:400 ack 1
			path 1400
			count mtu_reports_accepted 1
			count loss_probes 0
			count timeouts 0
			window 14600
			+10ms
			< A 1:0 ack 11681 win 60000
			window 14600`},
		{name: "likewise, and the segments behind it tell", cfg: withSack, text: proven + `
			toolarge 5841:1500 1400
			< A 1:0 ack 5841 win 60000 sack 7301-8761
			path 1500
			< A 1:0 ack 5841 win 60000 sack 7301-10221
			path 1500
			< A 1:0 ack 5841 win 60000 sack 7301-11681
			> A 5841:1360 ack 1
			> A 7201:100 ack 1
			path 1400
			count fast_recoveries 0
			< A 1:0 ack 11681 win 60000
			window 14600`},
		{name: "a lie: what it quotes is acknowledged", cfg: withSack, text: proven + `
			toolarge 7301:1500 576
			< A 1:0 ack 7301 win 60000
			count mtu_reports_refuted 0
			< A 1:0 ack 8761 win 60000
			count mtu_reports_refuted 1
			< A 1:0 ack 11681 win 60000
			path 1500
			count mtu_reports_accepted 0`},
		{name: "what cannot be true", cfg: withSack, text: fresh + `
			toolarge 1:1500 1500	# it would have passed
			toolarge 1:1400 1450
			toolarge 1:1501 1400	# it was never sent
			toolarge 1:500 100
			count mtu_reports_bad 4
			toolarge 5841:1500 1400	# not in flight
			toolarge 0:1500 1400
			count icmp_unmatched 2
			path 1500`},
		{name: "no lie makes segments tiny", cfg: withSack, text: fresh + `
			toolarge 1:1500 68
			path 576
			> A 1:536 ack 1
			> A 537:536 ack 1
			> A 1073:536 ack 1
			> A 1609:536 ack 1
			> A 2145:536 ack 1
			> A 2681:536 ack 1
			> A 3217:536 ack 1
			> A 3753:536 ack 1
			> A 4289:536 ack 1
			> A 4825:536 ack 1
			> PA 5361:480 ack 1
			window 14600`},
		{name: "an old router says nothing: the next plateau", cfg: withSack, text: fresh + `
			toolarge 1:1500 0
			path 1492
			> A 1:1452 ack 1
			> A 1453:1452 ack 1
			> A 2905:1452 ack 1
			> A 4357:1452 ack 1
			> PA 5809:32 ack 1`},
		{name: "while it is opened nothing is believed", cfg: withSack, text: `
			dial
			> S 0:0
			toolarge 0:60 40
			toolarge 0:1500 1400
			count mtu_reports_bad 2
			path 1500`},
		{name: "a small segment in flight is not sent again", cfg: withSack, text: fresh + `
			+10ms
			< A 1:0 ack 5841 win 60000
			write 100
			> PA 5841:100 ack 1
			mtu 1000
			path 1000
			lost 0`},
		{name: "the link takes less than before", cfg: withSack, text: proven + `
			mtu 1000
			> A 5841:960 ack 1
			> A 6801:960 ack 1
			> A 7761:960 ack 1
			> A 8721:960 ack 1
			> A 9681:960 ack 1
			> A 10641:960 ack 1
			> PA 11601:80 ack 1
			window 14600
			+10ms
			< A 1:0 ack 11681 win 60000
			mtu 1500	# and more again
			path 1500
			write 1460
			> PA 11681:1460 ack 1`},
		{name: "another connection's word counts as long as nothing larger has arrived", cfg: withSack, text: fresh + `
			suggest 1400
			> A 1:1360 ack 1
			> A 1361:1360 ack 1
			> A 2721:1360 ack 1
			> A 4081:1360 ack 1
			> PA 5441:400 ack 1
			suggest 1450
			path 1400`},
		{name: "and not after that", cfg: withSack, text: proven + `
			suggest 1400
			path 1500`},
	})
}

// blackHole is a connection that has found out that full segments are lost, and what is
// in flight is acknowledged.
const blackHole = fresh + `
			write 7300
			> A 5841:1460 ack 1
			> A 7301:1460 ack 1
			> A 8761:1460 ack 1
			> A 10221:1460 ack 1
			> PA 11681:1460 ack 1
			+20ms
			count loss_probes 1
			> PA 11681:1460 ack 1
			+30ms
			> A 1:1460 ack 1
			count timeouts 1
			path 1500
			+60ms
			count timeouts 2
			> A 1:984 ack 1
			> A 985:476 ack 1
			count black_holes 1
			path 1024
			+10ms
			< A 1:0 ack 985 win 60000
			> A 1461:984 ack 1
			> A 2445:984 ack 1
			+10ms
			< A 1:0 ack 13141 win 60000	# it had the rest
			`

// A path that drops full segments and says nothing. What is sent when is not paced, for it
// is not the subject.
func TestBlackHole(t *testing.T) {
	withSack := withSack
	withSack.noPacing = true
	runScripts(t, []script{
		{name: "two timeouts, a segment that passes, and a probe that does", cfg: withSack, text: blackHole + `
			write 20000
			> A 13141:1460 ack 1
			> A 14601:984 ack 1
			> A 15585:984 ack 1
			> A 16569:984 ack 1
			> A 17553:984 ack 1
			> A 18537:984 ack 1
			> A 19521:984 ack 1
			> A 20505:984 ack 1
			> A 21489:984 ack 1
			> A 22473:984 ack 1
			count mtu_probes 1
			< A 1:0 ack 14601 win 60000
			path 1500
			events path
			count mtu_probes_lost 0
			> A 23457:1460 ack 1`},
		{name: "a probe that does not, and nothing else is lost: in small segments again, no congestion", cfg: withSack, text: blackHole + `
			write 20000
			> A 13141:1460 ack 1
			> A 14601:984 ack 1
			> A 15585:984 ack 1
			> A 16569:984 ack 1
			> A 17553:984 ack 1
			> A 18537:984 ack 1
			> A 19521:984 ack 1
			> A 20505:984 ack 1
			> A 21489:984 ack 1
			> A 22473:984 ack 1
			< A 1:0 ack 13141 win 60000 sack 14601-15585
			> A 23457:984 ack 1
			< A 1:0 ack 13141 win 60000 sack 14601-16569
			> A 24441:984 ack 1
			< A 1:0 ack 13141 win 60000 sack 14601-18537
			> A 13141:984 ack 1
			> A 14125:476 ack 1
			> A 25425:984 ack 1
			> A 26409:984 ack 1
			count mtu_probes_lost 1
			count fast_recoveries 0
			path 1024`},
	})
}
