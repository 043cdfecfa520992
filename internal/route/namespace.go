package route

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Within runs fn on a thread that is in the namespace ns.
func Within(ns netns.NsHandle, fn func() error) error {
	return away("enter network namespace", func() error { return unix.Setns(int(ns), unix.CLONE_NEWNET) }, fn)
}

// WithinNew runs fn on a thread that is in a new namespace without a name. What
// fn leaves bound there keeps it alive, nothing else does.
func WithinNew(fn func(inner netns.NsHandle) error) error {
	return away("new network namespace", func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() error {
		inner, err := netns.Get()
		if err != nil {
			return fmt.Errorf("new network namespace: %w", err)
		}
		defer inner.Close()
		return fn(inner)
	})
}

// away runs fn on a thread that leave has taken to another namespace, and returns it. One
// that cannot return stays locked, so that it ends with its goroutine: no other code may
// run in the wrong namespace.
func away(what string, leave, fn func() error) (err error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("network namespace of this thread: %w", err)
	}
	defer home.Close()
	if err := leave(); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("%s: %w", what, err)
	}
	defer func() {
		if back := unix.Setns(int(home), unix.CLONE_NEWNET); back != nil {
			err = errors.Join(err, fmt.Errorf("return to this thread's network namespace: %w", back))
			return
		}
		runtime.UnlockOSThread()
	}()
	return fn()
}
