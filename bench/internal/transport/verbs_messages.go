package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/verbs"
)

// rcSend carries messages by SEND and RECV.
type rcSend struct {
	*device
	qp       *verbs.QP
	deadline time.Time
	last     []byte

	// What is sent has slots in the region, which are used in turn.
	sendCQ       *verbs.CQ
	at, slot     int // of the slots
	wrs          []verbs.SendWR
	list         []verbs.SGE
	sent         [4]verbs.WC
	posted, done uint64

	receives receives
	recvCQ   *verbs.CQ
	wcs      []verbs.WC
	incoming receives // of another queue pair with the same completion queue, whose messages are not read
}

// messageRegion is how much of a region the messages take, in bytes.
func messageRegion(j workload.Job) int { return (messageSends + messageReceives) * slotLen(j.Size) }

func openRCSend(ctx context.Context, j workload.Job, listening func()) (workload.Conn, error) {
	return newRCSend(ctx, j, messageRegion(j), 0, listening)
}

// newRCSend opens a device with a region, whose beginning is for messages, and connects. Its receive
// completion queue has room for more completions than its own.
func newRCSend(ctx context.Context, j workload.Job, size, more int, listening func()) (_ *rcSend, err error) {
	d, err := openDevice(ctx, j, size)
	if err != nil {
		return nil, err
	}
	n, slot := max(j.Batch, 1), slotLen(j.Size)
	c := &rcSend{device: d, at: messageReceives * slot, slot: slot, wrs: make([]verbs.SendWR, n), list: make([]verbs.SGE, n), wcs: make([]verbs.WC, workload.RecvBatchSize)}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if c.sendCQ, err = d.ctx.CreateCQ(messageSends, nil); err != nil {
		return nil, err
	}
	if c.recvCQ, err = d.ctx.CreateCQ(messageReceives+more, nil); err != nil {
		return nil, err
	}
	if c.qp, err = d.createQP(c.sendCQ, c.recvCQ, messageSends, messageReceives); err != nil {
		return nil, err
	}
	c.receives = receives{dev: d, qp: c.qp, len: slot}
	listening()
	if err = d.connect(ctx, c.qp); err != nil {
		return nil, err
	}
	return c, c.receives.fill(messageReceives)
}

// next is the slot of the next message, of n bytes, that add posts.
func (c *rcSend) next(n int) (off int, b []byte) {
	off = c.at + int(c.posted%messageSends)*c.slot
	return off, c.mr.Bytes()[off : off+n]
}

// stage prepares work request i, with the message in slot off. The memory that lists need is
// taken when none is left.
func (c *rcSend) stage(i int, op verbs.WROpcode, off, n int, deadline time.Time) error {
	for c.posted-c.done >= messageSends {
		if err := c.reclaim(deadline); err != nil {
			return err
		}
	}
	wr := &c.wrs[i]
	*wr = verbs.SendWR{WRID: c.posted, Opcode: op}
	c.list[i] = c.mr.SGE(off, n)
	wr.SGList = c.list[i : i+1]
	if c.posted++; c.posted%signalEvery == 0 {
		wr.Flags = verbs.SendSignaled
	}
	return nil
}

func (c *rcSend) reclaim(deadline time.Time) error {
	n, err := c.sendCQ.Wait(c.sent[:], deadline)
	for _, wc := range c.sent[:n] {
		if wc.Status != verbs.StatusSuccess {
			return fmt.Errorf("send: %v", wc.Status)
		}
		c.done = wc.WRID + 1
	}
	return err
}

// post posts the first n staged work requests.
func (c *rcSend) post(n int) error {
	_, err := c.qp.PostSend(c.wrs[:n]...)
	return err
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
				if err := c.incoming.repost(wc.WRID); err != nil {
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
	written, received uint32
}

// writeSlots is how many messages the peer has room for.
const writeSlots = 64

func openRCWrite(ctx context.Context, j workload.Job, listening func()) (workload.Conn, error) {
	c, err := newRCSend(ctx, j, messageRegion(j)+writeSlots*slotLen(j.Size), 0, listening)
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
	c.written++
	binary.NativeEndian.PutUint32(slot[len(b)-4:], c.written)
	if err := c.stage(0, verbs.WRRDMAWrite, off, len(b), c.deadline); err != nil {
		return err
	}
	c.wrs[0].RemoteAddr, c.wrs[0].RKey = c.peer.addr+uint64(c.target(c.written)), c.peer.rkey
	return c.post(1)
}

func (c *rcWrite) Recv() ([]byte, error) {
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

func (c *rcWrite) SendBatch(bs [][]byte) error        { return sendEach(c, bs) }
func (c *rcWrite) RecvBatch(bs [][]byte) (int, error) { return recvOne(c, bs) }
func (c *rcWrite) Reply() error                       { return c.Send(c.last) }
