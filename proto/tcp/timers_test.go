package tcp

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
)

// A thousand connections with timers of all kinds, whose peers do not answer: no timer is late.
func TestManyTimers(t *testing.T) {
	p := newPair(t, Config{}, Options{})
	r := rand.New(rand.NewPCG(8, 9))
	for range 1000 {
		p.now += 1000
		p.dial(t, Options{KeepAlive: KeepAlive{Enable: true, Idle: time.Duration(1+r.IntN(10)) * time.Second}})
		if r.IntN(2) == 0 {
			p.conns[0].Write(p.now, make([]byte, 10))
		}
	}
	tab := p.tabs[0]
	for i := 0; i < 20000 && tab.Deadline != Never; i++ {
		p.drop(tab)
		p.now = max(p.now, tab.Deadline)
		tab.Expire(p.now)
		if at := tab.Deadline; at <= p.now {
			t.Fatalf("after Expire at %d the deadline is %d", p.now, at)
		}
		if i%100 == 0 {
			for _, c := range tab.conns {
				if c.earliestTimer() <= p.now {
					t.Fatal("a timer is late")
				}
			}
		}
	}
	if tab.Len() != 1 { // the first connection, which has no keepalive and sends nothing
		t.Errorf("%d connections are left, although no peer answers", tab.Len())
	}
}

// Lost SYNs and SYN,ACKs delay a handshake. That delay does not count as a round-trip time: when data
// has been acknowledged the timeout is that of the path.
func TestTimeoutAfterLossyHandshake(t *testing.T) {
	const delay = 500 * time.Microsecond
	seeds := uint64(1000)
	if testing.Short() {
		seeds = 100
	}
	for _, cfg := range []Config{{}, {NoTimestamps: true}} {
		for seed := range seeds {
			net := newNetwork(t, seed, [2]Config{cfg, cfg})
			for i := range net.hosts {
				net.impair(i, linksim.Rule{Loss: 0.4, Delay: delay})
			}
			l := net.listen(Options{})
			conns := [2]*Conn{net.dial(Options{}), nil}
			for conns[1] == nil && net.step(Never) {
				conns[1] = l.Accept()
			}
			if conns[1] == nil {
				continue // a host has given up the handshake
			}
			for i := range net.hosts {
				net.impair(i, linksim.Rule{Delay: delay})
			}
			b := make([]byte, 100)
			for k := range 4 {
				from, to := conns[k%2], conns[1-k%2]
				if _, err := from.Write(net.now, b); err != nil {
					net.fatalf("seed %d: %v", seed, err)
				}
				for n := 0; n == 0; n, _ = to.Read(net.now, b) {
					net.step(Never)
				}
				for from.Unacknowledged() > 0 {
					net.step(Never)
				}
			}
			for _, c := range conns {
				if i := c.Info(); i.RTO > 20*time.Millisecond {
					net.fatalf("seed %d, timestamps %t: timeout %v, round trip %v", seed, i.Timestamps, i.RTO, i.RTT)
				}
			}
		}
	}
}

