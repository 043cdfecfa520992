package tcp

import (
	"github.com/unet-go/unet/wire"
)

// The oracle is RFC 9293, section 3.10.7, in signed arithmetic on numbers relative to each side's SYN,
// written independently of the engine. Comments mark where the engine differs from the RFC's text on
// purpose.

// situation is a state with its variables, and the script that leads to it.
type situation struct {
	name   string
	script string
	state  State
	// Relative to the SYNs. The windows are those that have been advertised.
	una, nxt       int
	rcvNxt, rcvWnd int
	passive        bool
	finOut         bool // nxt-1 is our FIN
}

var situations = []situation{
	{name: "CLOSED", state: Closed},
	{name: "LISTEN", script: "listen", state: Listen},
	{name: "SYN-SENT", script: "dial\n> S 0:0", state: SynSent, una: 0, nxt: 1, rcvWnd: 65535},
	{name: "SYN-RECEIVED, passive", script: "listen\n< S 0:0\n> SA 0:0 ack 1", state: SynReceived, nxt: 1, rcvNxt: 1, rcvWnd: 65535, passive: true},
	{name: "SYN-RECEIVED, active", script: "dial\n> S 0:0\n< S 0:0\n> SA 0:0 ack 1", state: SynReceived, nxt: 1, rcvNxt: 1, rcvWnd: 65535},
	{name: "ESTABLISHED", script: "dial\nestablished\nwrite 10\n> A 1:10 ack 1", state: Established, una: 1, nxt: 11, rcvNxt: 1, rcvWnd: 65535},
	{name: "ESTABLISHED, window closed", script: "dial\nestablished\nwrite 10\n> A 1:10 ack 1\n< A 1:2048 ack 1\n> A 11:0 ack 2049 win 0", state: Established, una: 1, nxt: 11, rcvNxt: 2049, rcvWnd: 0},
	{name: "FIN-WAIT-1", script: "dial\nestablished\nwrite 10\n> A 1:10 ack 1\nclosewrite\n> FA 11:0 ack 1", state: FinWait1, una: 1, nxt: 12, rcvNxt: 1, rcvWnd: 65535, finOut: true},
	{name: "FIN-WAIT-2", script: "dial\nestablished\nclosewrite\n> FA 1:0 ack 1\n< A 1:0 ack 2", state: FinWait2, una: 2, nxt: 2, rcvNxt: 1, rcvWnd: 65535},
	{name: "CLOSE-WAIT", script: "dial\nestablished\n< FA 1:0 ack 1\n> A 1:0 ack 2\nwrite 10\n> A 1:10 ack 2", state: CloseWait, una: 1, nxt: 11, rcvNxt: 2, rcvWnd: 65535},
	{name: "CLOSING", script: "dial\nestablished\nwrite 10\n> A 1:10 ack 1\nclosewrite\n> FA 11:0 ack 1\n< FA 1:0 ack 1\n> A 12:0 ack 2", state: Closing, una: 1, nxt: 12, rcvNxt: 2, rcvWnd: 65535, finOut: true},
	{name: "LAST-ACK", script: "dial\nestablished\n< FA 1:0 ack 1\n> A 1:0 ack 2\nwrite 10\n> A 1:10 ack 2\nclosewrite\n> FA 11:0 ack 2", state: LastAck, una: 1, nxt: 12, rcvNxt: 2, rcvWnd: 65535, finOut: true},
	{name: "TIME-WAIT", script: "dial\nestablished\nclosewrite\n> FA 1:0 ack 1\n< FA 1:0 ack 2\n> A 2:0 ack 2\n+1s", state: TimeWait, una: 2, nxt: 2, rcvNxt: 2, rcvWnd: 65535},
}

// incoming is a segment in relative numbers.
type incoming struct {
	flags             wire.TCPFlags
	seq, ack, dataLen int
	stamp             stamp
}

// stamp is the timestamp of a segment.
type stamp uint8

const (
	notAgreed stamp = iota // no timestamps were agreed on
	goodStamp
	oldStamp
	noStamp
)

// outcome is the effect that the segment must have. Without an answer flags is 0.
type outcome struct {
	state     State
	flags     wire.TCPFlags
	seq, ack  int
	absSeq0   bool // the RST has the absolute number 0
	newISS    bool // our SYN with a number of its own
	read      int  // bytes that can be read
	irregular bool // a counter must show what was wrong
}

const maxWindow = 8000 // the largest window that the peer of the scripts has advertised

