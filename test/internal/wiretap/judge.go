//go:build linux

package wiretap

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/unet-go/unet/proto/tcp/seq"
)

// Judge compares our segments with what the kernel has sent, in the order of the
// capture: the kernel's segments are captured before we receive them, ours when the
// kernel receives them. So everything on which ours may depend has been captured.
type Judge struct {
	ours  []netip.Addr
	flows map[[2]netip.AddrPort]*flow

	segments, kernels    int // ours and the kernel's
	again, againBytes    int // segments of ours with bytes that had been sent, and those bytes
	Probes               int // of ours, of windows that are closed
	KernelProbes         int // the kernel's
	Resets, KernelResets int
	merged               int
	Crossed              int // SYNs of both sides
	Longest              int // bytes of data in a segment of ours
	Datagrams            int // of UDP, of ours

	// Violations. A gap is none if the cable has lost something.
	violations, gaps         []string
	violationCount, gapCount int
}

// flow is a connection; side is the state of one of its ends, by its segments.
type flow struct{ ours, kernel side }

type side struct {
	begun      bool
	alone      bool       // its SYN had no ACK
	first      seq.Number // its SYN
	next       seq.Number // after all it has sent
	acked      seq.Number // the last it has acknowledged
	acks       bool
	edge       seq.Number // of the window that it has offered
	closed     bool       // the last window was 0
	finished   bool
	end        seq.Number // after its FIN
	mss, scale int
	sack       bool
	timestamps bool
	ecn        bool
	tsVal      uint32
}

func newJudge(ours []netip.Addr) *Judge {
	return &Judge{ours: ours, flows: make(map[[2]netip.AddrPort]*flow)}
}

const maxViolations = 10 // that are kept

func (j *Judge) take(s *segment) {
	mine := slices.Contains(j.ours, s.src.Addr()) || !s.udp && !slices.Contains(j.ours, s.dst.Addr()) // one without addresses is malformed
	switch {
	case mine && s.udp:
		j.Datagrams++
	case s.udp:
	case mine:
		j.segments++
		j.Longest = max(j.Longest, s.text)
	default:
		j.kernels++
	}
	violation := func(format string, args ...any) {
		if !mine {
			return
		}
		if j.violationCount++; len(j.violations) < maxViolations {
			j.violations = append(j.violations, fmt.Sprintf("%v: %s", s, fmt.Sprintf(format, args...)))
		}
	}
	for _, f := range s.violations {
		violation("%s", f)
	}
	if s.udp || !s.src.IsValid() {
		return
	}
	id := [2]netip.AddrPort{s.src, s.dst}
	if !mine {
		id = [2]netip.AddrPort{s.dst, s.src}
	}
	f := j.flows[id]
	from := func() (me, peer *side) {
		if mine {
			return &f.ours, &f.kernel
		}
		return &f.kernel, &f.ours
	}
	if f != nil && s.syn && !s.ack_ {
		if me, _ := from(); me.begun && me.first != seq.New(s.seq) {
			f = nil // a new connection of the same ports
		}
	}
	if f == nil {
		f = new(flow)
		j.flows[id] = f
	}
	me, peer := from()
	if s.rst {
		if mine {
			j.Resets++
		} else {
			j.KernelResets++
		}
	}
	if s.syn {
		me.begin(s)
	}
	if !me.begun {
		if !s.rst {
			violation("a segment of no connection")
		}
		return
	}
	if mine {
		j.judge(s, me, peer, violation)
	} else if peer.closed && s.text == 0 && !s.rst && seq.New(s.seq).Before(me.next) {
		j.KernelProbes++ // with an old number, as Linux does
	}
	me.note(s, peer)
}

func (d *side) begin(s *segment) {
	if d.begun && d.first == seq.New(s.seq) {
		return // again
	}
	*d = side{begun: true, alone: !s.ack_, first: seq.New(s.seq), next: seq.New(s.seq), mss: 536, scale: s.scale, sack: s.sackPermitted, timestamps: s.timestamps, tsVal: s.tsVal, ecn: s.ece && s.cwr != s.ack_}
	if s.mss != 0 {
		d.mss = s.mss
	}
}

