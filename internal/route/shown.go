//go:build linux

package route

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
)

// Kernel is the kernel's route to dst from src, which may be not valid: what `ip route get` shows.
func (r *Resolver) Kernel(src, dst netip.Addr) endpoint.KernelRoute {
	src, dst = src.Unmap(), dst.Unmap()
	up, err := r.uplink()
	if err != nil {
		return endpoint.KernelRoute{Error: err.Error()}
	}
	found, err := r.lookUp(&up, src, dst)
	if err != nil {
		return endpoint.KernelRoute{Error: err.Error()}
	}
	k := endpoint.KernelRoute{Interface: r.name(found.LinkIndex), Type: routeTypes[found.Type], Source: address(found.Src), NextHop: dst, MTU: uint32(found.MTU)}
	if src.IsValid() {
		k.Source = src
	}
	if gw := gateway(found.Gw, found.Via); gw.IsValid() {
		k.NextHop = gw
	}
	if link, err := r.nl.LinkByIndex(found.LinkIndex); err == nil && (k.MTU == 0 || found.Type == unix.RTN_LOCAL) {
		k.MTU = uint32(link.Attrs().MTU)
	}
	return k
}

var routeTypes = map[int]string{unix.RTN_UNICAST: "unicast", unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast", unix.RTN_ANYCAST: "anycast", unix.RTN_MULTICAST: "multicast"}

// FlagsOf names the flags of an address (IFA_F_*, linux/if_addr.h) that an application may notice, as ip-address(8)
// does. IFA_F_TEMPORARY of an IPv6 address is IFA_F_SECONDARY of an IPv4 one.
func FlagsOf(a netip.Addr, flags int) (names []string) {
	for _, f := range []struct {
		flag int
		name string
	}{{unix.IFA_F_SECONDARY, "secondary"}, {unix.IFA_F_DEPRECATED, "deprecated"}, {unix.IFA_F_TENTATIVE, "tentative"}, {unix.IFA_F_DADFAILED, "dadfailed"}} {
		switch {
		case flags&f.flag == 0:
		case f.flag == unix.IFA_F_SECONDARY && a.Is6():
			names = append(names, "temporary")
		default:
			names = append(names, f.name)
		}
	}
	return names
}
