package unet

import (
	"context"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/endpointlink"
	"github.com/unet-go/unet/internal/pathlink"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// memoryPaths are the memory paths of a host. A nil one has none.
type memoryPaths struct {
	joined *pathlink.Link
	stop   context.CancelFunc // ends the requests for paths
}

// newMemoryPaths prepares memory paths, unless they are off or the mux has none.
func newMemoryPaths(grant *endpoint.Grant, socket *endpointlink.Link, off bool) *memoryPaths {
	if off {
		return nil
	}
	joined := pathlink.Open(grant, socket)
	if joined == nil {
		return nil
	}
	return &memoryPaths{joined: joined}
}

// link is the link of the host's stack.
func (p *memoryPaths) link(socket *endpointlink.Link) stack.Link {
	if p == nil {
		return socket
	}
	return p.joined
}

// start begins to ask for paths, until close.
func (p *memoryPaths) start(lease endpoint.Lease, s *stack.Stack) {
	if p != nil {
		var ctx context.Context
		ctx, p.stop = context.WithCancel(context.Background())
		go p.joined.Run(ctx, lease, s.Do)
	}
}

// close frees the paths. The stack s, nil if there was none, is closed. A request for a path that is still in progress has no effect.
func (p *memoryPaths) close(s *stack.Stack) (err error) {
	switch {
	case p == nil:
		return nil
	case s == nil:
		return p.joined.Close()
	}
	p.stop()
	s.Do(func() { err = p.joined.Close() })
	return err
}

// publish writes the counts of frames to a record, under the stack's lock.
func (p *memoryPaths) publish(r *wire.EndpointRecord) {
	if p != nil {
		p.joined.Publish(r)
	}
}

// counters are the counts of the paths.
func (p *memoryPaths) counters(s *stack.Stack) (list []stack.Counter) {
	if p != nil {
		s.Do(func() { list = p.joined.Counters() })
	}
	return list
}
