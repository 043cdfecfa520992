//go:build linux

package addresses

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

// second is the name of the other uplink of host A, which leads to host C.
const second = "second"

// fork is three hosts: A has a cable to B and one to C. B and C have the same link-local address, and A has one on both uplinks.
type fork struct {
	*netlab.Pair
	c    *netlab.Host
	host sockets // of A, under test
}

func openFork(t *testing.T) *fork {
	f := &fork{Pair: netlab.RequirePair(t, netlab.Config{IPv6: true, LinkLocal: true})}
	var err error
	f.c, err = netlab.NewHost("c")
	testutil.Must(t, err)
	t.Cleanup(func() { f.c.Close() })
	testutil.Must(t, sysctl(f.c, "ipv6/conf/all/disable_ipv6", "0"))
	testutil.Must(t, f.A.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = second, net.HardwareAddr{2, 0, 0, 0, 0, 0xc}
		cable := netlink.NewVeth(attrs)
		cable.PeerName, cable.PeerNamespace = netlab.Interface, netlink.NsFd(f.c.NS)
		return netlink.LinkAdd(cable)
	}))
	for _, h := range []*netlab.Host{f.A, f.c} {
		name, last := second, 1
		if h == f.c {
			name, last = netlab.Interface, 2
		}
		testutil.Must(t, sysctl(h, "ipv6/conf/"+name+"/disable_ipv6", "0"))
		testutil.Must(t, sysctl(h, "ipv6/conf/"+name+"/addr_gen_mode", "1"))
		testutil.Must(t, ip(h, fmt.Sprintf("link set %s up; addr add 10.20.0.%d/24 dev %[1]s; addr add fd20::%[2]d/64 dev %[1]s nodad; addr add fe80::%[2]d/64 dev %[1]s nodad", name, last)))
	}
	for _, h := range []*netlab.Host{f.B, f.c} { // an address that both have
		testutil.Must(t, ip(h, "link set lo up; addr add 10.50.0.9/32 dev lo"))
	}
	for _, name := range []string{"all", netlab.Interface, second} {
		testutil.Must(t, sysctl(f.A, "ipv4/conf/"+name+"/rp_filter", "0"))
	}
	return f
}

// forks are two with the same configuration: the sockets of one are the kernel's, those of the other unet's.
type forks struct {
	*testing.T
	kernel, unet *fork
	opened       *unet.Host
	daemon       *unetd.Daemon
}

func openForks(t *testing.T, o unetd.Options, cfg unet.Config) *forks {
	unetd.Tool(t, "ip")
	w := &forks{T: t, kernel: openFork(t), unet: openFork(t)}
	w.kernel.host = kernelSockets{w.kernel.A, false}
	o.Flags = append(o.Flags, "--interface", second)
	w.daemon = unetd.Serve(t, w.unet.A, o)
	cfg.Socket = w.daemon.Socket
	h, err := unet.Open(t.Context(), cfg)
	testutil.Must(t, err)
	w.opened, w.unet.host = h, unetSockets{h}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("close of the host: %v", err)
		}
	})
	for _, f := range []*fork{w.kernel, w.unet} {
		for _, h := range []*netlab.Host{f.B, f.c} {
			v, err := serve(kernelSockets{h, true}, "", "[::]:7001")
			testutil.Must(t, err)
			t.Cleanup(v.close)
		}
	}
	return w
}

func (w *forks) both(do func(*fork) error) {
	w.Helper()
	testutil.Must(w.T, do(w.kernel))
	testutil.Must(w.T, do(w.unet))
}

// same compares what both see, until unet sees the same as the kernel. A connection can lose its route while a route moves, and gives up late.
func (w *forks) same(what string, see func(*fork) string) {
	w.Helper()
	want, got := see(w.kernel), ""
	if strings.Contains(want, noAnswer) {
		w.Fatalf("%s: the kernel gives %s", what, want)
	}
	for end := time.Now().Add(3 * patience); ; time.Sleep(5 * time.Millisecond) {
		if got = see(w.unet); got == want || time.Now().After(end) {
			break
		}
	}
	if got != want {
		w.Errorf("%s:\n  unet: %s\nkernel: %s", what, got, want)
	}
}

