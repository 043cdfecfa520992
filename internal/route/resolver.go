package route

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/wire"
)

// Resolver answers for one uplink in one network namespace.
type Resolver struct {
	ns      netns.NsHandle // our own descriptor
	nl      *netlink.Handle
	get     *nl.SocketHandle // for what the library has no call for
	watch   *watch
	ifindex int
}

// New makes a resolver for the interface with number ifindex in ns. It keeps
// no reference to the handle it was given.
func New(ns netns.NsHandle, ifindex int) (_ *Resolver, err error) {
	fd, err := unix.FcntlInt(uintptr(ns), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("network namespace of the resolver: %w", err)
	}
	r := &Resolver{ns: netns.NsHandle(fd), ifindex: ifindex}
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
	if r.watch, err = newWatch(r.ns, ifindex); err != nil {
		return nil, err
	}
	return r, nil
}

// Close lets go of the namespace. It tolerates a resolver that is not complete.
func (r *Resolver) Close() error {
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

// Resolve asks the kernel for the way to dst, and waits for its neighbour
// discovery, as long as ctx allows and three seconds at most. An address of
// the uplink itself is answered with the uplink's link address: another
// endpoint may hold a tag there, and the mux turns the frame round. What
// cannot be reached over the uplink is endpoint.ErrUnreachable.
func (r *Resolver) Resolve(ctx context.Context, dst netip.Addr) (endpoint.Route, error) {
	dst = dst.Unmap()
	if !dst.Is4() || dst.IsUnspecified() {
		return endpoint.Route{}, unreachable(dst, errors.New("not an IPv4 address of a host"))
	}
	link, err := r.nl.LinkByIndex(r.ifindex)
	if err != nil {
		return endpoint.Route{}, unreachable(dst, fmt.Errorf("uplink: %w", err))
	}
	own, err := linkAddr(link.Attrs().HardwareAddr)
	if err != nil {
		return endpoint.Route{}, unreachable(dst, fmt.Errorf("uplink: %w", err))
	}
	kernel, err := r.route(dst)
	if err != nil {
		return endpoint.Route{}, err
	}
	route := endpoint.Route{NextHop: dst, MTU: uint32(link.Attrs().MTU)}
	if kernel.MTU > 0 {
		route.MTU = min(route.MTU, uint32(kernel.MTU))
	}
	route.Source, _ = netip.AddrFromSlice(kernel.Src.To4())

	switch kernel.Type {
	case unix.RTN_LOCAL:
		route.LinkAddr = own
		if err := r.checkLocal(link, dst); err != nil {
			return endpoint.Route{}, err
		}
		return route, nil
	case unix.RTN_UNICAST, unix.RTN_BROADCAST, unix.RTN_MULTICAST:
		if kernel.LinkIndex != r.ifindex {
			return endpoint.Route{}, unreachable(dst, fmt.Errorf("the route leaves by %s, not by the uplink %s", r.name(kernel.LinkIndex), link.Attrs().Name))
		}
	default:
		return endpoint.Route{}, unreachable(dst, fmt.Errorf("the route is of type %d", kernel.Type))
	}
	switch {
	case kernel.Type == unix.RTN_BROADCAST:
		route.LinkAddr = wire.Broadcast
	case dst.IsMulticast():
		a := dst.As4() // RFC 1112, 6.4
		route.LinkAddr = wire.LinkAddr{0x01, 0x00, 0x5e, a[1] & 0x7f, a[2], a[3]}
	default:
		if len(kernel.Gw) > 0 {
			var ok bool
			if route.NextHop, ok = netip.AddrFromSlice(kernel.Gw.To4()); !ok {
				return endpoint.Route{}, unreachable(dst, fmt.Errorf("gateway %v is not an IPv4 address", kernel.Gw))
			}
		} else if kernel.Via != nil {
			return endpoint.Route{}, unreachable(dst, fmt.Errorf("gateway %v is not an IPv4 address", kernel.Via))
		}
		if route.LinkAddr, err = r.neighbour(ctx, route.NextHop); err != nil {
			return endpoint.Route{}, unreachable(dst, err)
		}
	}
	return route, nil
}

// NextHops are the gateways of all routes, of every routing table.
func (r *Resolver) NextHops() (map[netip.Addr]bool, error) {
	routes, err := Dump(func() ([]netlink.Route, error) {
		return r.nl.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	hops := map[netip.Addr]bool{}
	add := func(gw net.IP) {
		if a, ok := netip.AddrFromSlice(gw.To4()); ok {
			hops[a] = true
		}
	}
	for i := range routes {
		add(routes[i].Gw)
		for _, path := range routes[i].MultiPath {
			add(path.Gw)
		}
	}
	return hops, nil
}

// route is the kernel's own choice for dst (`ip route get`).
func (r *Resolver) route(dst netip.Addr) (netlink.Route, error) {
	routes, err := r.nl.RouteGet(net.IP(dst.AsSlice()))
	if err != nil {
		return netlink.Route{}, unreachable(dst, err)
	}
	if len(routes) == 0 {
		return netlink.Route{}, unreachable(dst, errors.New("no route"))
	}
	return routes[0], nil
}

// checkLocal: an address of the host is reached through the mux only if it is
// the uplink's.
func (r *Resolver) checkLocal(link netlink.Link, dst netip.Addr) error {
	addrs, err := Dump(func() ([]netlink.Addr, error) { return r.nl.AddrList(link, netlink.FAMILY_V4) })
	if err != nil {
		return unreachable(dst, err)
	}
	for _, a := range addrs {
		if a.IP.Equal(net.IP(dst.AsSlice())) {
			return nil
		}
	}
	return unreachable(dst, fmt.Errorf("an address of this host, but not of the uplink %s", link.Attrs().Name))
}

func (r *Resolver) name(ifindex int) string {
	if l, err := r.nl.LinkByIndex(ifindex); err == nil {
		return l.Attrs().Name
	}
	return fmt.Sprintf("interface %d", ifindex)
}

func linkAddr(hw net.HardwareAddr) (wire.LinkAddr, error) {
	if len(hw) != len(wire.LinkAddr{}) {
		return wire.LinkAddr{}, fmt.Errorf("link address %q is not Ethernet's", hw)
	}
	return wire.LinkAddr(hw), nil
}

func unreachable(dst netip.Addr, why error) error {
	return fmt.Errorf("%w: %v: %w", endpoint.ErrUnreachable, dst, why)
}
