package mux

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/internal/xsk"
)

// portMTU is the largest a veth can have. A super-frame of the kernel's is up
// to 64 KiB, and a device with a smaller MTU would lose it silently. What may
// leave by the uplink is the port program's concern.
const portMTU = 65535

// innerName is the inner end's name in its own namespace.
const innerName = "port"

// attachment is how an endpoint is joined to the mux: by a port or a queue.
type attachment struct {
	owner bpf.MuxUnetOwner // of its tags
	undo  undoStack        // takes out the map entries
	port  netlink.Link     // outer end of a port; nil if there is none, or none any more
	links []link.Link      // programs on a port's two ends
}

// takeAway undoes an attachment: map entries, then the port, and its programs
// when there is no port any more. An outer end without its program would hand
// whatever the endpoint sends to the kernel, so if the port cannot be deleted
// its programs stay, and the mux remembers it.
func (m *Mux) takeAway(at *attachment) error {
	err := at.undo.run()
	if at.port != nil {
		if failed := m.linkDel(at.port); failed != nil && !errors.Is(failed, unix.ENODEV) && !errors.Is(failed, unix.EINVAL) {
			m.mu.Lock()
			m.stuck = append(m.stuck, at)
			m.mu.Unlock()
			return errors.Join(err, fmt.Errorf("delete port %s: %w", at.port.Attrs().Name, failed))
		}
		at.port = nil // the kernel may have deleted it before
	}
	return errors.Join(err, at.closeLinks())
}

// closeLinks lets go of the port's programs.
func (at *attachment) closeLinks() error {
	var err error
	for _, l := range at.links {
		err = errors.Join(err, l.Close())
	}
	at.links = nil
	return err
}

// openPort makes a port and a socket on it. The caller owns the socket. After
// an error there is no attachment.
//
// Both ends come up only when their programs are on and the socket is in place,
// so no frame passes unchecked and none is lost.
func (m *Mux) openPort(params xsk.Params, segment *os.File) (id uint64, at *attachment, sock *os.File, err error) {
	at = &attachment{}
	defer func() {
		if err == nil {
			return
		}
		if sock != nil {
			err = errors.Join(err, sock.Close())
			sock = nil
		}
		err = errors.Join(err, m.takeAway(at))
		at = nil
	}()
	err = withinNew(func(inner netns.NsHandle) error {
		outerName, ifindex, err := m.addVeth(at, inner, &id)
		if err != nil {
			return err
		}
		if params.Ifindex, err = m.openInner(at); err != nil {
			return err
		}
		// The device must be up to bind to it; the outer end is not yet, so the link has no carrier.
		deliver, err := m.progs.loadDeliver()
		if err != nil {
			return fmt.Errorf("deliver program: %w", err)
		}
		defer deliver.Close() // the link holds the program, and the program its map
		if err := m.attachDeliver(at, deliver.UnetDeliver, params.Ifindex); err != nil {
			return err
		}
		if sock, err = xsk.Create(params, segment); err != nil {
			return err
		}
		if err := deliver.Socket.Put(uint32(0), uint32(sock.Fd())); err != nil {
			return fmt.Errorf("socket into the port's map: %w", err)
		}
		at.owner.Port = uint32(ifindex)
		return within(m.ns, func() error { return m.openOuter(at, outerName, ifindex) })
	})
	if err != nil {
		err = fmt.Errorf("port: %w", err)
	}
	return id, at, sock, err
}

// addVeth makes the pair, with the inner end in the calling thread's namespace.
func (m *Mux) addVeth(at *attachment, inner netns.NsHandle, id *uint64) (name string, ifindex int, err error) {
	if err := disableIPv6("default"); err != nil {
		return "", 0, err
	}
	for {
		*id = m.nextID.Add(1)
		attrs := netlink.NewLinkAttrs()
		attrs.Name = fmt.Sprintf("unet%d", *id)
		attrs.MTU = portMTU
		attrs.NumTxQueues, attrs.NumRxQueues = 1, 1 // with more, the CPU would choose the queue
		veth := netlink.NewVeth(attrs)
		veth.PeerName = innerName
		veth.PeerNamespace = netlink.NsFd(inner)
		err := m.nl.LinkAdd(veth)
		if errors.Is(err, unix.EEXIST) {
			continue // another mux of this namespace, or a port that outlived its mux
		}
		if err != nil {
			return "", 0, fmt.Errorf("veth pair: %w", err)
		}
		outer, err := m.nl.LinkByName(attrs.Name)
		if err != nil {
			at.port = veth
			return "", 0, fmt.Errorf("veth pair: %w", err)
		}
		at.port = outer
		return attrs.Name, outer.Attrs().Index, nil
	}
}

