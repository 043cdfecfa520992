package rdma

import (
	"fmt"
	"syscall"
)

// MaxSGE is the most pieces of a scatter/gather list.
const MaxSGE = 4

// maxMessage is the longest message of RC and UC in bytes (IBA, 9.7.8).
const maxMessage = 1 << 31

// SendWR is a work request for a send queue (ibv_send_wr).
type SendWR struct {
	WRID   uint64
	Opcode WROpcode
	Flags  SendFlags
	SGList []SGE
	Inline []byte // with SendInline: the data, in place of SGList

	ImmData        uint32 // with immediate; big-endian on the wire
	InvalidateRKey uint32 // WRSendWithInv, WRLocalInv

	RemoteAddr uint64 // RDMA and atomics
	RKey       uint32
	CompareAdd uint64 // atomics: what is compared, or added
	Swap       uint64
	AH         *AH // UD
	RemoteQPN  uint32
	RemoteQKey uint32
	MW         *MW // WRBindMW
	Bind       MWBind
}

// MWBind says what a window is bound to (ibv_mw_bind_info), and its new key, see [IncRKey].
type MWBind struct {
	RKey   uint32
	MR     *MR
	Addr   uint64
	Length uint64
	Access Access // remote flags
}

// RecvWR is a work request for a receive queue (ibv_recv_wr).
type RecvWR struct {
	WRID   uint64
	SGList []SGE
}

// recvWQE is a RecvWR in a ring.
type recvWQE struct {
	wrID   uint64
	length uint64 // bytes of the list
	n      int
	sge    [MaxSGE]SGE
}

func (w *recvWQE) list() []SGE { return w.sge[:w.n] }

type recvQueue struct {
	ring       []recvWQE // its length is a power of two
	head, tail uint32    // counts
	size, sges int
}

func (r *recvQueue) init(size, sges int) {
	r.size, r.sges = size, sges
	if size > 0 {
		r.ring = make([]recvWQE, powerOfTwo(size))
	}
}

func (r *recvQueue) len() int { return int(r.tail - r.head) }
func (r *recvQueue) clear()   { r.head, r.tail = 0, 0 }

func (r *recvQueue) pop(w *recvWQE) bool {
	if r.head == r.tail {
		return false
	}
	*w = r.ring[r.head&uint32(len(r.ring)-1)]
	r.head++
	return true
}

func (r *recvQueue) post(object string, wrs []RecvWR) (int, error) {
	for i := range wrs {
		if r.len() == r.size {
			return i, fmt.Errorf("rdma: %s: the receive queue is full (%d work requests): %w", object, r.size, syscall.ENOMEM)
		}
		if err := r.add(&wrs[i]); err != nil {
			return i, fmt.Errorf("rdma: %s: %w", object, err)
		}
	}
	return len(wrs), nil
}

func (r *recvQueue) add(wr *RecvWR) error {
	if len(wr.SGList) > r.sges {
		return fmt.Errorf("a list of %d pieces, at most %d are allowed: %w", len(wr.SGList), r.sges, syscall.EINVAL)
	}
	for i := range wr.SGList {
		if wr.SGList[i].Length > maxMessage {
			return fmt.Errorf("a piece of more than 2 GiB: %w", syscall.EINVAL)
		}
	}
	w := &r.ring[r.tail&uint32(len(r.ring)-1)]
	w.wrID, w.n, w.length = wr.WRID, copy(w.sge[:], wr.SGList), lengthOf(wr.SGList)
	r.tail++
	return nil
}

// PostRecv adds receives, in order, and returns how many it added. In ERR they end with
// StatusWRFlushErr. Errors: ENOMEM if the queue is full, EINVAL for too many pieces, in RESET,
// or on a queue pair with an SRQ.
func (q *QP) PostRecv(wrs []RecvWR) (int, error) {
	if q.srq != nil {
		return 0, fmt.Errorf("rdma: post receive on QP %#x: it has an SRQ: %w", q.num, syscall.EINVAL)
	}
	if q.state == StateReset {
		return 0, fmt.Errorf("rdma: post receive on QP %#x: it is in RESET: %w", q.num, syscall.EINVAL)
	}
	for i := range wrs {
		if q.rq.len() == q.rq.size {
			return i, q.errRQFull
		}
		if err := q.rq.add(&wrs[i]); err != nil {
			return i, fmt.Errorf("rdma: post receive on QP %#x: %w", q.num, err)
		}
	}
	if q.state == StateErr {
		q.flushRecv()
	}
	return len(wrs), nil
}

// takeRecv takes the next receive into w.
func (q *QP) takeRecv(w *recvWQE) bool {
	if q.srq != nil {
		ok := q.srq.queue.pop(w)
		if ok {
			q.srq.taken()
		}
		return ok
	}
	return q.rq.pop(w)
}

