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
	ep   *datapath.Endpoint
	fail func(error) error // see New
	room int               // size of a frame, bytes
	long int               // size of a frame of AllocLong, bytes; 0: there are none
	ds   [64]datapath.Desc // the batch being received
}

var _ stack.Link = (*Link)(nil)

// New makes a link over ep, which stays the caller's. fail makes the errors that the stack gets from those of the
// endpoint.
func New(ep *datapath.Endpoint, fail func(error) error) *Link {
	return &Link{ep: ep, fail: fail, room: int(ep.Geometry().FrameSize), long: ep.PrepareLong()}
}

func (l *Link) Recv(frames []stack.Frame) int {
	n := min(len(frames), len(l.ds))
	n = l.ep.RecvFrames(l.ds[:n], n)
	inside := false // the descriptor continues a packet
	for i, d := range l.ds[:n] {
		f := &frames[i]
		f.Data = l.ep.Bytes(d)
		f.ID = d.Addr
		f.GSOSize = 0
		if !inside {
			f.GSOSize = l.ep.GSOSize(d)
		}
		inside = d.Options&queues.Continued != 0
		f.More = inside
	}
	return n
}

func (l *Link) Release(f stack.Frame) {
	if l.long > 0 && l.ep.IsLong(f.ID) {
		l.ep.ReleaseLong(datapath.Desc{Addr: f.ID})
		return
	}
	l.ep.ReleaseFrame(datapath.Desc{Addr: f.ID})
}

func (l *Link) Alloc(n int) (f stack.Frame, ok bool) {
	var d datapath.Desc
	if n > l.room && l.long > 0 {
		if d, ok = l.ep.AllocLong(); ok {
			f = stack.Frame{Data: l.ep.LongBytes(d), ID: d.Addr}
		}
		return f, ok
	}
	if d, ok = l.ep.AllocFrame(); ok {
		f = stack.Frame{Data: l.ep.Bytes(d), ID: d.Addr}
	}
	return f, ok
}

func (l *Link) Send(f stack.Frame) bool {
	if l.long > 0 && l.ep.IsLong(f.ID) {
		return l.ep.SendLong(datapath.Desc{Addr: f.ID, Len: uint32(len(f.Data))})
	}
	return l.ep.SendFrame(datapath.Desc{Addr: f.ID, Len: uint32(len(f.Data))})
}

func (l *Link) Pending() bool { return l.ep.Pending() }
func (l *Link) Wake()         { l.ep.Wake() }
func (l *Link) Frames() int   { return int(l.ep.Geometry().FrameCount) }

func (l *Link) Flush() error {
	err := l.ep.Flush()
	if err != nil {
		err = l.fail(err)
	}
	return err
}

func (l *Link) Sleep(until time.Time, again bool) error {
	err := l.ep.Sleep(until, again)
	if err == nil || errors.Is(err, datapath.ErrWoken) || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return l.fail(err)
}
