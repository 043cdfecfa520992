package attack

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
)

// rebind asks a bound XSK for everything that a new one may have.
var rebind = teach("rebind", func(a *agent, arg gunArg) (list []attempt, err error) {
	g := a.guns[arg.Gun]
	for ifindex := range uint32(8) {
		for _, flags := range []uint16{0, unix.XDP_COPY, unix.XDP_ZEROCOPY, unix.XDP_USE_NEED_WAKEUP} {
			err := unix.Bind(g.fd, &unix.SockaddrXDP{Flags: flags, Ifindex: ifindex})
			try(&list, fmt.Sprintf("bind to interface %d, flags %#x", ifindex, flags), err)
		}
	}
	err = unix.Bind(g.fd, &unix.SockaddrXDP{Flags: unix.XDP_SHARED_UMEM, Ifindex: 2, SharedUmemFD: uint32(g.fd)})
	try(&list, "bind with its own UMEM", err)
	mem, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return list, err
	}
	try(&list, "XDP_UMEM_REG", setsockopt(g.fd, unix.SOL_XDP, unix.XDP_UMEM_REG, unix.XDPUmemReg{Addr: addressOf(mem), Len: uint64(len(mem)), Size: 2048}))
	for name, option := range map[string]int{
		"XDP_RX_RING": unix.XDP_RX_RING, "XDP_TX_RING": unix.XDP_TX_RING,
		"XDP_UMEM_FILL_RING": unix.XDP_UMEM_FILL_RING, "XDP_UMEM_COMPLETION_RING": unix.XDP_UMEM_COMPLETION_RING,
	} {
		try(&list, name, unix.SetsockoptInt(g.fd, unix.SOL_XDP, option, 64))
	}
	try(&list, "connect", unix.Connect(g.fd, &unix.SockaddrXDP{Ifindex: 2}))
	try(&list, "listen", unix.Listen(g.fd, 1))
	_, _, err = unix.Accept(g.fd)
	try(&list, "accept", err)
	try(&list, "SO_BINDTODEVICE", unix.SetsockoptString(g.fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "uplink"))
	try(&list, "SO_MARK", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_MARK, 1))
	try(&list, "SO_RCVBUFFORCE", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<30))
	try(&list, "SO_SNDBUFFORCE", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 1<<30))
	try(&list, "SO_PREFER_BUSY_POLL", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_PREFER_BUSY_POLL, 1))
	try(&list, "SO_BUSY_POLL", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_BUSY_POLL, 1<<20))
	// The network namespace behind it would be a way to its port.
	for _, ioctl := range []struct {
		name    string
		request uint
	}{{"SIOCGSKNS", unix.SIOCGSKNS}, {"SIOCSIFFLAGS", unix.SIOCSIFFLAGS}, {"SIOCSIFHWADDR", unix.SIOCSIFHWADDR}, {"SIOCETHTOOL", unix.SIOCETHTOOL}, {"SIOCBRADDBR", unix.SIOCBRADDBR}} {
		fd, err := unix.IoctlRetInt(g.fd, ioctl.request)
		try(&list, ioctl.name, err)
		if err == nil && ioctl.request == unix.SIOCGSKNS {
			try(&list, "setns to the port's namespace", unix.Setns(fd, unix.CLONE_NEWNET))
		}
	}
	return list, nil
})

// adorn sets what any socket may have. It is the owner's own socket.
var adorn = teach("adorn", func(a *agent, arg gunArg) (list []attempt, err error) {
	g := a.guns[arg.Gun]
	dropAll := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	program := unix.SockFprog{Len: 1, Filter: &dropAll[0]}
	try(&list, "SO_ATTACH_FILTER", unix.SetsockoptSockFprog(g.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program))
	try(&list, "SO_LOCK_FILTER", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1))
	try(&list, "SO_SNDBUF", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1))
	try(&list, "SO_RCVBUF", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1))
	try(&list, "SO_TIMESTAMPING", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, unix.SOF_TIMESTAMPING_TX_SOFTWARE|unix.SOF_TIMESTAMPING_SOFTWARE))
	try(&list, "SO_LINGER", unix.SetsockoptLinger(g.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}))
	try(&list, "SO_PRIORITY", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_PRIORITY, 6))
	try(&list, "SO_REUSEPORT", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	try(&list, "shutdown", unix.Shutdown(g.fd, unix.SHUT_RDWR))
	runtime.KeepAlive(dropAll)
	return list, nil
})

func socketCases() []attackCase {
	return []attackCase{
		{"rebind the XSK", "bind, XDP_UMEM_REG, new rings, connect, SO_BINDTODEVICE, SO_MARK, SIOCGSKNS and other ioctls on the granted socket", func(s *scene) {
			t := s.target(endpoint.Request{})
			s.allRefused(rebind.do(s, t.actor, gunArg{t.Gun}), "SO_BUSY_POLL", "SO_PREFER_BUSY_POLL")
			t.answers(s)
		}},
		{"options of the XSK", "filters that drop everything, tiny buffers, time stamps, shutdown: it is the owner's own socket", func(s *scene) {
			t := s.target(endpoint.Request{})
			worked := 0
			list := adorn.do(s, t.actor, gunArg{t.Gun})
			for _, a := range list {
				if a.Errno == "" {
					worked++
				}
			}
			s.row.note("%d of %d worked", worked, len(list))
			t.flood(100)
		}},
	}
}
