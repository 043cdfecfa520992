package unet

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"syscall"

	"github.com/unet-go/unet/endpoint"
)

// Network is what a service needs of a network. A [Host] is one, [Kernel] is one, and so are
// the hosts in memory of package unettest. The methods are those of [net.ListenConfig],
// [net.Dialer] and [net.DefaultResolver], with their errors.
type Network interface {
	// Listen opens a listener, for "tcp", "tcp4" and "tcp6". ctx limits the opening only.
	Listen(ctx context.Context, network, address string) (net.Listener, error)
	// ListenPacket opens a socket that is not connected, for "udp", "udp4" and "udp6".
	ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error)
	// DialContext opens a connection, for "tcp", "udp", and these with "4" or "6".
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
	// Resolver looks up names as DialContext does.
	Resolver() *net.Resolver
}

var _ Network = (*Host)(nil)

// Kernel is the kernel's network: package net. It exists on every system.
func Kernel() Network { return &theKernel }

var theKernel kernel

type kernel struct {
	net.ListenConfig
	net.Dialer
}

func (*kernel) Resolver() *net.Resolver { return net.DefaultResolver }

// Opened is the Network that [OpenNetwork] has opened.
type Opened struct {
	Network
	host    *Host
	refused error
}

// Host is the host, or nil if Network is the fallback.
func (o *Opened) Host() *Host { return o.host }

// FellBack is why Network is the fallback and not a host: the error of [Open]. It is nil
// if there is a host.
func (o *Opened) FellBack() error { return o.refused }

// Close closes the host, if there is one. Sockets of the fallback stay open.
func (o *Opened) Close() error {
	if o.host == nil {
		return nil
	}
	return o.host.Close()
}

// OpenNetwork is [Open] with a fallback: if no unetd runs, the system has no endpoints, or
// this process is not permitted to have one, it returns the fallback, such as [Kernel], and logs
// that once as a warning by [slog.Default]. For every other reason, such as [endpoint.ErrBusy] or
// the end of ctx, it returns the error. So it does if fallback is nil, and if the host is to own
// addresses, which the fallback would not have.
//
// A policy that permits an endpoint and no port is noticed when a socket is opened: EACCES.
func OpenNetwork(ctx context.Context, cfg Config, fallback Network) (*Opened, error) {
	h, err := Open(ctx, cfg)
	switch {
	case err == nil:
		return &Opened{Network: h, host: h}, nil
	case fallback == nil || len(cfg.Addrs) > 0 || ctx.Err() != nil || !absent(err):
		return nil, err
	}
	slog.Warn("unet: no endpoint, falling back to other sockets", "reason", err)
	return &Opened{Network: fallback, refused: err}, nil
}

// absent reports whether err means that this process cannot have an endpoint here.
func absent(err error) bool {
	return slices.ContainsFunc([]error{fs.ErrNotExist, syscall.ECONNREFUSED, fs.ErrPermission, endpoint.ErrTagDenied, errors.ErrUnsupported},
		func(e error) bool { return errors.Is(err, e) })
}
