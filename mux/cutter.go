package mux

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The cutter of an uplink in generic mode is a device through which the kernel cuts
// super-frames, see bpf/src/cut.h. It is known by its name: whoever finds one that
// nobody serves may delete it.

const cutterKind = "ifb"

func cutterName(uplink int) string { return fmt.Sprintf("unetcut%d", uplink) }

// makeCutter makes the cutter of an uplink and returns its ifindex. The calling thread
// is in the uplink's namespace, which is h's.
func makeCutter(h *netlink.Handle, uplink int) (ifindex int, err error) {
	if err := deleteCutter(h, uplink); err != nil { // of a process that died
		return 0, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("device %s, which cuts super-frames: %w", cutterName(uplink), err)
		}
	}()
	a := netlink.NewLinkAttrs()
	a.Name = cutterName(uplink)
	a.MTU, a.TxQLen = portMTU, 1000
	a.NumTxQueues, a.NumRxQueues = 1, 1
	a.GSOMaxSegs = 1 // so that what is sent there is cut
	if err := h.LinkAdd(&netlink.Ifb{LinkAttrs: a}); err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, deleteCutter(h, uplink))
		}
	}()
	l, err := h.LinkByName(a.Name)
	if err != nil {
		return 0, err
	}
	if err := errors.Join(disableIPv6(a.Name), distrust(a.Name)); err != nil {
		return 0, err
	}
	return l.Attrs().Index, h.LinkSetUp(l)
}

// deleteCutter deletes the cutter of an uplink, if there is one.
func deleteCutter(h *netlink.Handle, uplink int) error {
	l, err := h.LinkByName(cutterName(uplink))
	var absent netlink.LinkNotFoundError
	if errors.As(err, &absent) {
		return nil
	}
	if err == nil && l.Type() != cutterKind {
		return nil // somebody else's
	}
	if err == nil {
		err = h.LinkDel(l)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete %s: %w", cutterName(uplink), err)
	}
	return nil
}
