package tcp

// Forward RTO-recovery (F-RTO, RFC 5682): was a timeout too early? The first segment is
// sent again in any case. If the answer acknowledges something, but not everything, what
// was never sent goes next, instead of what may not be lost at all. If then something
// arrives that was sent before the timeout and not since, the peer only was slow, and
// everything is as before. If only what is new arrives, or nothing, the loss was one.
//
// With timestamps the first answer says more than that (RFC 3522), and this is not used.

// forward is how far it is.
type forward uint8

const (
	notForward forward = iota // it is not tried, or has been given up
	firstAck                  // waiting for the answer to what was sent again
	secondAck                 // waiting for the answer to what was new
)

// tryForward begins it: a timeout has come. Not if something else has been sent again
// lately (section 2.1, step 1); a timeout after one that nobody has answered goes on.
func (c *Conn) tryForward(first bool) {
	if c.timestamps || !first && c.forward != firstAck {
		c.forward = notForward
		return
	}
	c.forward, c.early = firstAck, false
}

// goForward takes in an ACK. Section 2.1, and section 3.1 if the peer has SACK.
func (c *Conn) goForward(advanced bool) {
	news, early := c.board.delivered > 0, c.early
	c.early = false
	if !c.sack {
		news, early = c.dupAcks > 0, advanced
	}
	switch {
	case c.forward == firstAck && advanced: // step 2b
		c.forward = secondAck
		c.window = min(c.window, c.pipe()+2*c.mss)
		c.flushed = true
		if p := c.planText(); p.text == 0 && !p.fin {
			c.forward = notForward // there is nothing new, or no room for it
		}
	case c.forward == firstAck && !c.sack && news: // step 2a
		c.forward = notForward
	case c.forward == secondAck && early: // step 3b
		c.undo()
		c.bePatient(2 * c.rto)
	case c.forward == secondAck && news: // step 3a
		c.forward = notForward
	}
}
