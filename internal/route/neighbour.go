//go:build linux

package route

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/wire"
)

// discoveryTimeout is longer than the kernel's discovery: three requests, a second apart
// (Documentation/networking/ip-sysctl.rst, mcast_solicit). So the kernel's event of the failure
// comes first.
const discoveryTimeout = 3*time.Second + 500*time.Millisecond

// States of neighbour entries (NUD_*, linux/neighbour.h): those with a MAC address that the
// kernel sends to, those of them that an administrator has set, and that of a discovery in
// progress.
const (
	nudUsable = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | nudFixed
	nudFixed  = netlink.NUD_PERMANENT | netlink.NUD_NOARP

	nudLooking = netlink.NUD_INCOMPLETE
)

// The discovery by ARP (RFC 826) or neighbour discovery (RFC 4861) has failed.
var (
	errNoARP = errors.New("no answer to ARP")
	errNoND  = errors.New("no answer to neighbour discovery")
)

// neighbourVerdicts are the errors that mean that a neighbour cannot be reached. After other
// errors that is not known.
var neighbourVerdicts = []error{errNoARP, errNoND, errNotEthernet}

func noAnswer(hop netip.Addr) error {
	if hop.Is4() {
		return errNoARP
	}
	return errNoND
}

// neighbour returns the MAC address of a host on the uplink's own network. If the kernel has an
// entry it is returned at once and verified afterwards. In the second after a failed discovery
// no other one is started, since many destinations may be behind one gateway. from is the
// source of probes.
func (r *Resolver) neighbour(ctx context.Context, hop netip.Addr, from sender) (wire.LinkAddr, error) {
	n, known, err := r.lookup(hop)
	if err != nil {
		return wire.LinkAddr{}, err
	}
	if known && n.State&nudUsable != 0 {
		return r.take(n, hop, from)
	}
	if (!known || n.State&nudLooking == 0) && r.dead.has(hop) {
		return wire.LinkAddr{}, fmt.Errorf("neighbour %v: %w in the last second", hop, noAnswer(hop))
	}

	ctx, cancel := context.WithTimeoutCause(ctx, discoveryTimeout, noAnswer(hop))
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
			return r.take(n, hop, from)
		case known && n.State&netlink.NUD_FAILED != 0: // the discovery that solicit has started has failed
			r.watch.notifier.answered(hop, hopState{failed: true})
			r.dead.note(hop)
			return wire.LinkAddr{}, fmt.Errorf("neighbour %v: %w", hop, noAnswer(hop))
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

// take returns the MAC address of a usable entry of the kernel, and starts its verification
// unless an administrator has set it.
func (r *Resolver) take(n netlink.Neigh, hop netip.Addr, from sender) (wire.LinkAddr, error) {
	at, err := linkAddr(n.HardwareAddr)
	if err != nil {
		return at, err
	}
	if !r.watch.notifier.answered(hop, hopState{at: at}) {
		// An event came after the look-up, or is not read yet. The next look-up has its result;
		// of later events the caller is notified.
		again, known, err := r.lookup(hop)
		if err != nil {
			return at, err
		}
		if known && again.State&nudUsable != 0 {
			if at, err = linkAddr(again.HardwareAddr); err != nil {
				return at, err
			}
			n = again
		}
	}
	if n.State&nudFixed == 0 {
		r.verify(hop, n, from)
	}
	return at, nil
}

// Neighbour returns the MAC address of a host on the uplink's own network, if the kernel has
// it. It starts no discovery.
func (r *Resolver) Neighbour(addr netip.Addr) (at wire.LinkAddr, known bool, err error) {
	n, known, err := r.lookup(addr.Unmap())
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
	req.AddData(&netlink.Ndmsg{Family: uint8(family(hop)), Index: uint32(r.ifindex)})
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

// solicit makes the kernel treat a neighbour as if it had a packet for it: the kernel starts a
// discovery of an unknown neighbour, and verifies a stale one (NUD_DELAY, NUD_PROBE).
func (r *Resolver) solicit(hop netip.Addr) error {
	if err := r.set(hop, netlink.NUD_NONE, netlink.NTF_USE); err != nil {
		return fmt.Errorf("start discovery of %v: %w", hop, err)
	}
	return nil
}

// set sets the state and the flags of a neighbour's entry.
func (r *Resolver) set(hop netip.Addr, state, flags int) error {
	return r.nl.NeighSet(&netlink.Neigh{LinkIndex: r.ifindex, Family: family(hop), State: state, Flags: flags, IP: net.IP(hop.AsSlice())})
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// deadTime is the time after a failed discovery until the next one.
const deadTime = time.Second

// recentHops are the hops of which something was noted in the last period.
type recentHops struct {
	period time.Duration
	most   int // limit of the number of hops

	mu sync.Mutex
	at map[netip.Addr]time.Time // +checklocks:mu
}

// note notes a hop. It returns false if the hop was noted in the last period, or as many as
// there may be.
func (r *recentHops) note(hop netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.at) >= r.most {
		maps.DeleteFunc(r.at, func(_ netip.Addr, at time.Time) bool { return time.Since(at) >= r.period })
	}
	if len(r.at) >= r.most || r.noted(hop) {
		return false
	}
	if r.at == nil {
		r.at = map[netip.Addr]time.Time{}
	}
	r.at[hop] = time.Now()
	return true
}

// has reports whether a hop was noted in the last period.
func (r *recentHops) has(hop netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.noted(hop)
}

// +checklocks:r.mu
func (r *recentHops) noted(hop netip.Addr) bool {
	at, known := r.at[hop]
	return known && time.Since(at) < r.period
}
