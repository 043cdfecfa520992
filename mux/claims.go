//go:build linux

package mux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/internal/share"
)

// claiming is a request for tags. The lease gets all of them or none.
type claiming struct {
	l     *Lease
	tags  []endpoint.Tag // as [Mux.named] returns them
	rule  Claims
	owned []netip.Addr // the owned addresses among them
	own   addresses    // of the host, as read by ask; empty if no tag has an address
}

// ask begins a request: it replaces wildcard addresses of the tags, and checks the tags against
// the policy and the limits. It enters nothing.
func (m *Mux) ask(l *Lease, tags []endpoint.Tag) (*claiming, error) {
	c := &claiming{l: l}
	if len(tags) == 0 {
		return c, nil
	}
	m.mu.Lock()
	o := l.owner
	m.mu.Unlock()
	var err error
	if c.rule, err = m.policy.Claims(o); err != nil {
		return nil, fmt.Errorf("%w: %v: %w", endpoint.ErrTagDenied, tags[0], err)
	}
	if slices.ContainsFunc(tags, addressed) {
		if c.own, err = m.addresses(); err != nil {
			return nil, err
		}
	}
	for _, t := range tags {
		if t, err = m.named(t, c.own); err != nil {
			return nil, err
		}
		c.tags = append(c.tags, t)
		if t.Kind == endpoint.TagAddr {
			c.owned = append(c.owned, t.Addr)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range c.tags {
		if err := m.permits(c, t); err != nil {
			return nil, err
		}
	}
	return c, m.room(c)
}

func hasPorts(t endpoint.Tag) bool { return t.Kind == endpoint.TagUDP || t.Kind == endpoint.TagTCP }

func addressed(t endpoint.Tag) bool { return hasPorts(t) || t.Kind == endpoint.TagAddr }

// named returns t with only the fields of its kind, and with the address that a wildcard
// stands for now.
func (m *Mux) named(t endpoint.Tag, own addresses) (endpoint.Tag, error) {
	switch t.Kind {
	case endpoint.TagUDP, endpoint.TagTCP:
		named := endpoint.Tag{Kind: t.Kind, Addr: t.Addr.Unmap(), Port: t.Port, Block: t.Block}
		if t.Block && t.Port%endpoint.BlockPorts != 0 {
			return t, denied(t, "a block begins at a multiple of %d", endpoint.BlockPorts)
		}
		if named.Addr.IsValid() && !named.Addr.IsUnspecified() {
			return named, nil
		}
		var found bool
		if named.Addr, found = own.first(named.Addr); !found {
			return t, denied(t, "the uplink %s has no such address", m.up.Name)
		}
		return named, nil
	case endpoint.TagAddr:
		return endpoint.AddrTag(t.Addr), nil
	case endpoint.TagMessage:
		return endpoint.MessageTag(t.Message), nil
	}
	return t, denied(t, "unknown kind")
}

// wild reports whether the port or message tag of a named tag is to be chosen.
func wild(t endpoint.Tag) bool {
	return hasPorts(t) && t.Port == 0 || t.Kind == endpoint.TagMessage && t.Message == 0
}

// permits checks a tag against the rule. Ports of an owned address that the lease holds or
// claims need no permission of their own. m.mu is held.
func (m *Mux) permits(c *claiming, t endpoint.Tag) error {
	if hasPorts(t) {
		if owned := m.tags.held[endpoint.AddrTag(t.Addr)]; slices.Contains(c.owned, t.Addr) || owned != nil && owned.by == c.l {
			return nil
		}
	}
	if wild(t) {
		_, _, err := c.rule.Choices(t)
		return err
	}
	return c.rule.Permits(t)
}

// room checks the tags of a request against the limits. m.mu is held.
func (m *Mux) room(c *claiming) error {
	return m.users.room(c.l.owner.UID, costOf(c.tags...), c.rule.Tags())
}

// claimTags claims the tags of a request, all or none. It returns them in their order, with
// the addresses, ports and message tags that were chosen for wildcards.
//
// First it queries the kernel and probes the network, without m.mu. During that time the
// owned addresses are set aside: no other request gets them. Then, with m.mu held, it enters
// the tags, and gives all back after an error.
func (m *Mux) claimTags(ctx context.Context, c *claiming) (claimed []endpoint.Tag, err error) {
	if len(c.tags) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.l.ctx, cancel)()
	if err := m.reserveOwned(c); err != nil {
		return nil, err
	}
	defer m.freeOwned(c)
	if slices.ContainsFunc(c.tags, addressed) {
		if c.own.nat, err = m.translation(c.own, c.owned); err != nil {
			return nil, err
		}
	}
	if err := m.payClaims(ctx, c); err != nil {
		return nil, err
	}
	if err := m.vacant(ctx, c); err != nil {
		return nil, err
	}
	err = route.Within(m.ns, func() (err error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if c.l.closed {
			return endpoint.ErrLeaseClosed
		}
		if err := m.room(c); err != nil {
			return err
		}
		r, err := m.newReserver()
		if err != nil {
			return err
		}
		if claimed, err = m.claimAll(c, r); err != nil {
			return err
		}
		for _, a := range c.owned {
			if owned := m.tags.held[endpoint.AddrTag(a)]; owned != nil && owned.by == c.l { // else it was given back since
				m.announceSoon(a, true)
			}
			if m.letOthers(); c.l.closed { // what it has not given back yet is not announced
				return endpoint.ErrLeaseClosed
			}
		}
		return nil
	})
	return claimed, err
}

// releaseAll gives back those of the tags that l holds, owned addresses after the tags on them. m.mu
// is held, but not from one tag to the next.
func (m *Mux) releaseAll(l *Lease, tags []endpoint.Tag) error {
	var err error
	for _, owned := range []bool{false, true} {
		for _, t := range tags {
			if owned != (t.Kind == endpoint.TagAddr) {
				continue
			}
			if isGroup(t) {
				if g := m.groups[t]; g != nil && g.has(l) {
					err = errors.Join(err, m.leaveGroup(l, t))
				}
			} else if c := m.tags.held[t]; c != nil && c.by == l { // false: t was not entered, or l was closed, which gave t back
				err = errors.Join(err, m.removeTag(t))
			}
			m.letOthers()
		}
	}
	return err
}

// letOthers lets those go on who wait for m.mu: a lease can have thousands of tags, and each takes
// up to a millisecond. m.mu is held before and after.
func (m *Mux) letOthers() {
	m.mu.Unlock()
	runtime.Gosched() // otherwise this goroutine gets the mutex again until another one has waited for a millisecond
	m.mu.Lock()
}

// letOthersDuring lets others go on during a claim, and then checks again what they may have changed: whether the lease
// is open, and has room for tags that count as n. r may be nil. m.mu is held before and after.
func (m *Mux) letOthersDuring(c *claiming, n int64, r *reserver) error {
	if m.letOthers(); c.l.closed {
		return endpoint.ErrLeaseClosed
	}
	if r != nil {
		r.room = m.socketsLeft(r.limit)
	}
	if n == 0 {
		return nil
	}
	return m.users.room(c.l.owner.UID, n, c.rule.Tags())
}

// claimAll enters the tags of a request, whose owned addresses are vacant, all or none. m.mu is
// held, but not from one tag to the next, and the calling thread is in the uplink's namespace.
func (m *Mux) claimAll(c *claiming, r *reserver) (claimed []endpoint.Tag, err error) {
	entered := make([]endpoint.Tag, len(c.tags))
	defer func() {
		if err != nil {
			claimed, err = nil, errors.Join(err, m.releaseAll(c.l, entered))
		}
	}()
	left := costOf(c.tags...)
	// Owned addresses first: other tags may be on them.
	for _, owned := range []bool{true, false} {
		for i, t := range c.tags {
			if owned != (t.Kind == endpoint.TagAddr) {
				continue
			}
			chosen, err := m.claim(c, t, r)
			if err != nil {
				return nil, err
			}
			entered[i] = chosen
			left -= costOf(t)
			if err := m.letOthersDuring(c, left, r); err != nil {
				return nil, err
			}
		}
	}
	// The host's addresses may have changed since ask has read them.
	return entered, m.stillTrue(entered)
}

// claim chooses the port or message tag of a wildcard, checks that it is free, reserves it in
// the kernel and enters it. m.mu is held and the calling thread is in the uplink's namespace.
func (m *Mux) claim(c *claiming, t endpoint.Tag, r *reserver) (endpoint.Tag, error) {
	switch {
	case isGroup(t):
		return t, m.claimGroup(c, t, r)
	case hasPorts(t):
		return m.claimPorts(c, t, r)
	case t.Kind == endpoint.TagAddr:
		return t, m.claimAddr(c.l, t, r)
	case wild(t):
		return m.choose(c, t, r, nil)
	}
	if err := m.tags.free(c.l, t); err != nil {
		return t, err
	}
	return t, m.addTag(c.l, t, nil)
}

// addTag enters the tag in the kernel's table and in the claim table, and then leads its frames
// to its endpoint's queue: a classification rule without its tag would stay if this process died.
// After an error it closes reserved, the tag's reserving sockets.
func (m *Mux) addTag(l *Lease, t endpoint.Tag, reserved []int) (err error) {
	if err := m.putTag(t, l.at.owner); err != nil {
		return errors.Join(fmt.Errorf("claim %v: %w", t, err), closeAll(reserved))
	}
	c := &claim{by: l, reserved: reserved}
	m.hold(t, c)
	if c.rules, err = m.steer(l, t, false); err != nil {
		return errors.Join(err, m.removeTag(t))
	}
	return nil
}

// hold enters a tag that is in the kernel's table in the claim table, and counts it for the
// user.
func (m *Mux) hold(t endpoint.Tag, c *claim) {
	m.tags.add(t, c)
	m.users.count(c.by.owner.UID, Usage{Tags: costOf(t)})
	if c.sharesAddress(t) {
		m.users.portsOf(t).Add(share.ByUID(c.by.owner.UID), costOf(t))
	}
}

// readmit takes over a tag that is in the kernel's table, and reserves its ports again. If
// that fails, for example because another program has bound a port while no process served
// the mux, readmit returns an error; the tag is held, with its other ports reserved. An owned
// address must be readmitted before the tags on it. m.mu is held.
func (m *Mux) readmit(l *Lease, t endpoint.Tag, suspended bool) error {
	c := &claim{by: l, suspended: suspended}
	err := route.Within(m.ns, func() error {
		r, err := m.newReserver()
		if err != nil {
			return err
		}
		c.reserved, err = r.again(t, m.tags.held[endpoint.AddrTag(t.Addr)] != nil)
		return err
	})
	var serr error
	if c.rules, serr = m.steer(l, t, true); serr != nil {
		m.log.Warn("frames of a tag do not come in on the queue of its endpoint any more: they go to the kernel (rx_pass_other_queue)", "tag", t, "endpoint", l.id, "error", serr)
	}
	m.hold(t, c)
	if err != nil {
		return fmt.Errorf("reserve %v again: %w", t, err)
	}
	return nil
}

// release gives back one tag of l. m.mu is held.
func (m *Mux) release(l *Lease, t endpoint.Tag) error {
	t.Addr = t.Addr.Unmap()
	if g := m.groups[t]; g != nil && g.has(l) {
		return m.leaveGroup(l, t)
	}
	if c := m.tags.held[t]; c == nil || c.by != l {
		return denied(t, "not held by this endpoint")
	}
	if n := m.tags.onAddr[t.Addr]; t.Kind == endpoint.TagAddr && n > 0 {
		return denied(t, "%d tags are on it: give them back first", n)
	}
	return m.removeTag(t)
}

// removeTag undoes addTag: it removes a tag's classification rules, deletes the tag from the
// kernel's table and from the claim table, and closes its reserving sockets. A tag that cannot be
// deleted stays claimed. m.mu is held.
func (m *Mux) removeTag(t endpoint.Tag) error {
	c := m.tags.held[t]
	unsteered := m.unsteer(c.rules)
	c.rules = nil
	if err := m.deleteTag(t); err != nil {
		return errors.Join(fmt.Errorf("give %v back: %w", t, err), unsteered)
	}
	m.tags.remove(t)
	m.users.uncount(c.by.owner.UID, Usage{Tags: costOf(t)})
	if c.sharesAddress(t) {
		m.users.portsOf(t).Give(share.ByUID(c.by.owner.UID), costOf(t))
	}
	err := c.free()
	m.gaveBack = time.Now()
	return errors.Join(unsteered, err)
}

func denied(t endpoint.Tag, why string, args ...any) error {
	return fmt.Errorf("%w: %v: "+why, append([]any{endpoint.ErrTagDenied, t}, args...)...)
}

func held(t endpoint.Tag, why string, args ...any) error {
	return fmt.Errorf("%w: %v: "+why, append([]any{endpoint.ErrTagHeld, t}, args...)...)
}
