package tcp

import (
	"strings"
	"testing"
	"time"
)

func TestReceiving(t *testing.T) {
	runScripts(t, []script{
		{name: "data in order", cfg: noOptions, text: `
			both:
			read 1 = none
			< A 1:600 ack 1
			> A 1:0 ack 601
			events readable
			< A 601:5 ack 1
			> A 1:0 ack 606
			events			# no second event before a read has found nothing
			read 1000 = 605
			read 1 = none
			< A 606:5 ack 1
			> A 1:0 ack 611
			events readable`},
		{name: "a gap is filled, with SACK", cfg: Config{NoTimestamps: true, NoWindowScale: true}, text: `
			listen
			< S 0:0 sackok
			> SA 0:0 ack 1 sackok
			< A 1:0 ack 1
			accept
			< A 101:100 ack 1
			> A 1:0 ack 1 sack 101-201
			< A 301:100 ack 1
			> A 1:0 ack 1 sack 301-401,101-201
			< A 501:100 ack 1
			> A 1:0 ack 1 sack 501-601,301-401,101-201
			< A 701:100 ack 1
			> A 1:0 ack 1 sack 701-801,501-601,301-401,101-201
			< A 901:100 ack 1
			> A 1:0 ack 1 sack 901-1001,701-801,501-601,301-401
			< A 401:100 ack 1	# joins two runs
			> A 1:0 ack 1 sack 301-601,901-1001,701-801
			write 10		# data segments carry SACK blocks too
			> PA 1:10 ack 1 sack 301-601,901-1001,701-801
			< A 1:100 ack 1
			> A 11:0 ack 201 sack 301-601,901-1001,701-801
			< A 201:100 ack 1
			> A 11:0 ack 601 sack 901-1001,701-801
			< A 601:400 ack 1
			> A 11:0 ack 1001 sack 701-801	# the first range that came twice (RFC 2883)
			read 2000 = 1000
			count overlap_mismatch 0`},
		{name: "no SACK blocks unless SACK was agreed on", cfg: noOptions, text: `
			both:
			< A 101:100 ack 1
			> A 1:0 ack 1 sack -`},
		{name: "overlapping data: the bytes that came first are kept", cfg: noOptions, text: `
			both:
			< A 101:100 ack 1
			> A 1:0 ack 1
			< A 51:200 ack 1 baddata
			> A 1:0 ack 1
			count overlap_mismatch 100
			< A 1:50 ack 1
			> A 1:0 ack 251
			read 50 = 50`},
		{name: "overlapping data: out-of-order bytes that came first are kept", cfg: noOptions, text: `
			both:
			< A 101:100 ack 1
			> A 1:0 ack 1
			< A 301:100 ack 1
			> A 1:0 ack 1
			< A 1:500 ack 1
			> A 1:0 ack 501
			read 1000 = 500
			count overlap_mismatch 0
			< A 601:100 ack 1
			> A 1:0 ack 501
			< A 501:100 ack 1
			> A 1:0 ack 701
			read 1000 = 200
			< A 711:10 ack 1
			> A 1:0 ack 701
			< A 701:10 ack 1
			> A 1:0 ack 721
			< A 701:40 ack 1 baddata	# 20 bytes of it have been delivered
			> A 1:0 ack 741
			read 20 = 20
			count overlap_mismatch 0
			< A 751:10 ack 1
			> A 1:0 ack 741
			< A 741:20 ack 1 baddata
			> A 1:0 ack 761
			count overlap_mismatch 10`},
		{name: "a FIN out of order", cfg: noOptions, text: `
			both:
			< FA 101:50 ack 1
			> A 1:0 ack 1
			state ESTABLISHED
			< A 1:100 ack 1
			> A 1:0 ack 152
			state CLOSE-WAIT
			read 1000 = 150
			read 1 = EOF`},
		{name: "a FIN before out-of-order data that lies beyond it", cfg: noOptions, text: `
			both:
			< A 11:100 ack 1 baddata
			> A 1:0 ack 1
			< FA 1:10 ack 1
			> A 1:0 ack 12
			state CLOSE-WAIT
			read 1000 = 10
			read 1 = EOF`},
		{name: "a FIN out of order, in the middle of out-of-order data", cfg: noOptions, text: `
			both:
			< A 11:100 ack 1
			> A 1:0 ack 1
			< FA 21:10 ack 1
			> A 1:0 ack 1
			< A 1:10 ack 1
			> A 1:0 ack 32
			state CLOSE-WAIT
			read 1000 = 30
			read 1 = EOF`},
		{name: "duplicates are acknowledged", cfg: noOptions, text: `
			both:
			< A 1:100 ack 1
			> A 1:0 ack 101
			< A 1:100 ack 1
			> A 1:0 ack 101
			< A 51:100 ack 1
			> A 1:0 ack 151
			read 1000 = 150
			count duplicate_bytes 50
			count out_of_window 1`},
		{name: "a segment with a bad checksum is dropped", cfg: noOptions, text: `
			both:
			< A 1:100 ack 1 badsum
			count bad_checksum 1
			read 1 = none`},
		{name: "urgent data is delivered in line", cfg: noOptions, text: `
			both:
			< UA 1:100 ack 1 urg 50
			> A 1:0 ack 101
			read 1000 = 100
			count urgent_pointers 1`},
		{name: "adaptive ACK: every second full segment is acknowledged", cfg: noOptions, opts: Options{AdaptiveAck: true, MTU: 576}, text: `
			both:
			< A 1:536 ack 1
			> nothing
			timer 2ms
			< A 537:536 ack 1
			> A 1:0 ack 1073
			< A 1073:536 ack 1
			+2ms
			> A 1:0 ack 1609
			< A 1609:10 ack 1	# a smaller segment is acknowledged at once
			> A 1:0 ack 1619`},
		{name: "adaptive ACK: the ACK is sent with the answer", cfg: noOptions, opts: Options{AdaptiveAck: true}, text: `
			both:
			< A 1:10 ack 1
			> nothing
			write 10
			> PA 1:10 ack 11
			< A 11:10 ack 11
			> nothing
			+2ms			# no answer came: the ACK is sent
			> A 11:0 ack 21
			< A 21:10 ack 11	# and the peer sends more: ACKs are sent at once
			> A 11:0 ack 31
			write 10
			> PA 11:10 ack 31
			< A 31:10 ack 21
			> A 21:0 ack 41
			write 10
			> PA 21:10 ack 41
			< A 41:10 ack 31
			> A 31:0 ack 51
			write 10
			> PA 31:10 ack 51
			< A 51:10 ack 41	# after three answers the ACK waits for the fourth
			> nothing
			write 10
			> PA 41:10 ack 61`},
		{name: "adaptive ACK: the ACK waits for late answers, longer and longer", cfg: noOptions, opts: Options{AdaptiveAck: true}, text: `
			both:
			< A 1:10 ack 1
			timer 2ms
			+2ms
			> A 1:0 ack 11
			+1ms
			write 10
			> PA 1:10 ack 11
			< A 11:10 ack 11
			timer 2.25ms
			+2.25ms
			> A 11:0 ack 21
			+0.75ms
			write 10
			> PA 11:10 ack 21
			< A 21:10 ack 21
			timer 2.5ms
			+2.5ms
			> A 21:0 ack 31
			+38ms			# an answer after more than 8 ms counts against one that came soon
			write 10
			> PA 21:10 ack 31
			< A 31:10 ack 31
			> A 31:0 ack 41`},
		{name: "adaptive ACK: a full segment after an ACK in vain waits no longer", cfg: noOptions, opts: Options{AdaptiveAck: true, MTU: 576}, text: `
			both:
			< A 1:536 ack 1
			timer 2ms
			+2ms
			> A 1:0 ack 537
			< A 537:536 ack 1
			timer 2ms
			+2ms
			> A 1:0 ack 1073`},
		{name: "adaptive ACK: eight segments are acknowledged at once", cfg: noOptions, opts: Options{AdaptiveAck: true}, text: `
			both:
			< A 1:10 ack 1
			< A 11:10 ack 1
			< A 21:10 ack 1
			< A 31:10 ack 1
			< A 41:10 ack 1
			< A 51:10 ack 1
			< A 61:10 ack 1
			> nothing
			< A 71:10 ack 1
			> A 1:0 ack 81`},
		{name: "adaptive ACK: a window for less than two segments is updated at once", cfg: noOptions, opts: Options{AdaptiveAck: true, ReceiveBuffer: 3000}, text: `
			both:
			< A 1:1460 ack 1
			< A 1461:100 ack 1
			> nothing
			read 2000 = 1560
			> A 1:0 ack 1561`},
		{name: "adaptive ACK: a larger window waits for the answer", cfg: noOptions, opts: Options{AdaptiveAck: true, ReceiveBuffer: 12000}, text: `
			both:
			< A 1:1460 ack 1
			< A 1461:1460 ack 1
			> A 1:0 ack 2921 win 9080
			< A 2921:1400 ack 1
			read 5000 = 4320
			> nothing
			write 10
			> PA 1:10 ack 4321 win 12000`},
		{name: "adaptive ACK: an answer that cannot be sent yet is none in vain", cfg: noOptions, opts: Options{AdaptiveAck: true}, text: `
			both:
			< A 1:10 ack 1 win 0
			write 10
			> nothing
			+2ms
			> A 1:0 ack 11
			< A 11:10 ack 1 win 0
			> nothing`},
		{name: "adaptive ACK: a FIN after an ACK in vain is acknowledged at once", cfg: noOptions, opts: Options{AdaptiveAck: true}, text: `
			both:
			< A 1:10 ack 1
			+2ms
			> A 1:0 ack 11
			< FA 11:0 ack 1
			> A 1:0 ack 12`},
		{name: "adaptive ACK: the ACK of a FIN is sent with our FIN", cfg: noOptions, opts: Options{AdaptiveAck: true}, text: `
			both:
			< FA 1:0 ack 1
			> nothing
			close
			> FA 1:0 ack 2`},
		{name: "adaptive ACK: the ACK of a FIN waits no longer than that of data", cfg: noOptions, opts: Options{AdaptiveAck: true}, text: `
			both:
			< FA 1:0 ack 1
			timer 2ms
			+2ms
			> A 1:0 ack 2`},
		{name: "an ACK is sent with data that is written before it is emitted", cfg: noOptions, text: `
			both:
			hold
			< A 1:10 ack 1
			write 10
			go
			> PA 1:10 ack 11
			> nothing`},
		{name: "one ACK for all segments of a batch", cfg: noOptions, text: `
			both:
			hold
			< A 1:536 ack 1
			< A 537:536 ack 1
			< A 2145:536 ack 1
			< A 1073:536 ack 1
			go
			> A 1:0 ack 1609
			> nothing`},
		{name: "data after CloseRead is acknowledged and discarded", cfg: noOptions, text: `
			both:
			< A 1:100 ack 1
			> A 1:0 ack 101
			closeread
			events readable
			read 10 = EOF
			< A 101:100 ack 1
			> A 1:0 ack 201
			< A 301:100 ack 1
			> A 1:0 ack 201
			< A 201:100 ack 1
			> A 1:0 ack 401
			read 10 = EOF
			count data_discarded 300
			write 5
			> PA 1:5 ack 401`},
	})
}

