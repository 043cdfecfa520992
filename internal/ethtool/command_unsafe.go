//go:build linux

package ethtool

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Command executes a command of linux/ethtool.h, which begins with its number, on an interface. The
// kernel writes its answer to command. EOPNOTSUPP: the driver does not have the command.
func (s *Socket) Command(iface string, command []byte) error {
	req := &struct { // struct ifreq, linux/if.h
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte // the rest of the union, and more
	}{data: unsafe.Pointer(unsafe.SliceData(command))}
	if copy(req.name[:len(req.name)-1], iface) < len(iface) {
		return fmt.Errorf("interface name %q is too long", iface)
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(req)))
	runtime.KeepAlive(command)
	if errno != 0 {
		return os.NewSyscallError("ioctl SIOCETHTOOL", errno)
	}
	return nil
}
