//go:build linux

package xsk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Charge is the user to whom the memory of a segment is charged. The pages of a UMEM
// cannot be swapped out. They are allocated as long as any socket over the UMEM exists,
// also one that the owner has joined to it (XDP_SHARED_UMEM) in a namespace of the owner's,
// which unetd cannot see. The kernel counts them for the user who registered the UMEM (the
// locked_vm of its user_struct), against RLIMIT_MEMLOCK, unless the process has
// CAP_IPC_LOCK. So a segment is registered with the uid of its owner.
//
// A separate process registers it, and does nothing else ([RegisterMain]). The kernel counts
// by the real uid, and lets a user send signals to processes with the same real uid. So the
// owner can kill this process, but not unetd.
type Charge struct {
	UID   uint32
	Limit uint64 // bytes that the user may have registered in all

	// Command starts a program that calls [RegisterMain] with the argument that follows
	// these. It has the credentials and the environment of the calling process.
	Command []string
}

// ErrMemoryLimit: the user of a [Charge] has reached its limit.
var ErrMemoryLimit = errors.New("the user's limit of registered memory is reached")

// MaxCharge is the largest limit that a [Charge] can have, in bytes: this process's hard
// RLIMIT_MEMLOCK, which the processes that it starts inherit. With CAP_SYS_RESOURCE
// MaxCharge first sets it to infinity.
func MaxCharge() (bytes uint64, err error) {
	lifting.Lock()
	defer lifting.Unlock()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return 0, os.NewSyscallError("getrlimit RLIMIT_MEMLOCK", err)
	}
	if unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit.Cur, Max: unix.RLIM_INFINITY}) == nil {
		return unix.RLIM_INFINITY, nil
	}
	return limit.Max, nil
}

// lifting is held while the process's RLIMIT_MEMLOCK is changed.
var lifting sync.Mutex

// registerLimit is the longest time for a registration. The owner can stop the process that
// registers (SIGSTOP).
var registerLimit = 5 * time.Second // tests change it

// register makes the segment the socket's UMEM, counted for the user. The calling goroutine
// is locked to its thread: when this thread ends, the kernel kills the registering process.
func (c *Charge) register(sock, segment *os.File, p *Params) error {
	if len(c.Command) == 0 {
		return fmt.Errorf("register the segment for uid %d: no command for it is configured", c.UID)
	}
	ctx, cancel := context.WithTimeout(context.Background(), registerLimit)
	defer cancel()
	args, err := json.Marshal(registerArgs{c.UID, c.Limit, p.segmentSize(), p.FrameSize})
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, c.Command[0], append(slices.Clip(c.Command[1:]), string(args))...)
	cmd.ExtraFiles = []*os.File{sock, segment} // registerSocket, registerMemory
	// A SIGINT of the terminal goes only to the calling process, which can finish the registration.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err = cmd.Run(); err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("register the segment for uid %d: not done within %v: the registering process was stopped, or the system is overloaded", c.UID, registerLimit)
	}
	switch cmd.ProcessState.ExitCode() { // -1 for none
	case registerBeyondLimit:
		return fmt.Errorf("%w: uid %d may have %d bytes: end an endpoint of it", ErrMemoryLimit, c.UID, c.Limit)
	case registerNoHugePages:
		return fmt.Errorf("register the segment for uid %d: %w", c.UID, ErrHugePages)
	}
	if line, _, _ := strings.Cut(stderr.String(), "\n"); line != "" {
		err = fmt.Errorf("%w: %s", err, line)
	}
	return fmt.Errorf("register the segment for uid %d in a separate process: %w", c.UID, err)
}

// The descriptors that [RegisterMain] inherits.
const (
	registerSocket = 3 + iota
	registerMemory
)

// Exit codes of [RegisterMain]. The Go runtime exits with 2 after a panic.
const (
	registerFailed      = 1
	registerBeyondLimit = 3 // ErrMemoryLimit
	registerNoHugePages = 4 // ErrHugePages
)

// registerArgs is the argument of [RegisterMain], in JSON.
type registerArgs struct {
	UID       uint32
	Limit     uint64 // bytes
	Size      int    // of the segment, in bytes
	FrameSize uint32 // bytes
}

func (a *registerArgs) parse(args []string) error {
	// For setresuid the highest number is not a uid: it means "unchanged".
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), a) != nil || a.UID == 0 || a.UID == math.MaxUint32 || a.Size <= 0 {
		return fmt.Errorf("arguments %q: only unetd itself calls this command", args)
	}
	return nil
}

// RegisterMain is the main function of the command of a [Charge]: it registers a segment
// that the kernel counts for a user, and returns the exit code of the process. The UMEM and
// its count outlive the process.
//
// The process has the user's real uid, so the user can send it signals. The user cannot
// control it in other ways: ptrace, /proc and prlimit also check the effective and the saved
// uid, which stay unchanged.
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
	runtime.LockOSThread() // each thread has its own capabilities
	defer runtime.UnlockOSThread()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return os.NewSyscallError("getrlimit RLIMIT_MEMLOCK", err)
	}
	if a.Limit > limit.Max {
		return fmt.Errorf("RLIMIT_MEMLOCK allows limits of %d bytes, not %d: start unetd with a higher one", limit.Max, a.Limit)
	}
	limit.Cur = a.Limit
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return os.NewSyscallError("setrlimit RLIMIT_MEMLOCK", err)
	}
	if err := dropIPCLock(); err != nil {
		return err
	}
	if err := unix.Setresuid(int(a.UID), -1, -1); err != nil {
		return fmt.Errorf("setresuid: %w (CAP_SETUID is needed)", err)
	}
	return registerSegment(registerSocket, registerMemory, a.Size, a.FrameSize)
}

// dropIPCLock removes CAP_IPC_LOCK from the calling thread. With it the kernel would count
// nothing.
func dropIPCLock() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData // 32 capabilities each
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	caps[unix.CAP_IPC_LOCK/32].Effective &^= 1 << (unix.CAP_IPC_LOCK % 32)
	return os.NewSyscallError("capset", unix.Capset(&header, &caps[0]))
}
