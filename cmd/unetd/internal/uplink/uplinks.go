//go:build linux

package uplink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// Uplinks are the interfaces that unetd serves. It implements session.Provider.
type Uplinks struct {
	list   []*Uplink // at least one
	source *policy.Source
	log    *slog.Logger

	draining atomic.Bool // no endpoint is granted

	granted, presented atomic.Uint64 // requests for leases
	refusals           refusals
}

// Open attaches to interfaces of this process's network namespace, or takes over what another unetd
// has pinned for them. cfg is for each; Open sets Interface, Policy, which is source,
// and the limit of memory. Limits of all users together are
// divided among the interfaces. register is the command that runs xsk.RegisterMain. Call [Check] first.
func Open(names []string, cfg mux.Config, source *policy.Source, register []string) (_ *Uplinks, err error) {
	if err := prepareBPFFS(cfg.Pin, cfg.Log); err != nil {
		return nil, err
	}
	maxCharge, chargeErr := maxCharge(cfg.Log)
	memory, err := memoryBound(cfg.Log)
	if err = errors.Join(chargeErr, err); err != nil {
		return nil, err
	}
	n := int64(len(names))
	share := func(of int64) int64 { return (of + n - 1) / n } // 0, no limit, stays 0
	cfg.Limits = mux.Limits{Endpoints: share(cfg.Limits.Endpoints), Memory: share(memory), Tags: share(cfg.Limits.Tags)}
	cfg.IDs = new(mux.IDs)
	us := &Uplinks{source: source, log: cfg.Log}
	defer func() {
		if err != nil {
			err = errors.Join(err, us.closeOpened())
		}
	}()
	for _, name := range names {
		_, alternative := Names(name)
		a := &policy.Authority{Source: source, Interface: name, AltNames: alternative, Log: cfg.Log, Register: register, MaxCharge: maxCharge}
		cfg.Interface, cfg.Policy = name, a
		u, err := openUplink(cfg, a)
		if err != nil {
			return nil, err
		}
		us.list = append(us.list, u)
	}
	source.OnChange(us.updateRates)
	return us, nil
}

// updateRates applies the rates of the policy to the endpoints of all interfaces.
func (us *Uplinks) updateRates() {
	for _, m := range us.muxes() {
		m.UpdateRates()
	}
}

// closeOpened closes the uplinks that Open has opened before an error. One with endpoints of an earlier unetd
// is left as it was.
func (us *Uplinks) closeOpened() error {
	return us.end(func(m *mux.Mux) error {
		if m.Uplink().Endpoints > 0 {
			return m.Abandon()
		}
		return m.Close()
	})
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

func (us *Uplinks) names() string {
	names := make([]string, len(us.list))
	for i, u := range us.list {
		names[i] = u.cfg.Interface
	}
	return strings.Join(names, ", ")
}

// Describe names the interfaces and the modes of their muxes, separated by commas.
func (us *Uplinks) Describe() (interfaces, modes string) {
	var list []string
	for _, u := range us.list {
		list = append(list, u.describe().Mode)
	}
	return us.names(), strings.Join(list, ", ")
}

// Close detaches everything. Every lease is closed by then.
func (us *Uplinks) Close() error { return us.end((*mux.Mux).Close) }

// Abandon leaves everything as it is, for the next unetd.
func (us *Uplinks) Abandon() error { return us.end((*mux.Mux).Abandon) }

func (us *Uplinks) end(f func(*mux.Mux) error) error {
	var err error
	for _, u := range us.list {
		if e := u.end(f); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", u.cfg.Interface, e))
		}
	}
	return err
}

// muxes are the muxes of the interfaces that can be used.
func (us *Uplinks) muxes() (list []*mux.Mux) {
	for _, u := range us.list {
		if m, err := u.current(); err == nil {
			list = append(list, m)
		}
	}
	return list
}

// OpenEndpoint makes an endpoint for an application, if the policy permits it.
func (us *Uplinks) OpenEndpoint(ctx context.Context, peer mux.Owner, req endpoint.Request) (*endpoint.Grant, endpoint.Lease, error) {
	grant, l, err := us.open(ctx, peer, req)
	if err != nil {
		return nil, nil, us.refusals.count(forApplications(err))
	}
	us.granted.Add(1)
	return grant, l, nil
}

func (us *Uplinks) open(ctx context.Context, peer mux.Owner, req endpoint.Request) (*endpoint.Grant, *mux.Lease, error) {
	if us.draining.Load() {
		return nil, nil, protocol.Busy("an operator drains this unetd (unetd drain), which grants no new endpoints: try later")
	}
	u, err := us.choose(peer, req)
	if err != nil {
		return nil, nil, err
	}
	m, err := u.current()
	if err != nil {
		return nil, nil, err
	}
	return m.OpenEndpointFor(ctx, peer, req)
}

// Present gives an application the lease of an endpoint that another unetd has opened.
func (us *Uplinks) Present(ctx context.Context, peer mux.Owner, sock, connections *os.File) (endpoint.Info, endpoint.Lease, error) {
	err := endpoint.ErrNotPresentable
	for _, m := range us.muxes() {
		info, l, presentErr := m.Present(ctx, peer, sock, connections)
		if presentErr == nil {
			us.presented.Add(1)
			return info, l, nil
		}
		if err = presentErr; !errors.Is(err, endpoint.ErrNotPresentable) {
			break
		}
	}
	return endpoint.Info{}, nil, us.refusals.count(forApplications(err))
}

