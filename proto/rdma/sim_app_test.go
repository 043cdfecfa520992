package rdma

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"github.com/unet-go/unet/wire"
)

// simEnd is one end of two queue pairs that are connected, or that exchange datagrams, and its
// application. It sends, and carries out one-sided operations on a region of its peer's.
type simEnd struct {
	h              *simHost
	index          int
	peer           *simEnd
	qp             *QP
	typ            QPType
	ah             *AH
	sendCQ, recvCQ *simCQ
	maxMessage     int
	reader         bool // most operations are READs
	left           int  // operations that are still to be posted
	draining       bool
	broken         bool // it, or its peer, was moved to ERR, or has given up

	// RC: packets of the connection that were lost while una was lostAt, since an RNR NAK.
	losses int
	lostAt uint32

	// UC keeps the order of messages, and drops duplicates, of packets up to behindWindow late.
	furthest   uint32 // PSN that has come
	disordered bool   // one has come later than that
	behind     int    // index in sent of the peer behind the last message that was received

	ops    []*simOp // that have not completed
	nextOp uint64
	local  simArena // memory of its own for the operations

	// The peer's one-sided operations work on region. model is what it holds when all that
	// was posted is done, kept by the peer; UC cannot know, and has writes.
	region *MR
	model  []byte
	writes []simWrite

	sent      []*simMessage // to the peer; RC: not yet received
	delivered int
	recv      *simReceives

	window simWindow // of this end's memory, for the peer
}

// simOp is an operation that was posted.
type simOp struct {
	wr       SendWR
	signaled bool
	until    int // the arena's tail up to which its memory reaches
	reads    bool
	off, n   int         // of the peer's region
	want     []byte      // a READ: the result. An own atomic: what the word held
	message  *simMessage // nil: it consumes no receive
	shared   bool        // an atomic on the counter
	done     func()
}

// simMessage is what a receive of the peer must report.
type simMessage struct {
	key     uint64
	data    []byte
	written bool // by a WRITE with immediate data
	imm     uint32
	hasImm  bool
	inv     uint32
	hasInv  bool
	copies  int  // that were received
	acked   bool // the sender knows that it was received
}

type simWrite struct {
	off  int
	data []byte
}

// simWindow is a memory window. The application uses it again and again.
type simWindow struct {
	mw     *MW
	state  windowState
	off, n int
	key    uint32
}

type windowState uint8

const (
	unbound windowState = iota
	binding
	bound        // and the peer may use it
	invalidating // the peer invalidates it, or its owner does
)

// simArena is a ring of registered memory.
type simArena struct {
	mr         *MR
	head, tail int // counts of bytes
}

// alloc takes n bytes in one piece, aligned to 8, or returns -1.
func (a *simArena) alloc(n int) int {
	size := len(a.mr.mem)
	at := (a.tail + 7) &^ 7
	if at%size+n > size {
		at += size - at%size
	}
	if at+n-a.head > size {
		return -1
	}
	a.tail = at + n
	return at % size
}

// dataOf is the data that a list refers to, all in one region.
func dataOf(mr *MR, list []SGE) (b []byte) {
	for _, s := range list {
		off := int(s.Addr - mr.base)
		b = append(b, mr.mem[off:off+int(s.Length)]...)
	}
	return b
}

// setBytes writes b to what a list refers to.
func setBytes(mr *MR, list []SGE, b []byte) {
	for _, s := range list {
		off := int(s.Addr - mr.base)
		b = b[copy(mr.mem[off:off+int(s.Length)], b):]
	}
}

// pieces cuts n bytes of a region into at most most pieces, in any order.
func (w *simulation) pieces(mr *MR, off, n, most int) (list []SGE) {
	for k := 1 + w.rand.IntN(most); k > 0; k-- {
		m := n
		if k > 1 {
			m = w.rand.IntN(n + 1)
		}
		list = append(list, mr.SGE(off, m))
		off, n = off+m, n-m
	}
	w.rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// content is n bytes that no other message has.
func content(key uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewPCG(key, 3)
	for i := 0; i < n; i += 8 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], r.Uint64())
		copy(b[i:], word[:])
	}
	if n >= 8 {
		binary.LittleEndian.PutUint64(b, key)
	}
	return b
}

