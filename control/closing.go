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
		for discard(int(fd)) {
		}
	})
}

// discard takes one record off a connection, if there is one. Only one that has
// descriptors with it can block.
func discard(fd int) (more bool) {
	take := func() {
		n, _, err := unix.Recvfrom(fd, nil, unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		more = err == unix.EINTR || err == nil && n != 0
	}
	_, _, flags, _, err := unix.Recvmsg(fd, nil, nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if err == nil && flags&unix.MSG_CTRUNC == 0 {
		take()
	} else {
		letGo(take)
	}
	return more
}

// refusals answers connections that are one too many, and closes them. It does so
// in goroutines of its own, since closing can block for as long as the peer likes.
// Each user has a few of them, and what is more waits in the user's own line: a
// user who makes them block delays his own refusals.
//
// When a line is full the listener takes no descriptors any more, and then closing
// a new connection cannot block: it is refused at once. So a line
// is not longer than WaitingPerUID and the listener's backlog together (before Linux
// 6.16: it has no bound). Sessions take descriptors all the same.
type refusals struct {
	limits Limits
	ln     *net.UnixListener
	work   *sync.WaitGroup // the goroutines

	mu    sync.Mutex
	busy  int                      // goroutines, of all lines
	full  int                      // lines
	lines map[uint32]*refusalsLine // users with none have no entry
}

type refusalsLine struct {
	busy    int
	full    bool // until half of them are gone
	waiting []refused
}

type refused struct {
	conn *net.UnixConn
	why  error
}

func newRefusals(l Limits, ln *net.UnixListener, work *sync.WaitGroup) *refusals {
	return &refusals{limits: l, ln: ln, work: work, lines: make(map[uint32]*refusalsLine)}
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
	if len(l.waiting) >= r.limits.WaitingPerUID {
		r.setFull(l, true)
		if !passesRights(conn) {
			r.tell(refused{conn, why})
			_ = conn.Close()
			return
		}
	}
	l.waiting = append(l.waiting, refused{conn, why})
	// The first is everybody's due, whatever the others take.
	if l.busy == 0 || l.busy < r.limits.RefusalsPerUID && r.busy < r.limits.Connections {
		l.busy++
		r.busy++
		r.work.Go(func() { r.serve(uid, l) })
	}
}

// setFull notes whether a line is full. r.mu is held.
func (r *refusals) setFull(l *refusalsLine, full bool) {
	if l.full == full {
		return
	}
	before := r.full
	if l.full = full; full {
		r.full++
	} else {
		r.full--
	}
	if before == 0 || r.full == 0 {
		passRights(r.ln, r.full == 0)
	}
}

// serve works a line off.
func (r *refusals) serve(uid uint32, l *refusalsLine) {
	for {
		r.mu.Lock()
		if len(l.waiting) <= r.limits.WaitingPerUID/2 {
			r.setFull(l, false)
		}
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
		r.tell(next)
		hangUp(next.conn)
	}
}

func (r *refusals) tell(c refused) {
	record, err := json.Marshal(answer{Version: Version, Error: newError(c.why)})
	if err == nil {
		// Nothing was sent on this connection before, so this fits its buffer.
		_ = writeRecord(c.conn, record, r.limits.WriteTimeout)
	}
}