// The examples of RFC 2883, section 4, and others. The sequence number 1 stands for 3000.
func TestDSACK(t *testing.T) {
	const open = `
			listen
			< S 0:0 sackok
			> SA 0:0 ack 1
			< A 1:0 ack 1
			accept
			`
	runScripts(t, []script{
		{name: "4.1.1, a duplicate segment", cfg: withSack, text: open + `
			< A 1:500 ack 1
			> A 1:0 ack 501 sack -
			< A 501:500 ack 1
			> A 1:0 ack 1001
			< A 1:500 ack 1
			> A 1:0 ack 1001 sack 1-501
			< A 1001:1 ack 1
			> A 1:0 ack 1002 sack -		# once`},
		{name: "4.1.2, an out-of-order segment and a duplicate segment", cfg: withSack, text: open + `
			< A 1:500 ack 1
			> A 1:0 ack 501
			< A 501:500 ack 1
			> A 1:0 ack 1001
			< A 1501:500 ack 1
			> A 1:0 ack 1001 sack 1501-2001
			< A 1:500 ack 1
			> A 1:0 ack 1001 sack 1-501,1501-2001`},
		{name: "4.1.3, a duplicate of an out-of-order segment", cfg: withSack, text: open + `
			< A 1001:500 ack 1
			> A 1:0 ack 1 sack 1001-1501
			< A 1501:500 ack 1
			> A 1:0 ack 1 sack 1001-2001
			< A 1501:500 ack 1
			> A 1:0 ack 1 sack 1501-2001,1001-2001
			< A 2001:500 ack 1
			> A 1:0 ack 1 sack 1001-2501`},
		{name: "4.2.1, part of a segment", cfg: withSack, text: open + `
			< A 1:500 ack 1
			> A 1:0 ack 501
			< A 1501:500 ack 1
			> A 1:0 ack 501 sack 1501-2001
			< A 501:500 ack 1
			> A 1:0 ack 1001 sack 1501-2001
			< A 501:1000 ack 1
			> A 1:0 ack 2001 sack 501-1001`},
		{name: "4.2.2, two parts of a segment, below the acknowledgment", cfg: withSack, text: open + `
			< A 1:500 ack 1
			> A 1:0 ack 501
			< A 2501:500 ack 1
			> A 1:0 ack 501 sack 2501-3001
			< A 501:500 ack 1
			> A 1:0 ack 1001 sack 2501-3001
			< A 1501:500 ack 1
			> A 1:0 ack 1001 sack 1501-2001,2501-3001
			< A 501:1500 ack 1
			> A 1:0 ack 2001 sack 501-1001,2501-3001`},
		{name: "4.2.3, two parts of a segment, above the acknowledgment", cfg: withSack, text: open + `
			< A 1:500 ack 1
			> A 1:0 ack 501
			< A 3001:500 ack 1
			> A 1:0 ack 501 sack 3001-3501
			< A 1001:500 ack 1
			> A 1:0 ack 501 sack 1001-1501,3001-3501
			< A 2001:500 ack 1
			> A 1:0 ack 501 sack 2001-2501,1001-1501,3001-3501
			< A 1001:1500 ack 1
			> A 1:0 ack 501 sack 1001-1501,1001-2501,3001-3501`},
		{name: "the segment begins within one run and ends within the next", cfg: withSack, text: open + `
			< A 200:100 ack 1
			> A 1:0 ack 1 sack 200-300
			< A 400:100 ack 1
			> A 1:0 ack 1 sack 400-500,200-300
			< A 600:100 ack 1
			> A 1:0 ack 1 sack 600-700,400-500,200-300
			< A 250:225 ack 1
			> A 1:0 ack 1 sack 250-300,200-500,600-700`},
		{name: "the segment begins in a gap, or fills the first gap and ends in the next", cfg: withSack, text: open + `
			< A 201:100 ack 1
			> A 1:0 ack 1 sack 201-301
			< A 401:100 ack 1
			> A 1:0 ack 1 sack 401-501,201-301
			< A 151:100 ack 1
			> A 1:0 ack 1 sack 201-251,151-301,401-501
			< A 1:350 ack 1
			> A 1:0 ack 351 sack 151-301,401-501
			< A 351:100 ack 1
			> A 1:0 ack 501 sack 401-451
			read 500
			write 5
			> PA 1:5 ack 501 sack -`},
		{name: "one ACK for several duplicates reports the first and what adjoins it", cfg: withSack, text: open + `
			< A 1:1500 ack 1
			> A 1:0 ack 1501
			hold
			< A 1:500 ack 1
			< A 501:500 ack 1
			< A 1201:100 ack 1
			go
			> A 1:0 ack 1501 sack 1-1001`},
		{name: "no D-SACK unless SACK was agreed on", cfg: noOptions, text: `
			both:
			< A 1:500 ack 1
			> A 1:0 ack 501
			< A 1:500 ack 1
			> A 1:0 ack 501 sack -`},
	})
}

