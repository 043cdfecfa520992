package tcp

import (
	"fmt"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// What the simulation checks beyond the invariants of one connection: each segment that
// is sent, each timer, and what one end believes of the other.

// checkSegment looks at a segment that c has just written. It was action and the number
// after the last that was sent was sndMax before.
func (h *simHost) checkSegment(c *Conn, was action, sndMax seq.Number, b []byte) {
	s := wire.TCP(b)
	flags := s.Flags()
	if flags&wire.TCPRst != 0 || c.state == Closed {
		return
	}
	if was != sendText || c.sndMax == sndMax {
		return
	}
	// What is new is within the peer's window and the congestion window, which is that of
	// congestion control, and a probe or two segments of limited transmit more.
	end := c.sndMax
	if flags&wire.TCPFin != 0 {
		end = end.Back(1) // it has no place in the window
	}
	limit := c.window
	if c.phase == open {
		limit = min(limit, c.congestion.Window()+2*c.mss)
	}
	if in := int(end.From(c.sndUna)); in > int(c.sndWnd) || c.pipe() > limit+1 {
		h.w.fatalf("host %d: sends beyond the window: %d of %d in flight, pipe %d, congestion window %d: %+v", h.index, in, c.sndWnd, c.pipe(), limit, c.Info())
	}
}

// timerInvariant says which timer should run and does not.
func (c *Conn) timerInvariant() string {
	if !c.inTable {
		return ""
	}
	first := c.earliestTimer()
	unsent := c.send.bytes - int(c.sndNxt.From(c.sndUna))
	switch {
	case (first != Never) != (c.slot != 0) && c.slot == 0:
		return "timers, and it is not in the heap"
	case c.state == SynSent || c.state == SynReceived:
		if c.next.action != sendSyn && c.rtxAt == Never {
			return "a handshake without a timer"
		}
		if !c.passive && c.waitAt == Never {
			return "a handshake for ever"
		}
	case c.state == FinWait2:
		if c.closed && c.waitAt == Never {
			return "FIN-WAIT-2 for ever"
		}
	case c.ackPending > 0 && !c.ackNow && c.ackAt == Never:
		return "text that will not be acknowledged"
	case c.next.corked != (c.corkAt != Never):
		return "the cork"
	case c.next.action == nothing && !c.next.corked && c.rtxAt == Never && c.paceAt == Never && (unsent > 0 || c.finQueued && unsent == 0):
		return "something to send that will not be"
	case c.paced != (c.paceAt != Never):
		return "pacing without a timer"
	case c.phase > probing && c.rtxAt == Never:
		return "recovery without a timer"
	case c.opts.KeepAlive.Enable && !c.closed && c.keepAt == Never:
		return "keepalive without a timer"
	}
	return ""
}

// checkBelief holds what a connection believes of its peer against what the peer has:
// what is acknowledged it has received, and what is marked as received out of order it
// has, in order or not, unless it has given some up. peer is nil if it is gone.
func (c *Conn) checkBelief(peer *Conn) string {
	if peer == nil || peer.state < Established || c.state < Established {
		return ""
	}
	if c.sndUna.After(peer.rcvNxt) {
		return fmt.Sprintf("%d is acknowledged, the peer wants %d", c.sndUna.Uint32(), peer.rcvNxt.Uint32())
	}
	if c.rcvNxt.After(peer.sndMax) {
		return "received what was never sent"
	}
	if edge := c.sndUna.Add(c.sndWnd); c.sndWL2 == c.sndUna && edge.After(peer.rcvAdv) {
		return fmt.Sprintf("the window ends at %d, the peer's at %d", edge.Uint32(), peer.rcvAdv.Uint32())
	}
	start := c.sndUna
	for s := c.board.head; s != nil; start, s = s.end, s.next {
		if s.marks&sacked == 0 || peer.table.counts[Reneged] > 0 {
			continue
		}
		at := seq.Max(start, peer.rcvNxt)
		for _, r := range peer.outOfOrder.runs {
			if r.left.AtOrBefore(at) && r.right.After(at) {
				at = r.right
			}
		}
		if at.Before(s.end) {
			return fmt.Sprintf("%d to %d counts as received, the peer lacks %d", start.Uint32(), s.end.Uint32(), at.Uint32())
		}
	}
	return ""
}

// peerOf is the other end of a connection, if it is in its table.
func (w *world) peerOf(from int, c *Conn) *Conn {
	id := makeTuple(AddrPort{Addr: w.hosts[1-from].addr, Port: c.Remote().Port}, AddrPort{Addr: w.hosts[from].addr, Port: c.Local().Port})
	for _, p := range w.hosts[1-from].tab.conns {
		if p.id == id {
			return p
		}
	}
	return nil
}