// openInner readies the inner end, in the calling thread's namespace.
func (m *Mux) openInner(at *attachment) (ifindex int, err error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return 0, fmt.Errorf("netlink: %w", err)
	}
	defer h.Close() // it would keep the namespace alive
	l, err := h.LinkByName(innerName)
	if err != nil {
		return 0, fmt.Errorf("inner end: %w", err)
	}
	if err := errors.Join(h.LinkSetARPOff(l), h.LinkSetUp(l)); err != nil {
		return 0, fmt.Errorf("inner end: %w", err)
	}
	return l.Attrs().Index, nil
}

func (m *Mux) attachDeliver(at *attachment, prog *ebpf.Program, ifindex int) error {
	l, err := m.progs.attach(prog, ifindex)
	if err != nil {
		return fmt.Errorf("attach to the inner end: %w", err)
	}
	at.links = append(at.links, l)
	id, err := programID(prog)
	if err != nil {
		return err
	}
	at.undo.push(func() error { return absentIsFine(m.progs.objs.Losses.Delete(uint32(id))) })
	return m.progs.countLosses(prog, bpf.LostDeliverRedirect)
}

// openOuter readies the outer end. The calling thread is in the uplink's
// namespace, by which the kernel understands ifindexes.
func (m *Mux) openOuter(at *attachment, name string, ifindex int) error {
	if err := errors.Join(disableIPv6(name), distrust(name)); err != nil {
		return err
	}
	l, err := m.progs.attach(m.progs.objs.UnetPort, ifindex)
	if err != nil {
		return fmt.Errorf("attach to the outer end: %w", err)
	}
	at.links = append(at.links, l)
	if err := m.progs.objs.Devices.Put(uint32(ifindex), uint32(ifindex)); err != nil {
		return fmt.Errorf("port into the device map: %w", err)
	}
	at.undo.push(func() error { return absentIsFine(m.progs.objs.Devices.Delete(uint32(ifindex))) })
	outer := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: ifindex}}
	if err := errors.Join(m.nl.LinkSetARPOff(outer), m.nl.LinkSetUp(outer)); err != nil {
		return fmt.Errorf("outer end: %w", err)
	}
	return nil
}

// openQueue makes a socket on a queue of the uplink. The caller owns it.
func (m *Mux) openQueue(queue uint32, params xsk.Params, segment *os.File) (id uint64, at *attachment, sock *os.File, err error) {
	if queue >= m.up.queues {
		return 0, nil, nil, fmt.Errorf("%w: queue %d of %s, which has %d", ErrNoQueue, queue, m.up.name, m.up.queues)
	}
	params.Ifindex, params.Queue = m.up.ifindex, queue
	err = within(m.ns, func() (err error) {
		sock, err = xsk.Create(params, segment)
		return err
	})
	if errors.Is(err, xsk.ErrQueueBusy) {
		err = fmt.Errorf("%w: queue %d of %s: %w", ErrQueueBusy, queue, m.up.name, err)
	}
	if err != nil {
		return 0, nil, nil, err
	}
	at = &attachment{owner: bpf.MuxUnetOwner{Queue: queue}}
	if err := m.progs.objs.Sockets.Put(queue, uint32(sock.Fd())); err != nil {
		return 0, nil, nil, errors.Join(fmt.Errorf("socket into the queue map: %w", err), sock.Close())
	}
	at.undo.push(func() error { return absentIsFine(m.progs.objs.Sockets.Delete(queue)) })
	return m.nextID.Add(1), at, sock, nil
}

// absentIsFine: the kernel itself takes map entries of sockets and devices out
// when these go away.
func absentIsFine(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}