func TestOptionNegotiation(t *testing.T) {
	runScripts(t, []script{
		{name: "all options are agreed on", text: `
			dial
			> S 0:0 mss 1460 ws 7 sackok ts 0/0
			+3ms
			< SA 0:0 ack 1 mss 1400 ws 7 sackok ts 77/0
			> A 1:0 ack 1 ts 3/77
			write 2776
			> A 1:1388 ack 1 ts 3/77
			> PA 1389:1388 ack 1 ts 3/77`},
		{name: "the peer accepts no option", text: `
			dial
			> S 0:0 mss 1460 ws 7 sackok ts 0/0
			< SA 0:0 ack 1
			> A 1:0 ack 1 ts - ws -
			write 5000
			> A 1:536 ack 1 ts -
			> A 537:536 ack 1
			> A 1073:536 ack 1
			> A 1609:536 ack 1
			> A 2145:536 ack 1
			> A 2681:536 ack 1
			> A 3217:536 ack 1
			> A 3753:536 ack 1
			> A 4289:536 ack 1
			< A 1:100 ack 1 ts 5	# what was not agreed on is ignored
			> A 4825:0 ack 101 ts -`},
		{name: "a listener accepts the options that the SYN offers", text: `
			listen
			< S 0:0 mss 1000 ws 2 ts 5
			> SA 0:0 ack 1 mss 1460 ws 7 ts 0/5
			< A 1:0 ack 1 ts 6/0
			accept
			state ESTABLISHED
			< A 101:1 ack 1 ts 7/0
			> A 1:0 ack 1 sack - ts 0/6`},
		{name: "a listener does not use options that the SYN does not offer", text: `
			listen
			< S 0:0 sackok
			> SA 0:0 ack 1 ws - sackok ts -`},
		{name: "the least MSS is 48", cfg: noOptions, text: `
			dial
			> S 0:0
			< SA 0:0 ack 1 mss 1
			> A 1:0 ack 1
			write 60
			> A 1:48 ack 1
			+30us
			> PA 49:12 ack 1`},
		{name: "PAWS", cfg: Config{NoSACK: true, NoWindowScale: true}, text: `
			listen
			< S 0:0 ts 500
			> SA 0:0 ack 1
			< A 1:0 ack 1 ts 501/0
			accept
			< A 1:100 ack 1 ts 500/0	# older than TS.Recent
			> A 1:0 ack 1 ts 0/501
			count paws_dropped 1
			< S 1:0			# a SYN without one is a SYN in the window
			> A 1:0 ack 1 ts 0/501
			< S 70000:0
			> A 1:0 ack 1 ts 0/501
			count no_timestamp 2
			< R 1:0			# a RST needs none
			state CLOSED`},
		{name: "segments without the timestamp that was agreed on are taken", cfg: Config{NoSACK: true, NoWindowScale: true}, text: `
			listen
			< S 0:0 ts 500
			> SA 0:0 ack 1
			< A 1:0 ack 1
			accept
			write 100
			> PA 1:100 ack 1 ts 0/500
			< A 1:0 ack 101
			< A 1:50 ack 101
			> A 101:0 ack 51 ts 0/500
			< A 50:0 ack 101	# a keepalive
			> A 101:0 ack 51
			< A 51:50 ack 101 ts 510/0
			> A 101:0 ack 101 ts 0/510
			< A 101:50 ack 101	# TS.Recent stays
			> A 101:0 ack 151 ts 0/510
			< A 151:50 ack 101 ts 505/0	# and protects
			> A 101:0 ack 151 ts 0/510
			count paws_dropped 1
			read 200 = 150
			< FA 151:0 ack 101
			> A 101:0 ack 152
			state CLOSE-WAIT
			count no_timestamp 6`},
		{name: "a RST carries a timestamp", cfg: Config{NoSACK: true, NoWindowScale: true}, text: `
			listen
			< S 0:0 ts 500
			> SA 0:0 ack 1
			< A 1:0 ack 1 ts 501/0
			accept
			+7ms
			abort
			> RA 1:0 ack 1 ts 7/501`},
		{name: "which timestamp is echoed (RFC 7323, 4.3)", cfg: Config{NoSACK: true, NoWindowScale: true}, text: `
			listen
			< S 0:0 ts 500
			> SA 0:0 ack 1
			< A 1:0 ack 1 ts 501/0
			accept
			< A 1:10 ack 1 ts 510/0
			> A 1:0 ack 11 ts 0/510
			< A 21:10 ack 1 ts 511/0	# behind a hole: its timestamp is not echoed
			> A 1:0 ack 11 ts 0/510
			< A 11:10 ack 1 ts 512/0	# fills it
			> A 1:0 ack 31 ts 0/512
			< A 31:10 ack 1 ts 520/0
			> A 1:0 ack 41 ts 0/520`},
		{name: "PAWS does not compare with a timestamp that is 25 days old", cfg: Config{NoSACK: true, NoWindowScale: true}, text: `
			listen
			< S 0:0 ts 500
			> SA 0:0 ack 1
			< A 1:0 ack 1 ts 501/0
			accept
			+600h
			< A 1:10 ack 1 ts 400/0
			> A 1:0 ack 11`},
		{name: "SACK blocks are accepted if they are within the data in flight", cfg: Config{NoTimestamps: true, NoWindowScale: true}, opts: Options{Cork: -1}, text: `
			listen
			< S 0:0 sackok
			> SA 0:0 ack 1
			+1ms
			< A 1:0 ack 1
			accept
			write 100
			> PA 1:100 ack 1
			write 100
			> PA 101:100 ack 1
			+1ms
			< A 1:0 ack 1 sack 101-201,150-900,300-200
			count sack_received 1
			sacked 100`},
	})
}

