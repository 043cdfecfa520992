//go:build linux

package mux_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/frametest"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

func addrTag(s string) endpoint.Tag  { return endpoint.AddrTag(netip.MustParseAddr(s)) }
func tcpTag(s string) endpoint.Tag   { return endpoint.TCPTag(netip.MustParseAddrPort(s)) }
func udpBlock(s string) endpoint.Tag { return udpTag(s).AsBlock() }
func tcpBlock(s string) endpoint.Tag { return tcpTag(s).AsBlock() }

// openLab6 is a lab whose hosts have IPv6 too.
func openLab6(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, Pair: requirePair6(t)}
	l.openMux(mux.ModeAuto)
	return l
}

// requirePair6 is a pair of hosts with IPv6, and with its routes: the kernel adds these, and receives IPv6, only
// after it has processed that the interface is up.
func requirePair6(t *testing.T) *netlab.Pair {
	t.Helper()
	p := netlab.RequirePair(t, netlab.Config{IPv6: true})
	for _, h := range []*netlab.Host{p.A, p.B} {
		testutil.Eventually(t, "the route to groups", func() (there bool) {
			testutil.Must(t, h.Do(func() error {
				routes, err := netlink.RouteGet(net.ParseIP("ff15::1"))
				there = err == nil && len(routes) > 0
				return nil
			}))
			return there
		})
	}
	return p
}

// program is a socket of the kernel's network stack.
type program struct {
	network   string // udp, udp4, udp6, tcp, tcp4, tcp6; without a number: a socket of both families
	at        string
	reuseAddr bool
	reusePort bool
	listen    bool
	connects  bool // the port will be chosen when it connects (IP_BIND_ADDRESS_NO_PORT)
}

func (p program) String() string {
	s := p.network + " " + p.at
	for _, o := range []struct {
		set  bool
		name string
	}{{p.reuseAddr, "SO_REUSEADDR"}, {p.reusePort, "SO_REUSEPORT"}, {p.listen, "listening"}, {p.connects, "IP_BIND_ADDRESS_NO_PORT"}} {
		if o.set {
			s += " " + o.name
		}
	}
	return s
}

// start binds a socket of host h's kernel. The caller closes it.
func (p program) start(h *netlab.Host) (fd int, err error) {
	at, family := sockaddr(p.at)
	kind := unix.SOCK_DGRAM
	if strings.HasPrefix(p.network, "tcp") {
		kind = unix.SOCK_STREAM
	}
	err = h.Do(func() error {
		if fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		set := func(on bool, level, opt int) error {
			if !on {
				return nil
			}
			return unix.SetsockoptInt(fd, level, opt, 1)
		}
		err := errors.Join(
			set(p.reuseAddr, unix.SOL_SOCKET, unix.SO_REUSEADDR),
			set(p.reusePort, unix.SOL_SOCKET, unix.SO_REUSEPORT),
			set(p.connects, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT),
			set(strings.HasSuffix(p.network, "6"), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY),
		)
		if err == nil {
			err = unix.Bind(fd, at)
		}
		if err == nil && p.listen {
			err = unix.Listen(fd, 1)
		}
		if err != nil {
			unix.Close(fd)
		}
		return err
	})
	return fd, err
}

// keep is start for the length of the test.
func (p program) keep(t *testing.T, h *netlab.Host) (fd int) {
	t.Helper()
	fd, err := p.start(h)
	if err != nil {
		t.Fatalf("%v: %v", p, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// boundTo is the port of a kernel's socket.
func boundTo(t *testing.T, fd int) uint16 {
	t.Helper()
	name, err := unix.Getsockname(fd)
	testutil.Must(t, err)
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		return uint16(name.Port)
	case *unix.SockaddrInet6:
		return uint16(name.Port)
	}
	t.Fatalf("socket name %T", name)
	return 0
}

// connect begins to connect a kernel's socket and does not wait.
func connect(fd int, to string) error {
	at, _ := sockaddr(to)
	if err := unix.Connect(fd, at); !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	return nil
}

func sockaddr(s string) (at unix.Sockaddr, family int) {
	ap := netip.MustParseAddrPort(s)
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: ap.Addr().As4(), Port: int(ap.Port())}, unix.AF_INET
	}
	return &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port())}, unix.AF_INET6
}

