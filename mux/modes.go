//go:build linux

package mux

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"
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

// notNative is why ModeAuto does not try native mode; "": it tries.
func (u *uplink) notNative(can xdpSupport) string {
	switch {
	case u.virtual:
		return "a virtual link of kind " + u.kind + ": native mode is for hardware"
	case !can.known:
		return "the kernel does not report what the driver can do"
	case !can.all(xdpBasic):
		return "the driver has no XDP"
	case !can.all(xdpRedirect):
		return "the driver has XDP without redirects"
	case u.driver == "vmxnet3": // seen with Linux 7.3 and QEMU 10.0
		return "the driver stops running the XDP program when the interface goes down and up, or its MTU changes"
	}
	return ""
}

// nativeRefused adds to the error of an attachment in native mode the reason, as far as the kernel
// gives one, and a remedy. The calling thread is in the uplink's namespace.
func (u *uplink) nativeRefused(prog *ebpf.Program, err error) error {
	can := xdpFeatures(u.ifindex)
	why := u.refusal(prog)
	if why == "" && can.known && !can.all(xdpBasic) {
		why = "it has no XDP"
	}
	if why == "" {
		why = "it gives no reason"
	}
	return fmt.Errorf("%w: driver %s: %s: %s", err, u.driver, why, u.remedy(why))
}

// refusal is the kernel's reason why it refuses a program in native mode; "": it gives none. By a
// BPF link the kernel gives none, so refusal attaches by netlink, with NETLINK_EXT_ACK.
func (u *uplink) refusal(prog *ebpf.Program) string {
	sock, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return ""
	}
	defer sock.Close()
	if sock.SetExtAck(true) != nil {
		return ""
	}
	rt := &nl.SocketHandle{Socket: sock}
	err = setXDP(rt, u.ifindex, prog.FD(), unix.XDP_FLAGS_DRV_MODE|unix.XDP_FLAGS_UPDATE_IF_NOEXIST)
	if err == nil { // now it accepts the program
		if err = setXDP(rt, u.ifindex, -1, unix.XDP_FLAGS_DRV_MODE); err != nil {
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
func (u *uplink) remedy(why string) string {
	says := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(strings.ToLower(why), w) })
	}
	do := ""
	switch {
	case says("mtu", "frame size", "jumbo", "single buffer"):
		do = "set a smaller MTU (ip link set dev " + u.name + " mtu 1500), or "
	case says("lro", "gro_hw", "gro-hw"):
		do = "turn the offloads off (ethtool -K " + u.name + " lro off rx-gro-hw off), or "
	case says("queue", "channel", "ring"):
		do = "change the number of queues (ethtool -L " + u.name + "), or "
	}
	return do + "attach in tcx mode, which works with every driver"
}
