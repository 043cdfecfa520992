package tcp

import (
	"fmt"
	"strings"
	"testing"

	"github.com/unet-go/unet/wire"
)

// TestEverySegmentInEveryState sends segments of every flag combination, with
// numbers left of, at, in and right of the windows, with and without text, into
// every state, and holds what is sent, what can be read, and the state against the
// oracle. What is not as it should be must be in a counter.
func TestEverySegmentInEveryState(t *testing.T) {
	for _, m := range []struct {
		name    string
		passive bool // the connection began in a listener, which is closed
		stamp   stamp
	}{
		{"active", false, noneAgreed},
		{"passive", true, noneAgreed},
		{"good timestamp", false, goodStamp},
		{"old timestamp", true, oldStamp},
		{"no timestamp", false, noStamp},
	} {
		t.Run(m.name, func(t *testing.T) {
			for _, q := range situations {
				passive := strings.Replace(q.script, "dial\nestablished", "listen\nestablished\nunlisten", 1)
				switch {
				case m.passive && m.stamp == noneAgreed && passive == q.script:
					continue // the same as active
				case m.stamp != noneAgreed && q.state < SynReceived:
					continue // none are agreed on
				case m.passive:
					q.script = passive
				}
				acks := []int{q.una, q.nxt, q.nxt + 1}
				if m.name == "active" {
					acks = []int{q.una - maxWindow - 1, q.una - 1, q.una, q.una + 1, q.una + 5, q.nxt, q.nxt + 1, q.nxt + 100000}
				}
				t.Run(q.name, func(t *testing.T) { everySegment(t, q, m.stamp, acks) })
			}
		})
	}
}

func everySegment(t *testing.T, q situation, stamp stamp, acks []int) {
	seqs := []int{q.rcvNxt - 1000, q.rcvNxt - 5, q.rcvNxt - 1, q.rcvNxt, q.rcvNxt + 1, q.rcvNxt + 500,
		q.rcvNxt + q.rcvWnd - 1, q.rcvNxt + q.rcvWnd, q.rcvNxt + q.rcvWnd + 100}
	cfg := noOptions
	cfg.NoTimestamps = stamp == noneAgreed
	for flags := range wire.TCPFlags(64) {
		for _, n := range seqs {
			for _, a := range acks {
				if flags&wire.TCPAck == 0 && a != acks[0] {
					continue
				}
				for _, text := range []int{0, 1, 20} {
					if stamp != noneAgreed && text == 1 {
						continue
					}
					s := incoming{flags, n, a, text, stamp}
					if text == 1 {
						s.flags |= wire.TCPEce | wire.TCPCwr // which mean nothing
					}
					r := atSituation(t, q, cfg, stamp != noneAgreed)
					r.src = fmt.Sprintf("%v %d:%d ack %d", s.flags, n, text, a)
					r.checkCase(q, s, r.build(s, nil))
				}
			}
		}
	}
}

// atSituation leads an engine there. A peer that is stamped offers timestamps, and
// nobody offers anything else.
func atSituation(t *testing.T, q situation, cfg Config, stamped bool) *runner {
	cfg.Secret = testSecret
	r := &runner{t: t, now: Time(1e9), frames: map[uint64]bool{}, stamped: stamped, src: q.name, tab: NewTable(cfg),
		id: makeTuple(AddrPort{Addr: hostA, Port: localPort}, AddrPort{Addr: hostB, Port: peerPort})}
	if q.rcvWnd == 0 && q.state == Established {
		r.opts.ReceiveBuffer = 2048
	}
	for _, l := range splitLines(q.script) {
		r.run(l)
	}
	return r
}

// oddities is how many times a counter has told of something that is not as it
// should be, other than what was answered.
func (t *Table) oddities() (n uint64) {
	for c := BadLength; c <= NoMemory; c++ {
		switch c {
		case BadOptions, ResetsSent, ChallengeAcks, AcksLimited, DuplicateAcks, UrgentPointers:
		default:
			n += t.counts[c]
		}
	}
	return n
}

// checkCase sends b, which is s in bytes, and compares with the oracle.
func (r *runner) checkCase(q situation, s incoming, b []byte) {
	r.t.Helper()
	before := r.gotten
	if r.c != nil && q.rcvWnd > 0 {
		before = r.c.Buffered()
	}
	odd := r.tab.oddities()
	r.process(b)
	r.drain()

	want := oracle(q, s)
	if want.odd && r.tab.oddities() == odd {
		r.fatalf("no counter tells of it")
	}
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
	case r.l != nil && !r.l.closed:
		got = Listen
	}
	if got != want {
		r.fatalf("state %v, want %v", got, want)
	}
}

// build makes the segment with the numbers of this run, and these options or
// those that its stamp stands for.
func (r *runner) build(s incoming, options []byte) []byte {
	f := wire.TCPFields{SrcPort: peerPort, DstPort: localPort, Flags: s.flags, Window: maxWindow,
		Seq: peerISN + uint32(s.seq), Ack: r.iss + uint32(s.ack), Urgent: 3}
	if s.stamp == goodStamp || s.stamp == oldStamp {
		options = make([]byte, wire.TCPTimestampsLen)
		wire.PutTCPTimestamps(options, map[stamp]uint32{goodStamp: 501, oldStamp: 499}[s.stamp], 0)
	}
	n := 20 + len(options)
	b := make([]byte, n+s.text)
	copy(b[20:], options)
	for i := range s.text {
		b[n+i] = pattern(1, s.seq+i-1)
	}
	wire.PutTCP(b, &f, n, wire.Sum(b[20:], wire.PseudoHeader4(hostB, hostA, wire.ProtocolTCP, uint16(len(b)))))
	return b
}
