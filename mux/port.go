package mux

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/internal/xsk"
)

// attachment is the port or queue of an endpoint, as far as it was made.
type attachment struct {
	owner   bpf.Owner // of its tags
	device  string    // the port's outer end, or the uplink
	port    bool      // the outer end is there, as far as is known
	slot    uint32    // of a port's socket, if hasSlot
	hasSlot bool
}

// takeAway undoes an attachment: a port's map entry, then the port. A port that
// cannot be deleted keeps its program, which goes on checking what its endpoint sends.
//
// The entries of sockets stay: they show whether the sockets exist. The entry of a port's
// endpoint stays as long, for the next process, until forgetPort. That of a queue is
// deleted here: the next endpoint of the queue has the same key.
func (m *Mux) takeAway(at *attachment) error {
	var err error
	if at.port {
		err = absentIsFine(m.progs.objs.Devices.Delete(at.owner.Port))
		if failed := m.deleter.delete(at.owner.Port, at.device); failed != nil {
			return errors.Join(err, failed)
		}
		at.port = false
	}
	if at.owner.Port != 0 || at.device == "" { // a port, or it never came to anything
		return err
	}
	return errors.Join(err, m.forgetEndpoint(at.owner))
}

// forgetPort deletes the entry of a port's endpoint, of which nothing is left, and frees
// its slot.
func (m *Mux) forgetPort(at *attachment) error {
	if at.owner.Port != 0 {
		if err := m.forgetEndpoint(at.owner); err != nil {
			return err // the next process looks for a socket in the slot
		}
	}
	if at.hasSlot {
		m.giveSlot(at.slot)
	}
	return nil
}

// openPort makes a port and a socket on it, for l. The caller owns the socket,
// also after an error, and takes away what l.at says.
//
// The outer end comes up only when programs and socket are in place, so no frame
// passes unchecked and none is lost.
func (m *Mux) openPort(l *Lease, params xsk.Params) (sock *os.File, err error) {
	at := l.at
	if at.slot, err = m.takeSlot(); err != nil {
		return nil, err
	}
	at.hasSlot = true
	err = route.WithinNew(func(inner netns.NsHandle) error {
		if err := m.openInner(l, inner); err != nil {
			return err
		}
		// The device must be up to bind to it; the outer end is not yet, so the link has no carrier.
		params.Ifindex = bpf.FirstIfindex + int(at.slot)
		if sock, err = xsk.Create(params, l.memory); err != nil {
			return err
		}
		if err := m.progs.objs.PortSockets.Put(at.slot, uint32(sock.Fd())); err != nil {
			return fmt.Errorf("socket into the map of ports: %w", err)
		}
		if err := m.fills.add(l, sock); err != nil {
			return err
		}
		return route.Within(m.ns, func() error { return m.openOuter(l, sock) })
	})
	if err != nil {
		err = fmt.Errorf("port: %w", err)
	}
	return sock, err
}

// openInner makes the pair and readies the inner end, in the calling thread's
// namespace.
func (m *Mux) openInner(l *Lease, inner netns.NsHandle) error {
	if err := disableIPv6("default"); err != nil {
		return err
	}
	sock, err := openRoute(inner)
	if err != nil {
		return err
	}
	defer sock.Close() // it would keep the namespace alive
	if err := m.addPair(l, sock); err != nil {
		return err
	}
	ifindex := bpf.FirstIfindex + int(l.at.slot)
	if err := setXDP(sock, ifindex, m.progs.deliver(l.terms).FD(), m.progs.attachFlag()); err != nil {
		return fmt.Errorf("attach to the inner end: %w", err)
	}
	return nil
}

// addPair makes the pair, which is named after the endpoint's number.
func (m *Mux) addPair(l *Lease, inner *nl.SocketHandle) error {
	for {
		id, err := m.newID()
		if err != nil {
			return err
		}
		name := fmt.Sprintf("unet%d", id)
		outer, err := addVeth(inner, bpf.FirstIfindex+int(l.at.slot), name, m.ns)
		if errors.Is(err, unix.EEXIST) {
			continue // another mux of this namespace has one of that name
		}
		if err != nil {
			return fmt.Errorf("veth pair: %w", err)
		}
		l.id = id
		l.at.owner.Port, l.at.device, l.at.port = uint32(outer), name, true
		if l.terms.Infrastructure {
			l.at.owner.Queue = bpf.Infrastructure
		}
		if !l.terms.Trusted {
			l.at.owner.Room = uint16(xsk.RxRoom(l.frameSize))
		}
		return nil
	}
}

