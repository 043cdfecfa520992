package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/wait"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/queues"
	"github.com/unet-go/unet/segment"
	"github.com/unet-go/unet/stack"
)

// Desc names bytes of the segment: a frame, or a part of one packet if its
// Options contain [queues.Continued].
type Desc = queues.Desc

// Config is how an endpoint behaves. Its zero value works.
type Config struct {
	Wait       endpoint.WaitMode // how Wait waits; WaitAdaptive by default
	SpinBudget time.Duration     // how long WaitAdaptive spins before it sleeps; 50 us by default
	// Lease, if it is set: when it has ended, Wait and a Flush that fails return its Err, an
	// [endpoint.ErrLeaseClosed]. Without a lease Wait does not return then, and messages use no memory paths.
	// With a lease the endpoint calls its Paths as soon as there are messages, so the application must not.
	Lease endpoint.Lease
}

// Endpoint is an attached grant. The package's doc states which goroutines may call it.
type Endpoint struct {
	sock *xsk.Socket
	seg  *segment.Segment
	mem  []byte

	deficit     uint32 // frames received and not yet replaced on the fill ring
	refillAt    uint32 // deficit at which the fill ring is topped up
	publishAt   uint32 // taken RX entries at which their slots are handed back
	outstanding uint32 // frames on the TX ring or not yet taken from the completion ring
	reclaimAt   uint32 // outstanding at which completions are taken
	longRoom    int    // bytes of a packet in a run; 0: there are no runs

	retryAt    time.Time     // of the next kick for frames that the device has not taken
	retryPause time.Duration // before that kick

	spinner wait.Spinner // of Wait
	begun   time.Time    // the spinner's clock counts from here
	woken   atomic.Bool  // Wake was called, and no Wait or Sleep has returned for it yet
	poller  *xsk.Poller
	upcalls [2]func(*Endpoint) // by Event
	stats   Stats              // without Kicks and the counters of the kernel
	scratch [recvBatch]Desc
	held    uint32 // messages the application holds

	link        stack.Link // of messages: the socket, or paths.link
	paths       *paths     // nil: there are none
	forMessages bool       // messages were sent or received
	frames      [recvBatch]stack.Frame

	unfinished atomic.Bool    // a kick or a refill is to be tried again soon
	ended      atomic.Bool    // the lease has ended
	lease      endpoint.Lease // that of the Config
	closed     chan struct{}

	grant endpoint.Grant // its descriptors are the endpoint's now
}

const (
	recvBatch    = 64
	refillBatch  = 64
	reclaimBatch = 32
)

// Errors of sending.
var (
	// ErrQueueFull: nothing was sent, and the buffer is still the caller's. Flush and
	// try again.
	ErrQueueFull = errors.New("send queue full")
	// ErrNoBuffers: every frame of the segment is in use. Return received
	// messages, or flush so that sent ones complete.
	ErrNoBuffers = errors.New("no free buffer in the segment")
	// ErrMessageTooLong: the payload exceeds what the channel's MTU carries.
	ErrMessageTooLong = errors.New("message too long")
)

// Attach maps the segment and the rings of a grant. If it succeeds, the endpoint
// owns the grant's descriptors; if it fails, they are still the caller's. Attach needs no capability.
func Attach(g *endpoint.Grant, cfg Config) (*Endpoint, error) {
	geo := g.Geometry
	if err := geo.Validate(); err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	sock, err := xsk.Attach(g.XSK, xsk.Params{
		FrameSize:      geo.FrameSize,
		FrameCount:     geo.FrameCount,
		FillSize:       geo.FillSize,
		CompletionSize: geo.CompletionSize,
		RxSize:         geo.RxSize,
		TxSize:         geo.TxSize,
		NeedWakeup:     true, // as all grants are bound
	})
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	e := &Endpoint{
		sock:    sock,
		grant:   *g,
		spinner: wait.Spinner{Mode: cfg.Wait, Budget: cmp.Or(cfg.SpinBudget, wait.DefaultBudget)},
		begun:   time.Now(),
		closed:  make(chan struct{}),
		lease:   cfg.Lease,
	}
	e.link = (*socket)(e)
	e.setThresholds()
	if err := e.open(); err != nil {
		return nil, fmt.Errorf("attach: %w", errors.Join(err, sock.Detach()))
	}
	if cfg.Lease != nil {
		go e.watch(cfg.Lease.Done())
	}
	return e, nil
}

// setThresholds sets how many entries are batched before a shared index is stored.
func (e *Endpoint) setThresholds() {
	geo := &e.grant.Geometry
	e.refillAt = min(refillBatch, max(1, geo.Prefilled()/4))
	e.publishAt = min(refillBatch, max(1, geo.RxSize/4))
	e.reclaimAt = min(reclaimBatch, max(1, geo.CompletionSize/4), max(1, geo.FrameCount/8))
}

// watch wakes the goroutine that waits when the lease has ended.
func (e *Endpoint) watch(done <-chan struct{}) {
	select {
	case <-done:
		e.ended.Store(true)
		e.Wake()
	case <-e.closed:
	}
}