func TestHandshakeRoundTripTimes(t *testing.T) {
	runScripts(t, []script{
		{name: "a SYN,ACK a second after the SYN that it echoes is not timed", cfg: Config{NoSACK: true, NoWindowScale: true}, text: `
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
		{name: "a SYN,ACK soon after the SYN that it echoes is timed", cfg: Config{NoSACK: true, NoWindowScale: true}, text: `
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
		{name: "a SYN,ACK that echoes the first of two SYNs is not timed", cfg: Config{NoSACK: true, NoWindowScale: true}, text: `
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
		{name: "a repeated SYN is echoed, and the ACK of its SYN,ACK is not timed", cfg: Config{NoSACK: true, NoWindowScale: true}, text: `
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
		{name: "one lost SYN: the initial window is ten segments", cfg: noOptions, text: `
			dial
			> S 0:0
			+1s
			> S 0:0
			< SA 0:0 ack 1 mss 1000
			> A 1:0 ack 1
			window 10000`},
		{name: "two lost SYNs: the initial window is one segment", cfg: noOptions, text: `
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

// exchangeMessages has two hosts exchange messages of n bytes, one at a time, over a link that loses
// nothing. It returns the sums of both tables' counters.
func exchangeMessages(t *testing.T, cfg Config, o Options, link linksim.Rule, rounds, n int) func(Counter) uint64 {
	net := newNetwork(t, 1, [2]Config{cfg, cfg})
	for i := range net.hosts {
		net.impair(i, link)
	}
	var conns [2]*Conn
	conns[0], conns[1] = net.connect(net.listen(o), o)
	b := make([]byte, 64<<10)
	for k := range 2 * rounds {
		from, to := conns[k%2], conns[1-k%2]
		for sent, got := 0, 0; got < n; {
			if sent < n {
				k, err := from.Write(net.now, b[:min(len(b), n-sent)])
				if err != nil {
					net.fatalf("%v", err)
				}
				sent += k
			}
			from.Flush(net.now)
			net.step(Never)
			for k := -1; k != 0; got += k {
				k, _ = to.Read(net.now, b)
			}
		}
		net.step(net.now + Time(k%7)*Time(time.Millisecond)) // some milliseconds without data
	}
	return func(c Counter) uint64 { return net.hosts[0].tab.Count(c) + net.hosts[1].tab.Count(c) }
}

// Where nothing is lost no timeout expires too early: with a peer that delays acknowledgments by less
// than the least timeout, on long paths, where round trips vary, and where a queue grows.
func TestNoSpuriousTimeouts(t *testing.T) {
	skipUnderRace(t)
	links := []linksim.Rule{
		{Delay: 10 * time.Microsecond},
		{Delay: 100 * time.Microsecond, Jitter: 3 * time.Millisecond},
		{Delay: 2 * time.Millisecond, Jitter: 500 * time.Microsecond},
		{Delay: 25 * time.Millisecond},
		{Delay: 25 * time.Millisecond, Jitter: 2 * time.Millisecond},
		{Delay: 100 * time.Millisecond},
		{Delay: time.Millisecond, Rate: 20e6, Queue: 1 << 22},
		{Delay: 20 * time.Millisecond, Rate: 100e6, Queue: 1 << 22},
	}
	for i, link := range links {
		for _, cfg := range []Config{{}, {NoTimestamps: true}, {NoSACK: true}, noOptions} {
			for _, delay := range []time.Duration{0, DefaultAckDelay, 4 * time.Millisecond} {
				o := Options{SendBuffer: 1 << 20, ReceiveBuffer: 1 << 20, AdaptiveAck: delay > 0, AckDelay: delay}
				for _, n := range []int{1, 1000, 5000, 200_000} {
					rounds := 30
					if n > 10000 {
						rounds = 3
					}
					name := fmt.Sprintf("link %d, timestamps %t, SACK %t, ACKs after %v, %d bytes", i, !cfg.NoTimestamps, !cfg.NoSACK, delay, n)
					count := exchangeMessages(t, cfg, o, link, rounds, n)
					again := count(BytesRetransmitted)
					if link.Jitter > link.Delay {
						again = 0 // a round trip may take longer than two others, after which a loss probe is sent
					}
					if count(Timeouts)+count(FastRecoveries)+again > 0 {
						t.Errorf("%s: %d timeouts, %d loss probes, %d recoveries, %d bytes sent again", name, count(Timeouts), count(LossProbes), count(FastRecoveries), count(BytesRetransmitted))
					}
				}
			}
		}
	}
}

// An application answers 240 requests after a time of its own, up to three times as long once in a while.
// Acknowledgments wait for the answers, and the peer, which has our timeouts and sends the next request
// at once, never retransmits.
func TestAcksWaitAsLongAsAnswersTake(t *testing.T) {
	for _, cfg := range []Config{{}, {NoTimestamps: true}, {NoSACK: true}, noOptions, {MinRTO: DefaultMinRTO}} {
		for _, usual := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond, 6 * time.Millisecond, 20 * time.Millisecond} {
			net := newNetwork(t, 1, [2]Config{cfg, cfg})
			for i := range net.hosts {
				net.impair(i, linksim.Rule{Delay: 10 * time.Microsecond})
			}
			o := Options{AdaptiveAck: true}
			a, b := net.connect(net.listen(o), o)
			text := make([]byte, 100)
			pass := func(from, to *Conn) {
				if _, err := from.Write(net.now, text); err != nil {
					net.fatalf("%v", err)
				}
				for n := 0; n == 0; n, _ = to.Read(net.now, text) {
					net.step(Never)
				}
			}
			var before uint64
			for k := range 240 {
				if k == 200 {
					before = net.hosts[1].tab.Count(SegmentsSent)
				}
				pass(a, b)
				takes := usual
				if k%20 == 5 {
					takes *= 3
				}
				for until := net.now.add(takes); net.now < until; {
					net.step(until)
				}
				pass(b, a)
			}
			late := net.hosts[1].tab.Count(SegmentsSent) - before - 40 // acknowledgments that were sent alone
			if again := net.hosts[0].tab.Count(BytesRetransmitted) + net.hosts[1].tab.Count(BytesRetransmitted); again > 0 {
				t.Errorf("%+v, answers after %v: %d bytes sent again", cfg, usual, again)
			}
			most := uint64(8)
			if usual > time.Duration(mostAckDelay) {
				most = 40
			}
			if late > most {
				t.Errorf("%+v, answers after %v: %d of 40 acknowledgments were sent alone, want at most %d", cfg, usual, late, most)
			}
			if usual > time.Duration(mostAckDelay) && late == 0 {
				t.Errorf("answers after %v: all acknowledgments have waited", usual)
			}
		}
	}
}

// A peer delays acknowledgments for longer than the least timeout, as Linux does. At most 14 of 200
// messages are sent again.
func TestRTOAdaptsToDelayedAcks(t *testing.T) {
	for _, cfg := range []Config{{}, {NoTimestamps: true}, {NoSACK: true}, noOptions} {
		for _, delay := range []time.Duration{40 * time.Millisecond, 200 * time.Millisecond} {
			o := Options{AdaptiveAck: true, AckDelay: delay}
			count := exchangeMessages(t, cfg, o, linksim.Rule{Delay: 20 * time.Microsecond}, 100, 2900)
			if again := count(Timeouts) + count(LossProbes); again > 14 {
				t.Errorf("timestamps %t, SACK %t, ACKs after %v: %d timeouts, %d loss probes", !cfg.NoTimestamps, !cfg.NoSACK, delay, count(Timeouts), count(LossProbes))
			}
		}
	}
}

// On a path with a round trip of 100 to 160 ms nothing is sent again to a peer that delays
// acknowledgments, also if it begins to do so after many that were not delayed. A configured least
// timeout applies there too: it is too short, so data is sent again.
func TestNoSpuriousTimeoutsOnLongPaths(t *testing.T) {
	const ms = time.Millisecond
	for _, cfg := range []Config{{}, {NoTimestamps: true}, {NoSACK: true}, noOptions, {MinRTO: DefaultMinRTO}} {
		for _, delay := range []time.Duration{40 * ms, 100 * ms, 200 * ms} {
			var again uint64
			for seed := range uint64(5) {
				net := newNetwork(t, seed, [2]Config{cfg, {}})
				for i := range net.hosts {
					net.impair(i, linksim.Rule{Delay: 50 * ms, Jitter: 30 * ms})
				}
				a, b := net.connect(net.listen(Options{AdaptiveAck: true, AckDelay: delay}), Options{})
				text := make([]byte, 3*a.mss)
				for k := range 200 {
					if _, err := a.Write(net.now, text[:1+net.rand.IntN(len(text))]); err != nil {
						net.fatalf("%v", err)
					}
					a.Flush(net.now)
					for limit := net.now.add(time.Duration(net.rand.IntN(500)) * ms); net.now < limit; {
						if b.interactive = 0; k%50 > 40 {
							b.interactive = answersForInteractive // its acknowledgments are delayed
						}
						net.step(limit)
						for n := -1; n != 0; {
							n, _ = b.Read(net.now, text)
						}
					}
				}
				again += net.hosts[0].tab.Count(Timeouts) + net.hosts[0].tab.Count(BytesRetransmitted)
				if i := a.Info(); i.RTO < i.RTT+100*ms && cfg.MinRTO == 0 || i.RTO > time.Second {
					t.Errorf("timeout %v, round trip %v", i.RTO, i.RTT)
				}
			}
			if again > 0 != (cfg.MinRTO > 0) {
				t.Errorf("%+v, acknowledgments after %v: the sum of timeouts and bytes sent again is %d", cfg, delay, again)
			}
		}
	}
}

// TIME-WAIT lasts longer after a long round trip, and each record ends at its own time. A configured
// duration applies to all records.
func TestTimeWaitDependsOnRoundTrip(t *testing.T) {
	const ms = time.Millisecond
	for _, configured := range []time.Duration{0, 5 * time.Second} {
		tab := NewTable(Config{Secret: testSecret, TimeWait: configured, MaxTimeWaits: 4})
		enter := func(now Time, rtt time.Duration, port uint16) {
			c, err := tab.Dial(now, AddrPort{Addr: hostA, Port: port}, AddrPort{Addr: hostB, Port: 80}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if rtt > 0 {
				c.sample(now, rtt)
			}
			c.enterTimeWait(now)
		}
		for i, rtt := range []time.Duration{100 * ms, farRound, 0, ms} {
			enter(Time(i), rtt, uint16(2000+i))
		}
		for _, c := range []struct {
			at                        time.Duration
			byRoundTrip, ifConfigured int // records that are left
		}{{2*time.Second - 1, 4, 4}, {2*time.Second + 3, 2, 4}, {5*time.Second + 3, 2, 0}, {time.Minute - 1, 2, 0}, {time.Minute + 2, 0, 0}} {
			tab.Expire(Time(c.at))
			want := c.byRoundTrip
			if configured != 0 {
				want = c.ifConfigured
			}
			if tab.TimeWaits() != want {
				t.Errorf("TimeWait %v: %d in TIME-WAIT after %v, want %d", configured, tab.TimeWaits(), c.at, want)
			}
		}
	}
	// With MaxTimeWaits records a new one replaces the one that would end first.
	tab := NewTable(Config{Secret: testSecret, MaxTimeWaits: 2})
	for i, rtt := range []time.Duration{100 * ms, ms, 100 * ms} {
		c, err := tab.Dial(0, AddrPort{Addr: hostA, Port: uint16(2000 + i)}, AddrPort{Addr: hostB, Port: 80}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		c.sample(0, rtt)
		c.enterTimeWait(0)
	}
	if tab.Deadline != Time(DefaultTimeWaitFar) || tab.TimeWaits() != 2 {
		t.Errorf("%d records, want 2; the first ends after %v, want %v", tab.TimeWaits(), time.Duration(tab.Deadline), DefaultTimeWaitFar)
	}
}

// A connection whose peer does not answer ends after five minutes.
func TestDefaultUserTimeout(t *testing.T) {
	p := newPair(t, noOptions, Options{})
	c := p.conns[0]
	start := p.now
	c.Write(p.now, []byte("not acknowledged"))
	for c.State() != Closed {
		p.drop(p.tabs[0])
		p.now = max(p.now, p.tabs[0].Deadline)
		p.tabs[0].Expire(p.now)
		if p.now > start.add(time.Hour) {
			t.Fatal("it has not ended after an hour")
		}
	}
	if after := time.Duration(p.now - start); after != 5*time.Minute || c.Err() != syscall.ETIMEDOUT {
		t.Errorf("%v after %v", c.Err(), after)
	}
}

// The send window is unsigned and has 32 bits: up to the largest window that the scale can express.
func TestLargeWindow(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want uint32
	}{{noOptions, 65535}, {Config{}, 65535 << 14}} {
		p := newPair(t, c.cfg, Options{ReceiveBuffer: maxBuffer})
		p.exchange()
		if got := p.conns[1].Info().SendWindow; got != c.want {
			t.Errorf("window %d, want %d", got, c.want)
		}
	}
}

// advance advances the clock by d, runs all timers, and carries the segments that they send.
func (p *pair) advance(d time.Duration) {
	end := p.now.add(d)
	for at := p.deadline(); at <= end; at = p.deadline() {
		p.now = max(p.now, at)
		for _, t := range p.tabs {
			t.Expire(p.now)
		}
		p.exchange()
	}
	p.now = end
}

func (p *pair) deadline() Time { return min(p.tabs[0].Deadline, p.tabs[1].Deadline) }

// A connection that is idle for a month still works. Without keepalive no segment is sent meanwhile and
// no timer runs; with it a probe is sent every 15 s. After a month old timestamps are not valid any more
// (RFC 7323, section 5.5).
func TestIdleConnection(t *testing.T) {
	const month = 30 * 24 * time.Hour
	on := Options{KeepAlive: KeepAlive{Enable: true}}
	for _, c := range []struct {
		name string
		cfg  Config
		opts [2]Options
	}{
		{"no keepalive", Config{}, [2]Options{}},
		{"keepalive of one side", Config{}, [2]Options{on, {}}},
		{"keepalive of both", Config{}, [2]Options{on, on}},
		{"keepalive of both, no options", noOptions, [2]Options{on, on}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, c.cfg, c.opts[0])
			p.conns[1].SetKeepAlive(p.now, c.opts[1].KeepAlive)
			sendText := func(from int, text string) {
				t.Helper()
				b := make([]byte, 100)
				p.conns[from].Write(p.now, []byte(text))
				p.exchange()
				if n, err := p.conns[1-from].Read(p.now, b); string(b[:n]) != text || err != nil {
					t.Errorf("side %d has sent %q, and %q was read, %v", from, text, b[:n], err)
				}
				p.advance(time.Second) // until all is acknowledged
			}
			sendText(1, "before")
			sendText(0, "before")
			sent := [2]uint64{p.conns[0].Info().SegmentsSent, p.conns[1].Info().SegmentsSent}
			p.advance(month)
			for i := range p.conns {
				var probes uint64
				if c.opts[i].KeepAlive.Enable {
					probes = uint64(month / DefaultKeepAliveIdle)
				}
				if n := p.tabs[i].Count(KeepAlives); n != probes {
					t.Errorf("side %d has sent %d keepalive probes, want %d", i, n, probes)
				}
				if n := p.conns[i].Info().SegmentsSent - sent[i]; !c.opts[1-i].KeepAlive.Enable && n != probes {
					t.Errorf("side %d has sent %d segments, want %d", i, n, probes)
				}
				if at := p.tabs[i].Deadline; probes == 0 && at != Never {
					t.Errorf("side %d has a timer at %v", i, at)
				}
			}
			sendText(0, "after a month")
			sendText(1, "after a month")
			for i, c := range p.conns {
				if c.State() != Established || c.Info().Retransmissions > 0 {
					t.Errorf("side %d: %v, %d segments sent again", i, c.State(), c.Info().Retransmissions)
				}
			}
		})
	}
}
