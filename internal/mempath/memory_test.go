//go:build linux

package mempath

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"golang.org/x/sys/unix"
)

// otherEnd is set in the environment of a process that is the other end of a path.
const otherEnd = "UNET_TEST_OTHER_END"

func TestMain(m *testing.M) {
	if os.Getenv(otherEnd) != "" {
		if err := beOtherEnd(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// beOtherEnd tries what an end must not be able to do, then sends back what it receives until the other end
// closes.
func beOtherEnd() error {
	d := &endpoint.Path{Own: os.NewFile(3, "own"), Other: os.NewFile(4, "other"), Ring: os.NewFile(5, "ring"), Bell: os.NewFile(6, "bell")}
	for fd := 3; fd <= 6; fd++ {
		for _, mode := range []int{unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR} {
			if again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), mode|unix.O_NONBLOCK, 0); !errors.Is(err, unix.EACCES) {
				return fmt.Errorf("descriptor %d reopened in mode %d: %d, %v", fd, mode, again, err)
			}
		}
		if err := unix.Fchmod(fd, 0o666); !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("fchmod of descriptor %d: %v", fd, err)
		}
	}
	if err := errors.Join(tryToWrite(4), tryToResize(3), tryToResize(4)); err != nil {
		return err
	}
	p, err := Open(d)
	if err != nil {
		return err
	}
	buf := make([]byte, MaxFrame)
	for {
		n, err := p.Next(buf)
		switch {
		case err != nil:
			return err
		case n > 0:
			for !send(p, buf[:n]) {
				sleep(p, p.Closing)
			}
		case p.Closing():
			return p.Close()
		default:
			p.Flush()
			sleep(p, func() bool { return p.Pending() || p.Closing() })
		}
	}
}

// tryToWrite returns an error if the memory of the other end can be written.
func tryToWrite(fd int) error {
	if _, err := unix.Mmap(fd, 0, memorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("mmap for writing: %v", err)
	}
	mem, err := unix.Mmap(fd, 0, memorySize, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer unix.Munmap(mem)
	if err := unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE); !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("mprotect for writing: %v", err)
	}
	if _, err := unix.Pwrite(fd, []byte{1}, 0); !errors.Is(err, unix.EBADF) {
		return fmt.Errorf("pwrite: %v", err)
	}
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, memorySize); !errors.Is(err, unix.EBADF) {
		return fmt.Errorf("fallocate: %v", err)
	}
	return nil
}

// tryToResize returns an error if a memfd can be made shorter or longer, or can get more seals: with one against writing its end
// could never be opened.
func tryToResize(fd int) error {
	for _, size := range []int64{0, 1, pageSize, memorySize - 1, memorySize + 1, 2 * memorySize} {
		if err := unix.Ftruncate(fd, size); !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) { // EINVAL: it is open for reading
			return fmt.Errorf("ftruncate of descriptor %d to %d bytes: %v", fd, size, err)
		}
	}
	if err := unix.Fallocate(fd, 0, 0, 2*memorySize); !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EBADF) {
		return fmt.Errorf("fallocate of descriptor %d beyond its size: %v", fd, err)
	}
	for _, seal := range []int{unix.F_SEAL_WRITE, unix.F_SEAL_FUTURE_WRITE} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal); !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("another seal for descriptor %d: %v", fd, err)
		}
	}
	return nil
}