// flushRecv ends the posted receives.
func (q *QP) flushRecv() {
	if q.srq != nil {
		q.d.raise(&q.events, EventQPLastWQEReached)
		return
	}
	for q.rq.head != q.rq.tail {
		w := &q.rq.ring[q.rq.head&uint32(len(q.rq.ring)-1)]
		q.rq.head++
		q.recvCQ.push(&WC{WRID: w.wrID, Status: StatusWRFlushErr, Opcode: WCRecv, QPNum: q.num}, false)
	}
}

// sendWQE is a SendWR in the ring.
type sendWQE struct {
	wrID       uint64
	remoteAddr uint64
	compareAdd uint64
	swap       uint64
	rkey       uint32 // UD: the Q_Key
	imm        uint32 // or the key to invalidate
	length     uint32 // bytes
	psn        uint32 // of the first packet, from when it is begun
	packets    uint32 // PSNs that it takes: of a READ those of the response; of a local operation 0
	qpn        uint32 // UD: the destination
	opcode     WROpcode
	n          uint8  // of sge
	status     Status // of a work request that has failed and waits for its turn to complete
	fence      bool
	solicited  bool
	inline     bool
	signaled   bool
	local      bool // WRLocalInv, WRBindMW
	ah         *AH
	bind       *MW // WRBindMW: to a part of bindTo; the rest is in remoteAddr, compareAdd, rkey and imm
	bindTo     *MR
	sge        [MaxSGE]SGE
}

func (w *sendWQE) list() []SGE { return w.sge[:w.n] }

// answered reports whether w completes by a response of its own, not by an ACK.
func (w *sendWQE) answered() bool {
	return w.opcode == WRRDMARead || w.opcode == WRAtomicCmpAndSwp || w.opcode == WRAtomicFetchAndAdd
}

type sendQueue struct {
	ring       []sendWQE // its length is a power of two
	head, tail uint32    // counts: the oldest, the next to be posted
	next       uint32    // is sent now, or next
	begun      uint32    // the next that has not been begun
	size       int
	inline     []byte // MaxInlineData bytes for each entry
	maxInline  int
}

func (s *sendQueue) init(c QPCap) {
	s.size, s.maxInline = c.MaxSendWR, c.MaxInlineData
	if s.size > 0 {
		n := powerOfTwo(s.size)
		s.ring = make([]sendWQE, n)
		s.inline = make([]byte, n*s.maxInline)
	}
}

func (s *sendQueue) len() int             { return int(s.tail - s.head) }
func (s *sendQueue) clear()               { s.head, s.next, s.begun, s.tail = 0, 0, 0, 0 }
func (s *sendQueue) at(i uint32) *sendWQE { return &s.ring[i&uint32(len(s.ring)-1)] }
func (s *sendQueue) inlineAt(i uint32) []byte {
	k := int(i&uint32(len(s.ring)-1)) * s.maxInline
	return s.inline[k : k+s.maxInline]
}

// PostSend adds work requests, in order, and returns how many it added; the error is about the
// next one. In ERR and SQE they end with StatusWRFlushErr. Errors: ENOMEM if the queue is full;
// EINVAL in RESET, INIT and RTR, or for what the type of the queue pair, its sizes or its
// attributes do not allow.
func (q *QP) PostSend(now Time, wrs []SendWR) (n int, err error) {
	if q.state < StateRTS {
		return 0, fmt.Errorf("rdma: post send on QP %#x: it is in %v: %w", q.num, q.state, syscall.EINVAL)
	}
	for n = range wrs {
		if q.sq.len() == q.sq.size {
			err = q.errSQFull
			break
		}
		if rule := q.add(&wrs[n]); rule != "" {
			err = fmt.Errorf("rdma: post send on QP %#x: %v: %s: %w", q.num, wrs[n].Opcode, rule, syscall.EINVAL)
			break
		}
	}
	if err == nil {
		n = len(wrs)
	}
	if q.state == StateErr || q.state == StateSQE {
		q.flushSend()
	} else if n > 0 {
		q.update(now)
	}
	return n, err
}

const (
	onRC = 1 << RC
	onUC = 1 << UC
	onUD = 1<<UD | 1<<GSI
)

// services says on which types of queue pairs an operation is allowed.
var services = [...]uint8{
	WRRDMAWrite: onRC | onUC, WRRDMAWriteWithImm: onRC | onUC, WRSend: onRC | onUC | onUD, WRSendWithImm: onRC | onUC | onUD,
	WRRDMARead: onRC, WRAtomicCmpAndSwp: onRC, WRAtomicFetchAndAdd: onRC, WRLocalInv: onRC | onUC, WRBindMW: onRC | onUC,
	WRSendWithInv: onRC,
}

