package transport

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/verbs"
)

// operations is the client or the server of operations (bench rdma). The connection carries
// marks and ends only; operations have a queue pair of their own. They are posted in lists of
// Job.Batch, up to Job.Depth are in flight, and one completion stands for several.
type operations struct {
	*rcSend
	task workload.Job // its size and batch are those of operations, not of the connection
	op   verbs.WROpcode

	qp    *verbs.QP
	cq    *verbs.CQ // client
	at    int       // where the slots of operations begin in the region
	slot  int       // their distance
	slots int       // a server has as many receives, if the operation needs them

	wrs  []verbs.SendWR
	list []verbs.SGE
	wcs  [64]verbs.WC

	posted, completed uint64
	every             uint64 // one of so many is signaled
}

const mostMemory = 8 << 20 // of the slots of operations, bytes

func openOperations(op verbs.WROpcode) func(context.Context, workload.Job, func()) (workload.Conn, error) {
	return func(ctx context.Context, j workload.Job, listening func()) (_ workload.Conn, err error) {
		o := &operations{task: j, op: op, slot: slotLen(j.Size), every: uint64(max(1, j.Depth/4)), wrs: make([]verbs.SendWR, j.Batch), list: make([]verbs.SGE, j.Batch)}
		control := j
		control.Size, control.Batch, control.Depth = workload.MinSize, 1, 0
		o.at = messageRegion(control)
		o.slots = max(1, min(2*j.Depth, mostMemory/o.slot))
		if op == verbs.WRSend {
			o.slots = (max(o.slots, 4*repostAt) + repostAt - 1) / repostAt * repostAt
		}
		if o.rcSend, err = newRCSend(ctx, control, o.at+o.slots*o.slot, o.slots, listening); err != nil {
			return nil, err
		}
		if err := o.connect(ctx); err != nil {
			return nil, errors.Join(err, o.Close())
		}
		return o, nil
	}
}

// connect connects the queue pair of operations.
func (o *operations) connect(ctx context.Context) (err error) {
	if o.cq, err = o.ctx.CreateCQ(2*max(o.task.Depth, o.slots), nil); err != nil {
		return err
	}
	if o.job.Role == workload.Client {
		o.qp, err = o.createQP(o.cq, o.cq, o.task.Depth+1, 0) // one more for Drain
	} else {
		o.qp, err = o.createQP(o.cq, o.recvCQ, 1, o.slots)
	}
	if err == nil {
		err = o.device.connect(ctx, o.qp)
	}
	o.incoming = receives{dev: o.device, qp: o.qp, at: o.at, len: o.slot}
	if err == nil && o.op == verbs.WRSend && o.job.Role == workload.Server {
		err = o.incoming.fill(o.slots)
	}
	return err
}

// Post implements [workload.Operations].
func (o *operations) Post(n int) error {
	for i := range n {
		o.posted++
		o.stageOne(i, o.posted%o.every == 0)
	}
	_, err := o.qp.PostSend(o.wrs[:n]...)
	return err
}

// stageOne prepares work request i, the operation that was counted last.
func (o *operations) stageOne(i int, signaled bool) {
	off, wr := o.at+int(o.posted)%o.slots*o.slot, &o.wrs[i]
	o.list[i] = o.mr.SGE(off, o.task.Size)
	*wr = verbs.SendWR{WRID: o.posted, Opcode: o.op, RKey: o.peer.rkey, RemoteAddr: o.peer.addr + uint64(off), CompareAdd: 1, SGList: o.list[i : i+1]}
	if o.op == verbs.WRAtomicFetchAndAdd {
		wr.RemoteAddr = o.peer.addr + uint64(o.at) // all on one word
	}
	if signaled {
		wr.Flags = verbs.SendSignaled
	}
}

// Wait implements [workload.Operations].
func (o *operations) Wait() (done int, err error) {
	n, err := o.cq.Wait(o.wcs[:], o.deadline)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, nil
	}
	for i := range o.wcs[:n] {
		wc := &o.wcs[i]
		if wc.Status != verbs.StatusSuccess {
			return 0, fmt.Errorf("%v: %v", o.op, wc.Status)
		}
		done += int(wc.WRID - o.completed)
		o.completed = wc.WRID
	}
	return done, err
}

// Drain implements [workload.Operations].
func (o *operations) Drain() error {
	if o.completed == o.posted {
		return nil
	}
	o.posted++
	o.stageOne(0, true)
	_, err := o.qp.PostSend(o.wrs[:1]...)
	return err
}
