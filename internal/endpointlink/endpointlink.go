// Package endpointlink makes a [datapath.Endpoint] a [stack.Link]. It does not lie beside package memlink because it is no
// part of the public API: programs get a stack on an endpoint from package unet.
package endpointlink

import (
	"errors"
	"os"
	"time"

	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/queues"
	"github.com/unet-go/unet/stack"
)

// Link is a stack.Link over a datapath.Endpoint. A frame's ID is the address of its first
// byte in the segment.
type Link struct {
	ep     *datapath.Endpoint
	frames *datapath.Frames  // of ep
	fail   func(error) error // see New
	ds     [64]datapath.Desc // the batch being received
}

var _ stack.SharedLink = (*Link)(nil)

// New makes a link over ep, which stays the caller's. fail makes the errors that the stack gets from those of the
// endpoint.
func New(ep *datapath.Endpoint, fail func(error) error) *Link {
	frames := ep.Frames()
	frames.PrepareLong()
	return &Link{ep: ep, frames: frames, fail: fail}
}

func (l *Link) Borrow(frames []stack.Frame) int {
	n := min(len(frames), len(l.ds))
	n = l.frames.Borrow(l.ds[:n], n)
	inside := false // the descriptor continues a packet
	for i, d := range l.ds[:n] {
		f := &frames[i]
		*f = stack.Frame{Data: l.frames.Bytes(d), ID: d.Addr}
		if !inside {
			f.GSOSize = l.frames.GSOSize(d)
		}
		inside = d.Options&queues.Continued != 0
		f.More = inside
	}
	return n
}

func (l *Link) Return(f stack.Frame) { l.frames.Return(datapath.Desc{Addr: f.ID}) }
func (l *Link) Cancel(f stack.Frame) { l.frames.Cancel(datapath.Desc{Addr: f.ID}) }

func (l *Link) Reserve(n int) (stack.Frame, bool) {
	d, ok := l.frames.Reserve(n)
	if !ok {
		return stack.Frame{}, false
	}
	return stack.Frame{Data: l.frames.Bytes(d), ID: d.Addr}, true
}

func (l *Link) Send(f stack.Frame) bool {
	return l.frames.Send(datapath.Desc{Addr: f.ID, Len: uint32(len(f.Data))})
}

func (l *Link) Pending() bool { return l.frames.Pending() }
func (l *Link) Wake()         { l.ep.Wake() }
func (l *Link) Frames() int   { return int(l.ep.Geometry().FrameCount) }

func (l *Link) Flush() error {
	err := l.ep.Flush()
	if err != nil {
		err = l.fail(err)
	}
	return err
}

// Watch and Unwatch are those of [datapath.Frames].
func (l *Link) Watch(fd int, pending func() bool) error { return l.frames.Watch(fd, pending) }
func (l *Link) Unwatch(fd int) error                    { return l.frames.Unwatch(fd) }

// Join makes SleepWith of l and of first, which was made in the same way, sleep together: see [datapath.Frames.Join].
func (l *Link) Join(first *Link) error { return l.frames.Join(first.frames) }

// Leave and SleepWith implement [stack.SharedLink], for links that have joined the first of them.
func (l *Link) Leave() { l.frames.Leave() }

func (l *Link) SleepWith(others []stack.SharedLink, until time.Time, again bool) error {
	if len(others) == 0 {
		return l.Sleep(until, again)
	}
	return others[0].SleepWith(others[1:], l.frames.Until(until), again)
}

func (l *Link) Sleep(until time.Time, again bool) error {
	err := l.frames.Sleep(until, again)
	if err == nil || errors.Is(err, datapath.ErrWoken) || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return l.fail(err)
}
