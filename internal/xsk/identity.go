package xsk

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Cookie is the kernel's number of a socket, by which it is recognised whoever
// holds a descriptor of it and however often that was passed on (SO_COOKIE). A
// descriptor of anything but an AF_XDP socket is refused. f is left as it was.
func Cookie(f *os.File) (cookie uint64, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	// Not by f.Fd, which may change flags that the socket's owner sees too.
	outer := raw.Control(func(fd uintptr) { cookie, err = cookieOf(int(fd)) })
	if outer != nil {
		return 0, outer
	}
	return cookie, err
}

func cookieOf(fd int) (uint64, error) {
	if err := isXSK(fd); err != nil {
		return 0, err
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	return cookie, os.NewSyscallError("getsockopt SO_COOKIE", err)
}

// isXSK refuses what is not an AF_XDP socket.
func isXSK(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return os.NewSyscallError("getsockopt SO_DOMAIN", err)
	}
	if domain != unix.AF_XDP {
		return fmt.Errorf("descriptor is a socket of family %d, not AF_XDP", domain)
	}
	return nil
}

// NewUnbound makes a socket that has no memory and is bound to nothing. It takes
// part in no traffic, and is good for asking whether an entry of a BPF map of
// sockets is taken.
func NewUnbound() (*os.File, error) {
	fd, err := newSocket()
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "xsk"), nil
}
