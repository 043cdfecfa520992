//go:build linux

package mux

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/ethtool"
)

// What ethtool shows and sets of an interface. The calling thread is in the interface's
// namespace in all functions.

// withEthtool calls fn with a socket.
func withEthtool(fn func(*ethtool.Socket) error) error {
	e, err := ethtool.Open()
	if err != nil {
		return err
	}
	defer e.Close()
	return fn(e)
}

// driverName is the driver of an interface, such as "virtio_net".
func driverName(name string) (driver string, err error) {
	err = withEthtool(func(e *ethtool.Socket) (err error) {
		driver, err = e.Driver(name)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("driver of %s: %w", name, err)
	}
	return driver, nil
}

// activeQueues is the number of receive queues that the driver uses now (ETHTOOL_GCHANNELS),
// at most all of the device. all, if the driver does not say.
func activeQueues(name string, all uint32) (n uint32, err error) {
	err = withEthtool(func(e *ethtool.Socket) error {
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
	hidesVLAN    offloads = 1<<0 | 1<<1 // a VLAN tag is in the skb, where XDP does not see it
	mergesFrames offloads = 1<<2 | 1<<3 // the kernel turns these off for generic XDP; in native mode vmxnet3 does, and mlx5, gve and ixgbe refuse the program
)

// offloads is a set of the receive offloads named by offloadNames, a bit each.
type offloads uint32

// offloadNames are names of ethtool -k. Pinned states have sets of them (bpf.State).
var offloadNames = [...]string{"rx-vlan-hw-parse", "rx-vlan-stag-hw-parse", "rx-gro-hw", "rx-lro"}

// String is a list of names.
func (o offloads) String() (s string) {
	for i, name := range offloadNames {
		if o&(1<<i) != 0 {
			s += "," + name
		}
	}
	return s[min(len(s), 1):]
}

// features are the features of an interface by name.
func features(name string) (states map[string]ethtool.Feature, err error) {
	err = withEthtool(func(e *ethtool.Socket) (err error) {
		states, err = e.Features(name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("offloads of %s: %w", name, err)
	}
	return states, nil
}

// offloadsOn is which of the offloads are on. The driver may have none of them.
func offloadsOn(name string, of offloads) (on offloads, err error) {
	states, err := features(name)
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

// offloadsFixed is which of the offloads the driver does not let be changed.
func offloadsFixed(name string) (fixed offloads, err error) {
	states, err := features(name)
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

// setOffloads turns offloads on or off. The driver may refuse without an error.
func setOffloads(name string, of offloads, on bool) error {
	change := map[string]bool{}
	for i, n := range offloadNames {
		if of&(1<<i) != 0 {
			change[n] = on
		}
	}
	if err := withEthtool(func(e *ethtool.Socket) error { return e.SetFeatures(name, change) }); err != nil {
		return fmt.Errorf("set %v of %s: %w", of, name, err)
	}
	return nil
}

// rssTable is the receive queue of each value of a flow's hash (ETHTOOL_MSG_RSS_GET, Linux 6.3);
// nil: the driver has no such table.
func rssTable(ifindex int) ([]uint32, error) {
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

// subscribeChannels returns a socket that receives a message when the number of queues of an
// interface has changed in the namespace (ETHTOOL_MSG_CHANNELS_NTF), and others. The calling
// thread is in the namespace. nil: the kernel has no such messages.
func subscribeChannels(ns netns.NsHandle) (*nl.NetlinkSocket, error) {
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

// isChannelsNotice: the message of a socket of subscribeChannels is about numbers of queues.
func isChannelsNotice(data []byte) bool {
	return len(data) > 0 && data[0] == unix.ETHTOOL_MSG_CHANNELS_NTF
}
