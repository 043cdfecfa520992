//go:build linux

package mux

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/wire"
)

// uplink describes the interface as it was when the mux was opened.
type uplink struct {
	name    string
	ifindex int
	addr    wire.LinkAddr
	netns   uint64 // cookie of its network namespace
	mtu     uint32 // bytes of IP packet
	queues  uint32 // receive queues
	virtual bool   // made in software
	virtio  bool   // hardware of a hypervisor
	kind    string // of a virtual link: veth, bridge, ...
	driver  string // as ethtool -i shows it
}

// findUplink looks up an interface of the calling thread's namespace. Errors: ErrNoInterface,
// ErrNotEthernet.
func findUplink(h *netlink.Handle, name string) (uplink, error) {
	l, err := h.LinkByName(name)
	if err != nil {
		if isAbsent(err) || name == "" {
			return uplink{}, fmt.Errorf("%w: %q", ErrNoInterface, name)
		}
		return uplink{}, fmt.Errorf("interface %q: %w", name, err)
	}
	a := l.Attrs()
	if a.EncapType != "ether" || len(a.HardwareAddr) != len(wire.LinkAddr{}) {
		return uplink{}, fmt.Errorf("%w: %s is %s", ErrNotEthernet, name, a.EncapType)
	}
	cookie, err := netnsCookie()
	if err != nil {
		return uplink{}, err
	}
	return uplink{
		netns:   cookie,
		name:    a.Name,
		ifindex: a.Index,
		addr:    wire.LinkAddr(a.HardwareAddr),
		mtu:     uint32(a.MTU),
		queues:  uint32(max(a.NumRxQueues, 1)),
		virtio:  a.ParentDevBus == "virtio",
		virtual: l.Type() != "device", // "device": the link has no kind, so it is hardware
		kind:    l.Type(),
		driver:  driverOf(l),
	}, nil
}

