package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// Uplink is a mux that applications are let to. It is a control.Provider.
type Uplink struct {
	mux *mux.Mux
}

// ParseMode reads how the programs are to be attached: auto, native, generic.
func ParseMode(s string) (mux.Mode, error) { return mux.ParseMode(s) }

// Open attaches to an interface of this process's network namespace. Call
// [Check] first.
func Open(interfaceName string, mode mux.Mode, log *slog.Logger) (*Uplink, error) {
	m, err := mux.Open(mux.Config{Interface: interfaceName, Mode: mode, Log: log})
	if err != nil {
		return nil, explainOpen(interfaceName, err)
	}
	return &Uplink{m}, nil
}

// Identity is that of the interface.
func (u *Uplink) Identity() endpoint.Identity { return u.mux.Identity() }

// Close detaches everything.
func (u *Uplink) Close() error { return u.mux.Close() }

// OpenEndpoint makes an endpoint for an application. Whoever could connect to
// the socket gets what it asks for, a queue of the uplink and tags claimed
// later included. A policy belongs here: it would judge peer and req before
// the mux is asked, and wrap the lease to judge what is claimed later.
func (u *Uplink) OpenEndpoint(ctx context.Context, _ control.Peer, req endpoint.Request) (*endpoint.Grant, endpoint.Lease, error) {
	grant, lease, err := u.mux.OpenEndpoint(ctx, req)
	if err != nil {
		return nil, nil, forApplications(err)
	}
	return grant, lease, nil
}

// forApplications gives errors of the mux the sentinels that package control
// has codes for.
func forApplications(err error) error {
	for _, e := range []struct{ is, as error }{
		{mux.ErrQueueBusy, control.ErrBusy},
		{xsk.ErrQueueBusy, control.ErrBusy},
		{mux.ErrNoQueue, errors.ErrUnsupported},
		{xsk.ErrNotSupported, errors.ErrUnsupported},
	} {
		if errors.Is(err, e.is) {
			return fmt.Errorf("%w: %w", e.as, err)
		}
	}
	return err
}

// explainOpen says what an operator can do about an error of mux.Open.
func explainOpen(interfaceName string, err error) error {
	for _, e := range []struct {
		is error
		do string
	}{
		{os.ErrPermission, "run unetd as root of the initial user namespace"}, // Check found the capabilities
		{mux.ErrForeignProgram, "detach it (ip link set dev " + interfaceName + " xdp off, or end the program that holds its link), or use another --interface"},
		{mux.ErrNotEthernet, "use another --interface"},
		{mux.ErrVLANOffload, "turn it off (ethtool -K " + interfaceName + " rxvlan off), or use another --interface"},
	} {
		if errors.Is(err, e.is) {
			return fmt.Errorf("%w: %s", err, e.do)
		}
	}
	return err
}
