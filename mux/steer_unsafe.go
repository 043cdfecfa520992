//go:build linux

package mux

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolCommand executes a command of linux/ethtool.h, which begins with its number, by the ioctl
// SIOCETHTOOL on an interface of the socket's namespace. The kernel writes its answer to command.
func ethtoolCommand(fd int, iface string, command []byte) error {
	req := &struct { // struct ifreq, linux/if.h
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte // the rest of the union, and more
	}{data: unsafe.Pointer(unsafe.SliceData(command))}
	if copy(req.name[:len(req.name)-1], iface) < len(iface) {
		return fmt.Errorf("interface name %q is too long", iface)
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(req)))
	runtime.KeepAlive(command)
	if errno != 0 {
		return os.NewSyscallError("ioctl SIOCETHTOOL", errno)
	}
	return nil
}