// note updates a side by its segment.
func (d *side) note(s *segment, peer *side) {
	if end := seq.New(s.seq).Add(s.length()); end.After(d.next) {
		d.next = end
	}
	if s.fin {
		d.finished, d.end = true, seq.New(s.seq).Add(s.length())
	}
	if s.timestamps {
		d.tsVal = s.tsVal
	}
	if !s.ack_ || s.rst {
		return
	}
	ack := seq.New(s.ack)
	if !d.acks || ack.AtOrAfter(d.acked) {
		if edge := ack.Add(d.window(s, peer)); !d.acks || edge.After(d.edge) {
			d.edge = edge
		}
		d.acked, d.acks = ack, true
		d.closed = s.window == 0
	}
}

// window is the window that a segment of d offers, in bytes.
func (d *side) window(s *segment, peer *side) uint32 {
	if s.syn || d.scale < 0 || peer.begun && peer.scale < 0 {
		return uint32(s.window)
	}
	return uint32(s.window) << d.scale
}

// judge objects to a segment of ours.
func (j *Judge) judge(s *segment, me, peer *side, violation func(string, ...any)) {
	first := seq.New(s.seq)
	end := first.Add(s.length())
	if s.merged {
		j.merged++
	}
	if s.text > 0 && peer.acks {
		switch dataEnd := first.Add(uint32(s.text)); {
		case !dataEnd.After(peer.edge):
		case s.text == 1 && peer.closed && first == peer.edge:
			j.Probes++
		default:
			violation("%d bytes beyond the window that was offered", dataEnd.From(peer.edge))
		}
		if options := s.header - 20; !s.merged && s.text+options > peer.mss {
			violation("more than the MSS of %d bytes (RFC 6691)", peer.mss)
		}
	}
	if first.After(me.next) && !s.rst {
		if j.gapCount++; len(j.gaps) < maxViolations {
			j.gaps = append(j.gaps, fmt.Sprintf("%v: %d bytes before it are missing", s, first.From(me.next)))
		}
	}
	if s.text > 0 && first.Before(me.next) {
		j.again++
		j.againBytes += int(min(uint32(s.text), me.next.From(first)))
	}
	if me.finished && end.After(me.end) {
		violation("something after the FIN")
	}
	if s.rst {
		return
	}
	if s.ack_ {
		ack := seq.New(s.ack)
		switch {
		case ack.After(peer.next):
			violation("acknowledges %d bytes that were never sent", ack.From(peer.next))
		case me.acks && ack.Before(me.acked):
			violation("takes back an acknowledgment of %d bytes", me.acked.From(ack))
		case me.acks && ack.Add(me.window(s, peer)).Before(me.edge) && !s.syn:
			violation("takes back %d bytes of the window", me.edge.From(ack.Add(me.window(s, peer))))
		}
	}
	switch {
	case s.syn && !s.ack_ && s.ece != s.cwr, s.syn && s.ack_ && (s.cwr || s.ece && !peer.ecn),
		!s.syn && (s.ece || s.cwr || s.ect) && !(me.ecn && peer.ecn):
		violation("ECN that was not asked for")
	case s.ect && (s.text == 0 || first.Before(me.next)):
		violation("it must not be marked")
	}
	if s.syn && s.ack_ && me.alone { // it answers a SYN that crossed ours
		j.Crossed++
		me.alone = false
	}
	switch both := me.timestamps && peer.timestamps && peer.begun; {
	case s.syn:
		if s.ack_ && (s.timestamps && !peer.timestamps || s.sackPermitted && !peer.sack || s.scale >= 0 && peer.scale < 0) {
			violation("an option that was not offered")
		}
	case s.timestamps != both:
		violation("timestamps: %t, agreed on: %t", s.timestamps, both)
	case s.timestamps && int32(s.tsVal-me.tsVal) < 0:
		violation("a timestamp that goes back")
	case s.sackBlocks > 0 && !(me.sack && peer.sack):
		violation("SACK blocks without an agreement")
	}
}

// String summarizes what was captured. It is the same for both decoders.
func (j *Judge) String() string {
	return fmt.Sprintf("%d segments of ours on %d connections (%d of the kernel's); %d sent again (%d bytes), %d probes (%d of the kernel's), %d RSTs (%d of the kernel's), %d merged by GRO, %d datagrams of ours",
		j.segments, len(j.flows), j.kernels, j.again, j.againBytes, j.Probes, j.KernelProbes, j.Resets, j.KernelResets, j.merged, j.Datagrams)
}