// The other end is a process of an ordinary user. It cannot write the memory of this end, and sends back all frames.
// Both sleep whenever there is nothing to do.
func TestOtherProcess(t *testing.T) {
	netlab.RequireXDP(t) // root
	da, db, err := Make()
	testutil.Must(t, err)
	self, err := os.Executable()
	testutil.Must(t, err)
	// The user may not be allowed to read the binary by its path.
	binary, err := os.Open(self)
	testutil.Must(t, err)
	defer binary.Close()
	cmd := exec.Command("/proc/self/fd/7")
	cmd.ExtraFiles = []*os.File{db.Own, db.Other, db.Ring, db.Bell, binary}
	cmd.Env = append(os.Environ(), otherEnd+"=1")
	cmd.SysProcAttr = netlab.Nobody()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	testutil.Must(t, cmd.Start())
	testutil.Must(t, db.Close())
	defer func() {
		cmd.Process.Kill() // fails if it has ended
		cmd.Wait()
	}()
	a, err := Open(da)
	testutil.Must(t, err)
	const frames = 2000
	data, buf := content(1, MaxFrame), make([]byte, MaxFrame)
	size := func(i int) int { return 1 + i*7919%65000 }
	for sent, got := 0, 0; got < frames; {
		for sent < min(frames, got+1+got%50) && send(a, data[:size(sent)]) {
			sent++
		}
		n, err := a.Next(buf)
		testutil.Must(t, err)
		if n == 0 {
			a.Flush()
			a.SetAsleep(true)
			for !a.Pending() {
				// The process may have ended because of an error.
				if n, err := unix.Poll([]unix.PollFd{{Fd: int32(a.bell), Events: unix.POLLIN}}, -1); n > 0 {
					break
				} else if err != nil && !errors.Is(err, unix.EINTR) {
					t.Fatal(err)
				}
			}
			a.SetAsleep(false)
			if hungUp(a.bell) {
				cmd.Wait()
				t.Fatalf("the other process has ended: %s", stderr.String())
			}
			a.Drain()
			continue
		}
		if n != size(got) || !bytes.Equal(buf[:n], data[:n]) {
			t.Fatalf("frame %d has %d bytes, want %d, or other content", got, n, size(got))
		}
		got++
	}
	if !a.Ready() || a.Closing() {
		t.Error("the other end has the path open and is not ready")
	}
	testutil.Must(t, a.Close())
	if err := cmd.Wait(); err != nil {
		t.Errorf("the other process: %v: %s", err, stderr.String())
	}
}

// hungUp reports whether nobody has the other end of a bell.
func hungUp(bell int) bool {
	p := []unix.PollFd{{Fd: int32(bell)}}
	unix.Poll(p, 0)
	return p[0].Revents&unix.POLLHUP != 0
}

// What Make makes has the size and the seals that it should, and nobody but this user may open it again.
func TestMake(t *testing.T) {
	a, b, err := Make()
	testutil.Must(t, err)
	defer b.Close()
	defer a.Close()
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	for _, p := range []*endpoint.Path{a, b} {
		for _, f := range []*os.File{p.Own, p.Other} {
			var st unix.Stat_t
			testutil.Must(t, unix.Fstat(int(f.Fd()), &st))
			if got, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0); err != nil || got&seals != seals || st.Size != Size/2 || st.Mode&0o777 != 0 {
				t.Errorf("seals %#x, %v; %d bytes, mode %o", got, err, st.Size, st.Mode)
			}
		}
		for _, f := range []*os.File{p.Own, p.Other, p.Ring, p.Bell} {
			if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("%s stays open in a program that is started: %v", f.Name(), err)
			}
		}
		if size, err := unix.FcntlInt(p.Ring.Fd(), unix.F_GETPIPE_SZ, 0); err != nil || size != os.Getpagesize() {
			t.Errorf("a bell has %d bytes, %v", size, err)
		}
		testutil.Must(t, tryToWrite(int(p.Other.Fd())))
	}
}

// An end is told when the other one closes. What is there stays there to be taken.
func TestClose(t *testing.T) {
	da, db, err := Make()
	testutil.Must(t, err)
	a, err := Open(da)
	testutil.Must(t, err)
	if a.Ready() || a.Closing() {
		t.Error("the other end is not there yet, and ready or closed")
	}
	b, err := Open(db)
	testutil.Must(t, err)
	if !a.Ready() || !b.Ready() {
		t.Error("both are open, and one is not ready")
	}
	send(b, []byte("last"))
	testutil.Must(t, b.Close())
	buf := make([]byte, 8)
	if n, err := a.Next(buf); n != 4 || err != nil || !a.Closing() || a.Ready() || rings(a) != 1 {
		t.Errorf("Next: %d, %v; closed %v, ready %v", n, err, a.Closing(), a.Ready())
	}
	send(a, []byte("to nobody"))
	testutil.Must(t, a.Close())
}

