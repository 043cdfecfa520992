//go:build linux

package session

import (
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/mux"
)

// peerOf is the process at the application's end, as it was when it connected (SO_PEERCRED,
// SO_PEERGROUPS): a later change of its uid or groups has no effect. PID is 0 if the
// process is not visible in unetd's PID namespace. Groups has GID first, then the
// supplementary groups, none of them twice. Cgroup is what it is now ([peerCgroup]).
func peerOf(c *net.UnixConn) (mux.Owner, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return mux.Owner{}, err
	}
	var cred *unix.Ucred
	var groups []uint32
	var cgroup string
	var sockErr error
	err = raw.Control(func(fd uintptr) {
		if cred, sockErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); sockErr != nil {
			sockErr = os.NewSyscallError("getsockopt SO_PEERCRED", sockErr)
			return
		}
		groups, sockErr = peerGroups(int(fd))
		cgroup = peerCgroup(int(fd), int(cred.Pid))
	})
	if err == nil {
		err = sockErr
	}
	if err != nil {
		return mux.Owner{}, err
	}
	p := mux.Owner{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid, Groups: []uint32{cred.Gid}, Cgroup: cgroup}
	slices.Sort(groups)
	for _, g := range slices.Compact(groups) {
		if g != p.GID {
			p.Groups = append(p.Groups, g)
		}
	}
	return p, nil
}
