//go:build linux

package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	. "github.com/unet-go/unet/internal/protocoltest"
)

// Operations of a FUSE server, and its errors (linux/fuse.h).
const (
	fuseLookup    = 1
	fuseGetattr   = 3
	fuseOpen      = 14
	fuseGetxattr  = 22
	fuseFlush     = 25
	fuseInit      = 26
	fuseInterrupt = 36

	fuseMinor          = 31
	fuseDirectIO       = 1       // FOPEN_DIRECT_IO
	fuseWritebackCache = 1 << 16 // FUSE_WRITEBACK_CACHE

	// fuseCached marks nodes whose files are written through the page cache, and
	// whose flushes are answered. Their names begin with a 'w'.
	fuseCached = 1 << 40
)

// fuse is a file system whose server answers the requests that open a file, and
// no others: poll, and each close of a descriptor, block until release. The server is
// another process and the file system is mounted nowhere, so that nothing is left if the
// test process hangs and is killed.
type fuse struct {
	root    int // the file system's folder
	release func()
	pending *os.File // the operations that are not answered, a byte each
}

// fuseServer is a variable in the environment with which the test binary is a FUSE server.
const fuseServer = "UNET_TEST_FUSE_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(fuseServer) == "" {
		os.Exit(m.Run())
	}
	time.AfterFunc(2*TestTimeout, func() { os.Exit(0) })
	serveFuse(3)
}

// newFuse starts a server and mounts its file system for a moment, to open its folder.
func newFuse(t *testing.T) *fuse {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount")
	}
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("/dev/fuse: %v", err)
	}
	device := os.NewFile(uintptr(dev), "/dev/fuse")
	defer device.Close()
	dir := t.TempDir()
	options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0,allow_other", dev, unix.S_IFDIR)
	if err := unix.Mount("test", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		t.Skipf("mount: %v", err)
	}
	root, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err := errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)); err != nil {
		t.Fatal(err)
	}
	r, w := Pipe(t)
	server := exec.Command(os.Args[0])
	server.Env = append(os.Environ(), fuseServer+"=1")
	server.ExtraFiles = []*os.File{device}
	server.Stdout, server.Stderr = w, os.Stderr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	f := &fuse{root: root, pending: r, release: sync.OnceFunc(func() {
		// When the server ends, the requests that wait for it fail.
		if err := server.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = server.Wait() // killed
		unix.Close(root)
	})}
	t.Cleanup(f.release)
	return f
}

// serveFuse answers until it is killed, or the file system is not in use any more.
func serveFuse(dev int) {
	b := make([]byte, 1<<20)
	for {
		n, err := unix.Read(dev, b)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOENT):
			continue
		case err != nil:
			os.Exit(0)
		}
		answer := answerFuse(b[:n])
		if binary.LittleEndian.Uint32(b[4:]) == fuseInterrupt {
			continue // the request that it interrupts is never answered
		}
		if answer == nil {
			_, err = os.Stdout.Write(b[4:5])
		} else {
			_, err = unix.Write(dev, answer)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			fmt.Fprintln(os.Stderr, "FUSE server:", err)
			os.Exit(1)
		}
	}
}

// answerFuse is the answer to one request, or nil for none.
func answerFuse(b []byte) []byte {
	le := binary.LittleEndian
	opcode, unique, node := le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint64(b[16:])
	attr := func(node uint64) []byte {
		a := make([]byte, 88)
		mode := uint32(unix.S_IFREG | 0o666)
		if node == 1 {
			mode = unix.S_IFDIR | 0o777
		}
		le.PutUint64(a[0:], node)
		le.PutUint32(a[60:], mode)
		le.PutUint32(a[64:], 1) // links
		return a
	}
	var out []byte
	var failure unix.Errno
	switch opcode {
	case fuseInit:
		out = make([]byte, 64)
		le.PutUint32(out[0:], 7)
		le.PutUint32(out[4:], fuseMinor)
		le.PutUint32(out[12:], fuseWritebackCache)
		le.PutUint32(out[20:], 4096) // max_write
	case fuseLookup: // every name exists and is a file
		var id uint64 = 2
		for _, c := range b[40:] {
			id = (id*31 + uint64(c)) % fuseCached
		}
		if b[40] == 'w' {
			id |= fuseCached
		}
		out = make([]byte, 40)
		le.PutUint64(out[0:], id)
		out = append(out, attr(id)...)
	case fuseGetattr:
		out = append(make([]byte, 16), attr(node)...)
	case fuseOpen:
		out = make([]byte, 16)
		if node&fuseCached == 0 {
			le.PutUint32(out[8:], fuseDirectIO)
		}
	case fuseGetxattr:
		failure = unix.ENOSYS
	case fuseFlush:
		if node&fuseCached == 0 {
			return nil
		}
	default:
		return nil
	}
	head := make([]byte, 16)
	le.PutUint32(head[4:], uint32(-int32(failure)))
	le.PutUint32(head[0:], uint32(len(head)+len(out)))
	le.PutUint64(head[8:], unique)
	return append(head, out...)
}

// open opens a file. Closing its descriptor blocks until release, so the cleanup closes it
// after that.
func (f *fuse) open(t *testing.T, name string, flags int) (fd int) {
	t.Helper()
	fd, err := unix.Openat(f.root, name, unix.O_RDWR|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.release()
		unix.Close(fd)
	})
	return fd
}