// sysctl changes a setting of a host.
func sysctl(t *testing.T, h *netlab.Host, name, value string) {
	t.Helper()
	testutil.Must(t, h.Do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) }))
}

// netFile reads a file of /proc/net on a host.
func netFile(t *testing.T, h *netlab.Host, name string) (text string) {
	t.Helper()
	testutil.Must(t, h.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/" + name)
		text = string(b)
		return err
	}))
	return text
}

// wantClaims checks that exactly tags are in the tables and have descriptors.
func (l *lab) wantClaims(reserved int, tags ...endpoint.Tag) {
	l.t.Helper()
	held, inKernel, n, err := l.mux.Claims()
	testutil.Must(l.t, err)
	want := map[endpoint.Tag]bool{}
	for _, t := range tags {
		want[t] = true
	}
	if fmt.Sprint(held) != fmt.Sprint(want) || fmt.Sprint(inKernel) != fmt.Sprint(want) || n != reserved {
		l.t.Errorf("held %v, in the kernel %v, with %d descriptors; want %v with %d", held, inKernel, n, want, reserved)
	}
}

func parseMAC(s string) net.HardwareAddr {
	hw, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return hw
}

// addAddr adds an address with flags (IFA_F_*) to a host's end. The kernel keeps those flags that can
// be set from user space.
func addAddr(t *testing.T, h *netlab.Host, addr string, set func(*netlink.Addr)) {
	t.Helper()
	p := netip.MustParsePrefix(addr)
	testutil.Must(t, h.Do(func() error {
		link, err := netlink.LinkByName(h.Interface)
		if err != nil {
			return err
		}
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Flags: unix.IFA_F_NODAD}
		set(a)
		return netlink.AddrAdd(link, a)
	}))
}

// addressFlags are the kernel's flags of an address.
func addressFlags(t *testing.T, h *netlab.Host, addr string) (flags int) {
	t.Helper()
	testutil.Must(t, h.Do(func() error {
		list, err := netlink.AddrList(nil, netlink.FAMILY_V6)
		for _, a := range list {
			if a.IP.String() == addr {
				flags = a.Flags
			}
		}
		return err
	}))
	return flags
}