func TestKeepAlive(t *testing.T) {
	runScripts(t, []script{
		{name: "keepalive probes that are answered", cfg: noOptions, text: `
			both:
			keepalive 3
			+9s
			< A 1:10 ack 1
			> A 1:0 ack 11
			+9999ms
			> nothing
			+1ms
			> A 0:0 ack 11
			< A 11:0 ack 1
			+10s
			> A 0:0 ack 11
			+1s
			> A 0:0 ack 11
			< A 11:0 ack 1
			+9999ms
			> nothing
			keepalive 3
			state ESTABLISHED`},
		{name: "keepalive probes that are not answered", cfg: noOptions, text: `
			both:
			keepalive 3
			+10s
			> A 0:0 ack 1
			+1s
			> A 0:0 ack 1
			+1s
			> A 0:0 ack 1
			+1s
			> RA 1:0 ack 1
			err ETIMEDOUT
			count keep_alives 3`},
		{name: "an answer resets the count of keepalive probes", cfg: noOptions, text: `
			both:
			keepalive 3
			+10s
			> A 0:0 ack 1
			+1s
			> A 0:0 ack 1
			+1s
			> A 0:0 ack 1
			< A 1:0 ack 1
			+10s
			> A 0:0 ack 1
			+1s
			> A 0:0 ack 1
			+1s
			> A 0:0 ack 1
			+1s
			> RA 1:0 ack 1
			err ETIMEDOUT`},
		{name: "a peer without the connection answers the keepalive probe with a RST", cfg: noOptions, text: `
			both:
			keepalive 3
			+10s
			> A 0:0 ack 1
			< R 1:0
			err ECONNRESET
			> nothing`},
		{name: "with data in flight the user timeout applies", cfg: noOptions, opts: Options{UserTimeout: 20 * time.Millisecond, KeepAlive: KeepAlive{Enable: true, Idle: 10 * time.Millisecond, Interval: time.Millisecond, Count: 1}}, text: `
			both:
			write 1
			> PA 1:1 ack 1
			+5ms
			> PA 1:1 ack 1
			+10ms
			> PA 1:1 ack 1
			+5ms
			> RA 2:0 ack 1
			err ETIMEDOUT
			count keep_alives 0`},
		{name: "keepalive is turned off", cfg: noOptions, text: `
			both:
			keepalive 3
			+10s
			> A 0:0 ack 1
			keepalive 0
			timer never
			+1h
			state ESTABLISHED`},
		{name: "keepalive probes of the peer are answered", cfg: noOptions, text: `
			both:
			< A 0:0 ack 1
			> A 1:0 ack 1
			< A 0:1 ack 1		# with a byte of garbage, as some do
			> A 1:0 ack 1`},
		{name: "no keepalive probe while data is in flight", cfg: noOptions, opts: Options{KeepAlive: KeepAlive{Enable: true, Idle: time.Second}}, text: `
			both:
			write 1
			> PA 1:1 ack 1
			+5ms
			> PA 1:1 ack 1
			+10ms
			> PA 1:1 ack 1
			+20ms
			> PA 1:1 ack 1
			+40ms
			> PA 1:1 ack 1
			+80ms
			> PA 1:1 ack 1
			+160ms
			> PA 1:1 ack 1
			+320ms
			> PA 1:1 ack 1
			+640ms
			> PA 1:1 ack 1
			count keep_alives 0`},
	})
}

