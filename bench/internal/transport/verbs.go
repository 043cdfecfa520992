package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/verbs"
)

// Sizes of the queue pair that carries messages.
const (
	messageSends    = 256 // work requests
	messageReceives = 512
	repostAt        = 64  // receives that are posted together
	maxInline       = 256 // bytes
)

// device is a context of package verbs on an endpoint of this host's unetd, with one region.
// Both ends of a connection exchange in its private data where their regions are.
type device struct {
	job    workload.Job
	host   *unet.Host
	ctx    *verbs.Context
	pd     *verbs.PD
	mr     *verbs.MR
	listen *verbs.Listener // server
	ud     *verbs.QP       // server: of requests by datagram; nil: none
	peer   region
}

// region is what a peer needs to know, as private data.
type region struct {
	addr uint64
	rkey uint32
	qpn  uint32 // that takes datagrams
}

const regionLen = 16

func (r region) bytes() []byte {
	b := binary.BigEndian.AppendUint64(nil, r.addr)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, r.rkey), r.qpn)
}

func parseRegion(b []byte) (r region, err error) {
	if len(b) < regionLen {
		return r, fmt.Errorf("private data of %d bytes", len(b))
	}
	return region{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}, nil
}

// openDevice makes a region of size bytes that the peer may access.
func openDevice(ctx context.Context, j workload.Job, size int) (d *device, err error) {
	d = &device{job: j}
	if d.host, err = openHost(ctx, j); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	for until := time.Now().Add(rebindTimeout); ; {
		// The daemon may still be reclaiming the port of the last round.
		if d.ctx, err = verbs.Open(ctx, d.host, verbs.Config{}); err == nil {
			break
		}
		if !errors.Is(err, syscall.EADDRINUSE) || expired(until) {
			return d, err
		}
		time.Sleep(time.Millisecond)
	}
	d.pd = d.ctx.AllocPD()
	if d.mr, err = d.pd.RegMR(make([]byte, size), verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic); err != nil {
		return d, err
	}
	if j.Role == workload.Server {
		d.listen, err = d.ctx.Listen(j.Local.UDP.Port(), 0)
	}
	return d, err
}

func (d *device) Close() (err error) {
	if d.ctx != nil {
		err = d.ctx.Close()
	}
	return errors.Join(err, d.host.Close())
}

// param is what this side says of itself.
func (d *device) param() *verbs.ConnParam {
	r := region{addr: d.mr.Addr(), rkey: d.mr.RKey()}
	if d.ud != nil {
		r.qpn = d.ud.Num()
	}
	return &verbs.ConnParam{PrivateData: r.bytes(), ResponderResources: readDepth, InitiatorDepth: readDepth, RetryCount: 7, RNRRetryCount: 7}
}

// readDepth is how many READs and atomics of a queue pair are in flight, at most.
const readDepth = 16

// connect dials the peer, or accepts it.
func (d *device) connect(qp *verbs.QP) error {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	if d.listen == nil {
		return d.dial(ctx, qp)
	}
	for {
		r, err := d.listen.Accept(ctx)
		if err != nil {
			return err
		}
		if d.peer, err = parseRegion(r.Private()); err != nil {
			return err
		}
		if _, err = r.Accept(ctx, qp, d.param()); err == nil {
			return nil
		}
		// A client that has given up dials again.
		if err := errors.Join(ctx.Err(), reset(qp)); err != nil {
			return err
		}
	}
}

const connectTimeout = 15 * time.Second

func reset(qp *verbs.QP) error {
	return qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.QPState)
}

// dial repeats what the server has not heard sooner than the connection manager does.
func (d *device) dial(ctx context.Context, qp *verbs.QP) error {
	for patience := 100 * time.Millisecond; ; patience *= 2 {
		try, cancel := context.WithTimeout(ctx, patience)
		conn, err := d.ctx.Dial(try, d.job.Remote.UDP, qp, d.param())
		cancel()
		if err == nil {
			d.peer, err = parseRegion(conn.Private())
			return err
		}
		if err := errors.Join(ctx.Err(), reset(qp)); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// createQP makes a queue pair of RC.
func (d *device) createQP(sendCQ, recvCQ *verbs.CQ, sends, receives int) (*verbs.QP, error) {
	return d.pd.CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: sendCQ, RecvCQ: recvCQ, Cap: verbs.QPCap{
		MaxSendWR: sends, MaxRecvWR: receives, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: maxInline,
	}})
}

