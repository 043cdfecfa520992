//go:build linux

package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Main is process 1: it mounts the kernel's file systems, loads the modules that /modules lists,
// calls setUp with GUEST_ADDR of the kernel's command line, and then runs what it is told to.
func Main(setUp func(addr string) error) {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "this program runs as process 1 of a virtual machine only")
		os.Exit(2)
	}
	os.Setenv("PATH", "/usr/bin:/usr/sbin")
	err := errors.Join(os.Chmod("/", 0o755), mount(), startProcessors(), loadModules(), OpenLink("lo", ""))
	if err == nil {
		err = setUp(os.Getenv("GUEST_ADDR"))
	}
	if err == nil {
		err = serve()
	}
	fmt.Println("guest failed:", err)
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func mount() error {
	var errs []error
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"}, {"bpf", "/sys/fs/bpf"},
	} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			errs = append(errs, fmt.Errorf("mount %s: %w", m.at, err))
		}
	}
	return errors.Join(errs...)
}

// startProcessors starts those that maxcpus of the kernel's command line has left offline.
func startProcessors() error {
	files, err := filepath.Glob("/sys/devices/system/cpu/cpu*/online")
	for _, f := range files {
		err = errors.Join(err, os.WriteFile(f, []byte("1"), 0))
	}
	return err
}

// loadModules loads the modules that /modules lists, in its order.
func loadModules() error {
	list, err := os.ReadFile("/modules")
	if err != nil {
		return err
	}
	for path := range strings.FieldsSeq(string(list)) {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		// A module of instructions that the processor lacks is refused with ENODEV.
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("module %s: %w", path, err)
		}
	}
	return nil
}

// OpenLink sets an interface up, with an address and the length of its prefix unless that is
// empty. The interface may still be missing: drivers probe asynchronously.
func OpenLink(name, addr string) error {
	var link netlink.Link
	if err := Await(func() (err error) { link, err = netlink.LinkByName(name); return err }); err != nil {
		return err
	}
	if addr != "" {
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			return fmt.Errorf("address of %s: %w", name, err)
		}
		if err := netlink.AddrReplace(link, a); err != nil {
			return fmt.Errorf("address %s of %s: %w", addr, name, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Await calls f until it succeeds, and returns its error after a minute.
func Await(f func() error) (err error) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = f(); err == nil {
			return nil
		}
	}
	return err
}

func serve() error {
	l, err := net.Listen("tcp", fmt.Sprint(":", Port))
	if err != nil {
		return err
	}
	var name unix.Utsname
	unix.Uname(&name)
	fmt.Println(Ready, unix.ByteSliceToString(name.Release[:]))
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go run(c)
	}
}

// run executes the command that a connection begins with.
func run(c net.Conn) {
	defer c.Close()
	in, out := json.NewDecoder(c), json.NewEncoder(c)
	var command Command
	if err := in.Decode(&command); err != nil || len(command.Args) == 0 {
		return
	}
	last := Event{Ended: true}
	if err := execute(command, in, out); err != nil {
		last.Error = err.Error()
	}
	out.Encode(last)
}

// execute runs a command, sends what it prints, and does what is requested.
func execute(command Command, in *json.Decoder, out *json.Encoder) error {
	cmd := exec.Command(command.Args[0], command.Args[1:]...)
	cmd.Env = append(os.Environ(), command.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if command.User != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: command.User, Gid: command.User}
	}
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	w.Close()
	if err != nil {
		return err
	}
	go func() {
		for {
			var q Request
			if in.Decode(&q) != nil { // the other end is closed
				cmd.Process.Kill()
				return
			}
			if q.Signal != 0 {
				cmd.Process.Signal(q.Signal)
			}
			if q.Input != "" {
				fmt.Fprintln(input, q.Input)
			}
		}
	}()
	var reading sync.WaitGroup
	reading.Go(func() {
		s := bufio.NewScanner(r)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			out.Encode(Event{Line: s.Text()})
		}
	})
	reading.Wait()
	return cmd.Wait()
}