// Ports can be claimed on each IPv6 address of the uplink, and on no other. A wildcard stands for the first that
// the kernel prefers.
func TestClaimsOnIPv6AddressesOfUplink(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	a := l.open()
	wildcard := func(want string) {
		t.Helper()
		tag, err := a.lease.Claim(t.Context(), udpTag("[::]:0"))
		if err != nil || tag.Addr.String() != want {
			t.Errorf("a wildcard is %v, %v; want %s", tag, err, want)
		}
	}
	wildcard("fd00::1")
	l.awaitAddrs("10.0.0.1/24", "fd00::1/64")
	plain := func(*netlink.Addr) {}
	addAddr(t, l.A, "fe80::a/64", plain)
	addAddr(t, l.A, "2001:db8::1/64", plain)
	addAddr(t, l.A, "2001:db8::dead/64", func(a *netlink.Addr) { a.PreferedLft, a.ValidLft = 0, 1000 }) // deprecated (RFC 4862, 5.5.4)
	testutil.Must(t, l.A.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("2001:db8:1::1"), Mask: net.CIDRMask(128, 128)}})
	}))
	l.awaitAddrs("10.0.0.1/24", "2001:db8::1/64", "fd00::1/64", "2001:db8::dead/64", "fe80::a/64") // the kernel prefers the newest
	for _, kind := range []func(string) endpoint.Tag{udpTag, tcpTag, udpBlock, tcpBlock} {
		for _, addr := range []string{"fd00::1", "fe80::a", "2001:db8::1", "2001:db8::dead"} {
			tag := kind("[" + addr + "]:30016") // the kernel chooses from 32768 on
			if !tag.Block {
				tag.Port = 7000
			}
			if got, err := a.lease.Claim(t.Context(), tag); err != nil || got != tag {
				t.Errorf("claim %v: %v, %v", tag, got, err)
			}
		}
		for _, addr := range []string{"2001:db8:1::1", "::1", "fd00::2", "fe80::a%" + l.A.Interface, "ff01::1", "ff02::1%" + l.A.Interface, "::ffff:10.0.0.2"} {
			if got, err := a.lease.Claim(t.Context(), kind("["+addr+"]:50112")); !errors.Is(err, endpoint.ErrTagDenied) {
				t.Errorf("claim a port of %v: %v, %v", addr, got, err)
			}
		}
	}
	if got, err := a.lease.Claim(t.Context(), endpoint.Tag{Kind: endpoint.TagUDP, Addr: netip.MustParseAddr("::ffff:10.0.0.1"), Port: 9}); err != nil || got != udpTag("10.0.0.1:9") {
		t.Errorf("an IPv4 address in IPv6 form: %v, %v", got, err)
	}

	del := func(addr string) { addrOff(t, l.A, l.A.Interface, addr) }
	del("fd00::1/64")
	wildcard("2001:db8::1")
	del("2001:db8::1/64")
	wildcard("2001:db8::dead")
	l.awaitAddrs("10.0.0.1/24", "2001:db8::dead/64", "fe80::a/64")
	del("2001:db8::dead/64")
	wildcard("fe80::a")
	testutil.Must(t, a.lease.Unclaim(t.Context(), tcpBlock("[fd00::1]:30016"))) // the claim is still there, without the address
	del("fe80::a/64")
	if got, err := a.lease.Claim(t.Context(), udpTag("[::]:0")); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("without an address: %v, %v", got, err)
	}
	testutil.Must(t, a.lease.Close())
	l.wantClaims(0)
}

// temporaryAddress adds an address for which the kernel makes a temporary one (RFC 8981), and returns that.
func temporaryAddress(t *testing.T, h *netlab.Host, managed string) (temporary string) {
	t.Helper()
	sysctl(t, h, "ipv6/conf/"+h.Interface+"/dad_transmits", "0")
	sysctl(t, h, "ipv6/conf/"+h.Interface+"/use_tempaddr", "2")
	addAddr(t, h, managed, func(a *netlink.Addr) {
		a.Flags, a.PreferedLft, a.ValidLft = unix.IFA_F_MANAGETEMPADDR|unix.IFA_F_NODAD, 10000, 20000
	})
	testutil.Eventually(t, "a temporary address", func() bool {
		testutil.Must(t, h.Do(func() error {
			list, err := netlink.AddrList(nil, netlink.FAMILY_V6)
			for _, a := range list {
				if a.Flags&unix.IFA_F_TEMPORARY != 0 && a.Flags&unix.IFA_F_TENTATIVE == 0 {
					temporary = a.IP.String()
				}
			}
			return err
		}))
		return temporary != ""
	})
	return temporary
}