// openOuter readies the outer end, and enters the endpoint before that is up. The calling
// thread is in the uplink's namespace, to which ifindexes belong.
func (m *Mux) openOuter(l *Lease, sock *os.File) error {
	port, name := l.at.owner.Port, l.at.device
	if err := errors.Join(disableIPv6(name), distrust(name)); err != nil {
		return err
	}
	flags := m.progs.attachFlag() | unix.XDP_FLAGS_UPDATE_IF_NOEXIST
	if err := setXDP(m.rt, int(port), m.progs.objs.UnetPort.FD(), flags); err != nil {
		return fmt.Errorf("attach to the outer end: %w", err)
	}
	if err := m.progs.objs.Devices.Put(port, port); err != nil {
		return fmt.Errorf("port into the device map: %w", err)
	}
	if err := m.enterEndpoint(l, sock); err != nil {
		return err
	}
	outer := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: int(port)}}
	if err := m.nl.LinkSetUp(outer); err != nil {
		return fmt.Errorf("outer end: %w", err)
	}
	return nil
}

// openQueue makes a socket on a queue of the uplink. The caller owns it, also
// after an error.
func (m *Mux) openQueue(l *Lease, queue uint32, params xsk.Params) (sock *os.File, err error) {
	if err := m.holdQueue(l, queue); err != nil {
		return nil, err
	}
	if l.id, err = m.newID(); err != nil {
		return nil, err
	}
	params.Ifindex, params.Queue = m.up.ifindex, queue
	err = route.Within(m.ns, func() (err error) {
		sock, err = xsk.Create(params, l.memory)
		return err
	})
	if errors.Is(err, xsk.ErrQueueBusy) {
		err = fmt.Errorf("%w: queue %d of %s: %w", ErrQueueBusy, queue, m.up.name, err)
	}
	if err != nil {
		return sock, err
	}
	l.at.owner.Queue, l.at.device = uint16(queue), m.up.name // the kernel has 16 bits for it
	m.mu.Lock()
	m.queues[queue] = true
	m.mu.Unlock()
	if err := m.progs.objs.Sockets.Put(queue, uint32(sock.Fd())); err != nil {
		return sock, fmt.Errorf("socket into the queue map: %w", err)
	}
	return sock, m.enterEndpoint(l, sock)
}

