package mux_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
)

func addrTag(s string) endpoint.Tag  { return endpoint.AddrTag(netip.MustParseAddr(s)) }
func tcpTag(s string) endpoint.Tag   { return endpoint.TCPTag(netip.MustParseAddrPort(s)) }
func udpBlock(s string) endpoint.Tag { return udpTag(s).AsBlock() }
func tcpBlock(s string) endpoint.Tag { return tcpTag(s).AsBlock() }

// openLab6 is a lab whose hosts have IPv6 too. The kernel receives that only on
// an interface of which it has noticed that it works.
func openLab6(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{IPv6: true})}
	eventually(t, "host B operational", func() (up bool) {
		must(t, l.B.Do(func() error {
			link, err := netlink.LinkByName(l.B.Interface)
			up = err == nil && link.Attrs().OperState == netlink.OperUp
			return err
		}))
		return up
	})
	l.openMux(mux.ModeGeneric)
	return l
}

// program is what a program of the kernel's network stack does with a port.
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
	must(t, err)
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		return uint16(name.Port)
	case *unix.SockaddrInet6:
		return uint16(name.Port)
	}
	t.Fatalf("socket name %T", name)
	return 0
}

// connect begins to connect a kernel's socket and waits for nothing.
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
	must(t, h.Do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) }))
}

// netFile reads a file of /proc/net on a host.
func netFile(t *testing.T, h *netlab.Host, name string) (text string) {
	t.Helper()
	must(t, h.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/" + name)
		text = string(b)
		return err
	}))
	return text
}

// eventually waits until ok, and reports what it is about otherwise.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
	}
}

// wantClaims checks that tables and descriptors are those of tags, and no others.
func (l *lab) wantClaims(reserved int, tags ...endpoint.Tag) {
	l.t.Helper()
	held, inKernel, n, err := l.mux.Claims()
	must(l.t, err)
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
