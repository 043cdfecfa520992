package unet

import (
	"errors"
	"os"
	"time"

	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/queues"
	"github.com/unet-go/unet/stack"
)

// link is a stack.Link over a datapath.Endpoint. A frame's ID is the address of its first
// byte in the segment.
type link struct {
	ep   *datapath.Endpoint
	room int               // size of a frame, bytes
	long int               // size of a frame of AllocLong, bytes; 0: there are none
	ds   [64]datapath.Desc // the batch being received
}

var _ stack.Link = (*link)(nil)

func newLink(ep *datapath.Endpoint) *link {
	return &link{ep: ep, room: int(ep.Geometry().FrameSize), long: ep.PrepareLong()}
}

func (l *link) Recv(frames []stack.Frame) int {
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

func (l *link) Release(f stack.Frame) {
	if l.long > 0 && l.ep.IsLong(f.ID) {
		l.ep.ReleaseLong(datapath.Desc{Addr: f.ID})
		return
	}
	l.ep.ReleaseFrame(datapath.Desc{Addr: f.ID})
}

func (l *link) Alloc(n int) (f stack.Frame, ok bool) {
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

func (l *link) Send(f stack.Frame) bool {
	if l.long > 0 && l.ep.IsLong(f.ID) {
		return l.ep.SendLong(datapath.Desc{Addr: f.ID, Len: uint32(len(f.Data))})
	}
	return l.ep.SendFrame(datapath.Desc{Addr: f.ID, Len: uint32(len(f.Data))})
}

func (l *link) Flush() error  { return linkError(l.ep.Flush()) }
func (l *link) Pending() bool { return l.ep.Pending() }
func (l *link) Wake()         { l.ep.Wake() }
func (l *link) Frames() int   { return int(l.ep.Geometry().FrameCount) }

func (l *link) Sleep(until time.Time, again bool) error {
	err := l.ep.Sleep(until, again)
	if errors.Is(err, datapath.ErrWoken) || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return linkError(err)
}

// linkError makes the end of the lease the error that all calls return for it.
func linkError(err error) error {
	if errors.Is(err, endpoint.ErrLeaseClosed) {
		return &leaseError{err}
	}
	return err
}
