//go:build linux

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
	"github.com/unet-go/unet/mux/internal/attach"
	"github.com/unet-go/unet/mux/internal/nic"
	"github.com/unet-go/unet/mux/internal/tables"
)

// attachment is the port or queue of an endpoint, possibly incomplete.
type attachment struct {
	owner   bpf.Owner // value of its tags in the kernel's table
	device  string    // name of the port's outer end, or of the uplink
	port    bool      // the outer end was made, and not deleted by the mux
	slot    uint32    // of a port's socket, if hasSlot
	hasSlot bool
}

// closeAttachment undoes an attachment: it deletes a port's entry in the device map, then the port. A
// port that cannot be deleted keeps its program, which still checks what the endpoint sends.
//
// The entry of the socket in its map stays: it shows whether the socket exists. Until the
// socket is closed, the entry of a port's endpoint stays too, for the next process
// (deleteEndpoint). The entry of an endpoint on a queue is deleted here: the next endpoint of the
// queue has the same key.
func (m *Mux) closeAttachment(at *attachment) error {
	var err error
	if at.port {
		err = tables.AbsentIsFine(m.progs.Maps.Devices.Delete(at.owner.Port))
		if failed := m.deleter.Delete(at.owner.Port, at.device); failed != nil {
			return errors.Join(err, failed)
		}
		at.port = false
	}
	if at.owner.Port != 0 || at.device == "" { // a port, or nothing was made
		return err
	}
	return errors.Join(err, m.progs.Maps.DeleteEndpoint(at.owner))
}

// deleteEndpoint deletes the entry of a port's endpoint and frees its slot. The socket is closed, or
// will be: an opening that has failed closes it afterwards.
func (m *Mux) deleteEndpoint(at *attachment) error {
	if at.owner.Port != 0 {
		if err := m.progs.Maps.DeleteEndpoint(at.owner); err != nil {
			return err // the slot stays taken: the next process looks for a socket there
		}
	}
	if at.hasSlot {
		m.slots.free(at.slot)
	}
	return nil
}

// openPort makes a port and a socket on it, for l. The caller owns the socket, also after an
// error, and undoes the attachment l.at after an error.
//
// The outer end is set up only when programs and socket are in place, so no frame passes
// unchecked and none is lost.
func (l *Lease) openPort(params xsk.Params) (sock *os.File, err error) {
	m := l.m
	at := l.at
	if at.slot, err = m.slots.take(); err != nil {
		return nil, err
	}
	at.hasSlot = true
	err = route.WithinNew(func(inner netns.NsHandle) error {
		if err := l.openInner(inner); err != nil {
			return err
		}
		// bind needs a device that is up. The outer end is still down, so the link has no carrier.
		params.Ifindex = bpf.FirstIfindex + int(at.slot)
		if sock, err = xsk.Create(params, l.memory); err != nil {
			return err
		}
		if err := m.progs.Maps.PortSockets.Put(at.slot, uint32(sock.Fd())); err != nil {
			return fmt.Errorf("socket into the map of ports: %w", err)
		}
		if err := m.fills.add(l, sock); err != nil {
			return err
		}
		return route.Within(m.ns, func() error { return l.openOuter(sock) })
	})
	if err != nil {
		err = fmt.Errorf("port: %w", err)
	}
	return sock, err
}

// openInner makes the veth pair, and attaches the program to the inner end, which is in the
// calling thread's namespace.
func (l *Lease) openInner(inner netns.NsHandle) error {
	m := l.m
	if err := nic.DisableIPv6("default"); err != nil {
		return err
	}
	sock, err := nic.OpenRoute(inner)
	if err != nil {
		return err
	}
	defer sock.Close() // an open socket keeps the namespace
	if err := l.addPair(sock); err != nil {
		return err
	}
	ifindex := bpf.FirstIfindex + int(l.at.slot)
	if err := nic.SetXDP(sock, ifindex, m.progs.Loaded[attach.DeliverProgram(m.progs.Mode, l.terms.Trusted)].FD(), m.progs.AttachFlag()); err != nil {
		return fmt.Errorf("attach to the inner end: %w", err)
	}
	return nil
}

