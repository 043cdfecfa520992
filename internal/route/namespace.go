package route

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// within runs fn on a thread that is in the namespace ns. A thread that cannot
// return stays locked, so that it ends with its goroutine.
func within(ns netns.NsHandle, fn func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("network namespace of this thread: %w", err)
	}
	defer home.Close()
	if err := unix.Setns(int(ns), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace: %w", err)
	}
	err = fn()
	if back := unix.Setns(int(home), unix.CLONE_NEWNET); back != nil {
		return fmt.Errorf("return to this thread's network namespace: %w", back)
	}
	runtime.UnlockOSThread()
	return err
}
