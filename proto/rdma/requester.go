package rdma

import (
	"encoding/binary"

	"github.com/unet-go/unet/wire"
)

// requester is the sending half of a queue pair. The PSNs of what an RC queue pair has sent:
//
//	una .. next   in flight
//	next .. max   was sent, and is to be sent again after a loss (go back N)
//
// The requests of the send queue are acknowledged in order, by ACKs up to the next READ or
// atomic, and by the responses of those. A READ takes the PSNs of its response. A long READ is
// asked for in parts, so that the window limits its response; each part counts as one READ.
type requester struct {
	una, next, max uint32
	elicits        uint32 // the PSN of the last packet that the peer answers, if eliciting
	eliciting      bool
	quiet          uint32   // packets since that
	parts          []uint32 // a queue: the PSNs behind the READ parts and atomics that are not answered
	answering      int      // READ and atomic work requests that have begun and not completed

	held bool // no work request is begun until the peer is known to be ready

	retries, rnrRetries uint8 // left
	backoff             uint8 // timeouts in succession
	backAt              Time  // the last go-back
	backTo              uint32
	backed              bool
	timeoutAt, waitAt   Time // retransmission, RNR; Never: not armed
	congestion
}

func (r *requester) clear() {
	r.timeoutAt, r.waitAt = Never, Never
	r.parts = r.parts[:0]
}

// initRequester is the move to RTS.
func (q *QP) initRequester() {
	r, psn := &q.req, q.attr.SQPSN
	*r = requester{una: psn, next: psn, max: psn, parts: make([]uint32, 0, q.attr.MaxRDAtomic)}
	r.clear()
	r.congestion.init(q.d.cfg.Window)
	r.progress(q)
}

// HoldSends makes the queue pair, in RTS, keep what is posted on its send queue, or send it. While it does, the
// first packet of the peer causes EventCommEst, as in RTR. It is for the passive side of a
// connection, whose peer takes nothing before it has had the REP.
func (q *QP) HoldSends(now Time, hold bool) {
	q.req.held = hold
	q.update(now)
}

// idle reports whether all work requests that have been begun are complete.
func (q *QP) idle() bool { return q.sq.head == q.sq.begun }

// progress resets the counters of retries.
func (r *requester) progress(q *QP) {
	r.retries, r.rnrRetries, r.backoff, r.backed = q.attr.RetryCnt, q.attr.RNRRetry, 0, false
}

func (r *requester) inFlight() uint32 { return (r.next - r.una) & psnMask }

func (q *QP) deadline() Time { return min(q.req.timeoutAt, q.req.waitAt, q.resp.waitAt) }

// timeout is the retransmission timeout: that of the attribute, or longer if the round trips
// are. It doubles twice (IBA allows up to four times the attribute's).
func (q *QP) timeout() Time {
	r := &q.req
	t := Time(4096) << q.attr.Timeout
	if r.srtt != 0 {
		t = max(t, r.roundTrip())
	}
	return t << min(r.backoff, 2)
}

func (q *QP) armTimeout(now Time) {
	r := &q.req
	if q.attr.Timeout == 0 || r.una == r.next {
		r.timeoutAt = Never
	} else {
		r.timeoutAt = now + q.timeout()
	}
}

// expire runs the timers that are due.
func (q *QP) expire(now Time) {
	r := &q.req
	if r.waitAt <= now {
		r.waitAt = Never
	}
	if q.resp.waitAt <= now {
		q.resp.waitAt = Never
	}
	if r.timeoutAt <= now {
		r.timeoutAt = Never
		q.d.counts[Timeouts]++
		if r.retries == 0 {
			q.failSend(StatusRetryExcErr)
			return
		}
		r.retries--
		r.backoff++
		r.collapse()
		q.goBack(now)
	}
}

// goBack makes una the next packet to be sent.
func (q *QP) goBack(now Time) {
	r := &q.req
	r.next, q.sq.next = r.una, q.sq.head
	r.timing, r.eliciting, r.quiet = false, false, 0
	r.backed, r.backTo, r.backAt = true, r.una, now
	r.timeoutAt = Never
}

