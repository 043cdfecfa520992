//go:build linux

package control

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	. "github.com/unet-go/unet/internal/protocoltest"
)

func TestDialErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ended, ln := Listen(t)
	ln.SetUnlinkOnClose(false)
	ln.Close()
	stream := filepath.Join(dir, "stream")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: stream}), unix.Listen(fd, 1)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, want string }{
		{filepath.Join(dir, "none"), "unetd is not running at "},
		{filepath.Join(file, "none"), "unetd is not running at "},
		{file, "is not a socket"},
		{ended, "left its socket there"},
		{stream, "not the socket of unetd"},
	} {
		_, _, err := Open(context.Background(), c.path, endpoint.Request{})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.path) {
			t.Errorf("%s: %v, want %q", c.path, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := Open(ctx, ended, endpoint.Request{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestDialWithoutPermission(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	socket, _ := Listen(t)
	for dir := filepath.Dir(socket); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its file system uid
		if err := unix.Setfsuid(65534); err != nil {
			done <- err
			return
		}
		_, _, err := Open(context.Background(), socket, endpoint.Request{})
		done <- err
	}()
	err := <-done
	if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "mode 0600, owner root, group root") {
		t.Errorf("%v", err)
	}
}

// When the listener's backlog is full, an application that opens waits.
func TestDialBacklogFull(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: socket}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	first, err := dial(context.Background(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second := make(chan error, 1)
	go func() {
		c, err := dial(context.Background(), socket)
		if err == nil {
			c.Close()
		}
		second <- err
	}()
	for range 2 {
		c, _, err := unix.Accept(fd)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(c)
	}
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// If unetd takes no descriptors for too long, the error is that unetd is busy, and not the
// kernel's EPERM, which would mean that the application lacks permission.
func TestOpenWhileUnetdTakesNoDescriptors(t *testing.T) {
	socket, ln := Listen(t)
	raw, err := ln.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	ctlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) })
	if ctlErr != nil || err != nil {
		t.Skip("no SO_PASSRIGHTS (before Linux 6.16)")
	}
	table, err := datapath.NewConnections()
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	conn, err := dial(t.Context(), socket) // the test does not accept it
	if err != nil {
		t.Fatal(err)
	}
	c := newConnection(conn, nil, nil)
	defer c.end()
	c.requestTimeout = 100 * time.Millisecond
	_, err = c.open(t.Context(), endpoint.Request{Connections: table.File()})
	if !errors.Is(err, endpoint.ErrBusy) || errors.Is(err, os.ErrPermission) {
		t.Errorf("open: %v, want ErrBusy", err)
	}
}

// A relative path is made absolute, so that it stays valid after a change of the working
// directory, unless the absolute one is too long for a socket's address.
func TestLastingSocketPath(t *testing.T) {
	t.Chdir("/")
	for socket, want := range map[string]string{
		"":                       "",
		"@unet":                  "@unet",
		"/run/s":                 "/run/s",
		"s":                      "/s",
		strings.Repeat("s", 107): strings.Repeat("s", 107), // nothing longer fits
	} {
		if got := lasting(socket); got != want {
			t.Errorf("lasting(%q) = %q, want %q", socket, got, want)
		}
	}
}
