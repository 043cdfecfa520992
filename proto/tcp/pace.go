package tcp

import "time"

// Pacing. New text that the window allows all at once, after a pause above all, would
// arrive at a bottleneck all at once: what its queue does not hold is lost. So it goes
// out over a round trip, at a rate of the window for each, and a little more: twice that
// in slow start, for the window to double. Acknowledgments that come one by one are
// slower than this by themselves, and nothing waits.
//
// There is a credit: what paceCredit of silence, or of less than the rate, has saved may
// go at once. Over a round trip of less than that, all of the window may, which is why
// nothing is paced in a LAN and no timer runs. The initial window may always. What is
// sent again is not paced, nor anything that recovery allows.

const (
	paceCredit = time.Millisecond
	// paceGrain is how long a sender that has to wait waits longer, to send several
	// segments then.
	paceGrain = paceCredit / 4
)

// pace takes in that n bytes of text have been sent, and holds what follows back if they
// were ahead of the rate.
func (c *Conn) pace(now Time, n int) {
	round, window := Time(c.srtt), Time(max(c.window, 1))
	if round <= Time(paceCredit) || c.phase > probing || c.table.cfg.noPacing {
		return
	}
	if c.congestion.SlowStart() {
		round /= 2
	} else {
		round = round * 5 / 6
	}
	credit := max(Time(paceCredit), Time(initialWindow(c.mss))*round/window)
	c.paceNext = max(c.paceNext, now-credit) + Time(n)*round/window
	if c.paceNext > now {
		c.paced, c.paceAt = true, c.paceNext.add(paceGrain)
	}
}

// paceExpired is the end of the wait.
func (c *Conn) paceExpired() { c.paced, c.paceAt = false, Never }
