//go:build linux

package badday

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
	"github.com/unet-go/unet/wire"
)

// patient is a host that takes losses for a path with a smaller MTU after three seconds without an
// acknowledgment, if full segments have passed (pathmtu.go in proto/tcp). With the usual timeouts it
// does so after 75 ms, which a busy machine can need for an acknowledgment.
var patient = unet.TCPConfig{MinRTO: 200 * ms}

// TestBlackHole: the path to the kernel drops packets above its MTU without an ICMP error.
// The first connection finds the MTU, with one packet in flight that is too large at a time. The
// next connections use it.
func TestBlackHole(t *testing.T) {
	for _, mtu := range []int{1400, 1492} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			s := openScene(t, kernel, netlab.Config{}, patient)
			s.impair(impair.Rule{MaxSize: wire.EthernetHeaderLen + mtu}, impair.Rule{})
			for i, dial := range []bool{true, false, true} {
				before, x := s.link.Counters(impair.AtoB).LostForSize, s.connect(t, dial)
				if i == 0 {
					must(t, x.sendUntil(func() bool { return counters(s.host)["path_mtu_lowered"] > 0 }))
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
func (c ends) sendUntil(happened func() bool) error {
	b := make([]byte, 64<<10)
	for !happened() {
		if _, err := c.ours.Write(b); err != nil {
			return err
		}
		if _, err := io.ReadFull(c.peers, b); err != nil {
			return err
		}
	}
	return nil
}

// TestRouter: between us and the kernel is a router whose next hop has a smaller MTU than our
// links. Its ICMP error reaches us, or it does not.
func TestRouter(t *testing.T) {
	for _, c := range []struct {
		link, path int
		silent     bool
	}{{1500, 1400, false}, {1500, 1400, true}, {9000, 1500, false}, {9000, 1500, true}} {
		t.Run(fmt.Sprintf("%d over %d, silent %t", c.link, c.path, c.silent), func(t *testing.T) {
			t.Parallel()
			s := &scene{Pair: netlab.RequirePair(t, netlab.Config{Cut: true, MTU: c.link})}
			must(t, s.Middle.Do(func() error { return s.forward(c.path, c.silent) }))
			var stop func()
			s.host, stop = openHost(t, s.A, patient)
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

// TestNarrowerRoute: the MTU of the kernel's route to the peer becomes smaller while data is
// in flight. It applies to connections at once, and no larger packet is sent any more.
func TestNarrowerRoute(t *testing.T) {
	const narrow = 1200
	s := openScene(t, kernel, netlab.Config{})
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
	must(t, s.A.Do(func() error {
		link, err := netlink.LinkByName(s.A.Interface)
		if err != nil {
			return err
		}
		return netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, MTU: narrow,
			Dst: &net.IPNet{IP: s.B.Addr.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}})
	}))
	conn := x.ours.(*unet.TCPConn)
	for end := time.Now().Add(patience); conn.Info().PathMTU != narrow; time.Sleep(ms) {
		if time.Now().After(end) {
			t.Fatalf("MTU %d", conn.Info().PathMTU)
		}
	}
	passed(2 * mb) // what was sent before
	s.impair(impair.Rule{Rate: 100e6, MaxSize: wire.EthernetHeaderLen + narrow}, impair.Rule{})
	must(t, <-done)
	if c := s.link.Counters(impair.AtoB); c.LostForSize > 0 {
		t.Errorf("%d were too large", c.LostForSize)
	}
	// What we offer to a kernel that dials is what the route takes, too.
	raw, err := s.connect(t, false).peers.(*net.TCPConn).SyscallConn()
	must(t, err)
	mss := 0
	must(t, errors.Join(raw.Control(func(fd uintptr) { mss, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG) }), err))
	if mss != narrow-40-12 {
		t.Errorf("the kernel sends segments of %d bytes", mss)
	}
}

// forward makes a router of the middle: it answers ARP for either side, and what it
// forwards to B may have mtu bytes. If it is silent, no ICMP leaves it.
func (s *scene) forward(mtu int, silent bool) error {
	set := func(path, value string) error { return os.WriteFile("/proc/sys/net/ipv4/"+path, []byte(value), 0) }
	err := set("ip_forward", "1")
	for _, side := range []struct {
		name string
		host *netlab.Host
		mtu  int
	}{{netlab.MiddleA, s.A, 0}, {netlab.MiddleB, s.B, mtu}} {
		link, e := netlink.LinkByName(side.name)
		if e != nil {
			return errors.Join(err, e)
		}
		err = errors.Join(err, netlink.LinkSetARPOn(link),
			set("conf/"+side.name+"/proxy_arp", "1"), set("conf/"+side.name+"/rp_filter", "0"), set("neigh/"+side.name+"/proxy_delay", "0"),
			netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, MTU: side.mtu,
				Dst: &net.IPNet{IP: side.host.Addr.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}}))
		if side.mtu == 0 {
			err = errors.Join(err, netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 0, 1, 1), Mask: net.CIDRMask(32, 32)}}))
		}
	}
	if silent {
		const table = 100
		rule := netlink.NewRule()
		rule.Family, rule.IPProto, rule.Table, rule.Priority = unix.AF_INET, unix.IPPROTO_ICMP, table, 10
		err = errors.Join(err, netlink.RuleAdd(rule),
			netlink.RouteAdd(&netlink.Route{Table: table, Type: unix.RTN_BLACKHOLE, Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}}))
	}
	return err
}
