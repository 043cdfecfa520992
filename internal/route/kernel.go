//go:build linux

package route

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/wire"
)

// uplink is the interface as it is now.
type uplink struct {
	name      string
	link      wire.LinkAddr
	mtu, mtu6 uint32 // MTU of IPv4 and of IPv6, in bytes; router advertisements can make that of IPv6 smaller
	vrf       int    // the number of the VRF that the interface is a member of; 0: none
}

// uplink reads the interface from the kernel.
func (r *Resolver) uplink() (u uplink, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: r.get}
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(r.ifindex)
	req.AddData(msg)
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err == nil && (len(msgs) != 1 || len(msgs[0]) < unix.SizeofIfInfomsg) {
		err = fmt.Errorf("%d answers", len(msgs))
	}
	if err != nil {
		return u, err
	}
	attrs, err := nl.ParseRouteAttrAsMap(msgs[0][unix.SizeofIfInfomsg:])
	if err != nil {
		return u, err
	}
	u.name = unix.ByteSliceToString(attrs[unix.IFLA_IFNAME].Value)
	if mtu := attrs[unix.IFLA_MTU].Value; len(mtu) == 4 {
		u.mtu = nl.NativeEndian().Uint32(mtu)
	}
	u.mtu6 = u.mtu
	if mtu := ipv6MTU(attrs[unix.IFLA_AF_SPEC].Value); mtu != 0 {
		u.mtu6 = min(u.mtu, mtu)
	}
	if master := attrs[unix.IFLA_MASTER].Value; len(master) == 4 && isVRFMember(attrs[unix.IFLA_LINKINFO].Value) {
		u.vrf = int(nl.NativeEndian().Uint32(master))
	}
	u.link, err = linkAddr(attrs[unix.IFLA_ADDRESS].Value)
	return u, err
}

// VRF is the number of the VRF that the interface is a member of now; 0: none.
func (r *Resolver) VRF() (int, error) {
	up, err := r.uplink()
	return up.vrf, err
}

// isVRFMember reads in IFLA_LINKINFO whether the link is a member of a VRF.
func isVRFMember(info []byte) bool {
	attrs, err := nl.ParseRouteAttrAsMap(info)
	return err == nil && unix.ByteSliceToString(attrs[nl.IFLA_INFO_SLAVE_KIND].Value) == "vrf"
}

// ipv6MTU reads the MTU for IPv6 in IFLA_AF_SPEC; 0: there is none.
func ipv6MTU(spec []byte) uint32 {
	const mtu6 = 2 // DEVCONF_MTU6, linux/ipv6.h: the index in an array of 32-bit numbers
	families, err := nl.ParseRouteAttrAsMap(spec)
	if err != nil {
		return 0
	}
	of6, err := nl.ParseRouteAttrAsMap(families[unix.AF_INET6].Value)
	if err != nil {
		return 0
	}
	conf := of6[unix.IFLA_INET6_CONF].Value
	if len(conf) < 4*(mtu6+1) {
		return 0
	}
	return nl.NativeEndian().Uint32(conf[4*mtu6:])
}

var errNoRoute = fmt.Errorf("the kernel names none: %w", unix.ENETUNREACH)

// routeVerdicts are the kernel's errors for a destination that no packet can be sent to (fib_props,
// net/ipv4/fib_semantics.c; ip6_rt_init_dst_reject, net/ipv6/route.c), and what they are here.
var routeVerdicts = []struct {
	errno syscall.Errno
	is    error
}{
	{unix.ENETUNREACH, endpoint.ErrNoRoute},      // no route, or a rule of type unreachable
	{unix.EHOSTUNREACH, endpoint.ErrUnreachable}, // of type unreachable
	{unix.EACCES, endpoint.ErrProhibited},
	{unix.EINVAL, endpoint.ErrBlackhole}, // also a source that the host has just lost
}

// route is the kernel's route from src to dst, and the source, which the kernel chooses if src is not valid.
//
// A socket without an address is connected in two steps: the kernel finds a route and with it the
// source, and then the route from there, by the rules for that source. The kernel's IPv6 sockets
// take the second step only when a route changes; until then they send by the first. If IPv6 has
// no route without a source, they get a source all the same, and then the route from there.
func (r *Resolver) route(up *uplink, src, dst netip.Addr) (found netlink.Route, from netip.Addr, err error) {
	found, err = r.lookUp(up, src, dst)
	if src.IsValid() {
		return found, src, err
	}
	chosen := address(found.Src)
	if err != nil && dst.Is6() {
		chosen = r.connectedSource(up, dst)
	}
	if chosen.IsValid() {
		found, err = r.lookUp(up, chosen, dst)
	}
	return found, chosen, err
}

// connectedSource is the source of an IPv6 socket that is connected to dst; not valid if none can be.
func (r *Resolver) connectedSource(up *uplink, dst netip.Addr) (src netip.Addr) {
	_ = Within(r.ns, func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW) // takes no port
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if up.vrf != 0 {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, up.vrf); err != nil {
				return err
			}
		}
		if err := unix.Connect(fd, &unix.SockaddrInet6{Addr: dst.As16(), ZoneId: uint32(r.ifindex)}); err != nil {
			return err
		}
		name, err := unix.Getsockname(fd)
		if local, ok := name.(*unix.SockaddrInet6); ok {
			src = netip.AddrFrom16(local.Addr)
		}
		return err
	})
	return src
}