// No ports can be claimed on a tentative or duplicate address. They can be on a temporary one, which a wildcard does
// not prefer.
func TestClaimsOnTentativeAndTemporaryAddresses(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	a := l.open()
	// A duplicate: host B has it. A hundred probes leave time to check it.
	sysctl(t, l.A, "ipv6/conf/"+l.A.Interface+"/dad_transmits", "100")
	addAddr(t, l.A, "fd00::3/64", func(a *netlink.Addr) { a.Flags = 0 })
	if addressFlags(t, l.A, "fd00::3")&unix.IFA_F_TENTATIVE == 0 {
		t.Fatal("fd00::3 is not tentative")
	}
	addAddr(t, l.A, "fd00::2/64", func(a *netlink.Addr) { a.Flags = 0 })
	testutil.Eventually(t, "fd00::2 found to be host B's", func() bool { return addressFlags(t, l.A, "fd00::2")&unix.IFA_F_DADFAILED != 0 })
	temporary := temporaryAddress(t, l.A, "2001:db8::1/64")
	for _, c := range []struct{ addr, says string }{
		{"fd00::3", "try again"},
		{"fd00::2", "duplicate"},
	} {
		for _, tag := range []endpoint.Tag{udpTag("[" + c.addr + "]:7000"), tcpBlock("[" + c.addr + "]:0")} {
			if got, err := a.lease.Claim(t.Context(), tag); !errors.Is(err, endpoint.ErrTagDenied) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("claim %v: %v, %v; want: %s", tag, got, err, c.says)
			}
		}
	}
	for _, tag := range []endpoint.Tag{udpTag("[" + temporary + "]:7000"), tcpBlock("[" + temporary + "]:30016")} {
		if got, err := a.lease.Claim(t.Context(), tag); err != nil || got != tag {
			t.Errorf("claim %v: %v, %v", tag, got, err)
		}
	}
	for range 10 {
		if got, err := a.lease.Claim(t.Context(), udpTag("[::]:0")); err != nil || got.Addr != l.A.Addr6.Addr() && got.Addr.String() != "2001:db8::1" {
			t.Errorf("a wildcard is %v, %v", got, err)
		}
	}
}

// Which IPv6 addresses can be claimed as owned ones, and the reasons of refusals.
func TestClaimsOfOwnedIPv6Addresses(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	a, b := l.open(), l.open()
	hw := parseMAC("02:00:00:00:00:77")
	testutil.Must(t, l.A.Do(func() error {
		uplink, err := netlink.LinkByName(l.A.Interface)
		if err != nil {
			return err
		}
		i := uplink.Attrs().Index
		_, dst, _ := net.ParseCIDR("2001:db8:2::/64")
		return errors.Join(
			netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP("fd00::66"), LinkIndex: i}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: i, State: netlink.NUD_STALE, IP: net.ParseIP("fd00::67"), HardwareAddr: hw}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: i, State: netlink.NUD_FAILED, IP: net.ParseIP("fd00::68")}),
		)
	}))
	held, denied := endpoint.ErrTagHeld, endpoint.ErrTagDenied
	for _, c := range []struct {
		addr string
		want error
		says string
	}{
		{"fd00::1", denied, "the host has"},
		{"fd00::", denied, "anycast"},
		{"2001:db8::1", denied, "not in a subnet"},
		{"fd01::1", denied, "not in a subnet"},
		{"fe80::77", denied, "not in a subnet"}, // the uplink has no link-local address
		{"fd00::77%" + l.A.Interface, denied, ""},
		{"::", denied, ""},
		{"::1", denied, ""},
		{"ff02::1", denied, ""},
		{"ff05::7", denied, ""},
		{"::ffff:10.0.0.1", denied, "the host has"}, // as 10.0.0.1
		{"fd00::66", denied, "next hop"},
		{"fd00::67", held, hw.String()},
		{"fd00::2", held, l.B.LinkAddr.String()}, // host B answers
		{"fd00::68", nil, ""},
		{"fd00::77", nil, ""},
		{"fd00::77", held, "already"},
	} {
		got, err := a.lease.Claim(t.Context(), addrTag(c.addr))
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.says) || err == nil && got != addrTag(c.addr) {
			t.Errorf("claim %s: %v, %v; want %v: %s", c.addr, got, err, c.want, c.says)
		}
	}
	if _, err := b.lease.Claim(t.Context(), addrTag("fd00::77")); !errors.Is(err, held) {
		t.Errorf("claim another's address: %v", err)
	}
	if _, err := a.lease.Claim(t.Context(), tcpTag("[fd00::77]:80")); err != nil {
		t.Errorf("a port of one's own address: %v", err)
	}
	if err := a.lease.Unclaim(t.Context(), addrTag("fd00::77")); !errors.Is(err, denied) {
		t.Errorf("unclaim an address on which a port is held: %v", err)
	}
	// A refusal has no effect: the address is free when its host is gone.
	addrOff(t, l.B, l.B.Interface, "fd00::2/64")
	for _, n := range neighbours(t, l.A) {
		onDevice(t, l.A, l.A.Interface, func(netlink.Link) error { return netlink.NeighDel(&n) })
	}
	if _, err := b.lease.Claim(t.Context(), addrTag("fd00::2")); err != nil {
		t.Errorf("when host B has gone: %v", err)
	}
}

