//go:build linux

package daemon

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/cmd/unetd/internal/session"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

const testTimeout = 2 * time.Minute

// fakeMux grants memfds, and records what is called.
type fakeMux struct {
	session.Provider // nil: only the methods below are called

	closeErr error
	closing  chan struct{} // if it is not nil, Close sends on it, and goes on after a receive

	mu     sync.Mutex
	events []string
	leases []*fakeLease
}

func (m *fakeMux) record(event string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events = append(m.events, event)
}

func (m *fakeMux) OpenEndpoint(_ context.Context, _ mux.Owner, req endpoint.Request) (*endpoint.Grant, endpoint.Lease, error) {
	var files [2]*os.File
	for i := range files {
		fd, err := unix.MemfdCreate("fake", unix.MFD_CLOEXEC)
		if err != nil {
			return nil, nil, err
		}
		files[i] = os.NewFile(uintptr(fd), "fake")
	}
	m.record("open")
	l := &fakeLease{mux: m, done: make(chan struct{})}
	m.mu.Lock()
	m.leases = append(m.leases, l)
	m.mu.Unlock()
	return &endpoint.Grant{XSK: files[0], Segment: files[1], ID: 1, Geometry: req.Geometry.WithDefaults()}, l, nil
}

func (m *fakeMux) HasRule(mux.Owner) bool { return true }

func (m *fakeMux) Routes(context.Context, mux.Owner, string, netip.Addr, netip.Addr) ([]endpoint.UplinkRoute, error) {
	return nil, nil
}

func (m *fakeMux) MayAsk(peer mux.Owner) error {
	if peer.UID != 0 {
		return os.ErrPermission
	}
	return nil
}

func (m *fakeMux) Describe() (interfaces, modes string) { return "eth7", "tcx" }

func (m *fakeMux) Present(context.Context, mux.Owner, *os.File, *os.File) (endpoint.Info, endpoint.Lease, error) {
	return endpoint.Info{}, nil, endpoint.ErrNotPresentable
}

func (m *fakeMux) Abandon() error {
	m.record("abandon mux")
	return m.closeErr
}

func (m *fakeMux) Close() error {
	if m.closing != nil {
		m.closing <- struct{}{}
		<-m.closing
	}
	m.record("close mux")
	return m.closeErr
}

type fakeLease struct {
	endpoint.Lease // nil: only the methods below are called
	mux            *fakeMux
	done           chan struct{}
	cause          error // set before done is closed
}

func (l *fakeLease) Done() <-chan struct{} { return l.done }

func (l *fakeLease) Err() error { return l.cause }

func (l *fakeLease) Notices(context.Context) iter.Seq[[]endpoint.Notice] {
	return func(func([]endpoint.Notice) bool) {}
}

func (l *fakeLease) Close() error {
	l.mux.record("close lease")
	return nil
}

// runningDaemon is a daemon that is ready.
type runningDaemon struct {
	socket string
	stop   func() error // ends it and waits for its end
	ended  func() error // waits for its end
	log    *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// run starts a daemon and waits for the line on its ready descriptor, or returns the error with which it ends.
func run(t *testing.T, s Socket, m *fakeMux) (*runningDaemon, error) {
	t.Helper()
	return runWith(t, Config{Socket: s}, m)
}

// runWith is run with a configuration of which Ready, Log and Open are set here.
func runWith(t *testing.T, cfg Config, m *fakeMux) (*runningDaemon, error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	d := &runningDaemon{socket: cfg.Socket.Path, log: &lockedBuffer{}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	cfg.Ready, cfg.Log = w, slog.New(slog.NewTextHandler(d.log, nil))
	cfg.Open = func(mux.Limits) (Mux, error) { m.record("open mux"); return m, nil }
	go func() { ended <- Run(ctx, cfg) }()
	d.stop = func() error {
		cancel()
		return d.ended()
	}
	d.ended = sync.OnceValue(func() error {
		select {
		case err := <-ended:
			return err
		case <-time.After(testTimeout):
			t.Error("the daemon does not end")
			return nil
		}
	})
	t.Cleanup(func() { _ = d.stop() })
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil { // it ended instead
		return nil, d.stop()
	}
	if line != "ready\n" {
		t.Errorf("ready line %q", line)
	}
	return d, nil
}

// newSocket is a socket in a folder that does not exist yet.
func newSocket(t *testing.T) Socket {
	return Socket{Path: filepath.Join(t.TempDir(), "new", "folder", "s"), Mode: 0o600, GID: -1}
}

// A daemon opens the mux, serves, and when it is stopped closes first the leases and then the mux.
func TestRunAndStop(t *testing.T) {
	m := &fakeMux{}
	s := newSocket(t)
	d, err := run(t, s, m)
	if err != nil {
		t.Fatal(err)
	}
	if log := d.log.String(); !strings.Contains(log, "msg=ready interface=eth7 mode=tcx socket="+s.Path) {
		t.Errorf("log: %s", log)
	}
	g, l, err := control.Open(context.Background(), s.Path, endpoint.Request{NoMemoryPaths: true})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	defer l.Close()
	if err := d.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if got := strings.Join(m.events, ", "); got != "open mux, open, close lease, close mux" {
		t.Errorf("order: %s", got)
	}
	if entries, err := os.ReadDir(filepath.Dir(s.Path)); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	<-l.Done()
	if err := l.Err(); !strings.Contains(err.Error(), "unetd was stopped") {
		t.Errorf("the application got %v", err)
	}
}

// With Keep no lease is closed, and applications get no event that their leases have ended.
func TestStopWithKeep(t *testing.T) {
	m := &fakeMux{}
	s := newSocket(t)
	d, err := runWith(t, Config{Socket: s, Keep: true}, m)
	if err != nil {
		t.Fatal(err)
	}
	g, l, err := control.Open(context.Background(), s.Path, endpoint.Request{NoMemoryPaths: true})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if err := d.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if got := strings.Join(m.events, ", "); got != "open mux, open, abandon mux" {
		t.Errorf("order: %s", got)
	}
	if err := l.Err(); err != nil {
		t.Errorf("the lease: %v", err)
	}
	l.Close()
	if entries, err := os.ReadDir(filepath.Dir(s.Path)); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	// A daemon that cannot report that it is ready also leaves what it took over as it was.
	m = &fakeMux{}
	notOpen := os.NewFile(1<<20, "no descriptor")
	log := slog.New(slog.DiscardHandler)
	err = Run(context.Background(), Config{Socket: s, Keep: true, Log: log, Ready: notOpen, Open: func(mux.Limits) (Mux, error) { return m, nil }})
	if !errors.Is(err, unix.EBADF) || strings.Join(m.events, " ") != "abandon mux" {
		t.Errorf("%v, %v", err, m.events)
	}
}

// The daemon tells the service manager that it is ready. If it cannot, it logs that and serves.
func TestNotifySocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	if _, err := run(t, newSocket(t), &fakeMux{}); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	if n, err := manager.Read(b); err != nil || string(b[:n]) != "READY=1" {
		t.Errorf("notified %q, %v", b[:n], err)
	}
	t.Setenv("NOTIFY_SOCKET", path+"x")
	m := &fakeMux{}
	d, err := run(t, newSocket(t), m)
	if err != nil {
		t.Fatal(err)
	}
	if text := d.log.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, path+"x") {
		t.Errorf("log: %s", text)
	}
	if err := d.stop(); err != nil {
		t.Error(err)
	}
}

