package tcp

import (
	"math"

	"github.com/unet-go/unet/wire"
)

// action is the kind of segment that a connection sends next.
type action uint8

const (
	nothing action = iota
	sendReset
	sendSyn
	sendData  // data, a FIN, or both
	sendAgain // the same, a retransmission of the first lost span
	sendTail  // the same, the last segment again as a loss probe
	sendWindowProbe
	sendAck
	sendKeepAlive
)

// plan is what a connection sends next.
type plan struct {
	action action
	fin    bool // after the data
	corked bool // there is data, but it waits for more
	long   bool // EmitLong writes it
	data   int  // bytes
}

// makePlan is the only place that decides what is sent next, and whether it may be sent
// now.
func (c *Conn) makePlan() plan {
	switch c.state {
	case Closed, TimeWait:
		if c.resetQueued {
			return plan{action: sendReset}
		}
		return plan{}
	case SynSent, SynReceived:
		if c.sndNxt == c.iss {
			return plan{action: sendSyn}
		}
	case FinWait2: // all is acknowledged, including our FIN
	default:
		if c.board.lost > 0 && c.forward != secondAck { // first lost data
			if p := c.planAgain(); p.action != nothing {
				return p
			}
			break
		}
		if c.send.cursor == nil && !c.finQueued || c.paced {
			break // all has been sent, or new data waits for paceAt
		}
		if p := c.planData(); p.data > 0 || p.fin { // then new data
			p.action = sendData
			return p
		} else if c.windowProbeDue {
			return plan{action: sendWindowProbe}
		} else if p.corked {
			if c.ackNow {
				p.action = sendAck
			}
			return p
		}
	}
	switch {
	case c.ackNow:
		return plan{action: sendAck}
	case c.tailDue: // a loss probe
		return c.planTail()
	case c.keepaliveDue:
		return plan{action: sendKeepAlive}
	}
	return plan{}
}

// planData plans how much new data may be sent now (RFC 9293, section 3.8.6.2.1).
func (c *Conn) planData() plan {
	inFlight := int(c.sndNxt.From(c.sndUna))
	unsent := c.send.bytes - inFlight // -1 after the FIN
	finDue := c.finQueued && unsent >= 0
	if unsent <= 0 && !finDue {
		return plan{}
	}
	if c.path.mtuProbe != 0 && !c.path.mtuProbeInFlight(c.mss) {
		if p, wait := c.planMTUProbe(unsent, inFlight); p.data > 0 || wait {
			return p
		}
	}
	window := min(int(c.sndWnd)-inFlight, c.window-c.pipe())
	n := max(0, min(unsent, c.mss, window))
	p := plan{data: n, fin: finDue && n == unsent && window > n}
	switch {
	case n == 0: // a FIN alone, or nothing
	case n == c.mss, c.sndNxt != c.sndMax, c.windowProbeDue:
	case n == unsent:
		// All data that is queued, and less than a segment.
		switch {
		case c.finQueued, inFlight == 0:
		case c.opts.Nagle:
			return plan{}
		case c.opts.Cork > 0 && !c.flushed:
			return plan{corked: true}
		}
	case n < int(c.maxSndWnd/2):
		return plan{} // silly window avoidance
	}
	return p
}

// update is called after each change of what is to be sent, or when: it adds the connection
// to the list of those that are ready or removes it, and arms the timers.
func (c *Conn) update(now Time) {
	if c.state == Closed || c.state == TimeWait {
		return // finish has done this
	}
	p := c.makePlan()
	c.next.action, c.next.fin, c.next.corked, c.next.data = p.action, p.fin, p.corked, p.data
	if !p.corked {
		c.corkAt = Never
	} else if c.corkAt == Never {
		c.corkAt = now.add(c.opts.Cork)
	}
	c.setReady(p.action != nothing)
	if p.action == nothing && c.sndUna == c.sndMax && c.state != FinWait2 && c.state >= Established {
		if c.paced {
			// The pacing timer will send it.
		} else if c.send.bytes > 0 || c.finQueued && !c.finAcked {
			c.startPersist(now)
		} else if c.persisting {
			c.stopPersist(now)
		}
	}
	if c.table.timers.Advance(&c.timer, c.earliestTimer()) {
		c.table.setDeadline()
	}
}

