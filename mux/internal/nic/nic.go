//go:build linux

package nic

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/ethtool"
)

// What ethtool shows and sets of an interface. The calling thread is in the interface's
// namespace in all functions.

// WithEthtool calls fn with a socket.
func WithEthtool(fn func(*ethtool.Socket) error) error {
	e, err := ethtool.Open()
	if err != nil {
		return err
	}
	defer e.Close()
	return fn(e)
}

// driverName is the driver of an interface, such as "virtio_net".
func driverName(name string) (driver string, err error) {
	err = WithEthtool(func(e *ethtool.Socket) (err error) {
		driver, err = e.Driver(name)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("driver of %s: %w", name, err)
	}
	return driver, nil
}

// ActiveQueues is the number of receive queues that the driver uses now (ETHTOOL_GCHANNELS),
// at most all of the device. all, if the driver does not say.
func ActiveQueues(name string, all uint32) (n uint32, err error) {
	err = WithEthtool(func(e *ethtool.Socket) error {
		c, err := e.Channels(name)
		n = c.Rx + c.Combined
		return err
	})
	if errors.Is(err, unix.EOPNOTSUPP) || err == nil && n == 0 {
		return all, nil
	}
	if err != nil {
		return 0, fmt.Errorf("queues of %s: %w", name, err)
	}
	return min(n, all), nil
}

// The kinds of offloads that an uplink must not have.
const (
	HidesVLAN    Offloads = 1<<0 | 1<<1 // a VLAN tag is in the skb, where XDP does not see it
	MergesFrames Offloads = 1<<2 | 1<<3 // the kernel turns these off for generic XDP; in native mode vmxnet3 does, and mlx5, gve and ixgbe refuse the program
)

// Offloads is a set of the receive offloads named by offloadNames, a bit each.
type Offloads uint32

// offloadNames are names of ethtool -k. Pinned states have sets of them (bpf.State).
var offloadNames = [...]string{"rx-vlan-hw-parse", "rx-vlan-stag-hw-parse", "rx-gro-hw", "rx-lro"}

// String is a list of names.
func (o Offloads) String() (s string) {
	for i, name := range offloadNames {
		if o&(1<<i) != 0 {
			s += "," + name
		}
	}
	return s[min(len(s), 1):]
}

// Features are the features of an interface by name.
func Features(name string) (states map[string]ethtool.Feature, err error) {
	err = WithEthtool(func(e *ethtool.Socket) (err error) {
		states, err = e.Features(name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("offloads of %s: %w", name, err)
	}
	return states, nil
}

// OffloadsOn is which of the offloads are on. The driver may have none of them.
func OffloadsOn(name string, of Offloads) (on Offloads, err error) {
	states, err := Features(name)
	if err != nil {
		return 0, err
	}
	for i, n := range offloadNames {
		if states[n].Active {
			on |= 1 << i
		}
	}
	return on & of, nil
}

// OffloadsFixed is which of the offloads the driver does not let be changed.
func OffloadsFixed(name string) (fixed Offloads, err error) {
	states, err := Features(name)
	if err != nil {
		return 0, err
	}
	for i, n := range offloadNames {
		if f, has := states[n]; has && (!f.Changeable || f.NeverChanged) {
			fixed |= 1 << i
		}
	}
	return fixed, nil
}

// SetOffloads turns offloads on or off. The driver may refuse without an error.
func SetOffloads(name string, of Offloads, on bool) error {
	change := map[string]bool{}
	for i, n := range offloadNames {
		if of&(1<<i) != 0 {
			change[n] = on
		}
	}
	if err := WithEthtool(func(e *ethtool.Socket) error { return e.SetFeatures(name, change) }); err != nil {
		return fmt.Errorf("set %v of %s: %w", of, name, err)
	}
	return nil
}

// RSSTable is the receive queue of each value of a flow's hash (ETHTOOL_MSG_RSS_GET, Linux 6.3);
// nil: the driver has no such table.
func RSSTable(ifindex int) ([]uint32, error) {
	const (
		attrHeader = 1 // ETHTOOL_A_RSS_HEADER
		attrTable  = 4 // ETHTOOL_A_RSS_INDIR
	)
	family, err := findGenl(unix.ETHTOOL_GENL_NAME)
	if err != nil {
		return nil, err
	}
	header := nl.NewRtAttr(unix.NLA_F_NESTED|attrHeader, nil)
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_INDEX, nl.Uint32Attr(uint32(ifindex)))
	answers, err := genl(family.id, unix.ETHTOOL_MSG_RSS_GET, unix.ETHTOOL_GENL_VERSION, header)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("table of receive queues: %w", err)
	}
	var table []uint32
	for _, attrs := range answers {
		for _, a := range attrs {
			for b := a.Value; a.Attr.Type == attrTable && len(b) >= 4; b = b[4:] {
				table = append(table, nl.NativeEndian().Uint32(b))
			}
		}
	}
	return table, nil
}

// SubscribeChannels returns a socket that receives a message when the number of queues of an
// interface has changed in the namespace (ETHTOOL_MSG_CHANNELS_NTF), and others. The calling
// thread is in the namespace. nil: the kernel has no such messages.
func SubscribeChannels(ns netns.NsHandle) (*nl.NetlinkSocket, error) {
	family, err := findGenl(unix.ETHTOOL_GENL_NAME)
	if errors.Is(err, unix.ENOENT) { // CONFIG_ETHTOOL_NETLINK
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	group, ok := family.groups[unix.ETHTOOL_MCGRP_MONITOR_NAME]
	if !ok {
		return nil, nil
	}
	sock, err := nl.SubscribeAt(ns, netns.None(), unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("subscribe to ethtool: %w", err)
	}
	// Not by the address of the socket: it has bits for groups up to 32 only.
	if err := unix.SetsockoptInt(sock.GetFd(), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(group)); err != nil {
		sock.Close()
		return nil, fmt.Errorf("subscribe to ethtool: %w", err)
	}
	return sock, nil
}

// IsChannelsNotice: the message of a socket of SubscribeChannels is about numbers of queues.
func IsChannelsNotice(data []byte) bool {
	return len(data) > 0 && data[0] == unix.ETHTOOL_MSG_CHANNELS_NTF
}

// DisableIPv6 disables IPv6 on an interface of the calling thread's namespace, so that the kernel
// sends no router solicitations and listener reports there. conf "default" is for new
// interfaces.
func DisableIPv6(conf string) error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+conf+"/disable_ipv6", []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // a kernel without IPv6
	}
	return err
}

