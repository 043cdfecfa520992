package tcp

import (
	"math/bits"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// Memory is the owner of the memory of a received segment.
type Memory uint8

const (
	MemoryBorrowed Memory = iota // the caller may overwrite it when Process has returned
	MemoryFrame                  // Process may keep Inbound.Frame, see [Result]
	MemoryHeap                   // memory of the Go heap that is not written again: the table may refer to it
)

// Inbound is one IP payload for [Table.Process].
type Inbound struct {
	Src, Dst wire.Addr // of the IP header
	Data     []byte    // the whole segment, TCP header included
	Frame    uint64    // handle for the memory of Data
	Memory   Memory
	ECN      uint8 // the ECN field of the IP header, two bits (RFC 3168)
	// Reassembled: Data was in fragments, so its checksum is complete.
	Reassembled bool
	// NoChecksum: Data has passed no wire, so its checksum is not demanded ([Conn.EmitLong]).
	NoChecksum bool
	// Complete: a checksum of the pseudo-header only is not accepted, whatever [Config.PartialChecksums] says.
	Complete bool
}

// Result is what the caller of Process has to do.
type Result struct {
	// Kept: the table owns the frame until it calls Config.ReturnFrame.
	Kept bool
	// Reply: there is an answer to the sender, which [Table.EmitReply] writes. It is lost
	// at the next call of Process.
	Reply bool
	// Opening is not nil if the segment is a SYN to a listener: the connection in
	// SYN-RECEIVED that the SYN has made or repeats. The driver may emit the SYN,ACK at
	// once to the source MAC address of the SYN, without address resolution.
	Opening *Conn
}

// segment is a received segment. Flags, Payload and Window change while it is processed.
type segment struct {
	wire.TCP
	id       tuple
	seq, ack seq.Number
	frame    uint64
	memory   Memory
	ecn      uint8
	placed   bool            // the data has been copied to the reader's buffer already
	trimmed  bool            // trim has cut off a part outside the window
	echo     bool            // its timestamp is to be echoed, if its acknowledgment is valid
	options  wire.TCPOptions // see readOptions
}

func (s *segment) has(f wire.TCPFlags) bool { return s.Flags&f != 0 }

// length is SEG.LEN.
func (s *segment) length() uint32 {
	n := uint32(len(s.Payload))
	if s.has(wire.TCPSyn) {
		n++
	}
	if s.has(wire.TCPFin) {
		n++
	}
	return n
}

// end is the sequence number after the last that the segment occupies.
func (s *segment) end() seq.Number { return s.seq.Add(s.length()) }

// Process passes one IP payload to its connection or listener.
func (t *Table) Process(now Time, in *Inbound) Result {
	t.counts[SegmentsReceived]++
	t.kept, t.reply.pending = false, false
	s := &t.segment
	if s.Parse(in.Data) != nil {
		t.counts[BadLength]++
		return Result{}
	}
	s.id.local, s.id.remote, s.id.ports = in.Dst, in.Src, uint64(s.SrcPort)<<16|uint64(s.DstPort)
	c := t.last
	if c == nil || !c.id.is(&s.id) {
		if c = t.conns[s.id]; c != nil {
			t.last = c
		}
	}
	if c == nil && (!in.Src.IsHost() || !in.Dst.IsHost() || s.SrcPort == 0 || s.DstPort == 0 || s.id.toItself()) {
		t.counts[BadAddress]++ // not checked for a connection: it has valid addresses
		return Result{}
	}

	s.seq, s.ack = seq.New(s.Seq), seq.New(s.Ack)
	s.frame, s.memory, s.ecn = in.Frame, in.Memory, in.ECN
	s.placed, s.trimmed, s.echo = false, false, false
	expected := c != nil && (c.sums != unknownSums || in.NoChecksum) && c.expects(s) && !t.cfg.noPrediction
	partial := t.cfg.PartialChecksums && s.AcceptPartial(in.Src, in.Dst) && !in.Reassembled && !in.Complete
	switch {
	case in.NoChecksum:
	case partial && (c == nil || c.sums != completeSums): // the data is not read
	case expected && len(s.Payload) > 0 && len(s.Payload) <= len(c.post)-c.posted && c.recv.head == nil:
		// The data is copied to the reader's buffer while its checksum is computed. If that is
		// wrong, posted stays and the copy is overwritten later.
		sum := wire.PseudoHeader(in.Src, in.Dst, wire.ProtocolTCP, uint16(len(s.Segment)))
		sum = wire.Sum(s.Segment[:len(s.Segment)-len(s.Payload)], sum)
		if wire.Fold(wire.SumCopy(c.post[c.posted:], s.Payload, sum)) != 0xffff && !(partial && c.takesPartial()) {
			t.counts[BadChecksum]++
			return Result{}
		}
		s.placed = true
	case s.Checksum(in.Src, in.Dst) != wire.ChecksumGood && !(partial && c.takesPartial()):
		t.counts[BadChecksum]++
		return Result{}
	}
	if c != nil && c.quiet {
		c.change()
	}
	if expected {
		c.stat.segmentsIn++
		c.inOrder(now, s)
		return Result{Kept: t.kept}
	}
	s.options.SACKBlocks = 0
	if !s.Timestamps && len(s.Options) > 0 || s.has(wire.TCPSyn) {
		t.readOptions(s)
	}

	if c == nil {
		t.opening = nil
		t.noConnection(now, s)
		return Result{t.kept, t.reply.pending, t.opening}
	}
	c.stat.segmentsIn++
	c.process(now, s)
	if c.sums == unknownSums && c.state.synchronized() && !in.NoChecksum {
		c.sums = completeSums
		if partial {
			c.sums = partialSums
		}
	}
	c.update(now)
	r := Result{Kept: t.kept, Reply: t.reply.pending}
	if c.state == SynReceived && c.passive && s.has(wire.TCPSyn) {
		r.Opening = c
	}
	return r
}

// peerSums is the kind of checksums that the peer of a connection sends. The first segment
// in a synchronized state that has a checksum decides. It matters on a virtual link only, see
// docs/tcp-engine.md.
type peerSums uint8

const (
	unknownSums  peerSums = iota
	completeSums          // all so far
	partialSums           // some or all
)

// partialSpan is how many received segments of the table a call of takesPartial counts for.
const partialSpan = 1 << 14

// takesPartial reports whether to accept a segment that is valid only as a partial checksum,
// from a peer that has sent complete ones. Either it is damaged, or GRO has merged it. Damage
// with this checksum is rare, merged segments are frequent. So the segment is accepted if
// there was another such segment, on any connection, in the last partialSpan segments; from
// then on its connection may have partial checksums. Otherwise it is dropped, and the peer
// sends its data again.
func (c *Conn) takesPartial() bool {
	t := c.table
	n := t.counts[SegmentsReceived]
	again := t.partialAt != 0 && n-t.partialAt <= partialSpan
	t.partialAt = n
	if again {
		c.sums = partialSums
	}
	return again
}

// readOptions reads the options of a SYN, and of a segment with other options than aligned
// timestamps.
func (t *Table) readOptions(s *segment) {
	if !s.ReadOptions(&s.options) {
		t.counts[BadOptions]++
	}
	s.Timestamps, s.TSVal, s.TSEcr = s.options.HasTimestamps, s.options.TSVal, s.options.TSEcr
}

// process passes a segment to the function of the connection's state. A connection in the
// table is never in CLOSED, LISTEN or TIME-WAIT: for these see closed, listener.go and
// timewait.go.
func (c *Conn) process(now Time, s *segment) {
	switch c.state {
	case SynSent:
		c.synSent(now, s)
	case SynReceived:
		c.synReceived(now, s)
	case Closed, Listen, TimeWait:
		panic("BUG: tcp: a segment for a connection in " + c.state.String())
	default:
		c.synchronized(now, s)
	}
}

// noConnection passes a segment to the record of a connection in TIME-WAIT, to a
// listener, or to CLOSED.
func (t *Table) noConnection(now Time, s *segment) {
	newer := func(n seq.Number) seq.Number { return n }
	if w := t.waits.records[s.id]; w != nil {
		if !t.timeWait(now, w, s) {
			return
		}
		newer = w.newer
	}
	if l := t.listenerFor(s.id); l != nil {
		l.listen(now, s, newer)
		return
	}
	t.closed(s)
}

// closed is the state CLOSED (RFC 9293, section 3.10.7.1).
func (t *Table) closed(s *segment) {
	t.counts[NoConnection]++
	t.refuse(s)
}

// refuse answers a segment with a RST that its sender accepts (RFC 9293, section 3.10.7.1).
func (t *Table) refuse(s *segment) {
	switch {
	case s.has(wire.TCPRst):
		return
	case s.has(wire.TCPAck):
		t.answer(s, wire.TCPRst, s.ack, seq.Number{}, 0)
	default:
		t.answer(s, wire.TCPRst|wire.TCPAck, seq.Number{}, s.end(), 0)
	}
	t.counts[ResetsSent]++
}

// reply is a segment to send that belongs to no connection.
type reply struct {
	pending bool
	id      tuple
	fields  wire.TCPFields
	options wire.TCPOptions
}

// answer makes the reply to the sender of s.
func (t *Table) answer(s *segment, flags wire.TCPFlags, number, ack seq.Number, window uint16) {
	r := &t.reply
	r.pending = true
	r.id = s.id
	r.fields = wire.TCPFields{
		SrcPort: s.id.localPort(), DstPort: s.id.remotePort(),
		Seq: number.Uint32(), Ack: ack.Uint32(), Flags: flags, Window: window,
	}
	r.options = wire.TCPOptions{}
}

// EmitReply writes the answer of [Result].Reply, with its checksum, to the start of b and
// returns its length: at most [wire.MaxTCPHeaderLen] bytes; 0 if there is none. The answer
// goes from Inbound.Dst to Inbound.Src.
func (t *Table) EmitReply(b []byte) int {
	r := &t.reply
	if !r.pending {
		return 0
	}
	r.pending = false
	n, sum := wire.PutTCPOptions(b[wire.TCPHeaderLen:wire.MaxTCPHeaderLen], &r.options)
	n += wire.TCPHeaderLen
	pseudo := wire.PseudoHeader(r.id.local, r.id.remote, wire.ProtocolTCP, uint16(n))
	wire.PutTCP(b, &r.fields, n, addSums(sum, pseudo))
	t.counts[SegmentsSent]++
	return n
}

// addSums adds two unfolded checksums.
func addSums(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	return sum + carry
}
