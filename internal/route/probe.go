//go:build linux

package route

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/wire"
)

// The traffic of endpoints bypasses the kernel, so the kernel neither confirms its entry for
// their peer nor verifies it: the entry can be NUD_REACHABLE or NUD_STALE with a wrong MAC
// address for a minute. And a Linux host that gets another MAC address does not announce it
// (sysctl arp_notify). So when an endpoint resolves a route whose next hop the kernel has not
// confirmed in the last trustTime, the resolver probes the hop: first at its known MAC address,
// and if there is no answer, by broadcast or multicast. The kernel receives the answer and
// takes it as an answer to a request of its own.
const (
	trustTime     = 300 * time.Millisecond // a hop that the kernel confirmed in the last trustTime is not probed
	probeInterval = 350 * time.Millisecond // the shortest time between two probes of one hop
	unicastTime   = 50 * time.Millisecond  // from the probe at the known MAC address to the one to all hosts
	// For a second after a change the kernel ignores an ARP reply with another MAC address
	// (sysctl locktime), except during its own discovery.
	lockTime = time.Second + 2*clockTick
	// maxProbed limits the number of hops probed in one interval.
	maxProbed = 128

	clockTick = 10 * time.Millisecond // unit of the times in a neighbour entry (USER_HZ)
)

// sender is the source of a probe.
type sender struct {
	link wire.LinkAddr
	addr netip.Addr // not valid: none
}

// prober sends probes through a packet socket on the uplink.
type prober struct {
	fd      int
	ifindex int
	sent    func()
	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	running sync.WaitGroup

	probed recentHops

	mu     sync.Mutex
	closed bool // +checklocks:mu
}

func newProber(ns netns.NsHandle, ifindex int, sent func()) (*prober, error) {
	fd := -1
	err := Within(ns, func() (err error) {
		// Protocol 0: it receives nothing.
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("packet socket for neighbour probes: %w", err)
	}
	p := &prober{fd: fd, ifindex: ifindex, sent: sent, probed: recentHops{period: probeInterval, most: maxProbed}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

func (p *prober) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.running.Wait()
	unix.Close(p.fd)
}

// begin reports whether hop may be probed now. If it returns true, the caller calls
// p.running.Done after the probe.
func (p *prober) begin(hop netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.probed.note(hop) {
		return false
	}
	p.running.Add(1)
	return true
}

// pause waits for d. It returns false if the prober was closed.
func (p *prober) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-p.ctx.Done():
		return false
	}
}

// verify starts a probe of a neighbour, unless the kernel has confirmed it in the last
// trustTime. It does not wait for the answer.
func (r *Resolver) verify(hop netip.Addr, n netlink.Neigh, from sender) {
	if n.State&netlink.NUD_REACHABLE != 0 && ticks(n.Confirmed) < trustTime || !r.probes.begin(hop) {
		return
	}
	// The kernel's own verification removes a neighbour that does not answer. After an error
	// the next Resolve tries again.
	if r.solicit(hop) != nil {
		r.probes.running.Done()
		return
	}
	go func() {
		defer r.probes.running.Done()
		r.probe(hop, n, from)
	}()
}

// probe probes a neighbour at its known MAC address, and if there is no answer, by broadcast or
// multicast.
func (r *Resolver) probe(hop netip.Addr, n netlink.Neigh, from sender) {
	p := r.probes
	at, err := linkAddr(n.HardwareAddr)
	if err != nil || !p.ask(hop, at, from) || !p.pause(unicastTime) {
		return
	}
	n, known, err := r.lookup(hop)
	switch {
	case err != nil, !known, n.State&nudUsable == 0, n.State&nudFixed != 0, ticks(n.Confirmed) < unicastTime+clockTick:
		return
	case hop.Is4() && ticks(n.Updated) < lockTime:
		// With the entry in NUD_FAILED the kernel starts a discovery, which locktime does not
		// affect. Meanwhile it queues its own packets to the hop.
		if r.set(hop, netlink.NUD_FAILED, 0) == nil {
			r.solicit(hop) // after an error the next Resolve tries again
		}
	default:
		p.ask(hop, groupOf(hop), from)
	}
}

// ticks converts a time in a neighbour entry.
func ticks(n uint32) time.Duration { return time.Duration(n) * clockTick }

// ask sends one probe of hop to a MAC address. It returns false if the probe was not sent: from
// has no address of the family, the uplink is down, or its queue is full. The next Resolve
// tries again.
func (p *prober) ask(hop netip.Addr, to wire.LinkAddr, from sender) bool {
	if hop.Is6() && !from.addr.Is6() {
		return false
	}
	if unix.Sendto(p.fd, solicitation(hop, to, from), unix.MSG_DONTWAIT, &unix.SockaddrLinklayer{Ifindex: p.ifindex}) != nil {
		return false
	}
	p.sent()
	return true
}
