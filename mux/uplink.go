//go:build linux

package mux

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/mux/internal/attach"
	"github.com/unet-go/unet/mux/internal/nic"
)

// identityOf describes an uplink to endpoints, without the address, which Mux.Identity sets.
func identityOf(u *nic.Uplink, m Mode) endpoint.Identity {
	return endpoint.Identity{
		Interface:        u.Name,
		Index:            u.Index,
		LinkAddr:         u.Addr,
		MTU:              u.MTU,
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
	sock, err := nic.SubscribeChannels(m.ns)
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
					m.log.Error("no more events about the number of queues", "interface", m.up.Name, "error", err)
				}
				return
			case slices.ContainsFunc(msgs, func(e syscall.NetlinkMessage) bool { return nic.IsChannelsNotice(e.Data) }):
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
		m.log.Info("queues of the uplink", "interface", m.up.Name, "active", n)
		m.steerAgain()
	case !nic.IsAbsent(err):
		m.log.Error("cannot find out which queues of the uplink are active", "interface", m.up.Name, "error", err)
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
		l, err := m.nl.LinkByIndex(m.up.Index)
		switch {
		case nic.IsAbsent(err):
			return fmt.Errorf("%w: %s was deleted or moved to another network namespace", ErrUplinkChanged, m.up.Name)
		case err != nil:
			m.log.Error("cannot read the state of the uplink", "interface", m.up.Name, "error", err)
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

// updateUplink compares the uplink with its earlier state, and notifies the leases of changes.
func (m *Mux) updateUplink(a *netlink.LinkAttrs) error {
	if a.HardwareAddr.String() != net.HardwareAddr(m.up.Addr[:]).String() {
		return fmt.Errorf("%w: the MAC address of %s is %v now, and endpoints use %v", ErrUplinkChanged, m.up.Name, a.HardwareAddr, m.up.Addr)
	}
	if m.shown != a.Name {
		m.log.Warn("the interface has been renamed; unetd goes on serving it by its old name, also in the policy, until it is started again", "interface", m.up.Name, "renamed", a.Name)
		m.shown = a.Name
	}
	reopened := false // the driver may have opened the device again, which resets vmxnet3's RSS table
	if now := uint32(a.MTU); now != m.uplinkMTU.Swap(now) {
		reopened = true
		if now == m.progs.MTU {
			m.log.Info("the uplink's MTU is again that with which the programs were loaded, and endpoints are notified", "interface", m.up.Name, "mtu", now)
		} else {
			m.log.Warn("the uplink's MTU has changed, and endpoints are notified; the programs drop frames longer than the MTU with which they were loaded",
				"interface", m.up.Name, "mtu", now, "loaded", m.progs.MTU)
		}
		m.hopChanged(netip.Addr{})
		m.warnOfLongPackets(now)
	}
	if err := route.Within(m.ns, func() error { return m.keepVLANTags(a.Name) }); errors.Is(err, attach.ErrVLANOffload) {
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
		m.log.Info("uplink", "interface", m.up.Name, "up", !down)
		for _, l := range m.all() {
			l.tellLink(down)
		}
	}
	if reopened || changed && !down {
		m.steerAgain()
	}
	if changed && !down {
		m.announcer.beginAll()
	}
	return nil
}

// keepVLANTags turns receive VLAN offload off if another program has turned it on. The calling
// thread is in the uplink's namespace.
func (m *Mux) keepVLANTags(name string) error {
	shown, err := m.progs.ShowVLANTags(name)
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
			if index == m.up.Index {
				return nil
			}
			if e.Header.Type == unix.RTM_DELLINK {
				m.portsGone(m.all(), func(port int) bool { return port == index })
			}
		}
	}
}
