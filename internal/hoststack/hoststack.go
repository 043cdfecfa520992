// Package hoststack lets other packages of this module use what package unet keeps from its users: the
// stack of a host, its UDP ports, and hosts on other links. The init of package unet sets the variables.
// A host is a *unet.Host, which this package cannot name.
package hoststack

import (
	"context"
	"net"
	"net/netip"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/stack"
)

// Of returns the stack of a host, for tests.
var Of func(host any) *stack.Stack

// OpenUDPPort makes handler the receiver of the datagrams to a local port, in the goroutine that
// polls: it is for protocols above UDP, like that of package verbs. The host claims the port
// as for ListenUDP, and [stack.UDPPort.Close] gives it back. No address stands for the one
// that Host.Addr returns.
var OpenUDPPort func(ctx context.Context, host any, local netip.AddrPort, handler stack.UDPHandler) (*stack.UDPPort, error)

// NewOnLink starts a host on a link that is not an endpoint's, such as one of package
// stack/memlink. The lease, which Host.Close closes, grants ports and resolves next hops;
// cfg.Resolver and cfg.TCPPorts are not used. names, unless it is nil, is the host's Resolver.
var NewOnLink func(lease endpoint.Lease, cfg stack.Config, names *net.Resolver) (host any, err error)
