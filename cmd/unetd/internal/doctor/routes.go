//go:build linux

package doctor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/route"
)

// addressesOf lists the addresses of an interface with their flags, and finds by which routes packets from them leave.
func addressesOf(e *examination, name string) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		e.unseen("addresses", err)
		return
	}
	list, err := route.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		e.unseen("addresses", err)
		return
	}
	var texts []string
	var global []netip.Prefix
	for _, a := range list {
		ip, _ := netip.AddrFromSlice(a.IP)
		ip = ip.Unmap()
		bits, _ := a.Mask.Size()
		flags := route.FlagsOf(ip, a.Flags)
		texts = append(texts, strings.Join(append([]string{netip.PrefixFrom(ip, bits).String()}, flags...), " "))
		if a.Flags&unix.IFA_F_DADFAILED != 0 {
			e.problem("addresses", fmt.Sprintf("ip address del %v/%d dev %s, and find the other host", ip, bits, name), "another host has %v too: endpoints cannot use it", ip)
		} else if ip.IsGlobalUnicast() && a.Flags&unix.IFA_F_TENTATIVE == 0 {
			global = append(global, netip.PrefixFrom(ip, bits))
		}
	}
	if len(global) == 0 {
		e.note("addresses", "ip address add ADDRESS/LENGTH dev "+name, "%s: applications can only claim owned addresses and message tags", strings.Join(append(texts, "none that other hosts reach"), ", "))
		return
	}
	e.ok("addresses", "%s", strings.Join(texts, ", "))
	routes(e, link.Attrs(), global)
}

// outside are destinations that are reached by default routes: addresses that nobody has (RFC 5737; IANA has not assigned
// the other one).
var outside = map[bool]netip.Addr{true: netip.MustParseAddr("192.0.2.1"), false: netip.MustParseAddr("2000::1")}

// leaving is where packets of some addresses go that do not leave by the interface.
type leaving struct{ to, by string } // by is empty if there is no route

// routes notes addresses whose packets leave by another interface, to hosts of their own subnet or to others. Endpoints
// send by their own interface only.
func routes(e *examination, link *netlink.LinkAttrs, addrs []netip.Prefix) {
	var order []leaving
	from := map[leaving][]netip.Addr{}
	vrf := 0 // the table of a VRF is asked by the number of the VRF
	if master, err := netlink.LinkByIndex(link.MasterIndex); err == nil && master.Type() == "vrf" {
		vrf = link.MasterIndex
	}
	for _, p := range addrs {
		for _, to := range []netip.Addr{neighbourIn(p), outside[p.Addr().Is4()]} {
			if l, elsewhere := leaves(link.Index, vrf, p, to); elsewhere {
				if from[l] == nil {
					order = append(order, l)
				}
				from[l] = append(from[l], p.Addr())
			}
		}
	}
	for _, l := range order {
		sources := fmt.Sprint(from[l][0])
		if n := len(from[l]); n > 1 {
			sources += fmt.Sprintf(" and %d more", n-1)
		}
		if l.by == "" {
			e.note("routes", "ip route add default via GATEWAY dev "+link.Name, "from %s only hosts with a route of their own are reached: no default route", sources)
			continue
		}
		strict := ""
		if from[l][0].Is4() && e.strict(link.Name) {
			strict = "; what they send here the kernel drops (rp_filter is 1), and endpoints receive it"
		}
		e.note("routes", fmt.Sprintf("unetd serve --interface %s too, or a route by %s in a table of its own, and ip rule add from %v lookup TABLE", l.by, link.Name, from[l][0]),
			"from %s to %s the kernel sends by %s, and endpoints of %s do not send%s", sources, l.to, l.by, link.Name, strict)
	}
	if len(order) == 0 {
		e.ok("routes", "packets from each address leave by %s, to its subnet and to others", link.Name)
	}
}

// leaves reports whether packets from p to an address in its subnet, or outside, do not leave by an interface, and where
// they go instead.
func leaves(ifindex, vrf int, p netip.Prefix, to netip.Addr) (l leaving, elsewhere bool) {
	if !to.IsValid() {
		return l, false
	}
	l.to = "hosts outside of all subnets"
	if p.Contains(to) {
		l.to = p.Masked().String()
	}
	all, err := netlink.RouteGetWithOptions(net.IP(to.AsSlice()), &netlink.RouteGetOptions{SrcAddr: p.Addr().AsSlice(), OifIndex: vrf})
	switch {
	case errors.Is(err, unix.ENETUNREACH):
		return l, true
	case err != nil || len(all) == 0 || all[0].Type != unix.RTN_UNICAST || all[0].LinkIndex == ifindex:
		return l, false
	}
	l.by = fmt.Sprintf("interface %d", all[0].LinkIndex)
	if i, err := net.InterfaceByIndex(all[0].LinkIndex); err == nil {
		l.by = i.Name
	}
	return l, true
}

// neighbourIn is the address of another host in the subnet of p; not valid if there is none.
func neighbourIn(p netip.Prefix) netip.Addr {
	for _, a := range []netip.Addr{p.Addr().Next(), p.Addr().Prev()} {
		if p.Contains(a) && (a.Is6() || p.Bits() == 31 || a != p.Masked().Addr() && p.Contains(a.Next())) {
			return a
		}
	}
	return netip.Addr{}
}

// strict reports whether the kernel drops IPv4 packets whose source it would not reach by the interface they arrive on.
// The larger setting counts (Documentation/networking/ip-sysctl.rst), and 2 is loose.
func (e *examination) strict(name string) bool {
	all, _ := e.read("proc/sys/net/ipv4/conf/all/rp_filter")
	own, _ := e.read("proc/sys/net/ipv4/conf/" + name + "/rp_filter")
	return max(all, own) == "1"
}
