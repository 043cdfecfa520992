package netlab

import (
	"runtime"
	"syscall"
)

// NobodyID is the user and group id that the kernel calls the overflow id and
// distributions call nobody.
const NobodyID = 65534

// Nobody is how a process without any privilege is started: as [User] nobody.
func Nobody() *syscall.SysProcAttr { return User(NobodyID) }

// User is how a process of an ordinary user is started: this user and group, no
// supplementary groups, and, because a change of all user ids away from root
// clears them (capabilities(7)), no capabilities. The user need not be known to
// the machine. The process leads a process group of its own, so that an interrupt
// from the terminal reaches only its parent, and it is killed when its parent
// dies.
func User(id uint32) *syscall.SysProcAttr {
	attr := Bound()
	attr.Credential = &syscall.Credential{Uid: id, Gid: id}
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

// AsUser calls f in a thread whose effective user is id, as whom it connects then
// (SO_PEERCRED in unix(7)). The process is root's, and its other threads stay so.
func AsUser(id uint32, f func()) {
	become := func(id uint32) {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(id), ^uintptr(0)); errno != 0 {
			panic(errno)
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	become(id)
	defer become(0)
	f()
}
