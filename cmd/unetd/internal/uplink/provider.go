package uplink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// OpenEndpoint makes an endpoint for an application, if the policy permits it.
func (u *Uplink) OpenEndpoint(ctx context.Context, peer control.Peer, req endpoint.Request) (*endpoint.Grant, endpoint.Lease, error) {
	grant, l, err := u.OpenEndpointFor(ctx, mux.Owner(peer), req)
	count(&u.granted, &u.refused, err)
	if err != nil {
		return nil, nil, forApplications(err)
	}
	return grant, l, nil
}

// Present gives an application the lease of an endpoint that it had from another unetd.
func (u *Uplink) Present(ctx context.Context, peer control.Peer, sock, connections *os.File) (endpoint.Info, endpoint.Lease, error) {
	info, l, err := u.Mux.Present(ctx, mux.Owner(peer), sock, connections)
	count(&u.presented, &u.refused, err)
	if err != nil {
		return endpoint.Info{}, nil, forApplications(err)
	}
	return info, l, nil
}

// count counts a request for a lease.
func count(done, refused *atomic.Uint64, err error) {
	if err != nil {
		done = refused
	}
	done.Add(1)
}

// forApplications says what package mux does not know.
func forApplications(err error) error {
	switch {
	case errors.Is(err, mux.ErrFillRings):
		return fmt.Errorf("%w: ask an operator for trusted: true, or to start unetd with --unchecked-fill-rings", err)
	case errors.Is(err, xsk.ErrTable):
		return fmt.Errorf("%w: %w", control.ErrProtocol, err)
	}
	return err
}

// Endpoints lists all endpoints.
func (u *Uplink) Endpoints(peer control.Peer) ([]endpoint.Info, error) {
	if err := u.authority.MayAsk(mux.Owner(peer)); err != nil {
		return nil, err
	}
	return u.Mux.Endpoints(), nil
}

// Counters reads all counters: the programs', then those of leases.
func (u *Uplink) Counters(peer control.Peer) ([]endpoint.Counter, error) {
	if err := u.authority.MayAsk(mux.Owner(peer)); err != nil {
		return nil, err
	}
	all, err := u.Mux.Counters()
	if err != nil {
		return nil, err
	}
	return append(all,
		endpoint.Counter{Name: "lease_granted", Help: "endpoints opened since unetd was started", Value: u.granted.Load()},
		endpoint.Counter{Name: "lease_presented", Help: "endpoints of an earlier unetd whose applications have come to this one", Value: u.presented.Load()},
		endpoint.Counter{Name: "lease_refused", Help: "requests of these two kinds that were answered by an error", Value: u.refused.Load()},
	), nil
}
