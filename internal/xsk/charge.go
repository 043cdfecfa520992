package xsk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Charge says whose memory a segment is. The pages of a UMEM cannot be swapped
// out, and live as long as any socket over it does: also one that its owner has
// made in a namespace of his own and joined to it (XDP_SHARED_UMEM), of which
// nobody else knows. The kernel counts them for the user who registered the UMEM
// (the locked_vm of its user_struct), against RLIMIT_MEMLOCK, unless it is
// somebody with CAP_IPC_LOCK. So a segment is registered in its owner's name.
//
// Another process does that, of which [RegisterMain] is the whole life. The kernel
// counts by the real uid, and lets a user send signals to whatever has his real uid:
// to a single thread, and SIGKILL to that ends its process. What the owner can
// kill is a process that works for him alone.
type Charge struct {
	UID   uint32
	Limit uint64 // bytes that the user may have registered in all

	// Command starts a program that calls [RegisterMain] with the arguments behind
	// these. It runs as the calling process does, with its environment.
	Command []string
}

// ErrMemoryLimit: the user of a [Charge] has reached its limit.
var ErrMemoryLimit = errors.New("the user's limit of registered memory is reached")

// MaxCharge is the largest limit that a [Charge] can have: this process's hard
// RLIMIT_MEMLOCK, which a process started by it inherits. It is lifted first if that
// is allowed (CAP_SYS_RESOURCE).
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

// lifting is held around a change of the process's RLIMIT_MEMLOCK.
var lifting sync.Mutex

// registerLimit is how long a registration may take. The owner can stop the
// process that does it (SIGSTOP).
const registerLimit = 5 * time.Second

// register makes the segment the socket's UMEM, in the user's name. The calling
// goroutine is locked to its thread, with whose end the other process is killed.
func (c *Charge) register(sock, segment *os.File, p *Params) error {
	if len(c.Command) == 0 {
		return fmt.Errorf("register the segment for uid %d: no command is given that does it", c.UID)
	}
	ctx, cancel := context.WithTimeout(context.Background(), registerLimit)
	defer cancel()
	args := registerArgs{uid: uint64(c.UID), limit: c.Limit, size: p.segmentSize(), frameSize: uint64(p.FrameSize)}
	cmd := exec.CommandContext(ctx, c.Command[0], slices.Concat(c.Command[1:], args.strings())...)
	cmd.ExtraFiles = []*os.File{sock, segment} // registerSocket, registerMemory
	// An interrupt from the terminal is for the calling process, which may finish.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("register the segment for uid %d: not done within %v: the process that does it was stopped, or the system is overloaded", c.UID, registerLimit)
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
	return fmt.Errorf("register the segment for uid %d in a process of its own: %w", c.UID, err)
}