func oracle(q situation, s incoming) outcome {
	syn, fin := s.flags&wire.TCPSyn != 0, s.flags&wire.TCPFin != 0
	rst, ack := s.flags&wire.TCPRst != 0, s.flags&wire.TCPAck != 0
	segLen := s.dataLen
	if syn {
		segLen++
	}
	if fin {
		segLen++
	}
	same := outcome{state: q.state, irregular: true}
	reset := func(o outcome) outcome { // <SEQ=SEG.ACK><CTL=RST>, or <SEQ=0><ACK=SEG.SEQ+SEG.LEN>
		if ack {
			o.flags, o.seq = wire.TCPRst, s.ack
		} else {
			o.flags, o.absSeq0, o.ack = wire.TCPRst|wire.TCPAck, true, s.seq+segLen
		}
		return o
	}
	synAck := wire.TCPSyn | wire.TCPAck
	if s.flags&ecnSetup == ecnSetup { // RFC 3168, section 6.1.1
		synAck |= wire.TCPEce
	}
	ackOf := func(o outcome, rcvNxt int) outcome { // <SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK>
		o.flags, o.seq, o.ack = wire.TCPAck, q.nxt, rcvNxt
		return o
	}

	switch q.state {
	case Closed: // 3.10.7.1
		if rst {
			return same
		}
		return reset(same)
	case Listen: // 3.10.7.2
		switch {
		case rst:
			return same
		case ack:
			return reset(same)
		case syn:
			return outcome{state: SynReceived, flags: synAck, newISS: true, ack: s.seq + 1}
		}
		return same
	case SynSent: // 3.10.7.3
		if ack && (s.ack <= 0 || s.ack > q.nxt) {
			if rst {
				return same
			}
			return reset(same)
		}
		if rst {
			if ack {
				return outcome{state: Closed}
			}
			return same
		}
		if !syn {
			return same
		}
		if !ack {
			return outcome{state: SynReceived, flags: synAck, seq: 0, ack: s.seq + 1}
		}
		o := outcome{state: Established, read: s.dataLen}
		next := s.seq + 1 + s.dataLen
		if fin {
			o.state = CloseWait
			next++
		}
		return ackOf(o, next)
	}

	// 3.10.7.4. Not by the letter: the peer's first SYN again is answered with
	// our SYN at once, and its SYN and ACK after a simultaneous open counts as
	// the ACK that it carries (figure 7, line 6).
	if q.state == SynReceived && syn && !rst && s.seq == 0 {
		if !ack {
			return outcome{state: SynReceived, flags: synAck, seq: 0, ack: 1}
		}
		if !q.passive {
			syn, segLen, s.seq = false, segLen-1, 1
		}
	}

	inWindow := func(n int) bool { return q.rcvNxt <= n && n < q.rcvNxt+q.rcvWnd }
	// The second step before the first: RFC 5961 compares SEG.SEQ alone.
	if rst {
		switch {
		case s.seq == q.rcvNxt:
			if q.passive {
				return outcome{state: Listen}
			}
			return outcome{state: Closed}
		case inWindow(s.seq):
			return ackOf(same, q.rcvNxt)
		}
		return same
	}
	// TIME-WAIT and a SYN: there is no listener here that could take it.
	// Before the first, the timestamp (RFC 7323, section 5.3). Not by section 3.2: a segment
	// without one is taken.
	if s.stamp == oldStamp {
		return ackOf(same, q.rcvNxt)
	}
	// First.
	acceptable := false
	switch {
	case segLen == 0 && q.rcvWnd == 0:
		acceptable = s.seq == q.rcvNxt
	case segLen == 0:
		acceptable = inWindow(s.seq)
	case q.rcvWnd > 0:
		acceptable = inWindow(s.seq) || inWindow(s.seq+segLen-1)
	default:
		// "If the RCV.WND is zero, no segments will be acceptable, but special
		// allowance should be made to accept valid ACKs, URGs, and RSTs."
		acceptable = s.seq == q.rcvNxt
	}
	if !acceptable {
		return ackOf(same, q.rcvNxt)
	}
	// Fourth.
	if syn {
		if q.state == SynReceived && q.passive {
			return outcome{state: Listen}
		}
		return ackOf(same, q.rcvNxt)
	}
	// The rest is about the part in the window.
	ackDue := false
	if s.seq < q.rcvNxt {
		cut := q.rcvNxt - s.seq
		s.seq += cut
		if cut > s.dataLen {
			fin = false
		}
		s.dataLen = max(0, s.dataLen-cut)
		ackDue = true
	}
	if right := q.rcvNxt + q.rcvWnd; s.seq+s.dataLen > right {
		s.dataLen, fin, ackDue = right-s.seq, false, true
	} else if fin && s.seq+s.dataLen == right {
		fin, ackDue = false, true
	}
	out := func(o outcome, rcvNxt int) outcome {
		if ackDue {
			return ackOf(o, rcvNxt)
		}
		return o
	}
	// Fifth.
	if !ack {
		return same
	}
	o := outcome{state: q.state, irregular: ackDue}
	switch q.state {
	case SynReceived:
		if s.ack <= q.una || s.ack > q.nxt {
			return reset(same)
		}
		o.state = Established
	case TimeWait:
	default:
		if s.ack > q.nxt || s.ack < q.una-maxWindow {
			return ackOf(same, q.rcvNxt)
		}
		finAcked := q.finOut && s.ack == q.nxt
		switch {
		case !finAcked:
		case q.state == FinWait1:
			o.state = FinWait2
		case q.state == Closing:
			o.state = TimeWait
		case q.state == LastAck:
			o.state = Closed
			return o
		}
	}
	// Seventh and eighth.
	next := q.rcvNxt
	switch q.state {
	case CloseWait, Closing, LastAck: // "This should not occur", ignore it
		o.irregular = o.irregular || s.dataLen > 0 || fin
		return out(o, next)
	}
	switch o.state {
	case Established, FinWait1, FinWait2:
		if s.dataLen > 0 {
			ackDue = true
			o.irregular = o.irregular || s.seq != q.rcvNxt
			if s.seq == q.rcvNxt {
				o.read = s.dataLen
				next += s.dataLen
			}
		}
		ackDue = ackDue || fin
		o.irregular = o.irregular || fin && s.seq != q.rcvNxt
		if fin && s.seq == q.rcvNxt {
			next++
			o.state = map[State]State{Established: CloseWait, FinWait1: Closing, FinWait2: TimeWait}[o.state]
		}
	case TimeWait:
		// Acknowledge it, and restart the 2 MSL timeout. Not by the letter: the ACK of a
		// peer in TIME-WAIT is not answered, or both would answer each other for ever.
		ackDue = ackDue || segLen > 0 || s.seq != q.rcvNxt || s.ack != q.nxt
		o.irregular = o.irregular || segLen > 0 || s.ack > q.nxt
	}
	return out(o, next)
}
