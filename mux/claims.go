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

// claiming is a request for tags. The lease gets all of them or none. Every claim has three steps:
//
//  1. ask reads the policy and the addresses of the host. With m.mu held it checks permission and
//     room, and sets owned addresses aside: no other request gets them until end.
//  2. query asks the kernel and the network, without m.mu.
//  3. add adds the tags with m.mu held, and gives all back after an error.
//
// While m.mu is not held, which includes moments between the tags of step 3, the lease may be closed, other
// requests may take the room, and addresses may change. So step 3 checks these again, and nothing else.
//
// +checklocksalias:l.m.mu=m.mu
type claiming struct {
	m     *Mux
	l     *Lease
	tags  []endpoint.Tag // as [Mux.named] returns them
	rule  Claims
	owned []netip.Addr // the owned addresses among them
	aside []netip.Addr // of these, those that are set aside
	own   addresses    // of the host, as read by ask; empty if no tag has an address
	r     *reserver    // during add
}

// ask begins a request of the lease's holder: it replaces wildcard addresses of the tags, and checks the tags
// against the policy and the limits. The caller ends the request.
func (m *Mux) ask(l *Lease, tags []endpoint.Tag) (*claiming, error) {
	c := &claiming{m: m, l: l}
	if len(tags) == 0 {
		return c, nil
	}
	var err error
	if c.rule, err = m.policy.Claims(l.owner); err != nil { // +checklocksignore: the owner does not change once somebody holds the lease
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
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	for _, t := range c.tags {
		if err := c.permits(t); err != nil {
			return nil, err
		}
	}
	if err := c.room(costOf(c.tags...)); err != nil {
		return nil, err
	}
	if err := c.setAside(); err != nil {
		return nil, err
	}
	return c, nil
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
//
// +checklocks:c.m.mu
func (c *claiming) permits(t endpoint.Tag) error {
	if hasPorts(t) {
		if owned := c.m.tags.held[endpoint.AddrTag(t.Addr)]; slices.Contains(c.owned, t.Addr) || owned != nil && owned.by == c.l {
			return nil
		}
	}
	if wild(t) {
		_, _, err := c.rule.Choices(t)
		return err
	}
	return c.rule.Permits(t)
}

// room returns why the lease gets no more tags that count as n: it is closed, or the limits leave its user no
// room. m.mu is held.
//
// +checklocks:c.m.mu
func (c *claiming) room(n int64) error {
	if c.l.closed {
		return endpoint.ErrLeaseClosed
	}
	if n == 0 {
		return nil
	}
	return c.m.users.room(c.l.uid, n, c.rule.Tags())
}

// end ends a request, whether its tags were claimed or not.
func (c *claiming) end() {
	if len(c.aside) == 0 {
		return
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.freeAside()
}

// claim claims the tags of a request, all or none. It returns them in their order, with
// the addresses, ports and message tags that were chosen for wildcards.
func (c *claiming) claim(ctx context.Context) ([]endpoint.Tag, error) {
	if len(c.tags) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.l.ctx, cancel)()
	if err := c.query(ctx); err != nil {
		return nil, err
	}
	return c.add()
}

// query asks the kernel for its address translation, pays what the claim sends, and finds out whether the owned
// addresses are vacant.
func (c *claiming) query(ctx context.Context) (err error) {
	if slices.ContainsFunc(c.tags, addressed) {
		if c.own.nat, err = c.m.translation(c.own, c.owned); err != nil {
			return err
		}
	}
	if err := c.pay(ctx); err != nil {
		return err
	}
	return c.vacant(ctx)
}

// add adds the tags of a request, whose owned addresses are vacant, all or none.
func (c *claiming) add() (added []endpoint.Tag, err error) {
	err = route.Within(c.m.ns, func() (err error) {
		m := c.m
		m.mu.Lock()
		defer m.mu.Unlock()
		defer c.freeAside()
		if c.r, err = m.newReserver(); err != nil {
			return err
		}
		if added, err = c.addAll(); err != nil {
			return err
		}
		for _, a := range c.owned {
			if owned := m.tags.held[endpoint.AddrTag(a)]; owned != nil && owned.by == c.l { // else it was given back since
				m.announcer.begin(a, true)
			}
			if m.letOthers(); c.l.closed { // what it has not given back yet is not announced
				return endpoint.ErrLeaseClosed
			}
		}
		return nil
	})
	return added, err
}

// releaseAll gives back those of the tags that l holds, owned addresses after the tags on them. m.mu
// is held, but not from one tag to the next.
//
// +checklocks:m.mu
func (m *Mux) releaseAll(l *Lease, tags []endpoint.Tag) error {
	var err error
	for _, owned := range []bool{false, true} {
		for _, t := range tags {
			if owned != (t.Kind == endpoint.TagAddr) {
				continue
			}
			if isGroup(t) {
				if g := m.groups.held[t]; g != nil && g.has(l) {
					err = errors.Join(err, m.groups.leave(l, t))
				}
			} else if c := m.tags.held[t]; c != nil && c.by == l { // false: t was not added, or l was closed, which gave t back
				err = errors.Join(err, m.removeTag(t))
			}
			m.letOthers()
		}
	}
	return err
}

// letOthers lets those go on who wait for m.mu, unless it did so a moment ago: a lease can have thousands of tags,
// and each takes up to a millisecond, but some only microseconds. Then it takes longer to let others go on, since
// the calling goroutine is bound to its thread. m.mu is held before and after.
//
// +checklocks:m.mu
func (m *Mux) letOthers() {
	const moment = 100 * time.Microsecond
	if time.Since(m.letGo) < moment {
		return
	}
	m.mu.Unlock()
	runtime.Gosched() // otherwise this goroutine gets the mutex again until another one has waited for a millisecond
	m.mu.Lock()
	m.letGo = time.Now()
}

// goOn checks what others may have changed while m.mu was not held: whether the lease is open and has room for tags
// that count as n, and how many sockets are left. m.mu is held.
//
// +checklocks:c.m.mu
func (c *claiming) goOn(n int64) error {
	c.r.room = c.m.socketsLeft(c.r.limit)
	return c.room(n)
}

// addAll is add, with m.mu held, but not from one tag to the next. The calling thread is in the uplink's
// namespace.
//
// +checklocks:c.m.mu
func (c *claiming) addAll() ([]endpoint.Tag, error) {
	added := make([]endpoint.Tag, len(c.tags))
	if err := c.addEach(added); err != nil {
		return nil, errors.Join(err, c.m.releaseAll(c.l, added))
	}
	return added, nil
}

// addEach adds the tags one after another, and puts each into added. After an error the caller gives these back.
//
// +checklocks:c.m.mu
func (c *claiming) addEach(added []endpoint.Tag) error {
	left := costOf(c.tags...)
	// Owned addresses first: other tags may be on them.
	for _, owned := range []bool{true, false} {
		for i, t := range c.tags {
			if owned != (t.Kind == endpoint.TagAddr) {
				continue
			}
			if err := c.goOn(left); err != nil {
				return err
			}
			t, err := c.addOne(t)
			if err != nil {
				return err
			}
			added[i] = t
			left -= costOf(t)
			c.m.letOthers()
		}
	}
	if err := c.goOn(0); err != nil {
		return err
	}
	// The host's addresses may have changed since ask has read them.
	return c.m.stillTrue(added)
}

// addOne chooses the port or message tag of a wildcard, checks that it is free, reserves it in
// the kernel and adds it. m.mu is held and the calling thread is in the uplink's namespace.
//
// +checklocks:c.m.mu
func (c *claiming) addOne(t endpoint.Tag) (endpoint.Tag, error) {
	switch {
	case isGroup(t):
		return t, c.addGroup(t)
	case hasPorts(t):
		return c.addPorts(t)
	case t.Kind == endpoint.TagAddr:
		return t, c.addAddr(t)
	case wild(t):
		return c.choose(t, false, nil)
	}
	if err := c.m.tags.checkFree(c.l, t); err != nil {
		return t, err
	}
	return t, c.addTag(t, nil)
}

// addTag puts the tag into the kernel's table and the claim table, and then leads its frames
// to its endpoint's queue: a classification rule without its tag would stay if this process died.
// After an error it closes reserved, the tag's reserving sockets. m.mu is held.
//
// +checklocks:c.m.mu
func (c *claiming) addTag(t endpoint.Tag, reserved []int) (err error) {
	m := c.m
	if err := m.putTag(t, c.l); err != nil {
		return errors.Join(fmt.Errorf("claim %v: %w", t, err), closeAll(reserved))
	}
	held := &claim{by: c.l, reserved: reserved}
	m.hold(t, held)
	if held.rules, err = c.l.steer(t, false); err != nil {
		return errors.Join(err, m.removeTag(t))
	}
	return nil
}

// hold puts a tag that is in the kernel's table into the claim table, and counts it for the
// user. m.mu is held.
//
// +checklocks:m.mu
func (m *Mux) hold(t endpoint.Tag, c *claim) {
	m.tags.add(t, c)
	m.users.count(c.by.uid, Usage{Tags: costOf(t)})
	if c.sharesAddress(t) {
		m.users.portsOf(t).Add(share.ByUID(c.by.uid), costOf(t))
	}
}

// readmit takes over a tag that is in the kernel's table, and reserves its ports again. If
// that fails, for example because another program has bound a port while no process served
// the mux, readmit returns an error; the tag is held, with its other ports reserved. An owned
// address must be readmitted before the tags on it. m.mu is held.
//
// +checklocks:l.m.mu
func (l *Lease) readmit(t endpoint.Tag, suspended bool) error {
	m := l.m
	c := &claim{by: l, suspended: suspended}
	r, err := m.newReserver()
	if err == nil {
		owned := m.tags.held[endpoint.AddrTag(t.Addr)] != nil
		err = route.Within(m.ns, func() (err error) {
			c.reserved, err = r.again(t, owned)
			return err
		})
	}
	var serr error
	if c.rules, serr = l.steer(t, true); serr != nil {
		m.log.Warn("frames of a tag do not come in on the queue of its endpoint any more: they go to the kernel (rx_pass_other_queue)", "tag", t, "endpoint", l.id, "error", serr)
	}
	m.hold(t, c)
	if !suspended {
		m.show(t, l)
	}
	if err != nil {
		return fmt.Errorf("reserve %v again: %w", t, err)
	}
	return nil
}

// release gives back one tag of l. m.mu is held.
//
// +checklocks:m.mu
func (m *Mux) release(l *Lease, t endpoint.Tag) error {
	t.Addr = t.Addr.Unmap()
	if g := m.groups.held[t]; g != nil && g.has(l) {
		return m.groups.leave(l, t)
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
//
// +checklocks:m.mu
func (m *Mux) removeTag(t endpoint.Tag) error {
	c := m.tags.held[t]
	unsteered := m.unsteer(c.rules)
	c.rules = nil
	if err := m.deleteTag(t, c); err != nil {
		return errors.Join(fmt.Errorf("give %v back: %w", t, err), unsteered)
	}
	m.tags.remove(t)
	m.users.uncount(c.by.uid, Usage{Tags: costOf(t)})
	if c.sharesAddress(t) {
		m.users.portsOf(t).Return(share.ByUID(c.by.uid), costOf(t))
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
