//go:build linux

package netlab

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// RequireVariable names the environment variable that, set to 1, turns the
// skips of [RequireXDP] into failures, for a machine on which AF_XDP works.
const RequireVariable = "UNET_REQUIRE_XDP"

// TB is the part of testing.TB that this package uses, so that the benchmark
// does not link package testing.
type TB interface {
	Helper()
	Cleanup(func())
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// RequireXDP skips the test where namespaces or AF_XDP are not available, or fails
// it if UNET_REQUIRE_XDP=1.
func RequireXDP(t TB) {
	t.Helper()
	err := xdpUsable()
	switch {
	case err == nil:
	case os.Getenv(RequireVariable) == "1":
		t.Fatalf("%s=1, but %v", RequireVariable, err)
	default:
		t.Skipf("skipped: %v (%s=1 makes this a failure)", err, RequireVariable)
	}
}

// RequirePair is [RequireXDP], then [NewPair] for the length of the test.
func RequirePair(t TB, cfg Config) *Pair {
	t.Helper()
	RequireXDP(t)
	p, err := NewPair(cfg)
	if err != nil {
		t.Fatalf("netlab: %v", err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// xdpUsable returns an error if this process cannot make namespaces or AF_XDP sockets.
func xdpUsable() error {
	if os.Geteuid() != 0 {
		return errors.New("namespaces and AF_XDP need root")
	}
	s, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EAFNOSUPPORT):
		return errors.New("this kernel has no AF_XDP (CONFIG_XDP_SOCKETS)")
	case err != nil:
		return fmt.Errorf("AF_XDP socket: %w", err)
	}
	return unix.Close(s)
}

// NobodyID is the user and group id that the kernel calls the overflow id and
// distributions call nobody.
const NobodyID = 65534

// Nobody returns the attributes to start a process without privileges: as [User] nobody.
func Nobody() *syscall.SysProcAttr { return User(NobodyID) }

// User returns the attributes to start a process of an ordinary user: this user and group, no
// supplementary groups, and no capabilities, because a change of all user ids from root
// clears them (capabilities(7)). The user need not exist on
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