// slotLen is the distance between the slots of n bytes in a region.
func slotLen(n int) int { return (n + 7) &^ 7 }

// sends is the send queue of a queue pair for messages: their slots in the region, and
// which are free.
type sends struct {
	dev      *device
	qp       *verbs.QP
	cq       *verbs.CQ
	at, slot int // of the slots in the region
	inline   bool
	every    uint64 // one of so many is signaled
	wrs      []verbs.SendWR
	list     []verbs.SGE
	wcs      [4]verbs.WC

	posted, done uint64
}

func newSends(d *device, qp *verbs.QP, cq *verbs.CQ, at int) *sends {
	s := &sends{
		dev: d, qp: qp, cq: cq, at: at, slot: slotLen(d.job.Size), every: 1,
		inline: d.job.Verbs.Has(workload.Inline) && d.job.Size <= maxInline,
		wrs:    make([]verbs.SendWR, max(d.job.Batch, 1)),
		list:   make([]verbs.SGE, max(d.job.Batch, 1)),
	}
	if d.job.Verbs.Has(workload.Unsignaled) {
		s.every = messageSends / 4
	}
	return s
}

// next is the slot of the next message, of n bytes, that add posts.
func (s *sends) next(n int) (off int, b []byte) {
	off = s.at + int(s.posted%messageSends)*s.slot
	return off, s.dev.mr.Bytes()[off : off+n]
}

// stage prepares work request i, with the message in slot off. The memory that lists need is
// taken when none is left.
func (s *sends) stage(i int, op verbs.WROpcode, off, n int, deadline time.Time) error {
	for s.posted-s.done >= messageSends {
		if err := s.reclaim(deadline); err != nil {
			return err
		}
	}
	wr := &s.wrs[i]
	*wr = verbs.SendWR{WRID: s.posted, Opcode: op}
	if s.inline {
		wr.Inline, wr.Flags = s.dev.mr.Bytes()[off:off+n], verbs.SendInline
	} else {
		s.list[i] = s.dev.mr.SGE(off, n)
		wr.SGList = s.list[i : i+1]
	}
	if s.posted++; s.posted%s.every == 0 {
		wr.Flags |= verbs.SendSignaled
	}
	return nil
}

func (s *sends) reclaim(deadline time.Time) error {
	n, err := s.cq.Wait(s.wcs[:], deadline)
	for _, wc := range s.wcs[:n] {
		if wc.Status != verbs.StatusSuccess {
			return fmt.Errorf("send: %v", wc.Status)
		}
		s.done = wc.WRID + 1
	}
	return err
}

// post posts the first n staged work requests.
func (s *sends) post(n int) error {
	_, err := s.qp.PostSend(s.wrs[:n]...)
	return err
}

// receives is a receive queue whose slots are used in turn.
type receives struct {
	dev     *device
	qp      *verbs.QP
	at, len int // of the slots in the region; len 0: receives without memory
	wrs     [repostAt]verbs.RecvWR
	list    [repostAt]verbs.SGE
	n       int // of wrs: to be posted
}

// fill posts n receives, a multiple of repostAt.
func (r *receives) fill(n int) error {
	for i := range n {
		if err := r.repost(uint64(i)); err != nil {
			return err
		}
	}
	return nil
}

// repost gives the receive of a slot back, with others.
func (r *receives) repost(slot uint64) error {
	wr := &r.wrs[r.n]
	if wr.WRID = slot; r.len > 0 {
		r.list[r.n] = r.dev.mr.SGE(r.at+int(slot)*r.len, r.len)
		wr.SGList = r.list[r.n : r.n+1]
	}
	if r.n++; r.n < repostAt {
		return nil
	}
	r.n = 0
	_, err := r.qp.PostRecv(r.wrs[:]...)
	return err
}

// rcSend carries messages by SEND and RECV.
type rcSend struct {
	*device
	*sends
	receives receives
	recvCQ   *verbs.CQ
	wcs      []verbs.WC
	accepted bool
	deadline time.Time
	last     []byte
	data     func(wc *verbs.WC) error // takes the completions of other queue pairs
	more     func() error             // connects them
}

// messageRegion is how much of a region the messages take, in bytes.
func messageRegion(j workload.Job) int { return (messageSends + messageReceives) * slotLen(j.Size) }

