package netlab

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands of SIOCETHTOOL that switch an offload (linux/ethtool.h).
var offloadCommands = map[string]uint32{"rx": 0x15, "tx": 0x17, "sg": 0x19, "tso": 0x1f, "gso": 0x24, "gro": 0x2c}

// SetOffloads switches all offloads of an interface, in the namespace of the
// calling thread, on or off. Without them the kernel's stack puts frames on the
// cable that are as long as its MTU at most, with their checksums.
func SetOffloads(iface string, on bool) error {
	order := []string{"rx", "tx", "sg", "tso", "gso", "gro"} // what others need comes first
	if !on {
		order = []string{"gro", "gso", "tso", "sg", "tx", "rx"}
	}
	return setOffloads(iface, on, order)
}

// SetSegmentation switches the offloads of segmentation only, both ways. Without
// them frames are as long as the MTU at most; checksums stay the device's business.
func SetSegmentation(iface string, on bool) error {
	return setOffloads(iface, on, []string{"tso", "gso", "gro"})
}

func setOffloads(iface string, on bool, order []string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	for _, name := range order {
		v := struct{ cmd, data uint32 }{cmd: offloadCommands[name]} // struct ethtool_value
		if on {
			v.data = 1
		}
		req := struct { // struct ifreq
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{data: unsafe.Pointer(&v)}
		copy(req.name[:len(req.name)-1], iface)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
		runtime.KeepAlive(&v)
		if errno != 0 {
			return fmt.Errorf("offload %s of %s: %w", name, iface, errno)
		}
	}
	return nil
}
