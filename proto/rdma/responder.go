package rdma

import "github.com/unet-go/unet/wire"

// responder is what a queue pair knows of its peer's requests. UD has only the receive.
type responder struct {
	expected uint32  // PSN of the next request
	msn      uint32  // messages executed, 24 bits
	message  message // that has begun and not ended
	refused  bool    // RC: expected was answered with a NAK, and later requests have none
	failed   bool    // RC: with one that ends the connection
	dropping bool    // UC: the message is dropped up to the next first packet

	recv   recvWQE // the receive that the message has taken
	taken  bool    // there is one; UC and UD keep it if they drop the message
	filled uint32  // bytes in it

	// Of a WRITE.
	va     uint64 // where the rest goes
	rkey   uint32
	left   uint32 // bytes of the rest
	length uint32 // bytes of the message

	// What is to be sent, in this order: the responses that are owed, then the NAK or the ACK.
	resources []resource // a ring of MaxDestRDAtomic
	next      int        // index of the oldest, which the next READ or atomic replaces
	serve     int        // index of one that is not younger than the oldest that is owed
	owed      int        // number of resources whose response is owed
	nak       uint8      // its syndrome; 0: none
	ack       bool       // of all requests before expected
	pacing               // of the responses that are owed
}

// resource is a responder resource: a READ or an atomic, which is kept to answer duplicates
// (section 9.4.4).
type resource struct {
	packets  uint32 // PSNs of the response; 0: not in use
	psn      uint32 // of the request
	msn      uint32
	atomic   bool
	owed     bool
	complete bool // all of the response has been sent, at least once
	va       uint64
	rkey     uint32
	length   uint32
	original uint64 // of an atomic: what memory held before
	// The owed response of a READ: bytes [offset, until) of it; it begins at begin.
	begin, offset, until uint32
	begunAt              Time // the packet at begin was sent then
}

type message uint8

const (
	noMessage message = iota
	sendMessage
	writeMessage
)

// part is what the operation of a SEND or WRITE packet says.
type part struct {
	message         message // noMessage: it is neither
	first, last     bool
	imm, invalidate bool
}

var parts = [32]part{
	wire.OpSendFirst:    {message: sendMessage, first: true},
	wire.OpSendMiddle:   {message: sendMessage},
	wire.OpSendLast:     {message: sendMessage, last: true},
	wire.OpSendLastImm:  {message: sendMessage, last: true, imm: true},
	wire.OpSendLastInv:  {message: sendMessage, last: true, invalidate: true},
	wire.OpSendOnly:     {message: sendMessage, first: true, last: true},
	wire.OpSendOnlyImm:  {message: sendMessage, first: true, last: true, imm: true},
	wire.OpSendOnlyInv:  {message: sendMessage, first: true, last: true, invalidate: true},
	wire.OpWriteFirst:   {message: writeMessage, first: true},
	wire.OpWriteMiddle:  {message: writeMessage},
	wire.OpWriteLast:    {message: writeMessage, last: true},
	wire.OpWriteLastImm: {message: writeMessage, last: true, imm: true},
	wire.OpWriteOnly:    {message: writeMessage, first: true, last: true},
	wire.OpWriteOnlyImm: {message: writeMessage, first: true, last: true, imm: true},
}

// verdict is why a request is refused.
type verdict struct {
	syndrome uint8  // of the NAK
	status   Status // of the receive that the message has taken
	event    EventType
	counter  Counter
}

// Refusals; nil: the request was executed (section 9.9.3).
var (
	invalidRequest  = &verdict{wire.SyndromeNAKInvalid, StatusRemInvReqErr, EventQPReqErr, RequestsInvalid}
	accessRefused   = &verdict{wire.SyndromeNAKAccess, StatusRemAccessErr, EventQPAccessErr, AccessesRefused}
	receiveTooShort = &verdict{wire.SyndromeNAKInvalid, StatusLocLenErr, EventQPReqErr, ReceivesTooShort}
	receiveUnusable = &verdict{wire.SyndromeNAKOperational, StatusLocProtErr, EventQPFatal, ReceivesUnusable}
	invalidateError = &verdict{wire.SyndromeNAKAccess, StatusMWBindErr, EventQPAccessErr, AccessesRefused}
	notReady        = &verdict{syndrome: wire.SyndromeRNR, counter: ReceiverNotReady}
)

// initResponder begins with the first request: the queue pair comes to RTR.
func (q *QP) initResponder() {
	q.resp = responder{expected: q.attr.RQPSN}
	q.initPacing()
	if q.typ == RC {
		q.resp.resources = make([]resource, q.attr.MaxDestRDAtomic)
	}
}