// lookUp is `ip route get DST from SRC`, without a source if src is not valid. The route has a Src if
// the kernel prefers one to src. Of several paths it is the one that the kernel takes for these
// addresses; for IPv6 the kernel's choice depends on the protocol and the flow label, too. In a VRF it is
// `ip route get DST from SRC vrf VRF`: the kernel takes the VRF's number for an interface to mean its table (l3mdev_update_flow).
func (r *Resolver) lookUp(up *uplink, src, dst netip.Addr) (netlink.Route, error) {
	o := netlink.RouteGetOptions{SrcAddr: src.AsSlice(), OifIndex: up.vrf} // nil, 0: none
	switch {
	case dst.Is6() && (dst.IsLinkLocalUnicast() || dst.IsMulticast()), // each link has routes to such addresses
		up.vrf != 0 && (dst.IsMulticast() || dst == limitedBroadcast): // without a look-up, by the interface that is named
		o.OifIndex = r.ifindex
	}
	routes, err := r.nl.RouteGetWithOptions(net.IP(dst.AsSlice()), &o)
	if err != nil {
		return netlink.Route{}, err
	}
	if len(routes) == 0 {
		return netlink.Route{}, errNoRoute
	}
	return routes[0], nil
}

var limitedBroadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// Has reports whether a is an address of the uplink.
func (r *Resolver) Has(a netip.Addr) (bool, error) {
	addrs, err := Dump(func() ([]netlink.Addr, error) { return r.nl.AddrList(nil, family(a)) })
	if err != nil {
		return false, err
	}
	for i := range addrs {
		if addrs[i].LinkIndex == r.ifindex && address(addrs[i].IP) == a {
			return true, nil
		}
	}
	return false, nil
}

// NextHops are the gateways of all routes, of every routing table.
func (r *Resolver) NextHops() (map[netip.Addr]bool, error) {
	hops := map[netip.Addr]bool{}
	add := func(gw net.IP, via netlink.Destination) {
		if a := gateway(gw, via); a.IsValid() {
			hops[a] = true
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := Dump(func() ([]netlink.Route, error) {
			return r.nl.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for i := range routes {
			add(routes[i].Gw, routes[i].Via)
			for _, path := range routes[i].MultiPath {
				add(path.Gw, path.Via)
			}
		}
	}
	return hops, nil
}

// gateway is the gateway of a route; not valid if there is none. via is set if it is of another
// address family than the destination (RTA_VIA, RFC 8950).
func gateway(gw net.IP, via netlink.Destination) netip.Addr {
	if v, ok := via.(*netlink.Via); ok {
		gw = v.Addr
	}
	return address(gw)
}

// probeSource is the address from which a next hop is probed: from, which is an address of the host, or for the IPv6
// gateway of an IPv4 route the link-local address of the uplink. It is not valid if the uplink has none.
func (r *Resolver) probeSource(from, hop netip.Addr) (netip.Addr, error) {
	if hop.Is4() == from.Is4() {
		return from, nil
	}
	addrs, err := Dump(func() ([]netlink.Addr, error) { return r.nl.AddrList(nil, family(hop)) })
	if err != nil {
		return netip.Addr{}, err
	}
	for i := range addrs {
		if a := address(addrs[i].IP); addrs[i].LinkIndex == r.ifindex && a.IsLinkLocalUnicast() && addrs[i].Flags&unix.IFA_F_TENTATIVE == 0 {
			return a, nil
		}
	}
	return netip.Addr{}, nil
}

func (r *Resolver) name(ifindex int) string {
	if l, err := r.nl.LinkByIndex(ifindex); err == nil {
		return l.Attrs().Name
	}
	return fmt.Sprintf("interface %d", ifindex)
}

// address converts an address of package netlink; not valid for none.
func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

var errNotEthernet = errors.New("not an Ethernet MAC address")

func linkAddr(hw net.HardwareAddr) (wire.LinkAddr, error) {
	if len(hw) != len(wire.LinkAddr{}) {
		return wire.LinkAddr{}, fmt.Errorf("%q: %w", hw, errNotEthernet)
	}
	return wire.LinkAddr(hw), nil
}

// Within runs fn on a thread that is in the network namespace ns. It returns the error of fn.
func Within(ns netns.NsHandle, fn func() error) error {
	return away("enter network namespace", func() error { return unix.Setns(int(ns), unix.CLONE_NEWNET) }, fn)
}

// WithinNew runs fn on a thread that is in a new network namespace without a name. After fn the
// namespace exists as long as a socket in it, or a duplicate of inner, is open.
func WithinNew(fn func(inner netns.NsHandle) error) error {
	return away("new network namespace", func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() error {
		inner, err := netns.Get()
		if err != nil {
			return fmt.Errorf("new network namespace: %w", err)
		}
		defer inner.Close()
		return fn(inner)
	})
}

// away runs fn on a thread that leave has moved to another namespace, and moves it back. A
// thread that cannot be moved back stays locked, so that it ends with its goroutine: no other
// code may run in the wrong namespace.
func away(what string, leave, fn func() error) (err error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("network namespace of this thread: %w", err)
	}
	defer home.Close()
	if err := leave(); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("%s: %w", what, err)
	}
	defer func() {
		if back := unix.Setns(int(home), unix.CLONE_NEWNET); back != nil {
			err = errors.Join(err, fmt.Errorf("return to this thread's network namespace: %w", back))
			return
		}
		runtime.UnlockOSThread()
	}()
	return fn()
}

// dumpTries is the largest number of attempts at a dump that is interrupted.
const dumpTries = 10

// Dump makes a complete netlink dump. The kernel dumps a table in parts. If the table changes
// between two parts, entries can be missing, and the kernel sets NLM_F_DUMP_INTR; then Dump
// repeats the request.
func Dump[T any](dump func() ([]T, error)) (list []T, err error) {
	for range dumpTries {
		if list, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}
