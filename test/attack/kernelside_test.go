//go:build linux

package attack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// The devices of the mux are in unetd's network namespace, where every process may bind a kernel
// socket to them (SO_BINDTODEVICE needs no privilege since Linux 5.7).

// deviceArg is a device, and what to send by it.
type deviceArg struct {
	Device  string
	Payload []byte
}

// sentByDevice is what the kernel has accepted: ways by what they are, with the number of packets.
type sentByDevice map[string]int

func (s sentByDevice) total() (n int) {
	for _, count := range s {
		n += count
	}
	return n
}

// Destinations of each way: groups, broadcast, this host, neighbours, hosts of the subnet and of elsewhere.
var (
	sideTargets4 = []netip.Addr{
		netip.MustParseAddr("239.9.9.9"), netip.MustParseAddr("224.0.0.1"), netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("10.0.0.255"),
		netip.MustParseAddr("10.0.0.200"), netip.MustParseAddr("192.0.2.1"), hostA, hostB, neighbourAddr, attackerAddr,
	}
	sideTargets6 = []netip.Addr{
		netip.MustParseAddr("ff02::1"), netip.MustParseAddr("ff05::9"), netip.MustParseAddr("fe80::1"), hostA6, hostB6, neighbourAddr6,
	}
)

// sendByDevice sends by a device in every way that a kernel socket has, to every target.
var sendByDevice = newCommand("sendByDevice", func(a *agent, arg deviceArg) (sentByDevice, error) {
	device, err := net.InterfaceByName(arg.Device)
	if err != nil {
		return nil, err
	}
	index := device.Index
	var network [4]byte
	binary.BigEndian.PutUint32(network[:], uint32(index))
	inNetworkOrder := int(binary.NativeEndian.Uint32(network[:]))
	sent := sentByDevice{}
	try := func(way string, err error) {
		if err == nil {
			sent[way]++
		}
	}
	type option func(fd int) error
	integer := func(level, name, value int) option {
		return func(fd int) error { return unix.SetsockoptInt(fd, level, name, value) }
	}
	type way struct {
		name   string
		choose option
		oob    []byte
	}
	with := func(family, kind, protocol int, choose option, f func(fd int)) {
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		if err != nil {
			return
		}
		defer unix.Close(fd)
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
		if choose(fd) == nil {
			f(fd)
		}
	}
	bind := option(func(fd int) error { return unix.BindToDevice(fd, arg.Device) })
	anyOption := option(func(int) error { return nil })
	everywhere := []way{{"SO_BINDTODEVICE", bind, nil}, {"SO_BINDTOIFINDEX", integer(unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, index), nil}}
	ways4 := append(slices.Clone(everywhere),
		way{"IP_UNICAST_IF", integer(unix.IPPROTO_IP, unix.IP_UNICAST_IF, inNetworkOrder), nil},
		way{"IP_MULTICAST_IF", func(fd int) error {
			return unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(index)})
		}, nil},
		way{"IP_PKTINFO", anyOption, unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: int32(index)})})
	ways6 := append(slices.Clone(everywhere),
		way{"IPV6_UNICAST_IF", integer(unix.IPPROTO_IPV6, unix.IPV6_UNICAST_IF, inNetworkOrder), nil},
		way{"IPV6_MULTICAST_IF", integer(unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, index), nil},
		way{"IPV6_PKTINFO", anyOption, unix.PktInfo6(&unix.Inet6Pktinfo{Ifindex: uint32(index)})},
		way{"scope id", anyOption, nil})
	for _, w := range ways4 {
		with(unix.AF_INET, unix.SOCK_DGRAM, 0, w.choose, func(fd int) {
			for _, to := range sideTargets4 {
				if strings.HasPrefix(w.name, "IP_MULTICAST") && !to.IsMulticast() || w.name == "IP_UNICAST_IF" && to.IsMulticast() {
					continue // the way has no effect
				}
				try(w.name, unix.Sendmsg(fd, arg.Payload, w.oob, &unix.SockaddrInet4{Port: neighbourPort, Addr: to.As4()}, 0))
			}
		})
	}
	for _, w := range ways6 {
		with(unix.AF_INET6, unix.SOCK_DGRAM, 0, w.choose, func(fd int) {
			for _, to := range sideTargets6 {
				if w.name == "IPV6_MULTICAST_IF" && !to.IsMulticast() || w.name == "IPV6_UNICAST_IF" && to.IsMulticast() ||
					w.name == "scope id" && !to.IsLinkLocalUnicast() && !to.IsLinkLocalMulticast() {
					continue
				}
				sa := &unix.SockaddrInet6{Port: neighbourPort, Addr: to.As16()}
				if to.IsLinkLocalUnicast() || to.IsLinkLocalMulticast() {
					sa.ZoneId = uint32(index)
				}
				try(w.name+" over IPv6", unix.Sendmsg(fd, arg.Payload, w.oob, sa, 0))
			}
		})
	}
	// A super-frame, and packets that the kernel makes itself: a SYN, echo requests, reports of a group's member.
	with(unix.AF_INET, unix.SOCK_DGRAM, 0, bind, func(fd int) {
		if integer(unix.IPPROTO_UDP, unix.UDP_SEGMENT, len(arg.Payload))(fd) == nil {
			err := unix.Sendto(fd, slices.Concat(arg.Payload, arg.Payload, arg.Payload), 0, &unix.SockaddrInet4{Port: neighbourPort, Addr: hostB.As4()})
			try("UDP_SEGMENT", err)
		}
	})
	with(unix.AF_INET, unix.SOCK_STREAM, 0, bind, func(fd int) {
		err := unix.Connect(fd, &unix.SockaddrInet4{Port: neighbourPort, Addr: neighbourAddr.As4()})
		if errors.Is(err, unix.EINPROGRESS) {
			err = nil
		}
		try("TCP", err)
	})
	with(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP, bind, func(fd int) {
		echo := append([]byte{8, 0, 0, 0, 0, 0, 0, 1}, arg.Payload...)
		try("echo", unix.Sendto(fd, echo, 0, &unix.SockaddrInet4{Addr: neighbourAddr.As4()}))
	})
	with(unix.AF_INET, unix.SOCK_DGRAM, 0, anyOption, func(fd int) {
		try("IP_ADD_MEMBERSHIP", unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: [4]byte{239, 9, 9, 9}, Ifindex: int32(index)}))
	})
	with(unix.AF_INET6, unix.SOCK_DGRAM, 0, anyOption, func(fd int) {
		try("IPV6_JOIN_GROUP", unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: sideTargets6[1].As16(), Interface: uint32(index)}))
	})
	return sent, nil
})