// stopResponder ends the receive of a message that has begun: the queue pair comes to ERR. If
// it does because of a request, what is to be sent is sent, with the NAK at its end.
func (q *QP) stopResponder() {
	q.endReceive(StatusWRFlushErr)
	if r := &q.resp; !r.failed {
		r.owed, r.nak, r.ack, r.waitAt = 0, 0, false, Never
	}
}

// endReceive ends the receive of a message with an error.
func (q *QP) endReceive(s Status) {
	if r := &q.resp; r.taken {
		r.taken = false
		q.recvCQ.push(&WC{WRID: r.recv.wrID, Status: s, Opcode: WCRecv, QPNum: q.num}, true)
	}
}

// request takes a request from the peer.
func (q *QP) request(now Time, h *wire.RoCE, p *Packet) {
	if !q.established && (q.state == StateRTR || q.req.held) {
		q.d.raise(&q.events, EventCommEst)
	}
	q.established = true
	switch {
	case q.typ == RC:
		q.reliable(now, h)
	case q.typ == UC:
		q.unreliable(h)
	default:
		q.datagram(h, p)
	}
}

// reliable takes a request of RC (section 9.7.4.1).
func (q *QP) reliable(now Time, h *wire.RoCE) {
	r := &q.resp
	switch diff := psnDiff(h.PSN, r.expected); {
	case diff > 0:
		q.d.counts[SequenceGaps]++
		if !r.refused {
			r.refuse(wire.SyndromeNAKSequence)
		}
		return
	case diff < 0:
		q.duplicate(now, h)
		return
	}
	if r.refused { // and has come again
		r.refused, r.nak = false, 0
	}
	var v *verdict
	switch op := h.Opcode.Operation(); op {
	case wire.OpReadRequest:
		v = q.read(now, h)
	case wire.OpCompareSwap, wire.OpFetchAdd:
		v = q.atomic(now, h)
	default:
		if v = q.place(h, parts[op]); v == nil {
			q.advance(h, parts[op])
			r.ack = r.ack || h.AckReq
		}
	}
	if v == nil {
		return
	}
	q.d.counts[v.counter]++
	if v == notReady {
		r.refuse(v.syndrome | q.attr.MinRNRTimer)
		return
	}
	r.refuse(v.syndrome)
	r.failed = true
	q.endReceive(v.status)
	q.fatal(v.event)
}

// refuse answers the expected PSN with a NAK, which acknowledges what is before it.
func (r *responder) refuse(syndrome uint8) { r.refused, r.nak, r.ack = true, syndrome, false }

// duplicate answers a request that was executed: a SEND or WRITE with an ACK, a READ by
// executing it again, an atomic with the result that was saved (section 9.7.5.1.3). A READ
// or an atomic that has no resource any more, or that is not what it was, has no answer.
func (q *QP) duplicate(now Time, h *wire.RoCE) {
	r := &q.resp
	q.d.counts[Duplicates]++
	op := h.Opcode.Operation()
	if parts[op].message != noMessage {
		r.ack = r.nak == 0
		return
	}
	for i := range r.resources {
		s := &r.resources[i]
		packet := (h.PSN - s.psn) & psnMask
		if packet >= s.packets {
			continue
		}
		offset, n := packet*q.mtu, uint32(8)
		if op == wire.OpReadRequest {
			n = h.DMALen
		}
		if s.atomic != (op != wire.OpReadRequest) || h.RKey != s.rkey || h.VA != s.va+uint64(offset) || n > s.length-offset {
			break
		}
		if s.owed && s.offset <= offset && offset+n <= s.until {
			return // it will be sent
		}
		if !s.atomic {
			q.lostResponses(now, h.PSN, &r.resources[(i+1)%len(r.resources)])
		}
		if !s.owed {
			s.owed = true
			r.owed++
		}
		s.begin, s.offset, s.until = offset, offset, offset+n
		r.serve = r.next
		return
	}
	q.d.counts[DuplicatesUnanswered]++
}

