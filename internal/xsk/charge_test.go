package xsk

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
)

// The kernel counts a segment for its user from the registration until the last
// socket over it is closed, whatever happens to the descriptor of the memory.
func TestSegmentsAreChargedToTheirUser(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	const uid = 64017 // nobody else's
	p := testParams
	p.Charge = &Charge{UID: uid, Limit: uint64(2 * p.segmentSize())}
	create := func(p Params, memory *os.File) (sock *os.File, err error) {
		err = pair.A.Do(func() error { // which locks the thread
			fd, err := newSocket()
			if err != nil {
				return err
			}
			sock = os.NewFile(uintptr(fd), "xsk")
			if err := configure(fd, &p, memory); err != nil {
				return errors.Join(err, sock.Close())
			}
			return nil
		})
		return sock, err
	}
	first, _ := newSegment(t, p)
	var held []*os.File
	for range 2 {
		sock, err := create(p, first)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, sock)
	}
	if _, err := create(p, first); !errors.Is(err, ErrMemoryLimit) {
		t.Errorf("beyond the limit: %v", err)
	}
	other := p
	other.Charge = &Charge{UID: uid + 1, Limit: uint64(p.segmentSize())}
	sock, err := create(other, first)
	if err != nil {
		t.Errorf("another user: %v", err)
	} else {
		sock.Close()
	}
	other.Charge = nil
	if sock, err = create(other, first); err != nil {
		t.Errorf("in nobody's name: %v", err)
	} else {
		sock.Close()
	}
	if err := held[0].Close(); err != nil {
		t.Fatal(err)
	}
	// A UMEM is freed by a worker of the kernel's.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		sock, err = create(p, first)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after one was closed: %v", err)
		}
	}
	if err := errors.Join(sock.Close(), held[1].Close()); err != nil {
		t.Error(err)
	}
}

// A charge leaves the thread and the process as they were.
func TestChargeLeavesNoTrace(t *testing.T) {
	netlab.RequireXDP(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	look := func() (r, e, s int, caps [2]unix.CapUserData, limit unix.Rlimit) {
		r, e, s = unix.Getresuid()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		if err := errors.Join(unix.Capget(&header, &caps[0]), unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit)); err != nil {
			t.Fatal(err)
		}
		return r, e, s, caps, limit
	}
	r0, e0, s0, caps0, limit0 := look()
	failure := errors.New("of the work")
	err := (&Charge{UID: netlab.NobodyID, Limit: 4096}).do(func() error {
		r, e, _, caps, limit := look()
		if r != netlab.NobodyID || e != e0 || limit.Cur != 4096 || caps[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0 {
			t.Errorf("meanwhile: real uid %d, effective %d, limit %d, capabilities %x", r, e, limit.Cur, caps[0].Effective)
		}
		return failure
	})
	if !errors.Is(err, failure) {
		t.Error(err)
	}
	if r, e, s, caps, limit := look(); r != r0 || e != e0 || s != s0 || caps != caps0 || limit != limit0 {
		t.Errorf("afterwards: %d %d %d, %v, %v", r, e, s, caps, limit)
	}
}
