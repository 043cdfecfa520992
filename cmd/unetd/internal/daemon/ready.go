package daemon

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Inherited is the descriptor that whoever started this process left open for
// it. One that is closed on exec cannot be that: it is this process's own.
func Inherited(fd int, name string) (*os.File, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err == nil && flags&unix.FD_CLOEXEC != 0 {
		err = unix.EBADF
	}
	if err != nil {
		return nil, fmt.Errorf("%w: pass an open descriptor", err)
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name), nil
}

// notifyReady tells whoever started the daemon that it serves: a service
// manager by sd_notify(3), others by a line on a descriptor that they gave.
func notifyReady(line *os.File) error {
	if path := os.Getenv("NOTIFY_SOCKET"); path != "" {
		if err := sdNotify(path, "READY=1"); err != nil {
			return fmt.Errorf("cannot notify NOTIFY_SOCKET: %w", err)
		}
	}
	if line == nil {
		return nil
	}
	if _, err := line.WriteString("ready\n"); err != nil {
		return fmt.Errorf("cannot write that unetd is ready: %w: pass an open descriptor", err)
	}
	return line.Close()
}

// sdNotify sends one state. Package net reads a leading @ as sd_notify does.
func sdNotify(path, state string) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte(state))
	return err
}
