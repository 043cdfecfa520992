package unet

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/endpointlink"
	"github.com/unet-go/unet/internal/pathlink"
	"github.com/unet-go/unet/internal/tagtable"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// memoryPaths are the memory paths of a host. A nil one has none.
type memoryPaths struct {
	joined *pathlink.Link
	table  *tagtable.View
	stop   context.CancelFunc // ends the requests for paths
}

// newMemoryPaths prepares memory paths, unless they are off or the mux has none. A host that cannot use them works without. The
// grant keeps its table.
func newMemoryPaths(grant *endpoint.Grant, socket *endpointlink.Link, off bool) *memoryPaths {
	if grant.Table == nil || off {
		return nil
	}
	table, err := openTable(grant.Table)
	if err != nil {
		slog.Warn("unet: no memory paths to endpoints of this host: all frames go by the port", "error", err)
		return nil
	}
	return &memoryPaths{joined: pathlink.New(socket, grant.ID, grant.Identity.LinkAddr, table), table: table}
}

func openTable(granted *os.File) (*tagtable.View, error) {
	fd, err := unix.FcntlInt(granted.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate the descriptor of the tag table: %w", err)
	}
	f := os.NewFile(uintptr(fd), granted.Name())
	table, err := tagtable.Open(f)
	if err != nil {
		f.Close()
	}
	return table, err
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
		return p.table.Close()
	}
	p.stop()
	s.Do(func() {
		p.joined.Close()
		err = p.table.Close()
	})
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