// add adds wr to the send queue, or returns the rule that it breaks.
func (q *QP) add(wr *SendWR) string {
	if int(wr.Opcode) >= len(services) || services[wr.Opcode]>>q.typ&1 == 0 {
		return "not allowed on a queue pair of this type"
	}
	s := &q.sq
	w := s.at(s.tail)
	length := lengthOf(wr.SGList)
	w.inline = wr.Flags&SendInline != 0
	w.n = 0
	switch {
	case w.inline && (wr.Opcode == WRRDMARead || wr.Opcode >= WRAtomicCmpAndSwp && wr.Opcode <= WRBindMW):
		return "inline data with an operation that sends none"
	case w.inline && len(wr.Inline) > s.maxInline:
		return "more inline data than MaxInlineData"
	case !w.inline && len(wr.SGList) > q.attr.Cap.MaxSendSGE:
		return "a longer list than MaxSendSGE"
	case w.inline:
		length = uint64(len(wr.Inline))
		copy(s.inlineAt(s.tail), wr.Inline)
	default:
		w.n = uint8(copy(w.sge[:], wr.SGList))
	}
	w.ah, w.bind, w.bindTo, w.local = nil, nil, nil, false
	w.packets = 1
	switch wr.Opcode {
	case WRAtomicCmpAndSwp, WRAtomicFetchAndAdd:
		if length != 8 {
			return "an atomic needs 8 bytes for its result"
		}
	case WRLocalInv, WRBindMW:
		if length != 0 {
			return "a local operation has no data"
		}
		w.local, w.packets = true, 0
		if wr.Opcode == WRBindMW {
			if wr.MW == nil || wr.Bind.MR == nil {
				return "a window and a region are needed"
			}
			w.bind, w.bindTo = wr.MW, wr.Bind.MR
		}
	}
	if (wr.Opcode == WRRDMARead || wr.Opcode == WRAtomicCmpAndSwp || wr.Opcode == WRAtomicFetchAndAdd) && q.attr.MaxRDAtomic == 0 {
		return "MaxRDAtomic is 0"
	}
	if q.typ >= UD {
		if wr.AH == nil || wr.AH.pd != q.pd {
			return "an address handle of the queue pair's PD is needed"
		}
		if length > uint64(q.mtu) {
			return "more data than the path MTU"
		}
		if wr.RemoteQPN > psnMask {
			return "RemoteQPN has more than 24 bits"
		}
		w.ah, w.qpn, w.rkey = wr.AH, wr.RemoteQPN, wr.RemoteQKey
		if w.rkey>>31 != 0 {
			w.rkey = q.attr.QKey // a controlled Q_Key (IBA, 10.2.5)
		}
	} else {
		if length > maxMessage {
			return "more data than 2 GiB"
		}
		w.rkey = wr.RKey
	}
	w.wrID, w.opcode, w.status = wr.WRID, wr.Opcode, StatusSuccess
	w.remoteAddr, w.compareAdd, w.swap = wr.RemoteAddr, wr.CompareAdd, wr.Swap
	w.imm = wr.ImmData
	switch wr.Opcode {
	case WRSendWithInv, WRLocalInv:
		w.imm = wr.InvalidateRKey
	case WRBindMW:
		w.remoteAddr, w.compareAdd, w.rkey, w.imm = wr.Bind.Addr, wr.Bind.Length, wr.Bind.RKey, uint32(wr.Bind.Access)
	}
	w.length = uint32(length)
	if !w.local && length > uint64(q.mtu) {
		w.packets = (w.length + q.mtu - 1) / q.mtu
	}
	w.fence, w.solicited = wr.Flags&SendFence != 0, wr.Flags&SendSolicited != 0
	w.signaled = q.sqSigAll || wr.Flags&SendSignaled != 0
	s.tail++
	return ""
}

var wcOpcodes = [...]WCOpcode{
	WRRDMAWrite: WCRDMAWrite, WRRDMAWriteWithImm: WCRDMAWrite, WRSend: WCSend, WRSendWithImm: WCSend, WRRDMARead: WCRDMARead,
	WRAtomicCmpAndSwp: WCCompSwap, WRAtomicFetchAndAdd: WCFetchAdd, WRLocalInv: WCLocalInv, WRBindMW: WCBindMW, WRSendWithInv: WCSend,
}

// completeSend ends the oldest work request of the send queue.
func (q *QP) completeSend(status Status) {
	s := &q.sq
	w := s.at(s.head)
	s.head++
	if int32(s.next-s.head) < 0 { // it was to be sent again
		s.next = s.head
	}
	if w.signaled || status != StatusSuccess {
		wc := WC{WRID: w.wrID, Status: status, Opcode: wcOpcodes[w.opcode], QPNum: q.num}
		if w.answered() {
			wc.ByteLen = w.length
		}
		q.sendCQ.push(&wc, false)
	}
	w.ah, w.bind, w.bindTo = nil, nil, nil
}

// flushSend ends all work requests of the send queue.
func (q *QP) flushSend() {
	for q.sq.head != q.sq.tail {
		q.completeSend(StatusWRFlushErr)
	}
	q.sq.next, q.sq.begun = q.sq.head, q.sq.head
}

// failSend ends the oldest work request of the send queue with an error and the queue with it:
// ERR, or SQE on an unreliable queue pair.
func (q *QP) failSend(status Status) {
	if q.sq.head == q.sq.tail { // flushed, because the completion queue has overrun
		return
	}
	q.completeSend(status)
	if q.typ == RC {
		q.enterError()
		return
	}
	q.state, q.attr.State = StateSQE, StateSQE
	q.flushSend()
}
