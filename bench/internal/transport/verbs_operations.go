package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/verbs"
)

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
	qp, err := o.ctx.CreateQP(o.pd, verbs.QPInit{Type: verbs.UD, SendCQ: o.cq, RecvCQ: recvCQ, Cap: verbs.QPCap{
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
		if o.ah, err = o.pd.CreateAH(verbs.AHAttr{Dst: j.Remote.UDP.Addr().Unmap().As4()}); err != nil {
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
		o.wrs[0] = verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline, Inline: b, AH: o.ah, RemoteQPN: wc.SrcQP, RemoteQKey: dataKey}
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
		o.wrs[0] = verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline, Inline: o.request[:], AH: o.ah, RemoteQPN: o.peer.qpn, RemoteQKey: dataKey}
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
