//go:build linux

package session

import (
	"bytes"
	"errors"
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
)

// lingeringSockets returns a function that makes sockets whose last close takes an hour: TCP
// sockets with SO_LINGER and unsent data. Their peers read nothing until the test ends.
func lingeringSockets(t *testing.T) func() (fd int) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var peers []net.Conn
	t.Cleanup(func() {
		ln.Close()
		for _, c := range peers {
			c.Close()
		}
	})
	return func() int {
		t.Helper()
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		peer, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		peers = append(peers, peer)
		if err := errors.Join(peer.(*net.TCPConn).SetReadBuffer(1<<12), c.(*net.TCPConn).SetWriteBuffer(1<<12)); err != nil {
			t.Fatal(err)
		}
		file, err := c.(*net.TCPConn).File()
		c.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.SetNonblock(fd, true); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = unix.Write(fd, make([]byte, 1<<16))
		}
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}); err != nil {
			t.Fatal(err)
		}
		return fd
	}
}

// blockedCloses is the number of goroutines in interruptibly.
func blockedCloses() int {
	stacks := make([]byte, 4<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("session.interruptibly("))
}

// interruptibly interrupts a close that lingers.
func TestLetGoInterrupts(t *testing.T) {
	fd := lingeringSockets(t)()
	done := make(chan struct{})
	go func() {
		defer close(done)
		interruptibly(func() { unix.Close(fd) })
	}()
	Await(t, "the close of a socket that lingers", done)
}

// The last close of a socket with SO_LINGER blocks, also when the kernel closes a descriptor that was sent and not
// read. That does not delay other users, and delays the sender only for a short time.
func TestSocketsThatLinger(t *testing.T) {
	p := newFakeProvider(t)
	socket, ln := Listen(t)
	permitAll(t, socket)
	lingering := lingeringSockets(t)
	// A descriptor that is read and closed; one more than a request may have, which the kernel closes; two on
	// connections beyond the limit, which are never read. All are sent before the server accepts, so that
	// the server closes the last descriptor of each socket.
	cases := []struct {
		fds  int
		id   float64
		code string
	}{{1, 1, "not-presentable"}, {3, 0, "protocol"}, {1, 0, "busy"}, {1, 0, "busy"}}
	apps := make([]*application, len(cases))
	for i, c := range cases {
		var fds []int
		for range c.fds {
			fds = append(fds, lingering())
		}
		apps[i] = connectAs(t, 1001, socket)
		apps[i].send(presentRecord, fds...)
		protocol.CloseAll(fds)
	}
	stop := serve(t, &Server{Provider: p, Limits: Limits{Connections: 8, ConnectionsPerUID: 2}}, ln)
	for i, c := range cases {
		if c.code == "busy" {
			// The error has another code if one of the first connections has ended already.
			if m, _ := apps[i].receive(); m["error"] == nil {
				t.Errorf("%v", m)
			}
		} else {
			apps[i].wantError(c.id, c.code)
		}
		apps[i].wantEOF()
		checkServed(t, socket)
	}
	until(t, "the end of all closes", func() bool { return blockedCloses() == 0 })
	stop()
}

// A user opens more connections than unetd refuses at once, each with sockets that linger,
// read and unread. Other users are served, and in the end unetd has freed everything.
func TestRefusedSocketsThatLinger(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	socket, ln := Listen(t)
	permitAll(t, socket)
	lingering := lingeringSockets(t)
	holder := connectAs(t, 1001, socket) // the only connection that the user may have
	var apps []*application
	for range 24 {
		a := connectAs(t, 1001, socket)
		for range 3 {
			fd := lingering()
			a.send(presentRecord, fd)
			unix.Close(fd)
		}
		apps = append(apps, a)
	}
	stop := serve(t, &Server{Provider: p, Limits: Limits{Connections: 4, ConnectionsPerUID: 1, ClosingPerUID: 2}}, ln)
	checkServed(t, socket)
	as(t, 1002, func() { checkServed(t, socket) })
	for _, a := range apps {
		a.wantError(0, "busy")
		a.wantEOF()
		a.conn.Close()
	}
	holder.conn.Close()
	until(t, "the end of all closes", func() bool { return blockedCloses() == 0 })
	until(t, "the user to be served again", func() bool {
		a := connectAs(t, 1001, socket)
		defer a.conn.Close()
		a.send(openRecord)
		m, fds := a.receive()
		protocol.CloseAll(fds)
		return m["grant"] != nil
	})
	stop()
}

