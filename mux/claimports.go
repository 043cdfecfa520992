package mux

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
)

// Ports are claimed on an address of the uplink, which endpoints and the kernel
// share, or on a whole address that the lease holds. On a shared address every
// port is reserved in the kernel (see reserver), so that a block takes 64
// descriptors of this process: a hundred blocks want a limit of open files
// (RLIMIT_NOFILE) above 8,500.

// Where any free port or block is looked for. The kernel's own choice for
// programs, ip_local_port_range, begins at the same port by default.
const (
	anyPort  = 49152 // RFC 6335, dynamic ports
	anyBlock = 32768
	ports    = 1 << 16

	// mostHigh is how many ports of UDP, or of TCP, endpoints may have before blocks are
	// looked for below anyBlock instead. The kernel's programs need ports too: where all
	// of ip_local_port_range is bound, on whatever address, connect fails.
	mostHigh = (ports - anyBlock) / 4 * 3
	lowBlock = 1024 // RFC 6335, user ports
)

// claimPorts claims a port or a block.
func (m *Mux) claimPorts(l *Lease, t endpoint.Tag, own addresses, r *reserver) (endpoint.Tag, error) {
	t = endpoint.Tag{Kind: t.Kind, Addr: t.Addr.Unmap(), Port: t.Port, Block: t.Block}
	if t.Block && t.Port%endpoint.BlockPorts != 0 {
		return t, denied(t, "a block begins at a multiple of %d", endpoint.BlockPorts)
	}
	if !t.Addr.IsValid() || t.Addr.IsUnspecified() {
		a, ok := own.first(t.Addr)
		if !ok {
			return t, denied(t, "the uplink %s has no address that this could stand for", m.up.name)
		}
		t.Addr = a
	}
	whole := m.tags.get(endpoint.AddrTag(t.Addr))
	if whole == nil {
		if err := own.mayShare(t, m.up.name); err != nil {
			return t, err
		}
	} else if whole.by != l {
		return t, fmt.Errorf("%w: %v: another endpoint holds the whole address: choose another, or end that one", endpoint.ErrTagHeld, t)
	}
	if t.Port != 0 {
		if err := m.tags.free(l, t); err != nil {
			return t, err
		}
	}
	// The kernel does not have a whole address, so there is nothing to reserve.
	switch {
	case t.Port != 0 && whole != nil:
		return t, m.enterTag(l, t, nil)
	case t.Port != 0:
		return t, m.claimShared(l, t, r)
	case t.Block && whole != nil:
		return m.claimAnyOfWhole(l, t, anyBlock, endpoint.BlockPorts)
	case t.Block:
		return m.claimAnyBlock(l, t, r)
	case whole != nil:
		return m.claimAnyOfWhole(l, t, anyPort, 1)
	}
	return m.claimAnyPort(l, t, r)
}

// claimShared claims a port or a block of an address of the uplink.
func (m *Mux) claimShared(l *Lease, t endpoint.Tag, r *reserver) error {
	if err := r.translated(t); err != nil {
		return err
	}
	fds, err := r.ports(t)
	if err != nil {
		return err
	}
	return m.enterTag(l, t, fds)
}

// maxTaken bounds how many ports of the kernel's choice are tried that cannot be had.
const maxTaken = 256

// claimAnyPort claims a port of the kernel's choice.
func (m *Mux) claimAnyPort(l *Lease, t endpoint.Tag, r *reserver) (endpoint.Tag, error) {
	var taken []int
	for {
		if len(taken) == maxTaken {
			return t, errors.Join(fmt.Errorf("%w: %v: %d ports of the kernel's choice are held, or in use by network address translation", endpoint.ErrTagHeld, t, maxTaken), r.giveUp(taken))
		}
		fd, port, err := r.port(t, 0)
		if err != nil {
			return t, errors.Join(err, r.giveUp(taken))
		}
		t.Port = port
		if m.tags.free(l, t) == nil && r.translated(t) == nil {
			return t, errors.Join(m.enterTag(l, t, []int{fd}), r.giveUp(taken))
		}
		// Held, and yet not reserved: see readmit. Or the kernel does not know that it is
		// in use. Nor shall it be chosen again.
		taken = append(taken, fd)
	}
}

// claimAnyBlock claims a block that is free here and in the kernel, and in which
// the administrator has kept no port out of automatic choice: from anyBlock on, or
// if endpoints have mostHigh ports already, below. Where most blocks
// have a port in use it takes long (0.3 s if all have), so it lets others in
// between.
func (m *Mux) claimAnyBlock(l *Lease, t endpoint.Tag, r *reserver) (endpoint.Tag, error) {
	kept, err := readKeptPorts()
	if err != nil {
		return t, err
	}
	first, end := anyBlock, ports
	if m.tags.shared[t.Kind] >= mostHigh {
		first, end = lowBlock, anyBlock
	}
	for t.Port = range anyOrder(first, end, endpoint.BlockPorts) {
		if kept.in(t) || m.tags.free(l, t) != nil {
			continue
		}
		err := m.claimShared(l, t, r)
		if !errors.Is(err, unix.EADDRINUSE) {
			return t, err
		}
		m.mu.Unlock()
		m.mu.Lock()
		if l.closed {
			return t, endpoint.ErrLeaseClosed
		}
	}
	t.Port = 0
	return t, fmt.Errorf("%w: %v: in every block from %d to %d there is a port in use", endpoint.ErrTagHeld, t, first, end-1)
}

// claimAnyOfWhole claims a port or block, from first on and size ports long, of a
// whole address that l holds.
func (m *Mux) claimAnyOfWhole(l *Lease, t endpoint.Tag, first, size int) (endpoint.Tag, error) {
	for t.Port = range anyOrder(first, ports, size) {
		if m.tags.free(l, t) == nil {
			return t, m.enterTag(l, t, nil)
		}
	}
	t.Port = 0
	return t, fmt.Errorf("%w: %v: all from %d on are held", endpoint.ErrTagHeld, t, first)
}

// anyOrder is every size-th port from first to before end, once, beginning with a random
// one.
func anyOrder(first, end, size int) func(yield func(uint16) bool) {
	n := (end - first) / size
	start := rand.N(n)
	return func(yield func(uint16) bool) {
		for i := range n {
			if !yield(uint16(first + (start+i)%n*size)) {
				return
			}
		}
	}
}

// mayShare says what keeps the ports of t's address from being claimed, if the
// address is nobody's as a whole.
func (own *addresses) mayShare(t endpoint.Tag, uplink string) error {
	if own.has(t.Addr) {
		return nil
	}
	if why := own.unfit[t.Addr]; why != "" {
		return denied(t, "%s", why)
	}
	return denied(t, "the uplink %s does not have this address", uplink)
}
