package ports

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/proto/tcp"
)

// Local is one address of a host, with the ports that the host has there. A link-local address of a host with several uplinks has the
// name of its uplink as zone.
type Local struct {
	Addr     netip.Addr
	UDP, TCP *Ports

	gone  bool // the interface does not have it now; Locals.mu guards it
	times int  // that Add was called for it; Locals.mu guards it
}

// Locals are the addresses of a host, the preferred ones first, but those that came later at the end. A shared address
// can come and go: Add and Remove. The host's listeners and sockets at all addresses follow.
type Locals struct {
	owned bool

	mu sync.Mutex
	// +checklocks:mu
	all []*Local
	// +checklocks:mu
	wildcards map[*wildcard]struct{}
}

// NewLocals makes the addresses of a host; owned: it owns them.
func NewLocals(lease endpoint.Lease, owned bool, addrs ...netip.Addr) *Locals {
	all := &Locals{owned: owned, wildcards: make(map[*wildcard]struct{})}
	all.Grant(lease, addrs...)
	return all
}

// Grant adds the first addresses of a lease, before there is a socket. Those that are there already are left out.
func (all *Locals) Grant(lease endpoint.Lease, addrs ...netip.Addr) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, a := range addrs {
		if all.at(a) == nil {
			l := all.local(lease, a)
			l.times = 1
			all.all = append(all.all, l)
		}
	}
}

func (all *Locals) local(lease endpoint.Lease, a netip.Addr) *Local {
	none := netip.AddrPortFrom(a.WithZone(""), 0)
	return &Local{Addr: a, UDP: newPorts(lease, endpoint.UDPTag(none), all.owned), TCP: newPorts(lease, endpoint.TCPTag(none), all.owned)}
}

// Add adds an address that the interface of a lease has. Listeners at all addresses of its family get their port
// there, unless the policy denies it or another endpoint has it, without Add waiting for that. A host that
// owns its addresses gets no others.
func (all *Locals) Add(lease endpoint.Lease, a netip.Addr) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.owned {
		return
	}
	l := all.at(a)
	if l == nil {
		l = all.local(lease, a)
		all.all = append(all.all, l)
	}
	l.gone = false
	l.times++
	for w := range all.wildcards {
		go w.follow(l)
	}
}

// Suspend notes that the interface has lost an address. The ports there stay the host's; no socket gets one.
func (all *Locals) Suspend(a netip.Addr) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if l := all.at(a); l != nil {
		l.gone = true
	}
}

// Remove removes an address that the interface has lost, and gives back the ports there that no socket
// of this address uses.
func (all *Locals) Remove(a netip.Addr) {
	all.mu.Lock()
	l := all.at(a)
	all.all = slices.DeleteFunc(all.all, func(other *Local) bool { return other == l })
	var following []*wildcard
	for w := range all.wildcards {
		following = append(following, w)
	}
	all.mu.Unlock()
	if l == nil {
		return
	}
	for _, w := range following {
		w.leave(l)
	}
	l.UDP.giveUp()
	l.TCP.giveUp()
}

// List is all addresses that the host has now.
func (all *Locals) List() []*Local {
	all.mu.Lock()
	defer all.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(all.all), func(l *Local) bool { return l.gone })
}

// At is the address a of the host, perhaps a suspended one; nil: it is not one of them.
func (all *Locals) At(a netip.Addr) *Local {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.at(a)
}

// here is how often l was added, if it is an address of the host; else 0.
func (all *Locals) here(l *Local) int {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.at(l.Addr) != l {
		return 0
	}
	return l.times
}

// +checklocks:all.mu
func (all *Locals) at(a netip.Addr) *Local {
	if i := slices.IndexFunc(all.all, func(l *Local) bool { return l.Addr == a }); i >= 0 {
		return all.all[i]
	}
	return nil
}

// Choose and Release make the TCP ports of all addresses a [stack.TCPPorts].
func (all *Locals) Choose(a netip.Addr, pick func([]tcp.PortBlock) uint16) uint16 {
	if l := all.At(a); l != nil {
		return l.TCP.Choose(pick)
	}
	return 0
}

