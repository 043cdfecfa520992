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

// lingers returns a function that makes descriptors whose last close takes an hour: TCP
// sockets with SO_LINGER and unsent data. Their peers read nothing until the test ends.
func lingers(t *testing.T) func() (fd int) {
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

// heldUp is the number of goroutines in letGo.
func heldUp() int {
	stacks := make([]byte, 4<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("session.letGo("))
}

func TestLetGoInterrupts(t *testing.T) {
	fd := lingers(t)()
	done := make(chan struct{})
	go func() {
		defer close(done)
		letGo(func() { unix.Close(fd) })
	}()
	Await(t, "the close of a socket that lingers", done)
}

// The last close of a socket with SO_LINGER blocks, also when the kernel discards one that
// was sent and not read. That does not delay other users, and delays the sender only for a short
// time.
func TestSocketsThatLinger(t *testing.T) {
	p := newFakeProvider(t)
	socket, ln := Listen(t)
	forAll(t, socket)
	lingering := lingers(t)
	// A descriptor that is read and closed; one too many, which the kernel discards; two on
	// connections beyond the limit, which are never read. All are sent before the server
	// accepts, so that the server closes the last descriptor of each.
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
		as(t, 1001, func() { apps[i] = connect(t, socket) })
		apps[i].send(presentRecord, fds...)
		protocol.CloseAll(fds)
	}
	stop := serve(t, &Server{Provider: p, Limits: Limits{Connections: 8, ConnectionsPerUID: 2}}, ln)
	for i, c := range cases {
		if c.code == "busy" {
			// The answer is another one if one of the first connections has ended already.
			if m, _ := apps[i].receive(); m["error"] == nil {
				t.Errorf("%v", m)
			}
		} else {
			apps[i].wantError(c.id, c.code)
		}
		apps[i].wantEOF()
		served(t, socket)
	}
	until(t, "the threads", func() bool { return heldUp() == 0 })
	stop()
}

// A user opens more connections than unetd refuses at once, each with sockets that linger,
// read and unread. Other users are served, and in the end unetd has freed everything.
func TestRefusedSocketsThatLinger(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	socket, ln := Listen(t)
	forAll(t, socket)
	lingering := lingers(t)
	silent := func() (a *application) {
		as(t, 1001, func() { a = connect(t, socket) })
		return a
	}
	holder := silent() // is the only connection that the user may have
	var apps []*application
	for range 24 {
		a := silent()
		for range 3 {
			fd := lingering()
			a.send(presentRecord, fd)
			unix.Close(fd)
		}
		apps = append(apps, a)
	}
	stop := serve(t, &Server{Provider: p, Limits: Limits{Connections: 4, ConnectionsPerUID: 1, ClosingPerUID: 2}}, ln)
	served(t, socket)
	as(t, 1002, func() { served(t, socket) })
	for _, a := range apps {
		a.wantError(0, "busy")
		a.wantEOF()
		a.conn.Close()
	}
	holder.conn.Close()
	until(t, "the threads", func() bool { return heldUp() == 0 })
	until(t, "the user's place", func() bool {
		a := silent()
		defer a.conn.Close()
		a.send(openRecord)
		m, fds := a.receive()
		protocol.CloseAll(fds)
		return m["grant"] != nil
	})
	stop()
}

