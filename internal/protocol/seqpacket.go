package protocol

import (
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// How many descriptors ride on a record.
const (
	GrantDescriptors   = 2 // the XSK, then the segment
	OpenDescriptors    = 1 // the table of connections, which may be missing
	PresentDescriptors = 2 // the XSK, then the table of connections, which may be missing
)

// readRecord waits for the next record. It takes at most maxDescriptors
// descriptors from the kernel, which discards the others, and then fails. They
// are close-on-exec (net sets MSG_CMSG_CLOEXEC) and the caller's to close, also
// those that come next to an error. The end of the stream is io.EOF. A
// connection that waits here holds no buffer.
func ReadRecord(c *net.UnixConn, maxDescriptors int) ([]byte, []int, error) {
	size, err := NextRecord(c)
	if err != nil {
		return nil, nil, err
	}
	return TakeRecord(c, size, maxDescriptors)
}

// takeRecord reads the record that nextRecord has found.
//
// What a hostile end sends along can hold this call up, as long as the kernel
// needs to let go of a discarded file: it may be the last reference to it.
func TakeRecord(c *net.UnixConn, size, maxDescriptors int) ([]byte, []int, error) {
	if size > MaxRecord {
		return nil, nil, Violation("a record of %d bytes: at most %d", size, MaxRecord)
	}
	record := make([]byte, size)
	var oob []byte
	if maxDescriptors > 0 {
		// Not CmsgSpace, whose padding has room for a descriptor more.
		oob = make([]byte, unix.CmsgLen(4*maxDescriptors))
	}
	n, oobn, flags, _, err := c.ReadMsgUnix(record, oob)
	fds, parseErr := descriptors(oob[:oobn])
	if err == nil {
		err = parseErr
	}
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = Violation("a record with unexpected descriptors")
	}
	if err == nil && (flags&unix.MSG_TRUNC != 0 || n != size) {
		err = Violation("a record of another length than announced")
	}
	return record, fds, err
}

// nextRecord waits for a record and returns its length without taking it.
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

// descriptors gives those in a control message, also next to an error.
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

func CloseAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// writeRecord sends a record with descriptors of files, which stay the
// caller's. The timeout bounds how long a reader that does not read can hold
// the writer up. One caller at a time.
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

// withDescriptors calls f with the descriptors of files, held open meanwhile.
// It does not use os.File.Fd, which would change their blocking mode, and with
// it that of the copy that was granted.
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