// dials compares dials to an address, of all kinds.
func (w *forks) dials(from string, all ...string) {
	w.Helper()
	for _, to := range all {
		for _, network := range []string{"tcp", "udp", datagrams} {
			w.same(fmt.Sprintf("dial %s from %q by %s", to, from, network), func(f *fork) string {
				return talk(f.host, network, from, net.JoinHostPort(to, "7001"), nil)
			})
		}
	}
}

// reaches compares what a peer gets from the service at addresses of host A.
func (w *forks) reaches(from func(*fork) *netlab.Host, port string, all ...string) {
	w.Helper()
	for _, to := range all {
		for _, network := range []string{"tcp", datagrams} {
			w.same(fmt.Sprintf("reach %s:%s by %s", to, port, network), func(f *fork) string {
				return talk(kernelSockets{from(f), true}, network, "", net.JoinHostPort(to, port), nil)
			})
		}
	}
}

func hostB(f *fork) *netlab.Host { return f.B }
func hostC(f *fork) *netlab.Host { return f.c }

var (
	toB = []string{"10.0.0.2", "fd00::2", "fe80::2%uplink"}
	toC = []string{"10.20.0.2", "fd20::2", "fe80::2%second"}
)

// A host of unet with two uplinks is as the kernel's sockets: it dials by the uplink that the kernel's route names, and is reached at the addresses of
// both. What happens to one uplink does not affect the other.
func TestTwoUplinks(t *testing.T) {
	w := openForks(t, unetd.Options{}, unet.Config{})
	if all := w.opened.Uplinks(); len(all) != 2 || all[0].Interface != netlab.Interface || all[1].Interface != second {
		t.Fatalf("uplinks %v", all)
	}
	w.dials("", slices.Concat(toB, toC)...)
	w.dials("10.20.0.1", "10.20.0.2")
	w.dials("fe80::1%second", "fe80::2%second")
	// The kernel sends from there by the other uplink, whose mux does not permit it.
	if _, err := w.unet.host.dial("tcp", "10.20.0.1", "10.0.0.2:7001"); !errors.Is(err, syscall.ENETUNREACH) || !strings.Contains(err.Error(), "leaves by "+netlab.Interface) {
		t.Errorf("dial from the address of the other uplink: %v", err)
	}
	if _, err := w.opened.Dial("tcp", "[fe80::2]:7001"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("dial of a link-local address without a zone: %v", err)
	}

	w.both(func(f *fork) error {
		for _, at := range []string{"[::]:7000", "10.20.0.1:7002", "[fe80::1%second]:7003"} {
			v, err := serve(f.host, "", at)
			if err != nil {
				return fmt.Errorf("serve at %s: %w", at, err)
			}
			t.Cleanup(v.close)
		}
		return nil
	})
	w.reaches(hostB, "7000", "10.0.0.1", "fd00::1", "fe80::1%uplink")
	w.reaches(hostC, "7000", "10.20.0.1", "fd20::1", "fe80::1%uplink")
	w.reaches(hostC, "7002", "10.20.0.1")
	w.reaches(hostC, "7003", "fe80::1%uplink")
	w.reaches(hostB, "7002", "10.0.0.1")
	w.reaches(hostB, "7003", "fe80::1%uplink")

	// A route that moves from one uplink to the other.
	for _, via := range []string{"10.0.0.2", "10.20.0.2", "10.0.0.2"} {
		w.both(func(f *fork) error { return ip(f.A, "route replace 10.50.0.9/32 via "+via) })
		w.same("dial 10.50.0.9 via "+via, func(f *fork) string { return talk(f.host, "tcp", "", "10.50.0.9:7001", nil) })
	}

	changes := w.opened.Notices(t.Context())
	notices := make(chan endpoint.Notice, 1000)
	go func() {
		for n := range changes {
			notices <- n
		}
	}()
	await := func(kind endpoint.NoticeKind) {
		t.Helper()
		for n := range notices {
			if n.Kind == kind {
				if n.Interface != second && kind != endpoint.NoticeUnetdBack {
					t.Errorf("notice %v", n)
				}
				return
			}
		}
	}
	// Connections over the first uplink go on, whatever happens to the second one.
	kept := map[*fork]net.Conn{}
	w.both(func(f *fork) (err error) {
		kept[f], err = f.host.dial("tcp", "", "10.0.0.2:7001")
		if err == nil {
			t.Cleanup(func() { kept[f].Close() })
		}
		return err
	})
	goesOn := func(what string) {
		t.Helper()
		w.same("the other connection after "+what, func(f *fork) string { return exchange(kept[f], "", nil, 0) })
		w.dials("", toB...)
		w.reaches(hostB, "7000", "10.0.0.1")
	}
	w.both(func(f *fork) error { return ip(f.A, "addr del 10.20.0.1/24 dev second") })
	await(endpoint.NoticeAddrGone)
	w.dials("", "10.20.0.2")
	goesOn("an address has gone")
	w.both(func(f *fork) error { return ip(f.A, "addr add 10.20.0.1/24 dev second") })
	await(endpoint.NoticeAddrHere)
	w.reaches(hostC, "7000", "10.20.0.1")
	w.both(func(f *fork) error { return ip(f.A, "link set second down") })
	await(endpoint.NoticeLinkDown)
	w.dials("", "10.20.0.2")
	goesOn("the link is down")
	w.both(func(f *fork) error { return ip(f.A, "link set second up") })
	await(endpoint.NoticeLinkUp)
	w.dials("", "10.20.0.2")
	w.reaches(hostC, "7000", "10.20.0.1")

	w.daemon.Kill(t)
	w.daemon.Start(t)
	await(endpoint.NoticeUnetdBack)
	w.dials("", "10.20.0.2", "10.0.0.2")

	w.both(func(f *fork) error { return ip(f.A, "link del second") })
	await(endpoint.NoticeUplinkGone)
	w.dials("", "10.20.0.2")
	goesOn("the uplink has gone")
	if all := w.opened.Uplinks(); all[0].Err != nil || !errors.Is(all[1].Err, endpoint.ErrLeaseClosed) {
		t.Errorf("uplinks %v", all)
	}
}

