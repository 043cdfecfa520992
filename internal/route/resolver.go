//go:build linux

package route

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/wire"
)

// Resolver resolves routes that leave by one interface of one network namespace.
type Resolver struct {
	ns      netns.NsHandle // closed by Close
	nl      *netlink.Handle
	get     *nl.SocketHandle // for requests that package netlink does not have
	watch   *watch
	probes  *prober
	dead    recentHops // those whose discovery has failed
	ifindex int
	sent    func()
}

// New makes a resolver for the interface with number ifindex in ns. It duplicates the handle.
//
// One goroutine calls changed with each next hop that has another MAC address, does not answer
// any more, or answers again. A hop that is not valid means that routes or addresses have
// changed, or that events were lost, so any answer of Resolve may have changed. Each change of
// an answer is reported, also a change while Resolve is in progress. changed must not block.
//
// The resolver calls sent after each frame that it has sent itself: probes of neighbours and of vacant
// addresses. The kernel's discoveries are not among them.
func New(ns netns.NsHandle, ifindex int, changed func(hop netip.Addr), sent func()) (_ *Resolver, err error) {
	fd, err := unix.FcntlInt(uintptr(ns), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("network namespace of the resolver: %w", err)
	}
	r := &Resolver{ns: netns.NsHandle(fd), ifindex: ifindex, sent: sent, dead: recentHops{period: deadTime, most: 1024}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if r.nl, err = netlink.NewHandleAt(r.ns, unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("netlink of the resolver: %w", err)
	}
	sock, err := nl.GetNetlinkSocketAt(r.ns, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink of the resolver: %w", err)
	}
	r.get = &nl.SocketHandle{Socket: sock}
	if r.probes, err = newProber(r.ns, ifindex, sent); err != nil {
		return nil, err
	}
	if r.watch, err = newWatch(r.ns, ifindex, changed); err != nil {
		return nil, err
	}
	return r, nil
}

// Close releases the namespace and ends all goroutines. The resolver may be incomplete.
func (r *Resolver) Close() error {
	if r.probes != nil {
		r.probes.close()
	}
	if r.watch != nil {
		r.watch.close()
	}
	if r.get != nil {
		r.get.Close()
	}
	if r.nl != nil {
		r.nl.Close()
	}
	return r.ns.Close()
}

// Resolve returns the kernel's route of packets from src to dst, IPv4 or IPv6 addresses. It waits
// for neighbour discovery until ctx ends, and at most 3.5 seconds.
//
// If src is not valid the kernel chooses the source. Otherwise the caller has checked that src is an
// address of the uplink ([Resolver.Has]) or an owned IPv6 address. From an owned IPv4 address the
// kernel looks up no route, unless it forwards packets from there. With 0.0.0.0 as src the
// answer is the route from an address for which there is no rule.
//
// An address of the uplink has the uplink's own MAC address: another endpoint may hold a tag on it,
// and the mux redirects the frame to that endpoint. The error is endpoint.ErrNoRoute if no route leads to dst over the uplink,
// endpoint.ErrProhibited or endpoint.ErrBlackhole if the route is of that type, and
// another endpoint.ErrUnreachable if it is of type unreachable, or the next hop does not answer.
// After any other error the route is unknown, and another call may succeed.
//
// A neighbour that the kernel has not confirmed recently is verified after the return. If its MAC
// address has changed, New's function is called.
func (r *Resolver) Resolve(ctx context.Context, src, dst netip.Addr) (endpoint.Route, error) {
	src, dst = src.Unmap(), dst.Unmap()
	fail := func(err error) (endpoint.Route, error) {
		return endpoint.Route{}, fmt.Errorf("route to %v: %w", dst, err)
	}
	unreachable := func(err error) (endpoint.Route, error) {
		return endpoint.Route{}, fmt.Errorf("%w: %v: %w", endpoint.ErrUnreachable, dst, err)
	}
	noRoute := func(err error) (endpoint.Route, error) {
		return endpoint.Route{}, fmt.Errorf("%w: %v: %w", endpoint.ErrNoRoute, dst, err)
	}
	if err := endpoint.CheckDestination(dst); err != nil {
		return endpoint.Route{}, err
	}
	up, err := r.uplink()
	if err != nil {
		return fail(fmt.Errorf("uplink: %w", err))
	}
	kernel, src, err := r.route(&up, src, dst)
	for _, v := range routeVerdicts {
		if errors.Is(err, v.errno) {
			return endpoint.Route{}, fmt.Errorf("%w: %v: %w", v.is, dst, err)
		}
	}
	if err != nil {
		return fail(err)
	}
	route := endpoint.Route{Source: src, NextHop: dst, MTU: up.mtu, MTULocked: kernel.MTULock, AdvMSS: uint32(kernel.AdvMSS)}
	if dst.Is6() {
		route.MTU = up.mtu6
	}
	if kernel.MTU > 0 {
		route.MTU = min(route.MTU, uint32(kernel.MTU))
	}

	switch kernel.Type {
	case unix.RTN_LOCAL:
		route.LinkAddr = up.link
		if ours, err := r.Has(dst); err != nil {
			return fail(err)
		} else if !ours {
			return noRoute(fmt.Errorf("an address of this host, but not of the uplink %s", up.name))
		}
		return route, nil
	case unix.RTN_UNICAST, unix.RTN_BROADCAST, unix.RTN_MULTICAST:
		if kernel.LinkIndex != r.ifindex {
			return noRoute(fmt.Errorf("the route leaves by %s, not by the uplink %s", r.name(kernel.LinkIndex), up.name))
		}
	default:
		return unreachable(fmt.Errorf("the route is of type %d", kernel.Type))
	}
	switch {
	case kernel.Type == unix.RTN_BROADCAST:
		route.LinkAddr = wire.Broadcast
	case dst.IsMulticast():
		route.LinkAddr = wire.GroupLink(wire.AddrFrom(dst))
	default:
		if gw := gateway(kernel.Gw, kernel.Via); gw.IsValid() {
			route.NextHop = gw
		}
		// The answer to a probe must reach the kernel, so it is not sent from an owned address: for
		// IPv6 the kernel always names the source that it would choose.
		var from netip.Addr
		if from, err = r.probeSource(cmp.Or(address(kernel.Src), src), route.NextHop); err != nil {
			return fail(err)
		}
		route.LinkAddr, err = r.neighbour(ctx, route.NextHop, sender{up.link, from})
		switch {
		case isVerdict(err, neighbourVerdicts):
			return unreachable(err)
		case err != nil:
			return fail(err)
		}
	}
	return route, nil
}

func isVerdict(err error, verdicts []error) bool {
	return slices.ContainsFunc(verdicts, func(v error) bool { return errors.Is(err, v) })
}
