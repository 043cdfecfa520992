package mux

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// watchUplink begins to watch the uplink, and the addresses of the host, until the mux
// is closed.
func (m *Mux) watchUplink() error {
	sock, err := nl.SubscribeAt(m.ns, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return fmt.Errorf("subscribe to interfaces and addresses: %w", err)
	}
	// What changed before the subscription is seen now, before anybody is served.
	if err := m.addressesAre(); err != nil {
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

// fail ends all leases, and tells whoever serves the mux that it should be closed. The
// first reason is the one that is told.
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
	m.failed <- why // its capacity is 1, and this is the only one
}

// followUplink returns why endpoints cannot go on, or nil when the mux is closed.
func (m *Mux) followUplink(sock *nl.NetlinkSocket) error {
	for {
		// Whatever the event, it is the present that counts; what changed before
		// the subscription is seen here too.
		if err := m.lookForPorts(); err != nil {
			m.log.Error("cannot tell which ports are gone", "error", err)
		}
		l, err := m.nl.LinkByIndex(m.up.ifindex)
		switch {
		case isAbsent(err):
			return fmt.Errorf("%w: %s was deleted, or moved to another network namespace", ErrUplinkChanged, m.up.name)
		case err != nil:
			m.log.Error("cannot ask for the uplink", "interface", m.up.name, "error", err)
		default:
			if err := m.uplinkIs(l.Attrs()); err != nil {
				return err
			}
		}
		if err := m.addressesAre(); err != nil {
			m.log.Error("tags do not follow the addresses of the host", "error", err)
		}
		if err := m.awaitEvent(sock); err != nil {
			if m.ctx.Err() != nil { // closed
				return nil
			}
			return fmt.Errorf("%w: it can no longer be watched: %w", ErrUplinkChanged, err)
		}
	}
}

func isAbsent(err error) bool {
	var absent netlink.LinkNotFoundError
	return errors.As(err, &absent)
}

// uplinkIs takes the uplink's present properties, and tells the leases what is new.
func (m *Mux) uplinkIs(a *netlink.LinkAttrs) error {
	if a.HardwareAddr.String() != net.HardwareAddr(m.up.addr[:]).String() {
		return fmt.Errorf("%w: the link address of %s is %v now, and endpoints know it as %v", ErrUplinkChanged, m.up.name, a.HardwareAddr, m.up.addr)
	}
	if now := uint32(a.MTU); now != m.present.Swap(now) {
		m.log.Warn("the uplink's MTU has changed, and endpoints are told; what is longer than it was when the programs were loaded they do not let out",
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
			l.notices.linkIs(down)
		}
	}
	return nil
}

// awaitEvent returns when the kernel says something about the uplink or about an
// address, or that it had to leave something unsaid. Ports that are gone it deals with
// itself.
func (m *Mux) awaitEvent(sock *nl.NetlinkSocket) error {
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
