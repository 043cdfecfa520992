package tcp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/netlab"
)

// openWire makes a host behind host B, which forwards between it and us. Its segments reach
// B as from a wire, with complete checksums, and B merges them (GRO). Merged segments have
// partial checksums.
func (s *scene) openWire(t *testing.T) *netlab.Host {
	t.Helper()
	far := netlab.RequirePair(t, netlab.Config{}).A
	configure := func(name, addr string, to *net.IPNet, via string) error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(addr)
		if err == nil {
			err = errors.Join(netlink.AddrAdd(l, a), netlink.LinkSetUp(l))
		}
		if err == nil && to != nil {
			err = netlink.RouteAdd(&netlink.Route{Dst: to, Gw: net.ParseIP(via)})
		}
		return err
	}
	near := &net.IPNet{IP: net.IPv4(10, 0, 0, 0), Mask: net.CIDRMask(24, 32)}
	must(t, s.B.Do(func() error {
		a := netlink.NewLinkAttrs()
		a.Name = "wire"
		cable := netlink.NewVeth(a)
		cable.PeerName, cable.PeerNamespace = "wire", netlink.NsFd(far.NS)
		if err := netlink.LinkAdd(cable); err != nil {
			return err
		}
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			netlab.SetOffload("wire", "gro", true),
			configure("wire", "10.0.1.2/24", nil, ""))
	}))
	must(t, far.Do(func() error {
		cable, err := netlink.LinkByName(far.Interface) // it has our address
		if err != nil {
			return err
		}
		return errors.Join(
			netlink.LinkDel(cable),
			netlab.SetOffloads("wire", false),
			configure("wire", "10.0.1.3/24", near, "10.0.1.2"))
	}))
	must(t, s.A.Do(func() error {
		to := &net.IPNet{IP: net.IPv4(10, 0, 1, 0), Mask: near.Mask}
		return netlink.RouteAdd(&netlink.Route{Dst: to, Gw: net.ParseIP("10.0.0.2")})
	}))
	return far
}

// TestForwarded: complete and partial checksums on one connection. The first partial one is
// taken for damage; all data arrives.
func TestForwarded(t *testing.T) {
	for _, untrusted := range []bool{false, true} {
		t.Run(fmt.Sprintf("untrusted=%t", untrusted), func(t *testing.T) {
			s := openScene(t, config{untrusted: untrusted, merged: true})
			far := s.openWire(t)
			l := s.listen(t, true)
			defer l.Close()
			dialled, err := far.Dial("tcp", l.Addr().String())
			must(t, err)
			ours, err := l.Accept()
			must(t, err)
			for _, c := range []net.Conn{dialled, ours} {
				c.SetDeadline(time.Now().Add(patience))
			}
			for _, size := range []int{100, 20 * mss, 100, 20 * mss} { // alone, merged
				done := make(chan error, 1)
				go func() { done <- send(dialled, newText(0, size), size) }()
				must(t, errors.Join(expectMore(ours, newText(0, size), size), <-done))
			}
			must(t, exchange(ours, dialled, 1<<20, pieces{64 << 10, 64 << 10}))
		})
	}
}
