//go:build linux

// Guest is process 1 of the virtual machine of package rdmapeers. It loads the kernel's modules,
// makes the software RDMA device rxe0 on eth0, and runs the programs that it is told to run.
//
// Its environment is from the kernel's command line: GUEST_ADDR is the address of eth0, with
// the length of its prefix.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/test/rdmapeers/guest/agent"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest: runs as process 1 of a virtual machine only")
		os.Exit(2)
	}
	err := errors.Join(mount(), loadModules())
	if err == nil {
		err = openLink(os.Getenv("GUEST_ADDR"))
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
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"},
	} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			errs = append(errs, fmt.Errorf("mount %s: %w", m.at, err))
		}
	}
	return errors.Join(errs...)
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

// openLink sets eth0 up with addr, makes rxe0 on it, and returns when addr is a GID of rxe0.
func openLink(addr string) error {
	for _, name := range []string{"lo", "eth0"} {
		var link netlink.Link
		err := await(func() (err error) { link, err = netlink.LinkByName(name); return err }) // the driver probes asynchronously
		if err != nil {
			return err
		}
		if name == "eth0" {
			a, err := netlink.ParseAddr(addr)
			if err != nil {
				return fmt.Errorf("GUEST_ADDR=%q: %w", addr, err)
			}
			if err := netlink.AddrAdd(link, a); err != nil {
				return fmt.Errorf("address %s: %w", addr, err)
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := netlink.RdmaLinkAdd("rxe0", "rxe", "eth0"); err != nil {
		return fmt.Errorf("rxe0: %w", err)
	}
	ip, _, err := net.ParseCIDR(addr)
	if err != nil {
		return err
	}
	b := ip.To4()
	want := fmt.Sprintf("0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x", b[0], b[1], b[2], b[3])
	const port = "/sys/class/infiniband/rxe0/ports/1/"
	return await(func() error {
		gid, err := os.ReadFile(port + "gids/1")
		if err != nil {
			return err
		}
		state, err := os.ReadFile(port + "state")
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(gid)) != want || !strings.Contains(string(state), "ACTIVE") {
			return fmt.Errorf("rxe0: state %q, GID 1 is %q, want %s", state, gid, want)
		}
		return nil
	})
}

// await calls f until it succeeds, and returns its error after a minute.
func await(f func() error) (err error) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = f(); err == nil {
			return nil
		}
	}
	return err
}

func serve() error {
	l, err := net.Listen("tcp", fmt.Sprint(":", agent.Port))
	if err != nil {
		return err
	}
	var name unix.Utsname
	unix.Uname(&name)
	fmt.Println(agent.Ready, unix.ByteSliceToString(name.Release[:]))
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go run(c)
	}
}

// run executes the command that a connection begins with, and sends what it prints and how it
// ends. It kills the command when the connection is closed.
func run(c net.Conn) {
	defer c.Close()
	in, out := json.NewDecoder(c), json.NewEncoder(c)
	var args []string
	if err := in.Decode(&args); err != nil || len(args) == 0 {
		return
	}
	cmd := exec.Command(args[0], args[1:]...)
	r, w, err := os.Pipe()
	if err != nil {
		out.Encode(agent.Event{Ended: true, Error: err.Error()})
		return
	}
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	w.Close()
	if err == nil {
		go func() {
			io.Copy(io.Discard, io.MultiReader(in.Buffered(), c)) // until the other end closes
			cmd.Process.Kill()
		}()
		var reading sync.WaitGroup
		reading.Go(func() {
			for s := bufio.NewScanner(r); s.Scan(); {
				out.Encode(agent.Event{Line: s.Text()})
			}
		})
		reading.Wait()
		err = cmd.Wait()
	}
	r.Close()
	last := agent.Event{Ended: true}
	if err != nil {
		last.Error = err.Error()
	}
	out.Encode(last)
}