// simReceives is a receive queue, of one queue pair or shared, and its memory.
type simReceives struct {
	h      *simHost
	srq    *SRQ // or qp
	qp     *QP
	mr     *MR
	size   int           // bytes of each receive
	lists  map[int][]SGE // of what is posted
	free   []int
	sges   int
	posted int
	gone   int // that had been taken by queue pairs when these were reset
}

func (w *simulation) newReceives(h *simHost, n, size, sges int) *simReceives {
	r := &simReceives{h: h, mr: w.register(h, n*size), size: size, lists: map[int][]SGE{}, sges: sges}
	for i := range n {
		r.free = append(r.free, i)
	}
	return r
}

// post posts up to n receives.
func (r *simReceives) post(n int) {
	w := r.h.w
	var wrs []RecvWR
	for range min(n, len(r.free)) {
		k := w.rand.IntN(len(r.free))
		slot := r.free[k]
		r.free = slices.Delete(r.free, k, k+1)
		r.lists[slot] = w.pieces(r.mr, slot*r.size, r.size, r.sges)
		wrs = append(wrs, RecvWR{WRID: uint64(slot), SGList: slices.Clone(r.lists[slot])})
	}
	var got int
	var err error
	if r.srq != nil {
		got, err = r.srq.PostRecv(wrs...)
	} else {
		got, err = r.qp.PostRecv(wrs)
	}
	if err != nil || got != len(wrs) {
		w.fatalf("host %d: posted %d receives of %d: %v", r.h.index, got, len(wrs), err)
	}
	for i := range wrs { // the lists were copied
		clear(wrs[i].SGList)
	}
	r.posted += got
}

// take is the first n bytes of a receive that has completed.
func (r *simReceives) take(id uint64, n uint32) []byte {
	list, ok := r.lists[int(id)]
	if !ok {
		r.h.w.fatalf("host %d: receive %d completes, which is not posted", r.h.index, id)
	}
	delete(r.lists, int(id))
	r.free = append(r.free, int(id))
	r.posted--
	b := dataOf(r.mr, list)
	if int(n) > len(b) {
		r.h.w.fatalf("host %d: receive %d has %d bytes of %d", r.h.index, id, n, len(b))
	}
	return b[:n]
}

// events takes what the device reports.
func (h *simHost) events() {
	for {
		ev, ok := h.d.NextEvent()
		if !ok {
			return
		}
		h.w.note("%d event: %v", h.index, ev.Type)
		switch ev.Type {
		case EventCompletion:
			h.cqs[slices.IndexFunc(h.cqs, func(c *simCQ) bool { return c.cq == ev.CQ })].awake = true
		case EventSQDrained:
			e := h.ends[slices.IndexFunc(h.ends, func(e *simEnd) bool { return e.qp == ev.QP })]
			if e.qp.state != StateSQD { // it was moved to ERR since
				break
			}
			if n := e.qp.sq.begun - e.qp.sq.head; n > 0 {
				h.w.fatalf("host %d: drained, and %d operations are not complete", h.index, n)
			}
			e.draining = false
			h.w.must(e.qp.Modify(h.w.now, &QPAttr{State: StateRTS}, QPState))
		case EventCommEst, EventSRQLimitReached, EventQPLastWQEReached:
		default:
			h.w.fatalf("host %d: event %v", h.index, ev.Type)
		}
	}
}

// poll takes completions.
func (h *simHost) poll(c *simCQ) {
	if c.byEvent && !c.awake {
		return
	}
	c.awake = false
	var wcs [8]WC
	for armed := false; ; {
		n := c.cq.Poll(wcs[:1+h.w.rand.IntN(len(wcs))])
		for i := range n {
			h.complete(c, &wcs[i])
		}
		switch {
		case n > 0:
		case c.byEvent && !armed:
			c.cq.ReqNotify(false)
			armed = true
		default:
			return
		}
	}
}