func openRCSend(ctx context.Context, j workload.Job) (workload.Conn, error) {
	return newRCSend(ctx, j, messageRegion(j), 0, nil)
}

// newRCSend opens a device with a region, whose beginning is for messages, and dials; a server
// accepts later. prepare is called with the connection before.
func newRCSend(ctx context.Context, j workload.Job, size, completions int, prepare func(*rcSend) error) (_ *rcSend, err error) {
	d, err := openDevice(ctx, j, size)
	if err != nil {
		return nil, err
	}
	c := &rcSend{device: d}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	sendCQ, err := d.ctx.CreateCQ(messageSends, nil)
	if err != nil {
		return nil, err
	}
	if c.recvCQ, err = d.ctx.CreateCQ(messageReceives+completions, nil); err != nil {
		return nil, err
	}
	qp, err := d.createQP(sendCQ, c.recvCQ, messageSends, messageReceives)
	if err != nil {
		return nil, err
	}
	slot := slotLen(j.Size)
	c.sends = newSends(d, qp, sendCQ, messageReceives*slot)
	c.wcs = make([]verbs.WC, workload.RecvBatchSize)
	c.receives = receives{dev: d, qp: qp, len: slot}
	if prepare != nil {
		if err = prepare(c); err != nil {
			return nil, err
		}
	}
	if j.Role == workload.Client {
		err = c.connected()
	}
	return c, err
}

// connected connects, if that has not been done. The receives are posted before.
func (c *rcSend) connected() error {
	if c.accepted {
		return nil
	}
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	if err := c.qp.Init(access); err != nil {
		return err
	}
	if err := c.connect(c.qp); err != nil {
		return err
	}
	if err := c.receives.fill(messageReceives); err != nil {
		return err
	}
	c.accepted = true
	if c.more != nil {
		return c.more()
	}
	return nil
}

func (c *rcSend) Send(b []byte) error {
	off, slot := c.next(len(b))
	copy(slot, b)
	if err := c.stage(0, verbs.WRSend, off, len(b), c.deadline); err != nil {
		return err
	}
	return c.post(1)
}

func (c *rcSend) SendBatch(bs [][]byte) error {
	for i, b := range bs {
		off, slot := c.next(len(b))
		copy(slot, b)
		if err := c.stage(i, verbs.WRSend, off, len(b), c.deadline); err != nil {
			return err
		}
	}
	return c.post(len(bs))
}

func (c *rcSend) Recv() ([]byte, error) {
	var b [1][]byte
	_, err := c.RecvBatch(b[:])
	return b[0], err
}

func (c *rcSend) RecvBatch(bs [][]byte) (int, error) {
	if err := c.connected(); err != nil {
		return 0, err
	}
	for {
		n, err := c.recvCQ.Wait(c.wcs[:min(len(bs), len(c.wcs))], c.deadline)
		if err != nil {
			return 0, err
		}
		got := 0
		for i := range c.wcs[:n] {
			wc := &c.wcs[i]
			switch {
			case wc.Status == verbs.StatusWRFlushErr: // the peer has closed the connection
				return 0, io.EOF
			case wc.Status != verbs.StatusSuccess:
				return 0, fmt.Errorf("receive: %v", wc.Status)
			case wc.QPNum != c.qp.Num():
				if err := c.data(wc); err != nil {
					return 0, err
				}
				continue
			}
			off := int(wc.WRID) * c.slot
			bs[got] = c.mr.Bytes()[off : off+int(wc.ByteLen)]
			c.last = bs[got]
			got++
			// Its memory is used again after many others: the oldest receive is next.
			if err := c.receives.repost(wc.WRID); err != nil {
				return 0, err
			}
		}
		if got > 0 {
			return got, nil
		}
	}
}

func (c *rcSend) Reply() error                  { return c.Send(c.last) }
func (c *rcSend) SetDeadline(t time.Time) error { c.deadline = t; return nil }

// rcWrite carries messages, one at a time in each direction, by WRITEs into slots of the
// peer's region. The receiver polls the last word of the next slot, which is the message's
// number. Messages have the size of the job.
type rcWrite struct {
	*rcSend
	sent, received uint32
}

// writeSlots is how many messages the peer has room for.
const writeSlots = 64

