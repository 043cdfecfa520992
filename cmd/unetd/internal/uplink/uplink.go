//go:build linux

package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// Uplink is a mux that implements session.Provider.
type Uplink struct {
	*mux.Mux
	authority *policy.Authority

	draining atomic.Bool // no endpoint is granted

	granted, presented atomic.Uint64 // requests for leases
	refusals           refusals
}

// Open attaches to an interface of this process's network namespace, or takes over what another
// unetd has pinned for it. It sets the policy of cfg, which is source with queues, the queues to
// which endpoints may attach, and the limit of memory. register is the command that runs
// xsk.RegisterMain. Call [Check] first.
func Open(cfg mux.Config, source *policy.Source, queues policy.Queues, register []string) (*Uplink, error) {
	if err := prepareBPFFS(cfg.Pin, cfg.Log); err != nil {
		return nil, err
	}
	maxCharge, chargeErr := maxCharge(cfg.Log)
	memory, err := memoryBound(cfg.Log)
	if err = errors.Join(chargeErr, err); err != nil {
		return nil, err
	}
	u := &Uplink{authority: &policy.Authority{Source: source, Interface: cfg.Interface, Queues: queues, Log: cfg.Log, Register: register, MaxCharge: maxCharge}}
	cfg.Limits.Memory, cfg.Policy = memory, u.authority
	if u.Mux, err = mux.Open(cfg); err != nil {
		return nil, explainOpen(cfg.Interface, err)
	}
	return u, nil
}

// maxCharge is the largest limit of registered memory that the kernel can enforce for a user, in
// bytes.
func maxCharge(log *slog.Logger) (int64, error) {
	limit, err := xsk.MaxCharge()
	if err != nil {
		return 0, err
	}
	most := int64(min(limit, math.MaxInt64))
	if most < math.MaxInt64 {
		log.Warn("the kernel cannot count the memory of users whose rule allows more than this: a user who may make user namespaces can keep segments of closed endpoints; raise RLIMIT_MEMLOCK of unetd, or give it CAP_SYS_RESOURCE",
			"memory", policy.Bytes(most/policy.RegisteredTimes))
	}
	return most, nil
}

// OpenEndpoint makes an endpoint for an application, if the policy permits it.
func (u *Uplink) OpenEndpoint(ctx context.Context, peer mux.Owner, req endpoint.Request) (*endpoint.Grant, endpoint.Lease, error) {
	if u.draining.Load() {
		return nil, nil, u.refusals.count(protocol.Busy("an operator drains this unetd (unetd drain), which grants no new endpoints: try later"))
	}
	grant, l, err := u.OpenEndpointFor(ctx, peer, req)
	if err != nil {
		return nil, nil, u.refusals.count(forApplications(err))
	}
	u.granted.Add(1)
	return grant, l, nil
}

// Present gives an application the lease of an endpoint that another unetd has opened.
func (u *Uplink) Present(ctx context.Context, peer mux.Owner, sock, connections *os.File) (endpoint.Info, endpoint.Lease, error) {
	info, l, err := u.Mux.Present(ctx, peer, sock, connections)
	if err != nil {
		return endpoint.Info{}, nil, u.refusals.count(forApplications(err))
	}
	u.presented.Add(1)
	return info, l, nil
}

// forApplications adds what the application's user can do about an error of the mux.
func forApplications(err error) error {
	switch {
	case errors.Is(err, mux.ErrFillRings):
		return fmt.Errorf("%w: ask an operator for trusted: true, or to start unetd with --unchecked-fill-rings", err)
	case errors.Is(err, xsk.ErrTable):
		return fmt.Errorf("%w: %w", protocol.ErrProtocol, err)
	}
	return err
}

// Endpoints lists all endpoints.
func (u *Uplink) Endpoints(peer mux.Owner) ([]endpoint.Info, error) {
	if err := u.authority.MayAsk(peer); err != nil {
		return nil, err
	}
	return u.Mux.Endpoints(), nil
}

// Status describes endpoints without their sockets.
func (u *Uplink) Status(peer mux.Owner, from uint64) ([]endpoint.Status, error) {
	if err := u.authority.MayAsk(peer); err != nil {
		return nil, err
	}
	all, err := u.Mux.Status(from)
	for i := range all {
		all[i].Command = commandOf(all[i].PID)
	}
	return all, err
}

// commandOf is the name of a process as the kernel has it, at most 15 characters, which the
// process can choose; "" if there is none. Characters that could control a terminal become ?.
func commandOf(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.TrimSuffix(string(name), "\n"))
}

// Sockets reads the sockets that the process of an endpoint publishes.
func (u *Uplink) Sockets(peer mux.Owner, id uint64, from uint32, n int) ([]endpoint.Socket, bool, error) {
	if err := u.authority.MayAsk(peer); err != nil {
		return nil, false, err
	}
	return u.Mux.Sockets(id, from, n)
}

// Counters reads all counters: those of the programs, then those of leases.
func (u *Uplink) Counters(peer mux.Owner) ([]endpoint.Counter, error) {
	if err := u.authority.MayAsk(peer); err != nil {
		return nil, err
	}
	all, err := u.Mux.Counters()
	if err != nil {
		return nil, err
	}
	return append(all,
		endpoint.Counter{Name: "lease_granted", Help: "endpoints opened since unetd was started", Value: u.granted.Load()},
		endpoint.Counter{Name: "lease_presented", Help: "endpoints of an earlier unetd that their applications have presented to this one", Value: u.presented.Load()},
		endpoint.Counter{Name: "lease_refused", Help: "requests to open or present an endpoint that have failed", Value: u.refusals.total()},
	), nil
}

// Uplinks describes the uplink, and tells whether no endpoints are granted.
func (u *Uplink) Uplinks(peer mux.Owner) ([]endpoint.Uplink, bool, error) {
	if err := u.authority.MayAsk(peer); err != nil {
		return nil, false, err
	}
	return []endpoint.Uplink{u.Uplink()}, u.draining.Load(), nil
}

// Revoke ends the lease of an endpoint.
func (u *Uplink) Revoke(peer mux.Owner, id uint64, reason string) error {
	if err := u.authority.MayAsk(peer); err != nil {
		return err
	}
	if err := u.Mux.Revoke(id, reason); err != nil {
		return err
	}
	u.authority.Log.Info("endpoint revoked by an operator", "endpoint", id, "reason", reason, "uid", peer.UID, "pid", peer.PID)
	return nil
}

// Reload reads the policy again.
func (u *Uplink) Reload(peer mux.Owner) (*endpoint.PolicyChange, error) {
	if err := u.authority.MayAsk(peer); err != nil {
		return nil, err
	}
	c, err := u.authority.Source.Reload()
	if err != nil {
		return nil, fmt.Errorf("the old policy stays: %w", err)
	}
	return &c, nil
}

// Drain sets whether no endpoints are granted.
func (u *Uplink) Drain(peer mux.Owner, on bool) error {
	if err := u.authority.MayAsk(peer); err != nil {
		return err
	}
	if u.draining.Swap(on) != on {
		u.authority.Log.Info("draining", "on", on, "uid", peer.UID, "pid", peer.PID)
	}
	return nil
}

// Cleanup removes what killed unetds of this network namespace have left in the kernel. report is
// called with a line about each mux.
func Cleanup(bpffs string, force bool, report func(what string)) error {
	var st unix.Statfs_t
	if err := unix.Statfs(bpffs, &st); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("--bpffs %s: %w", bpffs, err)
	} else if err != nil || st.Type != unix.BPF_FS_MAGIC {
		return nil // nothing can be pinned there
	}
	return mux.Cleanup(bpffs, force, report)
}