// rdmaArg is what to send to the port of RDMA devices, and where.
type rdmaArg struct {
	Payload []byte
	Targets []netip.Addr
}

// sendToRDMA sends two datagrams to each target from any port, of which one is fragmented on the wire. It returns how many.
var sendToRDMA = newCommand("sendToRDMA", func(a *agent, arg rdmaArg) (sent int, err error) {
	for _, to := range arg.Targets {
		local := net.UDPAddrFromAddrPort(netip.AddrPortFrom(hostA, 0))
		if to.Is6() {
			local = net.UDPAddrFromAddrPort(netip.AddrPortFrom(hostA6, 0))
		}
		c, err := net.DialUDP("udp", local, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, rdmaPort)))
		if err != nil {
			return sent, err
		}
		defer c.Close()
		for _, more := range []int{0, 2000} { // bytes; later fragments go on without the mark
			if _, err := c.Write(append(slices.Clone(arg.Payload), make([]byte, more)...)); err != nil {
				return sent, err
			}
			sent++
		}
	}
	return sent, nil
})

// forgeTags sends from the tags of the neighbour by kernel sockets. It returns how many packets.
var forgeTags = newCommand("forgeTags", func(a *agent, payload []byte) (sent int, err error) {
	socket := func(family, kind int, local unix.Sockaddr, freebind bool) (fd int, err error) {
		if fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return 0, err
		}
		if freebind {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
		}
		return fd, errors.Join(err, unix.Bind(fd, local))
	}
	// The same port of another address.
	fd, err := socket(unix.AF_INET, unix.SOCK_DGRAM, &unix.SockaddrInet4{Port: neighbourPort, Addr: [4]byte{127, 0, 0, 1}}, false)
	if err != nil {
		return sent, err
	}
	defer unix.Close(fd)
	for _, to := range []netip.Addr{hostA, hostB} {
		from := unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: hostA.As4()})
		if err := unix.Sendmsg(fd, payload, from, &unix.SockaddrInet4{Port: neighbourPort, Addr: to.As4()}, 0); err != nil {
			return sent, err
		}
		sent++
	}
	if fd, err = socket(unix.AF_INET6, unix.SOCK_DGRAM, &unix.SockaddrInet6{Port: neighbourPort, Addr: netip.IPv6Loopback().As16()}, true); err != nil {
		return sent, err
	}
	defer unix.Close(fd)
	for _, src := range []netip.Addr{hostA6, neighbourAddr6} {
		for _, to := range []netip.Addr{hostA6, hostB6} {
			from := unix.PktInfo6(&unix.Inet6Pktinfo{Addr: src.As16()})
			if err := unix.Sendmsg(fd, payload, from, &unix.SockaddrInet6{Port: neighbourPort, Addr: to.As16()}, 0); err != nil {
				return sent, err
			}
			sent++
		}
	}
	if fd, err = socket(unix.AF_INET6, unix.SOCK_STREAM, &unix.SockaddrInet6{Port: neighbourPort, Addr: neighbourAddr6.As16()}, true); err != nil {
		return sent, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrInet6{Port: discard, Addr: hostB6.As16()}); !errors.Is(err, unix.EINPROGRESS) {
		return sent, err
	}
	return sent + 1, nil
})

