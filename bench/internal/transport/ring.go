package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/mempath"
	"github.com/unet-go/unet/internal/protocol"
)

// ring is a memory path without a stack or unetd: its frames are the messages. No stack whose packets go by a memory path
// can be faster. Both ends spin, so neither rings a bell.
type ring struct {
	path     *mempath.Path
	deadline time.Time
	in       [workload.RecvBatchSize][]byte // what was received
	one      [1][]byte
}

func openRing(_ context.Context, j workload.Job, listening func()) (_ workload.Conn, err error) {
	r := &ring{}
	for i := range r.in {
		r.in[i] = make([]byte, max(maxMessage, j.Size))
	}
	var end *endpoint.Path
	if j.Role == workload.Server {
		end, err = serveEnd(j, listening)
	} else {
		end, err = receiveEnd(j)
	}
	if err == nil {
		r.path, err = mempath.Open(end)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// connectTimeout is how long the client may take to read its end.
const connectTimeout = 15 * time.Second

// serveEnd makes a path, and gives one end to who connects.
func serveEnd(j workload.Job, listening func()) (_ *endpoint.Path, err error) {
	l, err := net.Listen("unixpacket", unixName(j.Local))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	listening()
	c, err := l.Accept()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	here, there, err := mempath.Make()
	if err != nil {
		return nil, err
	}
	defer there.Close()
	if err := protocol.WriteRecord(c.(*net.UnixConn), []byte{1}, connectTimeout, there.Own, there.Other, there.Ring, there.Bell); err != nil {
		return nil, errors.Join(err, here.Close())
	}
	return here, nil
}

// receiveEnd gets an end of a path from the server.
func receiveEnd(j workload.Job) (*endpoint.Path, error) {
	c, err := net.Dial("unixpacket", unixName(j.Remote))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_, fds, err := protocol.ReadRecord(c.(*net.UnixConn), protocol.PathDescriptors)
	if err == nil && len(fds) < protocol.PathDescriptors {
		err = fmt.Errorf("got %d descriptors of a memory path, want %d", len(fds), protocol.PathDescriptors)
	}
	if err != nil {
		protocol.CloseAll(fds)
		return nil, err
	}
	in := protocol.Incoming{Path: &endpoint.Path{}}
	in.Adopt(fds)
	return in.Path, nil
}

func (r *ring) Send(b []byte) error {
	for {
		if room := r.path.Reserve(len(b)); room != nil {
			copy(room, b)
			r.path.Publish(len(b))
			return nil
		}
		if err := r.path.Err(); err != nil {
			return err
		}
	}
}

func (r *ring) SendBatch(bs [][]byte) error { return sendEach(r, bs) }

func (r *ring) Recv() ([]byte, error) {
	_, err := r.RecvBatch(r.one[:])
	return r.one[0], err
}

func (r *ring) RecvBatch(bs [][]byte) (int, error) {
	for polls := 1; ; polls++ {
		n, err := r.path.Scan(min(len(bs), len(r.in)))
		for i := range n {
			bs[i] = r.in[i][:r.path.Take(r.in[i])]
		}
		if n > 0 || err != nil {
			return n, err
		}
		if polls%pollsPerClock == 0 && expired(r.deadline) {
			return 0, os.ErrDeadlineExceeded
		}
	}
}

func (r *ring) Reply() error                  { return r.Send(r.one[0]) }
func (r *ring) SetDeadline(t time.Time) error { r.deadline = t; return nil }
func (r *ring) Close() error                  { return r.path.Close() }
