//go:build linux

package control

import (
	"context"
	"fmt"
	"iter"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
)

// OpenPath asks unetd for a memory path; see [endpoint.Lease]. The request for the endpoint must
// have MemoryPaths. While no unetd runs, OpenPath waits.
func (l *Lease) OpenPath(ctx context.Context, peer uint64) error {
	if !l.shares {
		return fmt.Errorf("%w: the request for this endpoint has not asked for any", endpoint.ErrNoPath)
	}
	_, err := l.repeat(ctx, protocol.Operation{Op: protocol.OpPath, Endpoint: peer})
	return err
}

// ClosePath ends a memory path; see [endpoint.Lease]. The end of a unetd ends all paths, so after
// that, ClosePath only waits for the next one.
func (l *Lease) ClosePath(ctx context.Context, id uint64) error {
	if !l.shares {
		return nil
	}
	_, err := l.repeat(ctx, protocol.Operation{Op: protocol.OpUnpath, Path: id})
	return err
}

// Paths returns the memory paths of the endpoint; see [endpoint.Lease]. A path that comes
// without a loop to take it is closed, and unetd learns that.
func (l *Lease) Paths(ctx context.Context) iter.Seq[*endpoint.Path] { return l.paths.Paths(ctx) }
