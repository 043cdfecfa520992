package tcp

import (
	"fmt"
	"testing"

	"github.com/unet-go/unet/wire"
)

// TestEverySegmentInEveryState sends segments of every flag combination, with
// numbers left of, at, in and right of the windows, with and without text, into
// every state, and holds what happens against RFC 9293, section 3.10.7, as
// written down in oracle: in plain signed arithmetic on numbers that begin at 0
// for each side's SYN, and without a look at the engine.
//
// Where the engine is meant to differ from the letter the oracle says so.

// situation is a state and its variables, as the script leads to it.
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
	flags          wire.TCPFlags
	seq, ack, text int
}

// outcome is what must come of it. No reply: flags 0.
type outcome struct {
	state    State
	flags    wire.TCPFlags
	seq, ack int
	absSeq0  bool // the RST has the number 0, not one relative to anything
	newISS   bool // our SYN with a number of its own
	read     int  // bytes that can be read
}

const maxWindow = 8000 // that the peer of the scripts has advertised

func oracle(q situation, s incoming) outcome {
	syn, fin := s.flags&wire.TCPSyn != 0, s.flags&wire.TCPFin != 0
	rst, ack := s.flags&wire.TCPRst != 0, s.flags&wire.TCPAck != 0
	segLen := s.text
	if syn {
		segLen++
	}
	if fin {
		segLen++
	}
	same := outcome{state: q.state}
	reset := func(o outcome) outcome { // <SEQ=SEG.ACK><CTL=RST>, or <SEQ=0><ACK=SEG.SEQ+SEG.LEN>
		if ack {
			o.flags, o.seq = wire.TCPRst, s.ack
		} else {
			o.flags, o.absSeq0, o.ack = wire.TCPRst|wire.TCPAck, true, s.seq+segLen
		}
		return o
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
			return outcome{state: SynReceived, flags: wire.TCPSyn | wire.TCPAck, newISS: true, ack: s.seq + 1}
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
			return outcome{state: SynReceived, flags: wire.TCPSyn | wire.TCPAck, seq: 0, ack: s.seq + 1}
		}
		o := outcome{state: Established, read: s.text}
		next := s.seq + 1 + s.text
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
			return outcome{state: SynReceived, flags: wire.TCPSyn | wire.TCPAck, seq: 0, ack: 1}
		}
		if !q.passive {
			syn, segLen, s.seq = false, segLen-1, 1
		}
	}

	inWindow := func(n int) bool { return q.rcvNxt <= n && n < q.rcvNxt+q.rcvWnd }
	// Second, for it comes first here: RFC 5961 looks at SEG.SEQ alone.
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
		if cut > s.text {
			fin = false
		}
		s.text = max(0, s.text-cut)
		ackDue = true
	}
	if right := q.rcvNxt + q.rcvWnd; s.seq+s.text > right {
		s.text, fin, ackDue = right-s.seq, false, true
	} else if fin && s.seq+s.text == right {
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
	o := same
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
			return out(o, q.rcvNxt)
		case q.state == LastAck:
			o.state = Closed
			return o
		}
	}
	// Seventh and eighth.
	next := q.rcvNxt
	switch o.state {
	case Established, FinWait1, FinWait2:
		if s.text > 0 {
			ackDue = true
			if s.seq == q.rcvNxt {
				o.read = s.text
				next += s.text
			}
		}
		if fin && s.seq == q.rcvNxt {
			ackDue = true
			next++
			o.state = map[State]State{Established: CloseWait, FinWait1: Closing, FinWait2: TimeWait}[o.state]
		}
	case TimeWait:
		if segLen > 0 { // acknowledge it, and restart the 2 MSL timeout
			ackDue = true
		}
	}
	return out(o, next)
}

