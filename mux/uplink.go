package mux

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

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

	unfinished bool // frames may have a partial transport checksum (function unfinished)
}

// findUplink looks up an interface of the calling thread's namespace. Errors: ErrNoInterface,
// ErrNotEthernet.
func findUplink(h *netlink.Handle, name string) (uplink, error) {
	l, err := h.LinkByName(name)
	if err != nil {
		var absent netlink.LinkNotFoundError
		if errors.As(err, &absent) || name == "" {
			return uplink{}, fmt.Errorf("%w: %q", ErrNoInterface, name)
		}
		return uplink{}, fmt.Errorf("interface %q: %w", name, err)
	}
	a := l.Attrs()
	if a.EncapType != "ether" || len(a.HardwareAddr) != len(wire.LinkAddr{}) {
		return uplink{}, fmt.Errorf("%w: %s is %s", ErrNotEthernet, name, a.EncapType)
	}
	all, err := route.Dump(h.LinkList)
	if err != nil {
		return uplink{}, fmt.Errorf("list interfaces: %w", err)
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
		virtual: l.Type() != "device", // "device": the link has no kind, so it is hardware
		virtio:  a.ParentDevBus == "virtio",
		kind:    l.Type(),

		unfinished: unfinished(l, all),
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

// partialChecksums reports whether received frames may have a partial transport checksum
// (CHECKSUM_PARTIAL): on virtual links, and with virtio unless in native mode.
func (u *uplink) partialChecksums(m Mode) bool {
	return u.unfinished || u.virtio && m != ModeNative
}

// unfinished reports whether frames with a partial transport checksum can come over a link, as a
// kernel sends them over a virtual link: a veth, a tap, a bridge; a bond, VLAN or macvlan if a
// link below it is such a link. On any other link a partial checksum is a wrong checksum.
func unfinished(l netlink.Link, all []netlink.Link) bool {
	switch l.Type() {
	case "veth", "netkit", "tuntap", "dummy", "ifb", "bridge":
		return true
	case "bond", "team", "vlan", "macvlan", "macvtap":
	default:
		return false
	}
	a := l.Attrs()
	return slices.ContainsFunc(all, func(below netlink.Link) bool {
		b := below.Attrs()
		return (b.MasterIndex == a.Index || b.Index == a.ParentIndex && a.NetNsID < 0) && b.Index != a.Index && unfinished(below, all)
	})
}

// Bits of enum netdev_xdp_act, linux/netdev.h.
const (
	xdpBasic    = 1 << 0
	xdpRedirect = 1 << 1
	xdpNdoXmit  = 1 << 2
)

// xdpFeatures are the bits of what the driver can do in native mode (netdev netlink family,
// Linux 6.3). known is false if the kernel does not report them. The calling thread is in
// the interface's namespace.
func xdpFeatures(ifindex int) (features uint64, known bool) {
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return 0, false
	}
	const (
		cmdDevGet       = 1 // NETDEV_CMD_DEV_GET
		attrIfindex     = 1 // NETDEV_A_DEV_IFINDEX
		attrXDPFeatures = 3 // NETDEV_A_DEV_XDP_FEATURES
	)
	req := nl.NewNetlinkRequest(int(family.ID), 0)
	// Not nl.Genlmsg: it serializes four bytes of a struct of two, and the kernel refuses the
	// request if the last two are not 0.
	req.AddRawData(append([]byte{cmdDevGet, nl.GENL_CTRL_VERSION, 0, 0}, nl.NewRtAttr(attrIfindex, nl.Uint32Attr(uint32(ifindex))).Serialize()...))
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil || len(msgs) == 0 || len(msgs[0]) < nl.SizeofGenlmsg {
		return 0, false
	}
	attrs, err := nl.ParseRouteAttr(msgs[0][nl.SizeofGenlmsg:])
	if err != nil {
		return 0, false
	}
	for _, a := range attrs {
		if a.Attr.Type == attrXDPFeatures && len(a.Value) == 8 {
			return nl.NativeEndian().Uint64(a.Value), true
		}
	}
	return 0, false
}

// identity describes the uplink to endpoints, without the address, which Mux.Identity sets.
func (u *uplink) identity(m Mode) endpoint.Identity {
	return endpoint.Identity{
		Interface:        u.name,
		LinkAddr:         u.addr,
		MTU:              u.mtu,
		PartialChecksums: u.partialChecksums(m),
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
	return nil
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
	if now := uint32(a.MTU); now != m.uplinkMTU.Swap(now) {
		m.log.Warn("the uplink's MTU has changed, and endpoints are notified; the programs drop frames longer than the MTU with which they were loaded",
			"interface", m.up.name, "mtu", now, "loaded", m.progs.mtu)
		m.hopChanged(netip.Addr{})
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
	return nil
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
