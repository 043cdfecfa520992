package mux

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// watchUplink begins to watch the uplink until the mux is closed.
func (m *Mux) watchUplink() error {
	sock, err := nl.SubscribeAt(m.ns, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return fmt.Errorf("subscribe to interfaces: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := m.followUplink(sock); err != nil {
			m.failed <- err // its capacity is 1, and this is the only one
		}
	}()
	m.undo.push(func() error {
		sock.Close()
		<-ended
		return nil
	})
	return nil
}

// followUplink returns why endpoints cannot go on, or nil when the mux is closed.
func (m *Mux) followUplink(sock *nl.NetlinkSocket) error {
	mtu := m.up.mtu
	for {
		// Whatever the event, it is the present that counts; what changed before
		// the subscription is seen here too.
		l, err := m.nl.LinkByIndex(m.up.ifindex)
		var absent netlink.LinkNotFoundError
		switch {
		case errors.As(err, &absent):
			return fmt.Errorf("%w: %s was deleted, or moved to another network namespace", ErrUplinkChanged, m.up.name)
		case err != nil:
			m.log.Error("cannot ask for the uplink", "interface", m.up.name, "error", err)
		default:
			a := l.Attrs()
			if a.HardwareAddr.String() != net.HardwareAddr(m.up.addr[:]).String() {
				return fmt.Errorf("%w: the link address of %s is %v now, and endpoints know it as %v", ErrUplinkChanged, m.up.name, a.HardwareAddr, m.up.addr)
			}
			if now := uint32(a.MTU); now != mtu {
				m.log.Warn("the uplink's MTU has changed: endpoints go on with the one they were granted, and what no longer fits is lost",
					"interface", m.up.name, "mtu", now, "granted", m.up.mtu)
				mtu = now
			}
		}
		if err := m.awaitEvent(sock); err != nil {
			if m.ctx.Err() != nil { // closed
				return nil
			}
			return fmt.Errorf("%w: it can no longer be watched: %w", ErrUplinkChanged, err)
		}
	}
}

// awaitEvent returns when the kernel says something about the uplink, or that
// it had to leave something unsaid.
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
			if e.Header.Type != unix.RTM_NEWLINK && e.Header.Type != unix.RTM_DELLINK || len(e.Data) < unix.SizeofIfInfomsg {
				continue
			}
			if int(nl.DeserializeIfInfomsg(e.Data).Index) == m.up.ifindex {
				return nil
			}
		}
	}
}
