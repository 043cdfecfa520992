//go:build linux

package uplink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
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
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	if err := checkCapabilities(string(status)); err != nil {
		return err
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
// checkCapabilities lists all of them.
func explainSocket(err error) error {
	switch {
	case err == nil, errors.Is(err, unix.EPERM):
		return nil
	case errors.Is(err, unix.EAFNOSUPPORT):
		return errors.New("this kernel has no AF_XDP: use one that was built with CONFIG_XDP_SOCKETS")
	}
	return fmt.Errorf("cannot make an AF_XDP socket: %w", err)
}

// checkCapabilities returns an error that lists the capabilities which /proc/PID/status lacks.
func checkCapabilities(status string) error {
	missing, err := missingCapabilities(status)
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("%w: %s missing: run unetd as root, or give it these capabilities",
			os.ErrPermission, strings.Join(missing, ", "))
	}
	return err
}

// MissingCapabilities are the names of the capabilities that unetd needs and this process lacks.
func MissingCapabilities() ([]string, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	return missingCapabilities(string(status))
}

// missingCapabilities reads the effective set from /proc/PID/status (proc(5)).
func missingCapabilities(status string) (missing []string, err error) {
	for line := range strings.Lines(status) {
		value, ok := strings.CutPrefix(line, "CapEff:")
		if !ok {
			continue
		}
		effective, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return nil, fmt.Errorf("/proc/self/status: CapEff: %w", err)
		}
		for _, c := range capabilities {
			if effective&(1<<c.bit) == 0 {
				missing = append(missing, c.name)
			}
		}
		return missing, nil
	}
	return nil, errors.New("/proc/self/status has no CapEff: mount proc(5)")
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

// Attributes in IFLA_XDP (linux/if_link.h).
const (
	iflaXDPDriverProg = 5
	iflaXDPSKBProg    = 6
	iflaXDPHWProg     = 7
)

// attached is one XDP program of an interface.
type attached struct {
	mode string // its name in ip-link(8)
	id   uint32 // of the program
}

// DetachAdvice is the advice how to detach a foreign program from an interface. If a BPF link has
// attached it, netlink cannot detach it: the link must be detached, or its holder must end. For
// other programs the command must name the mode: "xdp off" means the driver's mode only if the
// driver supports XDP.
func DetachAdvice(interfaceName string) string {
	index, programs := attachedTo(interfaceName)
	var advice []string
	for _, p := range programs {
		links, err := xdpLinks(p.id, index)
		if err != nil || len(links) == 0 {
			advice = append(advice, "ip link set dev "+interfaceName+" "+p.mode+" off")
		}
		for _, id := range links {
			advice = append(advice, fmt.Sprintf("bpftool link detach id %d%s", id, orStop(id)))
		}
	}
	if advice == nil { // it has been detached since
		return "try again"
	}
	return "detach it (" + strings.Join(advice, " and ") + ")"
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

// orStop names the processes that hold a link and that this process may inspect.
func orStop(id uint32) string {
	files, err := filepath.Glob("/proc/[0-9]*/fdinfo/*")
	if err != nil {
		return ""
	}
	want := []byte(fmt.Sprintf("\nlink_id:\t%d\n", id)) // proc_pid_fdinfo(5)
	var holders []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(text, want) {
			continue
		}
		process := filepath.Dir(filepath.Dir(file))
		name, _ := os.ReadFile(process + "/comm") // after an error the name is empty
		if h := "pid " + filepath.Base(process) + " " + strings.TrimSpace(string(name)); !slices.Contains(holders, h) {
			holders = append(holders, h)
		}
	}
	if holders == nil {
		return ", or end what holds the link, a process or a pin"
	}
	return ", or stop the process that holds the link: " + strings.Join(holders, ", ")
}

// attachedTo is the ifindex of an interface and its XDP programs; none after an error.
func attachedTo(interfaceName string) (index int, programs []attached) {
	device, err := net.InterfaceByName(interfaceName)
	if err != nil {
		return 0, nil
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	ask := nl.NewIfInfomsg(unix.AF_UNSPEC)
	ask.Index = int32(device.Index)
	req.AddData(ask)
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil || len(msgs) != 1 || len(msgs[0]) < unix.SizeofIfInfomsg {
		return 0, nil
	}
	attrs, err := nl.ParseRouteAttrAsMap(msgs[0][unix.SizeofIfInfomsg:])
	if err != nil {
		return 0, nil
	}
	return device.Index, xdpPrograms(attrs[unix.IFLA_XDP].Value)
}

// xdpPrograms reads the nested attributes of IFLA_XDP.
func xdpPrograms(nested []byte) (programs []attached) {
	modes := map[uint16]string{iflaXDPDriverProg: "xdpdrv", iflaXDPSKBProg: "xdpgeneric", iflaXDPHWProg: "xdpoffload"}
	attrs, err := nl.ParseRouteAttr(nested)
	if err != nil {
		return nil
	}
	for _, a := range attrs {
		if mode, ok := modes[a.Attr.Type]; ok && len(a.Value) == 4 {
			programs = append(programs, attached{mode, binary.NativeEndian.Uint32(a.Value)})
		}
	}
	return programs
}