// Emit writes the next segment, with its checksum, to the start of b and returns its length;
// 0 if there is none. If b is short, the segment has less data; b must have at least 100
// bytes. After its last segment the connection is not ready any more.
func (c *Conn) Emit(now Time, b []byte) int {
	// Fields are copied one by one, here and below: a copy of the struct would read with
	// wide loads what narrow stores have just written, which stalls the processor (no store
	// forwarding).
	if c.next.action == nothing {
		return 0
	}
	t := c.table
	var h header
	h.fields.SrcPort, h.fields.DstPort = c.id.localPort(), c.id.remotePort()
	h.fields.Seq, h.fields.Ack = c.sndMax.Uint32(), c.rcvNxt.Uint32()
	h.fields.Flags = wire.TCPAck | c.echo
	c.ECT = false
	n, fin := c.next.data, c.next.fin
	if c.next.action == sendSyn {
		c.emitSyn(now, &h, b)
	} else {
		h.len = wire.TCPHeaderLen
		if c.timestamps { // a RST has them too: RFC 7323, section 3.2
			h.len += wire.TCPTimestampsLen
		}
		full := c.mss + h.len
		if c.next.long {
			full = max(full, n+h.len)
		}
		if c.sack && (len(c.outOfOrder.runs) > 0 || c.dsack != (wire.SACKBlock{})) {
			c.putSACK(now, &h, b)
		} else if c.timestamps {
			h.sum = wire.PutTCPTimestamps(b[wire.TCPHeaderLen:], c.timestamp(now), c.tsRecent)
		}
		// SACK blocks, or a short frame, leave less room for data.
		if room := min(len(b), full) - h.len; n > room {
			if n > c.mss && !c.next.long {
				room = c.mtuProbeRoom(now, &h, b, room)
			}
			n, fin = room, false
		}
		if c.next.action != sendReset {
			h.fields.Window = c.windowField()
		}
	}
	switch c.next.action {
	case sendReset: // the end of the connection
		h.fields.Flags = wire.TCPRst | wire.TCPAck
		c.resetQueued = false
		c.next = plan{}
		t.counts[ResetsSent]++
		c.setReady(false)
	case sendData:
		c.emitData(now, &h, b, n, fin)
	case sendAgain:
		c.emitAgain(now, &h, b, n, fin)
	case sendTail:
		c.emitTail(now, &h, b, n)
	case sendWindowProbe:
		n = c.emitWindowProbe(&h, b)
	case sendKeepAlive:
		c.keepaliveDue = false
		t.counts[KeepAlives]++
		h.fields.Seq = c.sndUna.Back(1).Uint32()
	}
	if c.ackPending > 0 {
		c.ackPending = 0
		c.ackWaited += (min(now-c.pendingAt, mostAckDelay) - c.ackWaited) / 8
	}
	c.ackNow, c.ackAt = false, Never
	c.lastAckSent = c.rcvNxt
	n += h.len
	h.fields.Length = uint16(n)
	wire.PutTCP(b, &h.fields, h.len, addSums(h.sum, c.pseudo))
	t.counts[SegmentsSent]++
	c.stat.segmentsOut++
	if c.quiet {
		c.change()
	}
	c.update(now)
	return n
}

// LongLen is an upper bound of the length in bytes of what EmitLong writes next.
func (c *Conn) LongLen() int {
	if c.next.action != sendData || c.next.data < c.mss || c.next.fin || c.sndNxt != c.sndMax {
		return c.MaxLen
	}
	inFlight := int(c.sndNxt.From(c.sndUna))
	unsent := c.send.bytes - inFlight
	n := min(unsent, int(c.sndWnd)-inFlight, c.window-c.pipe())
	if n < unsent || c.opts.Nagle || c.opts.Cork > 0 && !c.flushed { // the rest is not sent yet
		n -= n % c.mss
	}
	return wire.MaxTCPHeaderLen + max(n, c.mss)
}

// EmitLong is Emit for a link through memory, whose end reads the segment with [Inbound.NoChecksum]: the checksum leaves
// out the data. A segment may have all data that could be sent now in several, as far as b has room, and so more
// than the MSS. Only new data is sent so: what is sent again fits every MTU. An MTU probe is not sent so: it would prove nothing.
func (c *Conn) EmitLong(now Time, b []byte) int {
	if n := min(c.LongLen(), len(b), math.MaxUint16) - wire.MaxTCPHeaderLen; n > c.next.data || c.next.action == sendData && c.next.data > c.mss {
		c.next.data = n
	}
	c.next.long = true
	n := c.Emit(now, b)
	c.next.long = false
	return n
}

// header is the header that is being written: its fields, its length so far in bytes, and
// the unfolded sum of options and data.
type header struct {
	fields wire.TCPFields
	len    int
	sum    uint64
}

// putSACK writes the options of a segment that reports data out of order, or received
// twice.
func (c *Conn) putSACK(now Time, h *header, b []byte) {
	limit := min(wire.MaxSACKBlocks, c.mss/16) // a tiny segment must have room for data too
	if c.timestamps {
		limit = min(limit, wire.MaxSACKBlocks-1)
	}
	o := wire.TCPOptions{HasTimestamps: c.timestamps, TSVal: c.timestamp(now), TSEcr: c.tsRecent}
	if c.dsack != (wire.SACKBlock{}) && limit > 0 {
		o.SACK[0], o.SACKBlocks = c.dsack, 1
		c.dsack = wire.SACKBlock{}
	}
	c.outOfOrder.sackBlocks(&o, limit)
	n, sum := wire.PutTCPOptions(b[wire.TCPHeaderLen:wire.MaxTCPHeaderLen], &o)
	h.len, h.sum = wire.TCPHeaderLen+n, sum
}

// timestamp is the TSval of a segment that is sent now.
func (c *Conn) timestamp(now Time) uint32 { return now.milliseconds() + c.tsOffset }

