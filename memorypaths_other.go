//go:build !linux

package unet

import (
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/endpointlink"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// memoryPaths need Linux.
type memoryPaths struct{}

func newMemoryPaths(*endpoint.Grant, *endpointlink.Link, bool) *memoryPaths { return nil }

func (*memoryPaths) link(socket *endpointlink.Link) stack.Link { return socket }
func (*memoryPaths) start(endpoint.Lease, *stack.Stack)        {}
func (*memoryPaths) close(*stack.Stack) error                  { return nil }
func (*memoryPaths) publish(*wire.EndpointRecord)              {}
func (*memoryPaths) counters(*stack.Stack) []stack.Counter     { return nil }
