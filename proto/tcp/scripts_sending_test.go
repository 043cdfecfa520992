package tcp

import (
	"testing"
	"time"
)

func TestSending(t *testing.T) {
	noCork := Options{Cork: -1}
	runScripts(t, []script{
		{name: "data is sent and acknowledged", cfg: noOptions, text: `
			both:
			write 10
			> PA 1:10 ack 1
			timer 5ms
			< A 1:0 ack 11
			timer never
			write 5
			> PA 11:5 ack 1`},
		{name: "full segments, PSH on the last", cfg: noOptions, opts: Options{MTU: 1500}, text: `
			dial
			> S 0:0 mss 1460
			< SA 0:0 ack 1 win 20000 mss 1000
			> A 1:0 ack 1
			write 2500
			> A 1:1000 ack 1
			> A 1001:1000 ack 1
			> nothing		# the rest is corked
			+30us
			> PA 2001:500 ack 1`},
		{name: "corked data is sent when all is acknowledged", cfg: noOptions, text: `
			both:
			write 10
			> PA 1:10 ack 1
			write 10
			write 10
			< A 1:0 ack 11
			> PA 11:20 ack 1`},
		{name: "corked data is sent when a segment is full", cfg: noOptions, text: `
			both:
			write 10
			> PA 1:10 ack 1
			write 300
			> nothing
			write 300
			> A 11:536 ack 1
			+30us
			> PA 547:64 ack 1`},
		{name: "corked data is sent when the writer waits", cfg: noOptions, text: `
			both:
			write 10
			> PA 1:10 ack 1
			write 10
			flush
			> PA 11:10 ack 1
			write 10		# corked again
			> nothing
			+30us
			> PA 21:10 ack 1`},
		{name: "without a cork small writes are sent at once", cfg: noOptions, opts: noCork, text: `
			both:
			write 10
			> PA 1:10 ack 1
			write 10
			> PA 11:10 ack 1`},
		{name: "Nagle", cfg: noOptions, opts: Options{Nagle: true}, text: `
			both:
			write 10
			> PA 1:10 ack 1
			write 10
			flush
			+1ms
			> nothing
			< A 1:0 ack 11
			> PA 11:10 ack 1
			write 5
			closewrite		# a FIN may follow, so nothing is gained by waiting
			> PFA 21:5 ack 1`},
		{name: "the FIN is sent with the last data", cfg: noOptions, text: `
			both:
			write 10
			> PA 1:10 ack 1
			write 10
			closewrite
			> PFA 11:10 ack 1
			write 5 = EPIPE
			< A 1:0 ack 22
			state FIN-WAIT-2`},
		{name: "a full send buffer", cfg: noOptions, opts: Options{SendBuffer: 4000}, text: `
			both:
			hold
			write 3000
			write 3000 = 1000
			write 10 = none
			events
			go
			> A 1:536 ack 1
			> A 537:536 ack 1
			> A 1073:536 ack 1
			> A 1609:536 ack 1
			> A 2145:536 ack 1
			> A 2681:536 ack 1
			> A 3217:536 ack 1
			flush
			> PA 3753:248 ack 1
			< A 1:0 ack 537		# an eighth is free: not worth a wake-up
			events
			< A 1:0 ack 2145
			events writable
			< A 1:0 ack 4001
			events			# no second event
			state ESTABLISHED`},
		{name: "lent data is returned when it is acknowledged", cfg: noOptions, opts: noCork, text: `
			both:
			lend 700
			> A 1:536 ack 1
			> PA 537:164 ack 1
			write 11
			> PA 701:11 ack 1
			lend 33
			> PA 712:33 ack 1
			< A 1:0 ack 600
			returned 0
			events
			< A 1:0 ack 745
			returned 2
			events returned`},
		{name: "lent data is returned when the connection fails", cfg: noOptions, text: `
			both:
			lend 100
			> PA 1:100 ack 1
			< R 1:0
			returned 1
			write 1 = ECONNRESET
			write 1 = EPIPE`},
	})
}

