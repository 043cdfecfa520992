//go:build linux

package mux

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux/internal/attach"
)

// reserver reserves ports in the kernel's network stack: it binds a socket to each. The kernel
// then gives the port to no other program, neither to one that binds it (whatever its options:
// both sockets would need SO_REUSEADDR or SO_REUSEPORT) nor to one that calls connect. The
// bind fails if the port is in use. A TCP connection in TIME-WAIT does not count if the port was named, alone and not as a block (timewait.go).
//
// Packets for the port can still reach the kernel: by another interface of the host, over lo for an endpoint on a queue, on another
// queue of the uplink than the owner's. Without a socket that takes them the kernel would answer them in the endpoint's
// name, and a RST would end its connection. So the TCP socket listens, and all have a filter that drops and counts
// (lost_reserved).
//
// Methods are called in the uplink's namespace.
type reserver struct {
	ifindex int           // of the uplink
	vrf     int           // that the uplink is a member of, as a number of an interface; 0: none. Its addresses, and the ports there, are known to sockets in the VRF only
	room    int           // number of sockets that it may still make
	limit   int           // number of sockets that all claims may have
	free    bool          // bind also to addresses that the host does not have (IP_FREEBIND)
	named   bool          // the port was named, alone: worth a wait, and a look for connections in TIME-WAIT
	closed  time.Time     // until when a process may have copies of sockets that were closed
	refuse  *ebpf.Program // the filter of all sockets
}

// newReserver uses at most three quarters of the limit of open files for reserved ports. m.mu
// is held.
//
// +checklocks:m.mu
func (m *Mux) newReserver() (*reserver, error) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, os.NewSyscallError("getrlimit RLIMIT_NOFILE", err)
	}
	vrf, err := m.routes.VRF()
	if err != nil {
		return nil, fmt.Errorf("VRF of %s: %w", m.up.Name, err)
	}
	limit := int(min(files.Cur, 1<<30)) / 4 * 3
	return &reserver{
		ifindex: m.up.Index, vrf: vrf, room: m.socketsLeft(limit), limit: limit,
		closed: m.gaveBack.Add(copyTime), refuse: m.progs.Loaded[attach.RefuseProgram],
	}, nil
}

// copyTime is for how long a claim waits for a port that was just given back: it stays bound while a process that is being
// started has a copy of the socket, until the kernel has executed its program, some 0.1 ms (syscall.ForkLock
// is released before). Such a claim holds m.mu.
var copyTime = 2 * time.Millisecond // tests change it

// socketsLeft is the number of sockets that may still be made. m.mu is held.
//
// +checklocks:m.mu
func (m *Mux) socketsLeft(limit int) int { return limit - m.tags.sockets() - len(m.groups.held) }

// ports reserves all ports of t, or none.
func (r *reserver) ports(t endpoint.Tag) (fds []int, err error) {
	for port := int(t.Port); port <= int(t.LastPort()); port++ {
		fd, _, err := r.port(t, uint16(port))
		if err != nil {
			return nil, errors.Join(err, r.closeAll(fds))
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// closeAll closes sockets that are not needed.
func (r *reserver) closeAll(fds []int) error {
	r.room += len(fds)
	return closeAll(fds)
}

// port reserves one port of t; port 0: the kernel chooses one.
func (r *reserver) port(t endpoint.Tag, port uint16) (fd int, bound uint16, err error) {
	fd, bound, err = r.bind(t.Kind, netip.AddrPortFrom(t.Addr, port))
	return fd, bound, notReserved(t, port, err)
}

// notReserved is the error for a port of t that could not be reserved; nil for nil.
func notReserved(t endpoint.Tag, port uint16, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EADDRINUSE) && port == 0:
		return held(t, "no port of net.ipv4.ip_local_port_range is free: %w", err)
	case errors.Is(err, errTimeWait):
		return held(t, "on port %d the kernel's network stack has closed connections (ss -tan state time-wait): try again in a minute, or choose another: %w", port, err)
	case errors.Is(err, unix.EADDRINUSE):
		return held(t, "the kernel's network stack uses port %d (%s shows for what): choose another, or end that: %w", port, showSockets(t.Kind), err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return denied(t, "the uplink has just lost this address")
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("reserve %v: %w: unetd itself lacks CAP_NET_BIND_SERVICE for this port: ask an operator", t, err)
	}
	return fmt.Errorf("reserve %v: %w", t, err)
}

func showSockets(k endpoint.TagKind) string {
	if k == endpoint.TagTCP {
		return "ss -tanp"
	}
	return "ss -uanp"
}

// again reserves the ports of t that no other program has bound. owned: t is on an owned
// address, which the host does not have, so there is nothing to reserve. Other ports are
// reserved also if the uplink does not have the address now (IP_FREEBIND, ip(7)).
func (r *reserver) again(t endpoint.Tag, owned bool) (fds []int, err error) {
	switch {
	case t.Kind == endpoint.TagAddr:
		return r.joinGroup(t.Addr)
	case !hasPorts(t) || owned:
		return nil, nil
	}
	r.free, r.named = true, !t.Block
	defer func() { r.free, r.named = false, false }()
	refused := 0
	for port := int(t.Port); port <= int(t.LastPort()); port++ {
		fd, _, e := r.bind(t.Kind, netip.AddrPortFrom(t.Addr, uint16(port)))
		if e == nil {
			fds = append(fds, fd)
			continue
		}
		if refused++; refused == 1 {
			err = fmt.Errorf("port %d: %w", port, e)
		}
	}
	if refused > 1 {
		err = fmt.Errorf("%d ports, of which the first is %w", refused, err)
	}
	return fds, err
}

// bind makes a bound socket. Errors are the kernel's, or ErrTableFull.
func (r *reserver) bind(k endpoint.TagKind, ap netip.AddrPort) (fd int, port uint16, err error) {
	if r.room <= 0 {
		return -1, 0, fmt.Errorf("%w: each port takes a descriptor, and %d reserve ports already: raise the limit (ulimit -n, LimitNOFILE)", ErrTableFull, r.limit)
	}
	domain, kind := unix.AF_INET, unix.SOCK_DGRAM
	if ap.Addr().Is6() {
		domain = unix.AF_INET6
	}
	if k == endpoint.TagTCP {
		kind = unix.SOCK_STREAM
	}
	if fd, err = unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, 0, os.NewSyscallError("socket", err)
	}
	r.room--
	defer func() {
		if err != nil {
			r.closeAll([]int{fd})
			fd = -1
		}
	}()
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, r.refuse.FD()); err != nil {
		return fd, 0, os.NewSyscallError("setsockopt SO_ATTACH_BPF", err)
	}
	if domain == unix.AF_INET6 {
		// The same port of an IPv4 address is a tag of its own.
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return fd, 0, os.NewSyscallError("setsockopt IPV6_V6ONLY", err)
		}
	}
	if r.vrf != 0 {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, r.vrf); err != nil {
			return fd, 0, os.NewSyscallError("setsockopt SO_BINDTOIFINDEX", err)
		}
	}
	if r.free {
		if err := freeBind(fd, domain); err != nil {
			return fd, 0, err
		}
	}
	err = r.bindTo(fd, ap)
	for r.named && errors.Is(err, unix.EADDRINUSE) && time.Now().Before(r.closed) {
		time.Sleep(100 * time.Microsecond)
		err = r.bindTo(fd, ap)
	}
	shares := r.named && k == endpoint.TagTCP && errors.Is(err, unix.EADDRINUSE) && listsBound()
	if shares {
		if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return fd, 0, os.NewSyscallError("setsockopt SO_REUSEADDR", err)
		}
		err = r.bindTo(fd, ap)
	}
	if err == nil && k == endpoint.TagTCP {
		err = os.NewSyscallError("listen", unix.Listen(fd, 0))
	}
	if shares {
		err = onlyTimeWait(ap, err)
	}
	if err != nil {
		return fd, 0, err
	}
	if ap.Port() != 0 {
		return fd, ap.Port(), nil
	}
	name, err := unix.Getsockname(fd)
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		port = uint16(name.Port)
	case *unix.SockaddrInet6:
		port = uint16(name.Port)
	}
	return fd, port, os.NewSyscallError("getsockname", err)
}