// Closes that no signal can interrupt occupy at most the threads of one user, until the file
// system answers, and delay no other user. Here the release of a file waits until the file
// system has written its dirty pages.
func TestRefusalsThatAreGivenUp(t *testing.T) {
	f := newFuse(t)
	p := newFakeProvider(t)
	socket, ln := Listen(t)
	forAll(t, socket)
	var holder *application
	as(t, 1001, func() { holder = connect(t, socket) })
	var apps []*application
	for range 6 {
		fd, err := unix.Openat(f.root, "w", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		var a *application
		as(t, 1001, func() { a = connect(t, socket) })
		a.send(presentRecord, fd)
		unix.Close(fd)
		apps = append(apps, a)
	}
	if _, err := unix.Write(f.open(t, "w", 0), []byte("dirty")); err != nil {
		t.Fatal(err)
	}
	const threads = 2
	stop := serve(t, &Server{Provider: p, Limits: Limits{ConnectionsPerUID: 1, ClosingPerUID: threads}}, ln)
	for _, a := range apps { // answered before they are closed
		a.wantError(0, "busy")
	}
	until(t, "the threads that are held up", func() bool { return heldUp() == threads })
	served(t, socket)
	as(t, 1002, func() { served(t, socket) })
	until(t, "those of others to be done", func() bool { return heldUp() == threads })
	f.release()
	for _, a := range apps {
		a.wantEOF()
	}
	holder.conn.Close()
	until(t, "the threads", func() bool { return heldUp() == 0 })
	stop()
}

// When the bound of connections that wait to be closed is reached, unetd takes no
// descriptors on connections that it has not accepted. So it can refuse more connections of
// any user at once, although the first cannot be closed.
func TestFewConnectionsWait(t *testing.T) {
	f := newFuse(t)
	p := newFakeProvider(t)
	socket, ln := Listen(t)
	if passRights(ln, false); passesRights(ln) {
		t.Skip("no SO_PASSRIGHTS (before Linux 6.16)")
	}
	passRights(ln, true)
	forAll(t, socket)
	silent := func(uid uint32) (a *application) {
		as(t, uid, func() { a = connect(t, socket) })
		return a
	}
	holder := silent(1001)
	silent(1003)
	const threads, waiting, more = 2, 4, 50
	// The last references to a file that cannot be closed are in connections that
	// nobody has accepted yet.
	for range waiting + 1 {
		fd, err := unix.Openat(f.root, "w", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		silent(1001).send(presentRecord, fd)
		unix.Close(fd)
	}
	if _, err := unix.Write(f.open(t, "w", 0), []byte("dirty")); err != nil {
		t.Fatal(err)
	}
	stop := serve(t, &Server{Provider: p, Limits: Limits{ConnectionsPerUID: 1, ClosingPerUID: threads, Waiting: waiting}}, ln)
	until(t, "the listener to take no descriptors any more", func() bool { return !passesRights(ln) })
	before := len(OpenDescriptors(t))
	for i := range more {
		a := silent([]uint32{1001, 1003}[i%2])
		_, _ = a.conn.Write([]byte(openRecord)) // it may be refused already
		a.wantError(0, "busy")
		a.wantEOF()
		a.conn.Close()
	}
	if after := len(OpenDescriptors(t)); after > before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
	as(t, 1002, func() { served(t, socket) })
	f.release()
	holder.conn.Close()
	until(t, "the listener to take descriptors again", func() bool { return passesRights(ln) })
	until(t, "the threads", func() bool { return heldUp() == 0 })
	stop()
}

// After unetd has closed a connection of a user, refused or at the end of its session, it
// waits for a time before it closes the next one of this user. Those of others are closed at
// once. The answer is sent at once. The end of unetd ends the wait.
func TestPauseAfterClosing(t *testing.T) {
	socket, stop := start(t, &Server{Provider: newFakeProvider(t), Limits: Limits{ConnectionsPerUID: 2, ClosingPerUID: 1, ClosePause: time.Hour}})
	forAll(t, socket)
	silent := func(uid uint32, n int) (apps []*application) {
		for range n {
			as(t, uid, func() { apps = append(apps, connect(t, socket)) })
		}
		return apps
	}
	sessions, refused := silent(1001, 2), silent(1001, 10)
	for _, a := range refused {
		a.wantError(0, "busy")
	}
	refused[0].wantEOF()
	sessions[0].send("x")
	sessions[0].wantError(0, "protocol")
	other := silent(1002, 3)[2]
	other.wantError(0, "busy")
	other.wantEOF()
	served(t, socket)
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
