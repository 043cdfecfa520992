//go:build linux

package impaired

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/wire"
)

// TestPathMTUBlackHole: the path to the kernel drops packets above its MTU without an ICMP error.
// The first connection finds the MTU, with one packet in flight that is too large at a time. The
// next connections use it.
func TestPathMTUBlackHole(t *testing.T) {
	for _, c := range []struct {
		mtu  int
		ipv6 bool
	}{{1400, false}, {1492, false}, {1400, true}} {
		mtu := c.mtu
		t.Run(fmt.Sprintf("%d, IPv6 %t", mtu, c.ipv6), func(t *testing.T) {
			s := openScene(t, kernelPeer, netlab.Config{IPv6: c.ipv6}, unet.HostConfig{})
			s.impair(impair.Rule{MaxSize: wire.EthernetHeaderLen + mtu}, impair.Rule{})
			for i, dial := range []bool{true, false, true} {
				before, x := s.link.Counters(impair.AtoB).LostForSize, s.connect(t, dial)
				if i == 0 {
					testutil.Must(t, x.sendUntil(func() bool { return counters(s.host)["path_mtu_lowered"] > 0 }))
				}
				if err := exchange(6*mb, x); err != nil {
					t.Errorf("dialled by us: %t: %v", dial, err)
				}
				switch lost := s.link.Counters(impair.AtoB).LostForSize - before; {
				case i == 0 && lost == 0:
					t.Error("nothing was too large")
				case i > 0 && lost > 0:
					t.Errorf("connection %d: %d more were too large", i, lost)
				}
			}
			if c := counters(s.host); c["tcp_black_holes"] != 1 || c["tcp_mtu_probes"] == 0 || c["path_mtu_lowered"] != 1 {
				t.Errorf("black holes %d, probes %d, of them lost %d, path MTU lowered %d times", c["tcp_black_holes"], c["tcp_mtu_probes"], c["tcp_mtu_probes_lost"], c["path_mtu_lowered"])
			}
		})
	}
}

// sendUntil sends data to the peer, which reads it, until something has happened.
func (c connection) sendUntil(happened func() bool) error {
	b := make([]byte, 64<<10)
	for !happened() {
		testutil.Renew(c.ours)
		testutil.Renew(c.peers)
		if _, err := c.ours.Write(b); err != nil {
			return err
		}
		if _, err := io.ReadFull(c.peers, b); err != nil {
			return err
		}
	}
	return nil
}

// TestPathMTUBehindRouter: between us and the kernel is a router whose next hop has a smaller MTU than our
// links. Its ICMP error reaches us, or it does not.
func TestPathMTUBehindRouter(t *testing.T) {
	for _, c := range []struct {
		link, path   int
		silent, ipv6 bool
	}{{1500, 1400, false, false}, {1500, 1400, true, false}, {9000, 1500, false, false}, {9000, 1500, true, false}, {1500, 1280, false, true}, {9000, 1400, true, true}} {
		t.Run(fmt.Sprintf("%d over %d, silent %t, IPv6 %t", c.link, c.path, c.silent, c.ipv6), func(t *testing.T) {
			t.Parallel()
			s := newScene(netlab.RequirePair(t, netlab.Config{Cut: true, MTU: c.link, IPv6: c.ipv6, LinkLocal: c.ipv6}))
			testutil.Must(t, s.Middle.Do(func() error { return s.forward(c.path, c.silent) }))
			var stop func()
			s.host, stop = openHost(t, s.A, unet.HostConfig{})
			t.Cleanup(stop)
			for _, dial := range []bool{true, false} {
				if err := exchange(4*mb, s.connect(t, dial)); err != nil {
					t.Errorf("dialled by us: %t: %v", dial, err)
				}
			}
			n := counters(s.host)
			if holes := n["tcp_black_holes"]; (holes > 0) != c.silent || (n["tcp_mtu_reports_accepted"] > 0) == c.silent {
				t.Errorf("%d black holes, %d reports accepted, %d held, %d late, %d bad, unmatched %d", holes, n["tcp_mtu_reports_accepted"], n["tcp_mtu_reports_held"],
					n["tcp_mtu_reports_late"], n["tcp_mtu_reports_bad"], n["icmp_unmatched"])
			}
		})
	}
}

// TestRouteMTUDecreases: the MTU of the kernel's route to the peer becomes smaller while data is
// in flight. It applies to connections at once, and no larger packet is sent any more.
func TestRouteMTUDecreases(t *testing.T) {
	t.Run("IPv4", func(t *testing.T) { testRouteMTUDecreases(t, false, 1200) })
	t.Run("IPv6", func(t *testing.T) { testRouteMTUDecreases(t, true, 1300) })
}

