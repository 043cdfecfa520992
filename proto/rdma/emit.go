package rdma

import "github.com/unet-go/unet/wire"

// changed brings the list of those that are ready up to date.
func (q *QP) changed() {
	d := q.d
	q.sendable = q.requestReady()
	ready := q.cnpDue || q.responseReady() || q.sendable
	if ready == q.ready {
		return
	}
	if q.ready = ready; ready {
		q.nextReady = nil
		if d.lastReady == nil {
			d.firstReady = q
		} else {
			d.lastReady.nextReady = q
		}
		d.lastReady = q
		return
	}
	d.unready(q)
}

// unready takes q off the list of those that are ready.
func (d *Device) unready(q *QP) {
	var before *QP
	for p := d.firstReady; p != q; p = p.nextReady {
		before = p
	}
	if before == nil {
		d.firstReady = q.nextReady
	} else {
		before.nextReady = q.nextReady
	}
	if d.lastReady == q {
		d.lastReady = before
	}
	q.nextReady = nil
}

// update follows every call that may have changed the queue pair.
func (q *QP) update(now Time) {
	q.runLocal()
	q.pace(now)
	if q.state == StateSQD && !q.drained && q.idle() {
		q.drained = true
		q.d.raise(&q.events, EventSQDrained)
	}
	q.changed()
	q.d.timers.Advance(&q.timer, q.deadline())
}

// Dst is where the next packet goes that Emit writes.
func (q *QP) Dst() [4]byte {
	if q.typ >= UD && q.sq.next != q.sq.tail {
		return q.sq.at(q.sq.next).ah.flow.Dst
	}
	return q.flow.Dst
}

// Emit writes the next packet of a queue pair that is ready, from the IPv4 header on, and
// returns its length. b has room for [QP.Room] bytes. It returns 0 if the memory of
// the next packet is not registered, or not any more; the work request fails.
func (q *QP) Emit(now Time, b []byte) (n int) {
	d := q.d
	switch {
	case q.cnpDue:
		q.cnpDue, q.cnpAt = false, now
		h := q.header()
		h.Opcode, h.BECN = wire.OpCNP, true
		n = wire.SealRoCE(b, &q.flow, wire.PutRoCE(b, &h, 0))
		d.counts[CNPsSent]++
	case q.respondsNext():
		q.responded, q.overtaken = true, false
		n = q.emitResponse(now, b)
	case q.sendable:
		q.responded, q.overtaken = false, q.resp.ack
		n = q.emitRequest(now, b)
	}
	if n > 0 {
		d.counts[PacketsSent]++
	}
	q.update(now)
	if q.ready && d.lastReady != q { // the others have their turn
		d.unready(q)
		d.lastReady.nextReady, d.lastReady = q, q
	}
	return n
}

// respondsNext reports whether Emit writes a response. Responses and requests take turns. A
// request goes ahead of an ACK: in a ping-pong the peer waits for it, and not for the ACK.
func (q *QP) respondsNext() bool {
	switch {
	case !q.responseReady():
		return false
	case !q.sendable:
		return true
	case q.onlyACK():
		return q.overtaken
	}
	return !q.responded
}

// Room is a bound of the length of the next packet that Emit writes, in bytes.
func (q *QP) Room() int {
	n := uint32(0)
	switch {
	case q.cnpDue:
	case q.respondsNext():
		if r := &q.resp; r.owed > 0 {
			if s := r.nextOwed(); !s.atomic {
				n = s.until - s.offset
			}
		}
	case q.sendable:
		if s := &q.sq; !s.at(s.next).answered() {
			n = s.at(s.next).length
		}
	}
	return packetOverhead + int(min(n, q.mtu))
}

// header is the header of a packet to the peer, still without an opcode and a PSN.
func (q *QP) header() wire.RoCE { return wire.RoCE{PKey: defaultPKey, DstQP: q.attr.DestQPN} }

// operations are the opcodes of the packets of a SEND or WRITE: First, Middle, Last, Only.
var operations = [...][4]wire.Opcode{
	WRRDMAWrite:        {wire.OpWriteFirst, wire.OpWriteMiddle, wire.OpWriteLast, wire.OpWriteOnly},
	WRRDMAWriteWithImm: {wire.OpWriteFirst, wire.OpWriteMiddle, wire.OpWriteLastImm, wire.OpWriteOnlyImm},
	WRSend:             {wire.OpSendFirst, wire.OpSendMiddle, wire.OpSendLast, wire.OpSendOnly},
	WRSendWithImm:      {wire.OpSendFirst, wire.OpSendMiddle, wire.OpSendLastImm, wire.OpSendOnlyImm},
	WRSendWithInv:      {wire.OpSendFirst, wire.OpSendMiddle, wire.OpSendLastInv, wire.OpSendOnlyInv},
}

