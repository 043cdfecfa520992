package tcp

import (
	"testing"
)

func TestClosing(t *testing.T) {
	runScripts(t, []script{
		{name: "half-close: text still comes", cfg: noOptions, text: `
			both:
			closewrite
			> FA 1:0 ack 1
			closewrite		# again is nothing
			< A 1:0 ack 2
			events drained
			state FIN-WAIT-2
			timer never		# for as long as the application wants
			< A 1:100 ack 2
			> A 2:0 ack 101
			+10m
			< FA 101:50 ack 2
			> A 2:0 ack 152
			state TIME-WAIT
			events readable writable finished
			read 1000 = 150
			read 1 = EOF
			write 1 = EPIPE
			close
			state TIME-WAIT
			+2s
			err none`},
		{name: "half-close: text still goes", cfg: noOptions, text: `
			both:
			< FA 1:0 ack 1
			> A 1:0 ack 2
			read 1 = EOF
			write 100
			> PA 1:100 ack 2
			< A 2:0 ack 101
			closewrite
			> FA 101:0 ack 2
			state LAST-ACK
			+5ms
			> FA 101:0 ack 2
			< A 2:0 ack 102
			state CLOSED
			err none`},
		{name: "FIN and ACK of ours in one: no FIN-WAIT-2", cfg: noOptions, text: `
			both:
			closewrite
			> FA 1:0 ack 1
			< FA 1:0 ack 2
			> A 2:0 ack 2
			state TIME-WAIT`},
		{name: "closing, with text after the FIN of the peer", cfg: noOptions, text: `
			both:
			write 1000
			> A 1:536 ack 1
			> nothing
			close
			> PFA 537:464 ack 1
			< FA 1:0 ack 1
			> A 1002:0 ack 2
			state CLOSING
			< A 2:0 ack 537
			state CLOSING
			+5ms
			> PFA 537:464 ack 2
			< A 2:0 ack 1002
			state TIME-WAIT`},
		{name: "close with text that was not read", cfg: noOptions, text: `
			both:
			< A 1:100 ack 1
			> A 1:0 ack 101
			close
			> RA 1:0 ack 101
			state CLOSED
			events readable writable finished`},
		{name: "text after close", cfg: noOptions, text: `
			both:
			close
			> FA 1:0 ack 1
			< A 1:100 ack 2
			> RA 2:0 ack 1
			state CLOSED
			count text_after_close 1`},
		{name: "a peer that never closes", cfg: noOptions, text: `
			both:
			close
			> FA 1:0 ack 1
			< A 1:0 ack 2
			+59s
			state FIN-WAIT-2
			+1s
			state CLOSED
			err none
			> nothing
			< FA 1:0 ack 2
			> R 2:0`},
		{name: "a peer that never closes, closed later", cfg: noOptions, text: `
			both:
			closewrite
			> FA 1:0 ack 1
			< A 1:0 ack 2
			+10m
			close
			+1m
			state CLOSED`},
		{name: "abort", cfg: noOptions, text: `
			both:
			write 10
			> PA 1:10 ack 1
			write 10
			abort
			> RA 11:0 ack 1
			state CLOSED
			write 1 = ECONNABORTED
			< A 1:0 ack 11
			> R 11:0`},
		{name: "abort in SYN-SENT tells nobody", cfg: noOptions, text: `
			dial
			> S 0:0
			abort
			> nothing
			state CLOSED`},
		{name: "close in SYN-SENT", cfg: noOptions, text: `
			dial
			> S 0:0
			close
			> nothing
			state CLOSED
			< SA 0:0 ack 1
			> R 1:0`},
		{name: "close in SYN-RECEIVED waits for the handshake", cfg: noOptions, text: `
			dial
			> S 0:0
			< S 0:0
			> SA 0:0 ack 1
			write 10
			closewrite
			state SYN-RECEIVED
			< A 1:0 ack 1
			> PFA 1:10 ack 1
			state FIN-WAIT-1`},
		{name: "written before the handshake, sent with its ACK", cfg: noOptions, text: `
			dial
			> S 0:0
			write 10
			> nothing
			< SA 0:0 ack 1
			> PA 1:10 ack 1`},
		{name: "the FIN of TIME-WAIT again", cfg: noOptions, text: `
			both:
			close
			> FA 1:0 ack 1
			< FA 1:0 ack 2
			> A 2:0 ack 2
			+1s
			< FA 1:0 ack 2
			> A 2:0 ack 2
			+1900ms
			state TIME-WAIT		# the wait began anew
			+100ms
			< FA 1:0 ack 2
			> R 2:0`},
		{name: "a FIN twice", cfg: noOptions, text: `
			both:
			< FA 1:0 ack 1
			> A 1:0 ack 2
			< FA 1:0 ack 1
			> A 1:0 ack 2
			< A 2:50 ack 1		# text after it is nothing
			state CLOSE-WAIT
			count bytes_received 0`},
	})
}