// open maps the segment and makes the poller.
func (e *Endpoint) open() (err error) {
	geo := e.grant.Geometry
	if e.mem, err = xsk.MapSegment(e.grant.Segment, int(geo.SegmentSize())); err != nil {
		return err
	}
	if e.seg, err = segment.New(e.mem, geo.FrameSize, int(geo.Prefilled())); err == nil {
		e.poller, err = xsk.NewPoller(e.sock)
	}
	if err != nil {
		return errors.Join(err, xsk.UnmapSegment(e.mem))
	}
	return nil
}

// Close unmaps the segment and the rings and closes the file descriptors. With that the
// kernel ends the socket. No message, no buffer and no method of the endpoint may be used
// afterwards. The lease is closed separately.
func (e *Endpoint) Close() error {
	if e.mem == nil {
		return nil
	}
	return errors.Join(e.shut(), e.closeFiles(), e.unmap())
}

// CloseLater is Close for an owner whose application still holds buffers or
// messages: the segment stays mapped until nothing refers to the endpoint.
func (e *Endpoint) CloseLater() error {
	if e.mem == nil {
		return nil
	}
	err := errors.Join(e.shut(), e.closeFiles())
	runtime.AddCleanup(e, func(mem []byte) { xsk.UnmapSegment(mem) }, e.mem)
	e.mem = nil
	return err
}

func (e *Endpoint) shut() error {
	close(e.closed)
	return errors.Join(e.paths.close(), e.poller.Close())
}

func (e *Endpoint) closeFiles() error {
	err := errors.Join(e.sock.Close(), e.grant.Segment.Close())
	if e.grant.Table != nil {
		err = errors.Join(err, e.grant.Table.Close())
	}
	return err
}

func (e *Endpoint) unmap() error {
	err := xsk.UnmapSegment(e.mem)
	e.mem = nil
	return err
}

// Detach undoes an Attach that was not used: it unmaps segment and rings and
// leaves the file descriptors open, so that their owner can close the grant.
func (e *Endpoint) Detach() error {
	return errors.Join(e.shut(), e.sock.Detach(), e.unmap())
}

// Identity is the addresses and the MTU of the endpoint.
func (e *Endpoint) Identity() endpoint.Identity { return e.grant.Identity }

// Geometry is the shape of the segment and the queues.
func (e *Endpoint) Geometry() endpoint.Geometry { return e.grant.Geometry }

// Tags are the tags that came with the grant.
func (e *Endpoint) Tags() []endpoint.Tag { return e.grant.Tags }

// Audit counts the segment's frames by owner.
func (e *Endpoint) Audit() segment.Audit { return e.seg.Audit() }

// Stats are counters since Attach. The last group is the kernel's.
type Stats struct {
	Sent       uint64 // frames handed to the kernel
	Received   uint64 // frames taken from the receive queue
	Kicks      uint64 // system calls made to send
	IdleKicks  uint64 // of these, those after which the kernel had taken no frame yet: the device or the completion ring is full, or it takes them later
	QueueFull  uint64 // sends refused because the send queue was full
	NoBuffers  uint64 // reservations refused because the pool was empty
	Malformed  uint64 // received frames dropped: truncated, or a header field is wrong
	NotMessage uint64 // received frames dropped by Endpoint.Borrow: not a U-Net message

	KernelRxDropped      uint64 // the frame did not fit, or the kernel had no memory
	KernelRxRingFull     uint64 // the receive queue was full
	KernelFillRingEmpty  uint64 // the free queue was empty
	KernelInvalidRxDescs uint64 // free queue entries outside the segment
	KernelInvalidTxDescs uint64 // send queue entries outside the segment
}

// Stats reads all counters, the kernel's with a system call.
func (e *Endpoint) Stats() (Stats, error) {
	k, err := e.sock.Statistics()
	s := e.stats
	s.Kicks, s.IdleKicks = e.sock.Kicks(), e.sock.IdleKicks()
	s.KernelRxDropped = k.RxDropped
	s.KernelRxRingFull = k.RxRingFull
	s.KernelFillRingEmpty = k.FillRingEmpty
	s.KernelInvalidRxDescs = k.RxInvalidDescs
	s.KernelInvalidTxDescs = k.TxInvalidDescs
	return s, err
}

// Add adds the counters of another endpoint.
func (s *Stats) Add(o *Stats) {
	s.Sent += o.Sent
	s.Received += o.Received
	s.Kicks += o.Kicks
	s.IdleKicks += o.IdleKicks
	s.QueueFull += o.QueueFull
	s.NoBuffers += o.NoBuffers
	s.Malformed += o.Malformed
	s.NotMessage += o.NotMessage
	s.KernelRxDropped += o.KernelRxDropped
	s.KernelRxRingFull += o.KernelRxRingFull
	s.KernelFillRingEmpty += o.KernelFillRingEmpty
	s.KernelInvalidRxDescs += o.KernelInvalidRxDescs
	s.KernelInvalidTxDescs += o.KernelInvalidTxDescs
}