// complete takes a completion.
func (h *simHost) complete(c *simCQ, wc *WC) {
	w := h.w
	w.note("%d completion %+v", h.index, *wc)
	i := slices.IndexFunc(h.ends, func(e *simEnd) bool { return e.qp.num == wc.QPNum })
	if i < 0 {
		w.fatalf("host %d: a completion of no queue pair: %+v", h.index, wc)
	}
	e := h.ends[i]
	if wc.Status != StatusSuccess {
		if !e.broken {
			w.fatalf("host %d: %+v: %v", h.index, wc, wc.Status)
		}
		if wc.Status != StatusWRFlushErr && wc.Status != StatusRetryExcErr {
			w.fatalf("host %d: after the queue pair has ended: %+v: %v", h.index, wc, wc.Status)
		}
	}
	if wc.Opcode >= WCRecv {
		if c != e.recvCQ {
			w.fatalf("host %d: a receive completes in another CQ", h.index)
		}
		e.received(wc)
		return
	}
	if c != e.sendCQ {
		w.fatalf("host %d: an operation completes in another CQ", h.index)
	}
	e.completed(wc)
}

// completed takes the completion of an operation: those before it that were not signaled have
// completed, too.
func (e *simEnd) completed(wc *WC) {
	w := e.h.w
	for {
		if len(e.ops) == 0 {
			w.fatalf("host %d: an operation completes that was not posted, or twice: %+v", e.h.index, wc)
		}
		op := e.ops[0]
		e.ops = e.ops[1:]
		last := op.wr.WRID == wc.WRID
		if !last && (op.signaled || wc.WRID < op.wr.WRID) {
			w.fatalf("host %d: operation %#x completes before %#x, or again", e.h.index, wc.WRID, op.wr.WRID)
		}
		if last && !op.signaled && wc.Status == StatusSuccess {
			w.fatalf("host %d: a completion of %#x, which was not signaled", e.h.index, wc.WRID)
		}
		if last && wc.Status == StatusSuccess && wc.Opcode != wcOpcodes[op.wr.Opcode] {
			w.fatalf("host %d: %v completes as %+v", e.h.index, op.wr.Opcode, wc)
		}
		status := StatusSuccess
		if last {
			status = wc.Status
		}
		e.finish(op, status)
		if last {
			return
		}
	}
}

// finish ends an operation.
func (e *simEnd) finish(op *simOp, status Status) {
	w := e.h.w
	e.local.head = op.until
	if status != StatusSuccess {
		if op.shared {
			e.peer.h.counterUnknown = true
		}
		return
	}
	if op.message != nil {
		op.message.acked = true
	}
	got := dataOf(e.local.mr, op.wr.SGList)
	switch {
	case op.shared:
		from := binary.NativeEndian.Uint64(got)
		to := from + op.wr.CompareAdd
		if op.wr.Opcode == WRAtomicCmpAndSwp {
			if to = from; from == op.wr.CompareAdd {
				to = op.wr.Swap
			}
		}
		e.peer.h.chain = append(e.peer.h.chain, transition{from, to})
		e.peer.h.lastCounter = to
	case op.want != nil && !bytes.Equal(got, op.want):
		w.fatalf("host %d: %v %#x of %d bytes at %d:\ngot  %x\nwant %x", e.h.index, op.wr.Opcode, op.wr.WRID, op.n, op.off, got, op.want)
	}
	if op.done != nil {
		op.done()
	}
}

