package mux

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolValue is struct ethtool_value, linux/ethtool.h.
type ethtoolValue struct {
	cmd  uint32
	data uint32
}

// ifreqData is struct ifreq with a pointer in its union (linux/if.h).
type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte // the rest of the union, and more
}

// ETHTOOL_GFLAGS, ETHTOOL_SFLAGS and their bit for receive VLAN offload.
const (
	ethtoolGetFlags = 0x25
	ethtoolSetFlags = 0x26
	flagRxVLAN      = 1 << 8
)

// ethtoolFlags reads or writes the offload flags of an interface of the calling
// thread's namespace.
func ethtoolFlags(iface string, cmd, flags uint32) (uint32, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	v := &ethtoolValue{cmd: cmd, data: flags}
	req := &ifreqData{data: unsafe.Pointer(v)}
	if copy(req.name[:len(req.name)-1], iface) < len(iface) {
		return 0, fmt.Errorf("interface name %q is too long", iface)
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(req)))
	runtime.KeepAlive(v)
	if errno != 0 {
		return 0, os.NewSyscallError("ioctl SIOCETHTOOL", errno)
	}
	return v.data, nil
}
