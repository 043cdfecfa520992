//go:build linux

package guest

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/guest/agent"
)

// Machine is the hardware of a guest.
type Machine struct {
	Kernel  int          // index in Spec.Kernels
	CPUs    int          // 1 if zero
	Memory  int          // MiB
	Accel   string       // QEMU's -accel; "tcg,thread=multi" if empty
	Append  string       // more of the kernel's command line
	Devices []string     // more arguments of QEMU
	Files   []*os.File   // descriptors 3, 4, ... of QEMU, such as taps. Boot closes them.
	Addr    netip.Prefix // where process 1 listens: GUEST_ADDR in its environment
}

// Guest is a running virtual machine.
type Guest struct {
	Release string        // of its kernel
	Booted  time.Duration // how long that took
	Done    chan struct{} // closed when QEMU has ended

	host *netlab.Host
	addr netip.AddrPort
	qemu *exec.Cmd
	dir  string // temporary

	mu sync.Mutex
	// +checklocks:mu
	console []string // lines
	ready   chan struct{}
}

// bootTime is how long a guest may take to boot.
const bootTime = 3 * time.Minute

// ErrAborted: QEMU aborted while the guest booted. QEMU 10 does that now and then when guests have
// several processors (assertion in iotlb_to_section).
var ErrAborted = errors.New("QEMU aborted")

// Boot boots a guest. QEMU runs on host. The caller closes the guest.
func (im *Image) Boot(host *netlab.Host, m Machine) (_ *Guest, err error) {
	defer func() {
		for _, f := range m.Files {
			f.Close()
		}
	}()
	dir, err := os.MkdirTemp("", "unet-guest-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	disk := filepath.Join(dir, "initrd")
	if err := im.writeDisk(m.Kernel, disk); err != nil {
		return nil, err
	}
	if m.Accel == "" {
		m.Accel = "tcg,thread=multi"
	}
	args := []string{
		"-L", im.root + "/usr/share/qemu", "-L", im.root + "/usr/share/seabios",
		"-accel", m.Accel, "-cpu", "max", "-smp", strconv.Itoa(max(m.CPUs, 1)), "-m", strconv.Itoa(m.Memory), "-M", "q35",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", im.kernelFile(m.Kernel), "-initrd", disk,
		// no_timer_check: on a busy machine the kernel finds too few interrupts in its check, and panics.
		// maxcpus: process 1 starts the other processors. While they run, the setup of PCI aborts QEMU (ErrAborted).
		"-append", "console=ttyS0 loglevel=5 panic=-1 no_timer_check maxcpus=1 net.ifnames=0 mitigations=off GUEST_ADDR=" + m.Addr.String() + " " + m.Append,
	}
	g := &Guest{
		Done: make(chan struct{}), ready: make(chan struct{}),
		host: host, addr: netip.AddrPortFrom(m.Addr.Addr(), agent.Port), dir: dir,
		qemu: im.command("usr/bin/qemu-system-x86_64", append(args, m.Devices...)...),
	}
	g.qemu.Env = append(os.Environ(), "QEMU_MODULE_DIR="+im.root+"/usr/lib/x86_64-linux-gnu/qemu")
	g.qemu.ExtraFiles = m.Files
	g.qemu.SysProcAttr = netlab.Bound()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	g.qemu.Stdout, g.qemu.Stderr = w, w
	start := time.Now()
	err = host.Start(g.qemu)
	w.Close()
	if err != nil {
		r.Close()
		return nil, err
	}
	go g.read(r)
	select {
	case <-g.ready:
		g.Booted = time.Since(start)
		return g, nil
	case <-g.Done:
		err = errors.New("the guest ended while it booted")
		if s := g.qemu.ProcessState.Sys().(syscall.WaitStatus); s.Signaled() && s.Signal() == syscall.SIGABRT {
			err = ErrAborted
		}
	case <-time.After(bootTime):
		err = fmt.Errorf("the guest has not booted within %v", bootTime)
	}
	g.Close()
	return nil, fmt.Errorf("%w; its console:\n%s", err, g.Console(0))
}

// read reads the console.
func (g *Guest) read(r *os.File) {
	for s := bufio.NewScanner(r); s.Scan(); {
		line := strings.TrimRight(s.Text(), "\r")
		g.mu.Lock()
		g.console = append(g.console, line)
		g.mu.Unlock()
		if _, release, ok := strings.Cut(line, agent.Ready); ok && g.Release == "" {
			g.Release = strings.TrimSpace(release)
			close(g.ready)
		}
	}
	r.Close()
	g.qemu.Wait()
	close(g.Done)
}

// Close ends the guest.
func (g *Guest) Close() {
	g.qemu.Process.Kill()
	<-g.Done
	os.RemoveAll(g.dir)
}

// Lines is the number of lines on the console until now.
func (g *Guest) Lines() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.console)
}

// Console is what the console has shown, from a line on.
func (g *Guest) Console(from int) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.console[from:], "\n")
}

// trouble matches what the kernel prints when it has found an error of its own.
var trouble = regexp.MustCompile(`Kernel panic|WARNING: |BUG: |Oops|general protection fault|refcount_t:|guest failed:`)

// Trouble is the console from the first line on that reports an error of the kernel, among those
// from a line on; "" if there is none.
func (g *Guest) Trouble(from int) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := from; i < len(g.console); i++ {
		if trouble.MatchString(g.console[i]) {
			return strings.Join(g.console[i:], "\n")
		}
	}
	return ""
}