// emitRequest writes the next packet of the send queue.
func (q *QP) emitRequest(now Time, b []byte) int {
	r, s := &q.req, &q.sq
	i := s.next
	w := s.at(i)
	if i == s.begun {
		w.psn = r.next
		s.begun++
		if w.answered() {
			r.answering++
		}
	}
	psn, index := r.next, (r.next-w.psn)&psnMask
	off := index * q.mtu
	again := psnDiff(psn, r.max) < 0
	h := q.header()
	h.PSN = psn
	if w.answered() {
		return q.emitRead(now, b, &h, w, off, again)
	}

	size := min(q.mtu, w.length-off)
	first, last := index == 0, index+1 == w.packets
	part := 1
	switch {
	case first && last:
		part = 3
	case first:
		part = 0
	case last:
		part = 2
	}
	h.Opcode = operations[w.opcode][part] | q.transport
	h.Solicited = last && w.solicited
	h.Imm = w.imm
	if w.opcode == WRSendWithInv { // an IETH, where others have a RETH
		h.RKey = w.imm
	} else {
		h.VA, h.RKey, h.DMALen = w.remoteAddr, w.rkey, w.length
	}
	flow := &q.flow
	if q.typ >= UD {
		flow = &w.ah.flow
		h.DstQP, h.QKey, h.SrcQP = w.qpn, w.rkey, q.num
	}

	r.next = psnAdd(psn, 1)
	if !again {
		r.max = r.next
	}
	if last {
		s.next++
	}
	if q.typ == RC {
		r.quiet++
		h.AckReq = last && w.signaled || r.quiet >= min(max(r.window/4, 1), 32) || !q.requestReady()
	}
	payload := wire.PutRoCE(b, &h, int(size))
	if w.inline {
		copy(b[payload:], s.inlineAt(i)[off:off+size])
	} else if !q.gather(b[payload:payload+int(size)], w.list(), off) {
		r.next, s.next, w.status = psn, i, StatusLocProtErr
		if !again {
			r.max = psn
		}
		return 0
	}
	n := wire.SealRoCE(b, flow, payload+int(size))
	if q.typ == RC {
		q.sent(now, again, h.AckReq, psn)
	} else {
		r.una = r.next
		if q.typ == UC {
			q.resp.inFlight++
		}
		if last {
			q.completeSend(StatusSuccess)
		}
	}
	return n
}

// emitRead writes a READ or an atomic request.
func (q *QP) emitRead(now Time, b []byte, h *wire.RoCE, w *sendWQE, off uint32, again bool) int {
	r, s := &q.req, &q.sq
	packets := uint32(1)
	switch {
	case w.opcode != WRRDMARead:
	case again: // the same part, or the rest of it: the peer counts parts, and keeps the last ones
		for _, end := range r.parts {
			if n := psnDiff(end, h.PSN); n > 0 {
				packets = uint32(n)
				break
			}
		}
	default:
		if f, window := r.inFlight(), q.requestWindow(); f < window {
			packets = min(q.partLeft(w), window-f)
		}
	}
	h.VA, h.RKey = w.remoteAddr, w.rkey
	switch w.opcode {
	case WRRDMARead:
		h.Opcode = wire.OpReadRequest
		h.VA += uint64(off)
		h.DMALen = min(packets*q.mtu, w.length-off)
	case WRAtomicCmpAndSwp:
		h.Opcode, h.Compare, h.SwapAdd = wire.OpCompareSwap, w.compareAdd, w.swap
	default:
		h.Opcode, h.Compare, h.SwapAdd = wire.OpFetchAdd, 0, w.compareAdd
	}
	r.next = psnAdd(h.PSN, packets)
	if !again {
		r.max = r.next
		r.parts = append(r.parts, r.next)
	}
	if r.next == psnAdd(w.psn, w.packets) {
		s.next++
	}
	n := wire.SealRoCE(b, &q.flow, wire.PutRoCE(b, h, 0))
	q.sent(now, again, true, psnAdd(r.next, psnMask))
	return n
}

// sent follows the emission of a request of RC. last is the PSN of its answer, or of the last
// packet of that.
func (q *QP) sent(now Time, again, elicits bool, last uint32) {
	r := &q.req
	if again {
		q.d.counts[Retransmitted]++
	}
	if elicits {
		r.eliciting, r.elicits, r.quiet = true, last, 0
		if !again && !r.timing {
			r.timing, r.timed, r.timedAt = true, last, now
		}
	}
	if r.timeoutAt == Never {
		q.armTimeout(now)
	}
}