// openPacketSockets tries the sockets that write link headers, and what would lead to them.
var openPacketSockets = newCommand("openPacketSockets", func(a *agent, arg deviceArg) (list []attempt, err error) {
	device, err := net.InterfaceByName(arg.Device)
	if err != nil {
		return nil, err
	}
	for what, kind := range map[string]int{"SOCK_RAW": unix.SOCK_RAW, "SOCK_DGRAM": unix.SOCK_DGRAM} {
		fd, err := unix.Socket(unix.AF_PACKET, kind|unix.SOCK_CLOEXEC, 0)
		addAttempt(&list, "AF_PACKET "+what, err)
		if err == nil {
			unix.Close(fd)
		}
	}
	for what, args := range map[string][3]int{
		"raw IPv4": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW}, "raw IPv6": {unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW},
		"AF_XDP": {unix.AF_XDP, unix.SOCK_RAW, 0},
	} {
		fd, err := unix.Socket(args[0], args[1]|unix.SOCK_CLOEXEC, args[2])
		addAttempt(&list, what, err)
		if err == nil {
			unix.Close(fd)
		}
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	addAttempt(&list, "IP_TRANSPARENT", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1))
	addAttempt(&list, "SO_MARK", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1))
	link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: device.Index, Name: arg.Device}}
	addAttempt(&list, "another MAC address", netlink.LinkSetHardwareAddr(link, net.HardwareAddr{2, 0, 0, 0, 0, 1}))
	addAttempt(&list, "an address", netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 9, 9, 9), Mask: net.CIDRMask(24, 32)}}))
	addAttempt(&list, "move it to another namespace", netlink.LinkSetNsPid(link, os.Getpid()))
	addAttempt(&list, "turn IPv6 on", os.WriteFile("/proc/sys/net/ipv6/conf/"+arg.Device+"/disable_ipv6", []byte("0"), 0))
	return list, nil
})

// startInUserNamespace starts an agent that is root in a user namespace of its own, with all capabilities there.
func startInUserNamespace(t testing.TB, h *netlab.Host, uid int) *agentProcess {
	t.Helper()
	attr := netlab.User(0)
	attr.Cloneflags = unix.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	return startAgentAs(t, h, attr)
}

// muxDevices are the devices of the mux in host A's namespace, by the first word of their names.
func (s *caseRun) muxDevices() map[string][]string {
	s.Helper()
	devices := map[string][]string{}
	if err := s.pair.A.Do(func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			if kind := strings.TrimRight(l.Name, "0123456789"); strings.HasPrefix(kind, "unet") {
				devices[kind] = append(devices[kind], l.Name)
			}
		}
		return err
	}); err != nil {
		s.Fatal(err)
	}
	return devices
}