// emitSyn writes our SYN, with an ACK if the peer's SYN has been received.
func (c *Conn) emitSyn(now Time, h *header, b []byte) {
	cfg := &c.table.cfg
	o := wire.TCPOptions{MSS: uint16(c.rcvMSS()), WindowScale: c.rcvScale, TSVal: c.timestamp(now)}
	h.fields.Seq = c.iss.Uint32()
	if c.state == SynReceived {
		h.fields.Flags = wire.TCPSyn | wire.TCPAck
		o.HasWindowScale, o.SACKPermitted, o.HasTimestamps = c.scaling, c.sack, c.timestamps
		o.TSEcr = c.tsRecent
	} else {
		h.fields.Flags = wire.TCPSyn
		h.fields.Ack = 0
		o.HasWindowScale, o.SACKPermitted, o.HasTimestamps = !cfg.NoWindowScale, !cfg.NoSACK, !cfg.NoTimestamps
	}
	h.fields.Flags |= c.synECN()
	h.fields.Window = uint16(c.synWindow())
	c.sndNxt = c.iss.Add(1)
	if c.sndMax == c.iss { // only the first transmission (Karn)
		c.timing, c.timedSeq, c.timedAt = true, c.sndNxt, now
	}
	c.sndMax = c.sndNxt
	if c.rtxAt == Never {
		c.startRetransmit(now)
	}
	n, sum := wire.PutTCPOptions(b[wire.TCPHeaderLen:wire.MaxTCPHeaderLen], &o)
	h.len, h.sum = wire.TCPHeaderLen+n, sum
}

// emitData writes n bytes of data from SND.NXT on, and a FIN if that follows.
func (c *Conn) emitData(now Time, h *header, b []byte, n int, fin bool) {
	t := c.table
	h.fields.Seq = c.sndNxt.Uint32()
	if c.next.long {
		c.send.copyOut(b[h.len : h.len+n])
	} else {
		h.sum = c.send.sumOut(b[h.len:h.len+n], h.sum)
	}
	if c.send.cursor == nil && n > 0 {
		h.fields.Flags |= wire.TCPPsh // RFC 9293, section 3.9.1.2: the last queued byte
		c.flushed = false
	}
	if c.ecn && n > 0 && c.sndNxt == c.sndMax {
		c.markNew(h)
	}
	c.windowProbeDue = false
	length := uint32(n)
	if fin {
		h.fields.Flags |= wire.TCPFin
		length++
	}
	if c.sndUna == c.sndMax {
		if now-c.progressAt > Time(longUnused) {
			c.congestion.Idle(now)
			c.window = c.congestion.Window()
		}
		c.progressAt = now
	}
	sent := c.sndMax.From(c.sndNxt) // how many of the numbers from here on have been sent before
	again := min(n, int(sent))
	if sent > 0 {
		t.counts[BytesRetransmitted] += uint64(again)
		c.stat.bytesRetransmitted += uint64(again)
		c.stat.retransmitted++
	}
	t.counts[BytesSent] += uint64(n - again)
	// What is sent within 2^-sentGrain of a round trip counts as sent at once.
	if board := &c.board; board.end == c.sndNxt {
		board.at = now
	} else if now-board.at > Time(c.srtt>>sentGrain) {
		board.append(&t.spans, board.at, c.sndNxt)
		board.at = now
	}
	next := c.sndNxt.Add(length)
	c.sndNxt = next
	c.prrOut += n
	if n > c.path.proven && !c.next.long {
		c.watch(n)
	}
	if c.srtt > paceCredit {
		c.pace(now, n)
	}
	if length > sent {
		c.sndMax = next
		c.record.Next = next.Uint32()
		if again == 0 {
			if !c.timing {
				c.timing, c.timedSeq, c.timedAt = true, next, now
			}
			if c.dataAt != 0 {
				c.answered(now - c.dataAt)
			}
		}
	}
	if c.persisting {
		c.persisting, c.backoff, c.rtxAt = false, 0, Never
	}
	if c.rtxAt == Never { // RFC 6298, section 5.1
		c.startRetransmit(now)
	} else if c.rtxFor == forTimeout && next.From(c.sndUna) >= uint32(2*c.mss) {
		c.lossProbeSooner(now)
	}
}

// emitWindowProbe writes a segment with one octet beyond the closed window (RFC 9293,
// section 3.8.6.1): the byte at SND.UNA, or the FIN if there is no data. SND.NXT does not
// change.
func (c *Conn) emitWindowProbe(h *header, b []byte) (n int) {
	c.windowProbeDue = false
	c.table.counts[WindowProbes]++
	h.fields.Seq = c.sndUna.Uint32()
	if c.send.bytes > 0 {
		h.sum = c.send.copyAt(b[h.len:h.len+1], 0, h.sum)
		n = 1
	} else {
		h.fields.Flags |= wire.TCPFin
	}
	if next := c.sndUna.Add(1); next.After(c.sndMax) {
		c.sndMax = next
		c.record.Next = next.Uint32()
	}
	return n
}