// addPair makes the veth pair. The name of the outer end has the number of the endpoint.
func (l *Lease) addPair(inner *nl.SocketHandle) error {
	m := l.m
	for {
		id, err := m.newID()
		if err != nil {
			return err
		}
		name := fmt.Sprintf("unet%d", id)
		outer, err := nic.AddVeth(inner, bpf.FirstIfindex+int(l.at.slot), name, bpf.KernelLink, m.ns) // by KernelLink the programs drop what the kernel itself sends there
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

// openOuter attaches the program to the outer end, puts the endpoint into the table, and sets the outer end
// up. The calling thread is in the uplink's namespace.
func (l *Lease) openOuter(sock *os.File) error {
	m := l.m
	port, name := l.at.owner.Port, l.at.device
	if err := errors.Join(nic.DisableIPv6(name), nic.Distrust(name)); err != nil {
		return err
	}
	flags := m.progs.AttachFlag() | unix.XDP_FLAGS_UPDATE_IF_NOEXIST
	if err := nic.SetXDP(m.rt, int(port), m.progs.Loaded[bpf.MuxProgUnetPort].FD(), flags); err != nil {
		return fmt.Errorf("attach to the outer end: %w", err)
	}
	if err := m.rates.set(l, l.terms.Rates); err != nil {
		return err
	}
	if err := m.progs.Maps.Devices.Put(port, port); err != nil {
		return fmt.Errorf("port into the device map: %w", err)
	}
	if err := l.addEndpoint(sock); err != nil {
		return err
	}
	outer := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: int(port)}}
	if err := m.nl.LinkSetUp(outer); err != nil {
		return fmt.Errorf("outer end: %w", err)
	}
	return nil
}

// openQueue makes a socket on a queue of the uplink. The caller owns it, also after an error.
func (l *Lease) openQueue(queue uint32, params xsk.Params) (sock *os.File, err error) {
	m := l.m
	if err := l.holdQueue(queue); err != nil {
		return nil, err
	}
	if l.id, err = m.newID(); err != nil {
		return nil, err
	}
	params.Ifindex, params.Queue = m.up.Index, queue
	err = route.Within(m.ns, func() (err error) {
		if sock, err = xsk.New(params, l.memory); err != nil {
			return err
		}
		l.bound, err = m.bindQueue(sock, params, l.bound, l.terms.Trusted)
		return err
	})
	if errors.Is(err, xsk.ErrQueueBusy) {
		err = fmt.Errorf("%w: queue %d of %s: %w", ErrQueueBusy, queue, m.up.Name, err)
	}
	if err != nil {
		return sock, err
	}
	l.at.owner.Queue, l.at.device = uint16(queue), m.up.Name // the kernel numbers queues in 16 bits
	m.mu.Lock()
	m.queues[queue] = true
	m.mu.Unlock()
	if err := m.progs.Maps.Sockets.Put(queue, uint32(sock.Fd())); err != nil {
		return sock, fmt.Errorf("socket into the queue map: %w", err)
	}
	return sock, l.addEndpoint(sock)
}

// holdQueue reserves a queue of the uplink for a lease, until the lease's close has ended. The
// programs redirect to the one socket that the map has for the queue, so a queue has one lease.
func (l *Lease) holdQueue(queue uint32) error {
	m := l.m
	if n := m.progs.Maps.Sockets.MaxEntries(); queue >= n {
		return fmt.Errorf("%w: queue %d of %s, which has %d", ErrNoQueue, queue, m.up.Name, n)
	}
	if err := m.checkQueue(queue); err != nil {
		return err
	}
	m.mu.Lock()
	_, taken := m.queues[queue]
	if !taken {
		m.queues[queue] = false
	}
	m.mu.Unlock()
	if taken {
		return fmt.Errorf("%w: queue %d of %s", ErrQueueBusy, queue, m.up.Name)
	}
	if err := m.queueing.hold(); err != nil {
		m.mu.Lock()
		delete(m.queues, queue)
		m.mu.Unlock()
		return err
	}
	l.queue, l.holdsQueue = queue, true
	return nil
}