func openRCWrite(ctx context.Context, j workload.Job) (workload.Conn, error) {
	c, err := newRCSend(ctx, j, messageRegion(j)+writeSlots*slotLen(j.Size), 0, nil)
	if err != nil {
		return nil, err
	}
	return &rcWrite{rcSend: c}, nil
}

// target is where message n is in the region of its receiver: it ends with the slot, so that
// its last word is aligned.
func (c *rcWrite) target(n uint32) int {
	return messageRegion(c.job) + (int(n%writeSlots)+1)*c.slot - c.job.Size
}

func (c *rcWrite) Send(b []byte) error {
	off, slot := c.next(len(b))
	copy(slot, b)
	c.sent++
	binary.NativeEndian.PutUint32(slot[len(b)-4:], c.sent)
	if err := c.stage(0, verbs.WRRDMAWrite, off, len(b), c.deadline); err != nil {
		return err
	}
	c.wrs[0].RemoteAddr, c.wrs[0].RKey = c.peer.addr+uint64(c.target(c.sent)), c.peer.rkey
	return c.post(1)
}

func (c *rcWrite) Recv() ([]byte, error) {
	if err := c.connected(); err != nil {
		return nil, err
	}
	off := c.target(c.received + 1)
	b := c.mr.Bytes()[off : off+c.job.Size]
	for polls, last := 1, c.mr.Word(off+c.job.Size-8); lastNumber(last) != c.received+1; polls++ {
		c.ctx.Poll()
		if polls%pollsPerClock == 0 && expired(c.deadline) {
			return nil, os.ErrDeadlineExceeded
		}
	}
	c.received++
	c.last = b
	return b, nil
}

// lastNumber is the number at the end of a message.
func lastNumber(last *atomic.Uint64) uint32 {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], last.Load())
	return binary.NativeEndian.Uint32(b[4:])
}

func (c *rcWrite) RecvBatch(bs [][]byte) (int, error) { return recvOne(c, bs) }
func (c *rcWrite) Reply() error                       { return c.Send(c.last) }

func (c *rcWrite) SendBatch(bs [][]byte) error {
	for _, b := range bs {
		if err := c.Send(b); err != nil {
			return err
		}
	}
	return nil
}

// operations is the client or the server of operations (bench rdma). The connection carries
// marks and ends only; operations have queue pairs of their own, Verbs.Clients of them.
//
// With one client, operations are posted in lists of Job.Batch, up to Verbs.Depth are in
// flight, and one completion may stand for several. With more, each client has one operation
// in flight.
type operations struct {
	*rcSend
	task      workload.Job // its size and batch are those of operations, not of the connection
	op        verbs.WROpcode
	datagrams bool // a request by datagram, and its answer
	inline    bool

	qps   []*verbs.QP
	cq    *verbs.CQ // client: of operations; server: of answers
	at    int       // where the slots of operations begin in the region
	slot  int       // their distance
	slots int       // a server has as many receives, if the operation needs them

	wrs      []verbs.SendWR
	list     []verbs.SGE
	wcs      [64]verbs.WC
	incoming receives // server
	ah       *verbs.AH

	posted, completed uint64   // with one client
	every             uint64   // with one client: one of so many is signaled
	idle              []int    // clients without an operation
	numbers           []uint64 // of clients: their last operation
	ticket            uint64   // server of datagrams
	request           [requestLen]byte
	again             [1]verbs.RecvWR
}

const (
	mostMemory    = 8 << 20 // of the slots of operations, bytes
	requestLen    = 16      // of a request by datagram and its answer: number and ticket
	networkHeader = 40      // before a received datagram
	dataKey       = 0x11111111
)

func openOperations(op verbs.WROpcode, datagrams bool) func(context.Context, workload.Job) (workload.Conn, error) {
	return func(ctx context.Context, j workload.Job) (workload.Conn, error) {
		o := &operations{
			task: j, op: op, datagrams: datagrams, slot: slotLen(j.Size), every: 1,
			inline: j.Verbs.Has(workload.Inline) && j.Size <= maxInline,
		}
		control := j
		control.Size, control.Batch, control.Verbs = workload.MinSize, 1, workload.Verbs{}
		o.at = messageRegion(control)
		if datagrams {
			o.slot = slotLen(networkHeader + requestLen)
		}
		o.slots = max(1, min(2*j.Verbs.Depth*j.Verbs.Clients, mostMemory/o.slot))
		if o.takesReceives() {
			o.slots = (max(o.slots, 4*repostAt) + repostAt - 1) / repostAt * repostAt
		}
		if j.Verbs.Clients == 1 && j.Verbs.Has(workload.Unsignaled) {
			o.every = uint64(max(1, j.Verbs.Depth/4))
		}
		_, err := newRCSend(ctx, control, o.at+o.slots*o.slot, o.slots, func(c *rcSend) error {
			o.rcSend, c.more, c.data = c, o.connect, o.receive
			return o.prepare()
		})
		if err != nil {
			return nil, err
		}
		return o, nil
	}
}

