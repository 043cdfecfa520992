package mux

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
)

// claimUDP claims a UDP port on an address of the uplink, or on a whole address
// that l holds.
func (m *Mux) claimUDP(l *Lease, t endpoint.Tag, own addresses) (endpoint.Tag, error) {
	t = endpoint.Tag{Kind: t.Kind, Addr: t.Addr.Unmap(), Port: t.Port}
	if !t.Addr.IsValid() || t.Addr.IsUnspecified() {
		if len(own.uplink) == 0 {
			return t, denied(t, "the uplink %s has no IPv4 address", m.up.name)
		}
		t.Addr = own.uplink[0].Addr()
	}
	if !t.Addr.Is4() {
		return t, denied(t, "not an IPv4 address")
	}
	if _, held := m.tags[t]; held && t.Port != 0 {
		return t, heldByAnother(t)
	}
	if whole := m.tags[endpoint.AddrTag(t.Addr)]; whole != nil {
		if whole.by != l {
			return t, fmt.Errorf("%w: %v: another endpoint holds the whole address: choose another, or end that one", endpoint.ErrTagHeld, t)
		}
		return m.claimOnWhole(l, t)
	}
	if !slices.ContainsFunc(own.uplink, func(p netip.Prefix) bool { return p.Addr() == t.Addr }) {
		return t, denied(t, "the uplink %s does not have this address", m.up.name)
	}
	reserved, port, err := reserveUDP(t.Addr, t.Port)
	t.Port = port
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return t, fmt.Errorf("%w: %v: a program of the kernel's network stack is bound to it (ss -ulpn shows which): choose another port, or end that program", endpoint.ErrTagHeld, t)
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
