package tcp

import "testing"

func TestReceiving(t *testing.T) {
	runScripts(t, []script{
		{name: "in order", cfg: noOptions, text: `
			both:
			read 1 = none
			< A 1:600 ack 1
			> A 1:0 ack 601
			events readable
			< A 601:5 ack 1
			> A 1:0 ack 606
			events			# it has not looked since
			read 1000 = 605
			read 1 = none
			< A 606:5 ack 1
			> A 1:0 ack 611
			events readable`},
		{name: "a hole, filled", cfg: Config{NoTimestamps: true, NoWindowScale: true}, text: `
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
			< A 401:100 ack 1	# joins two
			> A 1:0 ack 1 sack 301-601,901-1001,701-801
			write 10		# on text too
			> PA 1:10 ack 1 sack 301-601,901-1001,701-801
			< A 1:100 ack 1
			> A 11:0 ack 201 sack 301-601,901-1001,701-801
			< A 201:100 ack 1
			> A 11:0 ack 601 sack 901-1001,701-801
			< A 601:400 ack 1
			> A 11:0 ack 1001 sack 701-801	# of what has come twice the first part (RFC 2883)
			read 2000 = 1000
			count overlap_mismatch 0`},
		{name: "no SACK without agreement", cfg: noOptions, text: `
			both:
			< A 101:100 ack 1
			> A 1:0 ack 1 sack -`},
		{name: "overlaps: the first wins", cfg: noOptions, text: `
			both:
			< A 101:100 ack 1
			> A 1:0 ack 1
			< A 51:200 ack 1 badtext
			> A 1:0 ack 1
			count overlap_mismatch 100
			< A 1:50 ack 1
			> A 1:0 ack 251
			read 50 = 50`},
		{name: "overlaps: the first wins, also over text in order", cfg: noOptions, text: `
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
			< A 701:40 ack 1 badtext	# 20 have been delivered
			> A 1:0 ack 741
			read 20 = 20
			count overlap_mismatch 0
			< A 751:10 ack 1
			> A 1:0 ack 741
			< A 741:20 ack 1 badtext
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
		{name: "a FIN, and text that came before and lies behind it", cfg: noOptions, text: `
			both:
			< A 11:100 ack 1 badtext
			> A 1:0 ack 1
			< FA 1:10 ack 1
			> A 1:0 ack 12
			state CLOSE-WAIT
			read 1000 = 10
			read 1 = EOF`},
		{name: "a FIN out of order, in the middle of such text", cfg: noOptions, text: `
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
		{name: "a bad checksum is nothing", cfg: noOptions, text: `
			both:
			< A 1:100 ack 1 badsum
			count bad_checksum 1
			read 1 = none`},
		{name: "urgent data comes in line", cfg: noOptions, text: `
			both:
			< UA 1:100 ack 1 urg 50
			> A 1:0 ack 101
			read 1000 = 100
			count urgent_pointers 1`},
		{name: "adaptive: every second full segment", cfg: noOptions, opts: Options{AdaptiveAck: true, MTU: 576}, text: `
			both:
			< A 1:536 ack 1
			> nothing
			timer 1ms
			< A 537:536 ack 1
			> A 1:0 ack 1073
			< A 1073:536 ack 1
			+1ms
			> A 1:0 ack 1609
			< A 1609:10 ack 1	# less is acknowledged at once
			> A 1:0 ack 1619`},
		{name: "adaptive: the ACK rides on the answer", cfg: noOptions, opts: Options{AdaptiveAck: true}, text: `
			both:
			< A 1:10 ack 1
			> A 1:0 ack 11
			write 10
			> PA 1:10 ack 11
			< A 11:10 ack 11
			> A 11:0 ack 21
			write 10
			> PA 11:10 ack 21
			< A 21:10 ack 21
			> A 21:0 ack 31
			write 10
			> PA 21:10 ack 31
			< A 31:10 ack 31	# by now it knows
			> nothing
			write 10
			> PA 31:10 ack 41
			< A 41:10 ack 41
			> nothing
			+1ms			# it was wrong
			> A 41:0 ack 51
			< A 51:10 ack 41
			> A 41:0 ack 61`},
		{name: "at once, but in one segment with what is written first", cfg: noOptions, text: `
			both:
			hold
			< A 1:10 ack 1
			write 10
			go
			> PA 1:10 ack 11
			> nothing`},
		{name: "all that has come is looked at before one ACK is sent", cfg: noOptions, text: `
			both:
			hold
			< A 1:536 ack 1
			< A 537:536 ack 1
			< A 2145:536 ack 1
			< A 1073:536 ack 1
			go
			> A 1:0 ack 1609
			> nothing`},
		{name: "after CloseRead it is thrown away", cfg: noOptions, text: `
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
			count text_discarded 300
			write 5
			> PA 1:5 ack 401`},
	})
}

// Section 4 of RFC 2883: its figures, with 1 for 3000.
func TestDuplicatesAreToldOf(t *testing.T) {
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
		{name: "it begins inside of one run and ends inside of the next", cfg: withSack, text: open + `
			< A 200:100 ack 1
			> A 1:0 ack 1 sack 200-300
			< A 400:100 ack 1
			> A 1:0 ack 1 sack 400-500,200-300
			< A 600:100 ack 1
			> A 1:0 ack 1 sack 600-700,400-500,200-300
			< A 250:225 ack 1
			> A 1:0 ack 1 sack 250-300,200-500,600-700`},
		{name: "it begins in a hole, or fills the first and ends in one", cfg: withSack, text: open + `
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
		{name: "one ACK for several segments: the first, and what joins it", cfg: withSack, text: open + `
			< A 1:1500 ack 1
			> A 1:0 ack 1501
			hold
			< A 1:500 ack 1
			< A 501:500 ack 1
			< A 1201:100 ack 1
			go
			> A 1:0 ack 1501 sack 1-1001`},
		{name: "not without SACK", cfg: noOptions, text: `
			both:
			< A 1:500 ack 1
			> A 1:0 ack 501
			< A 1:500 ack 1
			> A 1:0 ack 501 sack -`},
	})
}