// While an owned IPv6 address is held, the uplink receives solicitations for it.
func TestUplinkJoinsSolicitedNodeGroups(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	group := func(last string) bool {
		return strings.Contains(netFile(t, l.A, "igmp6"), "ff0200000000000000000001ff"+last)
	}
	filtered := func(last string) bool { // by hardware
		return strings.Contains(netFile(t, l.A, "dev_mcast"), "3333ff"+last)
	}
	a := l.open(addrTag("fd00::1:2:77"))
	b := l.open(addrTag("fd00::3:2:77"), addrTag("fd00::aaaa:bbbb"))
	want := func(why string, on ...bool) {
		t.Helper()
		got := []bool{group("020077"), filtered("020077"), group("aabbbb"), filtered("aabbbb")}
		if fmt.Sprint(got) != fmt.Sprint(on) {
			t.Errorf("%s: %v, want %v", why, got, on)
		}
	}
	want("all held", true, true, true, true)
	testutil.Must(t, b.lease.Close())
	want("one is left in the group", true, true, false, false)
	testutil.Must(t, a.lease.Unclaim(t.Context(), addrTag("fd00::1:2:77")))
	want("none", false, false, false, false)
}

// Packets of another host's kernel to a claimed port arrive at its owner and nowhere else: for a single port or a
// block, on a shared or an owned address.
func TestFramesToClaimedPortsReachOwner(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	setNeighbour(t, l.B, "10.0.0.77", l.A.LinkAddr)
	setNeighbour(t, l.B, "fd00::77", l.A.LinkAddr)
	owned, owned6 := addrTag("10.0.0.77"), addrTag("fd00::77")
	other := l.open(udpTag("10.0.0.1:7001"), tcpTag("[fd00::1]:7001"), udpBlock("10.0.0.1:40064"), tcpBlock("[fd00::1]:40064"))
	a := l.open(append(sharedTags, owned, owned6,
		tcpTag("10.0.0.77:80"), udpBlock("10.0.0.77:40000"), udpTag("[fd00::77]:80"), tcpBlock("[fd00::77]:40000"))...)
	for _, tag := range a.grant.Tags {
		if tag.Kind == endpoint.TagAddr {
			continue
		}
		for _, port := range []uint16{tag.Port, tag.LastPort()} {
			to := netip.AddrPortFrom(tag.Addr, port)
			p := program{network: "udp4", at: "10.0.0.2:0"}
			if tag.Addr.Is6() {
				p = program{network: "udp6", at: "[fd00::2]:0"}
			}
			if tag.Kind == endpoint.TagTCP {
				p.network = "tcp" + p.network[3:]
			}
			fd, err := p.start(l.B)
			testutil.Must(t, err)
			closing := sync.OnceFunc(func() { unix.Close(fd) })
			t.Cleanup(closing)
			testutil.Must(t, connect(fd, to.String())) // TCP: a SYN
			if tag.Kind == endpoint.TagUDP {
				_, err := unix.Write(fd, []byte("hello"))
				testutil.Must(t, err)
			}
			asSent := func(p gopacket.Packet) bool {
				switch l := p.TransportLayer().(type) {
				case *layers.UDP:
					return tag.Kind == endpoint.TagUDP && uint16(l.DstPort) == port && string(l.Payload) == "hello"
				case *layers.TCP:
					return tag.Kind == endpoint.TagTCP && uint16(l.DstPort) == port && l.SYN && !l.ACK
				}
				return false
			}
			p2 := packet(t, a.recv().frame)
			if !asSent(p2) || !net.IP(p2.NetworkLayer().NetworkFlow().Dst().Raw()).Equal(tag.Addr.AsSlice()) {
				t.Errorf("sent to %v %v, received %v", p.network, to, p2)
			}
			closing() // no SYN again
		}
	}
	other.wantNothing("to ports of another endpoint")
	// Ports without a claim are the kernel's.
	ping(t, l.B, "10.0.0.1")
	ping(t, l.B, "fd00::1")
	service, err := l.A.Listen("tcp6", "[fd00::1]:80")
	testutil.Must(t, err)
	defer service.Close()
	c, err := l.B.Dial("tcp6", "[fd00::1]:80")
	testutil.Must(t, err)
	testutil.Must(t, c.Close())
	a.wantNothing("to ports of the kernel")
}

