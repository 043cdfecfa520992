package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// Uplink is a mux that applications are let to. It is a control.Provider.
type Uplink struct {
	mux        *mux.Mux
	allowQueue bool
}

// Config is what an operator decides.
type Config struct {
	Interface  string
	Mode       mux.Mode
	AllowQueue bool // let applications attach to a queue of the interface
	Log        *slog.Logger
}

// ParseMode reads how the programs are to be attached: auto, native, generic.
func ParseMode(s string) (mux.Mode, error) { return mux.ParseMode(s) }

// Open attaches to an interface of this process's network namespace. Call
// [Check] first.
func Open(cfg Config) (*Uplink, error) {
	m, err := mux.Open(mux.Config{Interface: cfg.Interface, Mode: cfg.Mode, Log: cfg.Log})
	if err != nil {
		return nil, explainOpen(cfg.Interface, err)
	}
	return &Uplink{m, cfg.AllowQueue}, nil
}

// Identity is that of the interface.
func (u *Uplink) Identity() endpoint.Identity { return u.mux.Identity() }

// Failed gets an error if the interface is gone, or is another one now.
func (u *Uplink) Failed() <-chan error { return u.mux.Failed() }

// Close detaches everything.
func (u *Uplink) Close() error { return u.mux.Close() }

// OpenEndpoint makes an endpoint for an application, if the policy has nothing
// against it.
func (u *Uplink) OpenEndpoint(ctx context.Context, peer control.Peer, req endpoint.Request) (*endpoint.Grant, endpoint.Lease, error) {
	if req.Attach == endpoint.AttachQueue && !u.allowQueue {
		return nil, nil, errQueue
	}
	if err := allowTags(peer, req.Tags...); err != nil {
		return nil, nil, err
	}
	grant, l, err := u.mux.OpenEndpoint(ctx, req)
	if err != nil {
		return nil, nil, forApplications(err)
	}
	return grant, &lease{l, peer}, nil
}

// lease puts the policy and the errors for applications around the mux's own.
type lease struct {
	endpoint.Lease
	peer control.Peer
}

func (l *lease) Claim(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	if err := allowTags(l.peer, t); err != nil {
		return t, err
	}
	t, err := l.Lease.Claim(ctx, t)
	return t, forApplications(err)
}

func (l *lease) Unclaim(ctx context.Context, t endpoint.Tag) error {
	return forApplications(l.Lease.Unclaim(ctx, t))
}

func (l *lease) Resolve(ctx context.Context, dst netip.Addr) (endpoint.Route, error) {
	r, err := l.Lease.Resolve(ctx, dst)
	return r, forApplications(err)
}

// forApplications gives errors of the mux the sentinels that package control
// has codes for. nil stays nil.
func forApplications(err error) error {
	for _, e := range []struct{ is, as error }{
		{mux.ErrQueueBusy, control.ErrBusy},
		{xsk.ErrQueueBusy, control.ErrBusy},
		{mux.ErrTableFull, control.ErrBusy},
		{unix.EMFILE, control.ErrBusy}, // unetd's descriptors, or those of
		{unix.ENFILE, control.ErrBusy}, // the whole system, are used up
		{xsk.ErrHugePages, control.ErrHugePages},
		{mux.ErrNoQueue, errors.ErrUnsupported},
		{xsk.ErrNotSupported, errors.ErrUnsupported},
	} {
		if errors.Is(err, e.is) && !errors.Is(err, e.as) {
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
		{mux.ErrForeignProgram, detachAdvice(interfaceName) + ", or use another --interface"},
		{mux.ErrNotEthernet, "use another --interface"},
		{mux.ErrVLANOffload, "turn it off (ethtool -K " + interfaceName + " rxvlan off), or use another --interface"},
	} {
		if errors.Is(err, e.is) {
			return fmt.Errorf("%w: %s", err, e.do)
		}
	}
	return err
}
