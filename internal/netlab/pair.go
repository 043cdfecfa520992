//go:build linux

package netlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/wire"
)

// Interface is the name of the cable's end on either host.
const Interface = "uplink"

// operationalTimeout bounds the wait for the cable to carry frames. The kernel
// activates a link asynchronously, mostly within milliseconds.
const operationalTimeout = 10 * time.Second

// Config shapes a pair. Its zero value works.
type Config struct {
	MTU  int  // of both ends, bytes of IP packet; 1500 if zero
	IPv6 bool // give both ends an IPv6 address, too
	// LinkLocal gives both ends a link-local address beside that, fe80::1 and fe80::2. Without
	// one a kernel solicits neighbours for packets only, not when a program asks for it.
	LinkLocal bool
	// Queues is how many queues the ends of a whole cable have, to receive and to send; one if zero.
	Queues uint32
	Cut    bool // the cable in two halves, which package impair joins
	// Routed is a cable in two halves, with a third host in the middle that forwards between
	// them: A and B are in different subnets.
	Routed bool
}

// The ends of a cut cable, in the middle: of the half that leads to A, and to B.
const (
	MiddleA = "to-a"
	MiddleB = "to-b"
)

// middleA is the MAC address of MiddleA, routerB the address of MiddleB if the cable is routed.
var (
	middleA = wire.LinkAddr{0x02, 0, 0, 0, 1, 0x0a}
	routerB = netip.MustParsePrefix("10.0.1.254/24")
)

// Pair is two hosts joined by a cable.
type Pair struct {
	A, B *Host
	// Middle is where the ends of a cut or routed cable are, MiddleA and MiddleB; nil if it is whole.
	// If it routes, it is the host of the interface MiddleA.
	Middle *Host

	closing sync.Once
	err     error
}

// NewPair makes two hosts and the cable between them, and returns when frames
// can cross it. It needs root. The caller closes the pair.
func NewPair(cfg Config) (*Pair, error) {
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	p := &Pair{
		A: &Host{
			Name: "a", Interface: Interface, NS: netns.None(),
			Addr:     netip.MustParsePrefix("10.0.0.1/24"),
			LinkAddr: wire.LinkAddr{0x02, 0, 0, 0, 0, 0x0a}, // locally administered
		},
		B: &Host{
			Name: "b", Interface: Interface, NS: netns.None(),
			Addr:     netip.MustParsePrefix("10.0.0.2/24"),
			LinkAddr: wire.LinkAddr{0x02, 0, 0, 0, 0, 0x0b},
		},
	}
	if cfg.IPv6 {
		p.A.Addr6 = netip.MustParsePrefix("fd00::1/64")
		p.B.Addr6 = netip.MustParsePrefix("fd00::2/64")
	}
	if cfg.LinkLocal {
		p.A.linkLocal = netip.MustParsePrefix("fe80::1/64")
		p.B.linkLocal = netip.MustParsePrefix("fe80::2/64")
	}
	if cfg.Cut || cfg.Routed {
		p.Middle = &Host{Name: "middle", NS: netns.None()}
	}
	if cfg.Routed {
		p.Middle.Interface, p.Middle.Addr, p.Middle.LinkAddr = MiddleA, netip.MustParsePrefix("10.0.0.254/24"), middleA
		p.B.Addr = netip.MustParsePrefix("10.0.1.2/24")
	}
	if err := p.build(cfg); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Pair) build(cfg Config) error {
	for _, h := range p.hosts() {
		if err := h.open(); err != nil {
			return fmt.Errorf("namespace of host %s: %w", h.Name, err)
		}
	}
	if err := p.plugAll(cfg); err != nil {
		return fmt.Errorf("veth pair: %w", err)
	}
	for _, h := range []*Host{p.A, p.B} {
		if err := h.Do(h.configure); err != nil {
			return fmt.Errorf("interface %s of host %s: %w", h.Interface, h.Name, err)
		}
	}
	if p.Middle != nil {
		configure := configureMiddle
		if cfg.Routed {
			configure = p.Middle.configureRouter
		}
		if err := p.Middle.Do(configure); err != nil {
			return fmt.Errorf("middle of the cable: %w", err)
		}
	}
	if cfg.Routed {
		err := errors.Join(p.A.Do(func() error { return addRoute(p.B.Addr, p.Middle.Addr) }), p.B.Do(func() error { return addRoute(p.A.Addr, routerB) }))
		if err != nil {
			return fmt.Errorf("routes: %w", err)
		}
	}
	// The transmit queue of an end that came up with carrier works at once: B, or the
	// ends in the middle. That of an end that came up before its peer does not: the
	// kernel activates it from a work item, and then changes the operational
	// state. (The state of the other ends follows up to a second later, because such reports
	// are rate limited. Nothing depends on it.)
	early := []*Host{p.A}
	if p.Middle != nil {
		early = []*Host{p.A, p.B}
	}
	for _, h := range early {
		if err := h.awaitOperational(); err != nil {
			return fmt.Errorf("interface %s of host %s: %w", Interface, h.Name, err)
		}
	}
	return nil
}