// Open refuses what is no path, in one line, and leaves no descriptor and no mapping open.
func TestOpenRefuses(t *testing.T) {
	memfd := func(size int64, seals int) *os.File {
		fd, err := unix.MemfdCreate("wrong", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		testutil.Must(t, err)
		testutil.Must(t, unix.Ftruncate(fd, size))
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		testutil.Must(t, err)
		return os.NewFile(uintptr(fd), "wrong")
	}
	replace := func(f **os.File, with *os.File) {
		if *f != nil {
			(*f).Close()
		}
		*f = with
	}
	dup := func(f *os.File) *os.File {
		fd, err := unix.Dup(int(f.Fd()))
		testutil.Must(t, err)
		return os.NewFile(uintptr(fd), "again")
	}
	const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	for name, c := range map[string]struct {
		change func(p *endpoint.Path)
		says   string
	}{
		"no memory":      {func(p *endpoint.Path) { replace(&p.Own, nil) }, "without its memory"},
		"no other":       {func(p *endpoint.Path) { replace(&p.Other, nil) }, "without its memory"},
		"no ring":        {func(p *endpoint.Path) { replace(&p.Ring, nil) }, "without its bells"},
		"no bell":        {func(p *endpoint.Path) { replace(&p.Bell, nil) }, "without its bells"},
		"a file":         {func(p *endpoint.Path) { f, _ := os.Open("/proc/self/exe"); replace(&p.Other, f) }, "F_GET_SEALS"},
		"a closed file":  {func(p *endpoint.Path) { p.Own.Close() }, "bad file descriptor"},
		"not sealed":     {func(p *endpoint.Path) { replace(&p.Own, memfd(memorySize, unix.F_SEAL_GROW)) }, "not sealed"},
		"too short":      {func(p *endpoint.Path) { replace(&p.Own, memfd(memorySize-1, sealed)) }, "131071 bytes"},
		"too long":       {func(p *endpoint.Path) { replace(&p.Own, memfd(memorySize+1, sealed)) }, "131073 bytes"},
		"not writable":   {func(p *endpoint.Path) { replace(&p.Own, memfd(memorySize, sealed|unix.F_SEAL_WRITE)) }, "mmap"},
		"exchanged":      {func(p *endpoint.Path) { p.Own, p.Other = p.Other, p.Own }, "mode 0, want 2"},
		"writable other": {func(p *endpoint.Path) { replace(&p.Other, dup(p.Own)) }, "mode 2, want 0"},
		"a closed bell":  {func(p *endpoint.Path) { p.Bell.Close() }, "bad file descriptor"},
		"memory as bell": {func(p *endpoint.Path) { replace(&p.Bell, memfd(1, 0)) }, "not a pipe"},
		"bells":          {func(p *endpoint.Path) { p.Bell, p.Ring = p.Ring, p.Bell }, "mode 0, want 1"},
		"opened before": {func(p *endpoint.Path) {
			q := &endpoint.Path{Own: dup(p.Own), Other: dup(p.Other), Ring: dup(p.Ring), Bell: dup(p.Bell)}
			testutil.Must(t, testutil.Value(Open(q)).Close())
		}, "opened before"},
	} {
		before := resources(t)
		a, b, err := Make()
		testutil.Must(t, err)
		c.change(a)
		p, err := Open(a)
		if p != nil || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: more than a line: %v", name, err)
		}
		testutil.Must(t, b.Close())
		if after := resources(t); after != before {
			t.Errorf("%s: before %s, after %s", name, before, after)
		}
	}
}

// resources is how many descriptors and mappings of paths this process has.
func resources(t *testing.T) string {
	fds, err := os.ReadDir("/proc/self/fd")
	testutil.Must(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	testutil.Must(t, err)
	return fmt.Sprintf("%d descriptors, %d mappings", len(fds), strings.Count(string(maps), memoryName)+strings.Count(string(maps), "wrong"))
}