func TestEverySegmentInEveryState(t *testing.T) {
	cases := 0
	for _, q := range situations {
		t.Run(q.name, func(t *testing.T) {
			seqs := []int{q.rcvNxt - 1000, q.rcvNxt - 5, q.rcvNxt - 1, q.rcvNxt, q.rcvNxt + 1, q.rcvNxt + 500,
				q.rcvNxt + q.rcvWnd - 1, q.rcvNxt + q.rcvWnd, q.rcvNxt + q.rcvWnd + 100}
			acks := []int{q.una - maxWindow - 1, q.una - 1, q.una, q.una + 1, q.una + 5, q.nxt, q.nxt + 1, q.nxt + 100000}
			for flags := range wire.TCPFlags(64) {
				for _, n := range seqs {
					for _, a := range acks {
						if flags&wire.TCPAck == 0 && a != acks[0] {
							continue
						}
						for _, text := range []int{0, 1, 20} {
							cases++
							checkCase(t, q, incoming{flags, n, a, text})
							if t.Failed() {
								return
							}
						}
					}
				}
			}
		})
	}
	t.Logf("%d segments", cases)
}

func checkCase(t *testing.T, q situation, s incoming) {
	t.Helper()
	r := &runner{t: t, now: Time(1e9), frames: map[uint64]bool{}, src: fmt.Sprintf("%v %d:%d ack %d", s.flags, s.seq, s.text, s.ack)}
	cfg := noOptions
	cfg.Secret = testSecret
	r.tab = NewTable(cfg)
	r.id = makeTuple(AddrPort{Addr: hostA, Port: localPort}, AddrPort{Addr: hostB, Port: peerPort})
	if q.rcvWnd == 0 && q.state == Established {
		r.opts.ReceiveBuffer = 2048
	}
	for _, l := range splitLines(q.script) {
		r.run(l)
	}
	before := r.gotten
	if r.c != nil && q.rcvWnd > 0 {
		before = r.c.Buffered()
	}
	b := r.build(s)
	r.process(b)
	r.drain()

	want := oracle(q, s)
	r.checkState(want.state)
	if want.flags == 0 {
		if len(r.out) > 0 {
			r.fatalf("sent %s, want nothing", r.describe(r.out[0]))
		}
	} else {
		if len(r.out) != 1 {
			r.fatalf("%d segments sent, want %+v", len(r.out), want)
		}
		got := wire.TCP(r.out[0])
		wantSeq := r.iss + uint32(want.seq)
		if want.absSeq0 {
			wantSeq = 0
		}
		if got.Flags()&^wire.TCPPsh != want.flags || !want.newISS && got.Seq() != wantSeq ||
			want.flags&wire.TCPAck != 0 && got.Ack() != peerISN+uint32(want.ack) {
			r.fatalf("sent %s, want %+v", r.describe(r.out[0]), want)
		}
	}
	if r.c != nil && q.rcvWnd > 0 {
		if got := r.c.Buffered() - before; got != want.read {
			r.fatalf("%d bytes to read, want %d", got, want.read)
		}
	}
}

// checkState compares with the state of the pair, or of the listener.
func (r *runner) checkState(want State) {
	got := Closed
	switch c := r.tab.conns[r.id]; {
	case c != nil:
		got = c.state
	case r.tab.waits.records[r.id] != nil:
		got = TimeWait
	case r.l != nil:
		got = Listen
	}
	if got != want {
		r.fatalf("state %v, want %v", got, want)
	}
}

// build makes the segment with the numbers of this run.
func (r *runner) build(s incoming) []byte {
	f := wire.TCPFields{SrcPort: peerPort, DstPort: localPort, Flags: s.flags, Window: maxWindow,
		Seq: peerISN + uint32(s.seq), Ack: r.iss + uint32(s.ack), Urgent: 3}
	b := make([]byte, 20+s.text)
	for i := range s.text {
		b[20+i] = pattern(1, s.seq+i-1)
	}
	wire.PutTCP(b, &f, 20, wire.Sum(b[20:], wire.PseudoHeader4(hostB, hostA, wire.ProtocolTCP, uint16(len(b)))))
	return b
}
