package control

import (
	"encoding/json"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// How long a thread may wait in the kernel for a file of a peer's making before
// it is interrupted, and, each time twice as long up to the longest, interrupted
// again: a signal that comes just before the wait begins ends nothing.
const (
	firstInterrupt   = 2 * time.Millisecond
	longestInterrupt = time.Second
)

// letGo calls f, a system call that may drop the last reference to a file of a
// peer's making, and interrupts what that waits for. A TCP socket that lingers
// would otherwise hold the thread up for as long as its owner has set, and goes
// on by itself when it is interrupted. The signal is the one that the Go runtime
// preempts goroutines with, so it has a handler and means nothing to the program.
// A wait that signals do not end lasts as long as it does: the thread is given up.
//
// f must not wait for anything but the kernel: it keeps the thread.
func letGo(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var mu sync.Mutex
	done := false
	pid, tid, pause := os.Getpid(), unix.Gettid(), firstInterrupt
	mu.Lock()
	var timer *time.Timer
	timer = time.AfterFunc(pause, func() {
		mu.Lock()
		defer mu.Unlock()
		if done {
			return
		}
		// The thread is there until done is set, so this cannot fail.
		_ = unix.Tgkill(pid, tid, unix.SIGURG)
		pause = min(2*pause, longestInterrupt)
		timer.Reset(pause)
	})
	mu.Unlock()
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		done = true
		timer.Stop()
	}()
	f()
}

// hangUp closes a connection such that the other end reads all that was sent
// to it and then the end of the stream. A unix socket that is closed with
// records unread would give it ECONNRESET instead; no record can arrive once
// the reading side is shut down, so what is there can be discarded first.
//
// Nobody may be reading from the connection any more: the last one to use a
// descriptor is who closes it, and that has to be in letGo.
func hangUp(c *net.UnixConn) {
	defer letGo(func() { _ = c.Close() })
	if c.CloseRead() != nil {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		for more := true; more; {
			letGo(func() {
				n, _, err := unix.Recvfrom(int(fd), nil, unix.MSG_TRUNC|unix.MSG_DONTWAIT)
				more = err == unix.EINTR || err == nil && n != 0
			})
		}
	})
}

// refusals answers connections that are one too many, and closes them. It does so
// in goroutines of its own, since closing can block for as long as the peer likes.
// Each user has a few of them, and what is more waits in the user's own line: a
// user who makes them block delays his own refusals.
type refusals struct {
	limits Limits
	work   *sync.WaitGroup // the goroutines

	mu    sync.Mutex
	busy  int                      // goroutines, of all lines
	lines map[uint32]*refusalsLine // users with none have no entry
}

type refusalsLine struct {
	busy    int
	waiting []refused
}

type refused struct {
	conn *net.UnixConn
	why  error
}

func newRefusals(l Limits, work *sync.WaitGroup) *refusals {
	return &refusals{limits: l, work: work, lines: make(map[uint32]*refusalsLine)}
}

// add takes a connection over. It does not block.
func (r *refusals) add(uid uint32, conn *net.UnixConn, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lines[uid]
	if l == nil {
		l = new(refusalsLine)
		r.lines[uid] = l
	}
	l.waiting = append(l.waiting, refused{conn, why})
	// The first is everybody's due, whatever the others take.
	if l.busy == 0 || l.busy < r.limits.RefusalsPerUID && r.busy < r.limits.Connections {
		l.busy++
		r.busy++
		r.work.Go(func() { r.serve(uid, l) })
	}
}

// serve works a line off.
func (r *refusals) serve(uid uint32, l *refusalsLine) {
	for {
		r.mu.Lock()
		if len(l.waiting) == 0 {
			r.busy--
			if l.busy--; l.busy == 0 {
				delete(r.lines, uid)
			}
			r.mu.Unlock()
			return
		}
		next := l.waiting[0]
		l.waiting = l.waiting[1:]
		r.mu.Unlock()
		record, err := json.Marshal(answer{Version: Version, Error: newError(next.why)})
		if err == nil {
			// Nothing was sent on this connection before, so this fits its buffer.
			_ = writeRecord(next.conn, record, r.limits.WriteTimeout)
		}
		hangUp(next.conn)
	}
}
