//go:build linux

package uplink

import (
	"maps"
	"sync"

	"github.com/unet-go/unet/cmd/unetd/internal/metrics"
	"github.com/unet-go/unet/internal/protocol"
)

var _ metrics.Source = (*Uplinks)(nil)

// Muxes are the muxes of the interfaces that can be used, and the names of the other interfaces.
func (us *Uplinks) Muxes() (list []metrics.Mux, unusable []string) {
	for _, u := range us.list {
		if m, err := u.current(); err == nil {
			list = append(list, m)
		} else {
			unusable = append(unusable, u.cfg.Interface)
		}
	}
	return list, unusable
}

// Leases are the requests for leases.
func (us *Uplinks) Leases() metrics.Leases {
	return metrics.Leases{Granted: us.granted.Load(), Presented: us.presented.Load(), Refused: us.refusals.all(), Draining: us.draining.Load()}
}

// refusals counts refused requests by the code of their error.
type refusals struct {
	mu     sync.Mutex
	byCode map[string]uint64 // +checklocks:mu
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
