package uplink

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// capabilities are what unetd cannot do without. CAP_SYS_ADMIN contains CAP_BPF
// and CAP_PERFMON (capabilities(7)), so those need not be given.
var capabilities = []struct {
	name string
	bit  uint
}{
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN}, // XDP programs, veth pairs, neighbours
	{"CAP_NET_RAW", unix.CAP_NET_RAW},     // AF_XDP sockets
	{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN}, // a network namespace for each port; BPF programs and maps
	{"CAP_IPC_LOCK", unix.CAP_IPC_LOCK},   // segments beyond RLIMIT_MEMLOCK
	{"CAP_SETUID", unix.CAP_SETUID},       // segments in their owners' names
}

// Check says what will keep unetd from running on this kernel, with these
// privileges, on this interface. It changes nothing.
func Check(interfaceName string) error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	if err := explainSocket(err); err != nil {
		return err
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	if err := checkCapabilities(string(status)); err != nil {
		return err
	}
	return checkInterface(interfaceName)
}

// explainSocket is about what socket(AF_XDP) returned. A missing capability is
// left for checkCapabilities, which knows them all.
func explainSocket(err error) error {
	switch {
	case err == nil, errors.Is(err, unix.EPERM):
		return nil
	case errors.Is(err, unix.EAFNOSUPPORT):
		return errors.New("this kernel has no AF_XDP: use one that was built with CONFIG_XDP_SOCKETS")
	}
	return fmt.Errorf("cannot make an AF_XDP socket: %w", err)
}

// checkCapabilities reads the effective set from /proc/PID/status (proc(5)).
func checkCapabilities(status string) error {
	for line := range strings.Lines(status) {
		value, ok := strings.CutPrefix(line, "CapEff:")
		if !ok {
			continue
		}
		effective, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return fmt.Errorf("/proc/self/status: CapEff: %w", err)
		}
		var missing []string
		for _, c := range capabilities {
			if effective&(1<<c.bit) == 0 {
				missing = append(missing, c.name)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("%w: %s missing: run unetd as root, or give it these capabilities",
				os.ErrPermission, strings.Join(missing, ", "))
		}
		return nil
	}
	return errors.New("/proc/self/status has no CapEff: mount proc(5)")
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