// Memberships of groups are of one uplink each: that of the interface, of the zone, or the one by which the kernel sends to the group. What is sent
// to a group leaves in the same way.
func TestGroupsOnTwoUplinks(t *testing.T) {
	tags := `tags: ["udp:239.1.1.1:7005", "udp:[ff02::77]:7005", `
	w := openForks(t, unetd.Options{Policy: strings.Replace(unetd.Everything, "tags: [", tags, 1)}, unet.Config{})
	testutil.Must(t, ip(w.unet.A, "route add 239.1.1.1/32 dev second"))
	var far [2]*net.UDPConn
	group, group6 := net.IPv4(239, 1, 1, 1), net.ParseIP("ff02::77")
	for i, h := range []*netlab.Host{w.unet.B, w.unet.c} {
		testutil.Must(t, h.Do(func() error {
			on, err := net.InterfaceByName(netlab.Interface)
			if err != nil {
				return err
			}
			c, err := net.ListenMulticastUDP("udp6", on, &net.UDPAddr{IP: group6, Port: 7005})
			if err == nil {
				far[i] = c
				t.Cleanup(func() { c.Close() })
			}
			return errors.Join(err, ip(h, "route add 239.1.1.1/32 dev uplink"))
		}))
	}
	p, err := w.opened.ListenPacket(t.Context(), "udp", "[::]:7005")
	testutil.Must(t, err)
	t.Cleanup(func() { p.Close() })
	c := p.(*unet.UDPConn)
	// gets reports whether the socket gets what a host sends to a group.
	gets := func(from *netlab.Host, to string) bool {
		sender, err := kernelSockets{from, true}.dial("udp", "", to)
		testutil.Must(t, err)
		defer sender.Close()
		_, err = sender.Write([]byte("to the group"))
		testutil.Must(t, err)
		c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		_, _, err = c.ReadFrom(make([]byte, 100))
		return err == nil
	}
	const all, all6 = "239.1.1.1:7005", "[ff02::77%uplink]:7005"
	check := func(what, to string, fromB, fromC bool) {
		t.Helper()
		if b, c := gets(w.unet.B, to), gets(w.unet.c, to); b != fromB || c != fromC {
			t.Errorf("%s: receives from B: %t, from C: %t", what, b, c)
		}
	}
	check("no member", all, false, false)
	testutil.Must(t, c.JoinGroup(nil, &net.UDPAddr{IP: group}))
	check("where the kernel would join", all, false, true)
	testutil.Must(t, c.JoinGroup(&net.Interface{Name: netlab.Interface}, &net.UDPAddr{IP: group}))
	check("on both", all, true, true)
	if err := c.JoinGroup(&net.Interface{Name: second}, &net.UDPAddr{IP: group}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("joined again: %v", err)
	}
	testutil.Must(t, c.LeaveGroup(&net.Interface{Name: second}, &net.UDPAddr{IP: group}))
	if err := c.JoinGroup(&net.Interface{Name: "eth9"}, &net.UDPAddr{IP: group}); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("joined on another interface: %v", err)
	}
	testutil.Must(t, c.JoinGroup(nil, &net.UDPAddr{IP: group6, Zone: second}))
	check("IPv6 by a zone", all6, false, true)
	for i, zone := range []string{netlab.Interface, second} {
		if _, err := c.WriteTo([]byte(zone), &net.UDPAddr{IP: group6, Port: 7005, Zone: zone}); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		far[i].SetReadDeadline(time.Now().Add(limit))
		for n, err := far[i].Read(b); string(b[:n]) != zone; n, err = far[i].Read(b) { // what it has sent itself comes first
			if err != nil {
				t.Fatalf("sent to the group on %s: %v", zone, err)
			}
		}
	}
}

