package mux

import (
	"net/netip"

	"github.com/unet-go/unet/endpoint"
)

// Claims are the tags that are held, by the claim table and by the kernel's,
// with the number of descriptors that reserve their ports.
func (m *Mux) Claims() (held, inKernel map[endpoint.Tag]bool, reserved int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	held, inKernel = map[endpoint.Tag]bool{}, map[endpoint.Tag]bool{}
	for t, c := range m.tags.held {
		held[t] = true
		reserved += len(c.reserved)
	}
	kernel, err := tagsInKernel(&m.progs.objs)
	for t := range kernel {
		inKernel[t] = true
	}
	return held, inKernel, reserved, err
}

// CountedClaims is what the indexes of the claim table and the ledger count of claims.
func (m *Mux) CountedClaims() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.tags.onAddr) + m.tags.sockets()
	for _, l := range m.leases {
		n += len(l.tags) + int(l.tagCost)
	}
	for _, u := range m.users.byUID {
		n += int(u.tags)
	}
	return n
}

// ForgetClaims does to the claims what the death of the mux's process does: the
// kernel's table stays.
func (m *Mux) ForgetClaims() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tags.letGo()
}

// Readmit is readmit of one of the lease's tags.
func (l *Lease) Readmit(t endpoint.Tag) error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	return l.m.readmit(l, t, false)
}

// Suspended are the tags that are not in effect by the claim table, and by the kernel's.
func (m *Mux) Suspended() (held, inKernel map[endpoint.Tag]bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	held, inKernel = map[endpoint.Tag]bool{}, map[endpoint.Tag]bool{}
	for t, c := range m.tags.held {
		if c.suspended {
			held[t] = true
		}
	}
	kernel, err := tagsInKernel(&m.progs.objs)
	for t, o := range kernel {
		if o.Suspended() {
			inKernel[t] = true
		}
	}
	return held, inKernel, err
}

// SetAside reports whether a whole address is being claimed.
func (m *Mux) SetAside(a netip.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.aside[a]
}

// CountAsShared makes the claim table count n ports of a kind more than there are.
func (m *Mux) CountAsShared(k endpoint.TagKind, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tags.reserved[k] += n
	m.tags.reserved[endpoint.TagMessage] -= n // the sum stays
}

// MostHigh is how many ports endpoints may have before blocks are chosen below 32768.
const MostHigh = mostHigh

// Counted is how many endpoints and bytes of segments a user has by the ledger.
func (m *Mux) Counted(uid uint32) (endpoints, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.users.byUID[uid]
	return u.endpoints, u.bytes
}
