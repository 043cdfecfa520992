package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// Uplink is a mux as a control.Provider.
type Uplink struct {
	*mux.Mux
	authority *policy.Authority

	granted, presented, refused atomic.Uint64 // leases
}

// Config is what an operator decides.
type Config struct {
	Interface          string
	Mode               mux.Mode
	BPFFS              string        // where state outlives this process
	Grace              time.Duration // how long endpoints that were taken over wait for their owners
	Policy             *policy.Source
	Limits             mux.Limits
	Register           []string // the command that runs RegisterMain
	UncheckedFillRings bool     // grant ports to users who are not trusted where their fill rings cannot be checked
	Log                *slog.Logger
}

// Open attaches to an interface of this process's network namespace, or takes
// over what another unetd has left there. Call [Check] first.
func Open(cfg Config) (*Uplink, error) {
	if err := prepareBPFFS(cfg.BPFFS, cfg.Log); err != nil {
		return nil, err
	}
	maxCharge, chargeErr := maxCharge(cfg.Log)
	memory, err := memoryBound(cfg.Log)
	if err = errors.Join(chargeErr, err); err != nil {
		return nil, err
	}
	cfg.Limits.Memory = memory
	u := &Uplink{authority: &policy.Authority{Source: cfg.Policy, Interface: cfg.Interface, Log: cfg.Log, Register: cfg.Register, MaxCharge: maxCharge}}
	u.Mux, err = mux.Open(mux.Config{
		Interface: cfg.Interface, Mode: cfg.Mode, Pin: cfg.BPFFS, Grace: cfg.Grace, Log: cfg.Log, UncheckedFillRings: cfg.UncheckedFillRings,
		Policy: u.authority, Limits: cfg.Limits,
	})
	if err != nil {
		return nil, explainOpen(cfg.Interface, err)
	}
	return u, nil
}

// maxCharge is how many bytes the kernel can be had to count for a user.
func maxCharge(log *slog.Logger) (int64, error) {
	limit, err := xsk.MaxCharge()
	if err != nil {
		return 0, err
	}
	most := int64(min(limit, math.MaxInt64))
	if most < math.MaxInt64 {
		log.Warn("the kernel cannot count the memory of users whose rule allows more than this: one who may make user namespaces can keep segments of closed endpoints; raise RLIMIT_MEMLOCK of unetd, or give it CAP_SYS_RESOURCE",
			"memory", policy.Bytes(most/policy.RegisteredTimes))
	}
	return most, nil
}

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

// Cleanup removes what unetds of this network namespace that were killed have
// left in the kernel, and names it.
func Cleanup(bpffs string, force bool, report func(what string)) error {
	var st unix.Statfs_t
	if err := unix.Statfs(bpffs, &st); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("--bpffs %s: %w", bpffs, err)
	} else if err != nil || st.Type != unix.BPF_FS_MAGIC {
		return nil // nobody could have kept anything there
	}
	return mux.Cleanup(bpffs, force, report)
}
