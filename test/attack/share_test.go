package attack

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// roleSharer makes a process of this binary one that binds a socket of its own over
// somebody's segment. Whoever may make a user namespace has every capability in it,
// so also those that an XSK takes.
const roleSharer = "sharer"

// sharedFD is where a sharer finds the granted XSK.
const sharedFD = 3

// startSharer starts one over a granted XSK. It holds the segment until it is
// killed. The error says why there is none, as the sharer does.
func startSharer(xsk *os.File) (*exec.Cmd, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), agentVariable+"="+roleSharer)
	cmd.ExtraFiles = []*os.File{xsk}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("no user namespace: %w", err)
	}
	said := make([]byte, 1024)
	n, err := out.Read(said)
	if text := strings.TrimSpace(string(said[:n])); text != "bound" {
		cmd.Process.Kill()
		return nil, errors.Join(fmt.Errorf("sharer: %s", text), err, cmd.Wait())
	}
	return cmd, nil
}

// runSharer binds, lets go of what it was given, and waits.
func runSharer(in io.Reader, out io.Writer) error {
	sock, err := bindShared(sharedFD)
	if err != nil {
		fmt.Fprintln(out, err)
		return err
	}
	defer sock.Close()
	if err := unix.Close(sharedFD); err != nil {
		return err
	}
	fmt.Fprintln(out, "bound")
	_, err = io.Copy(io.Discard, in)
	return err
}

// bindShared makes an XSK with rings of its own on lo of this namespace, over the
// UMEM of another.
func bindShared(umem int) (*os.File, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return nil, fmt.Errorf("lo: %w", err)
	}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket AF_XDP", err)
	}
	for _, option := range []int{unix.XDP_RX_RING, unix.XDP_TX_RING, unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING} {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, option, 64); err != nil {
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	err = unix.Bind(fd, &unix.SockaddrXDP{Flags: unix.XDP_SHARED_UMEM, Ifindex: uint32(lo.Attrs().Index), SharedUmemFD: uint32(umem)})
	if err != nil {
		return nil, os.NewSyscallError("bind with XDP_SHARED_UMEM", err)
	}
	return os.NewFile(uintptr(fd), "shared"), nil
}
