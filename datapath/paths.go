package datapath

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet/internal/pathlink"
	"github.com/unet-go/unet/queues"
	"github.com/unet-go/unet/stack"
)

// Messages use package pathlink as the stack of a host does: to another endpoint of the mux they go by a memory path, if there is one,
// and else by the socket.

// socket is the endpoint's socket as the link of messages: a message is one frame. The ID of a frame is its address in the segment, or
// heapFrame.
type socket Endpoint

var _ stack.Link = (*socket)(nil)

// heapFrame is the ID of a message that is longer than a frame of the segment. Other IDs from it on are the link's.
const heapFrame = 1 << 61

func (s *socket) Borrow(frames []stack.Frame) int {
	e := (*Endpoint)(s)
	n := e.Frames().Borrow(e.scratch[:], len(frames))
	got := 0
	for i := 0; i < n; got++ {
		d := e.scratch[i]
		if d.Options&queues.Continued == 0 {
			i++
			frames[got] = stack.Frame{Data: e.Frames().Bytes(d), ID: d.Addr}
		} else {
			frames[got] = stack.Frame{Data: e.gather(&i), ID: heapFrame}
		}
	}
	return got
}

// gather copies a packet of several descriptors, from scratch[*i] on, into
// memory of its own and returns its frames. Only messages longer than a frame need it.
func (e *Endpoint) gather(i *int) []byte {
	var whole []byte
	for more := true; more; *i++ {
		d := e.scratch[*i]
		whole = append(whole, e.Frames().Bytes(d)...)
		e.Frames().Return(d)
		more = d.Options&queues.Continued != 0
	}
	return whole
}

func (s *socket) Return(f stack.Frame) {
	if f.ID != heapFrame {
		(*Frames)(s).Return(Desc{Addr: f.ID})
	}
}

func (s *socket) Reserve(n int) (stack.Frame, bool) {
	d, ok := (*Frames)(s).Reserve(n)
	if !ok {
		return stack.Frame{}, false
	}
	return stack.Frame{Data: (*Frames)(s).Bytes(d), ID: d.Addr}, true
}

func (s *socket) Cancel(f stack.Frame) { s.Return(f) }

func (s *socket) Send(f stack.Frame) bool {
	return (*Frames)(s).Send(Desc{Addr: f.ID, Len: uint32(len(f.Data))})
}

func (s *socket) Flush() error  { return (*Endpoint)(s).flush() }
func (s *socket) Pending() bool { return s.sock.RX.Peek(1) > 0 }
func (s *socket) Frames() int   { return int(s.grant.Geometry.FrameCount) }

// Wake ends a Sleep, but no Wait.
func (s *socket) Wake() { s.poller.Wake() }

func (s *socket) Sleep(until time.Time, again bool) error { return (*Frames)(s).Sleep(until, again) }

func (s *socket) Watch(fd int, pending func() bool) error { return (*Frames)(s).Watch(fd, pending) }
func (s *socket) Unwatch(fd int) error                    { return (*Frames)(s).Unwatch(fd) }

// paths are the memory paths of messages. A goroutine of their own asks for them. What it changes, it changes in functions that it sends
// to calls: whoever uses the endpoint calls these (serve), so the endpoint needs no lock.
type paths struct {
	link *pathlink.Link

	stop  context.CancelFunc
	ended chan struct{} // closed when that goroutine has ended

	asks  atomic.Bool // it is going to send to calls
	calls chan func()
	done  chan struct{} // of capacity 1
}

// usePaths begins to use memory paths, with the first call for messages: whoever uses Frames takes nothing from paths.
func (e *Endpoint) usePaths() {
	if e.forMessages {
		return
	}
	e.forMessages = true
	if e.lease == nil || e.grant.Table == nil {
		return
	}
	link := pathlink.Open(&e.grant, (*socket)(e))
	if link == nil {
		return
	}
	p := &paths{link: link, ended: make(chan struct{}), calls: make(chan func()), done: make(chan struct{}, 1)}
	var ctx context.Context
	ctx, p.stop = context.WithCancel(context.Background())
	go func() {
		defer close(p.ended)
		link.Run(ctx, e.lease, func(call func()) {
			p.asks.Store(true)
			e.poller.Wake()
			p.calls <- call
			<-p.done
		})
	}()
	e.paths, e.link = p, link
}

// serve makes the call that is waited for, if there is one.
func (p *paths) serve() {
	if p != nil && p.asks.Load() {
		p.asks.Store(false)
		p.call(<-p.calls)
	}
}

func (p *paths) call(do func()) {
	do()
	p.done <- struct{}{}
}

// close ends the paths.
func (p *paths) close() error {
	if p == nil {
		return nil
	}
	p.stop()
	for {
		select {
		case do := <-p.calls:
			p.call(do)
		case <-p.ended:
			return p.link.Close()
		}
	}
}

// PathCounters are the counters of the endpoint's memory paths since the first message; nil if it has not used any.
func (e *Endpoint) PathCounters() []stack.Counter {
	if e.paths == nil {
		return nil
	}
	return e.paths.link.Counters()
}