// lost goes back because of a NAK, or a response that is missing. Packets that were in flight when
// it last went back to the same PSN may cause the same NAK or gap again: for a round trip that is
// ignored.
func (q *QP) lost(now Time) {
	r := &q.req
	if r.backed && r.backTo == r.una && now-r.backAt < r.roundTrip() {
		return
	}
	if r.retries == 0 {
		q.failSend(StatusRetryExcErr)
		return
	}
	r.retries--
	q.halve(now)
	q.goBack(now)
}

// acknowledge takes note that the peer has executed all before end. It stops at a READ or an
// atomic that is not answered, and reports whether it got to end.
func (q *QP) acknowledge(now Time, end uint32) bool {
	r, s := &q.req, &q.sq
	from := r.una
	for s.head != s.begun {
		w := s.at(s.head)
		if w.local && w.status == StatusSuccess {
			q.completeSend(StatusSuccess)
			continue
		}
		if w.local {
			break
		}
		behind := psnAdd(w.psn, w.packets)
		if w.answered() {
			if r.una == behind {
				r.answering--
				q.completeSend(StatusSuccess)
				continue
			}
			break
		}
		if psnDiff(end, behind) < 0 {
			if psnDiff(end, r.una) > 0 {
				r.una = end
			}
			break
		}
		r.una = behind
		q.completeSend(StatusSuccess)
	}
	if n := (r.una - from) & psnMask; n > 0 {
		q.advanced(now, n)
	}
	return psnDiff(end, r.una) <= 0
}

// advanced follows una, which has moved on by n.
func (q *QP) advanced(now Time, n uint32) {
	r := &q.req
	if psnDiff(r.una, r.next) > 0 { // from before the go-back
		r.next = r.una
	}
	if r.eliciting && psnDiff(r.una, r.elicits) > 0 {
		r.eliciting = false
	}
	if r.halved && psnDiff(r.una, r.halvedAt) >= 0 {
		r.halved = false
	}
	if r.timing && psnDiff(r.una, r.timed) > 0 {
		r.timing = false
		r.sample(now - r.timedAt)
	}
	r.grow(n, q.d.cfg.Window)
	r.progress(q)
	q.armTimeout(now)
}

// answer takes the response to the PSN una.
func (q *QP) answer(now Time) {
	r := &q.req
	r.una = psnAdd(r.una, 1)
	if len(r.parts) > 0 && psnDiff(r.una, r.parts[0]) >= 0 {
		r.parts = append(r.parts[:0], r.parts[1:]...)
	}
	q.advanced(now, 1)
	q.acknowledge(now, r.una)
}

// response takes an ACK, a NAK, a READ response or an atomic's.
func (q *QP) response(now Time, h *wire.RoCE) {
	r, s, c := &q.req, &q.sq, &q.d.counts
	if q.state != StateRTS && q.state != StateSQD {
		c[BadState]++
		return
	}
	if psnDiff(h.PSN, r.una) < 0 || psnDiff(h.PSN, r.max) >= 0 {
		c[ResponsesOutside]++
		return
	}
	op := h.Opcode.Operation()
	if op == wire.OpAck {
		q.ack(now, h)
		return
	}
	if !q.acknowledge(now, h.PSN) { // an earlier response is missing
		c[ResponsesMissing]++
		q.lost(now)
		return
	}
	if s.head == s.begun { // the completion queue has overrun
		return
	}
	w := s.at(s.head)
	if !w.answered() || (op == wire.OpAtomicAck) != (w.opcode != WRRDMARead) {
		c[ResponsesBad]++
		q.failSend(StatusBadRespErr)
		return
	}
	if op == wire.OpAtomicAck {
		var old [8]byte
		binary.NativeEndian.PutUint64(old[:], h.Original)
		if !q.scatter(w.list(), 0, old[:]) {
			q.failSend(StatusLocProtErr)
			return
		}
		q.answer(now)
		return
	}
	off := (h.PSN - w.psn) & psnMask * q.mtu
	if uint32(len(h.Payload)) != min(q.mtu, w.length-off) {
		c[ResponsesBad]++
		q.failSend(StatusBadRespErr)
		return
	}
	if !q.scatter(w.list(), off, h.Payload) {
		q.failSend(StatusLocProtErr)
		return
	}
	q.answer(now)
}

