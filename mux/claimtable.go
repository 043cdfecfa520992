//go:build linux

package mux

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux/internal/steer"
)

// claim is the holder and the state of a held tag.
type claim struct {
	by *Lease
	// reserved are descriptors of sockets: one for each port of an address of the host (64
	// for a block), and one for an owned IPv6 address. A message tag, an owned IPv4 address
	// and a port of an owned address have none.
	reserved []int
	rules    []steer.Rule // that lead its frames to its endpoint's queue (steering.go)
	// suspended: the uplink does not have the tag's address now, so the tag is not in
	// effect (addresses.go).
	suspended bool
}

// sharesAddress reports whether t, the tag of the claim, is of ports of an address of the host.
func (c *claim) sharesAddress(t endpoint.Tag) bool { return hasPorts(t) && len(c.reserved) > 0 }

// free closes the reserving sockets.
func (c *claim) free() error {
	err := closeAll(c.reserved)
	c.reserved = nil
	return err
}

func closeAll(fds []int) error {
	var err error
	for _, fd := range fds {
		err = errors.Join(err, unix.Close(fd))
	}
	return err
}

// claimTable is all tags that are held. Lookups take constant time. Its zero value is ready
// for use.
type claimTable struct {
	held     map[endpoint.Tag]*claim
	onAddr   map[netip.Addr]int       // by address: number of held ports and blocks of it
	reserved map[endpoint.TagKind]int // by kind of tag: number of reserving sockets
}

// ofTCP returns the claim that covers a TCP port: of the port, its block or its owned address;
// nil: there is none.
func (ct *claimTable) ofTCP(ap netip.AddrPort) *claim {
	port := endpoint.TCPTag(ap)
	for _, t := range [...]endpoint.Tag{port, port.AsBlock(), endpoint.AddrTag(ap.Addr())} {
		if c := ct.held[t]; c != nil {
			return c
		}
	}
	return nil
}

// inEffect is the set of a lease's tags that are not suspended.
func (ct *claimTable) inEffect(l *Lease) map[endpoint.Tag]bool {
	set := map[endpoint.Tag]bool{}
	for t := range l.tags {
		if c := ct.held[t]; c != nil && !c.suspended { // nil: a group
			set[t] = true
		}
	}
	return set
}

// sorted lists tags by kind, address, port and message tag.
func sorted(tags map[endpoint.Tag]struct{}) []endpoint.Tag {
	return slices.SortedFunc(maps.Keys(tags), func(a, b endpoint.Tag) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Message, b.Message))
	})
}

// sockets is the number of reserving sockets of all tags.
func (ct *claimTable) sockets() (n int) {
	for _, of := range ct.reserved {
		n += of
	}
	return n
}

// add adds a tag that is not in the table.
func (ct *claimTable) add(t endpoint.Tag, c *claim) {
	if ct.held == nil {
		*ct = claimTable{held: map[endpoint.Tag]*claim{}, onAddr: map[netip.Addr]int{}, reserved: map[endpoint.TagKind]int{}}
	}
	ct.held[t] = c
	c.by.tags[t] = struct{}{}
	ct.reserved[t.Kind] += len(c.reserved)
	if hasPorts(t) {
		ct.onAddr[t.Addr]++
	}
}

// remove removes a tag that is in the table.
func (ct *claimTable) remove(t endpoint.Tag) {
	c := ct.held[t]
	delete(ct.held, t)
	delete(c.by.tags, t)
	ct.reserved[t.Kind] -= len(c.reserved)
	if hasPorts(t) {
		if ct.onAddr[t.Addr]--; ct.onAddr[t.Addr] == 0 {
			delete(ct.onAddr, t.Addr)
		}
	}
}

// checkFree returns nil if neither t, a tag without wildcards, nor a port or block that overlaps
// with it is held, else endpoint.ErrTagHeld. It does not check who holds the address of t.
func (ct *claimTable) checkFree(l *Lease, t endpoint.Tag) error {
	if c := ct.held[t]; c != nil && c.by == l {
		return held(t, "this endpoint holds it already")
	} else if c != nil && c.by.uid == l.uid {
		return held(t, "endpoint %d of process %d of the same user holds it, also for connections of a listener that is closed: end these, or choose another", c.by.id, c.by.owner.PID) // +checklocksignore: a lease of the same mux
	} else if c != nil {
		return held(t, "an endpoint of another user holds it: choose another, or end that one")
	}
	switch {
	case !hasPorts(t):
	case t.Block:
		if n := ct.inBlock(t); n > 0 {
			return held(t, "%d of its ports are held one by one: choose another block", n)
		}
	case ct.held[t.AsBlock()] != nil:
		return held(t, "it is in the block %v, which is held: choose another port", t.AsBlock())
	}
	return nil
}

// inBlock is the number of ports of a block that are held one by one.
func (ct *claimTable) inBlock(block endpoint.Tag) (n int) {
	t := block
	t.Block = false
	for range endpoint.BlockPorts {
		if ct.held[t] != nil {
			n++
		}
		t.Port++
	}
	return n
}

// close closes all reserving sockets and empties the table. The kernel's tag table stays as it
// is.
func (ct *claimTable) close() error {
	var err error
	for _, c := range ct.held {
		clear(c.by.tags)
		err = errors.Join(err, c.free())
	}
	*ct = claimTable{}
	return err
}

// putTag puts a tag into the kernel's table: from now on its frames go to l's endpoint. m.mu is held.
//
// +checklocks:m.mu
func (m *Mux) putTag(t endpoint.Tag, l *Lease) error {
	m.hide(t)
	if err := m.progs.Maps.PutTag(t, l.at.owner); err != nil {
		return err
	}
	if t.Kind == endpoint.TagAddr {
		m.ownerChanged(t.Addr) // its MAC address is the uplink's now
	}
	m.show(t, l)
	return nil
}

// setEffect suspends a tag of l in the kernel's table, or puts it into effect. m.mu is held.
//
// +checklocks:m.mu
func (m *Mux) setEffect(t endpoint.Tag, l *Lease, effective bool) error {
	m.hide(t)
	err := m.progs.Maps.SetEffect(t, l.at.owner, effective)
	if effective == (err == nil) {
		m.show(t, l)
	}
	return err
}

// deleteTag deletes a tag of c from the kernel's table. m.mu is held.
//
// +checklocks:m.mu
func (m *Mux) deleteTag(t endpoint.Tag, c *claim) error {
	m.hide(t)
	deleted, err := m.deleteFromKernel(t)
	if err != nil && !deleted && !c.suspended {
		m.show(t, c.by)
	}
	return err
}

// deleteFromKernel deletes a tag, which the tag table does not show, from the kernel's table. A tag that is not there is not an error.
// m.mu is held.
//
// +checklocks:m.mu
func (m *Mux) deleteFromKernel(t endpoint.Tag) (deleted bool, err error) {
	deleted, err = m.progs.Maps.DeleteTag(t)
	if deleted && t.Kind == endpoint.TagAddr {
		m.ownerChanged(t.Addr)
	}
	return deleted, err
}
