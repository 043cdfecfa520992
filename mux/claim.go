package mux

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
)

// claim is a tag that is held.
type claim struct {
	by       *Lease
	reserved int // descriptor of the kernel's socket on the same UDP port, or -1
}

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
	if slices.ContainsFunc(tags, func(t endpoint.Tag) bool { return t.Kind == endpoint.TagUDP || t.Kind == endpoint.TagAddr }) {
		if own, err = m.addresses(); err != nil {
			return nil, err
		}
	}
	whole, err := m.setAside(l, tags)
	if err != nil {
		return nil, err
	}
	defer m.letGo(whole)
	if err := m.vacant(ctx, whole, own); err != nil {
		return nil, err
	}
	err = within(m.ns, func() (err error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if l.closed {
			return endpoint.ErrLeaseClosed
		}
		claimed, err = m.claimAll(l, tags, own)
		return err
	})
	return claimed, err
}

// claimAll enters tags that are free as far as whole addresses go. m.mu is held
// and the calling thread is in the uplink's namespace.
func (m *Mux) claimAll(l *Lease, tags []endpoint.Tag, own addresses) ([]endpoint.Tag, error) {
	// Whole addresses first: other tags may stand on them.
	order := make([]int, len(tags))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if wa, wb := tags[a].Kind == endpoint.TagAddr, tags[b].Kind == endpoint.TagAddr; wa == wb {
			return 0
		} else if wa {
			return -1
		}
		return 1
	})
	claimed := make([]endpoint.Tag, len(tags))
	for n, i := range order {
		t, err := m.claim(l, tags[i], own)
		if err != nil {
			for _, j := range slices.Backward(order[:n]) {
				err = errors.Join(err, m.release(claimed[j]))
			}
			return nil, err
		}
		claimed[i] = t
	}
	return claimed, nil
}

// claim resolves a tag's wildcards, checks it, reserves it in the kernel and
// enters it. m.mu is held and the calling thread is in the uplink's namespace.
func (m *Mux) claim(l *Lease, t endpoint.Tag, own addresses) (endpoint.Tag, error) {
	switch t.Kind {
	case endpoint.TagUDP:
		return m.claimUDP(l, t, own)
	case endpoint.TagAddr:
		return m.claimAddr(l, t)
	case endpoint.TagMessage:
		return m.claimMessage(l, t)
	}
	return t, denied(t, "unknown kind")
}

func (m *Mux) claimMessage(l *Lease, t endpoint.Tag) (endpoint.Tag, error) {
	t = endpoint.MessageTag(t.Message)
	for t.Message == 0 {
		if n := rand.Uint32(); m.tags[endpoint.MessageTag(n)] == nil {
			t.Message = n
		}
	}
	if m.tags[t] != nil {
		return t, heldByAnother(t)
	}
	return t, m.enterTag(l, t, -1)
}

// enterTag makes a tag effective. From then on it owns reserved.
func (m *Mux) enterTag(l *Lease, t endpoint.Tag, reserved int) error {
	err := m.progs.objs.Tags.Update(tagKey(t), l.at.owner, ebpf.UpdateNoExist)
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("claim %v: %w: it has room for %d", t, ErrTableFull, m.progs.objs.Tags.MaxEntries())
	}
	if err != nil {
		return fmt.Errorf("claim %v: %w", t, err)
	}
	m.tags[t] = &claim{by: l, reserved: reserved}
	return nil
}

func tagKey(t endpoint.Tag) bpf.MuxUnetTag {
	switch t.Kind {
	case endpoint.TagUDP:
		return bpf.UDPKey(t.Addr.As4(), t.Port)
	case endpoint.TagAddr:
		return bpf.AddrKey(t.Addr.As4())
	}
	return bpf.MessageKey(t.Message)
}

// unclaim gives back one tag of l. m.mu is held.
func (m *Mux) unclaim(l *Lease, t endpoint.Tag) error {
	t.Addr = t.Addr.Unmap()
	if c := m.tags[t]; c == nil || c.by != l {
		return denied(t, "not held by this endpoint")
	}
	if t.Kind == endpoint.TagAddr {
		for other := range m.tags {
			if other.Kind == endpoint.TagUDP && other.Addr == t.Addr {
				return denied(t, "%v stands on it", other)
			}
		}
	}
	return m.release(t)
}

// unclaimAll gives back all tags of l. m.mu is held.
func (m *Mux) unclaimAll(l *Lease) error {
	var err error
	for t, c := range m.tags {
		if c.by == l {
			err = errors.Join(err, m.release(t))
		}
	}
	return err
}

// release takes a tag out: first of the table, then the kernel may have the
// port again. A tag that stays in the table stays claimed, for nobody else could
// be given it.
func (m *Mux) release(t endpoint.Tag) error {
	if err := absentIsFine(m.progs.objs.Tags.Delete(tagKey(t))); err != nil {
		return fmt.Errorf("give %v back: %w", t, err)
	}
	c := m.tags[t]
	delete(m.tags, t)
	return c.closeReserved()
}

// closeReserved lets the kernel have the port again.
func (c *claim) closeReserved() error {
	if c.reserved < 0 {
		return nil
	}
	fd := c.reserved
	c.reserved = -1
	return unix.Close(fd)
}

func denied(t endpoint.Tag, why string, args ...any) error {
	return fmt.Errorf("%w: %v: %s", endpoint.ErrTagDenied, t, fmt.Sprintf(why, args...))
}

func heldByAnother(t endpoint.Tag) error {
	return fmt.Errorf("%w: %v: another endpoint holds it: choose another, or end that one", endpoint.ErrTagHeld, t)
}