func (all *Locals) Release(a netip.Addr, port uint16) {
	if l := all.At(a); l != nil {
		l.TCP.Release(port)
	}
}

// UDP and TCP select ports for [Locals.Listen].
func UDP(l *Local) *Ports { return l.UDP }
func TCP(l *Local) *Ports { return l.TCP }

// Family is the part of the addresses that a network is for: those of "tcp4" are IPv4, those of
// "tcp6" IPv6, those of "tcp" both.
func (all *Locals) Family(network string) []*Local {
	return slices.DeleteFunc(all.List(), func(l *Local) bool { return !InFamily(network, l.Addr) })
}

// InFamily reports whether a network, such as "tcp4", has addresses of the family of a.
func InFamily(network string, a netip.Addr) bool {
	switch network[len(network)-1] {
	case '4':
		return a.Is4()
	case '6':
		return a.Is6()
	}
	return true
}

// errLoopback is the reason why no socket of a host can have or reach a loopback address.
var errLoopback = errors.New("loopback addresses are the kernel's: use package net, or an address of the interface")

// ForBind is the address of the host that a socket asks for. The error for another one is EADDRNOTAVAIL.
func (all *Locals) ForBind(network string, a netip.Addr) (*Local, error) {
	a = a.Unmap()
	some := all.Family(network)
	switch i := slices.IndexFunc(some, func(l *Local) bool { return l.Addr == a || l.Addr == a.WithZone("") }); {
	case i >= 0:
		return some[i], nil
	case a.IsLoopback():
		return nil, fmt.Errorf("%w: %w", syscall.EADDRNOTAVAIL, errLoopback)
	}
	return nil, syscall.EADDRNOTAVAIL
}

// ForDial returns the local address of a socket that is connected to remote and asks for a, which
// is one of the host's; nil if a is not valid or unspecified: any will do. Errors: EADDRNOTAVAIL if a is
// not the host's, EINVAL for addresses of two families, ENETUNREACH if the host has none of remote's,
// ECONNREFUSED for loopback addresses and the unspecified address, which package net dials as loopback.
func (all *Locals) ForDial(a, remote netip.Addr) (*Local, error) {
	a, remote = a.Unmap(), remote.Unmap()
	if remote.IsLoopback() || remote.IsUnspecified() || !remote.IsValid() {
		return nil, fmt.Errorf("%w: %w", syscall.ECONNREFUSED, errLoopback)
	}
	if !a.IsValid() || a.IsUnspecified() {
		family := "6"
		if remote.Is4() {
			family = "4"
		}
		if len(all.Family(family)) == 0 {
			return nil, fmt.Errorf("%w: the host has no IPv%s address", syscall.ENETUNREACH, family)
		}
		return nil, nil
	}
	l, err := all.ForBind("any", a)
	if err == nil && a.Is4() != remote.Is4() {
		return nil, syscall.EINVAL
	}
	return l, err
}

// Binding is what a listener or an unconnected socket is bound to.
type Binding struct {
	Addr  netip.Addr // of the host, or unspecified: for all that the host has, now and later
	Shown netip.Addr // Addr, or the only address that the host has now, which a peer can be told
	Port  uint16
}