// ICMP errors and TCP resets of the other host for packets from a port of a block arrive at the
// block's owner.
func TestErrorsForPortsOfBlockReachOwner(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	a := l.open(udpBlock("10.0.0.1:40000"), udpBlock("[fd00::1]:40000"), tcpBlock("10.0.0.1:40000"))
	b := l.open(udpBlock("10.0.0.1:40064"), udpBlock("[fd00::1]:40064"), udpTag("10.0.0.1:9"))
	A, B := l.A.LinkAddr, l.B.LinkAddr
	a.send(datagram(B, A, "10.0.0.1:40063", "10.0.0.2:9", "to a closed port"))
	p := packet(t, a.recv().frame)
	if icmp, ok := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); !ok || icmp.TypeCode != layers.CreateICMPv4TypeCode(3, 3) {
		t.Errorf("received %v", p)
	}
	a.send(datagram(B, A, "[fd00::1]:40063", "[fd00::2]:9", "to a closed port"))
	p = packet(t, a.recv().frame)
	if icmp, ok := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6); !ok || icmp.TypeCode != layers.CreateICMPv6TypeCode(1, 4) {
		t.Errorf("received %v", p)
	}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: net.IPv4(10, 0, 0, 1), DstIP: net.IPv4(10, 0, 0, 2)}
	syn := &layers.TCP{SrcPort: 40001, DstPort: 9, SYN: true, Window: 1000}
	a.send(frametest.Build(&layers.Ethernet{DstMAC: B[:], SrcMAC: A[:], EthernetType: layers.EthernetTypeIPv4}, ip, syn))
	p = packet(t, a.recv().frame)
	if tcp, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP); !ok || !tcp.RST || tcp.DstPort != 40001 {
		t.Errorf("received %v", p)
	}
	b.wantNothing("errors about another's datagrams")
}

// Solicitations for an owned IPv6 address arrive at its owner, which answers; those for the shared
// address go to the kernel.
func TestSolicitationsForOwnedAddressReachOwner(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	a := l.open(addrTag("fd00::77"))
	fd := program{network: "udp6", at: "[fd00::2]:9000"}.keep(t, l.B)
	testutil.Must(t, connect(fd, "[fd00::77]:5"))
	_, err := unix.Write(fd, []byte("hello")) // the kernel asks for the MAC address first
	testutil.Must(t, err)
	frame := a.recv().frame
	ns, ok := packet(t, frame).Layer(layers.LayerTypeICMPv6NeighborSolicitation).(*layers.ICMPv6NeighborSolicitation)
	if !ok || !ns.TargetAddress.Equal(net.ParseIP("fd00::77")) {
		t.Fatalf("received %x, want a solicitation", frame)
	}
	A, B := net.HardwareAddr(l.A.LinkAddr[:]), net.HardwareAddr(l.B.LinkAddr[:])
	const solicitedOverride = 0x60
	advertisement := append([]byte{136, 0, 0, 0, solicitedOverride, 0, 0, 0}, net.ParseIP("fd00::77")...)
	a.send(ndWith(A, B, "fd00::77", "fd00::2", 255, append(append(advertisement, 2, 1), A...)))
	p := packet(t, a.recv().frame)
	if udp := p.Layer(layers.LayerTypeUDP); udp == nil || string(udp.LayerPayload()) != "hello" {
		t.Fatalf("received %v, want the datagram", p)
	}
	ping(t, l.B, "fd00::1")
	ping(t, l.B, "fd00::1")
	a.wantNothing("of solicitations and ping for the shared address")
}