// received takes the completion of a receive.
func (e *simEnd) received(wc *WC) {
	w := e.h.w
	if wc.Status != StatusSuccess {
		e.recv.take(wc.WRID, 0)
		return
	}
	n := wc.ByteLen
	if wc.Opcode == WCRecvRDMAWithImm {
		n = 0
	}
	data := e.recv.take(wc.WRID, n)
	if e.typ == UD {
		if wc.Flags&WCGRH == 0 || n < 40 || wc.SrcQP != e.peer.qp.num {
			w.fatalf("host %d: a datagram without a header, or from another queue pair: %+v", e.h.index, wc)
		}
		var ip wire.IPv4
		if ip.Parse(append(bytes.Clone(data[20:40]), make([]byte, 1<<16)...)) != nil || ip.Src != e.peer.h.d.cfg.Addr || ip.Dst != e.h.d.cfg.Addr {
			w.fatalf("host %d: the header of a datagram is %x", e.h.index, data[:40])
		}
		data = data[40:]
	}
	m := e.match(wc, data)
	m.copies++
	e.delivered++
	flags := wc.Flags &^ WCGRH
	var want WCFlags
	if m.hasImm {
		want |= WCWithImm
	}
	if m.hasInv {
		want |= WCWithInv
	}
	switch {
	case flags != want || m.hasImm && wc.ImmData != m.imm || m.hasInv && wc.InvalidatedRKey != m.inv:
		w.fatalf("host %d: %+v, want %+v", e.h.index, wc, m)
	case m.written != (wc.Opcode == WCRecvRDMAWithImm), m.written && int(wc.ByteLen) != len(m.data):
		w.fatalf("host %d: %+v, want a message of %d bytes, written %t", e.h.index, wc, len(m.data), m.written)
	case !m.written && !bytes.Equal(data, m.data):
		w.fatalf("host %d: message %#x:\ngot  %x\nwant %x", e.h.index, m.key, data, m.data)
	case m.copies > 1 && e.ordered():
		w.fatalf("host %d: message %#x has come twice", e.h.index, m.key)
	}
	if m.hasInv {
		if e.window.state != invalidating || e.window.mw.mem != nil {
			w.fatalf("host %d: the window was not invalidated", e.h.index)
		}
		e.window.state = unbound
	}
}

// arrives records the PSN of a packet of UC.
func (e *simEnd) arrives(psn uint32) {
	switch diff := psnDiff(psn, e.furthest); {
	case diff > 0:
		e.furthest = psn
	case diff <= -behindWindow: // more than that before the expected PSN, furthest + 1
		e.disordered = true
	}
}

// ordered reports whether each message is received once, in the order of sending.
func (e *simEnd) ordered() bool { return e.typ == RC || e.typ == UC && !e.disordered }

// match finds the message that a receive has got.
func (e *simEnd) match(wc *WC, data []byte) *simMessage {
	w, sent := e.h.w, e.peer.sent
	if e.typ == RC {
		if len(sent) == 0 {
			w.fatalf("host %d: a message that was not sent: %+v", e.h.index, wc)
		}
		e.peer.sent = sent[1:]
		return sent[0]
	}
	from := 0
	if e.ordered() { // what was sent before is lost
		from = e.behind
	}
	i := slices.IndexFunc(sent[from:], func(m *simMessage) bool {
		if wc.Flags&WCWithImm != 0 {
			return m.hasImm && m.imm == wc.ImmData
		}
		return len(data) >= 8 && !m.hasImm && m.key == binary.LittleEndian.Uint64(data)
	})
	if i < 0 {
		w.fatalf("host %d: a message that was not sent, or out of order: %+v %x", e.h.index, wc, data[:min(len(data), 64)])
	}
	e.behind = from + i + 1
	return sent[from+i]
}

// endConnection ends what is to be done on a connection.
func (e *simEnd) endConnection() {
	e.broken, e.peer.broken = true, true
	e.left, e.peer.left = 0, 0
}

