package unet

import (
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
// sent to a group and port. The interface is that of the host, or nil. The host claims the tag udp:GROUP:PORT, which the
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

// groups claims the groups of a host's sockets, each once.
type groups struct {
	lease endpoint.Lease
	zones *[2]string // of the host

	claiming sync.Mutex // held while a group is claimed

	mu sync.Mutex
	// +checklocks:mu
	users map[netip.AddrPort]int // sockets by group
}

func newGroups(l endpoint.Lease, zones *[2]string) *groups {
	return &groups{lease: l, zones: zones, users: map[netip.AddrPort]int{}}
}

// Join makes the caller a user of a group until it calls Leave.
func (g *groups) Join(on *net.Interface, group netip.AddrPort) error {
	if on != nil && g.zones[0] != "" && on.Name != g.zones[0] && strconv.Itoa(on.Index) != g.zones[1] {
		return fmt.Errorf("%w: %s is not the host's interface %s", syscall.ENODEV, on.Name, g.zones[0])
	}
	g.claiming.Lock()
	defer g.claiming.Unlock()
	if g.use(group, false) {
		return nil
	}
	if _, err := g.lease.Claim(context.Background(), endpoint.UDPTag(group)); err != nil { // the end of the lease ends it
		return err
	}
	g.use(group, true)
	return nil
}

// use counts a user of a group, if it has users or is claimed.
func (g *groups) use(group netip.AddrPort, claimed bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.users[group] > 0 || claimed {
		g.users[group]++
		return true
	}
	return false
}

// Leave ends Join. It does not block.
func (g *groups) Leave(group netip.AddrPort) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.users[group]--; g.users[group] == 0 {
		delete(g.users, group)
		g.lease.Unclaim(context.Background(), endpoint.UDPTag(group)) // does not wait: see ports.Lease
	}
}