// The host has endpoints on the uplinks on which the policy permits them, or of which it is to own addresses.
func TestWhichUplinksAHostHas(t *testing.T) {
	t.Parallel()
	unetd.Tool(t, "ip")
	f := openFork(t)
	d := unetd.Serve(t, f.A, unetd.Options{Flags: []string{"--interface", second}})
	open := func(what, want string, cfg unet.Config) {
		t.Helper()
		cfg.Socket = d.Socket
		h, err := unet.Open(t.Context(), cfg)
		var got []string
		if err != nil {
			got = []string{err.Error()}
		} else {
			for _, u := range h.Uplinks() {
				got = append(got, u.Interface)
			}
			for _, a := range h.Addrs() {
				if !a.IsLinkLocalUnicast() {
					got = append(got, a.String())
				}
			}
			testutil.Must(t, h.Close())
		}
		if all := strings.Join(got, " "); !strings.HasSuffix(all, want) {
			t.Errorf("%s: %s; want %s", what, all, want)
		}
	}
	addrs := func(all ...string) (cfg unet.Config) {
		for _, a := range all {
			cfg.Addrs = append(cfg.Addrs, netip.MustParseAddr(a))
		}
		return cfg
	}
	open("no interface", "uplink second 10.0.0.1 fd00::1 10.20.0.1 fd20::1", unet.Config{})
	open("one interface", "second 10.20.0.1 fd20::1", unet.Config{Interface: second})
	open("an address of one", "second 10.20.0.77", addrs("10.20.0.77"))
	open("addresses of both", "uplink second 10.0.0.77 fd20::77", addrs("10.0.0.77", "fd20::77"))
	open("a queue", "name one (Config.Interface, UNET_INTERFACE)", unet.Config{Attach: endpoint.AttachQueue})
	policy := strings.Replace(unetd.Everything, "    tags:", "    interfaces: [second]\n    tags:", 1)
	testutil.Must(t, os.WriteFile(d.Policy, []byte(policy), 0o600))
	_, err := control.Operator{Socket: d.Socket}.Reload(t.Context())
	testutil.Must(t, err)
	open("one is permitted", "second 10.20.0.1 fd20::1", unet.Config{})
}