// reset moves the queue pair to RESET. What is posted has no completions.
func (e *simEnd) reset() {
	h := e.h
	for _, c := range h.cqs {
		c.awake = true
		h.poll(c)
	}
	if e.broken { // a completion has reported it
		return
	}
	h.w.note("%d RESET of QP %#x", h.index, e.qp.num)
	if e.recv == h.srq {
		if e.qp.resp.taken {
			h.srq.gone++
		}
	} else {
		e.recv.posted = 0
	}
	for _, op := range e.ops {
		e.peer.h.counterUnknown = e.peer.h.counterUnknown || op.shared
	}
	e.ops = nil
	h.w.must(e.qp.Modify(h.w.now, &QPAttr{State: StateReset}, QPState))
	if e.qp.timer.At() != Never {
		h.w.fatalf("host %d: a timer of QP %#x is left in RESET", h.index, e.qp.num)
	}
	e.endConnection()
}

// step executes a random call of the application.
func (e *simEnd) step() {
	w := e.h.w
	switch w.rand.IntN(12) {
	case 0, 1, 2, 3:
		e.postSends()
	case 4, 5:
		if !e.broken && (!w.scarce || w.chance(40)) {
			e.recv.post(1 + w.rand.IntN(16))
		}
	case 6:
		e.bind()
	case 7:
		// The application uses the counter, too.
		h := e.h
		add := w.rand.Uint64()
		from := fetchAdd(h.counter.mem, add)
		h.chain = append(h.chain, transition{from, from + add})
	case 8:
		if w.chance(30) && e.qp.state == StateRTS && !e.draining {
			e.draining = true
			w.note("%d SQD", e.h.index)
			w.must(e.qp.Modify(w.now, &QPAttr{State: StateSQD, EnSQDAsyncNotify: true}, QPState|QPEnSQDAsyncNotify))
		}
	default:
		e.h.poll(e.sendCQ)
		e.h.poll(e.recvCQ)
	}
	e.h.events()
}

// postSends posts a list of operations.
func (e *simEnd) postSends() {
	w := e.h.w
	if e.broken || e.qp.state != StateRTS && e.qp.state != StateSQD {
		return
	}
	var wrs []SendWR
	var ops []*simOp
	n := min(e.left, 1+w.rand.IntN(8), e.qp.sq.size-e.qp.sq.len())
	for i := range n {
		op := e.newOp(e.left == 1 || e.qp.sq.len()+i+1 == e.qp.sq.size)
		if op == nil {
			break
		}
		e.left--
		wr := op.wr
		wr.SGList = slices.Clone(wr.SGList)
		ops, wrs = append(ops, op), append(wrs, wr)
	}
	e.post(ops, wrs)
}

func (e *simEnd) post(ops []*simOp, wrs []SendWR) {
	w := e.h.w
	for _, op := range ops {
		w.note("%d posts %v %#x at %d, %d bytes, flags %#x", e.h.index, op.wr.Opcode, op.wr.WRID, op.off, op.n, op.wr.Flags)
	}
	e.ops = append(e.ops, ops...)
	if got, err := e.qp.PostSend(w.now, wrs); err != nil || got != len(wrs) {
		w.fatalf("host %d: posted %d operations of %d: %v", e.h.index, got, len(wrs), err)
	}
	for i := range wrs { // it was copied
		clear(wrs[i].SGList)
		for j := range wrs[i].Inline {
			wrs[i].Inline[j] = 0xdd
		}
	}
}

// size is a random length of a message.
func (e *simEnd) size() int {
	w := e.h.w
	switch w.rand.IntN(4) {
	case 0:
		return w.rand.IntN(min(e.maxMessage, 65) + 1)
	case 1:
		return min(e.maxMessage, max(0, int(e.qp.mtu)*(1+w.rand.IntN(4))+w.rand.IntN(3)-1)) // about full packets
	default:
		return w.rand.IntN(e.maxMessage + 1)
	}
}

