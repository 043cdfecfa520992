package tcp

import (
	"testing"

	"github.com/unet-go/unet/wire"
)

// The figures of RFC 9293, from both peers where they differ. The numbers are those of the figures less the
// initial sequence number.
func TestRFC9293Figures(t *testing.T) {
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
		{name: "7, simultaneous open", cfg: noOptions, text: `
			dial
			> S 0:0
			< S 0:0
			> SA 0:0 ack 1
			state SYN-RECEIVED
			< SA 0:0 ack 1
			state ESTABLISHED
			events writable connected`},
		{name: "7, simultaneous open, the peer's SYN,ACK comes after its ACK", cfg: noOptions, text: `
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
			< S 99:0		# a SYN, in the window or not, gets a challenge ACK
			> A 1:0 ack 1
			state ESTABLISHED
			< R 1:0			# A's answer to it
			state CLOSED
			read 10 = ECONNRESET`},
		{name: "10, active side causes discovery", cfg: noOptions, text: `
			< A 100:5 ack 200	# no connection
			> R 200:0
			count no_connection 1`},
		{name: "11, old duplicate SYN at two passive sockets", cfg: noOptions, text: `
			listen
			< S 0:0
			> SA 0:0 ack 1
			< R 1:0
			state LISTEN
			events			# no event, since it was not accepted
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

func TestListenerQueues(t *testing.T) {
	runScripts(t, []script{
		{name: "a full accept queue delays the end of the handshake", cfg: noOptions, lopt: ListenOptions{AcceptQueue: 1}, text: `
			listen
			< S 0:0
			> SA 0:0 ack 1
			other A			# another peer takes the place in the queue
			< A 1:0 ack 1
			> nothing
			state SYN-RECEIVED
			count accept_overflows 1
			accept
			+1s
			> SA 0:0 ack 1
			< A 1:0 ack 1
			state-of-pair ESTABLISHED`},
		{name: "a full accept queue drops SYNs", cfg: noOptions, lopt: ListenOptions{AcceptQueue: 1}, text: `
			listen
			other A
			< S 0:0
			> nothing
			count syn_dropped 1
			accept
			< S 0:0
			> SA 0:0 ack 1`},
		{name: "a segment without SYN, ACK and RST is ignored", cfg: noOptions, text: `
			listen
			< - 0:10
			> nothing
			count no_syn 1
			count no_ack 0`},
		{name: "a cookie with timestamps keeps the options", lopt: ListenOptions{SynQueue: 1}, text: `
			listen
			other S
			< S 0:0 mss 1400 ws 5 sackok ts 500
			> SA 0:0 ack 1 mss 1460 ws 7 sackok
			count cookies_sent 1
			state LISTEN
			+30ms
			< A 1:100 ack 1 ts 530/ECHO win 100
			state-of-pair ESTABLISHED
			count cookies_accepted 1
			> A 1:0 ack 101
			accept
			read 1000 = 100
			info 1388 5 true true
			write 3000		# the window is 3200
			> A 1:1388 ack 101
			> A 1389:1388 ack 101`},
		{name: "a cookie without timestamps has no options but the MSS", lopt: ListenOptions{SynQueue: 1}, text: `
			listen
			other S
			< S 0:0 mss 1450 ws 5 sackok
			> SA 0:0 ack 1 ws - ts -
			< A 1:0 ack 1
			accept
			info 1440 0 false false`},
		{name: "a cookie is valid for two minutes", cfg: noOptions, lopt: ListenOptions{SynQueue: 1}, text: `
			listen
			other S
			< S 0:0
			> SA 0:0 ack 1
			+110s
			< A 1:0 ack 1
			state-of-pair ESTABLISHED`},
		{name: "a cookie of more than three minutes ago is refused", cfg: noOptions, lopt: ListenOptions{SynQueue: 1}, text: `
			listen
			other S
			< S 0:0
			> SA 0:0 ack 1
			+191s
			< A 1:0 ack 1
			> R 1:0
			state LISTEN
			count cookies_bad 1
			+2s			# cookies are not checked any more
			< A 1:0 ack 1
			> R 1:0
			count cookies_bad 1`},
		{name: "a changed cookie is refused", cfg: noOptions, lopt: ListenOptions{SynQueue: 1}, text: `
			listen
			other S
			< S 0:0
			> SA 0:0 ack 1
			< A 1:0 ack 2
			> R 2:0
			< A 1:0 ack 16777217	# the cookie of another MSS
			> R 16777217:0
			< A 2:0 ack 1		# another sequence number of the peer
			> R 1:0
			count cookies_bad 3
			< A 1:0 ack 1
			state-of-pair ESTABLISHED`},
		{name: "a cookie is accepted later if the accept queue is full", cfg: noOptions, lopt: ListenOptions{SynQueue: 1, AcceptQueue: 1}, text: `
			listen
			other S
			< S 0:0
			> SA 0:0 ack 1
			other A
			< A 1:0 ack 1
			> nothing
			count accept_overflows 1
			accept
			< A 1:0 ack 1
			state-of-pair ESTABLISHED`},
		{name: "NoCookies: SYNs are dropped when the SYN queue is full", cfg: noOptions, lopt: ListenOptions{SynQueue: 1, NoCookies: true}, text: `
			listen
			other S
			< S 0:0
			> nothing
			count syn_dropped 1`},
		{name: "closing a listener resets connections that were not accepted", cfg: noOptions, text: `
			listen
			< S 0:0
			> SA 0:0 ack 1
			< A 1:10 ack 1
			> A 1:0 ack 11
			unlisten
			> RA 1:0 ack 11
			+1ms
			< S 0:0
			> RA 0:0 ack 1 zero yes`},
		{name: "closing a listener resets handshakes", cfg: noOptions, text: `
			listen
			< S 0:0
			> SA 0:0 ack 1
			unlisten
			> RA 1:0 ack 1
			events`},
		{name: "a connection that the peer resets before it is accepted", cfg: noOptions, text: `
			listen
			< S 0:0
			> SA 0:0 ack 1
			< A 1:10 ack 1
			> A 1:0 ack 11
			< R 11:0
			accept
			read 100 = 10
			read 1 = ECONNRESET`},
		{name: "data and FIN before the connection is accepted", cfg: noOptions, text: `
			listen
			< S 0:0
			> SA 0:0 ack 1
			< FA 1:10 ack 1
			> A 1:0 ack 12
			accept
			state CLOSE-WAIT
			read 100 = 10
			read 1 = EOF
			events`},
		{name: "data and FIN in the SYN are ignored", cfg: noOptions, text: `
			listen
			< SF 0:10
			> SA 0:0 ack 1
			< A 1:10 ack 1
			> A 1:0 ack 11`},
	})
}

// An address and port has one listener at most, and a listener on all addresses needs its port alone. Listen on
// port 0 takes each port of the set once.
func TestListenConflicts(t *testing.T) {
	tab := NewTable(Config{Secret: testSecret, Ports: []PortRange{{4000, 4001}, {5000, 5000}}})
	listen := func(a AddrPort) *Listener {
		t.Helper()
		l, err := tab.Listen(a, ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	a := listen(AddrPort{Addr: hostA, Port: 80})
	b := listen(AddrPort{Addr: hostB, Port: 80})
	for _, at := range []AddrPort{{Addr: hostA, Port: 80}, {Addr: hostB, Port: 80}, {Port: 80}} {
		if _, err := tab.Listen(at, ListenOptions{}); err == nil {
			t.Errorf("listens at %v twice", at)
		}
	}
	listenerAt := func(addr wire.Addr) *Listener {
		return tab.listenerFor(makeTuple(AddrPort{Addr: addr, Port: 80}, AddrPort{}))
	}
	if listenerAt(hostB) != b || listenerAt(hostA) != a {
		t.Error("the wrong listener")
	}
	a.Close()
	a.Close()
	if listenerAt(hostA) != nil || listenerAt(hostB) != b {
		t.Error("Close has not removed the listener, or has removed another one")
	}
	b.Close()
	if len(tab.listeners) != 0 {
		t.Errorf("%d listeners left", len(tab.listeners))
	}
	// Port 0: each port of the set once.
	seen := map[uint16]bool{}
	for range 3 {
		seen[listen(AddrPort{}).Addr().Port] = true
	}
	if len(seen) != 3 || !seen[4000] || !seen[4001] || !seen[5000] {
		t.Errorf("ports %v", seen)
	}
	if _, err := tab.Listen(AddrPort{}, ListenOptions{}); err == nil {
		t.Error("listens on a fourth port of three")
	}
}

func TestClosing(t *testing.T) {
	runScripts(t, []script{
		{name: "half-close: data is still received", cfg: noOptions, text: `
			both:
			closewrite
			> FA 1:0 ack 1
			closewrite		# a second call has no effect
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
		{name: "half-close: data is still sent", cfg: noOptions, text: `
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
		{name: "a FIN that acknowledges our FIN skips FIN-WAIT-2", cfg: noOptions, text: `
			both:
			closewrite
			> FA 1:0 ack 1
			< FA 1:0 ack 2
			> A 2:0 ack 2
			state TIME-WAIT`},
		{name: "simultaneous close while data is in flight", cfg: noOptions, text: `
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
		{name: "close with unread data sends a RST", cfg: noOptions, text: `
			both:
			< A 1:100 ack 1
			> A 1:0 ack 101
			close
			> RA 1:0 ack 101
			state CLOSED
			events readable writable finished`},
		{name: "data after close is answered with a RST", cfg: noOptions, text: `
			both:
			close
			> FA 1:0 ack 1
			< A 1:100 ack 2
			> RA 2:0 ack 1
			state CLOSED
			count data_after_close 1`},
		{name: "a peer that does not close: FIN-WAIT-2 ends after a minute", cfg: noOptions, text: `
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
		{name: "FIN-WAIT-2 ends a minute after Close, not after CloseWrite", cfg: noOptions, text: `
			both:
			closewrite
			> FA 1:0 ack 1
			< A 1:0 ack 2
			+10m
			close
			+1m
			state CLOSED`},
		{name: "abort sends a RST", cfg: noOptions, text: `
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
		{name: "abort in SYN-SENT sends nothing", cfg: noOptions, text: `
			dial
			> S 0:0
			abort
			> nothing
			state CLOSED`},
		{name: "close in SYN-SENT sends nothing", cfg: noOptions, text: `
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
		{name: "data that was written before the handshake is sent with its ACK", cfg: noOptions, text: `
			dial
			> S 0:0
			write 10
			> nothing
			< SA 0:0 ack 1
			> PA 1:10 ack 1`},
		{name: "a repeated FIN restarts TIME-WAIT", cfg: noOptions, text: `
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
		{name: "a repeated FIN is acknowledged", cfg: noOptions, text: `
			both:
			< FA 1:0 ack 1
			> A 1:0 ack 2
			< FA 1:0 ack 1
			> A 1:0 ack 2
			< A 2:50 ack 1		# data after the FIN is discarded
			state CLOSE-WAIT
			count bytes_received 0`},
	})
}

func TestResets(t *testing.T) {
	runScripts(t, []script{
		{name: "a RST to a SYN: connection refused", cfg: noOptions, text: `
			dial
			> S 0:0
			< RA 0:0 ack 1
			state CLOSED
			err ECONNREFUSED
			events readable writable finished`},
		{name: "SYN-SENT: a RST without the right ACK is ignored", cfg: noOptions, text: `
			dial
			> S 0:0
			< R 0:0
			< RA 0:0 ack 2
			< RA 0:0 ack 0
			state SYN-SENT`},
		{name: "a RST with the exact number ends the connection, and earlier data can be read", cfg: noOptions, text: `
			both:
			< A 1:100 ack 1
			> A 1:0 ack 101
			< R 101:0
			state CLOSED
			events readable writable finished
			read 1000 = 100
			read 1 = ECONNRESET
			write 1 = EPIPE`},
		{name: "a RST in the window is answered with a challenge ACK", cfg: noOptions, text: `
			both:
			< R 2:0
			> A 1:0 ack 1
			state ESTABLISHED
			< R 65535:0
			> A 1:0 ack 1
			count challenge_acks 2`},
		{name: "a RST outside the window is dropped", cfg: noOptions, text: `
			both:
			< R 0:0
			< R 65536:0
			< R 65537:0
			count resets_ignored 3
			state ESTABLISHED`},
		{name: "a RST with data that begins before the window is dropped", cfg: noOptions, text: `
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
		{name: "challenge ACKs: ten in a burst, then ten a second", cfg: noOptions, text: `
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
		{name: "an ACK older than the largest window (RFC 5961)", cfg: noOptions, text: `
			both:
			< A 1:100 ack 1
			> A 1:0 ack 101
			< A 101:10 ack -9000
			> A 1:0 ack 101
			< A 101:10 ack -7000	# old, but within the largest window
			> A 1:0 ack 111
			count ack_too_old 1`},
		{name: "a segment without an ACK is dropped", cfg: noOptions, text: `
			both:
			< - 1:10
			> nothing
			count no_ack 1`},
		{name: "segments for no connection", cfg: noOptions, text: `
			< S 0:0
			> RA 0:0 ack 1 zero yes
			< SF 0:10
			> RA 0:0 ack 12 zero yes
			< R 0:0
			< RA 0:0 ack 1
			> nothing`},
		{name: "segments for a listener", cfg: noOptions, text: `
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
		{name: "SYN-RECEIVED: a wrong ACK is answered with a RST", cfg: noOptions, text: `
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
		{name: "SYN-RECEIVED: a SYN with another number ends the handshake", cfg: noOptions, text: `
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
