package xsk

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Charge says whose memory a segment is. The pages of a UMEM cannot be swapped
// out, and live as long as any socket over it does: also one that its owner has
// made in a namespace of his own and joined to it (XDP_SHARED_UMEM), of which
// nobody else knows. The kernel counts them for the user who registered the UMEM
// (the locked_vm of its user_struct), against RLIMIT_MEMLOCK, unless it is
// somebody with CAP_IPC_LOCK. So a segment is registered in its owner's name.
type Charge struct {
	UID   uint32
	Limit uint64 // bytes that the user may have registered in all
}

// ErrMemoryLimit: the user of a [Charge] has reached its limit.
var ErrMemoryLimit = errors.New("the user's limit of registered memory is reached")

// MaxCharge is the largest limit that a [Charge] can have in this process: its hard
// RLIMIT_MEMLOCK, which is lifted first if that is allowed (CAP_SYS_RESOURCE).
func MaxCharge() (bytes uint64, err error) {
	charging.Lock()
	defer charging.Unlock()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return 0, os.NewSyscallError("getrlimit RLIMIT_MEMLOCK", err)
	}
	if unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit.Cur, Max: unix.RLIM_INFINITY}) == nil {
		return unix.RLIM_INFINITY, nil
	}
	return limit.Max, nil
}

// charging is held around a change of the process's RLIMIT_MEMLOCK.
var charging sync.Mutex

// do runs register, which the kernel charges to the user. The calling goroutine
// is locked to its thread.
//
// Credentials are a thread's own in Linux, and package syscall would change those
// of all threads; hence the raw calls. Only the real uid changes, by which the
// kernel counts; the effective one, by which it permits, stays.
func (c *Charge) do(register func() error) (err error) {
	if c == nil || c.UID == 0 {
		return register()
	}
	charging.Lock()
	defer charging.Unlock()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before); err != nil {
		return os.NewSyscallError("getrlimit RLIMIT_MEMLOCK", err)
	}
	if c.Limit > before.Max {
		return fmt.Errorf("charge the segment to uid %d: RLIMIT_MEMLOCK of this process allows limits of %d bytes, not %d: start it with a higher one", c.UID, before.Max, c.Limit)
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: c.Limit, Max: before.Max}); err != nil {
		return os.NewSyscallError("setrlimit RLIMIT_MEMLOCK", err)
	}
	defer func() {
		err = errors.Join(err, os.NewSyscallError("setrlimit RLIMIT_MEMLOCK", unix.Setrlimit(unix.RLIMIT_MEMLOCK, &before)))
	}()
	self := uint32(unix.Getuid())
	if self != c.UID {
		if err := setRealUID(c.UID); err != nil {
			return fmt.Errorf("charge the segment to uid %d: %w (CAP_SETUID is needed)", c.UID, err)
		}
		defer func() { err = errors.Join(err, setRealUID(self)) }()
	}
	giveBack, err := withoutIPCLock()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, giveBack()) }()
	err = register()
	if errors.Is(err, unix.ENOBUFS) {
		return fmt.Errorf("%w: uid %d may have %d bytes: end an endpoint of it", ErrMemoryLimit, c.UID, c.Limit)
	}
	return err
}

// setRealUID changes the real uid of the calling thread.
func setRealUID(uid uint32) error {
	const unchanged = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), unchanged, unchanged); errno != 0 {
		return os.NewSyscallError("setresuid", errno)
	}
	return nil
}

// withoutIPCLock takes CAP_IPC_LOCK from the calling thread, for a while.
func withoutIPCLock() (giveBack func() error, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var before [2]unix.CapUserData // 32 capabilities each
	if err := unix.Capget(&header, &before[0]); err != nil {
		return nil, os.NewSyscallError("capget", err)
	}
	less := before
	less[unix.CAP_IPC_LOCK/32].Effective &^= 1 << (unix.CAP_IPC_LOCK % 32)
	if err := unix.Capset(&header, &less[0]); err != nil {
		return nil, os.NewSyscallError("capset", err)
	}
	return func() error { return os.NewSyscallError("capset", unix.Capset(&header, &before[0])) }, nil
}
