//go:build linux

package nic

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/wire"
)

// NetnsCookie is the cookie of the calling thread's network namespace (SO_NETNS_COOKIE).
func NetnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return cookie, os.NewSyscallError("getsockopt SO_NETNS_COOKIE", err)
}

// NameOf returns a function that finds the present name of an interface.
func NameOf(h *netlink.Handle, ifindex int) func() (string, error) {
	return func() (string, error) {
		l, err := h.LinkByIndex(ifindex)
		if err != nil {
			return "", fmt.Errorf("interface %d: %w", ifindex, err)
		}
		return l.Attrs().Name, nil
	}
}

// Errors of FindUplink.
var (
	ErrNoInterface = errors.New("no such interface")
	ErrNotEthernet = errors.New("not an Ethernet interface")
)

// Uplink describes the interface as it was when the mux was opened.
type Uplink struct {
	Name    string
	Index   int
	Addr    wire.LinkAddr
	Netns   uint64 // cookie of its network namespace
	MTU     uint32 // bytes of IP packet
	Queues  uint32 // receive queues
	Virtual bool   // made in software
	Virtio  bool   // hardware of a hypervisor
	Kind    string // of a virtual link: veth, bridge, ...
	Driver  string // as ethtool -i shows it
	PortOf  string // the bond, team or bridge that takes its frames, such as "bond bond0"; "": none
}

// unfit is why no mux can serve a link, although it has MAC addresses, and what to serve; "": one can.
func unfit(l netlink.Link) string {
	switch l := l.(type) {
	case *netlink.Vrf:
		return "a VRF, which has no frames of its own: serve its members"
	case *netlink.IPVlan:
		if l.Mode != netlink.IPVLAN_MODE_L2 {
			return "an ipvlan without ARP (mode l3 or l3s): make it with mode l2"
		}
	}
	return ""
}

// portOf is Uplink.PortOf of a link.
func portOf(h *netlink.Handle, l netlink.Link) string {
	if l.Attrs().MasterIndex == 0 {
		return ""
	}
	master, err := h.LinkByIndex(l.Attrs().MasterIndex)
	if err != nil || master.Type() == "vrf" { // a VRF leaves its members their addresses
		return ""
	}
	return master.Type() + " " + master.Attrs().Name
}

// FindUplink looks up an interface of the calling thread's namespace. Errors: ErrNoInterface,
// ErrNotEthernet.
func FindUplink(h *netlink.Handle, name string) (Uplink, error) {
	l, err := h.LinkByName(name)
	if err != nil {
		if IsAbsent(err) || name == "" {
			return Uplink{}, fmt.Errorf("%w: %q", ErrNoInterface, name)
		}
		return Uplink{}, fmt.Errorf("interface %q: %w", name, err)
	}
	a := l.Attrs()
	if a.EncapType != "ether" || len(a.HardwareAddr) != len(wire.LinkAddr{}) {
		return Uplink{}, fmt.Errorf("%w: %s is %s", ErrNotEthernet, name, a.EncapType)
	}
	if why := unfit(l); why != "" {
		return Uplink{}, fmt.Errorf("%w: %s is %s", ErrNotEthernet, name, why)
	}
	cookie, err := NetnsCookie()
	if err != nil {
		return Uplink{}, err
	}
	return Uplink{
		Netns:   cookie,
		Name:    a.Name,
		Index:   a.Index,
		Addr:    wire.LinkAddr(a.HardwareAddr),
		MTU:     uint32(a.MTU),
		Queues:  uint32(max(a.NumRxQueues, 1)),
		Virtio:  a.ParentDevBus == "virtio",
		Virtual: l.Type() != "device", // "device": the link has no kind, so it is hardware
		Kind:    l.Type(),
		Driver:  driverOf(l),
		PortOf:  portOf(h, l),
	}, nil
}

// Bits of enum netdev_xdp_act, linux/netdev.h.
const (
	XDPBasic    = 1 << 0
	XDPRedirect = 1 << 1
	XDPNdoXmit  = 1 << 2
	XDPZeroCopy = 1 << 3
)

// XDPSupport is what a driver can do in native mode.
type XDPSupport struct {
	Known     bool   // the kernel has reported it
	Features  uint64 // bits of enum netdev_xdp_act
	ZCMaxSegs uint32 // frames that a packet may have with zero copy; 0: not reported
}

// All reports whether the driver has all features.
func (s XDPSupport) All(features uint64) bool { return s.Features&features == features }

// XDPFeatures asks the kernel what a driver can do in native mode (Linux 6.3; ZCMaxSegs 6.6). The
// calling thread is in the interface's namespace.
func XDPFeatures(ifindex int) (s XDPSupport) {
	const (
		cmdDevGet       = 1 // NETDEV_CMD_DEV_GET
		attrIfindex     = 1 // NETDEV_A_DEV_IFINDEX
		attrXDPFeatures = 3 // NETDEV_A_DEV_XDP_FEATURES
		attrZCMaxSegs   = 4 // NETDEV_A_DEV_XDP_ZC_MAX_SEGS
	)
	for _, a := range askNetdev(cmdDevGet, nl.NewRtAttr(attrIfindex, nl.Uint32Attr(uint32(ifindex)))) {
		switch {
		case a.Attr.Type == attrXDPFeatures && len(a.Value) == 8:
			s.Known, s.Features = true, nl.NativeEndian().Uint64(a.Value)
		case a.Attr.Type == attrZCMaxSegs && len(a.Value) == 4:
			s.ZCMaxSegs = nl.NativeEndian().Uint32(a.Value)
		}
	}
	return s
}

// ReceivingQueues is the number of receive queues, at most all, that the device has in use. 0, if
// the kernel does not report it or the interface is down.
func ReceivingQueues(ifindex int, all uint32) uint32 { return realQueues(ifindex, typeRX, all) }

// SendingQueues is the number of queues, at most all, by which sockets can send
// (real_num_tx_queues). all, if the kernel does not report it.
func SendingQueues(ifindex int, all uint32) uint32 {
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

// IsAbsent reports whether an error is that of a link that does not exist.
func IsAbsent(err error) bool {
	var absent netlink.LinkNotFoundError
	return errors.As(err, &absent)
}