func testRouteMTUDecreases(t *testing.T, ipv6 bool, narrow int) {
	s := openScene(t, kernelPeer, netlab.Config{IPv6: ipv6})
	s.impair(impair.Rule{Rate: 100e6}, impair.Rule{})
	x := s.connect(t, true)
	done := make(chan error, 1)
	go func() { done <- exchange(6*mb, x) }()
	passed := func(n uint64) {
		for n += s.link.Counters(impair.AtoB).Bytes; s.link.Counters(impair.AtoB).Bytes < n; time.Sleep(ms) {
			if len(done) > 0 {
				t.Fatal(<-done)
			}
		}
	}
	passed(mb)
	testutil.Must(t, s.A.Do(func() error {
		link, err := netlink.LinkByName(s.A.Interface)
		if err != nil {
			return err
		}
		return netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, MTU: narrow,
			Dst: hostPrefix(s.peers)})
	}))
	conn := x.ours.(*unet.TCPConn)
	if !testutil.Until(func() bool { return conn.Info().PathMTU == narrow }) {
		t.Fatalf("MTU %d", conn.Info().PathMTU)
	}
	passed(2 * mb) // what was sent before
	s.impair(impair.Rule{Rate: 100e6, MaxSize: wire.EthernetHeaderLen + narrow}, impair.Rule{})
	testutil.Must(t, <-done)
	if c := s.link.Counters(impair.AtoB); c.LostForSize > 0 {
		t.Errorf("%d were too large", c.LostForSize)
	}
	// The MSS that we offer to a dialling kernel also fits the route.
	raw, err := s.connect(t, false).peers.(*net.TCPConn).SyscallConn()
	testutil.Must(t, err)
	mss := 0
	testutil.Must(t, errors.Join(raw.Control(func(fd uintptr) { mss, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG) }), err))
	if mss != narrow-headers(s.ours)-12 {
		t.Errorf("the kernel sends segments of %d bytes", mss)
	}
}

// hostPrefix is a prefix of one address.
func hostPrefix(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// headers is how long those of IP and TCP are, without options, in bytes.
func headers(a netip.Addr) int {
	if a.Is6() {
		return 60
	}
	return 40
}

// forward makes a router of the middle: it answers ARP and solicitations for either side, and
// what it forwards to B may have mtu bytes. If it is silent, no ICMP error leaves it.
func (s *scene) forward(mtu int, silent bool) error {
	set := func(path, value string) error { return os.WriteFile("/proc/sys/net/"+path, []byte(value), 0) }
	family, version, icmp, proxy := unix.AF_INET, "ipv4/", unix.IPPROTO_ICMP, "/proxy_arp"
	err := set("ipv4/ip_forward", "1")
	if s.ours.Is6() {
		family, version, icmp, proxy = unix.AF_INET6, "ipv6/", unix.IPPROTO_ICMPV6, "/proxy_ndp"
		err = errors.Join(set("ipv6/conf/all/disable_ipv6", "0"), set("ipv6/conf/all/forwarding", "1"))
	}
	for _, side := range []struct {
		name      string
		addr, far netip.Addr
		mtu       int
	}{{netlab.MiddleA, s.ours, s.peers, 0}, {netlab.MiddleB, s.peers, s.ours, mtu}} {
		link, e := netlink.LinkByName(side.name)
		if e != nil {
			return errors.Join(err, e)
		}
		err = errors.Join(err, netlink.LinkSetARPOn(link),
			set(version+"conf/"+side.name+proxy, "1"), set(version+"neigh/"+side.name+"/proxy_delay", "0"),
			netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, MTU: side.mtu, Dst: hostPrefix(side.addr)}))
		if side.addr.Is6() { // a proxy answers for listed addresses only
			err = errors.Join(err, netlink.NeighAdd(&netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_INET6, Flags: netlink.NTF_PROXY, IP: side.far.AsSlice()}))
		} else {
			err = errors.Join(err, set("ipv4/conf/"+side.name+"/rp_filter", "0"))
		}
		if side.mtu == 0 {
			addr := &netlink.Addr{IPNet: hostPrefix(netip.MustParseAddr("10.0.1.1"))}
			if side.addr.Is6() {
				addr = &netlink.Addr{IPNet: hostPrefix(netip.MustParseAddr("fd01::1")), Flags: unix.IFA_F_NODAD}
			}
			err = errors.Join(err, netlink.AddrAdd(link, addr))
		}
	}
	if silent {
		const table = 100
		rule := netlink.NewRule()
		rule.Family, rule.IPProto, rule.Table, rule.Priority = family, icmp, table, 10
		all := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
		if s.ours.Is6() {
			all = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
		}
		err = errors.Join(err, netlink.RuleAdd(rule), netlink.RouteAdd(&netlink.Route{Table: table, Type: unix.RTN_BLACKHOLE, Dst: all}))
	}
	return err
}