// ack takes an ACK or a NAK. A NAK acknowledges all before its PSN.
func (q *QP) ack(now Time, h *wire.RoCE) {
	r, c := &q.req, &q.d.counts
	kind := h.Syndrome & wire.SyndromeKind
	end := h.PSN
	if kind == 0 {
		end = psnAdd(end, 1)
	}
	if !q.acknowledge(now, end) {
		c[ResponsesMissing]++
		q.lost(now)
		return
	}
	if kind == 0 {
		return
	}
	if kind == wire.SyndromeRNR {
		c[RNRNAKsReceived]++
		if r.waitAt != Never {
			return
		}
		if r.rnrRetries == 0 {
			q.failSend(StatusRNRRetryExcErr)
			return
		}
		if r.rnrRetries != 7 {
			r.rnrRetries--
		}
		r.retries, r.backoff = q.attr.RetryCnt, 0 // the peer answers
		q.goBack(now)
		r.waitAt = now + Time(RNRTime(h.Syndrome))
		return
	}
	switch h.Syndrome {
	case wire.SyndromeNAKSequence:
		c[SequenceNAKsReceived]++
		q.lost(now)
	case wire.SyndromeNAKInvalid:
		q.failSend(StatusRemInvReqErr)
	case wire.SyndromeNAKAccess:
		q.failSend(StatusRemAccessErr)
	case wire.SyndromeNAKOperational:
		q.failSend(StatusRemOpErr)
	default:
		c[ResponsesBad]++
	}
}

// runLocal carries out local operations whose turn has come.
func (q *QP) runLocal() {
	s := &q.sq
	for s.next != s.tail && (q.state == StateRTS || q.state == StateSQD) {
		w := s.at(s.next)
		if w.local && int32(s.next-s.begun) >= 0 {
			if q.state == StateSQD || q.req.held || w.fence && q.req.answering > 0 {
				return
			}
			ok := false
			if w.bind != nil {
				ok = q.bind(w.bind, MWBind{RKey: w.rkey, MR: w.bindTo, Addr: w.remoteAddr, Length: w.compareAdd, Access: Access(w.imm)})
			} else {
				ok = q.invalidate(w.imm)
			}
			s.begun++
			w.psn = q.req.next
			if !ok {
				w.status = StatusMWBindErr
			}
		}
		if w.status != StatusSuccess {
			if s.head == s.next {
				q.failSend(w.status)
			}
			return
		}
		if !w.local {
			return
		}
		if s.next++; s.head == s.next-1 {
			q.completeSend(StatusSuccess)
		}
	}
}

// requestReady reports whether the next packet of the send queue may be sent.
func (q *QP) requestReady() bool {
	r, s := &q.req, &q.sq
	if s.next == s.tail || q.state != StateRTS && q.state != StateSQD {
		return false
	}
	w := s.at(s.next)
	fresh := s.next == s.begun
	if w.status != StatusSuccess || w.local || fresh && (q.state == StateSQD || r.held) {
		return false
	}
	if q.typ != RC {
		return q.typ != UC || q.resp.waitAt == Never
	}
	if r.waitAt != Never || fresh && w.fence && r.answering > 0 {
		return false
	}
	if w.answered() {
		if r.next == r.max { // a READ part or an atomic that was not sent before
			if len(r.parts) == cap(r.parts) {
				return false
			}
			return q.room(min(q.partLeft(w), max(r.window/4, 1)))
		}
	}
	return q.room(1) || !r.eliciting
}

// room reports whether the window admits n more packets. It always admits them if nothing is in
// flight.
func (q *QP) room(n uint32) bool {
	f := q.req.inFlight()
	if f == 0 || f+n <= q.requestWindow() {
		return true
	}
	q.req.limited = true
	return false
}

// requestWindow is the requester's part of the congestion window.
func (q *QP) requestWindow() uint32 {
	if q.resp.owed == 0 {
		return q.req.window
	}
	return share(q.req.window, q.resp.inFlight)
}

// partLeft is the number of packets of w from the next one on; w may not have begun.
func (q *QP) partLeft(w *sendWQE) uint32 {
	if q.sq.next == q.sq.begun {
		return w.packets
	}
	return (w.psn + w.packets - q.req.next) & psnMask
}
