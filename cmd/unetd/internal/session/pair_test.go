package session

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/protocol"
)

// socketPair connects an application's end with one the test speaks for.
func socketPair(t testing.TB) (application, unetd *net.UnixConn) {
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

// pipe gives the read end, which meets the end of file when the last copy of
// the write end is closed, and the write end.
func pipe(t testing.TB) (*os.File, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func wantClosed(t testing.TB, r *os.File) {
	t.Helper()
	if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("a descriptor was leaked")
	}
}

func sendAll(t testing.TB, c *net.UnixConn, record string, w *os.File, descriptors int) {
	t.Helper()
	files := make([]*os.File, descriptors)
	for i := range files {
		files[i] = w
	}
	if err := protocol.WriteRecord(c, []byte(record), patience, files...); err != nil {
		t.Error(err)
	}
}