// newOp makes an operation, or nil if there is no memory for it. The last one before the
// queue is full, or of all, is signaled.
func (e *simEnd) newOp(last bool) *simOp {
	w, peer := e.h.w, e.peer
	op := &simOp{until: e.local.tail}
	wr := &op.wr
	wr.WRID = e.nextOp
	if op.signaled = last || w.chance(3) || e.qp.sqSigAll; op.signaled {
		wr.Flags = SendSignaled
	}
	if e.qp.sqSigAll {
		wr.Flags = 0
	}
	if w.chance(4) {
		wr.Flags |= SendFence
	}
	key := uint64(e.h.index)<<56 | uint64(e.index)<<48 | e.nextOp + 1
	switch e.typ {
	case UD:
		wr.Opcode = []WROpcode{WRSend, WRSendWithImm}[w.rand.IntN(2)]
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = e.ah, peer.qp.num, peer.qp.attr.QKey
	case UC:
		wr.Opcode = []WROpcode{WRSend, WRSendWithImm, WRRDMAWrite, WRRDMAWriteWithImm}[w.rand.IntN(4)]
	default:
		wr.Opcode = []WROpcode{WRSend, WRSendWithImm, WRRDMAWrite, WRRDMAWrite, WRRDMAWriteWithImm, WRRDMARead, WRRDMARead, WRAtomicCmpAndSwp, WRAtomicFetchAndAdd, WRSendWithInv}[w.rand.IntN(10)]
		if e.reader && !w.chance(4) {
			wr.Opcode = WRRDMARead
		}
		if wr.Opcode == WRSendWithInv && peer.window.state != bound {
			wr.Opcode = WRSend
		}
	}
	atomic := wr.Opcode == WRAtomicCmpAndSwp || wr.Opcode == WRAtomicFetchAndAdd
	size := e.size()
	op.n = size
	if atomic {
		size = 8
	}
	if e.typ != RC && wr.Opcode == WRSend {
		size = min(max(size, 8), e.maxMessage) // the receiver knows a message by its data
		op.n = size
	}
	data := content(key, size)
	if size <= e.qp.sq.maxInline && !atomic && wr.Opcode != WRRDMARead && w.chance(2) {
		wr.Flags |= SendInline
		wr.Inline = bytes.Clone(data)
	} else {
		at := e.local.alloc(size)
		if at < 0 {
			return nil
		}
		op.until = e.local.tail
		if e.local.tail-e.local.head > e.maxMessage && !op.signaled { // there will be room for the next one
			op.signaled, wr.Flags = true, wr.Flags|SendSignaled
		}
		wr.SGList = w.pieces(e.local.mr, at, size, e.qp.attr.Cap.MaxSendSGE)
		if wr.Opcode == WRRDMARead || atomic {
			setBytes(e.local.mr, wr.SGList, bytes.Repeat([]byte{0xcc}, size))
		} else {
			setBytes(e.local.mr, wr.SGList, data)
		}
	}
	e.nextOp++
	if w.chance(3) && !atomic && wr.Opcode != WRRDMARead && wr.Opcode != WRRDMAWrite {
		wr.Flags |= SendSolicited
	}
	if wr.Opcode == WRSendWithImm || wr.Opcode == WRRDMAWriteWithImm {
		wr.ImmData = uint32(key) * 0x9e3779b1 // one to one
	}
	switch wr.Opcode {
	case WRSend, WRSendWithImm, WRSendWithInv, WRRDMAWriteWithImm:
		op.message = &simMessage{key: key, data: data, imm: wr.ImmData, hasImm: wr.Opcode != WRSend && wr.Opcode != WRSendWithInv, written: wr.Opcode == WRRDMAWriteWithImm}
		if wr.Opcode == WRSendWithInv {
			wr.InvalidateRKey = peer.window.key
			op.message.inv, op.message.hasInv = peer.window.key, true
			peer.window.state = invalidating
		}
		e.sent = append(e.sent, op.message)
	}
	switch wr.Opcode {
	case WRRDMAWrite, WRRDMAWriteWithImm:
		e.target(op, len(peer.region.mem)-size)
		e.useWindow(op)
		copy(peer.model[op.off:], data)
		if e.typ == UC {
			peer.writes = append(peer.writes, simWrite{op.off, data})
		}
	case WRRDMARead:
		op.reads = true
		e.target(op, len(peer.region.mem)-size)
		op.want = bytes.Clone(peer.model[op.off : op.off+size])
	case WRAtomicCmpAndSwp, WRAtomicFetchAndAdd:
		op.n = 8
		wr.CompareAdd, wr.Swap = w.rand.Uint64(), w.rand.Uint64()
		if w.chance(2) {
			op.shared = true
			wr.RKey, wr.RemoteAddr = peer.h.counter.RKey(), peer.h.counter.Addr()
			op.n = 0
			if wr.Opcode == WRAtomicCmpAndSwp {
				wr.CompareAdd = peer.h.lastCounter
			}
			break
		}
		e.target(op, len(peer.region.mem)-8)
		op.off &^= 7
		wr.RemoteAddr = peer.region.Addr() + uint64(op.off)
		word := peer.model[op.off : op.off+8]
		op.want = bytes.Clone(word)
		old := binary.NativeEndian.Uint64(word)
		if wr.Opcode == WRAtomicFetchAndAdd {
			binary.NativeEndian.PutUint64(word, old+wr.CompareAdd)
			break
		}
		if w.chance(2) {
			wr.CompareAdd = old
		}
		if wr.CompareAdd == old {
			binary.NativeEndian.PutUint64(word, wr.Swap)
		}
	}
	return op
}

