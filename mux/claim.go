package mux

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/unet-go/unet/endpoint"
)

// claimTags claims tags for l, all or none, and returns them in their order
// with their wildcards resolved.
//
// The kernel and the network are asked first, while m.mu is free for others.
// Whole addresses are set aside meanwhile, so that nobody else is told that
// they are free.
func (m *Mux) claimTags(ctx context.Context, l *Lease, tags []endpoint.Tag) (claimed []endpoint.Tag, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	var own addresses
	addressed := slices.ContainsFunc(tags, func(t endpoint.Tag) bool { return hasPorts(t) || t.Kind == endpoint.TagAddr })
	if addressed {
		if own, err = m.addresses(); err != nil {
			return nil, err
		}
	}
	whole, err := m.setAside(l, tags)
	if err != nil {
		return nil, err
	}
	defer m.putBack(whole)
	if addressed {
		if own.nat, err = m.translation(own, whole); err != nil {
			return nil, err
		}
	}
	if err := m.vacant(ctx, whole, own); err != nil {
		return nil, err
	}
	err = within(m.ns, func() (err error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if l.closed {
			return endpoint.ErrLeaseClosed
		}
		if claimed, err = m.claimAll(l, tags, own); err != nil || !addressed {
			return err
		}
		// The addresses may have changed since they were looked up.
		if err := m.stillTrue(claimed); err != nil {
			return errors.Join(err, m.releaseAll(l, claimed))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return claimed, nil
}

// releaseAll takes tags back that have been entered for l, the last one first.
func (m *Mux) releaseAll(l *Lease, tags []endpoint.Tag) error {
	var err error
	for _, t := range slices.Backward(tags) {
		if c := m.tags.get(t); c != nil && c.by == l { // it has not been closed meanwhile
			err = errors.Join(err, m.release(t))
		}
	}
	return err
}

// claimAll enters tags that are free as far as whole addresses go. m.mu is held
// and the calling thread is in the uplink's namespace.
func (m *Mux) claimAll(l *Lease, tags []endpoint.Tag, own addresses) (_ []endpoint.Tag, err error) {
	r, err := m.newReserver()
	if err != nil {
		return nil, err
	}
	r.nat = own.nat
	defer func() { err = errors.Join(err, r.close()) }()
	// Whole addresses first: other tags may stand on them.
	order := make([]int, 0, len(tags))
	for _, whole := range []bool{true, false} {
		for i, t := range tags {
			if whole == (t.Kind == endpoint.TagAddr) {
				order = append(order, i)
			}
		}
	}
	claimed := make([]endpoint.Tag, len(tags))
	var entered []endpoint.Tag
	for _, i := range order {
		t, err := m.claim(l, tags[i], own, r)
		if err != nil {
			return nil, errors.Join(err, m.releaseAll(l, entered))
		}
		claimed[i] = t
		entered = append(entered, t)
	}
	return claimed, nil
}

// claim resolves a tag's wildcards, checks it, reserves it in the kernel and
// enters it. m.mu is held and the calling thread is in the uplink's namespace.
func (m *Mux) claim(l *Lease, t endpoint.Tag, own addresses, r *reserver) (endpoint.Tag, error) {
	switch t.Kind {
	case endpoint.TagUDP, endpoint.TagTCP:
		return m.claimPorts(l, t, own, r)
	case endpoint.TagAddr:
		return m.claimAddr(l, t, r)
	case endpoint.TagMessage:
		return m.claimMessage(l, t)
	}
	return t, denied(t, "unknown kind")
}

func (m *Mux) claimMessage(l *Lease, t endpoint.Tag) (endpoint.Tag, error) {
	t = endpoint.MessageTag(t.Message)
	for t.Message == 0 {
		if n := rand.Uint32(); m.tags.get(endpoint.MessageTag(n)) == nil {
			t.Message = n
		}
	}
	if err := m.tags.free(l, t); err != nil {
		return t, err
	}
	return t, m.enterTag(l, t, nil)
}

// enterTag makes a tag effective. It owns reserved from now on, also when it fails.
func (m *Mux) enterTag(l *Lease, t endpoint.Tag, reserved []int) error {
	if err := m.putTag(t, l.at.owner); err != nil {
		return errors.Join(fmt.Errorf("claim %v: %w", t, err), closeAll(reserved))
	}
	m.tags.add(t, &claim{by: l, reserved: reserved})
	return nil
}

// readmit takes up a tag that stands in the kernel's table since before this
// mux was opened, and reserves in the kernel what its claim had reserved. While
// no mux was there nobody kept the ports, so that a program of the kernel's
// network stack may have got one. That is the error then; the claim stands all
// the same, and so do the other ports of a block. Tags that stand on a whole address
// come after it. m.mu is held.
func (m *Mux) readmit(l *Lease, t endpoint.Tag, suspended bool) error {
	c := &claim{by: l, suspended: suspended}
	err := within(m.ns, func() error {
		r, err := m.newReserver()
		if err != nil {
			return err
		}
		c.reserved, err = r.again(t, m.tags.get(endpoint.AddrTag(t.Addr)) != nil)
		return errors.Join(err, r.close())
	})
	m.tags.add(t, c)
	if err != nil {
		return fmt.Errorf("reserve %v again: %w", t, err)
	}
	return nil
}

// unclaim gives back one tag of l. m.mu is held.
func (m *Mux) unclaim(l *Lease, t endpoint.Tag) error {
	t.Addr = t.Addr.Unmap()
	if c := m.tags.get(t); c == nil || c.by != l {
		return denied(t, "not held by this endpoint")
	}
	if n := m.tags.onAddr[t.Addr]; t.Kind == endpoint.TagAddr && n > 0 {
		return denied(t, "%d tags stand on it: give them back first", n)
	}
	return m.release(t)
}

// unclaimAll gives back all tags of l. m.mu is held.
func (m *Mux) unclaimAll(l *Lease) error {
	var err error
	for t := range m.tags.byLease[l] {
		err = errors.Join(err, m.release(t))
	}
	return err
}

// release takes a tag out: first of the table, then the kernel may have the
// port again. A tag that stays in the table stays claimed, for nobody else could
// be given it.
func (m *Mux) release(t endpoint.Tag) error {
	if err := m.deleteTag(t); err != nil {
		return fmt.Errorf("give %v back: %w", t, err)
	}
	return m.tags.remove(t).letGo()
}

func denied(t endpoint.Tag, why string, args ...any) error {
	return fmt.Errorf("%w: %v: %s", endpoint.ErrTagDenied, t, fmt.Sprintf(why, args...))
}

// heldBy is why l does not get t.
func heldBy(c *claim, l *Lease, t endpoint.Tag) error {
	if c.by == l {
		return fmt.Errorf("%w: %v: this endpoint holds it already", endpoint.ErrTagHeld, t)
	}
	return fmt.Errorf("%w: %v: another endpoint holds it: choose another, or end that one", endpoint.ErrTagHeld, t)
}