// A step that fails undoes the steps before it.
func TestFailedStartIsUndone(t *testing.T) {
	s := newSocket(t)
	log := slog.New(slog.DiscardHandler)
	cause := errors.New("the cause")
	err := Run(context.Background(), Config{Socket: s, Log: log, Open: func(mux.Limits) (Mux, error) { return nil, cause }})
	if !errors.Is(err, cause) {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(s.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket: %v", err)
	}
	m := &fakeMux{}
	notOpen := os.NewFile(1<<20, "no descriptor")
	err = Run(context.Background(), Config{Socket: s, Log: log, Ready: notOpen, Open: func(mux.Limits) (Mux, error) { return m, nil }})
	if !errors.Is(err, unix.EBADF) || strings.Join(m.events, " ") != "close mux" {
		t.Errorf("%v, %v", err, m.events)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	m = &fakeMux{closeErr: cause}
	if err = Run(ctx, Config{Socket: s, Log: log, Open: func(mux.Limits) (Mux, error) { return m, nil }}); !errors.Is(err, cause) {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(s.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket: %v", err)
	}
}

// A second daemon does not start at the socket of a running one, which still serves.
func TestSocketInUse(t *testing.T) {
	s := newSocket(t)
	if _, err := run(t, s, &fakeMux{}); err != nil {
		t.Fatal(err)
	}
	second := &fakeMux{}
	if _, err := run(t, s, second); err == nil || !strings.Contains(err.Error(), "socket path in use") || len(second.events) != 0 {
		t.Errorf("second daemon: %v, %v", err, second.events)
	}
	g, l, err := control.Open(context.Background(), s.Path, endpoint.Request{NoMemoryPaths: true})
	if err != nil {
		t.Fatalf("the first one after that: %v", err)
	}
	l.Close()
	g.Close()
}

// The lock is held until the mux is closed, so the next daemon does not open the mux before.
func TestNextDaemonWaitsForDetach(t *testing.T) {
	m := &fakeMux{closing: make(chan struct{})}
	s := newSocket(t)
	d, err := run(t, s, m)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- d.stop() }()
	<-m.closing // the daemon serves no longer, but is still attached
	if _, err := takeLock(s.Path + ".lock"); !errors.Is(err, errLocked) {
		t.Errorf("lock while the mux is open: %v", err)
	}
	m.closing <- struct{}{}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := run(t, s, &fakeMux{}); err != nil {
		t.Error(err)
	}
}

// A number that is no open descriptor, or one of the runtime's own, is an error.
func TestInherited(t *testing.T) {
	r, w, err := os.Pipe() // closed on exec, as all that Go opens
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, fd := range []int{1 << 20, int(w.Fd())} {
		if f, err := Inherited(fd, "x"); !errors.Is(err, unix.EBADF) || f != nil {
			t.Errorf("descriptor %d: %v, %v", fd, f, err)
		}
	}
	left, err := unix.FcntlInt(w.Fd(), unix.F_DUPFD, 3)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Inherited(left, "x")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
}