// hosts lists the hosts of the pair.
func (p *Pair) hosts() []*Host {
	if p.Middle == nil {
		return []*Host{p.A, p.B}
	}
	return []*Host{p.A, p.B, p.Middle}
}

// plugAll makes the cable, or both halves of it.
func (p *Pair) plugAll(cfg Config) error {
	b := end{p.B.Interface, p.B.LinkAddr}
	if p.Middle == nil {
		return p.A.Do(func() error { return plug(cfg.MTU, max(cfg.Queues, 1), end{p.A.Interface, p.A.LinkAddr}, b, p.B) })
	}
	return errors.Join(
		p.A.Do(func() error {
			return plug(cfg.MTU, 1, end{p.A.Interface, p.A.LinkAddr}, end{MiddleA, middleA}, p.Middle)
		}),
		p.Middle.Do(func() error {
			return plug(cfg.MTU, 1, end{MiddleB, wire.LinkAddr{0x02, 0, 0, 0, 1, 0x0b}}, b, p.B)
		}))
}

// end is one end of a veth pair.
type end struct {
	name string
	addr wire.LinkAddr
}

// plug makes a veth pair from the calling thread's namespace to a host.
func plug(mtu int, queues uint32, here, there end, host *Host) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = here.name
	attrs.MTU = mtu
	attrs.NumTxQueues, attrs.NumRxQueues = int(queues), int(queues)
	attrs.HardwareAddr = net.HardwareAddr(here.addr[:])
	cable := netlink.NewVeth(attrs)
	cable.PeerName = there.name
	cable.PeerNamespace = netlink.NsFd(host.NS)
	cable.PeerHardwareAddr = net.HardwareAddr(there.addr[:])
	return netlink.LinkAdd(cable)
}

// Close kills the processes started on the hosts and closes the namespaces; the kernel
// removes the rest. It may be called again.
func (p *Pair) Close() error {
	p.closing.Do(func() {
		for _, h := range p.hosts() {
			p.err = errors.Join(p.err, h.Close())
		}
	})
	return p.err
}

// open makes the host's namespace, and the thread that starts processes in it.
func (h *Host) open() error {
	home, err := enterHome()
	if err != nil {
		return err
	}
	h.NS, err = netns.New() // this thread is inside now
	if err := errors.Join(err, home.leave()); err != nil {
		return err
	}
	return h.openStarter()
}