// takesReceives reports whether an operation takes a receive of the server.
func (o *operations) takesReceives() bool {
	return o.datagrams || o.op == verbs.WRSend || o.op == verbs.WRRDMAWriteWithImm
}

func (o *operations) client() bool { return o.job.Role == workload.Client }

// prepare makes what has to exist before the first connection.
func (o *operations) prepare() (err error) {
	j := o.task
	o.wrs, o.list = make([]verbs.SendWR, j.Batch), make([]verbs.SGE, j.Batch)
	if o.cq, err = o.ctx.CreateCQ(2*max(j.Verbs.Depth*j.Verbs.Clients, o.slots), nil); err != nil {
		return err
	}
	o.incoming = receives{dev: o.device, at: o.at, len: o.slot}
	if o.op == verbs.WRRDMAWriteWithImm && j.Verbs.Has(workload.Empty) {
		o.incoming.len = 0
	}
	if o.datagrams && !o.client() {
		o.ud, err = o.datagramQP(o.recvCQ, o.slots)
	}
	return err
}

// datagramQP makes a queue pair of UD in RTS.
func (o *operations) datagramQP(recvCQ *verbs.CQ, depth int) (*verbs.QP, error) {
	qp, err := o.pd.CreateQP(verbs.QPInit{Type: verbs.UD, SendCQ: o.cq, RecvCQ: recvCQ, Cap: verbs.QPCap{
		MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: maxInline,
	}})
	if err != nil {
		return nil, err
	}
	return qp, errors.Join(
		qp.Modify(verbs.QPAttr{State: verbs.StateInit, QKey: dataKey}, verbs.QPState|verbs.QPQKey),
		qp.Modify(verbs.QPAttr{State: verbs.StateRTR}, verbs.QPState),
		qp.Modify(verbs.QPAttr{State: verbs.StateRTS, SQPSN: qp.PSN()}, verbs.QPState|verbs.QPSQPSN))
}

// connect connects the queue pairs of operations, when there is a connection.
func (o *operations) connect() (err error) {
	j := o.task
	if o.datagrams {
		if o.ah, err = o.pd.CreateAH(j.Remote.UDP.Addr()); err != nil {
			return err
		}
		if !o.client() {
			o.incoming.qp = o.ud
			return o.incoming.fill(o.slots)
		}
	}
	for i := range j.Verbs.Clients {
		var qp *verbs.QP
		switch {
		case o.datagrams:
			if qp, err = o.datagramQP(o.cq, 4); err == nil {
				_, err = qp.PostRecv(o.answerTo(i), o.answerTo(i)) // the second: of a late answer
			}
		case o.client():
			if qp, err = o.createQP(o.cq, o.cq, j.Verbs.Depth+1, 0); err == nil { // one more for Drain
				err = o.device.connect(qp)
			}
		default:
			if qp, err = o.createQP(o.cq, o.recvCQ, 1, o.slots); err == nil {
				err = o.device.connect(qp)
			}
			if o.incoming.qp = qp; err == nil && o.takesReceives() { // of the only client
				err = o.incoming.fill(o.slots)
			}
		}
		if err != nil {
			return err
		}
		o.qps, o.idle, o.numbers = append(o.qps, qp), append(o.idle, i), append(o.numbers, 0)
	}
	return nil
}

// answerTo is the receive of client i.
func (o *operations) answerTo(i int) verbs.RecvWR {
	return verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{o.mr.SGE(o.at+i*o.slot, o.slot)}}
}

// receive takes the completion of a server's receive.
func (o *operations) receive(wc *verbs.WC) error {
	if o.datagrams {
		off := o.at + int(wc.WRID)*o.slot + networkHeader
		b := o.mr.Bytes()[off : off+requestLen]
		o.ticket++
		binary.BigEndian.PutUint64(b[8:], o.ticket)
		o.wrs[0] = verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline, Inline: b, AH: o.ah.Handle(), RemoteQPN: wc.SrcQP, RemoteQKey: dataKey}
		if _, err := o.ud.PostSend(o.wrs[:1]...); err != nil {
			return err
		}
	}
	return o.incoming.repost(wc.WRID)
}