// freeBind lets a socket be bound to an address that the host does not have.
func freeBind(fd, domain int) error {
	if domain == unix.AF_INET6 {
		return os.NewSyscallError("setsockopt IPV6_FREEBIND", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1))
	}
	return os.NewSyscallError("setsockopt IP_FREEBIND", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1))
}

// bindTo binds a socket to a port.
func (r *reserver) bindTo(fd int, ap netip.AddrPort) error {
	return os.NewSyscallError("bind", unix.Bind(fd, r.sockaddr(ap)))
}

// sockaddr is ap for bind. A link-local address needs the interface.
func (r *reserver) sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}
	}
	sa := &unix.SockaddrInet6{Port: int(ap.Port()), Addr: ap.Addr().As16()}
	if ap.Addr().IsLinkLocalUnicast() {
		sa.ZoneId = uint32(r.ifindex)
	}
	return sa
}

// excludedBlocks are the blocks with ports that the administrator has excluded from automatic
// choice, or reserved for privileged programs (Documentation/networking/ip-sysctl.rst).
type excludedBlocks [allPorts / endpoint.BlockPorts]bool

func (k *excludedBlocks) in(block endpoint.Tag) bool { return k[block.Port/endpoint.BlockPorts] }

func (k *excludedBlocks) add(first, last int) {
	for port := first; port <= last; port++ {
		k[port/endpoint.BlockPorts] = true
	}
}

// readExcludedBlocks reads the settings of the calling thread's namespace, which are for IPv4 and
// IPv6.
func readExcludedBlocks() (*excludedBlocks, error) {
	const folder = "/proc/sys/net/ipv4/"
	reserved, err := readSetting(folder + "ip_local_reserved_ports")
	if err != nil {
		return nil, err
	}
	start, err := readSetting(folder + "ip_unprivileged_port_start")
	if err != nil {
		return nil, err
	}
	unprivileged, err := strconv.Atoi(start)
	if err != nil {
		return nil, fmt.Errorf("ip_unprivileged_port_start: %w", err)
	}
	excluded := &excludedBlocks{}
	excluded.add(0, unprivileged-1)
	return excluded, excluded.addList(reserved)
}

// addList adds ports and ranges in the kernel's format: 8080,40000-40010.
func (k *excludedBlocks) addList(list string) error {
	for item := range strings.FieldsFuncSeq(list, func(c rune) bool { return c == ',' }) {
		first, last, isRange := strings.Cut(item, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, errTo := strconv.ParseUint(last, 10, 16)
		if err = errors.Join(err, errTo); err != nil {
			return fmt.Errorf("ip_local_reserved_ports: %w", err)
		}
		k.add(int(from), int(to))
	}
	return nil
}

// readSetting reads a sysctl by one read. Its buffer has room for the longest list of ports:
// every second port.
func readSetting(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b := make([]byte, allPorts/2*len("65535,"))
	n, err := f.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return strings.TrimSpace(string(b[:n])), nil
}
