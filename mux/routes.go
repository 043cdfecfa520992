//go:build linux

package mux

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
)

// Route describes the addresses of the uplink and, if dst is valid, how an endpoint at a port reaches dst from
// src, and how the kernel does. If src is not valid the kernel chooses it. Otherwise it is an address of the uplink or
// one that an endpoint owns.
func (m *Mux) Route(ctx context.Context, src, dst netip.Addr) (endpoint.UplinkRoute, error) {
	if err := m.enter(); err != nil {
		return endpoint.UplinkRoute{}, known(err)
	}
	defer m.leave()
	own, err := m.addresses()
	if err != nil {
		return endpoint.UplinkRoute{}, err
	}
	answer := endpoint.UplinkRoute{Interface: m.up.Name, Addrs: own.shown(m.up.Index)}
	answer.AddrsTotal = len(answer.Addrs)
	if !dst.IsValid() {
		return answer, nil
	}
	src, dst = src.Unmap(), dst.Unmap()
	if err := cmp.Or(endpoint.CheckDestination(dst), endpoint.CheckSource(src, dst)); err != nil {
		return endpoint.UplinkRoute{}, err
	}
	m.mu.Lock()
	owns, owned := m.tags.held[endpoint.AddrTag(src)] != nil, m.tags.held[endpoint.AddrTag(dst)] != nil
	m.mu.Unlock()
	kernel := m.routes.Kernel(src, dst)
	answer.Kernel = &kernel
	if r, err := m.resolve(ctx, src, dst, owns, owned); err != nil {
		answer.Error = known(err).Error()
	} else {
		answer.Route = &r
	}
	return answer, nil
}

// shown describes the addresses of the uplink, also those on which no ports can be claimed.
func (own *addresses) shown(uplink int) (list []endpoint.UplinkAddr) {
	of := slices.DeleteFunc(slices.Clone(own.host), func(h hostAddr) bool { return h.ifindex != uplink })
	slices.SortStableFunc(of, func(a, b hostAddr) int { return cmp.Compare(rankOf(a.Addr, a.flags), rankOf(b.Addr, b.flags)) })
	for _, h := range of {
		list = append(list, endpoint.UplinkAddr{Prefix: netip.PrefixFrom(h.Addr, h.bits), Flags: route.FlagsOf(h.Addr, h.flags)})
	}
	return list
}
