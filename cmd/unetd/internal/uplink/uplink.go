package uplink

import (
	"errors"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/cmd/unetd/internal/quota"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/nat"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// Uplink is a mux that applications are let to, as far as the policy goes. It is
// a control.Provider.
type Uplink struct {
	mux    *mux.Mux
	name   string // of the interface, as the operator calls it
	policy *policy.Source
	quota  quota.Table
	log    *slog.Logger

	natWarned sync.Map // of natWarning

	register  []string // the command that makes the kernel count for a user
	maxCharge int64    // bytes; beyond it the kernel cannot be had to count for a user

	granted, presented, refused atomic.Uint64 // leases
}

// Config is what an operator decides.
type Config struct {
	Interface          string
	Mode               mux.Mode
	BPFFS              string        // where state outlives this process
	Grace              time.Duration // how long endpoints that were taken over wait for their owners
	Policy             *policy.Source
	Endpoints          int64    // that all users may have at once
	Register           []string // the command that runs RegisterMain
	UncheckedFillRings bool     // grant ports to users who are not trusted where their fill rings cannot be checked
	Log                *slog.Logger
}

// barredFor is how long a user gets no endpoint after one was revoked: who tries to
// harm the host by luck gets few tries.
const barredFor = time.Minute

// ParseMode reads how the programs are to be attached: auto, native, generic.
func ParseMode(s string) (mux.Mode, error) { return mux.ParseMode(s) }

// Open attaches to an interface of this process's network namespace, or takes
// over what another unetd has left there. Call [Check] first.
func Open(cfg Config) (*Uplink, error) {
	u := &Uplink{name: cfg.Interface, policy: cfg.Policy, register: cfg.Register, log: cfg.Log}
	u.quota.Endpoints = cfg.Endpoints
	if err := prepareBPFFS(cfg.BPFFS, cfg.Log); err != nil {
		return nil, err
	}
	if err := errors.Join(u.findMaxCharge(cfg.Log), u.boundMemory(cfg.Log)); err != nil {
		return nil, err
	}
	m, err := mux.Open(mux.Config{
		Interface: cfg.Interface, Mode: cfg.Mode, Pin: cfg.BPFFS, Grace: cfg.Grace, Log: cfg.Log, UncheckedFillRings: cfg.UncheckedFillRings,
		// What is there counts, whether it still fits the policy or not.
		Adopted: func(e endpoint.Info) {
			u.quota.Adopt(func() []quota.Endpoint {
				return []quota.Endpoint{{ID: e.ID, UID: e.UID, Bytes: e.SegmentBytes}}
			})
		},
		Freed:   func(e endpoint.Info) { u.quota.Freed(e.ID) },
		Revoked: func(e endpoint.Info) { u.quota.Bar(e.UID, time.Now().Add(barredFor)) },
	})
	if err != nil {
		return nil, explainOpen(cfg.Interface, err)
	}
	u.mux = m
	u.showNAT()
	return u, nil
}

// showNAT logs that network address translation may use ports of the interface's address,
// if so. Claims look again.
func (u *Uplink) showNAT() {
	a, err := u.mux.WildcardAddr(netip.Addr{})
	if err != nil {
		return // it has no address
	}
	ports, err := u.mux.Translation(a)
	switch {
	case err != nil:
		u.log.Error("cannot ask what network address translation does, and ports cannot be claimed", "interface", u.name, "error", err)
	case ports.MayUseBy() != "":
		u.log.Warn("network address translation on this host may use ports for others: claims of these ports are refused, unless the user's rule says nat: warn",
			"interface", u.name, "addr", a, "by", ports.MayUseBy())
	}
}

// natWarning is what is warned of once.
type natWarning struct{ rule, by string }

// warnOfNAT logs that a claim was permitted of ports that network address translation may
// use: once for each rule of the policy and what translates.
func (u *Uplink) warnOfNAT(t endpoint.Tag, r *policy.Rule, ports *nat.Ports, peer control.Peer) {
	if _, warned := u.natWarned.LoadOrStore(natWarning{r.Name, ports.MayUseBy()}, true); !warned {
		u.log.Warn("ports are claimed that network address translation may use for others, whose traffic can reach the endpoint then; this is said once",
			"interface", u.name, "tag", t, "uid", peer.UID, "rule", r.Name, "by", ports.MayUseBy())
	}
}

// findMaxCharge asks how much the kernel can be had to count for a user.
func (u *Uplink) findMaxCharge(log *slog.Logger) error {
	limit, err := xsk.MaxCharge()
	if err != nil {
		return err
	}
	u.maxCharge = int64(min(limit, math.MaxInt64))
	if u.maxCharge < math.MaxInt64 {
		log.Warn("the kernel cannot count the memory of users whose rule allows more than this: one who may make user namespaces can keep segments of closed endpoints; raise RLIMIT_MEMLOCK of unetd, or give it CAP_SYS_RESOURCE",
			"memory", policy.Bytes(u.maxCharge/registeredTimes))
	}
	return nil
}

// Identity is that of the interface.
func (u *Uplink) Identity() endpoint.Identity { return u.mux.Identity() }

// Failed gets an error if the interface is gone, or is another one now. All
// leases have ended then, for that reason.
func (u *Uplink) Failed() <-chan error { return u.mux.Failed() }

// Close detaches everything.
func (u *Uplink) Close() error { return u.mux.Close() }

// Abandon leaves everything as it is, for the next unetd.
func (u *Uplink) Abandon() error { return u.mux.Abandon() }

// rule is the one that decides about a peer now, and the policy that it is of.
func (u *Uplink) rule(peer control.Peer) (*policy.Rule, *policy.Policy) {
	p := u.policy.Policy()
	return p.Match(policy.Subject{UID: peer.UID, GID: peer.GID, Groups: peer.Groups}, u.name), p
}

// mayAsk reports whether a peer may see what others do: root, who runs unetd, and
// whom the policy calls an operator.
func (u *Uplink) mayAsk(peer control.Peer) error {
	if peer.UID == 0 || int(peer.UID) == os.Geteuid() {
		return nil
	}
	if rule, _ := u.rule(peer); rule != nil && rule.Operator {
		return nil
	}
	return refuseOperator(peer)
}
