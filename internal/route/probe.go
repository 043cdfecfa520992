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

// What endpoints send and receive bypasses the kernel, so the kernel neither
// confirms its entry for their peer nor begins to doubt it: it can be reachable,
// or stale, with a wrong MAC address for a minute. And a Linux host that is
// given another MAC address announces nothing (sysctl arp_notify). So whenever
// an endpoint asks, and the kernel has not heard of the neighbour lately, unetd
// asks the neighbour itself: alone first, where it is known to be, and if it is
// silent, everybody. The answer goes to the kernel, which takes it as one to a
// question of its own, and so it reaches everyone.
const (
	trustTime   = 300 * time.Millisecond // a neighbour heard of since needs no question
	askInterval = 350 * time.Millisecond // between two questions about one hop
	aloneTime   = 50 * time.Millisecond  // from asking the hop alone to asking everybody
	// For a second after a change the kernel ignores an ARP answer with another
	// MAC address (sysctl locktime), unless it looks for the neighbour itself.
	lockTime = time.Second + 2*clockTick
	// maxProbed bounds the hops asked about in one interval.
	maxProbed = 128

	clockTick = 10 * time.Millisecond // unit of the times in a neighbour entry (USER_HZ)
)

// sender is whom the uplink speaks as.
type sender struct {
	link wire.LinkAddr
	addr netip.Addr // not valid: nobody's
}

// prober asks neighbours through a packet socket on the uplink.
type prober struct {
	fd      int
	ifindex int
	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	probed map[netip.Addr]time.Time // hops that were asked about lately
	closed bool
}

func newProber(ns netns.NsHandle, ifindex int) (*prober, error) {
	fd := -1
	err := Within(ns, func() (err error) {
		// Without a protocol it receives nothing.
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("packet socket to ask neighbours by: %w", err)
	}
	p := &prober{fd: fd, ifindex: ifindex, probed: map[netip.Addr]time.Time{}}
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

// begin reports whether hop may be asked about now. If so, the caller calls
// p.running.Done in the end.
func (p *prober) begin(hop netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.probed[hop]) < askInterval || p.closed {
		return false
	}
	if len(p.probed) >= maxProbed {
		for other, at := range p.probed {
			if now.Sub(at) >= askInterval {
				delete(p.probed, other)
			}
		}
		if len(p.probed) >= maxProbed {
			return false
		}
	}
	p.probed[hop] = now
	p.running.Add(1)
	return true
}

// pause reports whether there is still something to do after d.
func (p *prober) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-p.ctx.Done():
		return false
	}
}

// verify has a neighbour that is used asked whether it is still there, unless
// the kernel has just heard of it. It does not wait for the answer.
func (r *Resolver) verify(hop netip.Addr, n netlink.Neigh, from sender) {
	if n.State&netlink.NUD_REACHABLE != 0 && ticks(n.Confirmed) < trustTime || !r.probes.begin(hop) {
		return
	}
	// A neighbour that is in use and does not answer is given up in the end. If
	// that cannot be begun now, it will be by the next who asks: what is known is
	// no worse for it.
	if r.solicit(hop) != nil {
		r.probes.running.Done()
		return
	}
	go func() {
		defer r.probes.running.Done()
		r.probe(hop, n, from)
	}()
}

// probe asks a neighbour in two steps: it alone, and everybody.
func (r *Resolver) probe(hop netip.Addr, n netlink.Neigh, from sender) {
	p := r.probes
	at, err := linkAddr(n.HardwareAddr)
	if err != nil || !p.ask(hop, at, from) || !p.pause(aloneTime) {
		return
	}
	n, known, err := r.lookup(hop)
	switch {
	case err != nil, !known, n.State&nudUsable == 0, n.State&nudFixed != 0, ticks(n.Confirmed) < aloneTime+clockTick:
		return
	case hop.Is4() && ticks(n.Updated) < lockTime:
		// The kernel forgets where it was and asks everybody. What it has to send
		// meanwhile it keeps.
		if r.setFailed(hop) == nil {
			r.solicit(hop) // an error will be that of the next who asks
		}
	default:
		p.ask(hop, groupOf(hop), from)
	}
}

func ticks(n uint32) time.Duration { return time.Duration(n) * clockTick }

// ask sends one question about hop to a MAC address. It reports whether that
// could be sent; if not, from has no address to ask by, the uplink is down or its queue is
// full, and who asks next will try again.
func (p *prober) ask(hop netip.Addr, to wire.LinkAddr, from sender) bool {
	if hop.Is6() && !from.addr.Is6() {
		return false
	}
	return unix.Sendto(p.fd, solicitation(hop, to, from), unix.MSG_DONTWAIT, &unix.SockaddrLinklayer{Ifindex: p.ifindex}) == nil
}
