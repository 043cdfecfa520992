package netlab

import "syscall"

// NobodyID is the user and group id that the kernel calls the overflow id and
// distributions call nobody.
const NobodyID = 65534

// Nobody is how a process without any privilege is started: user and group
// nobody, no supplementary groups, and, because a change of all user ids away
// from root clears them (capabilities(7)), no capabilities. It leads a process
// group of its own, so that an interrupt from the terminal reaches only its
// parent, and it is killed when its parent dies.
func Nobody() *syscall.SysProcAttr {
	attr := Bound()
	attr.Credential = &syscall.Credential{Uid: NobodyID, Gid: NobodyID}
	return attr
}

// Bound is how a process is started that keeps its privileges, but not its
// parent's terminal signals, and that is killed when its parent dies.
func Bound() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Setpgid:   true,
		Pdeathsig: syscall.SIGKILL,
	}
}
