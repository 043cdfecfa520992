package test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/netlab"
)

const patience = 20 * time.Second // until a test gives up; nothing takes that long

var binaries struct {
	sync.Once
	dir string
	err error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if binaries.dir != "" {
		os.RemoveAll(binaries.dir)
	}
	os.Exit(code)
}

// command is the path of one of the project's commands, built once.
func command(t *testing.T, name string) string {
	t.Helper()
	binaries.Do(func() {
		if binaries.dir, binaries.err = os.MkdirTemp("", "unet-test-"); binaries.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", binaries.dir+"/", "../cmd/unetd", "../examples/echo")
		if out, err := build.CombinedOutput(); err != nil {
			binaries.err = fmt.Errorf("go build: %w\n%s", err, out)
			return
		}
		// The processes that run them are nobody's.
		binaries.err = errors.Join(os.Chmod(binaries.dir, 0o755))
	})
	if binaries.err != nil {
		t.Fatal(binaries.err)
	}
	return filepath.Join(binaries.dir, name)
}

// process is a running command and what it printed.
type process struct {
	cmd  *exec.Cmd
	name string
	done chan struct{}
	err  error

	mu    sync.Mutex
	lines []string
	more  *sync.Cond
}

// start runs a command inside a host, as nobody or as root.
func start(t *testing.T, h *netlab.Host, attr *syscall.SysProcAttr, path string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(path, args...), name: filepath.Base(path), done: make(chan struct{})}
	p.more = sync.NewCond(&p.mu)
	p.cmd.SysProcAttr = attr
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	err = h.Start(p.cmd)
	w.Close()
	if err != nil {
		r.Close()
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer r.Close()
		for s := bufio.NewScanner(r); s.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, s.Text())
			p.more.Broadcast()
			p.mu.Unlock()
		}
	})
	go func() {
		p.err = p.cmd.Wait()
		reading.Wait()
		close(p.done)
		p.mu.Lock()
		p.more.Broadcast()
		p.mu.Unlock()
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("%s %v printed:\n%s", p.name, p.cmd.Args[1:], p.output())
		}
	})
	return p
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// await returns when the process has printed a line with text in it.
func (p *process) await(t *testing.T, text string) {
	t.Helper()
	timer := time.AfterFunc(patience, func() { p.mu.Lock(); p.more.Broadcast(); p.mu.Unlock() })
	defer timer.Stop()
	deadline := time.Now().Add(patience)
	p.mu.Lock()
	defer p.mu.Unlock()
	for seen := 0; ; p.more.Wait() {
		for ; seen < len(p.lines); seen++ {
			if strings.Contains(p.lines[seen], text) {
				return
			}
		}
		select {
		case <-p.done:
			t.Fatalf("%s ended (%v) without printing %q", p.name, p.err, text)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s did not print %q", p.name, text)
		}
	}
}

// end waits for the process to exit by itself.
func (p *process) end(t *testing.T) error {
	t.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(patience):
		t.Fatalf("%s does not end", p.name)
		return nil
	}
}

// stop asks the process to end, as an operator would.
func (p *process) stop(t *testing.T) error {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	return p.end(t)
}

// daemon starts unetd on a host and returns it and its socket, open to all.
func daemon(t *testing.T, h *netlab.Host, flags ...string) (*process, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "unet-sock-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "unetd.sock")
	args := append([]string{"serve", "--interface", h.Interface, "--socket", socket, "--socket-mode", "0666", "--allow-queue"}, flags...)
	p := start(t, h, netlab.Bound(), command(t, "unetd"), args...)
	p.await(t, "ready")
	return p, socket
}

// links are the names of a host's network devices.
func links(t *testing.T, h *netlab.Host) (names []string) {
	t.Helper()
	handle, err := netlink.NewHandleAt(h.NS)
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	all, err := handle.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		names = append(names, l.Attrs().Name)
	}
	return names
}

// untouched fails the test if anything of unet's is left on the host. Devices
// go away asynchronously, so it looks until patience ends.
func untouched(t *testing.T, h *netlab.Host) {
	t.Helper()
	handle, err := netlink.NewHandleAt(h.NS)
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	var left []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		left = nil
		all, err := handle.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			a := l.Attrs()
			if a.Name != "lo" && a.Name != h.Interface {
				left = append(left, a.Name)
			}
			if a.Xdp != nil && a.Xdp.Attached {
				left = append(left, fmt.Sprintf("XDP program %d on %s", a.Xdp.ProgId, a.Name))
			}
		}
		if len(left) == 0 {
			return
		}
		awaitLinkEvent(handle)
	}
	t.Errorf("left on host %s: %v", h.Name, left)
}

// awaitLinkEvent lets the kernel's deferred work run: a request that takes the
// same lock answers after it.
func awaitLinkEvent(h *netlink.Handle) { h.AddrList(nil, netlink.FAMILY_V4) }

// kernelDial and kernelListen are sockets of a host's kernel.
func kernelDial(t *testing.T, h *netlab.Host, to string) *net.UDPConn {
	t.Helper()
	var conn net.Conn
	if err := h.Do(func() (err error) {
		conn, err = net.Dial("udp4", to)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.UDPConn)
}

func kernelListen(t *testing.T, h *netlab.Host, at string) *net.UDPConn {
	t.Helper()
	var conn net.PacketConn
	if err := h.Do(func() (err error) {
		conn, err = net.ListenPacket("udp4", at)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.UDPConn)
}

func interfaceIndex(name string) (int, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	return i.Index, nil
}