// holdQueue reserves a queue of the uplink for a lease. Tags lead to whatever socket is
// bound there, so there is one lease a queue until its close has ended.
func (m *Mux) holdQueue(l *Lease, queue uint32) error {
	if n := m.progs.objs.Sockets.MaxEntries(); queue >= n {
		return fmt.Errorf("%w: queue %d of %s, which has %d", ErrNoQueue, queue, m.up.name, n)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, taken := m.queues[queue]; taken {
		return fmt.Errorf("%w: queue %d of %s", ErrQueueBusy, queue, m.up.name)
	}
	m.queues[queue] = false
	l.queue, l.holdsQueue = queue, true
	return nil
}

// enterEndpoint enters an endpoint that has its socket into the table.
func (m *Mux) enterEndpoint(l *Lease, sock *os.File) (err error) {
	if l.cookie, err = xsk.Cookie(sock); err != nil {
		return err
	}
	return m.putEndpoint(l)
}

// absentIsFine: the kernel deletes map entries of sockets and devices together with these.
func absentIsFine(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// holdPrograms attaches the programs of ports to idle devices, the lo of namespaces of their
// own. When the first device gets a program, and when the last one loses it, the kernel
// patches its call and waits for an RCU grace period (bpf_dispatcher_change_prog): 10 to
// 15 ms for each program, at every endpoint that comes or goes alone.
func (m *Mux) holdPrograms() error {
	for _, prog := range []*ebpf.Program{m.progs.objs.UnetPort, m.progs.deliver(Terms{Trusted: true}), m.progs.deliver(Terms{})} {
		idle, err := idleWith(prog)
		if err != nil {
			return fmt.Errorf("idle device: %w", err)
		}
		m.handles.push(func() error { return idle.Close() })
	}
	return nil
}

// idleWith makes a namespace whose lo has a program. The handle is all that holds it.
func idleWith(prog *ebpf.Program) (idle netns.NsHandle, err error) {
	err = route.WithinNew(func(inner netns.NsHandle) error {
		sock, err := openRoute(inner)
		if err != nil {
			return err
		}
		defer sock.Close()
		const lo = 1
		if err := setXDP(sock, lo, prog.FD(), unix.XDP_FLAGS_SKB_MODE); err != nil {
			return fmt.Errorf("attach: %w", err)
		}
		fd, err := unix.FcntlInt(uintptr(inner), unix.F_DUPFD_CLOEXEC, 0)
		idle = netns.NsHandle(fd)
		return err
	})
	return idle, err
}

// lookForPorts looks which endpoints have lost their port.
func (m *Mux) lookForPorts() error {
	leases := m.all() // before the ports are listed: those of later ones may not be in the list
	links, err := route.Dump(m.nl.LinkList)
	if err != nil {
		return fmt.Errorf("list ports: %w", err)
	}
	there := map[int]bool{}
	for _, l := range links {
		there[l.Attrs().Index] = true
	}
	m.portsGone(leases, func(port int) bool { return !there[port] })
	return nil
}

// portsGone ends the endpoints whose ports are gone, of which is reports the ifindex.
func (m *Mux) portsGone(leases []*Lease, is func(port int) bool) {
	for _, l := range leases {
		if l.at.owner.Port != 0 && is(int(l.at.owner.Port)) {
			m.portGone(l)
		}
	}
}

// portGone ends an endpoint whose port is gone. If its socket exists somebody has deleted
// the port. Otherwise the kernel has, because the socket was closed: that ends an endpoint
// that waits to be presented; any other its owner closes.
func (m *Mux) portGone(l *Lease) {
	m.mu.Lock()
	o, leased := l.owner, l.leased
	held := false
	var err error
	if !l.closed { // after that, its slot is asked for elsewhere
		held, err = socketThere(m.progs.objs.PortSockets, l.at.slot, m.unbound)
	}
	m.mu.Unlock()
	switch {
	case err != nil:
		m.log.Error("cannot tell why a port is gone", "endpoint", l.id, "error", err)
		return
	case !leased && held:
		m.reclaim(l, "its port was deleted, not by unetd (ip link del?)")
		return
	case !leased:
		m.reclaim(l, "its process has died")
		return
	case !held:
		return
	}
	err = l.close(fmt.Errorf("%w: %s; open another endpoint", ErrPortDeleted, l.at.device))
	m.log.Warn("the port of an endpoint was deleted, not by unetd (ip link del?): the endpoint has ended", "port", l.at.device,
		"endpoint", l.id, "uid", o.UID, "pid", o.PID, "error", err)
}

// netnsCookie is the kernel's lasting number of the calling thread's namespace.
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return cookie, os.NewSyscallError("getsockopt SO_NETNS_COOKIE", err)
}

// disableIPv6 keeps the kernel from sending router solicitations and listener
// reports on an interface of the calling thread's namespace; conf may also be
// "default", for interfaces to come.
func disableIPv6(conf string) error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+conf+"/disable_ipv6", []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // a kernel without IPv6
	}
	return err
}

// distrust makes the kernel refuse IPv4 from an outer end, in case somebody takes the port
// program off (ip link set dev PORT xdp off): the application could then reach the host.
func distrust(iface string) error {
	return setIPv4(iface, map[string]string{"rp_filter": "1", "drop_unicast_in_l2_multicast": "1", "forwarding": "0"})
}

// setIPv4 sets an interface's settings in the calling thread's namespace
// (Documentation/networking/ip-sysctl.rst).
func setIPv4(iface string, settings map[string]string) error {
	for name, value := range settings {
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+iface+"/"+name, []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}