func TestTimeWaitReuse(t *testing.T) {
	closed := `
			listen
			established
			closewrite
			> FA 1:0 ack 1
			< FA 1:0 ack 2
			> A 2:0 ack 2
			state TIME-WAIT
			`
	closedTS := `
			listen
			< S 0:0 ts 500
			> SA 0:0 ack 1
			< A 1:0 ack 1 ts 501/0
			accept
			closewrite
			> FA 1:0 ack 1
			< FA 1:0 ack 2 ts 502/0
			> A 2:0 ack 2 ts 0/502
			`
	ts := Config{NoSACK: true, NoWindowScale: true}
	runScripts(t, []script{
		{name: "a SYN with a higher sequence number", cfg: noOptions, text: closed + `
			< S 3:0
			> SA 0:0 ack 4 new yes
			count time_wait_used 1
			< A 4:0 ack 1
			accept
			< A 4:10 ack 1
			> A 1:0 ack 14`},
		{name: "a SYN with a lower sequence number", cfg: noOptions, text: closed + `
			+1s
			< S 1:0
			> A 2:0 ack 2
			state TIME-WAIT`},
		{name: "a SYN with a later timestamp (RFC 6191)", cfg: ts, text: closedTS + `
			< S -500:0 ts 503
			> SA 0:0 ack -499 new yes`},
		{name: "a SYN with an earlier timestamp", cfg: ts, text: closedTS + `
			+1s
			< S 5000:0 ts 501
			> A 2:0 ack 2`},
		{name: "a segment without the timestamp that was agreed on", cfg: ts, text: closedTS + `
			+1s
			< FA 1:0 ack 2
			> A 2:0 ack 2
			< A 2:0 ack 2
			> nothing
			count no_timestamp 2
			< S 1:0
			> A 2:0 ack 2
			< FA 1:0 ack 2 ts 502/0
			> A 2:0 ack 2`},
		{name: "a RST", cfg: noOptions, text: closed + `
			+1s
			< R 3:0			# in the window
			> A 2:0 ack 2
			< R 1:0			# left of it
			> nothing
			< R 2:0
			count resets_received 1
			+1ms
			< A 2:0 ack 2
			> R 2:0`},
		{name: "an ACK that is not the last one", cfg: noOptions, text: closed + `
			< A 2:0 ack 2		# what a peer in TIME-WAIT sends
			> nothing
			< A 3:0 ack 2		# in the window
			> A 2:0 ack 2
			< A 2:0 ack 3		# it acknowledges what was not sent
			> A 2:0 ack 2
			count ack_unsent 1
			< A 2:0 ack 1
			> A 2:0 ack 2
			< A 1:0 ack 2		# left of the window
			> A 2:0 ack 2
			count challenge_acks 4`},
		{name: "segments without data are answered ten times, then ten times a second", cfg: noOptions, text: closed +
			strings.Repeat("< A 3:0 ack 2\n> A 2:0 ack 2\n", 10) + `
			< A 3:0 ack 2
			> nothing
			< A 1:0 ack 2
			> nothing
			count acks_limited 2
			+100ms
			< A 3:0 ack 2
			> A 2:0 ack 2
			< A 3:0 ack 2
			> nothing`},
		{name: "dial of the same pair", cfg: noOptions, text: closed + `
			redial
			> S 0:0 new yes
			count time_wait_used 1`},
		{name: "dial of the same pair, with timestamps", cfg: ts, text: closedTS + `
			redial
			> S 0:0 new yes
			count time_wait_used 1`},
		{name: "dial of the same pair after a dialed connection", cfg: noOptions, text: `
			dial
			established
			closewrite
			> FA 1:0 ack 1
			< FA 1:0 ack 2
			> A 2:0 ack 2
			state TIME-WAIT
			redial
			> S 0:0 new yes
			count time_wait_used 1`},
		{name: "dial of the same pair when the last ACK was lost", cfg: noOptions, text: closed + `
			redial
			> S 0:0 new yes
			< A 2:0 ack -65536	# the peer is in LAST-ACK
			> R -65536:0
			+5ms			# now the peer is in CLOSED
			> S 0:0
			< SA 70000:0 ack 1
			> A 1:0 ack 70001`},
		{name: "dial of the same pair when the peer is in TIME-WAIT too", cfg: ts, text: closedTS + `
			redial			# in the same millisecond: the number is higher
			> S 0:0 new yes ts 0/0
			+1ms
			< SA -500:0 ack 1 ts 503/ECHO
			> A 1:0 ack -499`},
	})
}

// A new connection of a pair in TIME-WAIT begins with a number above all that the old one has sent,
// also if the clock of initial sequence numbers has not reached them.
func TestTimeWaitReuseRaisesISS(t *testing.T) {
	for _, dial := range []bool{false, true} {
		r := newRunner(t, Config{NoSACK: true, NoWindowScale: true})
		r.stamped = true
		r.runLines(`
			listen
			established
			closewrite
			> FA 1:0 ack 1
			< FA 1:0 ack 2
			> A 2:0 ack 2
			state TIME-WAIT
			+1s`)
		last := r.iss + 2
		record := r.tab.waits.records[r.id]
		record.sndNxt = record.sndNxt.Add(1 << 30) // as if it had sent that much
		if dial {
			r.runLines("redial")
		} else {
			r.runLines("< S 3:0")
		}
		if ahead := int32(view(r.out[0]).Seq - last); ahead < 1<<30+1<<16 {
			t.Errorf("dial %t: the new number is %d above the old connection's second, want 2^30 + 2^16 at least", dial, ahead)
		}
	}
}