// Distrust makes the kernel refuse IPv4 from the outer end of a port, or from the cutter.
// Otherwise an application could reach the host by IPv4 after somebody has detached the port
// program (ip link set dev PORT xdp off).
func Distrust(iface string) error {
	return SetIPv4(iface, map[string]string{"rp_filter": "1", "drop_unicast_in_l2_multicast": "1", "forwarding": "0"})
}

// SetIPv4 sets an interface's settings in the calling thread's namespace
// (Documentation/networking/ip-sysctl.rst).
func SetIPv4(iface string, settings map[string]string) error {
	for name, value := range settings {
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+iface+"/"+name, []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

// DeleteDevice deletes a device of a kind, if there is one.
func DeleteDevice(h *netlink.Handle, name, kind string) error {
	l, err := h.LinkByName(name)
	if err == nil && l.Type() != kind {
		return nil // another program's device
	}
	if err == nil {
		err = h.LinkDel(l)
	}
	if err = AbsentDeviceIsFine(err); err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

// RestoreOffloads turns offloads on, if the interface exists in the calling thread's namespace.
func RestoreOffloads(ifindex int, of Offloads) error {
	if of == 0 {
		return nil
	}
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return nil // the interface is gone
	}
	return SetOffloads(l.Attrs().Name, of, true)
}
