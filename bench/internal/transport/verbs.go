package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/verbs"
)

// Sizes of the queue pair that carries messages.
const (
	messageSends    = 256 // work requests
	messageReceives = 512
	repostAt        = 64 // receives that are posted together
	signalEvery     = messageSends / 4
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
	peer   region
}

// region is what a peer needs to know, as private data.
type region struct {
	addr uint64
	rkey uint32
}

const regionLen = 12

func (r region) bytes() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, r.addr), r.rkey)
}

func parseRegion(b []byte) (r region, err error) {
	if len(b) < regionLen {
		return r, fmt.Errorf("private data of %d bytes", len(b))
	}
	return region{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])}, nil
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
	if err = whileBusy(ctx, syscall.EADDRINUSE, func() (err error) { d.ctx, err = verbs.Open(ctx, d.host, verbs.Config{}); return err }); err != nil {
		return d, err
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

// param has the private data that this side sends: where its region is.
func (d *device) param() *verbs.ConnParam {
	r := region{addr: d.mr.Addr(), rkey: d.mr.RKey()}
	return &verbs.ConnParam{PrivateData: r.bytes(), ResponderResources: readDepth, InitiatorDepth: readDepth, RetryCount: 7, RNRRetryCount: 7}
}

// readDepth is how many READs and atomics of a queue pair are in flight, at most.
const readDepth = 16

// connect dials the peer, or accepts it.
func (d *device) connect(ctx context.Context, qp *verbs.QP) error {
	if d.listen == nil {
		conn, err := d.ctx.Dial(ctx, d.job.Remote.UDP, qp, d.param())
		if err == nil {
			d.peer, err = parseRegion(conn.Private())
		}
		return err
	}
	r, err := d.listen.Accept(ctx)
	if err != nil {
		return err
	}
	if d.peer, err = parseRegion(r.Private()); err != nil {
		return err
	}
	conn, err := r.Accept(ctx, qp, d.param())
	if err != nil {
		return err
	}
	return conn.Established(ctx)
}

// remoteAccess is what the other side may do.
const remoteAccess = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// createQP makes a queue pair of RC, in INIT.
func (d *device) createQP(sendCQ, recvCQ *verbs.CQ, sends, receives int) (*verbs.QP, error) {
	qp, err := d.ctx.CreateQP(d.pd, verbs.QPInit{Type: verbs.RC, SendCQ: sendCQ, RecvCQ: recvCQ, Cap: verbs.QPCap{
		MaxSendWR: sends, MaxRecvWR: receives, MaxSendSGE: 1, MaxRecvSGE: 1,
	}})
	if err != nil {
		return nil, err
	}
	return qp, qp.Init(remoteAccess)
}

// slotLen is the distance between the slots of n bytes in a region.
func slotLen(n int) int { return (n + 7) &^ 7 }

// receives is a receive queue whose slots are used in turn.
type receives struct {
	dev     *device
	qp      *verbs.QP
	at, len int // of the slots in the region
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
	wr.WRID = slot
	r.list[r.n] = r.dev.mr.SGE(r.at+int(slot)*r.len, r.len)
	wr.SGList = r.list[r.n : r.n+1]
	if r.n++; r.n < repostAt {
		return nil
	}
	r.n = 0
	_, err := r.qp.PostRecv(r.wrs[:]...)
	return err
}