// place copies the data of a SEND or WRITE packet to where it belongs. If it refuses the
// packet, the responder is as before, but for the receive that the message may have taken.
func (q *QP) place(h *wire.RoCE, p part) *verdict {
	r := &q.resp
	n := uint32(len(h.Payload))
	switch {
	case p.message == noMessage, p.first != (r.message == noMessage), !p.first && p.message != r.message,
		p.last && (n > q.mtu || n == 0 && !p.first), !p.last && n != q.mtu:
		return invalidRequest
	}
	if p.message == sendMessage {
		return q.placeSend(h, p)
	}
	if p.first {
		if q.attr.AccessFlags&AccessRemoteWrite == 0 || h.DMALen > maxMessage {
			return invalidRequest
		}
		r.va, r.rkey, r.left, r.length = h.VA, h.RKey, h.DMALen, h.DMALen
		if _, ok := q.remote(r.rkey, r.va, uint64(r.left), AccessRemoteWrite); !ok && r.left > 0 {
			return accessRefused
		}
	}
	if p.last && n != r.left || !p.last && n >= r.left {
		return invalidRequest
	}
	memory, ok := q.remote(r.rkey, r.va, uint64(n), AccessRemoteWrite) // again: the key may have gone since the first packet
	if !ok && n > 0 {
		return accessRefused
	}
	if p.imm && !q.takeReceive() {
		return notReady
	}
	store(memory, h.Payload)
	r.va += uint64(n)
	r.left -= n
	return nil
}

func (q *QP) placeSend(h *wire.RoCE, p part) *verdict {
	r := &q.resp
	if p.first && !q.takeReceive() {
		return notReady
	}
	n := uint32(len(h.Payload))
	switch {
	case uint64(r.filled)+uint64(n) > r.recv.length:
		return receiveTooShort
	case !q.scatter(r.recv.list(), r.filled, h.Payload):
		return receiveUnusable
	case p.invalidate && !q.invalidate(h.RKey):
		return invalidateError
	}
	r.filled += n
	return nil
}

// takeReceive takes a receive for a message, or the one that a dropped message has left.
func (q *QP) takeReceive() bool {
	r := &q.resp
	r.taken = r.taken || q.takeRecv(&r.recv)
	r.filled = 0
	return r.taken
}

// advance goes on behind a packet that place has accepted. With the last of a message the
// message is complete.
func (q *QP) advance(h *wire.RoCE, p part) {
	r := &q.resp
	r.expected = psnAdd(r.expected, 1)
	if !p.last {
		r.message = p.message
		return
	}
	r.message = noMessage
	r.msn = psnAdd(r.msn, 1)
	if p.message == writeMessage && !p.imm {
		return
	}
	wc := WC{Opcode: WCRecv, ByteLen: r.filled}
	if p.message == writeMessage {
		wc.Opcode, wc.ByteLen = WCRecvRDMAWithImm, r.length
	}
	if p.invalidate {
		wc.Flags, wc.InvalidatedRKey = WCWithInv, h.RKey
	}
	q.received(h, p, &wc)
}

// received ends the receive of a message with success.
func (q *QP) received(h *wire.RoCE, p part, wc *WC) {
	q.resp.taken = false
	wc.WRID, wc.QPNum = q.resp.recv.wrID, q.num
	if p.imm {
		wc.Flags |= WCWithImm
		wc.ImmData = h.Imm
	}
	q.recvCQ.push(wc, h.Solicited)
}

// read accepts a READ. Memory is read when the response is sent.
func (q *QP) read(now Time, h *wire.RoCE) *verdict {
	r := &q.resp
	if r.message != noMessage || q.attr.AccessFlags&AccessRemoteRead == 0 || h.DMALen > maxMessage {
		return invalidRequest
	}
	if _, ok := q.remote(h.RKey, h.VA, uint64(h.DMALen), AccessRemoteRead); !ok && h.DMALen > 0 {
		return accessRefused
	}
	if !r.hasResource() {
		return invalidRequest
	}
	q.keep(now, resource{packets: max(1, (h.DMALen+q.mtu-1)/q.mtu), psn: h.PSN, va: h.VA, rkey: h.RKey, length: h.DMALen, until: h.DMALen})
	return nil
}

// atomic executes an atomic. Misaligned ones are invalid (section 9.4.5).
func (q *QP) atomic(now Time, h *wire.RoCE) *verdict {
	r := &q.resp
	if r.message != noMessage || q.attr.AccessFlags&AccessRemoteAtomic == 0 || h.VA%8 != 0 {
		return invalidRequest
	}
	memory, ok := q.remote(h.RKey, h.VA, 8, AccessRemoteAtomic)
	if !ok {
		return accessRefused
	}
	if !r.hasResource() {
		return invalidRequest
	}
	var original uint64
	if h.Opcode.Operation() == wire.OpCompareSwap {
		original = compareSwap(memory, h.Compare, h.SwapAdd)
	} else {
		original = fetchAdd(memory, h.SwapAdd)
	}
	q.keep(now, resource{packets: 1, psn: h.PSN, atomic: true, va: h.VA, rkey: h.RKey, length: 8, until: 8, original: original})
	return nil
}

