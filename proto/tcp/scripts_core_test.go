package tcp

import "testing"

// The figures of RFC 9293, from the point of view of each peer. Their numbers
// are the figures' less the initial sequence number.
func TestFigures(t *testing.T) {
	runScripts(t, []script{
		{name: "6, basic handshake, A", cfg: noOptions, text: `
			dial
			> S 0:0
			state SYN-SENT
			< SA 0:0 ack 1
			> A 1:0 ack 1
			state ESTABLISHED
			events writable connected
			write 10
			> A 1:10 ack 1`},
		{name: "6, basic handshake, B", cfg: noOptions, text: `
			listen
			state LISTEN
			< S 0:0
			> SA 0:0 ack 1
			state SYN-RECEIVED
			accepts 0
			< A 1:0 ack 1
			state ESTABLISHED
			accepts 1
			accept
			< A 1:10 ack 1
			> A 1:0 ack 11
			read 100 = 10`},
		{name: "7, simultaneous, by the figure", cfg: noOptions, text: `
			dial
			> S 0:0
			< S 0:0
			> SA 0:0 ack 1
			state SYN-RECEIVED
			< SA 0:0 ack 1
			state ESTABLISHED
			events writable connected`},
		{name: "7, simultaneous, the other's SYN-ACK is lost and it has seen ours", cfg: noOptions, text: `
			dial
			> S 0:0
			< S 0:0
			> SA 0:0 ack 1
			< A 1:0 ack 1
			state ESTABLISHED
			< SA 0:0 ack 1		# line 7 of the figure
			> A 1:0 ack 1`},
		{name: "8, old duplicate SYN", cfg: noOptions, text: `
			listen
			< S 0:0			# the old one: number 90
			> SA 0:0 ack 1
			< R 1:0			# A resets it
			state LISTEN
			count resets_received 1
			< S 100:0		# the new one: number 100
			> SA 0:0 ack 101 new iss
			< A 101:0 ack 1
			state ESTABLISHED`},
		{name: "8, old duplicate SYN, A", cfg: noOptions, text: `
			dial
			> S 0:0
			< SA 0:0 ack 91		# acknowledges the old one
			> R 91:0
			state SYN-SENT
			< SA 0:0 ack 1
			> A 1:0 ack 1
			state ESTABLISHED`},
		{name: "9, half-open discovery, A has crashed", cfg: noOptions, text: `
			dial
			> S 0:0
			< A 300:0 ack 100	# B, still established, answers the SYN
			> R 100:0
			state SYN-SENT
			+5ms			# and the SYN is sent again
			> S 0:0
			< A 300:0 ack 100	# but not each time
			> R 100:0
			+5ms
			> nothing
			< SA 0:0 ack 1
			> A 1:0 ack 1`},
		{name: "9, half-open discovery, B", cfg: noOptions, text: `
			both:
			< S 99:0		# in the window or not: a challenge
			> A 1:0 ack 1
			state ESTABLISHED
			< R 1:0			# A's answer to it
			state CLOSED
			read 10 = ECONNRESET`},
		{name: "10, active side causes discovery", cfg: noOptions, text: `
			< A 100:5 ack 200	# nobody is here
			> R 200:0
			count no_connection 1`},
		{name: "11, old duplicate SYN at two passive sockets", cfg: noOptions, text: `
			listen
			< S 0:0
			> SA 0:0 ack 1
			< R 1:0
			state LISTEN
			events			# nobody has it, so nobody is told
			accepts 0`},
		{name: "12, normal close, A", cfg: noOptions, text: `
			both:
			close
			> FA 1:0 ack 1
			state FIN-WAIT-1
			< A 1:0 ack 2
			state FIN-WAIT-2
			< FA 1:0 ack 2
			> A 2:0 ack 2
			state TIME-WAIT`},
		{name: "12, normal close, B", cfg: noOptions, text: `
			both:
			< FA 1:0 ack 1
			> A 1:0 ack 2
			state CLOSE-WAIT
			read 10 = EOF
			close
			> FA 1:0 ack 2
			state LAST-ACK
			< A 2:0 ack 2
			err none`},
		{name: "13, simultaneous close", cfg: noOptions, text: `
			both:
			close
			> FA 1:0 ack 1
			< FA 1:0 ack 1
			> A 2:0 ack 2
			state CLOSING
			< A 2:0 ack 2
			state TIME-WAIT
			> nothing`},
	})
}
