package mux

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
)

// claim is a tag that is held.
type claim struct {
	by *Lease
	// reserved are descriptors of sockets of the kernel's: one for each port of
	// an address that the host has, so 64 for a block, and one for a whole IPv6
	// address. A message tag, a whole IPv4 address, and what stands on a whole
	// address have none.
	reserved []int
	// suspended: the uplink does not have the tag's address at present, so the tag is
	// not in effect (addresschange.go).
	suspended bool
}

// letGo gives the kernel back what was reserved.
func (c *claim) letGo() error {
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

// claimTable is all tags that are held, counted by what a claim has to be
// compared with: nothing here is searched, however many tags there are. It is
// ready for use when it is zero.
type claimTable struct {
	held    map[endpoint.Tag]*claim
	byLease map[*Lease]map[endpoint.Tag]struct{}
	inBlock map[endpoint.Tag]int     // by block: single ports of it that are held
	onAddr  map[netip.Addr]int       // by address: ports and blocks of it that are held
	sockets int                      // what all claims have reserved
	shared  map[endpoint.TagKind]int // of them, those of each kind
}

// get is who holds exactly t, or nil.
func (ct *claimTable) get(t endpoint.Tag) *claim { return ct.held[t] }

// ofTCP is who has a TCP port: by itself, in a block, or with its whole address. nil:
// nobody on unet.
func (ct *claimTable) ofTCP(ap netip.AddrPort) *claim {
	port := endpoint.TCPTag(ap)
	for _, t := range [...]endpoint.Tag{port, port.AsBlock(), endpoint.AddrTag(ap.Addr())} {
		if c := ct.held[t]; c != nil {
			return c
		}
	}
	return nil
}

// inEffect is the set of a lease's tags that it can send under now.
func (ct *claimTable) inEffect(l *Lease) map[endpoint.Tag]bool {
	set := map[endpoint.Tag]bool{}
	for t := range ct.byLease[l] {
		if !ct.held[t].suspended {
			set[t] = true
		}
	}
	return set
}

// of lists the tags of a lease in order.
func (ct *claimTable) of(l *Lease) []endpoint.Tag {
	return slices.SortedFunc(maps.Keys(ct.byLease[l]), func(a, b endpoint.Tag) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Message, b.Message))
	})
}

func hasPorts(t endpoint.Tag) bool { return t.Kind == endpoint.TagUDP || t.Kind == endpoint.TagTCP }

// add enters a tag that does not stand here yet.
func (ct *claimTable) add(t endpoint.Tag, c *claim) {
	if ct.held == nil {
		*ct = claimTable{
			held:    map[endpoint.Tag]*claim{},
			byLease: map[*Lease]map[endpoint.Tag]struct{}{},
			inBlock: map[endpoint.Tag]int{},
			onAddr:  map[netip.Addr]int{},
			shared:  map[endpoint.TagKind]int{},
		}
	}
	ct.held[t] = c
	if ct.byLease[c.by] == nil {
		ct.byLease[c.by] = map[endpoint.Tag]struct{}{}
	}
	ct.byLease[c.by][t] = struct{}{}
	ct.sockets += len(c.reserved)
	ct.shared[t.Kind] += len(c.reserved)
	ct.count(t, +1)
}

// remove takes a tag out that stands here.
func (ct *claimTable) remove(t endpoint.Tag) *claim {
	c := ct.held[t]
	delete(ct.held, t)
	delete(ct.byLease[c.by], t)
	if len(ct.byLease[c.by]) == 0 {
		delete(ct.byLease, c.by)
	}
	ct.sockets -= len(c.reserved)
	ct.shared[t.Kind] -= len(c.reserved)
	ct.count(t, -1)
	return c
}

func (ct *claimTable) count(t endpoint.Tag, by int) {
	if !hasPorts(t) {
		return
	}
	countBy(ct.onAddr, t.Addr, by)
	if !t.Block {
		countBy(ct.inBlock, t.AsBlock(), by)
	}
}

func countBy[K comparable](m map[K]int, k K, by int) {
	if m[k] += by; m[k] == 0 {
		delete(m, k)
	}
}

// free says what keeps l from claiming t, which has no wildcards left: the tag
// itself is held, or one that claims some of the same ports. The address is
// another question.
func (ct *claimTable) free(l *Lease, t endpoint.Tag) error {
	if c := ct.held[t]; c != nil {
		return heldBy(c, l, t)
	}
	switch {
	case !hasPorts(t):
	case t.Block && ct.inBlock[t] > 0:
		return fmt.Errorf("%w: %v: of its ports %d are held one by one: choose another block", endpoint.ErrTagHeld, t, ct.inBlock[t])
	case !t.Block && ct.held[t.AsBlock()] != nil:
		return fmt.Errorf("%w: %v: it lies in the block %v, which is held: choose another port", endpoint.ErrTagHeld, t, t.AsBlock())
	}
	return nil
}

// letGo forgets all tags and gives the kernel its ports back. The kernel's tag
// table stays as it is.
func (ct *claimTable) letGo() error {
	var err error
	for _, c := range ct.held {
		err = errors.Join(err, c.letGo())
	}
	*ct = claimTable{}
	return err
}
