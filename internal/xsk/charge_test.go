//go:build linux

package xsk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
)

// This test binary is also the command of a charge, and a process that tries to stop that command.
const (
	registerName = "register-segment"
	diesName     = "register-and-die"
	stopsName    = "register-and-stop"
	killerName   = "kill-threads" // of a process
)

var registerCommand = []string{"/proc/self/exe", registerName}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case registerName:
			os.Exit(RegisterMain(os.Args[2:], os.Stderr))
		case diesName:
			RegisterMain(os.Args[2:], os.Stderr)
			unix.Kill(os.Getpid(), unix.SIGKILL)
		case stopsName:
			unix.Kill(os.Getpid(), unix.SIGSTOP)
		case killerName:
			killThreads(os.Args[2])
		}
	}
	os.Exit(m.Run())
}

// configured makes a socket with everything but an address.
func configured(h *netlab.Host, p Params, memory *os.File) (sock *os.File, err error) {
	err = h.Do(func() error { // which locks the thread
		fd, err := newSocket()
		if err != nil {
			return err
		}
		sock = os.NewFile(uintptr(fd), "xsk")
		if err := configure(sock, &p, memory); err != nil {
			return errors.Join(err, sock.Close())
		}
		return nil
	})
	return sock, err
}

// The kernel counts a segment for its user from the registration until the last
// socket over it is closed, whatever happens to the descriptor of the memory.
func TestSegmentsAreChargedToTheirUser(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	const uid = 64017 // used by no other test
	p := testParams
	p.Charge = &Charge{UID: uid, Limit: uint64(2 * p.segmentSize()), Command: registerCommand}
	create := func(p Params, memory *os.File) (*os.File, error) { return configured(pair.A, p, memory) }
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
	other.Charge = &Charge{UID: uid + 1, Limit: uint64(p.segmentSize()), Command: registerCommand}
	sock, err := create(other, first)
	if err != nil {
		t.Errorf("another user: %v", err)
	} else {
		sock.Close()
	}
	other.Charge = nil
	if sock, err = create(other, first); err != nil {
		t.Errorf("without a charge: %v", err)
	} else {
		sock.Close()
	}
	if err := held[0].Close(); err != nil {
		t.Fatal(err)
	}
	// A worker of the kernel frees a UMEM.
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

// killThreads sends SIGKILL to all threads of a process, and to all other processes
// that it may, until it is killed itself.
func killThreads(pid string) {
	process, err := strconv.Atoi(pid)
	if err != nil {
		panic(err)
	}
	for {
		threads, err := os.ReadDir("/proc/" + pid + "/task")
		if err != nil {
			panic(err)
		}
		for _, thread := range threads {
			if id, err := strconv.Atoi(thread.Name()); err == nil {
				_ = unix.Tgkill(process, id, unix.SIGKILL) // should fail with EPERM
			}
		}
		_ = unix.Kill(-1, unix.SIGKILL)
	}
}

// A user may send signals to all processes with the user's real uid. So no thread of the process that opens
// endpoints has this uid at any time: the user can kill only the process that registers the segment.
func TestNoThreadHasUIDOfChargedUser(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	// All processes of this uid are killed: it is of a range that nothing assigns
	// (systemd's UIDS-GIDS), and seldom that of the same test in another process.
	uid := uint32(60578 + os.Getpid()%606)
	limit, err := MaxCharge()
	if err != nil {
		t.Fatal(err)
	}
	p := testParams
	p.Charge = &Charge{UID: uid, Limit: limit, Command: registerCommand}
	memory, _ := newSegment(t, p)

	killer := exec.Command("/proc/self/exe", killerName, strconv.Itoa(os.Getpid()))
	killer.SysProcAttr = netlab.User(uid)
	if err := killer.Start(); err != nil {
		t.Fatal(err)
	}
	defer killer.Wait()
	defer killer.Process.Kill()
	var done atomic.Bool
	var watching sync.WaitGroup
	defer watching.Wait()
	defer done.Store(true)
	var checks atomic.Int64
	watching.Go(func() {
		for ; !done.Load(); checks.Add(1) {
			files, err := filepath.Glob("/proc/self/task/*/status")
			if err != nil {
				t.Error(err)
			}
			for _, name := range files {
				status, err := os.ReadFile(name)
				if err != nil {
					continue // the thread has ended
				}
				if strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t", uid)) {
					t.Errorf("%s:\n%s", name, status)
					return
				}
			}
		}
	})

	var registered, killed int
	for deadline := time.Now().Add(2 * time.Minute); registered+killed < 50 || killed == 0 || checks.Load() < 50; {
		sock, err := configured(pair.A, p, memory)
		switch {
		case err == nil:
			registered++
			sock.Close()
		case strings.Contains(err.Error(), "signal: killed"):
			killed++
		default:
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d registered, %d killed, %d checks", registered, killed, checks.Load())
		}
	}
	t.Logf("%d registered, %d killed, %d checks", registered, killed, checks.Load())
}

// A failure of a registration is the error of this registration, and leaves no process.
func TestFailedChargeIsReported(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	const uid = 64020
	memory, _ := newSegment(t, testParams)
	for _, c := range []struct {
		name   string
		charge Charge
		want   string
	}{
		{"no command", Charge{UID: uid, Limit: 1 << 20}, "no command"},
		{"command is missing", Charge{UID: uid, Limit: 1 << 20, Command: []string{"/proc/self/nothing"}}, "no such file"},
		{"killed when it was done", Charge{UID: uid, Limit: 1 << 20, Command: []string{"/proc/self/exe", diesName}}, "signal: killed"},
		{"not a uid", Charge{UID: 1<<32 - 1, Limit: 1 << 20, Command: registerCommand}, "exit status 1: arguments"},
		{"stopped", Charge{UID: uid, Limit: 1 << 20, Command: []string{"/proc/self/exe", stopsName}}, "not done within"},
	} {
		p := testParams
		p.Charge = &c.charge
		if c.name == "stopped" { // do not wait as long as the others may take
			limit := registerLimit
			registerLimit = 300 * time.Millisecond
			defer func() { registerLimit = limit }()
		}
		sock, err := configured(pair.A, p, memory)
		if err == nil {
			sock.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	var children unix.Rusage
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, &children); !errors.Is(err, unix.ECHILD) {
		t.Errorf("a process is left: %d, %v", pid, err)
	}
}

// BenchmarkRegister is what a charge adds to the opening of an endpoint.
func BenchmarkRegister(b *testing.B) {
	limit, err := MaxCharge()
	if err != nil {
		b.Fatal(err)
	}
	for name, charge := range map[string]*Charge{
		"here":    nil,
		"process": {UID: 64021, Limit: limit, Command: registerCommand},
	} {
		b.Run(name, func(b *testing.B) {
			pair := netlab.RequirePair(b, netlab.Config{})
			p := testParams
			p.Charge = charge
			memory, err := NewSegment(int64(p.segmentSize()), false)
			if err != nil {
				b.Fatal(err)
			}
			defer memory.Close()
			for b.Loop() {
				sock, err := configured(pair.A, p, memory)
				if err != nil {
					b.Fatal(err)
				}
				sock.Close()
			}
		})
	}
}
