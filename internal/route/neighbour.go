package route

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/wire"
)

// discoveryTimeout is what the kernel takes to give up: three ARP requests, a
// second apart (Documentation/networking/ip-sysctl.rst, mcast_solicit). It
// then says so, and the margin lets that answer come first.
const discoveryTimeout = 3*time.Second + 500*time.Millisecond

// States in which the kernel itself would send to a neighbour, and those of
// them that it does not doubt (NUD_*, linux/neighbour.h).
const (
	nudUsable    = netlink.NUD_REACHABLE | netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE
	nudConfirmed = netlink.NUD_REACHABLE | netlink.NUD_PERMANENT | netlink.NUD_NOARP
)

var errNoAnswer = errors.New("no answer to ARP")

// neighbour is the link address of a host on the uplink's own network.
//
// A stale entry is used at once, as the kernel does, and probed: waiting would
// take the kernel's delay of five seconds, and if the host did move, its
// ARP or the next Resolve corrects the entry.
func (r *Resolver) neighbour(ctx context.Context, hop netip.Addr) (wire.LinkAddr, error) {
	n, known, err := r.lookup(hop)
	if err != nil {
		return wire.LinkAddr{}, err
	}
	if known && n.State&nudUsable != 0 {
		if n.State&nudConfirmed == 0 {
			if err := r.solicit(hop); err != nil {
				return wire.LinkAddr{}, err
			}
		}
		return linkAddr(n.HardwareAddr)
	}

	ctx, cancel := context.WithTimeoutCause(ctx, discoveryTimeout, errNoAnswer)
	defer cancel()
	me := r.watch.wait(hop)
	defer r.watch.leave(me)
	if err := r.solicit(hop); err != nil {
		return wire.LinkAddr{}, err
	}
	for {
		n, known, err := r.lookup(hop)
		switch {
		case err != nil:
			return wire.LinkAddr{}, err
		case known && n.State&nudUsable != 0:
			return linkAddr(n.HardwareAddr)
		case known && n.State&netlink.NUD_FAILED != 0: // after we asked
			return wire.LinkAddr{}, fmt.Errorf("neighbour %v: %w", hop, errNoAnswer)
		}
		if err := r.watch.failure(); err != nil {
			return wire.LinkAddr{}, fmt.Errorf("neighbour %v: %w", hop, err)
		}
		select {
		case <-me.changed:
		case <-ctx.Done():
			return wire.LinkAddr{}, fmt.Errorf("neighbour %v: %w", hop, context.Cause(ctx))
		}
	}
}

// Neighbour is the link address at which the kernel knows a host on the
// uplink's own network, if it does. It asks nobody else.
func (r *Resolver) Neighbour(addr netip.Addr) (at wire.LinkAddr, known bool, err error) {
	n, known, err := r.lookup(addr)
	if err != nil || !known || n.State&nudUsable == 0 {
		return at, false, err
	}
	at, err = linkAddr(n.HardwareAddr)
	return at, err == nil && at != wire.LinkAddr{}, err
}

// lookup reads one entry of the kernel's neighbour table.
func (r *Resolver) lookup(hop netip.Addr) (n netlink.Neigh, known bool, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: r.get}
	req.AddData(&netlink.Ndmsg{Family: unix.AF_INET, Index: uint32(r.ifindex)})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, hop.AsSlice()))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if errors.Is(err, unix.ENOENT) {
		return n, false, nil
	}
	if err == nil && len(msgs) != 1 {
		err = fmt.Errorf("%d answers", len(msgs))
	}
	if err != nil {
		return n, false, fmt.Errorf("ask for neighbour %v: %w", hop, err)
	}
	found, err := netlink.NeighDeserialize(msgs[0])
	if err != nil {
		return n, false, fmt.Errorf("neighbour %v: %w", hop, err)
	}
	return *found, true, nil
}

// solicit makes the kernel resolve or confirm a neighbour as if it had a
// packet for it.
func (r *Resolver) solicit(hop netip.Addr) error {
	err := r.nl.NeighSet(&netlink.Neigh{
		LinkIndex: r.ifindex,
		Family:    unix.AF_INET,
		State:     netlink.NUD_NONE,
		Flags:     netlink.NTF_USE,
		IP:        net.IP(hop.AsSlice()),
	})
	if err != nil {
		return fmt.Errorf("start ARP for %v: %w", hop, err)
	}
	return nil
}