// Listen makes the caller a user of a port at the addresses at which a listener or an unconnected socket
// of a network receives that asks for an address: at that one, or, if it is not valid or unspecified, of
// either family, at all addresses of the network. Port 0 stands for one that is free at all of them.
// Addresses at which the host may have no such port are left out if there is another one. The
// caller uses the port until it calls release. The error for an address that is not the host's is EADDRNOTAVAIL.
func (all *Locals) Listen(ctx context.Context, of func(*Local) *Ports, network string, asked netip.AddrPort) (b Binding, release func(), err error) {
	a := asked.Addr()
	if a.IsValid() && !a.IsUnspecified() {
		l, err := all.ForBind(network, a)
		if err != nil {
			return b, nil, err
		}
		port, release, err := of(l).Get(ctx, asked.Port(), false)
		return Binding{l.Addr, l.Addr, port}, release, err
	}
	some := all.Family(network)
	b.Addr = netip.IPv6Unspecified()
	if network[len(network)-1] == '4' {
		b.Addr = netip.IPv4Unspecified()
	}
	b.Shown = netip.IPv6Unspecified()
	switch {
	case len(some) == 1:
		b.Shown = some[0].Addr
		if all.owned {
			b.Addr = b.Shown
		}
	case len(some) == 0 && all.owned:
		return b, nil, fmt.Errorf("%w: the host has no address for %s", syscall.EADDRNOTAVAIL, network)
	}
	w := &wildcard{all: all, of: of, network: network, port: asked.Port(), held: make(map[*Local]func())}
	if err := w.get(ctx, some); err != nil {
		return b, nil, err
	}
	if w.port == 0 && !all.owned { // there is no address: one that is likely to be free where one comes
		w.port = uint16(firstDynamic + rand.IntN(math.MaxUint16+1-firstDynamic))
	}
	b.Port = w.port
	all.mu.Lock()
	all.wildcards[w] = struct{}{}
	for _, l := range all.all { // what has been added, or is back, meanwhile
		go w.follow(l)
	}
	all.mu.Unlock()
	return b, func() {
		all.mu.Lock()
		delete(all.wildcards, w)
		all.mu.Unlock()
		w.close()
	}, nil
}

// wildcard is the port of a listener at all addresses of a network.
type wildcard struct {
	all     *Locals
	of      func(*Local) *Ports
	network string
	port    uint16

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	held map[*Local]func() // where it has the port, and how that is released; nil: it is being claimed
}

// firstDynamic is the first of the dynamic ports (RFC 6335, section 6).
const firstDynamic = 49152

// samePortTries is how many free ports are tried until one is free at all addresses.
const samePortTries = 16

// get gets the port at several addresses.
func (w *wildcard) get(ctx context.Context, some []*Local) (err error) {
	number := w.port
	for range samePortTries {
		if w.port, err = w.getOnce(ctx, some, number); number != 0 || !errors.Is(err, endpoint.ErrTagHeld) && !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return err
}

func (w *wildcard) getOnce(ctx context.Context, some []*Local, port uint16) (uint16, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var denied error
	for _, l := range some {
		got, release, err := w.of(l).Get(ctx, port, false)
		switch {
		case err == nil:
			port, w.held[l] = got, release
		case errors.Is(err, endpoint.ErrNoAddr): // it has just gone
		case !errors.Is(err, endpoint.ErrTagDenied):
			w.releaseAll()
			return 0, err
		case denied == nil:
			denied = err
		}
	}
	if len(w.held) == 0 {
		return port, denied
	}
	return port, nil
}

// follow gets the port at one more address.
func (w *wildcard) follow(l *Local) {
	w.mu.Lock()
	_, has := w.held[l]
	if has || w.closed || !InFamily(w.network, l.Addr) {
		w.mu.Unlock()
		return
	}
	w.held[l] = nil
	w.mu.Unlock()
	var release func()
	err := error(endpoint.ErrNoAddr)
	for seen := 0; errors.Is(err, endpoint.ErrNoAddr); {
		times := w.all.here(l)
		if times == 0 || times == seen { // it has gone, and has not come again meanwhile
			break
		}
		seen = times
		_, release, err = w.of(l).Get(context.Background(), w.port, false) // the end of the lease ends it
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, has = w.held[l]
	switch {
	case err != nil:
		delete(w.held, l)
	case has:
		w.held[l] = release
	default: // the address or the listener has gone
		release()
	}
}

// leave releases the port at one address.
func (w *wildcard) leave(l *Local) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if release := w.held[l]; release != nil {
		release()
	}
	delete(w.held, l)
}

func (w *wildcard) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.releaseAll()
}

// +checklocks:w.mu
func (w *wildcard) releaseAll() {
	for _, release := range w.held {
		if release != nil {
			release()
		}
	}
	clear(w.held)
}
