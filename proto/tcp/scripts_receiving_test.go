package tcp

import (
	"testing"
	"time"
)

func TestWindow(t *testing.T) {
	runScripts(t, []script{
		{name: "no more than the window", cfg: noOptions, opts: Options{Cork: -1}, text: `
			both:
			< A 1:0 ack 1 win 1000
			write 2000
			> A 1:536 ack 1
			> nothing		# 464 are less than a segment and less than half the window
			< A 1:0 ack 537 win 1000
			> A 537:536 ack 1`},
		{name: "half the largest window is worth a segment", cfg: noOptions, opts: Options{Cork: -1}, text: `
			dial
			> S 0:0
			< SA 0:0 ack 1 win 1000 mss 1460
			> A 1:0 ack 1
			write 2000
			> A 1:1000 ack 1
			< A 1:0 ack 1001 win 499
			> nothing
			timer 5ms		# silly, so the persist timer runs
			+5ms
			> A 1001:499 ack 1	# and overrides`},
		{name: "a closed window is probed for ever while it is answered", cfg: noOptions, opts: Options{UserTimeout: 100 * time.Second}, text: `
			both:
			< A 1:0 ack 1 win 0
			write 100
			> nothing
			timer 5ms
			+5ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 0
			timer 10ms
			+10ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 0
			+20ms
			> A 1:1 ack 1
			+40ms
			> A 1:1 ack 1
			+80ms
			> A 1:1 ack 1
			+160ms
			> A 1:1 ack 1
			+320ms
			> A 1:1 ack 1
			+640ms
			> A 1:1 ack 1
			+1280ms
			> A 1:1 ack 1
			+2560ms
			> A 1:1 ack 1
			+5120ms
			> A 1:1 ack 1
			+10240ms
			> A 1:1 ack 1
			+20480ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 0
			+40960ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 0
			+59s
			> nothing
			< A 1:0 ack 1 win 1000
			> PA 1:100 ack 1
			< A 1:0 ack 101 win 1000
			timer never
			count window_probes 14`},
		{name: "a probe that is taken", cfg: noOptions, text: `
			both:
			< A 1:0 ack 1 win 0
			write 100
			+5ms
			> A 1:1 ack 1
			< A 1:0 ack 2 win 0
			+5ms
			> A 2:1 ack 1
			< A 1:0 ack 2 win 1000
			> PA 2:99 ack 1`},
		{name: "a probe that nobody answers", cfg: noOptions, opts: Options{UserTimeout: 20 * time.Millisecond}, text: `
			both:
			< A 1:0 ack 1 win 0
			write 100
			+5ms
			> A 1:1 ack 1
			+10ms
			> A 1:1 ack 1
			+5ms
			> RA 2:0 ack 1
			err ETIMEDOUT`},
		{name: "the window closes behind what is in flight", cfg: noOptions, text: `
			both:
			write 100
			> PA 1:100 ack 1
			< A 1:0 ack 1 win 0	# taken back, which should not be done (3.8.6)
			+5ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 0
			+10ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 1000
			> PA 1:100 ack 1
			count timeouts 0`},
		{name: "a window that shrinks", cfg: noOptions, opts: Options{Cork: -1, UserTimeout: 25 * time.Millisecond}, text: `
			both:
			write 1608
			> A 1:536 ack 1
			> A 537:536 ack 1
			> PA 1073:536 ack 1
			write 10
			> PA 1609:10 ack 1
			< A 1:0 ack 537 win 600	# up to 1136
			write 10
			> nothing		# that would be new
			+5ms
			> A 537:536 ack 1	# what it still takes, again
			< A 1:0 ack 1073 win 0
			+10ms
			> A 1073:1 ack 1	# what it takes no more is not lost, and may wait
			< A 1:0 ack 1073 win 0
			+20ms
			> A 1073:1 ack 1
			< A 1:0 ack 1073 win 0
			+4ms			# more than the user timeout since it shrank
			state ESTABLISHED
			< A 1:0 ack 1073 win 5000
			> A 1073:536 ack 1
			> PA 1609:20 ack 1`},
		{name: "a closed window does not keep what nobody has", cfg: noOptions, opts: Options{UserTimeout: 20 * time.Millisecond}, text: `
			both:
			< A 1:0 ack 1 win 0
			write 100
			close
			+5ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 0
			+10ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 0
			+4ms
			state FIN-WAIT-1
			+1ms
			> RA 2:0 ack 1
			state CLOSED`},
		{name: "a FIN waits for the window", cfg: noOptions, text: `
			both:
			< A 1:0 ack 1 win 0
			closewrite
			state FIN-WAIT-1
			+5ms
			> FA 1:0 ack 1
			< A 1:0 ack 2 win 0
			state FIN-WAIT-2
			timer never`},
		{name: "an old segment does not bring an old window back", cfg: noOptions, text: `
			both:
			< A 11:0 ack 1 win 0
			< A 1:0 ack 1 win 1000
			write 10
			> nothing`},
		{name: "window scale", cfg: Config{NoTimestamps: true, NoSACK: true}, opts: Options{ReceiveBuffer: 1 << 20, Cork: -1}, text: `
			dial
			> S 0:0 ws 5 win 65535
			< SA 0:0 ack 1 ws 2 win 500
			> A 1:0 ack 1 win 32768
			< A 1:0 ack 1 win 300
			write 1300
			> A 1:536 ack 1
			> A 537:536 ack 1
			> nothing
			< A 1:0 ack 1 win 400
			> PA 1073:228 ack 1`},
		{name: "a window that the scale cannot say is rounded up", cfg: Config{NoTimestamps: true, NoSACK: true}, opts: Options{ReceiveBuffer: 1 << 20}, text: `
			dial
			> S 0:0 ws 5
			< SA 0:0 ack 1 ws 2
			> A 1:0 ack 1 win 32768
			< A 1:1 ack 1
			> A 1:0 ack 2 win 32768	# down, and the right edge would have moved left
			< A 2:62 ack 1
			> A 1:0 ack 64 win 32767`},
		{name: "a scale above 14 is 14", cfg: Config{NoTimestamps: true, NoSACK: true}, text: `
			dial
			> S 0:0 ws 3
			< SA 0:0 ack 1 ws 200 win 0
			> A 1:0 ack 1
			< A 1:0 ack 1 win 1
			write 20000
			> A 1:536 ack 1
			> A 537:536 ack 1
			> A 1073:536 ack 1
			> A 1609:536 ack 1
			> A 2145:536 ack 1
			> A 2681:536 ack 1
			> A 3217:536 ack 1
			> A 3753:536 ack 1
			> A 4289:536 ack 1
			> A 4825:536 ack 1`},
		{name: "our window closes and opens", cfg: noOptions, opts: Options{ReceiveBuffer: 3000}, text: `
			both:
			< A 1:1400 ack 1
			> A 1:0 ack 1401 win 1600
			< A 1401:1600 ack 1
			> A 1:0 ack 3001 win 0
			< A 3001:1 ack 1	# a probe
			> A 1:0 ack 3001 win 0
			read 100 = 100
			> nothing		# silly
			read 1000 = 1000
			> nothing
			read 900 = 900
			> A 1:0 ack 3001 win 2000
			< A 3001:100 ack 1
			> A 1:0 ack 3101 win 1900
			count beyond_window 1`},
		{name: "text beyond the window is cut, the FIN with it", cfg: noOptions, opts: Options{ReceiveBuffer: 2048}, text: `
			both:
			< FA 1:3000 ack 1
			> A 1:0 ack 2049 win 0
			state ESTABLISHED
			count beyond_window 952
			read 5000 = 2048
			> A 1:0 ack 2049 win 2048
			< FA 2049:952 ack 1
			> A 1:0 ack 3002
			state CLOSE-WAIT`},
		{name: "to a closed window only what it stands for counts", cfg: noOptions, opts: Options{ReceiveBuffer: 2048}, text: `
			both:
			write 10
			> PA 1:10 ack 1
			< A 1:2048 ack 1
			> A 11:0 ack 2049 win 0
			< A 2049:10 ack 11	# its ACK does
			> A 11:0 ack 2049 win 0
			timer never
			< R 2049:0
			state CLOSED`},
	})
}

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
			> A 11:0 ack 1001 sack -
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
