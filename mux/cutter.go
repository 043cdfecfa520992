package mux

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
)

// The cutter of an uplink in generic mode is a device through which the kernel cuts
// super-frames, see bpf/src/cut.h. It is known by its name: whoever finds one that
// nobody serves may delete it.

const cutterKind = "ifb"

// cutterRoom is how many parts may wait in the device; more would stop it. It is what
// all ports may have there (CUT_LINE in cut.h).
const cutterRoom = bpf.MaxPorts * 1024

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
	a.MTU = portMTU
	a.NumTxQueues, a.NumRxQueues = 1, 1
	a.GSOMaxSegs, a.GSOMaxSize, a.GSOIPv4MaxSize = 1, 1024, 1024 // so that packets sent there are cut: by either measure
	a.TxQLen = cutterRoom
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
	// Without a queue in front of it packets are cut at once. cut.h bounds how many wait.
	none := &netlink.GenericQdisc{QdiscType: "noqueue", QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT}}
	if err := h.QdiscReplace(none); err != nil {
		return 0, fmt.Errorf("no queue: %w", err)
	}
	return l.Attrs().Index, h.LinkSetUp(l)
}

// cutterLost is how many super-frames the cutter of an uplink has dropped: because the
// kernel could not cut them, or somebody has shut the device down.
func cutterLost(h *netlink.Handle, uplink int) (uint64, error) {
	l, err := h.LinkByName(cutterName(uplink))
	var absent netlink.LinkNotFoundError
	if errors.As(err, &absent) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("counters of %s: %w", cutterName(uplink), err)
	}
	s := l.Attrs().Statistics
	return s.RxDropped + s.TxDropped, nil
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