// target chooses where in the peer's region an operation works. If a READ is outstanding there, and it writes, it has
// to wait for that: it has a fence.
func (e *simEnd) target(op *simOp, most int) {
	w := e.h.w
	op.off = w.rand.IntN(most + 1)
	op.wr.RKey, op.wr.RemoteAddr = e.peer.region.RKey(), e.peer.region.Addr()+uint64(op.off)
	if op.reads {
		return
	}
	// Those of the same list are outstanding, too, but not yet in ops: a fence does no harm.
	op.wr.Flags |= SendFence
	if w.chance(2) && !slices.ContainsFunc(e.ops, func(o *simOp) bool { return o.reads }) && e.typ == RC {
		return
	}
	if e.typ != RC {
		op.wr.Flags &^= SendFence
	}
}

// useWindow lets a WRITE use the peer's window, if it fits.
func (e *simEnd) useWindow(op *simOp) {
	v := &e.peer.window
	if v.state == bound && op.n <= v.n && e.h.w.chance(2) {
		op.off = v.off + e.h.w.rand.IntN(v.n-op.n+1)
		op.wr.RKey, op.wr.RemoteAddr = v.key, e.peer.region.Addr()+uint64(op.off)
	}
}

// bind binds this end's window, so that the peer may use it, or invalidates it.
func (e *simEnd) bind() {
	w, v := e.h.w, &e.window
	if e.typ != RC || e.broken || v.state != unbound || e.qp.sq.len()+2 > e.qp.sq.size || e.qp.state != StateRTS || e.left == 0 {
		return
	}
	v.state = binding
	v.n = 1 + w.rand.IntN(len(e.region.mem))
	v.off = w.rand.IntN(len(e.region.mem) - v.n + 1)
	v.key = IncRKey(v.mw.RKey())
	op := &simOp{until: e.local.tail, signaled: true}
	op.wr = SendWR{WRID: e.nextOp, Opcode: WRBindMW, Flags: SendSignaled, MW: v.mw,
		Bind: MWBind{RKey: v.key, MR: e.region, Addr: e.region.Addr() + uint64(v.off), Length: uint64(v.n), Access: AccessRemoteWrite}}
	e.nextOp++
	ops := []*simOp{op}
	if w.chance(3) {
		inv := &simOp{until: e.local.tail, signaled: true, done: func() { v.state = unbound }}
		inv.wr = SendWR{WRID: e.nextOp, Opcode: WRLocalInv, Flags: SendSignaled, InvalidateRKey: v.key}
		e.nextOp++
		ops = append(ops, inv)
	} else {
		op.done = func() { v.state = bound }
	}
	wrs := make([]SendWR, len(ops))
	for i, op := range ops {
		wrs[i] = op.wr
	}
	e.post(ops, wrs)
}
