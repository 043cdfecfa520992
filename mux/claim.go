package mux

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
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

// claimAll claims the tags of a request, all or none, and returns them in its
// order with their wildcards resolved. m.mu is held.
func (m *Mux) claimAll(l *Lease, tags []endpoint.Tag) ([]endpoint.Tag, error) {
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
		t, err := m.claim(l, tags[i])
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
// enters it. m.mu is held.
func (m *Mux) claim(l *Lease, t endpoint.Tag) (endpoint.Tag, error) {
	switch t.Kind {
	case endpoint.TagUDP:
		return m.claimUDP(l, t)
	case endpoint.TagAddr:
		return m.claimAddr(l, t)
	case endpoint.TagMessage:
		return m.claimMessage(l, t)
	}
	return t, denied(t, "unknown kind")
}

func (m *Mux) claimUDP(l *Lease, t endpoint.Tag) (endpoint.Tag, error) {
	t = endpoint.Tag{Kind: t.Kind, Addr: t.Addr.Unmap(), Port: t.Port}
	if !t.Addr.IsValid() || t.Addr.IsUnspecified() {
		primary, err := primaryAddr(m.nl, m.up.ifindex)
		if err != nil {
			return t, err
		}
		if !primary.IsValid() {
			return t, denied(t, "the uplink %s has no IPv4 address", m.up.name)
		}
		t.Addr = primary.Addr()
	}
	if !t.Addr.Is4() {
		return t, denied(t, "not an IPv4 address")
	}
	if _, held := m.tags[t]; held && t.Port != 0 {
		return t, heldByAnother(t)
	}
	if whole := m.tags[endpoint.AddrTag(t.Addr)]; whole != nil {
		if whole.by != l {
			return t, fmt.Errorf("%w: %v: another endpoint holds the whole address", endpoint.ErrTagHeld, t)
		}
		return m.claimOnWhole(l, t)
	}
	own, err := prefixes(m.nl, m.up.ifindex)
	if err != nil {
		return t, err
	}
	if !slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Addr() == t.Addr }) {
		return t, denied(t, "the uplink %s does not have this address", m.up.name)
	}
	reserved := -1
	err = within(m.ns, func() (err error) {
		reserved, t.Port, err = reserveUDP(t.Addr, t.Port)
		return err
	})
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return t, fmt.Errorf("%w: %v: a program of the kernel's network stack is bound to it", endpoint.ErrTagHeld, t)
	case err != nil:
		return t, fmt.Errorf("reserve %v: %w", t, err)
	}
	if err := m.enterTag(l, t, reserved); err != nil {
		unix.Close(reserved)
		return t, err
	}
	return t, nil
}

// claimOnWhole claims a UDP port of a whole address that l holds. The kernel
// does not have the address, so there is nothing to reserve.
func (m *Mux) claimOnWhole(l *Lease, t endpoint.Tag) (endpoint.Tag, error) {
	if t.Port == 0 {
		const first, count = 49152, 16384 // RFC 6335, dynamic ports
		start := rand.N[uint16](count)
		for i := range uint16(count) {
			t.Port = first + (start+i)%count
			if m.tags[t] == nil {
				return t, m.enterTag(l, t, -1)
			}
		}
		return t, fmt.Errorf("%w: every dynamic port of %v", endpoint.ErrTagHeld, t.Addr)
	}
	return t, m.enterTag(l, t, -1)
}

// claimAddr claims a whole address: one of the uplink's network that the host
// does not have itself.
func (m *Mux) claimAddr(l *Lease, t endpoint.Tag) (endpoint.Tag, error) {
	t = endpoint.AddrTag(t.Addr)
	if !t.Addr.Is4() || t.Addr.IsUnspecified() || t.Addr.IsMulticast() || t.Addr.IsLoopback() {
		return t, denied(t, "not the IPv4 address of a host")
	}
	if m.tags[t] != nil {
		return t, heldByAnother(t)
	}
	all, err := prefixes(m.nl, 0)
	if err != nil {
		return t, err
	}
	for _, p := range all {
		if p.Addr() == t.Addr {
			return t, denied(t, "the host has this address itself")
		}
	}
	own, err := prefixes(m.nl, m.up.ifindex)
	if err != nil {
		return t, err
	}
	i := slices.IndexFunc(own, func(p netip.Prefix) bool { return p.Contains(t.Addr) })
	if i < 0 {
		return t, denied(t, "not in a subnet of the uplink %s", m.up.name)
	}
	if p := own[i]; p.Bits() < 31 && (t.Addr == p.Masked().Addr() || t.Addr == broadcast(p)) {
		return t, denied(t, "the network's or broadcast address of %v", p.Masked())
	}
	for held := range m.tags {
		if held.Kind == endpoint.TagUDP && held.Addr == t.Addr { // an address that the host has lost meanwhile
			return t, fmt.Errorf("%w: %v: %v is held", endpoint.ErrTagHeld, t, held)
		}
	}
	return t, m.enterTag(l, t, -1)
}

// broadcast is the last address of an IPv4 subnet.
func broadcast(p netip.Prefix) netip.Addr {
	a := p.Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		a[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(a)
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
		return fmt.Errorf("claim %v: the tag table is full: %w", t, err)
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
// port again.
func (m *Mux) release(t endpoint.Tag) error {
	c := m.tags[t]
	delete(m.tags, t)
	err := absentIsFine(m.progs.objs.Tags.Delete(tagKey(t)))
	if c.reserved >= 0 {
		err = errors.Join(err, unix.Close(c.reserved))
	}
	return err
}

func denied(t endpoint.Tag, why string, args ...any) error {
	return fmt.Errorf("%w: %v: %s", endpoint.ErrTagDenied, t, fmt.Sprintf(why, args...))
}

func heldByAnother(t endpoint.Tag) error {
	return fmt.Errorf("%w: %v: another endpoint holds it", endpoint.ErrTagHeld, t)
}

// reserveUDP binds an ordinary socket of the kernel's to a UDP port and leaves
// it there, so that nobody else gets the port. Port 0 is the kernel's choice.
// It runs in the uplink's namespace.
func reserveUDP(addr netip.Addr, port uint16) (fd int, bound uint16, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, port, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
			fd = -1
		}
	}()
	// What still reaches it (over lo, or by another queue than the owner's) is
	// not for anybody: a filter that accepts no byte, so that nothing piles up.
	refuse := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &refuse[0]})
	if err != nil {
		return fd, port, err
	}
	if err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(port), Addr: addr.As4()}); err != nil {
		return fd, port, err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return fd, port, err
	}
	in4, ok := name.(*unix.SockaddrInet4)
	if !ok {
		return fd, port, fmt.Errorf("BUG: socket name %T", name)
	}
	return fd, uint16(in4.Port), nil
}