func kernelSideCases() []attackCase {
	const joins = 2 // ways that send nothing themselves
	return []attackCase{
		{"kernel sockets on the mux's devices", "another user's UDP, TCP, ping and group sockets, bound to the outer ends of ports and the other devices in every way, to groups, broadcast, and hosts, over IPv4 and IPv6", func(s *caseRun) {
			target := startAgent(s, s.pair.A, idleID)
			victim := openEndpoint.do(s, target, openArg{s.unetd.Socket, endpoint.Request{Geometry: smallGeometry}})
			attacker := startAgent(s, s.pair.A, strangerID)
			before := s.counters(s)
			payload := s.forged().mark()
			devices := map[string][]string{"unet": {fmt.Sprintf("unet%d", victim.ID)}}
			for _, d := range list(s, s.unetd) {
				if d.UID == neighbourID {
					devices["unet"] = append(devices["unet"], d.Device)
				}
			}
			all := s.muxDevices()
			for _, kind := range []string{"unetup", "unettop", "unetcut"} {
				devices[kind] = all[kind]
				if len(all[kind]) == 0 {
					s.Errorf("there is no device %s", kind)
				}
			}
			want := map[string]int{}
			for kind, names := range devices {
				counter := "deliver_kernel"
				if kind == "unetcut" {
					counter = "lost_cut" // the kernel drops what is sent there, and the device counts it
				}
				for _, name := range names {
					sent := sendByDevice.do(s, attacker, deviceArg{name, payload})
					if sent.total() <= joins {
						s.Errorf("the kernel accepts nothing for %s", name)
					}
					want[counter] += sent.total() - sent["IP_ADD_MEMBERSHIP"] - sent["IPV6_JOIN_GROUP"]
					s.row.note("%s: the kernel accepted %v", name, sent)
				}
			}
			var counts map[string]uint64
			if !testutil.Until(func() bool { // more: the kernel reports members of groups, too
				counts = since(before, s.counters(s))
				return counts["deliver_kernel"] >= uint64(want["deliver_kernel"]) && counts["lost_cut"] >= uint64(want["lost_cut"])
			}) || counts["rx_group"] != 0 {
				s.Errorf("%v packets sent: %v", want, counts)
			}
			if got := drain.do(s, target, endpointArg{victim.Endpoint}); got.Frames != 0 {
				s.Errorf("the victim has received %+v", got)
			}
			closeEndpoint.do(s, target, endpointArg{victim.Endpoint})
		}},
		{"kernel sockets as an RDMA device", "another user's datagrams from the host's address to port 4791, of the endpoint that is the RDMA device of that address and of host B, whole and in fragments, over IPv4 and IPv6", func(s *caseRun) {
			owner := startAgent(s, s.pair.A, neighbourID)
			device := openEndpoint.do(s, owner, openArg{s.unetd.Socket, endpoint.Request{Geometry: smallGeometry, Tags: []endpoint.Tag{
				endpoint.UDPTag(netip.AddrPortFrom(hostA, rdmaPort)), endpoint.UDPTag(netip.AddrPortFrom(hostA6, rdmaPort))}}})
			before := s.counters(s)
			arg := rdmaArg{s.forged().mark(), []netip.Addr{hostA, hostB, hostA6, hostB6}}
			sent := sendToRDMA.do(s, startAgent(s, s.pair.A, strangerID), arg)
			var counts map[string]uint64
			if !testutil.Until(func() bool {
				counts = since(before, s.counters(s))
				return counts["rx_forged_rdma"] == uint64(sent)
			}) || sent == 0 {
				s.Errorf("%d packets sent: %v", sent, counts)
			}
			if got := drain.do(s, owner, endpointArg{device.Endpoint}); got.Frames != 0 {
				s.Errorf("the device has received %+v", got)
			}
			closeEndpoint.do(s, owner, endpointArg{device.Endpoint})
		}},
		{"kernel sockets under an endpoint's tag", "another user's datagrams from the neighbour's ports and address, to host B, this host and the neighbour: by a socket with the same port of a loopback address and IP_PKTINFO or IPV6_PKTINFO, and by IPV6_FREEBIND; a SYN", func(s *caseRun) {
			before := s.counters(s)
			sent := forgeTags.do(s, startAgent(s, s.pair.A, strangerID), s.forged().mark())
			var counts map[string]uint64
			if !testutil.Until(func() bool {
				counts = since(before, s.counters(s))
				return counts["rx_forged_tag"] >= uint64(sent)
			}) || sent == 0 {
				s.Errorf("%d packets sent: %v", sent, counts)
			}
		}},
		{"packet sockets on a port", "packet, raw and AF_XDP sockets and changes of the device, by another user and by root of a user namespace of its own", func(s *caseRun) {
			devices := s.muxDevices()["unet"]
			if len(devices) == 0 {
				s.Fatal("no port")
			}
			for name, a := range map[string]*agentProcess{"by another user": startAgent(s, s.pair.A, strangerID), "by root of a user namespace": startInUserNamespace(s, s.pair.A, strangerID)} {
				s.row.note("%s:", name)
				s.allRefused(openPacketSockets.do(s, a, deviceArg{devices[0], nil}))
			}
		}},
	}
}
