package tcp

import (
	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// Explicit congestion notification (RFC 3168). A router that is congested marks packets
// instead of losing them (CE). Whoever receives text in such a packet says so in all its
// ACKs (ECE) until the sender has answered (CWR), which reduces its window once for a
// window of text, as it does for a loss. Only text that is sent for the first time may
// be marked (ECT); the driver writes that into the IP header, see [Conn.ECT].

// ECN says what becomes of it on the connections of a [Table]. The values are those of
// Linux's net.ipv4.tcp_ecn in another order.
type ECN uint8

const (
	ECNAccept ECN = iota // if the peer asks for it (Linux: 2)
	ECNOff               // never (Linux: 0)
	ECNOn                // ask for it, too (Linux: 1)
)

const ecnSetup = wire.TCPEce | wire.TCPCwr // of a SYN that asks for ECN

// explicit is what a connection knows of ECN.
type explicit struct {
	ecn      bool          // agreed on
	mayMark  bool          // and no SYN, ours or the peer's, has said otherwise
	ect      bool          // the segment that was emitted last may be marked
	cwrDue   bool          // the next new text has CWR
	reducing bool          // the window was reduced, and the peer may not know
	reduced  seq.Number    // SND.NXT at that time
	echo     wire.TCPFlags // ECE while the peer is to be told
}

// ECT reports whether the packet of the segment that Emit has written last is to say
// that it may be marked: ECT(0) in its IP header.
func (c *Conn) ECT() bool { return c.ect }

// agreeECN looks at the flags of the peer's SYN.
func (c *Conn) agreeECN(s *segment) {
	mode := c.table.cfg.ECN
	flags := s.flags & ecnSetup
	switch {
	case mode == ECNOff, s.ecn != 0: // a SYN that may be marked is of no peer that knows ECN
		c.ecn = false
	case s.has(wire.TCPAck):
		// If our SYN was sent again it did not ask any more. But the peer has heard the
		// first, so that what it sends may be marked (section 6.1.1).
		c.ecn = mode == ECNOn && flags == wire.TCPEce
	default:
		c.ecn = flags == ecnSetup
	}
	c.mayMark = c.ecn && (c.passive || mode == ECNOn && c.synRetries == 0)
}

// synECN is what our SYN says. One that was lost may have been lost for that (section
// 6.1.1.1), so it is not said again.
func (c *Conn) synECN() wire.TCPFlags {
	switch {
	case c.state == SynReceived && c.ecn:
		return wire.TCPEce
	case c.state == SynSent && c.table.cfg.ECN == ECNOn && c.synRetries == 0:
		return ecnSetup
	}
	return 0
}

// noteECN takes in what a segment says about congestion: about ours with CE and CWR,
// about the peer's with ECE.
func (c *Conn) noteECN(now Time, s *segment) {
	if s.has(wire.TCPCwr) {
		c.echo = 0
	}
	if s.ecn == wire.ECNMarked && len(s.text) > 0 {
		c.table.counts[CongestionMarks]++
		c.echo = wire.TCPEce
	}
	// CWR goes with the first of the text that was not sent yet, so an echo counts again
	// when that has arrived.
	if c.reducing && s.ack.After(c.reduced) {
		c.reducing = false
	}
	if !s.has(wire.TCPEce) {
		return
	}
	c.undoable = false // whatever was lost: there is congestion (RFC 4015, section 3)
	if c.phase > probing || c.reducing || c.sndUna == c.sndMax {
		return
	}
	c.table.counts[CongestionEchoes]++
	c.reduce(now, int(c.sndNxt.From(c.sndUna)))
	c.window = c.congestion.Window()
}

// reduce tells congestion control that there is congestion, once for a window of text.
func (c *Conn) reduce(now Time, inFlight int) {
	if c.ecn {
		if c.reducing && c.sndUna.Before(c.reduced) {
			c.undoable = false // an echo has told of the same congestion
			return
		}
		c.cwrDue, c.reducing, c.reduced = true, true, c.sndNxt
	}
	c.congestion.Reduce(now, inFlight)
}

// markNew is for a segment of new text.
func (c *Conn) markNew(h *header) {
	c.ect = c.mayMark
	if c.cwrDue {
		c.cwrDue = false
		h.fields.Flags |= wire.TCPCwr
	}
}
