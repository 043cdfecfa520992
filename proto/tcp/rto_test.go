package tcp

import (
	"testing"
	"time"

	"github.com/unet-go/unet/internal/fate"
)

// What a handshake has to wait for is no round-trip time: once text is acknowledged the
// timeout is that of the path, however often SYNs and their answers were lost.
func TestTimeoutAfterLossyHandshake(t *testing.T) {
	const delay = 500 * time.Microsecond
	seeds := uint64(1000)
	if testing.Short() {
		seeds = 100
	}
	for _, cfg := range []Config{{}, {NoTimestamps: true}} {
		for seed := range seeds {
			w := newWorld(t, seed, [2]Config{cfg, cfg})
			for i := range w.hosts {
				w.impair(i, fate.Rule{Loss: 0.4, Delay: delay})
			}
			l, err := w.hosts[1].tab.Listen(AddrPort{Port: 80}, ListenOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var conns [2]*Conn
			conns[0], err = w.hosts[0].tab.Dial(w.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 80}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			for conns[1] == nil && w.step(Never) {
				conns[1] = l.Accept()
			}
			if conns[1] == nil {
				continue // one of them has given up
			}
			for i := range w.hosts {
				w.impair(i, fate.Rule{Delay: delay})
			}
			b := make([]byte, 100)
			for k := range 4 {
				from, to := conns[k%2], conns[1-k%2]
				if _, err := from.Write(w.now, b); err != nil {
					w.fatalf("seed %d: %v", seed, err)
				}
				for n := 0; n == 0; n, _ = to.Read(w.now, b) {
					w.step(Never)
				}
				for from.Unacknowledged() > 0 {
					w.step(Never)
				}
			}
			for _, c := range conns {
				if i := c.Info(); i.RTO > 10*time.Millisecond {
					w.fatalf("seed %d, timestamps %t: timeout %v, round trip %v", seed, i.Timestamps, i.RTO, i.RTT)
				}
			}
		}
	}
}

func TestHandshakeTimes(t *testing.T) {
	runScripts(t, []script{
		{name: "a SYN,ACK that comes a timeout after what it echoes is no round trip", cfg: Config{NoSACK: true, NoWindowScale: true}, text: `
			dial
			> S 0:0 ts 0/0
			+1s
			> S 0:0 ts 1000/0
			+1s			# of the peer's
			< SA 0:0 ack 1 ts 500/1000
			> A 1:0 ack 1
			write 100
			> PA 1:100 ack 1
			timer 3s		# RFC 6298, section 5.7
			+1ms
			< A 1:0 ack 101 ts 501/2000
			write 100
			> PA 101:100 ack 1
			timer 6ms`},
		{name: "one that comes at once is", cfg: Config{NoSACK: true, NoWindowScale: true}, text: `
			dial
			> S 0:0 ts 0/0
			+1s
			> S 0:0 ts 1000/0
			+4ms
			< SA 0:0 ack 1 ts 500/1000
			> A 1:0 ack 1
			write 100
			> PA 1:100 ack 1
			timer 12ms`},
		{name: "one that echoes the first says nothing", cfg: Config{NoSACK: true, NoWindowScale: true}, text: `
			dial
			> S 0:0 ts 0/0
			+1s
			> S 0:0 ts 1000/0
			+4ms
			< SA 0:0 ack 1 ts 500/0
			> A 1:0 ack 1
			write 100
			> PA 1:100 ack 1
			timer 3s
			+1ms
			< A 1:0 ack 101 ts 501/1004
			write 100
			> PA 101:100 ack 1
			timer 6ms`},
		{name: "a SYN that comes again is the one that is echoed, and its answer is not timed", cfg: Config{NoSACK: true, NoWindowScale: true}, text: `
			listen
			< S 0:0 ts 500
			> SA 0:0 ack 1 ts 0/500
			+500ms
			< S 0:0 ts 600
			> SA 0:0 ack 1 ts 500/600
			< S 0:0 ts 500		# an old one
			> SA 0:0 ack 1 ts 500/600
			+1ms
			< A 1:0 ack 1 ts 601/500
			accept
			write 100
			> PA 1:100 ack 1
			timer 1s`},
		{name: "after a SYN that was lost the window is what it always is", cfg: noOptions, text: `
			dial
			> S 0:0
			+1s
			> S 0:0
			< SA 0:0 ack 1 mss 1000
			> A 1:0 ack 1
			window 10000`},
		{name: "after two it is one segment", cfg: noOptions, text: `
			dial
			> S 0:0
			+3s
			> S 0:0
			> S 0:0
			< SA 0:0 ack 1 mss 1000
			> A 1:0 ack 1
			window 1000`},
	})
}
