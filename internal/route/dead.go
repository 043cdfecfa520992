package route

import (
	"net/netip"
	"sync"
	"time"
)

const (
	deadTime = time.Second // for which a hop that did not answer is not looked for again
	maxDead  = 1024        // hops remembered
)

// deadHops are those that the kernel has looked for in vain lately.
type deadHops struct {
	mu sync.Mutex
	at map[netip.Addr]time.Time // when that was found
}

func (d *deadHops) note(hop netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at == nil {
		d.at = map[netip.Addr]time.Time{}
	}
	for other, at := range d.at {
		if time.Since(at) >= deadTime || len(d.at) >= maxDead {
			delete(d.at, other)
		}
	}
	d.at[hop] = time.Now()
}

func (d *deadHops) lately(hop netip.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, known := d.at[hop]
	return known && time.Since(at) < deadTime
}
