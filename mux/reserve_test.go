//go:build linux

package mux_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// startNeighbour makes a host behind another interface of host h than the uplink, at 10.9.0.2 and fd09::2.
func startNeighbour(t *testing.T, h *netlab.Host) *netlab.Host {
	t.Helper()
	n, err := netlab.NewHost("neighbour")
	testutil.Must(t, err)
	t.Cleanup(func() { n.Close() })
	n.Interface = "eth1"
	var in netns.NsHandle
	testutil.Must(t, n.Do(func() (err error) { in, err = netns.Get(); return err }))
	defer in.Close()
	testutil.Must(t, h.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}, PeerName: n.Interface, PeerNamespace: netlink.NsFd(in)})
	}))
	for host, addrs := range map[*netlab.Host][2]string{h: {"10.9.0.1/24", "fd09::1/64"}, n: {"10.9.0.2/24", "fd09::2/64"}} {
		sysctl(t, host, "ipv6/conf/eth1/disable_ipv6", "0")
		onDevice(t, host, "eth1", netlink.LinkSetUp)
		for _, a := range addrs {
			addrOn(t, host, "eth1", a)
		}
	}
	for _, to := range []string{"10.9.0.1", "fd09::1"} {
		testutil.Must(t, n.Do(func() error { return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(to)}) }))
	}
	ping(t, n, "10.0.0.1")
	ping(t, n, "fd00::1")
	return n
}

// connected is a socket of a host that has sent a SYN or a datagram.
func connected(t *testing.T, h *netlab.Host, kind int, to netip.AddrPort) (fd int) {
	t.Helper()
	testutil.Must(t, h.Do(func() (err error) {
		at, domain := unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte(to.Addr().AsSlice()[:4]), Port: int(to.Port())}), unix.AF_INET
		if to.Addr().Is6() {
			at, domain = &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}, unix.AF_INET6
		}
		if fd, err = unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Connect(fd, at); err != nil && err != unix.EINPROGRESS {
			return err
		}
		if kind == unix.SOCK_DGRAM {
			return unix.Send(fd, []byte("hello"), 0)
		}
		return nil
	}))
	return fd
}

// The kernel does not answer in the name of an endpoint, if a packet to a claimed port reaches it: by another interface
// of the host, or from the host itself for an endpoint on a queue. It drops and counts the packet.
func TestKernelIsSilentOnClaimedPorts(t *testing.T) {
	t.Parallel()
	l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{IPv6: true})}
	n := startNeighbour(t, l.A)
	l.openMux(mux.ModeTCX)
	tcp := func(s string) endpoint.Tag { return endpoint.TCPTag(netip.MustParseAddrPort(s)) }
	queue := []endpoint.Tag{udpTag("10.0.0.1:7002"), tcp("10.0.0.1:7002"), udpTag("[fd00::1]:7002"), tcp("[fd00::1]:7002")}
	l.open(udpTag("10.0.0.1:7000"), tcp("10.0.0.1:7000"), udpTag("[fd00::1]:7000"), tcp("[fd00::1]:7000"), tcp("10.0.0.1:8000").AsBlock(), udpTag("10.0.0.1:8000").AsBlock())
	l.openRequest(endpoint.Request{Attach: endpoint.AttachQueue, Tags: queue})
	for _, c := range []struct {
		from *netlab.Host
		to   string
	}{
		{n, "10.0.0.1:7000"}, {n, "[fd00::1]:7000"}, {n, "10.0.0.1:8001"},
		{n, "10.0.0.1:7002"}, {n, "[fd00::1]:7002"},
		{l.A, "10.0.0.1:7002"}, {l.A, "[fd00::1]:7002"},
	} {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			name := fmt.Sprintf("%s, %s, kind %d", c.from.Name, c.to, kind)
			before := l.count()["lost_reserved"]
			fd := connected(t, c.from, kind, netip.MustParseAddrPort(c.to))
			testutil.Eventually(t, name+": lost_reserved", func() bool { return l.count()["lost_reserved"] > before })
			// The answer would have come in the same softirq.
			if e, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || e != 0 {
				t.Errorf("%s: %v, %v", name, unix.Errno(e), err)
			}
			if kind == unix.SOCK_STREAM {
				const synSent = 2 // TCP_SYN_SENT
				if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err != nil || info.State != synSent {
					t.Errorf("%s: state %d, %v", name, info.State, err)
				}
			}
		}
	}
	// A port without a tag is the kernel's, and refused.
	fd := connected(t, n, unix.SOCK_STREAM, netip.MustParseAddrPort("10.0.0.1:7005"))
	testutil.Eventually(t, "a port that nobody has claimed is refused", func() bool {
		e, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		return err == nil && unix.Errno(e) == unix.ECONNREFUSED
	})
}

// A port that was given back can be claimed as soon as no process has a copy of its socket, as one that is being started
// has for a moment.
func TestClaimWaitsForCopiesOfClosedSockets(t *testing.T) {
	l := openLab(t, mux.ModeAuto)
	a := l.open()
	tags := []endpoint.Tag{tcpTag("10.0.0.1:7300"), udpTag("10.0.0.1:7300")}
	release := func(tag endpoint.Tag) (copies []int) {
		if _, err := a.lease.Claim(t.Context(), tag); err != nil {
			t.Fatal(err)
		}
		copies = l.mux.CopyReserved(tag)
		testutil.Must(t, a.lease.Unclaim(t.Context(), tag))
		return copies
	}
	defer mux.SetCopyTime(0)()
	for _, tag := range tags {
		copies := release(tag)
		if _, err := a.lease.Claim(t.Context(), tag); !errors.Is(err, endpoint.ErrTagHeld) {
			t.Errorf("claim of %v, which a process still has: %v", tag, err)
		}
		closeAll(t, copies)
	}
	mux.SetCopyTime(time.Hour)
	for _, tag := range tags {
		copies := release(tag)
		claimed := make(chan error)
		go func() {
			_, err := a.lease.Claim(t.Context(), tag)
			claimed <- err
		}()
		closeAll(t, copies)
		if err := <-claimed; err != nil {
			t.Errorf("claim of %v: %v", tag, err)
		}
	}
}

func closeAll(t *testing.T, fds []int) {
	t.Helper()
	for _, fd := range fds {
		testutil.Must(t, unix.Close(fd))
	}
}
