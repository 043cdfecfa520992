//go:build linux

package uplink

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/mux"
)

// capabilities are those that unetd needs. CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON
// (capabilities(7)).
var capabilities = []struct {
	name string
	bit  uint
}{
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN}, // XDP programs, veth pairs, neighbours
	{"CAP_NET_RAW", unix.CAP_NET_RAW},     // AF_XDP sockets
	{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN}, // a network namespace for each port; BPF programs and maps
	{"CAP_IPC_LOCK", unix.CAP_IPC_LOCK},   // segments beyond RLIMIT_MEMLOCK
	{"CAP_SETUID", unix.CAP_SETUID},       // register a segment as the user of its owner
}

// Check returns an error if unetd cannot run with this kernel, these privileges and these interfaces.
// It changes nothing.
func Check(interfaces ...string) error {
	if err := CheckSocket(); err != nil {
		return err
	}
	missing, err := MissingCapabilities()
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: %s missing: run unetd as root, or give it these capabilities", os.ErrPermission, strings.Join(missing, ", "))
	}
	for _, name := range interfaces {
		if err := checkInterface(name); err != nil {
			return err
		}
	}
	return nil
}

// CheckSocket returns an error if the kernel has no AF_XDP sockets.
func CheckSocket() error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return explainSocket(err)
}

// explainSocket explains an error of socket(AF_XDP). It ignores a missing capability:
// MissingCapabilities lists all of them.
func explainSocket(err error) error {
	switch {
	case err == nil, errors.Is(err, unix.EPERM):
		return nil
	case errors.Is(err, unix.EAFNOSUPPORT):
		return errors.New("this kernel has no AF_XDP: use one that was built with CONFIG_XDP_SOCKETS")
	}
	return fmt.Errorf("cannot make an AF_XDP socket: %w", err)
}

// MissingCapabilities are the names of the capabilities that unetd needs and this process lacks.
func MissingCapabilities() (missing []string, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData // of 32 capabilities each
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return nil, os.NewSyscallError("capget", err)
	}
	for _, c := range capabilities {
		if sets[c.bit/32].Effective&(1<<(c.bit%32)) == 0 {
			missing = append(missing, c.name)
		}
	}
	return missing, nil
}

func checkInterface(name string) error {
	if _, err := net.InterfaceByName(name); err == nil {
		return nil
	}
	all, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("no interface %q, and cannot list those there are: %w", name, err)
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return fmt.Errorf("no interface %q: choose one of %s", name, strings.Join(names, ", "))
}

// explainOpen adds what an operator can do about an error of mux.Open.
func explainOpen(interfaceName string, err error) error {
	for _, e := range []struct {
		is error
		do string
	}{
		{mux.ErrInUse, "stop the other unetd, or use another --interface"},
		{os.ErrPermission, "run unetd as root of the initial user namespace, and in a container whose seccomp filter permits bpf(2) (systemd-nspawn --system-call-filter=bpf)"}, // Check found the capabilities
		{unix.EROFS, "in a container make /proc/sys writable: podman run --security-opt unmask=/proc/sys, docker run --security-opt systempaths=unconfined"},
		{mux.ErrForeignProgram, DetachAdvice(interfaceName) + ", or use another --interface"},
		{mux.ErrNotEthernet, "use another --interface"},
		{mux.ErrVLANOffload, "use --mode tcx, or another --interface"},
	} {
		if errors.Is(err, e.is) {
			return fmt.Errorf("%w: %s", err, e.do)
		}
	}
	return err
}

// DetachAdvice is the advice how to detach a foreign program from an interface. If a BPF link has
// attached it, netlink cannot detach it: the link must be detached, or its holder must end. For
// other programs the command must name the mode: "xdp off" means the driver's mode only if the
// driver supports XDP.
func DetachAdvice(interfaceName string) string {
	device, err := netlink.LinkByName(interfaceName)
	if err != nil || device.Attrs().Xdp == nil || !device.Attrs().Xdp.Attached { // it has been detached since
		return "try again"
	}
	xdp := device.Attrs().Xdp
	modes := map[uint32]string{nl.XDP_ATTACHED_DRV: "xdpdrv", nl.XDP_ATTACHED_SKB: "xdpgeneric", nl.XDP_ATTACHED_HW: "xdpoffload"}
	mode, one := modes[xdp.AttachMode]
	if !one {
		return "detach its programs, which ip -d link show dev " + interfaceName + " shows"
	}
	links, err := xdpLinks(xdp.ProgId, device.Attrs().Index)
	if err != nil || len(links) == 0 {
		return "detach it (ip link set dev " + interfaceName + " " + mode + " off)"
	}
	return fmt.Sprintf("detach it (bpftool link detach id %d, or stop the process that bpftool link show id %[1]d shows)", links[0])
}

// xdpLinks are the ids of the BPF links that attach a program to an interface. There is none if the
// program was attached by netlink (ip link).
func xdpLinks(program uint32, ifindex int) (ids []uint32, err error) {
	all := new(link.Iterator)
	defer all.Close()
	for all.Next() {
		info, err := all.Link.Info()
		if err != nil || info.Program != ebpf.ProgramID(program) { // an error: a kind of link unknown to the library
			continue
		}
		if xdp := info.XDP(); xdp != nil && int(xdp.Ifindex) == ifindex {
			ids = append(ids, uint32(all.ID))
		}
	}
	if err := all.Err(); !errors.Is(err, unix.EAGAIN) { // EAGAIN: a link is being attached
		return ids, err
	}
	return ids, nil
}
