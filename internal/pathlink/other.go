//go:build !linux

package pathlink

import (
	"context"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// Link needs Linux: there is none.
type Link struct{ stack.Link }

func Open(*endpoint.Grant, stack.Link) *Link { return nil }

func (*Link) Run(context.Context, endpoint.Lease, func(func())) {}
func (*Link) Close() error                                      { return nil }
func (*Link) Counters() []stack.Counter                         { return nil }
func (*Link) Publish(*wire.EndpointRecord)                      {}

func AddrOf(id uint64) uint64 { return id }
