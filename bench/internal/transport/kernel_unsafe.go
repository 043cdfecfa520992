package transport

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// send and recv are sendto and recvfrom on a connected, non-blocking socket.

func send(fd int, b []byte) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), 0, 0, 0)
	return errno
}

func recv(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), 0, 0, 0)
	return int(n), errno
}

// sendStream is send on a stream, which may take a part of b.
func sendStream(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), syscall.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

// rawAddress is a socket's address as the kernel has it.
type rawAddress struct {
	any syscall.RawSockaddrAny
	len uintptr // bytes
}

func (a *rawAddress) family() uint16 { return a.any.Addr.Family }

// rawInet is struct sockaddr_in, whose port is in network order.
func rawInet(ap netip.AddrPort) (a rawAddress) {
	port := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, ap.Port()))
	inet := syscall.RawSockaddrInet4{Family: syscall.AF_INET, Addr: ap.Addr().As4(), Port: port}
	*(*syscall.RawSockaddrInet4)(unsafe.Pointer(&a.any)) = inet
	a.len = unsafe.Sizeof(inet)
	return a
}

// rawUnix is struct sockaddr_un of an abstract name, which begins with "@" here and with 0 there.
func rawUnix(name string) (a rawAddress) {
	unix := (*syscall.RawSockaddrUnix)(unsafe.Pointer(&a.any))
	unix.Family = syscall.AF_UNIX
	for i := 1; i < len(name); i++ {
		unix.Path[i] = int8(name[i])
	}
	a.len = unsafe.Offsetof(unix.Path) + uintptr(len(name))
	return a
}

// connect begins to connect a non-blocking socket. Called again, it returns the state of the
// connection attempt.
func connect(fd int, to *rawAddress) syscall.Errno {
	_, _, errno := syscall.RawSyscall(syscall.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&to.any)), to.len)
	return errno
}

// mmsg is the memory of sendmmsg(2) and recvmmsg(2): one message per header.
// It must not be copied once it is initialized, and everything it points to
// stays referenced by it.
type mmsg struct {
	headers []mmsghdr
	iovecs  []syscall.Iovec
	bufs    [][]byte
}

// mmsghdr is struct mmsghdr.
type mmsghdr struct {
	header syscall.Msghdr
	n      uint32 // bytes received, or sent
}

// init makes room for n messages, each with a buffer of size bytes of its own
// unless size is 0.
func (m *mmsg) init(n, size int) {
	m.headers = make([]mmsghdr, n)
	m.iovecs = make([]syscall.Iovec, n)
	m.bufs = make([][]byte, n)
	for i := range m.headers {
		m.headers[i].header.Iov = &m.iovecs[i]
		m.headers[i].header.Iovlen = 1
		if size > 0 {
			m.set(i, make([]byte, size))
		}
	}
}

func (m *mmsg) set(i int, b []byte) {
	m.bufs[i] = b
	m.iovecs[i].Base = unsafe.SliceData(b)
	m.iovecs[i].SetLen(len(b))
}

// point makes the headers name the messages to send.
func (m *mmsg) point(bs [][]byte) {
	for i, b := range bs {
		m.set(i, b)
	}
}

// send sends messages from up to to, and returns how many it could.
func (m *mmsg) send(fd, from, to int) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd),
		uintptr(unsafe.Pointer(&m.headers[from])), uintptr(to-from), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// recv receives up to limit messages without waiting.
func (m *mmsg) recv(fd, limit int) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVMMSG, uintptr(fd),
		uintptr(unsafe.Pointer(&m.headers[0])), uintptr(limit), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// message is the i-th that recv received.
func (m *mmsg) message(i int) []byte { return m.bufs[i][:m.headers[i].n] }
