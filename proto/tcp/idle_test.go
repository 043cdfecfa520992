package tcp

import (
	"testing"
	"time"
)

// pass lets time go by, with all timers, and what they send carried over.
func (p *pair) pass(d time.Duration) {
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

func (p *pair) deadline() Time { return min(p.tabs[0].NextDeadline(), p.tabs[1].NextDeadline()) }

// A connection that nobody uses for a month is still there: without the keepalive
// nothing is sent meanwhile and no timer runs, with it a probe each quarter of a minute.
// A month is longer than timestamps of before are valid (RFC 7323, section 5.5).
func TestIdle(t *testing.T) {
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
			say := func(from int, text string) {
				t.Helper()
				b := make([]byte, 100)
				p.conns[from].Write(p.now, []byte(text))
				p.exchange()
				if n, err := p.conns[1-from].Read(p.now, b); string(b[:n]) != text || err != nil {
					t.Errorf("side %d has sent %q, and %q was read, %v", from, text, b[:n], err)
				}
				p.pass(time.Second) // until all is acknowledged
			}
			say(1, "before")
			say(0, "before")
			sent := [2]uint64{p.conns[0].Info().SegmentsSent, p.conns[1].Info().SegmentsSent}
			p.pass(month)
			for i := range p.conns {
				var probes uint64
				if c.opts[i].KeepAlive.Enable {
					probes = uint64(month / DefaultKeepAliveIdle)
				}
				if n := p.tabs[i].Count(KeepAlives); n != probes {
					t.Errorf("side %d has sent %d probes, want %d", i, n, probes)
				}
				if n := p.conns[i].Info().SegmentsSent - sent[i]; !c.opts[1-i].KeepAlive.Enable && n != probes {
					t.Errorf("side %d has sent %d segments, want %d", i, n, probes)
				}
				if at := p.tabs[i].NextDeadline(); probes == 0 && at != Never {
					t.Errorf("side %d has a timer at %v", i, at)
				}
			}
			say(0, "after a month")
			say(1, "after a month")
			for i, c := range p.conns {
				if c.State() != Established || c.Info().Retransmissions > 0 {
					t.Errorf("side %d: %v, %d segments sent again", i, c.State(), c.Info().Retransmissions)
				}
			}
		})
	}
}
