package mux_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
)

// addAddr gives a host's end an address with flags (IFA_F_*), of which the
// kernel keeps those that it knows from outside.
func addAddr(t *testing.T, h *netlab.Host, addr string, set func(*netlink.Addr)) {
	t.Helper()
	p := netip.MustParsePrefix(addr)
	must(t, h.Do(func() error {
		link, err := netlink.LinkByName(h.Interface)
		if err != nil {
			return err
		}
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Flags: unix.IFA_F_NODAD}
		set(a)
		return netlink.AddrAdd(link, a)
	}))
}

// addressFlags are those of an address, by the kernel.
func addressFlags(t *testing.T, h *netlab.Host, addr string) (flags int) {
	t.Helper()
	must(t, h.Do(func() error {
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

// Which of the uplink's IPv6 addresses have ports to claim, and which of them a
// wildcard stands for.
func TestIPv6AddressesOfTheUplink(t *testing.T) {
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
	plain := func(*netlink.Addr) {}
	addAddr(t, l.A, "fe80::a/64", plain)
	addAddr(t, l.A, "2001:db8::1/64", plain)
	addAddr(t, l.A, "2001:db8::dead/64", func(a *netlink.Addr) { a.PreferedLft, a.ValidLft = 0, 1000 }) // being retired
	must(t, l.A.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("2001:db8:1::1"), Mask: net.CIDRMask(128, 128)}})
	}))
	for _, kind := range []func(string) endpoint.Tag{udpTag, tcpTag, udpBlock, tcpBlock} {
		for _, addr := range []string{"fd00::1", "fe80::a", "2001:db8::1", "2001:db8::dead"} {
			tag := kind("[" + addr + "]:50048")
			if !tag.Block {
				tag.Port = 7000
			}
			if got, err := a.lease.Claim(t.Context(), tag); err != nil || got != tag {
				t.Errorf("claim %v: %v, %v", tag, got, err)
			}
		}
		for _, addr := range []string{"2001:db8:1::1", "::1", "fd00::2", "fe80::a%" + l.A.Interface, "ff02::1", "::ffff:10.0.0.2"} {
			if got, err := a.lease.Claim(t.Context(), kind("["+addr+"]:50112")); !errors.Is(err, endpoint.ErrTagDenied) {
				t.Errorf("claim a port of %v: %v, %v", addr, got, err)
			}
		}
	}
	if got, err := a.lease.Claim(t.Context(), endpoint.Tag{Kind: endpoint.TagUDP, Addr: netip.MustParseAddr("::ffff:10.0.0.1"), Port: 9}); err != nil || got != udpTag("10.0.0.1:9") {
		t.Errorf("an IPv4 address in IPv6 form: %v, %v", got, err)
	}

	del := func(addr string) { onDevice(t, l.A, l.A.Interface, deleteAddress(addr)) }
	del("fd00::1/64")
	wildcard("2001:db8::1")
	del("2001:db8::1/64")
	wildcard("2001:db8::dead")
	del("2001:db8::dead/64")
	wildcard("fe80::a")
	must(t, a.lease.Unclaim(t.Context(), tcpBlock("[fd00::1]:50048"))) // the address is gone, not the claim
	del("fe80::a/64")
	if got, err := a.lease.Claim(t.Context(), udpTag("[::]:0")); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("without an address: %v, %v", got, err)
	}
	must(t, a.lease.Close())
	l.wantClaims(0)
}

// An address that the host does not use itself yet, or that somebody else has
// too, or that it will change by itself, has no ports to claim.
func TestIPv6AddressesInDoubt(t *testing.T) {
	l := openLab6(t)
	a := l.open()
	// One that somebody has: host B. A hundred probes leave time to look.
	sysctl(t, l.A, "ipv6/conf/"+l.A.Interface+"/dad_transmits", "100")
	addAddr(t, l.A, "fd00::3/64", func(a *netlink.Addr) { a.Flags = 0 })
	if addressFlags(t, l.A, "fd00::3")&unix.IFA_F_TENTATIVE == 0 {
		t.Fatal("fd00::3 is not tentative")
	}
	addAddr(t, l.A, "fd00::2/64", func(a *netlink.Addr) { a.Flags = 0 })
	eventually(t, "fd00::2 found to be host B's", func() bool { return addressFlags(t, l.A, "fd00::2")&unix.IFA_F_DADFAILED != 0 })
	// One that the kernel makes for privacy, beside an address that is managed.
	sysctl(t, l.A, "ipv6/conf/"+l.A.Interface+"/dad_transmits", "0")
	sysctl(t, l.A, "ipv6/conf/"+l.A.Interface+"/use_tempaddr", "2")
	addAddr(t, l.A, "2001:db8::1/64", func(a *netlink.Addr) {
		a.Flags, a.PreferedLft, a.ValidLft = unix.IFA_F_MANAGETEMPADDR|unix.IFA_F_NODAD, 10000, 20000
	})
	temporary := ""
	eventually(t, "a temporary address", func() bool {
		must(t, l.A.Do(func() error {
			list, err := netlink.AddrList(nil, netlink.FAMILY_V6)
			for _, a := range list {
				if a.Flags&unix.IFA_F_TEMPORARY != 0 {
					temporary = a.IP.String()
				}
			}
			return err
		}))
		return temporary != ""
	})
	for _, c := range []struct{ addr, says string }{
		{"fd00::3", "try again"},
		{"fd00::2", "duplicate"},
		{temporary, "by itself"},
	} {
		for _, tag := range []endpoint.Tag{udpTag("[" + c.addr + "]:7000"), tcpBlock("[" + c.addr + "]:0")} {
			if got, err := a.lease.Claim(t.Context(), tag); !errors.Is(err, endpoint.ErrTagDenied) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("claim %v: %v, %v; want: %s", tag, got, err, c.says)
			}
		}
	}
	for range 10 {
		if got, err := a.lease.Claim(t.Context(), udpTag("[::]:0")); err != nil || got.Addr != l.A.Addr6.Addr() && got.Addr.String() != "2001:db8::1" {
			t.Errorf("a wildcard is %v, %v", got, err)
		}
	}
}

// Whole IPv6 addresses that nobody may have.
func TestWholeIPv6Addresses(t *testing.T) {
	l := openLab6(t)
	a, b := l.open(), l.open()
	hw := parseMAC("02:00:00:00:00:77")
	must(t, l.A.Do(func() error {
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
	// A refusal leaves nothing: the address is free when its host is gone.
	onDevice(t, l.B, l.B.Interface, deleteAddress("fd00::2/64"))
	for _, n := range neighbours(t, l.A) {
		onDevice(t, l.A, l.A.Interface, func(netlink.Link) error { return netlink.NeighDel(&n) })
	}
	if _, err := b.lease.Claim(t.Context(), addrTag("fd00::2")); err != nil {
		t.Errorf("when host B has gone: %v", err)
	}
}

// While a whole IPv6 address is held, the uplink hears what others ask for it.
func TestSolicitedNodeGroups(t *testing.T) {
	l := openLab6(t)
	group := func(last string) bool {
		return strings.Contains(netFile(t, l.A, "igmp6"), "ff0200000000000000000001ff"+last)
	}
	filtered := func(last string) bool { // by the hardware, if it were any
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
	must(t, b.lease.Close())
	want("one is left in the group", true, true, false, false)
	must(t, a.lease.Unclaim(t.Context(), addrTag("fd00::1:2:77")))
	want("none", false, false, false, false)
}
