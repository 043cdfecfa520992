package control

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/protocol"
)

const grantRecord = `{"v":1,"id":1,"grant":{"id":5,"attach":"port",` +
	`"geometry":{"frame_size":2048,"frame_count":64,"fill_size":64,"completion_size":64,"rx_size":64,"tx_size":64},` +
	`"identity":{"interface":"eth0","link_addr":"02:00:00:00:00:01","addr":"10.0.0.1/24","mtu":1500,"partial_checksums":true,"mode":"generic"},` +
	`"tags":["msg:7"]}}`

// nowhere is no socket: who has lost its connection tries in vain.
const nowhere = "/nonexistent/unetd.sock"

// script is a unetd that reads one request, then sends what says says, then
// reads the next.
func script(t testing.TB, c *net.UnixConn, says ...func()) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, protocol.MaxRecord)
		for _, say := range says {
			if _, err := c.Read(b); err != nil {
				return
			}
			say()
		}
	}()
	return done
}

// patience is how long a test waits for what must happen; it is no bound on
// how fast that is.
const patience = 2 * time.Minute

var remoteAddr = netip.MustParseAddr("10.0.0.2")

// listen makes a socket in a folder of the test.
func listen(t testing.TB) (string, *net.UnixListener) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	return path, listenAt(t, path)
}

func listenAt(t testing.TB, path string) *net.UnixListener {
	t.Helper()
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// descriptorLeaks fails the test if it ends with more descriptors open than
// it began with.
func descriptorLeaks(t *testing.T) {
	t.Helper()
	// The runtime's poller keeps descriptors of its own from first use on.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.Close()
	before := openDescriptors(t)
	t.Cleanup(func() {
		if after := openDescriptors(t); len(after) > len(before) {
			t.Errorf("descriptors before %v, after %v", before, after)
		}
	})
}

func openDescriptors(t *testing.T) []string {
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

func await(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
	}
}

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

// hangUp closes a connection such that the other end reads all that was sent to it, and
// then the end of the stream.
func hangUp(c *net.UnixConn) {
	_ = c.CloseRead()
	_, _ = io.Copy(io.Discard, c) // a close with records unread would be ECONNRESET
	c.Close()
}