// hasResource says whether there is a resource for another READ or atomic. There is none if
// the peer has more in flight than MaxDestRDAtomic. A response that is only being repeated does not
// count: with its next request the peer says that it has got it.
func (r *responder) hasResource() bool {
	return len(r.resources) > 0 && (!r.resources[r.next].owed || r.resources[r.next].complete)
}

// keep makes s the youngest resource, in place of the oldest. Its response is owed, and
// acknowledges what is before it.
func (q *QP) keep(now Time, s resource) {
	r := &q.resp
	q.proven(now, s.psn, &r.resources[r.next])
	r.msn = psnAdd(r.msn, 1)
	r.expected = psnAdd(r.expected, s.packets)
	s.msn, s.owed = r.msn, true
	if r.resources[r.next].owed { // it need not be repeated any more
		r.owed--
	}
	switch {
	case r.owed == 0:
		r.serve = r.next
	case r.serve == r.next: // the oldest, in whose place is the youngest now
		r.serve = (r.next + 1) % len(r.resources)
	}
	r.owed++
	r.resources[r.next] = s
	r.next = (r.next + 1) % len(r.resources)
	r.ack = false
}

// responseReady says whether emitResponse has something to write.
func (q *QP) responseReady() bool {
	r := &q.resp
	return r.owed > 0 && r.waitAt == Never || r.owed == 0 && (r.nak != 0 || r.ack)
}

// onlyACK says whether that is an ACK and nothing else.
func (q *QP) onlyACK() bool { return q.resp.ack && q.resp.owed == 0 }

// emitResponse writes the next response.
func (q *QP) emitResponse(now Time, b []byte) int {
	r := &q.resp
	h := q.header()
	h.Syndrome = wire.SyndromeAck
	if r.owed > 0 {
		if end := q.putResponse(now, b, &h); end > 0 {
			return wire.SealRoCE(b, &q.flow, end)
		}
	}
	h.Opcode, h.PSN, h.MSN = wire.OpAck, psnAdd(r.expected, psnMask), r.msn
	if r.nak != 0 {
		h.PSN, h.Syndrome = r.expected, r.nak
		q.d.counts[NAKsSent]++
	}
	r.nak, r.ack = 0, false
	return wire.SealRoCE(b, &q.flow, wire.PutRoCE(b, &h, 0))
}

// nextOwed is the oldest response that is owed; there is one.
func (r *responder) nextOwed() *resource {
	for !r.resources[r.serve].owed {
		r.serve = (r.serve + 1) % len(r.resources)
	}
	return &r.resources[r.serve]
}

// putResponse writes a packet of the oldest response that is owed and returns where its payload
// ends. 0: the memory is not accessible any more, and the queue pair has failed.
func (q *QP) putResponse(now Time, b []byte, h *wire.RoCE) int {
	r := &q.resp
	s := r.nextOwed()
	h.PSN, h.MSN = s.psn, s.msn
	if s.atomic {
		s.owed, s.complete = false, true
		r.owed--
		h.Opcode, h.Original = wire.OpAtomicAck, s.original
		return wire.PutRoCE(b, h, 0)
	}
	left := s.until - s.offset
	n := min(left, q.mtu)
	memory, ok := q.remote(s.rkey, s.va+uint64(s.offset), uint64(n), AccessRemoteRead)
	h.PSN = psnAdd(s.psn, s.offset/q.mtu)
	if !ok && n > 0 {
		r.expected, r.owed = h.PSN, 0
		q.d.counts[AccessesRefused]++
		r.refuse(wire.SyndromeNAKAccess)
		r.failed = true
		q.fatal(EventQPAccessErr)
		return 0
	}
	switch first, last := s.offset == s.begin, n == left; {
	case first && last:
		h.Opcode = wire.OpReadResponseOnly
	case first:
		h.Opcode = wire.OpReadResponseFirst
	case last:
		h.Opcode = wire.OpReadResponseLast
	default:
		h.Opcode = wire.OpReadResponseMiddle
	}
	if r.inFlight, r.unproven = r.inFlight+1, r.unproven+1; s.offset == s.begin {
		s.begunAt = now
	}
	if s.offset += n; n == left {
		s.owed, s.complete = false, s.complete || s.until == s.length
		r.owed--
	}
	payload := wire.PutRoCE(b, h, int(n))
	load(b[payload:payload+int(n)], memory)
	return payload + int(n)
}
