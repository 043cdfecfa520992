package control

import (
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Peer is the process at the application's end, as the kernel knew it when it
// connected (SO_PEERCRED, SO_PEERGROUPS). PID is 0 when that process is not
// visible in unetd's PID namespace. What it has become since then does not
// matter: not another uid, and no group that it has joined or left.
type Peer struct {
	PID      int
	UID, GID uint32
	Groups   []uint32 // GID first, then the supplementary groups; none of them twice
}

func peerOf(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *unix.Ucred
	var groups []uint32
	var sockErr error
	err = raw.Control(func(fd uintptr) {
		if cred, sockErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); sockErr != nil {
			sockErr = os.NewSyscallError("getsockopt SO_PEERCRED", sockErr)
			return
		}
		groups, sockErr = peerGroups(int(fd))
	})
	if err == nil {
		err = sockErr
	}
	if err != nil {
		return Peer{}, err
	}
	p := Peer{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid, Groups: []uint32{cred.Gid}}
	slices.Sort(groups)
	for _, g := range slices.Compact(groups) {
		if g != p.GID {
			p.Groups = append(p.Groups, g)
		}
	}
	return p, nil
}