func TestResets(t *testing.T) {
	runScripts(t, []script{
		{name: "refused", cfg: noOptions, text: `
			dial
			> S 0:0
			< RA 0:0 ack 1
			state CLOSED
			err ECONNREFUSED
			events readable writable finished`},
		{name: "a RST without an ACK, or with a wrong one, is not for a SYN", cfg: noOptions, text: `
			dial
			> S 0:0
			< R 0:0
			< RA 0:0 ack 2
			< RA 0:0 ack 0
			state SYN-SENT`},
		{name: "exactly right; what came before can be read", cfg: noOptions, text: `
			both:
			< A 1:100 ack 1
			> A 1:0 ack 101
			< R 101:0
			state CLOSED
			events readable writable finished
			read 1000 = 100
			read 1 = ECONNRESET
			write 1 = EPIPE`},
		{name: "in the window: a challenge", cfg: noOptions, text: `
			both:
			< R 2:0
			> A 1:0 ack 1
			state ESTABLISHED
			< R 65535:0
			> A 1:0 ack 1
			count challenge_acks 2`},
		{name: "outside: nothing", cfg: noOptions, text: `
			both:
			< R 0:0
			< R 65536:0
			< R 65537:0
			count resets_ignored 3
			state ESTABLISHED`},
		{name: "one with text that begins before the window", cfg: noOptions, text: `
			both:
			< A 1:100 ack 1
			> A 1:0 ack 101
			< R 51:100
			state ESTABLISHED
			count resets_ignored 1`},
		{name: "the peer refuses in SYN-RECEIVED after a simultaneous open", cfg: noOptions, text: `
			dial
			> S 0:0
			< S 0:0
			> SA 0:0 ack 1
			< RA 1:0 ack 1
			state CLOSED
			err ECONNREFUSED`},
		{name: "SYN in the window: a challenge, ten in a burst, ten a second", cfg: noOptions, text: `
			both:
			< S 1:0
			> A 1:0 ack 1
			< S 1:0
			> A 1:0 ack 1
			< S 1:0
			> A 1:0 ack 1
			< S 1:0
			> A 1:0 ack 1
			< S 1:0
			> A 1:0 ack 1
			< SA 1:0 ack 1
			> A 1:0 ack 1
			< A 1:0 ack 2
			> A 1:0 ack 1
			< A 70000:0 ack 1
			> A 1:0 ack 1
			< S 1:0
			> A 1:0 ack 1
			< R 2:0
			> A 1:0 ack 1
			< S 1:0
			< S 1:0
			< A 1:0 ack 2
			> nothing
			count acks_limited 3
			+100ms
			< S 1:0
			> A 1:0 ack 1
			< S 1:0
			< A 0:1 ack 1		# a retransmission is always answered
			> A 1:0 ack 1`},
		{name: "an ACK far too old (RFC 5961)", cfg: noOptions, text: `
			both:
			< A 1:100 ack 1
			> A 1:0 ack 101
			< A 101:10 ack -9000
			> A 1:0 ack 101
			< A 101:10 ack -7000	# older than ours, but it could be
			> A 1:0 ack 111
			count ack_too_old 1`},
		{name: "no ACK at all", cfg: noOptions, text: `
			both:
			< - 1:10
			> nothing
			count no_ack 1`},
		{name: "to nobody", cfg: noOptions, text: `
			< S 0:0
			> RA 0:0 ack 1 zero yes
			< SF 0:10
			> RA 0:0 ack 12 zero yes
			< R 0:0
			< RA 0:0 ack 1
			> nothing`},
		{name: "to a listener", cfg: noOptions, text: `
			listen
			< A 0:0 ack 77
			> R 77:0
			< SA 0:0 ack 77
			> R 77:0
			< R 0:0
			< F 0:0
			< - 0:10
			> nothing
			state LISTEN`},
		{name: "a wrong ACK in SYN-RECEIVED", cfg: noOptions, text: `
			listen
			< S 0:0
			> SA 0:0 ack 1
			< A 1:0 ack 2
			> R 2:0
			< A 1:0 ack 0
			> R 0:0
			state SYN-RECEIVED
			< A 1:0 ack 1
			state ESTABLISHED`},
		{name: "a SYN in SYN-RECEIVED that is not the first", cfg: noOptions, text: `
			listen
			< S 0:0
			> SA 0:0 ack 1
			< S 10:0		# back to LISTEN (3.10.7.4)
			> nothing
			state LISTEN
			< S 10:0
			> SA 0:0 ack 11 new yes`},
	})
}