func TestRetransmission(t *testing.T) {
	runScripts(t, []script{
		{name: "the timeout doubles, and all data is sent again", cfg: noOptions, opts: Options{Cork: -1}, text: `
			both:
			write 600
			> A 1:536 ack 1
			> PA 537:64 ack 1
			+4ms
			> nothing
			+1ms
			> A 1:536 ack 1		# the window is one segment now
			timer 10ms
			+10ms
			> A 1:536 ack 1
			timer 20ms
			< A 1:0 ack 537
			> PA 537:64 ack 1
			timer 20ms		# until a round trip is measured again
			< A 1:0 ack 601
			timer never
			count timeouts 2
			count bytes_retransmitted 1136`},
		{name: "an ACK of more than was sent again", cfg: noOptions, opts: Options{Cork: -1}, text: `
			both:
			write 600
			> A 1:536 ack 1
			> PA 537:64 ack 1
			+5ms
			> A 1:536 ack 1
			< A 1:0 ack 601
			timer never`},
		{name: "the FIN is sent again with the data before it", cfg: noOptions, text: `
			both:
			write 10
			> PA 1:10 ack 1
			closewrite
			> FA 11:0 ack 1
			+5ms
			> PFA 1:10 ack 1
			< A 1:0 ack 12
			state FIN-WAIT-2`},
		{name: "a SYN is sent again after 1, 2, 4 s until the connect timeout", cfg: noOptions, text: `
			dial
			> S 0:0
			+1s
			> S 0:0
			+2s
			> S 0:0
			+4s
			> S 0:0
			+8s
			> S 0:0
			+16s
			> S 0:0
			+32s
			> S 0:0
			+60s
			> S 0:0
			+57s
			state CLOSED
			err ETIMEDOUT
			events readable writable finished
			write 1 = ETIMEDOUT
			read 1 = EOF`},
		{name: "the first timeout is 3 s if the SYN was sent again", cfg: noOptions, text: `
			dial
			> S 0:0
			+1s
			> S 0:0
			< SA 0:0 ack 1
			> A 1:0 ack 1
			write 1
			> PA 1:1 ack 1
			timer 3s`},
		{name: "a SYN,ACK is sent again five times", cfg: noOptions, text: `
			listen
			< S 0:0
			> SA 0:0 ack 1
			+1s
			> SA 0:0 ack 1
			+2s
			> SA 0:0 ack 1
			< S 0:0			# and when the SYN comes again
			> SA 0:0 ack 1
			+4s
			> SA 0:0 ack 1
			+8s
			> SA 0:0 ack 1
			+16s
			> SA 0:0 ack 1
			+32s
			state LISTEN
			count passive_opens 1`},
		{name: "a round trip of 0 gives the least timeout", cfg: noOptions, text: `
			both:
			+1s
			write 1
			> PA 1:1 ack 1
			< A 1:0 ack 2
			write 1
			> PA 2:1 ack 1
			timer 5ms`},
		{name: "Karn: data that was sent twice is not timed without timestamps", cfg: noOptions, text: `
			both:
			write 1
			> PA 1:1 ack 1
			+5ms
			> PA 1:1 ack 1
			+9ms
			< A 1:0 ack 2
			write 1
			> PA 2:1 ack 1
			timer 10ms		# and the timeout stays backed off
			< A 1:0 ack 3
			write 1
			> PA 3:1 ack 1
			timer 5ms`},
		{name: "Karn: the timeout grows above the delay of the peer's acknowledgments", cfg: noOptions, text: `
			both:
			write 1
			> PA 1:1 ack 1
			+5ms
			> PA 1:1 ack 1
			+10ms
			> PA 1:1 ack 1
			+20ms
			> PA 1:1 ack 1
			+5ms
			< A 1:0 ack 2		# it may acknowledge either transmission
			write 1
			> PA 2:1 ack 1
			timer 40ms
			+39ms
			< A 1:0 ack 3		# it was sent once: srtt 4.875 ms, rttvar 9.75 ms
			write 1
			> PA 3:1 ack 1
			timer 43.875ms
			+39ms
			< A 1:0 ack 4
			count bytes_retransmitted 3`},
		{name: "timestamps measure the round trip of data that was sent twice", cfg: Config{NoSACK: true, NoWindowScale: true}, text: `
			listen
			< S 0:0 ts 500
			> SA 0:0 ack 1 ts 0/500
			< A 1:0 ack 1 ts 501/0
			accept
			write 1
			> PA 1:1 ack 1 ts 0/501
			+5ms
			> PA 1:1 ack 1 ts 5/501
			+9ms
			< A 1:0 ack 2 ts 505/5	# 9 ms: srtt 1.125 ms, rttvar 2.25 ms
			write 1
			> PA 2:1 ack 1
			timer 10.125ms`},
		{name: "the timeout stays above the delay of the peer's acknowledgments, once measured", cfg: Config{NoSACK: true, NoWindowScale: true}, text: `
			listen
			< S 0:0 ts 500
			> SA 0:0 ack 1 ts 0/500
			< A 1:0 ack 1 ts 501/0
			accept
			write 1
			> PA 1:1 ack 1
			+5ms
			> PA 1:1 ack 1
			+10ms
			> PA 1:1 ack 1
			+20ms
			> PA 1:1 ack 1
			+5ms
			< A 1:0 ack 2 ts 541/0	# echoes the first
			write 1
			> PA 2:1 ack 1
			timer 41ms
			+40ms
			< A 1:0 ack 3 ts 581/40
			write 1
			> PA 3:1 ack 1
			count bytes_retransmitted 3`},
		{name: "the timeout rises above the delay of the peer's acknowledgments after needless loss probes", cfg: Config{NoWindowScale: true}, text: `
			# As Linux does: it delays the acknowledgment by 40 ms, and answers data
			# that it has already at once, with a D-SACK and the timestamp of that.
			listen
			< S 0:0 ts 500 sackok
			> SA 0:0 ack 1 ts 0/500
			< A 1:0 ack 1 ts 500/0
			accept
			write 100
			> PA 1:100 ack 1
			+5ms
			> PA 1:100 ack 1 ts 5/500
			< A 1:0 ack 101 ts 505/5 sack 1-101
			write 100
			> PA 101:100 ack 1
			timer 11ms
			+11ms
			> PA 101:100 ack 1 ts 16/505
			< A 1:0 ack 201 ts 516/16 sack 101-201
			write 100
			> PA 201:100 ack 1
			timer 23ms
			+23ms
			> PA 201:100 ack 1 ts 39/516
			< A 1:0 ack 301 ts 539/39 sack 201-301
			write 100
			> PA 301:100 ack 1
			timer 47ms
			+40ms
			< A 1:0 ack 401 ts 579/39
			write 100
			> PA 401:100 ack 1
			count timeouts 0
			count loss_probes 3`},
		{name: "a real loss does not raise the timeout", cfg: Config{NoWindowScale: true}, opts: Options{Cork: -1}, text: `
			listen
			< S 0:0 ts 500 sackok
			> SA 0:0 ack 1 ts 0/500
			< A 1:0 ack 1 ts 500/0
			accept
			write 100
			> PA 1:100 ack 1		# lost
			write 100
			> PA 101:100 ack 1		# so is this
			+5ms
			> PA 1:200 ack 1 ts 5/500
			< A 1:0 ack 201 ts 505/5
			write 100
			> PA 201:100 ack 1
			timer 5ms`},
		{name: "the user timeout without an answer", cfg: noOptions, opts: Options{UserTimeout: 20 * time.Millisecond}, text: `
			both:
			write 1
			> PA 1:1 ack 1
			+5ms
			> PA 1:1 ack 1
			+10ms
			> PA 1:1 ack 1
			+4ms
			> nothing
			+1ms
			> RA 2:0 ack 1
			read 1 = ETIMEDOUT
			state CLOSED`},
		{name: "the user timeout after an ICMP error", cfg: noOptions, opts: Options{UserTimeout: 20 * time.Millisecond}, text: `
			both:
			write 1
			> PA 1:1 ack 1
			+5ms
			> PA 1:1 ack 1
			icmp 1 1
			+10ms
			> PA 1:1 ack 1
			state ESTABLISHED
			+5ms
			> RA 2:0 ack 1
			read 1 = EHOSTUNREACH
			write 1 = EPIPE`},
		{name: "the user timeout when the peer has answered after an ICMP error", cfg: noOptions, opts: Options{UserTimeout: 20 * time.Millisecond}, text: `
			both:
			write 1
			> PA 1:1 ack 1
			icmp 1 1
			+1ms
			< A 1:0 ack 2
			write 1
			> PA 2:1 ack 1
			+6ms
			> PA 2:1 ack 1
			+12ms
			> PA 2:1 ack 1
			+2ms
			> RA 3:0 ack 1
			read 1 = ETIMEDOUT`},
		{name: "the user timeout of window probes after an ICMP error", cfg: noOptions, opts: Options{UserTimeout: 20 * time.Millisecond}, text: `
			both:
			< A 1:0 ack 1 win 0
			write 100
			+5ms
			> A 1:1 ack 1
			icmp 0 1
			+10ms
			> A 1:1 ack 1
			+5ms
			> RA 2:0 ack 1
			read 1 = ENETUNREACH`},
	})
}

