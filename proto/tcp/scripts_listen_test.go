package tcp

import "testing"

func TestListenerQueues(t *testing.T) {
	runScripts(t, []script{
		{name: "a full accept queue holds the handshake back", cfg: noOptions, lopt: ListenOptions{AcceptQueue: 1}, text: `
			listen
			< S 0:0
			> SA 0:0 ack 1
			other A			# somebody else gets the place
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
		{name: "a cookie, with timestamps", lopt: ListenOptions{SynQueue: 1}, text: `
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
			write 3000		# 3200 of window
			> A 1:1388 ack 101
			> A 1389:1388 ack 101`},
		{name: "a cookie without timestamps: no options", lopt: ListenOptions{SynQueue: 1}, text: `
			listen
			other S
			< S 0:0 mss 1450 ws 5 sackok
			> SA 0:0 ack 1 ws - ts -
			< A 1:0 ack 1
			accept
			info 1440 0 false false`},
		{name: "a cookie is good for two minutes", cfg: noOptions, lopt: ListenOptions{SynQueue: 1}, text: `
			listen
			other S
			< S 0:0
			> SA 0:0 ack 1
			+110s
			< A 1:0 ack 1
			state-of-pair ESTABLISHED`},
		{name: "a cookie that is too old", cfg: noOptions, lopt: ListenOptions{SynQueue: 1}, text: `
			listen
			other S
			< S 0:0
			> SA 0:0 ack 1
			+191s
			< A 1:0 ack 1
			> R 1:0
			state LISTEN
			count cookies_bad 1
			+2s			# and now nobody looks for any
			< A 1:0 ack 1
			> R 1:0
			count cookies_bad 1`},
		{name: "a cookie that was changed", cfg: noOptions, lopt: ListenOptions{SynQueue: 1}, text: `
			listen
			other S
			< S 0:0
			> SA 0:0 ack 1
			< A 1:0 ack 2
			> R 2:0
			< A 1:0 ack 16777217	# another MSS
			> R 16777217:0
			< A 2:0 ack 1		# another number of the peer's
			> R 1:0
			count cookies_bad 3
			< A 1:0 ack 1
			state-of-pair ESTABLISHED`},
		{name: "a cookie for a full accept queue", cfg: noOptions, lopt: ListenOptions{SynQueue: 1, AcceptQueue: 1}, text: `
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
		{name: "no cookies", cfg: noOptions, lopt: ListenOptions{SynQueue: 1, NoCookies: true}, text: `
			listen
			other S
			< S 0:0
			> nothing
			count syn_dropped 1`},
		{name: "closing a listener", cfg: noOptions, text: `
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
		{name: "closing a listener in the handshake", cfg: noOptions, text: `
			listen
			< S 0:0
			> SA 0:0 ack 1
			unlisten
			> RA 1:0 ack 1
			events`},
		{name: "a connection that ends before it is accepted", cfg: noOptions, text: `
			listen
			< S 0:0
			> SA 0:0 ack 1
			< A 1:10 ack 1
			> A 1:0 ack 11
			< R 11:0
			accept
			read 100 = 10
			read 1 = ECONNRESET`},
		{name: "text, FIN and all before it is accepted", cfg: noOptions, text: `
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
		{name: "text in the SYN is not taken", cfg: noOptions, text: `
			listen
			< SF 0:10
			> SA 0:0 ack 1
			< A 1:10 ack 1
			> A 1:0 ack 11`},
	})
}

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
	if tab.listenerFor(makeTuple(AddrPort{Addr: hostB, Port: 80}, AddrPort{})) != b || tab.listenerFor(makeTuple(AddrPort{Addr: hostA, Port: 80}, AddrPort{})) != a {
		t.Error("the wrong listener")
	}
	a.Close()
	a.Close()
	if tab.listenerFor(makeTuple(AddrPort{Addr: hostA, Port: 80}, AddrPort{})) != nil || tab.listenerFor(makeTuple(AddrPort{Addr: hostB, Port: 80}, AddrPort{})) != b {
		t.Error("closed the wrong one")
	}
	b.Close()
	if len(tab.listeners) != 0 {
		t.Error("listeners left")
	}
	// Port 0: each of the set once.
	seen := map[uint16]bool{}
	for range 3 {
		seen[listen(AddrPort{}).Addr().Port] = true
	}
	if len(seen) != 3 || !seen[4000] || !seen[4001] || !seen[5000] {
		t.Errorf("ports %v", seen)
	}
	if _, err := tab.Listen(AddrPort{}, ListenOptions{}); err == nil {
		t.Error("a fourth port of three")
	}
}
