//go:build linux

package mux

import (
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/nat"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/internal/share"
)

// Ports are claimed on an address of the uplink, which endpoints share with the kernel, or on
// an owned address that the lease holds. Each port of a shared address is reserved in the
// kernel (see reserver), so a block takes 64 descriptors of this process: a hundred blocks
// need a limit of open files (RLIMIT_NOFILE) above 8,500.

// The range from which a free port or block is chosen. The kernel's own range,
// ip_local_port_range, begins at 32768 by default.
const (
	anyPort  = 49152 // RFC 6335, dynamic ports
	anyBlock = 32768
	allPorts = 1 << 16

	// If endpoints have mostHigh UDP ports, or TCP ports, further blocks of that protocol are
	// chosen below anyBlock. Programs on the kernel's stack need ports too: connect fails if
	// all ports of ip_local_port_range are bound, on any address.
	mostHigh = (allPorts - anyBlock) / 4 * 3
	lowBlock = 1024 // RFC 6335, user ports

	// maxTaken limits the attempts to get a usable port that the kernel chooses.
	maxTaken = 256
)

// addPorts adds a port or a block. m.mu is held.
//
// +checklocks:c.m.mu
func (c *claiming) addPorts(t endpoint.Tag) (endpoint.Tag, error) {
	m, shared := c.m, false // with the kernel
	switch owned := m.tags.held[endpoint.AddrTag(t.Addr)]; {
	case owned != nil && owned.by != c.l:
		return t, held(t, "another endpoint owns the address: choose another, or end that one")
	case owned != nil: // the kernel does not have the address, so there is nothing to reserve; permits has passed
	default:
		shared = true
		if err := c.own.mayShare(t, m.up.Name); err != nil {
			return t, err
		}
		if err := c.permits(t); err != nil { // again: at the check in ask the lease may have owned the address
			return t, err
		}
		if err := m.users.portsOf(t).Room(share.ByUID(c.l.uid), costOf(t)); err != nil {
			return t, err
		}
	}
	ports := c.own.nat[t.Addr]
	if t.Port == 0 {
		return c.choose(t, shared, ports)
	}
	if err := m.tags.checkFree(c.l, t); err != nil {
		return t, err
	}
	if shared && ports.MayUse(t) {
		if err := c.rule.Translated(t, ports.MayUseBy()); err != nil {
			return t, err
		}
	}
	c.r.named = shared && !t.Block // for a block it would take two dumps of all TCP sockets for each port
	err := c.addFree(t, shared, ports)
	c.r.named = false
	return t, err
}

// addFree adds a port or a block that no endpoint holds. Those of an address that is shared with the kernel are
// reserved there; the error wraps EADDRINUSE if the kernel uses a port of it. m.mu is held.
//
// +checklocks:c.m.mu
func (c *claiming) addFree(t endpoint.Tag, shared bool, translated *nat.Ports) error {
	if !shared {
		return c.addTag(t, nil)
	}
	if translated.InUse(t) { // the same error as for a port that is bound
		return held(t, "network address translation of this host uses it for other flows (nft list ruleset, conntrack -L): choose another: %w", unix.EADDRINUSE)
	}
	fds, err := c.r.ports(t)
	if err != nil {
		return err
	}
	return c.addTag(t, fds)
}

// choose adds a port, a block or a message tag that is free and that the rule permits. It
// adds only the one it returns, since a tag is in effect at once. shared is as for addFree.
// m.mu is held, but not for a moment after each candidate that the kernel refuses.
//
// +checklocks:c.m.mu
func (c *claiming) choose(t endpoint.Tag, shared bool, ports *nat.Ports) (endpoint.Tag, error) {
	list, none, err := c.candidates(t, shared, ports)
	if err != nil {
		return t, err
	}
	if list == nil {
		return c.kernelsChoice(t, ports)
	}
	for candidate := range list {
		if chosen, err := c.try(candidate, shared, ports); chosen || err != nil { // +checklocksignore: the body of a loop over a function
			return candidate, err
		}
	}
	return t, held(t, "%s", none)
}

// try adds a candidate, if it is free and the kernel does not refuse it. An error ends the choice. m.mu is held, as
// for choose.
//
// +checklocks:c.m.mu
func (c *claiming) try(t endpoint.Tag, shared bool, ports *nat.Ports) (chosen bool, err error) {
	m := c.m
	if m.tags.checkFree(c.l, t) != nil {
		return false, nil
	}
	if !hasPorts(t) {
		return true, c.addTag(t, nil)
	}
	if err := c.addFree(t, shared, ports); !errors.Is(err, unix.EADDRINUSE) {
		return true, err
	}
	m.letOthers()
	if err := c.goOn(costOf(t)); err != nil {
		return false, err
	}
	if shared {
		return false, m.users.portsOf(t).Room(share.ByUID(c.l.uid), costOf(t))
	}
	return false, nil
}

