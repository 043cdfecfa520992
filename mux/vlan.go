package mux

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An 802.1Q tag that stands beside the frame is invisible to XDP, and the frame
// would match a tag of untagged traffic. A driver puts it there when receive VLAN
// offload is on, so that is turned off. On a link made in software it is the
// sender who does; there, in generic mode, unet_note_vlan sees it for XDP.

// notesVLAN: unet_note_vlan is attached. It costs a little for each frame of every
// device, so only where it is needed. What comes over a VLAN interface had a tag.
func notesVLAN(u *uplink, m Mode) bool {
	return u.virtual && m == ModeGeneric && u.kind != "vlan"
}

// hidesVLANTags reports whether receive VLAN offload is on. The calling thread is
// in the uplink's namespace, as in the next function.
func (u *uplink) hidesVLANTags() (bool, error) {
	flags, err := ethtoolFlags(u.name, ethtoolGetFlags, 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return false, nil // no such offload
	}
	if err != nil {
		return false, fmt.Errorf("offloads of %s: %w", u.name, err)
	}
	return flags&flagRxVLAN != 0, nil
}

// showVLANTags turns receive VLAN offload off. That it was on is written down
// before.
func (m *Mux) showVLANTags() error {
	hidden, err := m.up.hidesVLANTags()
	if err != nil {
		return err
	}
	if m.up.virtual && m.progs.mode == ModeNative {
		m.log.Info("in native mode on a virtual link the other end decides whether XDP sees VLAN tags: if VLANs are used there, turn its txvlan offload off", "interface", m.up.name)
	}
	if !hidden {
		return nil
	}
	if m.state.RestoreVlan == 0 { // turned on since
		m.state.RestoreVlan = 1
		if err := m.progs.putState(m.state); err != nil {
			return err
		}
	}
	flags, err := ethtoolFlags(m.up.name, ethtoolGetFlags, 0)
	if err != nil {
		return fmt.Errorf("offloads of %s: %w", m.up.name, err)
	}
	_, setErr := ethtoolFlags(m.up.name, ethtoolSetFlags, flags&^flagRxVLAN)
	if hidden, err = m.up.hidesVLANTags(); err != nil {
		return err
	}
	if hidden {
		return errors.Join(fmt.Errorf("%w on %s: frames of a VLAN would be taken for untagged ones", ErrVLANOffload, m.up.name), setErr)
	}
	m.log.Info("receive VLAN offload turned off, so that XDP sees VLAN tags", "interface", m.up.name)
	return nil
}

// restoreVLANTags undoes showVLANTags.
func (m *Mux) restoreVLANTags() error {
	if m.state.RestoreVlan == 0 {
		return nil
	}
	return within(m.ns, func() error { return restoreRxVLAN(m.up.ifindex) })
}

// restoreRxVLAN turns receive VLAN offload on again, if the interface still
// exists in the calling thread's namespace.
func restoreRxVLAN(ifindex int) error {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return nil // it went away, and its offloads with it
	}
	now, err := ethtoolFlags(l.Attrs().Name, ethtoolGetFlags, 0)
	if err != nil {
		return fmt.Errorf("restore receive VLAN offload: %w", err)
	}
	if _, err = ethtoolFlags(l.Attrs().Name, ethtoolSetFlags, now|flagRxVLAN); err != nil {
		return fmt.Errorf("restore receive VLAN offload: %w", err)
	}
	return nil
}
