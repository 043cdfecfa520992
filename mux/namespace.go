package mux

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// home is the network namespace that a locked thread came from.
type home struct{ ns netns.NsHandle }

// leaveHome locks the calling goroutine to its thread, which may then change
// its namespace until back is called.
func leaveHome() (home, error) {
	runtime.LockOSThread()
	ns, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return home{}, fmt.Errorf("network namespace of this thread: %w", err)
	}
	return home{ns}, nil
}

// back returns the thread. One that cannot return stays locked, so that it
// ends with its goroutine: no other code may run in the wrong namespace.
func (h home) back() error {
	err := unix.Setns(int(h.ns), unix.CLONE_NEWNET)
	h.ns.Close()
	if err != nil {
		return fmt.Errorf("return to this thread's network namespace: %w", err)
	}
	runtime.UnlockOSThread()
	return nil
}

// stay unlocks a thread that never left.
func (h home) stay() {
	h.ns.Close()
	runtime.UnlockOSThread()
}

// within runs fn on a thread that is in the namespace ns.
func within(ns netns.NsHandle, fn func() error) (err error) {
	h, err := leaveHome()
	if err != nil {
		return err
	}
	if err := unix.Setns(int(ns), unix.CLONE_NEWNET); err != nil {
		h.stay()
		return fmt.Errorf("enter network namespace: %w", err)
	}
	defer func() { err = errors.Join(err, h.back()) }()
	return fn()
}

// withinNew runs fn on a thread that is in a new namespace without a name. What
// fn leaves bound there keeps it alive, nothing else does.
func withinNew(fn func(inner netns.NsHandle) error) (err error) {
	h, err := leaveHome()
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		h.stay()
		return fmt.Errorf("new network namespace: %w", err)
	}
	defer func() { err = errors.Join(err, h.back()) }()
	inner, err := netns.Get()
	if err != nil {
		return fmt.Errorf("new network namespace: %w", err)
	}
	defer inner.Close()
	return fn(inner)
}

// netnsCookie is the kernel's lasting number of the calling thread's namespace.
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return cookie, os.NewSyscallError("getsockopt SO_NETNS_COOKIE", err)
}

// disableIPv6 keeps the kernel from sending router solicitations and listener
// reports on an interface of the calling thread's namespace; conf may also be
// "default", for interfaces to come.
func disableIPv6(conf string) error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+conf+"/disable_ipv6", []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // a kernel without IPv6
	}
	return err
}

// distrust makes the kernel itself refuse IPv4 from an outer end, which it
// never sees while the port program is there. If somebody takes the program off
// (ip link set dev PORT xdp off), the application could otherwise talk to the host
// as if from a network of its own.
func distrust(iface string) error {
	return setIPv4(iface, map[string]string{"rp_filter": "1", "drop_unicast_in_l2_multicast": "1", "forwarding": "0"})
}

// setIPv4 sets an interface's settings in the calling thread's namespace
// (Documentation/networking/ip-sysctl.rst).
func setIPv4(iface string, settings map[string]string) error {
	for name, value := range settings {
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+iface+"/"+name, []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}
