package uplink

import (
	"errors"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
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
