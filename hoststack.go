package unet

import (
	"context"
	"net"
	"net/netip"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/hoststack"
	"github.com/unet-go/unet/stack"
)

func init() {
	hoststack.Of = func(h any) *stack.Stack { return h.(*Host).stack }
	hoststack.OpenUDPPort = func(ctx context.Context, h any, local netip.AddrPort, handler stack.UDPHandler) (*stack.UDPPort, error) {
		return h.(*Host).openUDPPort(ctx, local, handler)
	}
	hoststack.NewOnLink = func(lease endpoint.Lease, cfg stack.Config, names *net.Resolver) (any, error) {
		h, err := newHost(lease, cfg)
		if err == nil {
			h.names = names
		}
		return h, err
	}
}