func TestWindow(t *testing.T) {
	runScripts(t, []script{
		{name: "no more is sent than the window permits", cfg: noOptions, opts: Options{Cork: -1}, text: `
			both:
			< A 1:0 ack 1 win 1000
			write 2000
			> A 1:536 ack 1
			> nothing		# 464 are less than a segment and less than half the window
			< A 1:0 ack 537 win 1000
			> A 537:536 ack 1`},
		{name: "half the largest window may be sent", cfg: noOptions, opts: Options{Cork: -1}, text: `
			dial
			> S 0:0
			< SA 0:0 ack 1 win 1000 mss 1460
			> A 1:0 ack 1
			write 3000
			> A 1:1000 ack 1
			< A 1:0 ack 1001 win 500
			> A 1001:500 ack 1
			< A 1:0 ack 1501 win 499
			> nothing
			timer 5ms		# a silly window, so the persist timer runs
			+5ms
			> A 1501:499 ack 1	# the timer overrides silly window avoidance`},
		{name: "a smaller buffer does not shrink the window", cfg: noOptions, text: `
			both:
			buffers 4096
			< A 1:100 ack 1
			> A 1:0 ack 101 win 65435`},
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
		{name: "a window probe that the peer accepts", cfg: noOptions, text: `
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
		{name: "a window probe without an answer", cfg: noOptions, opts: Options{UserTimeout: 20 * time.Millisecond}, text: `
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
		{name: "the window closes before data in flight is acknowledged", cfg: noOptions, text: `
			both:
			write 100
			> PA 1:100 ack 1
			< A 1:0 ack 1 win 0	# the window shrinks, which a peer should not do (3.8.6)
			+5ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 0
			+10ms
			> A 1:1 ack 1
			< A 1:0 ack 1 win 1000
			> PA 1:100 ack 1
			count timeouts 0`},
		{name: "the peer's window shrinks", cfg: noOptions, opts: Options{Cork: -1, UserTimeout: 25 * time.Millisecond}, text: `
			both:
			write 1608
			> A 1:536 ack 1
			> A 537:536 ack 1
			> PA 1073:536 ack 1
			write 10
			> PA 1609:10 ack 1
			< A 1:0 ack 537 win 600	# the window ends at 1136
			write 10
			> nothing		# nothing new into a window that has shrunk
			+5ms
			> A 537:536 ack 1	# what is within the window is sent again
			< A 1:0 ack 1073 win 0
			+10ms
			> A 1073:1 ack 1	# a window probe: what is beyond the window is not lost
			< A 1:0 ack 1073 win 0
			+20ms
			> A 1073:1 ack 1
			< A 1:0 ack 1073 win 0
			+4ms			# more than the user timeout since it shrank
			state ESTABLISHED
			< A 1:0 ack 1073 win 5000
			> A 1073:536 ack 1
			> PA 1609:20 ack 1`},
		{name: "a closed connection ends although the peer's window stays closed", cfg: noOptions, opts: Options{UserTimeout: 20 * time.Millisecond}, text: `
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
		{name: "an old segment does not change the window", cfg: noOptions, text: `
			both:
			< A 11:0 ack 1 win 0
			< A 1:0 ack 1 win 1000
			write 10
			> nothing`},
		{name: "an old segment that acknowledges new data changes the window", cfg: noOptions, opts: Options{Cork: -1}, text: `
			both:
			write 1072
			> A 1:536 ack 1
			> PA 537:536 ack 1
			< A 101:100 ack 1 win 3000
			> A 1073:0 ack 1
			< A 1:100 ack 1073 win 1000	# a retransmission, so its number is lower
			> A 1073:0 ack 201
			write 2000
			> A 1073:536 ack 201
			> nothing			# 464 more bytes would be a silly segment
			+5ms
			> A 1073:536 ack 201`},
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
		{name: "a window is rounded up to a multiple of the scale", cfg: Config{NoTimestamps: true, NoSACK: true}, opts: Options{ReceiveBuffer: 1 << 20}, text: `
			dial
			> S 0:0 ws 5
			< SA 0:0 ack 1 ws 2
			> A 1:0 ack 1 win 32768
			< A 1:1 ack 1
			> A 1:0 ack 2 win 32768	# rounded down, the right edge would have moved left
			< A 2:62 ack 1
			> A 1:0 ack 64 win 32767`},
		{name: "a window scale above 14 counts as 14", cfg: Config{NoTimestamps: true, NoSACK: true}, text: `
			dial
			> S 0:0 ws 7
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
			< A 3001:1 ack 1	# a window probe
			> A 1:0 ack 3001 win 0
			read 100 = 100
			> nothing		# silly
			< A 3001:1 ack 1
			> A 1:0 ack 3001 win 0	# still closed
			read 1000 = 1000
			> nothing
			read 900 = 900
			> A 1:0 ack 3001 win 2000
			< A 3001:100 ack 1
			> A 1:0 ack 3101 win 1900
			count beyond_window 2`},
		{name: "data beyond the window is discarded, and the FIN too", cfg: noOptions, opts: Options{ReceiveBuffer: 2048}, text: `
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
		{name: "a closed window: only ACK, RST and URG are processed", cfg: noOptions, opts: Options{ReceiveBuffer: 2048}, text: `
			both:
			write 10
			> PA 1:10 ack 1
			< A 1:2048 ack 1
			> A 11:0 ack 2049 win 0
			< A 2049:10 ack 11	# only its ACK is processed
			> A 11:0 ack 2049 win 0
			timer never
			< R 2049:0
			state CLOSED`},
	})
}