// candidates are the tags that can replace the wildcard t; nil: the kernel chooses a port. none
// is the text of the error if no candidate is free. m.mu is held.
//
// +checklocks:c.m.mu
func (c *claiming) candidates(t endpoint.Tag, shared bool, ports *nat.Ports) (list iter.Seq[endpoint.Tag], none string, err error) {
	if hasPorts(t) && !shared {
		first, size := anyPort, 1
		if t.Block {
			first, size = anyBlock, endpoint.BlockPorts
		}
		return anyOf(t, first, allPorts, size), fmt.Sprintf("all from %d on are held", first), nil
	}
	list, free, err := c.rule.Choices(t)
	if err != nil {
		return nil, "", err
	}
	none = fmt.Sprintf("all that %v permits", c.rule)
	if !hasPorts(t) {
		return list, none, nil
	}
	if ports.MayUseBy() != "" {
		spared, all := 0, 0
		for candidate := range list {
			all++
			if !ports.MayUse(candidate) {
				spared++
			}
		}
		switch {
		case spared > 0 && spared == all: // translation may use none of them
		case spared > 0:
			return without(list, ports.MayUse), none, nil
		default:
			if err := c.rule.Translated(t, ports.MayUseBy()); err != nil {
				return nil, "", err
			}
		}
	}
	if !free {
		return list, none, nil
	}
	if !t.Block {
		return nil, "", nil
	}
	// Blocks without a port that is excluded from automatic choice: from anyBlock on, or
	// below it if endpoints have mostHigh ports already.
	kept, err := readExcludedBlocks()
	if err != nil {
		return nil, "", err
	}
	first, end := anyBlock, allPorts
	if c.m.tags.reserved[t.Kind] >= mostHigh {
		first, end = lowBlock, anyBlock
	}
	return without(anyOf(t, first, end, endpoint.BlockPorts), kept.in), fmt.Sprintf("in every block from %d to %d there is a port in use", first, end-1), nil
}

// anyOf is t with each port from first to end-1 in steps of size, once, beginning with a random
// one.
func anyOf(t endpoint.Tag, first, end, size int) iter.Seq[endpoint.Tag] {
	n := (end - first) / size
	start := rand.N(n)
	return func(yield func(endpoint.Tag) bool) {
		for i := range n {
			t.Port = uint16(first + (start+i)%n*size)
			if !yield(t) {
				return
			}
		}
	}
}

// without is list without the tags for which avoid is true.
func without(list iter.Seq[endpoint.Tag], avoid func(endpoint.Tag) bool) iter.Seq[endpoint.Tag] {
	return func(yield func(endpoint.Tag) bool) {
		for t := range list {
			if !avoid(t) && !yield(t) {
				return
			}
		}
	}
}

// kernelsChoice adds a port that the kernel chooses (bind to port 0). m.mu is held.
//
// +checklocks:c.m.mu
func (c *claiming) kernelsChoice(t endpoint.Tag, ports *nat.Ports) (endpoint.Tag, error) {
	m, r := c.m, c.r
	var taken []int // descriptors; they stay bound, so the kernel does not choose their ports again
	for len(taken) < maxTaken {
		fd, port, err := r.port(t, 0)
		if err != nil {
			return t, errors.Join(err, r.closeAll(taken))
		}
		chosen := t
		chosen.Port = port
		// The kernel can choose a held port whose reservation has failed (readmit), a port that
		// translation uses, and, if ip_unprivileged_port_start has changed, one that the rule
		// does not permit.
		if m.tags.checkFree(c.l, chosen) == nil && !ports.InUse(chosen) && c.rule.Permits(chosen) == nil {
			// Before the tag is added: after an error the caller does not give it back.
			if err := r.closeAll(taken); err != nil {
				return t, errors.Join(err, r.closeAll([]int{fd}))
			}
			return chosen, c.addTag(chosen, []int{fd})
		}
		taken = append(taken, fd)
	}
	return t, errors.Join(held(t, "%d ports chosen by the kernel are held, in use by network address translation, or not permitted", maxTaken), r.closeAll(taken))
}

// Network address translation gives ports of the host's addresses to flows of other hosts, and
// bind(2) does not fail for these ports (ADR 27). Ports that it uses now are not claimed. The policy
// decides about ports that it may use later ([Claims].Translated).

// translation reads which ports of the uplink's addresses, and of owned addresses that are
// being claimed, translation uses or may use.
func (m *Mux) translation(own addresses, owned []netip.Addr) (ports map[netip.Addr]*nat.Ports, err error) {
	shared := make([]netip.Addr, len(own.uplink))
	for i, p := range own.uplink {
		shared[i] = p.Addr()
	}
	err = route.Within(m.ns, func() (err error) {
		ports, err = m.nat.Look(shared, owned)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("network address translation: %w", err)
	}
	return ports, nil
}

// showTranslation logs a warning if network address translation may use ports of the uplink's
// first address.
func (m *Mux) showTranslation() error {
	own, err := m.addresses()
	if err != nil {
		return err
	}
	a, found := own.first(netip.Addr{})
	if !found {
		return nil
	}
	ports, err := m.translation(own, nil)
	switch {
	case err != nil:
		m.log.Error("cannot read which ports network address translation uses, so ports cannot be claimed", "interface", m.up.Name, "error", err)
	case ports[a].MayUseBy() != "":
		m.log.Warn("network address translation on this host may use ports for other flows: claims of these ports are refused, unless the user's rule has nat: warn",
			"interface", m.up.Name, "addr", a, "by", ports[a].MayUseBy())
	}
	return nil
}
