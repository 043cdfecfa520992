package xsk

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
)

// A socket is recognised by any descriptor of it, and nothing else is taken for one.
func TestCookie(t *testing.T) {
	netlab.RequireXDP(t)
	unbound := func() *os.File {
		f, err := NewUnbound()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	a, b := unbound(), unbound()
	fd, err := unix.FcntlInt(a.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	copied := os.NewFile(uintptr(fd), "copy")
	defer copied.Close()
	cookieA, errA := Cookie(a)
	cookieB, errB := Cookie(b)
	again, errC := Cookie(copied)
	if err := errors.Join(errA, errB, errC); err != nil {
		t.Fatal(err)
	}
	if cookieA != again || cookieA == cookieB || cookieA == 0 {
		t.Errorf("cookies %d, of its copy %d, of another socket %d", cookieA, again, cookieB)
	}

	udp, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	udpFile := os.NewFile(uintptr(udp), "udp")
	defer udpFile.Close()
	if c, err := Cookie(udpFile); err == nil {
		t.Errorf("a UDP socket has cookie %d", c)
	}
	segment, err := NewSegment(4096, false)
	if err != nil {
		t.Fatal(err)
	}
	defer segment.Close()
	if _, err := Cookie(segment); !errors.Is(err, unix.ENOTSOCK) {
		t.Errorf("a file: %v", err)
	}
	a.Close()
	if _, err := Cookie(a); err == nil {
		t.Error("a closed file has a cookie")
	}
}

// Asking for the cookie leaves the flags alone, which the owner's descriptor shares.
func TestCookieKeepsFlags(t *testing.T) {
	netlab.RequireXDP(t)
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "xsk")
	defer f.Close()
	if _, err := Cookie(f); err != nil {
		t.Fatal(err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_NONBLOCK == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
}
