//go:build linux

package session

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// peerCgroup is the version 2 cgroup of the process that has connected a unix socket, as a path below
// the root of unetd's cgroup namespace; "": it is not known, as for a process that has ended, or that
// unetd does not see in its PID or cgroup namespace. pid is that of SO_PEERCRED.
//
// It is the cgroup at the time of this call. The pidfd of SO_PEERPIDFD (Linux 6.5) is of the same
// process: if that has not ended after /proc was read, pid was not another's meanwhile.
func peerCgroup(fd, pid int) string {
	if pid <= 0 {
		return ""
	}
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return ""
	}
	unix.CloseOnExec(pidfd)
	defer unix.Close(pidfd)
	groups, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return ""
	}
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	for err == unix.EINTR {
		n, err = unix.Poll(poll, 0)
	}
	if n != 0 || err != nil { // it has ended
		return ""
	}
	return cgroupOf(string(groups))
}

// cgroupOf finds the line of version 2 in /proc/PID/cgroup (cgroups(7)). A cgroup that was removed,
// or that is not below the root of the namespace, is none.
func cgroupOf(groups string) string {
	for line := range strings.Lines(groups) {
		path, found := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if found && strings.HasPrefix(path, "/") && path != "/.." && !strings.HasPrefix(path, "/../") && !strings.HasSuffix(path, " (deleted)") {
			return path
		}
	}
	return ""
}
