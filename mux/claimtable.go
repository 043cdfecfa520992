package mux

import (
	"cmp"
	"errors"
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
	// not in effect (addresses.go).
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

// claimTable is all tags that are held. What a claim is compared with is found in
// constant time, however many there are. It is ready for use when it is zero.
type claimTable struct {
	held     map[endpoint.Tag]*claim
	onAddr   map[netip.Addr]int       // by address: ports and blocks of it that are held
	reserved map[endpoint.TagKind]int // sockets of the kernel's, by the kind of tag
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
	for t := range l.tags {
		if !ct.held[t].suspended {
			set[t] = true
		}
	}
	return set
}

// sorted lists tags in order.
func sorted(tags map[endpoint.Tag]struct{}) []endpoint.Tag {
	return slices.SortedFunc(maps.Keys(tags), func(a, b endpoint.Tag) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Message, b.Message))
	})
}

// sockets is how many the kernel has reserved for all tags.
func (ct *claimTable) sockets() (n int) {
	for _, of := range ct.reserved {
		n += of
	}
	return n
}

// add enters a tag that does not stand here yet.
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

// remove takes a tag out that stands here.
func (ct *claimTable) remove(t endpoint.Tag) *claim {
	c := ct.held[t]
	delete(ct.held, t)
	delete(c.by.tags, t)
	ct.reserved[t.Kind] -= len(c.reserved)
	if hasPorts(t) {
		if ct.onAddr[t.Addr]--; ct.onAddr[t.Addr] == 0 {
			delete(ct.onAddr, t.Addr)
		}
	}
	return c
}

// free says what keeps l from claiming t, which has no wildcards left: the tag
// itself is held, or one that claims some of the same ports. The address is
// another question.
func (ct *claimTable) free(l *Lease, t endpoint.Tag) error {
	if c := ct.held[t]; c != nil && c.by == l {
		return held(t, "this endpoint holds it already")
	} else if c != nil {
		return held(t, "another endpoint holds it: choose another, or end that one")
	}
	switch {
	case !hasPorts(t):
	case t.Block:
		if n := ct.inBlock(t); n > 0 {
			return held(t, "of its ports %d are held one by one: choose another block", n)
		}
	case ct.held[t.AsBlock()] != nil:
		return held(t, "it lies in the block %v, which is held: choose another port", t.AsBlock())
	}
	return nil
}

// inBlock is how many ports of a block are held one by one.
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

// letGo forgets all tags and gives the kernel its ports back. The kernel's tag
// table stays as it is.
func (ct *claimTable) letGo() error {
	var err error
	for _, c := range ct.held {
		clear(c.by.tags)
		err = errors.Join(err, c.letGo())
	}
	*ct = claimTable{}
	return err
}
