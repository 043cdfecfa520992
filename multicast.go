package unet

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/ports"
	"github.com/unet-go/unet/stack"
)

// ListenMulticastUDP is net.ListenMulticastUDP on this host, for "udp", "udp4" and "udp6": a socket that receives what is
// sent to a group and port. The interface is one of the host, or nil: of several, the zone of the group is one then, or the one by which the kernel sends to the group. The host claims the tag udp:GROUP:PORT, which the
// policy must permit by name, and no port of its own address. So the socket cannot send. To send and
// receive by one socket, open it with ListenPacket and join by [UDPConn.JoinGroup].
//
// Other sockets and hosts, and programs on the kernel's sockets, may be members of the same group and port.
// Datagrams in fragments are not received.
func (h *Host) ListenMulticastUDP(network string, on *net.Interface, group *net.UDPAddr) (*UDPConn, error) {
	fail := func(err error) (*UDPConn, error) {
		var at net.Addr
		if group != nil {
			at = group
		}
		return nil, &net.OpError{Op: "listen", Net: network, Addr: at, Err: err}
	}
	switch network {
	case "udp", "udp4", "udp6":
	default:
		return fail(net.UnknownNetworkError(network))
	}
	if group == nil || group.IP == nil {
		return fail(&net.AddrError{Err: "missing address"})
	}
	at := group.AddrPort()
	if zone := at.Addr().Zone(); on == nil && zone != "" && len(h.uplinks) > 1 {
		on = &net.Interface{Name: h.named(at.Addr()).Zone()}
	}
	at = netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
	if !ports.InFamily(network, at.Addr()) || !at.Addr().IsMulticast() || at.Port() == 0 {
		return fail(stack.SysError("bind", syscall.EINVAL))
	}
	c, err := h.stack.ListenGroup(on, at, stack.UDPOptions{Network: network, Groups: h.groups})
	if err != nil {
		return fail(h.openError(context.Background(), "setsockopt", err))
	}
	return c, nil
}

// groups claims the groups of a host's sockets, each once on an uplink.
type groups struct {
	uplinks []*uplink

	claiming sync.Mutex // held while a group is claimed

	mu sync.Mutex
	// +checklocks:mu
	users map[groupOn]int // sockets by group
}

// groupOn is a group on an uplink, by its number.
type groupOn struct {
	uplink int
	group  netip.AddrPort
}

func newGroups(uplinks []*uplink) *groups {
	return &groups{uplinks: uplinks, users: map[groupOn]int{}}
}

// Join makes the caller a user of a group until it calls Leave.
func (g *groups) Join(on *net.Interface, group netip.AddrPort) (uplink int, err error) {
	if uplink, err = g.choose(on, group.Addr()); err != nil {
		return 0, err
	}
	g.claiming.Lock()
	defer g.claiming.Unlock()
	at := groupOn{uplink, group}
	if g.use(at, false) {
		return uplink, nil
	}
	if _, err := g.uplinks[uplink].lease.Claim(context.Background(), endpoint.UDPTag(group)); err != nil { // the end of the lease ends it
		return 0, err
	}
	g.use(at, true)
	return uplink, nil
}

// choose is the number of the uplink of an interface. Of several without one it is that by which the kernel sends to the group, as for its
// sockets.
func (g *groups) choose(on *net.Interface, group netip.Addr) (int, error) {
	switch {
	case on == nil && len(g.uplinks) == 1:
		return 0, nil
	case on != nil:
		for i, u := range g.uplinks {
			if u.zones[0] == "" || on.Name == u.zones[0] || strconv.Itoa(on.Index) == u.zones[1] {
				return i, nil
			}
		}
		if len(g.uplinks) == 1 {
			return 0, fmt.Errorf("%w: %s is not the host's interface %s", syscall.ENODEV, on.Name, g.uplinks[0].zones[0])
		}
		return 0, fmt.Errorf("%w: %s is not one of the host's interfaces", syscall.ENODEV, on.Name)
	}
	var refused error
	for i, u := range g.uplinks {
		_, err := u.lease.Resolve(context.Background(), netip.Addr{}, group) // the end of the lease ends it
		if err == nil {
			return i, nil
		}
		refused = cmp.Or(refused, err)
	}
	return 0, fmt.Errorf("%w: name the interface: %w", syscall.ENODEV, refused)
}

// use counts a user of a group, if it has users or is claimed.
func (g *groups) use(at groupOn, claimed bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.users[at] > 0 || claimed {
		g.users[at]++
		return true
	}
	return false
}

// Leave ends Join. It does not block.
func (g *groups) Leave(uplink int, group netip.AddrPort) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := groupOn{uplink, group}
	if g.users[at]--; g.users[at] == 0 {
		delete(g.users, at)
		g.uplinks[uplink].lease.Unclaim(context.Background(), endpoint.UDPTag(group)) // does not wait: see ports.Lease
	}
}
