//go:build linux

package uplink

import (
	"maps"
	"sync"

	"github.com/unet-go/unet/cmd/unetd/internal/metrics"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
)

var _ metrics.Source = (*Uplink)(nil)

// FrameCounters are the counters of the programs.
func (u *Uplink) FrameCounters() ([]endpoint.Counter, error) { return u.Mux.Counters() }

// Leases are the requests for leases.
func (u *Uplink) Leases() metrics.Leases {
	return metrics.Leases{Granted: u.granted.Load(), Presented: u.presented.Load(), Refused: u.refusals.all(), Draining: u.draining.Load()}
}

// refusals counts refused requests by the code of their error.
type refusals struct {
	mu     sync.Mutex
	byCode map[string]uint64
}

// count counts err, and returns it.
func (r *refusals) count(err error) error {
	code := protocol.NewError(err).Code
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byCode == nil {
		r.byCode = map[string]uint64{}
	}
	r.byCode[code]++
	return err
}

func (r *refusals) all() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.byCode)
}

func (r *refusals) total() (n uint64) {
	for _, v := range r.all() {
		n += v
	}
	return n
}