// free returns ErrInUse if another mux in tcx mode is attached to the uplink, and
// ErrForeignProgram if the uplink has an XDP program; in tcx mode the latter only if it is that of another mux.
// The calling thread is in the uplink's namespace.
func (u *uplink) free(h *netlink.Handle, m Mode) error {
	l, err := h.LinkByIndex(u.ifindex)
	if err != nil {
		return fmt.Errorf("interface %q: %w", u.name, err)
	}
	chain, err := link.QueryPrograms(link.QueryOptions{Target: u.ifindex, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return fmt.Errorf("traffic control of %s: %w", u.name, err)
	}
	for _, p := range chain.Programs {
		if programName(p.ID) == bpf.MuxProgUnetUplinkTcx {
			return fmt.Errorf("%w: %s has program %d (bpftool net show dev %s)", ErrInUse, u.name, p.ID, u.name)
		}
	}
	x := l.Attrs().Xdp
	if x == nil || !x.Attached || m == ModeTCX && programName(ebpf.ProgramID(x.ProgId)) != bpf.MuxProgUnetUplink {
		return nil
	}
	return fmt.Errorf("%w: %s has program %d (ip link show dev %s)", ErrForeignProgram, u.name, x.ProgId, u.name)
}

// programName is the name of a program, at most 15 bytes; empty: it is gone, or cannot be read.
func programName(id ebpf.ProgramID) string {
	prog, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

// Bits of enum netdev_xdp_act, linux/netdev.h.
const (
	xdpBasic    = 1 << 0
	xdpRedirect = 1 << 1
	xdpNdoXmit  = 1 << 2
	xdpZeroCopy = 1 << 3
)

// xdpSupport is what a driver can do in native mode.
type xdpSupport struct {
	known     bool   // the kernel has reported it
	features  uint64 // bits of enum netdev_xdp_act
	zcMaxSegs uint32 // frames that a packet may have with zero copy; 0: not reported
}

// all reports whether the driver has all features.
func (s xdpSupport) all(features uint64) bool { return s.features&features == features }

// xdpFeatures asks the kernel what a driver can do in native mode (Linux 6.3; zcMaxSegs 6.6). The
// calling thread is in the interface's namespace.
func xdpFeatures(ifindex int) (s xdpSupport) {
	const (
		cmdDevGet       = 1 // NETDEV_CMD_DEV_GET
		attrIfindex     = 1 // NETDEV_A_DEV_IFINDEX
		attrXDPFeatures = 3 // NETDEV_A_DEV_XDP_FEATURES
		attrZCMaxSegs   = 4 // NETDEV_A_DEV_XDP_ZC_MAX_SEGS
	)
	for _, a := range askNetdev(cmdDevGet, nl.NewRtAttr(attrIfindex, nl.Uint32Attr(uint32(ifindex)))) {
		switch {
		case a.Attr.Type == attrXDPFeatures && len(a.Value) == 8:
			s.known, s.features = true, nl.NativeEndian().Uint64(a.Value)
		case a.Attr.Type == attrZCMaxSegs && len(a.Value) == 4:
			s.zcMaxSegs = nl.NativeEndian().Uint32(a.Value)
		}
	}
	return s
}

// sendingQueues is the number of queues, at most all, by which sockets can send
// (real_num_tx_queues). all, if the kernel does not report it.
func sendingQueues(ifindex int, all uint32) uint32 {
	return cmp.Or(realQueues(ifindex, typeTX, all), all)
}

// Types of queues: NETDEV_QUEUE_TYPE_RX, NETDEV_QUEUE_TYPE_TX.
const (
	typeRX = 0
	typeTX = 1
)

// realQueues is the number of receive or transmit queues, at most all, that the device has in use,
// with those that a driver adds for XDP (real_num_rx_queues, real_num_tx_queues; Linux 6.8). 0, if
// the kernel does not report it or the interface is down. The calling thread is in the
// interface's namespace.
func realQueues(ifindex int, of, all uint32) uint32 {
	const (
		cmdQueueGet = 10 // NETDEV_CMD_QUEUE_GET
		attrID      = 1  // NETDEV_A_QUEUE_ID
		attrIfindex = 2  // NETDEV_A_QUEUE_IFINDEX
		attrType    = 3  // NETDEV_A_QUEUE_TYPE
	)
	for n := range all {
		if askNetdev(cmdQueueGet, nl.NewRtAttr(attrIfindex, nl.Uint32Attr(uint32(ifindex))),
			nl.NewRtAttr(attrType, nl.Uint32Attr(of)), nl.NewRtAttr(attrID, nl.Uint32Attr(n))) == nil {
			return n
		}
	}
	return all
}

// askNetdev sends a request of the netdev netlink family and returns the attributes of the
// answer; nil after an error.
func askNetdev(cmd byte, attrs ...*nl.RtAttr) []syscall.NetlinkRouteAttr {
	family, err := findGenl("netdev")
	if err != nil {
		return nil
	}
	answers, err := genl(family.id, cmd, nl.GENL_CTRL_VERSION, attrs...)
	if err != nil || len(answers) == 0 {
		return nil
	}
	return answers[0]
}

// identity describes the uplink to endpoints, without the address, which Mux.Identity sets.
func (u *uplink) identity(m Mode) endpoint.Identity {
	return endpoint.Identity{
		Interface:        u.name,
		Index:            u.ifindex,
		LinkAddr:         u.addr,
		MTU:              u.mtu,
		PartialChecksums: true, // what the kernel of this host sends has them
		Mode:             m.String(),
	}
}

// watchUplink watches the uplink and the addresses of the host until the mux is closed.
func (m *Mux) watchUplink() error {
	sock, err := nl.SubscribeAt(m.ns, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return fmt.Errorf("subscribe to interfaces and addresses: %w", err)
	}
	// The first call is after the subscription: changes before it have no event.
	if err := m.updateAddresses(); err != nil {
		sock.Close()
		return err
	}
	m.running.Go(func() {
		if err := m.followUplink(sock); err != nil {
			m.fail(err)
		}
	})
	m.background.push(func() error { sock.Close(); return nil })
	return m.watchQueues()
}

// watchQueues watches the number of active queues of the uplink until the mux is closed. The
// calling thread is in the uplink's namespace.
func (m *Mux) watchQueues() error {
	sock, err := subscribeChannels(m.ns)
	if sock == nil || err != nil {
		return err
	}
	m.running.Go(func() {
		for m.ctx.Err() == nil {
			msgs, _, err := sock.Receive()
			switch {
			case errors.Is(err, unix.ENOBUFS): // events were lost
				m.queuesChanged()
			case err != nil:
				if m.ctx.Err() == nil {
					m.log.Error("no more events about the number of queues", "interface", m.up.name, "error", err)
				}
				return
			case slices.ContainsFunc(msgs, func(e syscall.NetlinkMessage) bool { return isChannelsNotice(e.Data) }):
				m.queuesChanged()
			}
		}
	})
	m.background.push(func() error { sock.Close(); return nil })
	return nil
}

// queuesChanged is called when the number of active queues of the uplink may have changed.
func (m *Mux) queuesChanged() {
	n, err := m.usableQueues()
	switch {
	case err == nil:
		m.log.Info("queues of the uplink", "interface", m.up.name, "active", n)
		m.steerAgain()
	case !isAbsent(err):
		m.log.Error("cannot find out which queues of the uplink are active", "interface", m.up.name, "error", err)
	}
}

// fail ends all leases and reports why by Failed. Only the first call has an effect.
func (m *Mux) fail(why error) {
	m.mu.Lock()
	first := m.ended == nil
	if first {
		m.ended = why
	}
	m.mu.Unlock()
	if !first {
		return
	}
	if err := m.endLeases(why); err != nil {
		m.log.Warn("endpoints of a mux that has failed", "error", err)
	}
	m.failed <- why // does not block: capacity 1, one error
}

// followUplink handles events until no endpoint can work any more, and returns the reason; nil:
// the mux was closed.
func (m *Mux) followUplink(sock *nl.NetlinkSocket) error {
	for {
		// After each event everything is read again: events can be lost.
		if err := m.lookForPorts(); err != nil {
			m.log.Error("cannot find out which ports were deleted", "error", err)
		}
		l, err := m.nl.LinkByIndex(m.up.ifindex)
		switch {
		case isAbsent(err):
			return fmt.Errorf("%w: %s was deleted or moved to another network namespace", ErrUplinkChanged, m.up.name)
		case err != nil:
			m.log.Error("cannot read the state of the uplink", "interface", m.up.name, "error", err)
		default:
			if err := m.updateUplink(l.Attrs()); err != nil {
				return err
			}
		}
		if err := m.updateAddresses(); err != nil {
			m.log.Error("cannot compare the tags with the addresses of the host", "error", err)
		}
		if err := m.waitForEvent(sock); err != nil {
			if m.ctx.Err() != nil { // closed
				return nil
			}
			return fmt.Errorf("%w: no more events: %w", ErrUplinkChanged, err)
		}
	}
}

func isAbsent(err error) bool {
	var absent netlink.LinkNotFoundError
	return errors.As(err, &absent)
}

// updateUplink compares the uplink with its earlier state, and notifies the leases of changes.
func (m *Mux) updateUplink(a *netlink.LinkAttrs) error {
	if a.HardwareAddr.String() != net.HardwareAddr(m.up.addr[:]).String() {
		return fmt.Errorf("%w: the MAC address of %s is %v now, and endpoints use %v", ErrUplinkChanged, m.up.name, a.HardwareAddr, m.up.addr)
	}
	if m.shown != a.Name {
		m.log.Warn("the interface has been renamed; unetd goes on serving it by its old name, also in the policy, until it is started again", "interface", m.up.name, "renamed", a.Name)
		m.shown = a.Name
	}
	reopened := false // the driver may have opened the device again, which resets vmxnet3's RSS table
	if now := uint32(a.MTU); now != m.uplinkMTU.Swap(now) {
		reopened = true
		if now == m.progs.mtu {
			m.log.Info("the uplink's MTU is again that with which the programs were loaded, and endpoints are notified", "interface", m.up.name, "mtu", now)
		} else {
			m.log.Warn("the uplink's MTU has changed, and endpoints are notified; the programs drop frames longer than the MTU with which they were loaded",
				"interface", m.up.name, "mtu", now, "loaded", m.progs.mtu)
		}
		m.hopChanged(netip.Addr{})
		m.warnOfLongPackets(now)
	}
	if err := route.Within(m.ns, func() error { return m.keepVLANTags(a.Name) }); errors.Is(err, ErrVLANOffload) {
		return err
	} else if err != nil {
		m.log.Error("cannot find out whether XDP sees VLAN tags", "interface", a.Name, "error", err)
	}
	// What `ip link` shows as UP and LOWER_UP, and the operational state (RFC 2863).
	down := a.RawFlags&unix.IFF_UP == 0 || a.RawFlags&unix.IFF_RUNNING == 0
	m.mu.Lock()
	changed := down != m.down
	m.down = down
	m.mu.Unlock()
	if changed {
		m.log.Info("uplink", "interface", m.up.name, "up", !down)
		for _, l := range m.all() {
			l.tellLink(down)
		}
	}
	if reopened || changed && !down {
		m.steerAgain()
	}
	if changed && !down {
		m.announceAll()
	}
	return nil
}

// keepVLANTags turns receive VLAN offload off if another program has turned it on. The calling
// thread is in the uplink's namespace.
func (m *Mux) keepVLANTags(name string) error {
	shown, err := m.progs.showVLANTags(name)
	if shown {
		m.log.Warn("receive VLAN offload had been turned on, and is off again: meanwhile endpoints may have received frames of VLANs as untagged ones", "interface", name)
	}
	return err
}

// waitForEvent returns after an event about the uplink or an address, or when events were lost.
// It handles deleted ports itself.
func (m *Mux) waitForEvent(sock *nl.NetlinkSocket) error {
	for {
		msgs, _, err := sock.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range msgs {
			if e.Header.Type == unix.RTM_NEWADDR || e.Header.Type == unix.RTM_DELADDR {
				return nil
			}
			if e.Header.Type != unix.RTM_NEWLINK && e.Header.Type != unix.RTM_DELLINK || len(e.Data) < unix.SizeofIfInfomsg {
				continue
			}
			index := int(nl.DeserializeIfInfomsg(e.Data).Index)
			if index == m.up.ifindex {
				return nil
			}
			if e.Header.Type == unix.RTM_DELLINK {
				m.portsGone(m.all(), func(port int) bool { return port == index })
			}
		}
	}
}