// Post implements [workload.Operations].
func (o *operations) Post(n int) error {
	if o.datagrams || len(o.qps) > 1 {
		return o.postOne()
	}
	for i := range n {
		o.posted++
		o.stageOne(i, int(o.posted), o.posted, o.posted%o.every == 0)
	}
	_, err := o.qps[0].PostSend(o.wrs[:n]...)
	return err
}

// stageOne prepares work request i, an operation on slot k.
func (o *operations) stageOne(i, k int, id uint64, signaled bool) {
	off, wr := o.at+k%o.slots*o.slot, &o.wrs[i]
	*wr = verbs.SendWR{WRID: id, Opcode: o.op, RKey: o.peer.rkey, RemoteAddr: o.peer.addr + uint64(off), CompareAdd: 1}
	if o.op == verbs.WRAtomicFetchAndAdd {
		wr.RemoteAddr = o.peer.addr + uint64(o.at) // all on one word
	}
	if signaled {
		wr.Flags = verbs.SendSignaled
	}
	if o.inline {
		wr.Flags |= verbs.SendInline
		wr.Inline = o.mr.Bytes()[off : off+o.task.Size]
	} else {
		o.list[i] = o.mr.SGE(off, o.task.Size)
		wr.SGList = o.list[i : i+1]
	}
}

// postOne posts an operation of a client that has none.
func (o *operations) postOne() error {
	i := o.idle[len(o.idle)-1]
	o.idle = o.idle[:len(o.idle)-1]
	o.numbers[i]++
	if o.datagrams {
		binary.BigEndian.PutUint64(o.request[:], o.numbers[i])
		o.wrs[0] = verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline, Inline: o.request[:], AH: o.ah.Handle(), RemoteQPN: o.peer.qpn, RemoteQKey: dataKey}
	} else {
		o.stageOne(0, i, uint64(i), true)
	}
	_, err := o.qps[i].PostSend(o.wrs[:1]...)
	return err
}

// Wait implements [workload.Operations].
func (o *operations) Wait() (done, lost int, err error) {
	n, err := o.cq.Wait(o.wcs[:], o.deadline)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if o.datagrams {
			lost = o.forget()
		}
		return 0, lost, nil
	}
	for i := range o.wcs[:n] {
		wc := &o.wcs[i]
		switch {
		case wc.Status != verbs.StatusSuccess:
			return 0, 0, fmt.Errorf("%v: %v", o.op, wc.Status)
		case o.datagrams:
			ok, err := o.answered(int(wc.WRID))
			if err != nil {
				return 0, 0, err
			}
			if ok {
				done++
			}
		case len(o.qps) > 1:
			o.idle = append(o.idle, int(wc.WRID))
			done++
		default:
			done += int(wc.WRID - o.completed)
			o.completed = wc.WRID
		}
	}
	return done, 0, err
}

// answered takes an answer to client i, and reports whether it is the one that it waits for.
func (o *operations) answered(i int) (bool, error) {
	off := o.at + i*o.slot + networkHeader
	current := binary.BigEndian.Uint64(o.mr.Bytes()[off:]) == o.numbers[i] && !slices.Contains(o.idle, i)
	if current {
		o.idle = append(o.idle, i)
	}
	o.list[0] = o.mr.SGE(o.at+i*o.slot, o.slot)
	o.again[0] = verbs.RecvWR{WRID: uint64(i), SGList: o.list[:1]}
	_, err := o.qps[i].PostRecv(o.again[:]...)
	return current, err
}

// forget gives up all requests that have no answer.
func (o *operations) forget() (lost int) {
	for i := range o.qps {
		if !slices.Contains(o.idle, i) {
			o.idle = append(o.idle, i)
			lost++
		}
	}
	return lost
}

// Drain implements [workload.Operations].
func (o *operations) Drain() error {
	if o.datagrams || len(o.qps) > 1 || o.completed == o.posted {
		return nil
	}
	o.posted++
	o.stageOne(0, int(o.posted), o.posted, true)
	_, err := o.qps[0].PostSend(o.wrs[:1]...)
	return err
}
