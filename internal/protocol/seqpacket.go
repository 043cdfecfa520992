//go:build linux

package protocol

import (
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
)

// How many descriptors come with a record.
const (
	GrantDescriptors   = 2 // the XSK, then the segment; then the tag table, if there is one
	PathDescriptors    = 4 // those of endpoint.Path, in its order
	OpenDescriptors    = 1 // the table of connections, which may be missing
	PresentDescriptors = 2 // the XSK, then the table of connections, which may be missing
)

// ErrNoDescriptors is an endpoint.ErrBusy: this process could not receive the descriptors of a
// record, because it has as many as it may have. It is a limit of this process, and no violation by
// the other one. The error also wraps EMFILE.
var ErrNoDescriptors = fmt.Errorf("%w: this process cannot receive descriptors: close some, or raise its limit of open files (RLIMIT_NOFILE)", endpoint.ErrBusy)

// ReadRecord waits for the next record. It receives at most maxDescriptors descriptors; if
// there are more, the kernel discards them, and ReadRecord fails. Descriptors are
// close-on-exec (package net sets MSG_CMSG_CLOEXEC). The caller closes them, also if there
// is an error. The end of the stream is io.EOF. While it waits it has allocated no buffer.
func ReadRecord(c *net.UnixConn, maxDescriptors int) ([]byte, []int, error) {
	size, err := NextRecord(c)
	if err != nil {
		return nil, nil, err
	}
	return TakeRecord(c, size, maxDescriptors)
}

// TakeRecord reads the record that NextRecord has found.
//
// It can block in the kernel when descriptors are discarded: the kernel closes their files,
// and may have the last reference to them.
func TakeRecord(c *net.UnixConn, size, maxDescriptors int) ([]byte, []int, error) {
	if size > MaxRecord {
		return nil, nil, Violation("a record of %d bytes: at most %d", size, MaxRecord)
	}
	record := make([]byte, size)
	var oob []byte
	if maxDescriptors > 0 {
		// Not CmsgSpace: its padding has room for one more descriptor.
		oob = make([]byte, unix.CmsgLen(4*maxDescriptors))
	}
	n, oobn, flags, _, err := c.ReadMsgUnix(record, oob)
	fds, parseErr := descriptors(oob[:oobn])
	if err == nil {
		err = parseErr
	}
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = Violation("a record with unexpected descriptors")
		if len(fds) < maxDescriptors { // there was room for more, so the kernel could not make them
			err = fmt.Errorf("%w: %w", ErrNoDescriptors, unix.EMFILE)
		}
	}
	if err == nil && (flags&unix.MSG_TRUNC != 0 || n != size) {
		err = Violation("a record of another length than announced")
	}
	return record, fds, err
}

// NextRecord waits for a record and returns its length without taking it.
func NextRecord(c *net.UnixConn) (size int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var recvErr error
	err = raw.Read(func(fd uintptr) bool {
		for {
			size, _, recvErr = unix.Recvfrom(int(fd), nil, unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
			if recvErr != unix.EINTR {
				return recvErr != unix.EAGAIN
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case recvErr != nil:
		return 0, os.NewSyscallError("recvfrom", recvErr)
	case size == 0:
		return 0, io.EOF
	}
	return size, nil
}

// descriptors returns those in the control messages (SCM_RIGHTS), also if there is an error.
func descriptors(oob []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, Violation("control message: %v", err)
	}
	var all []int
	for _, m := range messages {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			err = Violation("a control message of level %d, type %d", m.Header.Level, m.Header.Type)
			continue
		}
		fds, parseErr := unix.ParseUnixRights(&m)
		all = append(all, fds...)
		if parseErr != nil {
			err = Violation("control message: %v", parseErr)
		}
	}
	return all, err
}

// CloseAll closes descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// WriteRecord sends a record with descriptors of files, which stay the caller's. If the other
// end does not read, it blocks for timeout at most. Only one goroutine at a time may call it.
func WriteRecord(c *net.UnixConn, record []byte, timeout time.Duration, files ...*os.File) error {
	if err := c.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	return withDescriptors(files, nil, func(fds []int) error {
		var oob []byte
		if len(fds) > 0 {
			oob = unix.UnixRights(fds...)
		}
		n, _, err := c.WriteMsgUnix(record, oob, nil)
		if err == nil && n != len(record) {
			err = fmt.Errorf("BUG: %d of %d bytes of a record sent", n, len(record))
		}
		return err
	})
}

// withDescriptors calls f with the descriptors of files, which stay open meanwhile. It does
// not use os.File.Fd, which would change the blocking mode of the file, also for the
// process that gets the descriptor.
func withDescriptors(files []*os.File, fds []int, f func([]int) error) error {
	if len(files) == 0 {
		return f(fds)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		err = withDescriptors(files[1:], append(fds, int(fd)), f)
	})
	if ctlErr != nil {
		return ctlErr
	}
	return err
}
