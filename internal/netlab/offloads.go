//go:build linux

package netlab

import (
	"encoding/binary"
	"fmt"

	"github.com/unet-go/unet/internal/ethtool"
)

// An offload is a bit of a value that two commands of SIOCETHTOOL read and write
// (linux/ethtool.h).
type offload struct{ get, set, bit uint32 }

var offloads = map[string]offload{
	"rx": {0x14, 0x15, 1}, "tx": {0x16, 0x17, 1}, "sg": {0x18, 0x19, 1},
	"tso": {0x1e, 0x1f, 1}, "gso": {0x23, 0x24, 1}, "gro": {0x2b, 0x2c, 1},
	"txvlan": {0x25, 0x26, 1 << 7}, "rxvlan": {0x25, 0x26, 1 << 8}, // ETHTOOL_GFLAGS, ETHTOOL_SFLAGS
}

// SetOffloads switches all offloads of an interface, in the namespace of the
// calling thread, on or off. Without them the kernel's stack puts frames on the
// cable that are as long as its MTU at most, with their checksums.
func SetOffloads(iface string, on bool) error {
	order := []string{"rx", "tx", "sg", "tso", "gso", "gro"} // others depend on the first ones
	if !on {
		order = []string{"gro", "gso", "tso", "sg", "tx", "rx"}
	}
	return setOffloads(iface, on, order)
}

// SetSegmentation switches the offloads of segmentation only, both ways. Without
// them frames are as long as the MTU at most; checksums are left to the device.
func SetSegmentation(iface string, on bool) error {
	return setOffloads(iface, on, []string{"tso", "gso", "gro"})
}

func setOffloads(iface string, on bool, order []string) error {
	for _, name := range order {
		if err := SetOffload(iface, name, on); err != nil {
			return err
		}
	}
	return nil
}

// SetOffload switches one offload of an interface, in the namespace of the calling
// thread. name is that of ethtool -K: rx, tx, sg, tso, gso, gro, rxvlan or txvlan.
func SetOffload(iface, name string, on bool) error {
	o := offloads[name]
	v, err := value(iface, o.get, 0)
	if err == nil {
		if v &^= o.bit; on {
			v |= o.bit
		}
		_, err = value(iface, o.set, v)
	}
	if err != nil {
		return fmt.Errorf("offload %s of %s: %w", name, iface, err)
	}
	return nil
}

// Offload reports whether an offload of an interface is on.
func Offload(iface, name string) (bool, error) {
	v, err := value(iface, offloads[name].get, 0)
	if err != nil {
		return false, fmt.Errorf("offload %s of %s: %w", name, iface, err)
	}
	return v&offloads[name].bit != 0, nil
}

// value executes a command of struct ethtool_value, and returns the value in the answer.
func value(iface string, cmd, data uint32) (uint32, error) {
	e, err := ethtool.Open()
	if err != nil {
		return 0, err
	}
	defer e.Close()
	command := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, cmd), data)
	if err := e.Command(iface, command); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint32(command[4:]), nil
}