// Closes that no signal can interrupt occupy at most ClosingPerUID threads for a user until the file system
// answers, and delay no other user. Here the release of a file waits until the file system has written its
// dirty pages.
func TestUninterruptibleClosesAreBounded(t *testing.T) {
	f := newFuse(t)
	p := newFakeProvider(t)
	socket, ln := Listen(t)
	permitAll(t, socket)
	holder := connectAs(t, 1001, socket)
	var apps []*application
	for range 6 {
		fd, err := unix.Openat(f.root, "w", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		a := connectAs(t, 1001, socket)
		a.send(presentRecord, fd)
		unix.Close(fd)
		apps = append(apps, a)
	}
	if _, err := unix.Write(f.open(t, "w", 0), []byte("dirty")); err != nil {
		t.Fatal(err)
	}
	const threads = 2
	stop := serve(t, &Server{Provider: p, Limits: Limits{ConnectionsPerUID: 1, ClosingPerUID: threads}}, ln)
	for _, a := range apps { // the answer is sent before the close
		a.wantError(0, "busy")
	}
	until(t, "as many blocked closes as there are threads", func() bool { return blockedCloses() == threads })
	checkServed(t, socket)
	as(t, 1002, func() { checkServed(t, socket) })
	until(t, "the end of the closes of other users", func() bool { return blockedCloses() == threads })
	f.release()
	for _, a := range apps {
		a.wantEOF()
	}
	holder.conn.Close()
	until(t, "the end of all closes", func() bool { return blockedCloses() == 0 })
	stop()
}

// When as many connections as Waiting permits wait to be closed, unetd takes no descriptors on connections that it
// has not accepted. So it can refuse further connections of any user immediately, although the first ones cannot
// be closed.
func TestNoDescriptorsWhileManyConnectionsWait(t *testing.T) {
	f := newFuse(t)
	p := newFakeProvider(t)
	socket, ln := Listen(t)
	if passRights(ln, false); passesRights(ln) {
		t.Skip("no SO_PASSRIGHTS (before Linux 6.16)")
	}
	passRights(ln, true)
	permitAll(t, socket)
	holder := connectAs(t, 1001, socket)
	connectAs(t, 1003, socket)
	const threads, waiting, more = 2, 4, 50
	// The last references to a file that cannot be closed are in connections that are not accepted yet.
	for range waiting + 1 {
		fd, err := unix.Openat(f.root, "w", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		connectAs(t, 1001, socket).send(presentRecord, fd)
		unix.Close(fd)
	}
	if _, err := unix.Write(f.open(t, "w", 0), []byte("dirty")); err != nil {
		t.Fatal(err)
	}
	stop := serve(t, &Server{Provider: p, Limits: Limits{ConnectionsPerUID: 1, ClosingPerUID: threads, Waiting: waiting}}, ln)
	until(t, "the listener to take no descriptors any more", func() bool { return !passesRights(ln) })
	before := len(OpenDescriptors(t))
	for i := range more {
		a := connectAs(t, []uint32{1001, 1003}[i%2], socket)
		_, _ = a.conn.Write([]byte(openRecord)) // fails if the connection has been refused already
		a.wantError(0, "busy")
		a.wantEOF()
		a.conn.Close()
	}
	if after := len(OpenDescriptors(t)); after > before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
	as(t, 1002, func() { checkServed(t, socket) })
	f.release()
	holder.conn.Close()
	until(t, "the listener to take descriptors again", func() bool { return passesRights(ln) })
	until(t, "the end of all closes", func() bool { return blockedCloses() == 0 })
	stop()
}

// After unetd has closed a connection of a user it waits for ClosePause before it closes the next one of this user,
// whether the connection was refused or its session has ended. Connections of other users are closed, and answers
// are sent, without a wait. The end of unetd ends the wait.
func TestPauseAfterClosing(t *testing.T) {
	socket, stop := start(t, &Server{Provider: newFakeProvider(t), Limits: Limits{ConnectionsPerUID: 2, ClosingPerUID: 1, ClosePause: time.Hour}})
	permitAll(t, socket)
	connectMany := func(uid uint32, n int) (apps []*application) {
		for range n {
			apps = append(apps, connectAs(t, uid, socket))
		}
		return apps
	}
	sessions, refused := connectMany(1001, 2), connectMany(1001, 10)
	for _, a := range refused {
		a.wantError(0, "busy")
	}
	refused[0].wantEOF()
	sessions[0].send("x")
	sessions[0].wantError(0, "protocol")
	other := connectMany(1002, 3)[2]
	other.wantError(0, "busy")
	other.wantEOF()
	checkServed(t, socket)
	for i, a := range append(refused[1:], sessions[0]) {
		raw, err := a.conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		b, n := make([]byte, protocol.MaxRecord), 0
		if ctlErr := raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), b) }); ctlErr != nil || err != unix.EAGAIN {
			t.Errorf("connection %d: %q, %v, %v", i, b[:max(n, 0)], err, ctlErr)
		}
	}
	stop()
	for _, a := range refused[1:] {
		a.wantEOF()
	}
	sessions[0].wantEOF()
}
