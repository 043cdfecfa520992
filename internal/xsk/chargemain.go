package xsk

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// What [RegisterMain] is given by descriptor.
const (
	registerSocket = 3 + iota
	registerMemory
)

// Exit codes of [RegisterMain]. The Go runtime has 2 for itself.
const (
	registerFailed      = 1
	registerBeyondLimit = 3 // ErrMemoryLimit
	registerNoHugePages = 4 // ErrHugePages
)

// registerArgs are the arguments of [RegisterMain].
type registerArgs struct {
	uid       uint64
	limit     uint64 // bytes
	size      int    // of the segment, in bytes
	frameSize uint64 // bytes
}

func (a *registerArgs) strings() []string {
	return []string{
		"--uid", strconv.FormatUint(a.uid, 10),
		"--limit", strconv.FormatUint(a.limit, 10),
		"--size", strconv.Itoa(a.size),
		"--frame-size", strconv.FormatUint(a.frameSize, 10),
	}
}

func (a *registerArgs) parse(args []string) error {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says it
	flags.Uint64Var(&a.uid, "uid", 0, "")
	flags.Uint64Var(&a.limit, "limit", 0, "")
	flags.IntVar(&a.size, "size", 0, "")
	flags.Uint64Var(&a.frameSize, "frame-size", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	// The highest number would be no uid to setresuid, but "unchanged".
	if a.uid == 0 || a.uid >= math.MaxUint32 || a.size <= 0 || a.frameSize > math.MaxUint32 || flags.NArg() > 0 {
		return fmt.Errorf("arguments %q: this command is for unetd itself to call", args)
	}
	return nil
}

// RegisterMain is what the command of a [Charge] does: it registers a segment in a
// user's name and returns the exit code of the process. The UMEM and what the
// kernel counts for it outlive the process.
//
// It is a process of the user's for signals, by its real uid, but for nothing else:
// ptrace, /proc and prlimit go by the effective and the saved uid too, which stay.
func RegisterMain(args []string, stderr io.Writer) (exitCode int) {
	var a registerArgs
	err := a.parse(args)
	if err == nil {
		err = a.register()
	}
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, err)
	switch {
	case errors.Is(err, unix.ENOBUFS):
		return registerBeyondLimit
	case errors.Is(err, ErrHugePages):
		return registerNoHugePages
	}
	return registerFailed
}

func (a *registerArgs) register() error {
	runtime.LockOSThread() // capabilities are a thread's own
	defer runtime.UnlockOSThread()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return os.NewSyscallError("getrlimit RLIMIT_MEMLOCK", err)
	}
	if a.limit > limit.Max {
		return fmt.Errorf("RLIMIT_MEMLOCK allows limits of %d bytes, not %d: start unetd with a higher one", limit.Max, a.limit)
	}
	limit.Cur = a.limit
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return os.NewSyscallError("setrlimit RLIMIT_MEMLOCK", err)
	}
	if err := dropIPCLock(); err != nil {
		return err
	}
	if err := unix.Setresuid(int(a.uid), -1, -1); err != nil {
		return fmt.Errorf("setresuid: %w (CAP_SETUID is needed)", err)
	}
	return registerSegment(registerSocket, registerMemory, a.size, uint32(a.frameSize))
}

// dropIPCLock takes CAP_IPC_LOCK from the calling thread, with which the kernel
// would count nothing.
func dropIPCLock() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData // 32 capabilities each
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	caps[unix.CAP_IPC_LOCK/32].Effective &^= 1 << (unix.CAP_IPC_LOCK % 32)
	return os.NewSyscallError("capset", unix.Capset(&header, &caps[0]))
}