// HasRule reports whether the policy has a rule for an owner on one of the interfaces.
func (us *Uplinks) HasRule(o mux.Owner) bool {
	return slices.ContainsFunc(us.list, func(u *Uplink) bool { return u.authority.HasRule(o) })
}

// Routes asks the uplinks how endpoints on them reach dst from src. An owner may ask about those of which
// the policy gives anything, and an operator about all.
func (us *Uplinks) Routes(ctx context.Context, o mux.Owner, uplink string, src, dst netip.Addr) (list []endpoint.UplinkRoute, err error) {
	asked := us.list
	if uplink != "" {
		u, err := us.named(uplink)
		if err != nil {
			return nil, err
		}
		asked = []*Uplink{u}
	}
	refused := us.MayAsk(o)
	for _, u := range asked {
		if refused != nil && !u.authority.HasRule(o) {
			continue
		}
		m, err := u.current()
		if err == nil {
			var r endpoint.UplinkRoute
			if r, err = m.Route(ctx, src, dst); err == nil {
				list = append(list, r)
				continue
			}
		}
		list = append(list, endpoint.UplinkRoute{Interface: u.cfg.Interface, Error: protocol.Message(err)})
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: the policy gives uid %d nothing on %s", os.ErrPermission, o.UID, cmp.Or(uplink, us.names()))
	}
	return list, nil
}

// MayAsk returns nil if an owner is an operator by the rule for one of the interfaces.
func (us *Uplinks) MayAsk(o mux.Owner) (err error) {
	for _, u := range us.list {
		if err = u.authority.MayAsk(o); err == nil {
			return nil
		}
	}
	return err
}

// Endpoints lists all endpoints, interface by interface.
func (us *Uplinks) Endpoints() (all []endpoint.Info) {
	for _, m := range us.muxes() {
		all = append(all, m.Endpoints()...)
	}
	return all
}

// Counters reads all counters: those of the programs, by interface, then those of leases.
func (us *Uplinks) Counters() (all []endpoint.Counter, err error) {
	for _, m := range us.muxes() {
		list, err := m.Counters()
		if errors.Is(err, mux.ErrClosed) { // its interface has just gone
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return append(all,
		endpoint.Counter{Name: "lease_granted", Help: "endpoints opened since unetd was started", Value: us.granted.Load()},
		endpoint.Counter{Name: "lease_presented", Help: "endpoints of an earlier unetd that their applications have presented to this one", Value: us.presented.Load()},
		endpoint.Counter{Name: "lease_refused", Help: "requests to open or present an endpoint that have failed", Value: us.refusals.total()},
	), nil
}

// Uplinks describes the interfaces, and tells whether no endpoints are granted.
func (us *Uplinks) Uplinks() ([]endpoint.Uplink, bool) {
	list := make([]endpoint.Uplink, len(us.list))
	for i, u := range us.list {
		list[i] = u.describe()
	}
	return list, us.draining.Load()
}

// Revoke ends the lease of an endpoint.
func (us *Uplinks) Revoke(peer mux.Owner, id uint64, reason string) error {
	err := fmt.Errorf("%w: %d", endpoint.ErrNoEndpoint, id)
	for _, m := range us.muxes() {
		e := m.Revoke(id, reason)
		if errors.Is(e, endpoint.ErrNoEndpoint) || errors.Is(e, mux.ErrClosed) { // its interface has just gone
			continue
		}
		err = e
		break
	}
	if err != nil {
		return err
	}
	us.log.Info("endpoint revoked by an operator", "endpoint", id, "reason", reason, "uid", peer.UID, "pid", peer.PID)
	return nil
}

// Capture ends the memory paths of an endpoint (nil: of all), and grants it none until stop is called.
func (us *Uplinks) Capture(id *uint64) (stop func(), err error) {
	var stops []func()
	for _, m := range us.muxes() {
		if stop, err := m.Capture(id); err == nil {
			stops = append(stops, stop)
		}
	}
	if id != nil && len(stops) == 0 {
		return nil, fmt.Errorf("%w: %d", endpoint.ErrNoEndpoint, *id)
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}, nil
}

// Reload reads the policy again.
func (us *Uplinks) Reload() (*endpoint.PolicyChange, error) {
	c, err := us.source.Reload()
	if err != nil {
		return nil, fmt.Errorf("the old policy stays: %w", err)
	}
	return &c, nil
}

// Drain sets whether no endpoints are granted.
func (us *Uplinks) Drain(peer mux.Owner, on bool) {
	if us.draining.Swap(on) != on {
		us.log.Info("draining", "on", on, "uid", peer.UID, "pid", peer.PID)
	}
}

// Cleanup removes what killed unetds of this network namespace have left in the kernel, and the tag tables of muxes that are gone from dir.
// report is called with a line about each mux and table.
func Cleanup(bpffs, dir string, force bool, report func(what string)) error {
	var st unix.Statfs_t
	if err := unix.Statfs(bpffs, &st); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("--bpffs %s: %w", bpffs, err)
	} else if err == nil && st.Type == unix.BPF_FS_MAGIC { // else nothing can be pinned there
		if err := mux.Cleanup(bpffs, force, report); err != nil {
			return err
		}
	}
	return mux.CleanTagTables(dir, bpffs, report)
}
