//go:build linux

package session

import (
	"encoding/json"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/protocol"
	"github.com/unet-go/unet/internal/share"
)

// A thread that blocks in the kernel on a peer's file is sent a signal after
// firstInterrupt, and again after pauses that double up to longestInterrupt: a signal that
// arrives before the thread blocks has no effect.
const (
	firstInterrupt   = 2 * time.Millisecond
	longestInterrupt = time.Second
)

// interruptibly calls f, a system call that may drop the last reference to a peer's file, and
// interrupts it by signals while it blocks. The close of a TCP socket with SO_LINGER would
// block for as long as its owner has set; a signal ends that wait. The signal is SIGURG,
// which the Go runtime handles (it preempts goroutines by it). Where signals do not end the
// wait, as in the flush of a FUSE file, the thread stays blocked.
//
// f is locked to its thread, so it must not block outside the kernel.
func interruptibly(f func()) {
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
		// The thread exists until done is set, so this cannot fail.
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
// to it and then the end of the stream. If a unix socket is closed with unread records, the
// other end reads ECONNRESET instead. So hangUp shuts down the receive side, after which no
// record can arrive, and discards the records that have arrived.
//
// No other goroutine may use the connection: package net closes the descriptor in the last
// goroutine that uses it, and the close has to be in interruptibly.
func hangUp(c *net.UnixConn) {
	defer interruptibly(func() { _ = c.Close() })
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

// discard takes one record off a connection, if there is one. It can block only if the
// record has descriptors.
func discard(fd int) (more bool) {
	take := func() {
		n, _, err := unix.Recvfrom(fd, nil, unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		more = err == unix.EINTR || err == nil && n != 0
	}
	_, _, flags, _, err := unix.Recvmsg(fd, nil, nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if err == nil && flags&unix.MSG_CTRUNC == 0 {
		take()
	} else {
		interruptibly(take)
	}
	return more
}

// refusals answers connections beyond the limits with an error at once, and closes them. The
// peer can make the close block for any time. So each is closed in one of its user's turns, and
// costs one descriptor until then.
//
// When Limits.Waiting connections wait, the listener stops receiving descriptors
// (SO_PASSRIGHTS). The close of a connection made from then on cannot block, so that
// connection is closed at once. So at most Limits.Waiting and the listener's backlog wait
// (before Linux 6.16 there is no limit). Sessions receive descriptors in any case.
type refusals struct {
	limits Limits
	ln     *net.UnixListener
	quotas *quotas
	work   *sync.WaitGroup // the goroutines

	mu sync.Mutex
	// +checklocks:mu
	open int // connections that wait or are being closed
	// +checklocks:mu
	full bool // the listener receives no descriptors, until half of open are closed
}

// add answers a connection with an error and takes it over. It does not block.
func (r *refusals) add(user share.User, conn *net.UnixConn, why error) {
	record, err := json.Marshal(protocol.Answer{Version: protocol.Version, Error: protocol.NewError(why)})
	if err == nil {
		// Nothing was sent on this connection before, so this fits its buffer.
		_ = protocol.WriteRecord(conn, record, r.limits.WriteTimeout)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open >= r.limits.Waiting {
		r.setFull(true)
		if !passesRights(conn) {
			hangUp(conn)
			return
		}
	}
	r.open++
	turn := r.quotas.closing.Ask(user)
	r.work.Go(func() {
		<-turn
		defer r.quotas.closed(user)
		hangUp(conn)
		r.closed()
	})
}

// setFull sets whether the listener receives no descriptors. r.mu is held.
//
// +checklocks:r.mu
func (r *refusals) setFull(full bool) {
	if r.full != full {
		r.full = full
		passRights(r.ln, !full)
	}
}

func (r *refusals) closed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open--; r.open <= r.limits.Waiting/2 {
		r.setFull(false)
	}
}

// passRights sets whether descriptors can be sent to a connection (SO_PASSRIGHTS). If not,
// the sender gets EPERM, and no descriptor waits to be read and closed. A connection
// inherits the setting of its listener. Before Linux 6.16 descriptors can always be sent.
func passRights(c syscall.Conn, on bool) {
	value := 0
	if on {
		value = 1
	}
	raw, err := c.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, value) })
	}
}

// passesRights reports whether descriptors can be sent to a connection.
func passesRights(c syscall.Conn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	value := 1
	ctlErr := raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS) })
	return ctlErr != nil || err != nil || value != 0
}