// addEndpoint puts an endpoint with its socket into the table.
func (l *Lease) addEndpoint(sock *os.File) (err error) {
	if l.cookie, err = xsk.Cookie(sock); err != nil {
		return err
	}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	return l.putEndpoint()
}

// holdPrograms attaches each program of ports to an idle device, the lo of a namespace made for
// it. When a program is attached to its first device, and detached from its last one, the
// kernel patches the program's call and waits for an RCU grace period
// (bpf_dispatcher_change_prog). Without the idle devices the first endpoint would take 10 to
// 15 ms longer for each program, and so would the end of the last one.
func (m *Mux) holdPrograms() error {
	for _, name := range attach.PortPrograms(m.progs.Mode) {
		idle, err := idleWith(m.progs.Loaded[name])
		if err != nil {
			return fmt.Errorf("idle device: %w", err)
		}
		m.handles.push(func() error { return idle.Close() })
	}
	return nil
}

// idleWith makes a namespace and attaches a program to its lo. The namespace exists until the
// handle is closed.
func idleWith(prog *ebpf.Program) (idle netns.NsHandle, err error) {
	err = route.WithinNew(func(inner netns.NsHandle) error {
		sock, err := nic.OpenRoute(inner)
		if err != nil {
			return err
		}
		defer sock.Close()
		if err := nic.SetXDP(sock, attach.LoIndex, prog.FD(), unix.XDP_FLAGS_SKB_MODE); err != nil {
			return fmt.Errorf("attach: %w", err)
		}
		fd, err := unix.FcntlInt(uintptr(inner), unix.F_DUPFD_CLOEXEC, 0)
		idle = netns.NsHandle(fd)
		return err
	})
	return idle, err
}

// lookForPorts ends the endpoints whose ports do not exist any more.
func (m *Mux) lookForPorts() error {
	leases := m.all() // before the devices are listed: the ports of later leases may not be in the list
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

// portsGone ends the endpoints whose ports are gone; is reports whether an ifindex is that of
// a deleted device.
func (m *Mux) portsGone(leases []*Lease, is func(port int) bool) {
	for _, l := range leases {
		if l.at.owner.Port != 0 && is(int(l.at.owner.Port)) {
			l.portGone()
		}
	}
}

// portGone handles an endpoint whose port is gone. If its socket exists, another program has
// deleted the port, and portGone ends the endpoint. Otherwise the kernel has deleted the port,
// because the socket was closed. Then portGone ends the endpoint only if it was not presented
// yet; otherwise the holder of the lease closes it.
func (l *Lease) portGone() {
	m := l.m
	m.mu.Lock()
	o, leased := l.owner, l.leased
	there := false // the socket
	var err error
	if !l.closed { // after that, gone() polls the slot
		there, err = tables.SocketThere(m.progs.Maps.PortSockets, l.at.slot, m.unbound)
	}
	m.mu.Unlock()
	switch {
	case err != nil:
		m.log.Error("cannot find out why a port is gone", "endpoint", l.id, "error", err)
		return
	case !leased && there:
		l.reclaim("its port was deleted, not by unetd (ip link del?)")
		return
	case !leased:
		l.reclaim("its process has died")
		return
	case !there:
		return
	}
	err = l.close(fmt.Errorf("%w: %s; open another endpoint", ErrPortDeleted, l.at.device))
	m.log.Warn("the port of an endpoint was deleted, not by unetd (ip link del?): the endpoint is ended", "port", l.at.device,
		"endpoint", l.id, "uid", o.UID, "pid", o.PID, "error", err)
}
