//go:build linux

// Package protocoltest has what the tests of both ends of the control protocol share:
// sockets, and checks for descriptors that are left open.
package protocoltest

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/protocol"
)

// TestTimeout is how long a test waits for an event that must happen. Usually the event happens
// much sooner.
const TestTimeout = 2 * time.Minute

// Listen makes a socket in a folder of the test.
func Listen(t testing.TB) (string, *net.UnixListener) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	return path, ListenAt(t, path)
}

// ListenAt makes a socket, which is closed at the end of the test.
func ListenAt(t testing.TB, path string) *net.UnixListener {
	t.Helper()
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// SocketPair returns two connected sockets: an application's, and unetd's, which the test uses.
func SocketPair(t testing.TB) (application, unetd *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1]
}

// SendAll sends a record with a number of descriptors, all of the same file.
func SendAll(t testing.TB, c *net.UnixConn, record string, w *os.File, descriptors int) {
	t.Helper()
	files := make([]*os.File, descriptors)
	for i := range files {
		files[i] = w
	}
	if err := protocol.WriteRecord(c, []byte(record), TestTimeout, files...); err != nil {
		t.Error(err)
	}
}

// Pipe returns the read end and the write end. The read end returns the end of file when the
// last copy of the write end is closed.
func Pipe(t testing.TB) (*os.File, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// WantClosed waits until all copies of the write end of a pipe are closed.
func WantClosed(t testing.TB, r *os.File) {
	t.Helper()
	if err := r.SetReadDeadline(time.Now().Add(TestTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("a descriptor was leaked")
	}
}

// DescriptorLeaks fails the test if it ends with more descriptors open than
// it began with.
func DescriptorLeaks(t *testing.T) {
	t.Helper()
	// The runtime's poller opens descriptors at its first use and keeps them.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.Close()
	before := OpenDescriptors(t)
	t.Cleanup(func() {
		if after := OpenDescriptors(t); len(after) > len(before) {
			t.Errorf("descriptors before %v, after %v", before, after)
		}
	})
}

// OpenDescriptors lists this process's descriptors and what they are of.
func OpenDescriptors(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var open []string
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			open = append(open, e.Name()+"="+target)
		}
	}
	return open
}

// Await waits until c has a value or is closed.
func Await(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(TestTimeout):
		t.Fatalf("%s: not within %v", what, TestTimeout)
	}
}
