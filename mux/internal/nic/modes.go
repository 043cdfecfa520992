//go:build linux

package nic

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// driverOf is the driver of a link, or its kind if it reports none. The calling thread is in the
// link's namespace.
func driverOf(l netlink.Link) string {
	if driver, err := driverName(l.Attrs().Name); err == nil && driver != "" {
		return driver
	}
	return l.Type()
}

// NotNative is why ModeAuto does not try native mode; "": it tries.
func (u *Uplink) NotNative(can XDPSupport) string {
	switch {
	case u.Virtual:
		return "a virtual link of kind " + u.Kind + ": native mode is for hardware"
	case !can.Known:
		return "the kernel does not report what the driver can do"
	case !can.All(XDPBasic):
		return "the driver has no XDP"
	case !can.All(XDPRedirect):
		return "the driver has XDP without redirects"
	case u.Driver == "vmxnet3": // seen with Linux 7.3 and QEMU 10.0
		return "the driver stops running the XDP program when the interface goes down and up, or its MTU changes"
	}
	return ""
}

// NativeRefused adds to the error of an attachment of a program, given by its descriptor, in native mode the reason,
// as far as the kernel gives one, and a remedy. The calling thread is in the uplink's namespace.
func (u *Uplink) NativeRefused(prog int, err error) error {
	can := XDPFeatures(u.Index)
	why := u.refusal(prog)
	if why == "" && can.Known && !can.All(XDPBasic) {
		why = "it has no XDP"
	}
	if why == "" {
		why = "it gives no reason"
	}
	return fmt.Errorf("%w: driver %s: %s: %s", err, u.Driver, why, u.remedy(why))
}

// refusal is the kernel's reason why it refuses a program in native mode; "": it gives none. By a
// BPF link the kernel gives none, so refusal attaches by netlink, with NETLINK_EXT_ACK.
func (u *Uplink) refusal(prog int) string {
	sock, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return ""
	}
	defer sock.Close()
	if sock.SetExtAck(true) != nil {
		return ""
	}
	rt := &nl.SocketHandle{Socket: sock}
	err = SetXDP(rt, u.Index, prog, unix.XDP_FLAGS_DRV_MODE|unix.XDP_FLAGS_UPDATE_IF_NOEXIST)
	if err == nil { // now it accepts the program
		if err = SetXDP(rt, u.Index, -1, unix.XDP_FLAGS_DRV_MODE); err != nil {
			return fmt.Sprintf("now it accepts the program, which cannot be taken off again (%v)", err)
		}
		return ""
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) || err.Error() == errno.Error() {
		return ""
	}
	return strings.TrimPrefix(err.Error(), errno.Error()+": ")
}

// remedy is what an operator can do about the reason of a refusal.
func (u *Uplink) remedy(why string) string {
	says := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(strings.ToLower(why), w) })
	}
	do := ""
	switch {
	case says("mtu", "frame size", "jumbo", "single buffer"):
		do = "set a smaller MTU (ip link set dev " + u.Name + " mtu 1500), or "
	case says("lro", "gro_hw", "gro-hw"):
		do = "turn the offloads off (ethtool -K " + u.Name + " lro off rx-gro-hw off), or "
	case says("queue", "channel", "ring"):
		do = "change the number of queues (ethtool -L " + u.Name + "), or "
	}
	return do + "attach in tcx mode, which works with every driver"
}

// Mode is how the programs of a mux are attached. The values are in the state of pinned muxes.
type Mode uint8

const (
	ModeAuto   Mode = 0 // native or tcx
	ModeNative Mode = 2 // XDP in the driver
	ModeTCX    Mode = 3 // the uplink's program is at traffic control
)

// modes are the modes that can be asked for. The value 1 in the state of a pinned mux is that of a mode that
// there is no more (ADR 58).
var modes = []Mode{ModeAuto, ModeTCX, ModeNative}

// String is the name of a mode, as for unetd serve --mode.
func (m Mode) String() string {
	switch m {
	case ModeNative:
		return "native"
	case ModeTCX:
		return "tcx"
	}
	return "auto"
}

// ParseMode is the inverse of [Mode.String].
func ParseMode(s string) (Mode, error) {
	for _, m := range modes {
		if s == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("mode %q: want auto, tcx or native", s)
}