// configure brings lo and the cable's end up. It runs inside the host.
func (h *Host) configure() error {
	if err := h.configureIPv6(); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	link, err := netlink.LinkByName(h.Interface)
	if err != nil {
		return err
	}
	for _, prefix := range []netip.Prefix{h.Addr, h.Addr6, h.linkLocal} {
		if !prefix.IsValid() {
			continue
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{
			IP:   prefix.Addr().AsSlice(),
			Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
		}}
		if prefix.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD // usable at once
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

// configureIPv6 turns IPv6 off, or leaves of it only what is asked for: no
// link-local address, no router solicitations, no duplicate address detection.
func (h *Host) configureIPv6() error {
	set := func(conf, knob, value string) error {
		err := os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", conf, knob), []byte(value), 0)
		if errors.Is(err, os.ErrNotExist) && !h.Addr6.IsValid() {
			return nil // a kernel without IPv6
		}
		return err
	}
	if !h.Addr6.IsValid() {
		return errors.Join(set("all", "disable_ipv6", "1"), set("default", "disable_ipv6", "1"), set(h.Interface, "disable_ipv6", "1"))
	}
	return errors.Join(
		set(h.Interface, "addr_gen_mode", "1"),
		set(h.Interface, "accept_ra", "0"),
		set(h.Interface, "dad_transmits", "0"))
}

// configureRouter makes the middle a host that forwards. It runs inside it.
func (h *Host) configureRouter() error {
	other := &Host{Interface: MiddleB, Addr: routerB}
	return errors.Join(h.configure(), other.configure(), os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
}

// addRoute adds the route to the subnet of an address, in the calling thread's namespace.
func addRoute(to, via netip.Prefix) error {
	dst := to.Masked()
	return netlink.RouteAdd(&netlink.Route{
		Dst: &net.IPNet{IP: dst.Addr().AsSlice(), Mask: net.CIDRMask(dst.Bits(), 32)},
		Gw:  via.Addr().AsSlice(),
	})
}

// configureMiddle brings both ends of a cut cable up. They have no addresses, so
// the kernel there sends nothing.
func configureMiddle() error {
	if err := disableIPv6(); err != nil {
		return err
	}
	for _, name := range []string{MiddleA, MiddleB} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkSetARPOff(link), netlink.LinkSetUp(link)); err != nil {
			return err
		}
	}
	return nil
}

// disableIPv6 turns IPv6 off in the calling thread's namespace, if the kernel has it.
func disableIPv6() error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// awaitOperational returns when the operational state (RFC 2863) of the cable's end is up.
func (h *Host) awaitOperational() error {
	ctx, cancel := context.WithTimeout(context.Background(), operationalTimeout)
	defer cancel()
	updates := make(chan netlink.LinkUpdate, 16)
	done := make(chan struct{})
	failed := make(chan error, 1)
	err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{
		Namespace:    &h.NS,
		ListExisting: true,
		ErrorCallback: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
	})
	if err != nil {
		close(done)
		return err
	}
	// Closing done ends the subscription, which then closes updates. After that it does
	// not hold the namespace any more.
	defer func() {
		close(done)
		for range updates {
		}
	}()
	for {
		select {
		case u, ok := <-updates:
			switch {
			case !ok:
				return fmt.Errorf("netlink subscription ended: %w", <-failed)
			case u.Attrs().Name == h.Interface && u.Attrs().OperState == netlink.OperUp:
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("not operational within %v", operationalTimeout)
		}
	}
}

// home is the namespace that a locked thread came from.
type home struct{ ns netns.NsHandle }

// enterHome locks the calling goroutine to its thread and remembers the
// thread's namespace.
func enterHome() (home, error) {
	runtime.LockOSThread()
	ns, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return home{}, fmt.Errorf("this thread's namespace: %w", err)
	}
	return home{ns}, nil
}

// leave brings the thread back. A thread that cannot get back stays locked, so
// that it ends with its goroutine and no other code runs in a wrong namespace.
func (h home) leave() error {
	err := unix.Setns(int(h.ns), unix.CLONE_NEWNET)
	h.ns.Close()
	if err != nil {
		return fmt.Errorf("return to this thread's namespace: %w", err)
	}
	runtime.UnlockOSThread()
	return nil
}
