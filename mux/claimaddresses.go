package mux

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/nat"
	"github.com/unet-go/unet/internal/route"
)

// addresses are the IPv4 and IPv6 addresses of a host.
type addresses struct {
	host []netip.Addr // all of them
	// uplink are those of the uplink on which ports can be claimed, and their
	// subnets, in the order in which a wildcard prefers them.
	uplink []netip.Prefix
	unfit  map[netip.Addr]string     // the uplink's others, and why
	nat    map[netip.Addr]*nat.Ports // what translation does with those of uplink; not asked by addresses
}

// addresses asks the kernel.
func (m *Mux) addresses() (addresses, error) {
	list, err := route.Dump(func() ([]netlink.Addr, error) { return m.nl.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return addresses{}, fmt.Errorf("addresses of the host: %w", err)
	}
	found := addresses{unfit: map[netip.Addr]string{}}
	rank := map[netip.Addr]int{}
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		ip = ip.Unmap()
		found.host = append(found.host, ip)
		if a.LinkIndex != m.up.ifindex {
			continue
		}
		if why := unfit(ip, a.Flags); why != "" {
			found.unfit[ip] = why
			continue
		}
		rank[ip] = rankOf(ip, a.Flags)
		bits, _ := a.Mask.Size()
		found.uplink = append(found.uplink, netip.PrefixFrom(ip, bits))
	}
	slices.SortStableFunc(found.uplink, func(a, b netip.Prefix) int { return cmp.Compare(rank[a.Addr()], rank[b.Addr()]) })
	return found, nil
}

// unfit says why no ports can be claimed on an IPv6 address of the uplink: the
// host itself may not use it yet, or will not for long. A claim outlives its
// address, and a temporary one is replaced every day (RFC 8981), to leave no
// trace; a claim would be one.
func unfit(ip netip.Addr, flags int) string {
	switch {
	case ip.Is4():
	case flags&unix.IFA_F_DADFAILED != 0:
		return "another host has this address too (duplicate address detection failed)"
	case flags&unix.IFA_F_TEMPORARY != 0:
		return "the host changes this address by itself (RFC 8981): choose one that stays"
	case flags&unix.IFA_F_TENTATIVE != 0:
		return "the host does not know yet whether it is alone with this address: try again in a second"
	}
	return ""
}

// rankOf orders addresses for a wildcard: IPv4 before IPv6, primary addresses
// before secondary ones, and of IPv6, those in use before those that
// are being retired (deprecated) and those that are heard on this link only. Of
// equals the kernel's order decides.
func rankOf(ip netip.Addr, flags int) int {
	switch {
	case ip.Is4() && flags&unix.IFA_F_SECONDARY == 0:
		return 0
	case ip.Is4():
		return 1
	case ip.IsLinkLocalUnicast():
		return 4
	case flags&unix.IFA_F_DEPRECATED != 0:
		return 3
	}
	return 2
}

// first is the address of the uplink that a wildcard stands for. One that is
// not valid stands for either family.
func (own *addresses) first(wildcard netip.Addr) (netip.Addr, bool) {
	for _, p := range own.uplink {
		if !wildcard.IsValid() || wildcard.Is4() == p.Addr().Is4() {
			return p.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// primary is the first IPv4 address of the uplink and its subnet; not valid if
// there is none.
func (own *addresses) primary() netip.Prefix {
	if len(own.uplink) > 0 && own.uplink[0].Addr().Is4() {
		return own.uplink[0]
	}
	return netip.Prefix{}
}

// WildcardAddr is the address that a claim of ports gets for a wildcard now: the
// unspecified address of either family, or one that is not valid, which stands for
// either of them.
func (m *Mux) WildcardAddr(wildcard netip.Addr) (netip.Addr, error) {
	if err := m.enter(); err != nil {
		return netip.Addr{}, err
	}
	defer m.leave()
	own, err := m.addresses()
	if err != nil {
		return netip.Addr{}, err
	}
	a, ok := own.first(wildcard.Unmap())
	if !ok {
		return a, fmt.Errorf("%w: the uplink %s has no address that the wildcard could stand for", endpoint.ErrTagDenied, m.up.name)
	}
	return a, nil
}
