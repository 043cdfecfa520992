package unet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/unet-go/unet/endpoint"
)

func addrsOf(s string) (list []netip.Addr) {
	for _, a := range strings.Fields(s) {
		list = append(list, netip.MustParseAddr(a))
	}
	return list
}

// The addresses that listeners of each network get, and the address that they are bound to.
func TestAddressesOfListeners(t *testing.T) {
	const both = "10.0.0.1 fd00::1 fe80::1"
	for _, c := range []struct {
		has, network, asked string
		want, bound         string
	}{
		{both, "tcp", "", both, "::"},
		{both, "tcp", "0.0.0.0", both, "::"},
		{both, "tcp", "::", both, "::"},
		{both, "tcp4", "", "10.0.0.1", "10.0.0.1"},
		{both, "udp4", "0.0.0.0", "10.0.0.1", "10.0.0.1"},
		{both, "udp6", "::", "fd00::1 fe80::1", "::"},
		{both, "tcp", "10.0.0.1", "10.0.0.1", "10.0.0.1"},
		{both, "tcp", "::ffff:10.0.0.1", "10.0.0.1", "10.0.0.1"},
		{both, "tcp", "fd00::1", "fd00::1", "fd00::1"},
		{both, "tcp6", "fe80::1%eth0", "fe80::1", "fe80::1"},
		{both, "tcp", "10.0.0.2", "", ""},
		{both, "tcp6", "10.0.0.1", "", ""},
		{both, "tcp4", "fd00::1", "", ""},
		{both, "tcp", "127.0.0.1", "", ""},
		{both, "tcp", "::1", "", ""},
		{"10.0.0.1", "tcp", "", "10.0.0.1", "10.0.0.1"},
		{"10.0.0.1", "tcp6", "", "", ""},
		{"fd00::1", "udp", "", "fd00::1", "fd00::1"},
	} {
		var asked netip.Addr
		if c.asked != "" {
			asked = netip.MustParseAddr(c.asked)
		}
		some, bound, err := newLocals(nil, false, addrsOf(c.has)...).listen(c.network, asked)
		var got []string
		for _, l := range some {
			got = append(got, l.addr.String())
		}
		name := fmt.Sprintf("%s: %s %q", c.has, c.network, c.asked)
		if c.want == "" {
			if !errors.Is(err, syscall.EADDRNOTAVAIL) || asked.IsLoopback() != errors.Is(err, errLoopback) {
				t.Errorf("%s: %v, %v", name, got, err)
			}
			continue
		}
		if err != nil || strings.Join(got, " ") != c.want || bound.String() != c.bound {
			t.Errorf("%s: %v at %v, %v; want %s at %s", name, got, bound, err, c.want, c.bound)
		}
	}
}

// The local address of connected sockets.
func TestAddressesOfDials(t *testing.T) {
	const both = "10.0.0.1 fd00::1 fe80::1"
	for _, c := range []struct {
		has, asked, remote string
		want               string
		err                error
	}{
		{both, "", "192.0.2.1", "10.0.0.1", nil},
		{both, "", "::ffff:192.0.2.1", "10.0.0.1", nil},
		{both, "", "2001:db8::1", "fd00::1", nil},
		{both, "", "fe80::2", "fe80::1", nil},
		{both, "::", "192.0.2.1", "10.0.0.1", nil},
		{both, "0.0.0.0", "2001:db8::1", "fd00::1", nil},
		{both, "fe80::1", "2001:db8::1", "fe80::1", nil},
		{both, "10.0.0.1", "2001:db8::1", "", syscall.EINVAL},
		{both, "10.0.0.2", "192.0.2.1", "", syscall.EADDRNOTAVAIL},
		{both, "", "127.0.0.1", "", errLoopback},
		{both, "", "::1", "", syscall.ECONNREFUSED},
		{both, "", "0.0.0.0", "", syscall.ECONNREFUSED},
		{"10.0.0.1", "", "2001:db8::1", "", syscall.ENETUNREACH},
		{"fd00::1", "", "192.0.2.1", "", syscall.ENETUNREACH},
		{"10.0.0.1 fe80::1", "", "2001:db8::1", "fe80::1", nil},
		{"fd00::1", "", "fe80::2", "fd00::1", nil},
		{"10.0.0.1 169.254.0.1", "", "169.254.0.9", "10.0.0.1", nil},
	} {
		var asked netip.Addr
		if c.asked != "" {
			asked = netip.MustParseAddr(c.asked)
		}
		got, err := newLocals(nil, false, addrsOf(c.has)...).dial(asked, netip.MustParseAddr(c.remote))
		if !errors.Is(err, c.err) || err == nil && got.addr.String() != c.want {
			t.Errorf("%s, from %q to %s: %v, %v; want %s, %v", c.has, c.asked, c.remote, got, err, c.want, c.err)
		}
	}
}

// A zone is the host's if it is the name or the number of its interface.
func TestZonesOfTheInterface(t *testing.T) {
	h := &Host{lease: newGivingLease(&memLease{done: make(chan struct{})}), zones: [2]string{"eth0", "7"}}
	h.locals = newLocals(h.lease, false, addrsOf("10.0.0.1 fd00::1 fe80::1")...)
	for zone, ok := range map[string]bool{"": true, "eth0": true, "7": true, "eth1": false, "70": false} {
		ours, theirs := netip.MustParseAddr("fe80::1").WithZone(zone), netip.MustParseAddr("fe80::2").WithZone(zone)
		_, _, err := h.listenAt("tcp", ours)
		if ok != (err == nil) || !ok && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("listen at %v: %v", ours, err)
		}
		_, call, err := h.dialFrom(ours, theirs)
		if ok != (err == nil) || !ok && (!errors.Is(err, syscall.EADDRNOTAVAIL) || call != "bind") {
			t.Errorf("dial from %v: %v", ours, err)
		}
		_, call, err = h.dialFrom(netip.Addr{}, theirs)
		if ok != (err == nil) || !ok && (!errors.Is(err, syscall.ENETUNREACH) || call != "connect") {
			t.Errorf("dial to %v: %v", theirs, err)
		}
	}
	if _, _, err := h.dialFrom(netip.Addr{}, netip.MustParseAddr("fd00::2%eth1")); err != nil {
		t.Errorf("a zone of an address that is not link-local: %v", err)
	}
}

// A listener gets the same port at all addresses. If a free port is held by another endpoint at one
// address, another port is tried. Addresses that the policy denies are left out. All tags are given
// back.
func TestOnePortAtAllAddresses(t *testing.T) {
	lease := &memLease{done: make(chan struct{})}
	all := newLocals(lease, false, addrsOf("10.0.0.1 fd00::1 fe80::1")...)
	tag := func(i int, port uint16) endpoint.Tag {
		return endpoint.TCPTag(netip.AddrPortFrom(all[i].addr, port))
	}
	wantHeld := func(port uint16, want ...bool) {
		t.Helper()
		for i, w := range want {
			if held, _ := lease.has(tag(i, port)); held != w {
				t.Errorf("%v is held: %v", tag(i, port), held)
			}
		}
	}
	port, giveBack, err := all.get(t.Context(), tcpPorts, 80, false)
	if err != nil || port != 80 {
		t.Fatalf("port %d, %v", port, err)
	}
	wantHeld(80, true, true, true)
	giveBack()
	wantHeld(80, false, false, false)

	// Another endpoint has the port at the last address.
	if _, err := lease.Claim(t.Context(), tag(2, 80)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := all.get(t.Context(), tcpPorts, 80, false); !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("a port that is held at one address: %v", err)
	}
	wantHeld(80, false, false, true)

	// The first free port is held at the last address.
	if _, err := lease.Claim(t.Context(), tag(2, lease.free())); err != nil {
		t.Fatal(err)
	}
	port, giveBack, err = all.get(t.Context(), tcpPorts, 0, false)
	if err != nil || port == 0 {
		t.Fatalf("port %d, %v", port, err)
	}
	wantHeld(port, true, true, true)
	giveBack()
	wantHeld(port, false, false, false)

	lease.deny = all[1].addr
	port, giveBack, err = all.get(t.Context(), tcpPorts, 81, false)
	if err != nil || port != 81 {
		t.Fatalf("with an address denied: port %d, %v", port, err)
	}
	wantHeld(81, true, false, true)
	giveBack()
	if _, _, err := all[1:2].get(t.Context(), tcpPorts, 81, false); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("all addresses denied: %v", err)
	}
}

// Addresses in the text of a dial or a listen, by network. Names are not looked up here.
func TestLookupOfAddresses(t *testing.T) {
	h := &Host{locals: newLocals(nil, false, addrsOf("10.0.0.1")...)}
	for _, c := range []struct{ network, name, want string }{
		{"tcp", "", "0.0.0.0"},
		{"udp4", "", "0.0.0.0"},
		{"tcp6", "", "::"},
		{"tcp", "10.0.0.2", "10.0.0.2"},
		{"tcp4", "::ffff:10.0.0.2", "::ffff:10.0.0.2"},
		{"udp", "fe80::1%eth0", "fe80::1%eth0"},
		{"tcp6", "fd00::1", "fd00::1"},
		{"tcp6", "10.0.0.2", ""},
		{"tcp6", "::ffff:10.0.0.2", ""},
		{"udp4", "fd00::1", ""},
	} {
		got, err := h.lookup(t.Context(), nil, c.network, c.name)
		if c.want == "" {
			var e *net.AddrError
			if !errors.As(err, &e) || e.Err != "no suitable address found" || e.Addr != c.name {
				t.Errorf("%s %q: %v, %v", c.network, c.name, got, err)
			}
			continue
		}
		if err != nil || len(got) != 1 || got[0].String() != c.want {
			t.Errorf("%s %q: %v, %v; want %s", c.network, c.name, got, err, c.want)
		}
	}
}

// A host without IPv6, and loopback addresses, which are the kernel's: calls fail at once with
// the reason.
func TestAddressesThatAHostCannotUse(t *testing.T) {
	a, _, _ := newSharedMemHosts(t)
	for _, c := range []struct {
		call, network, address string
		want                   error
		text                   string
	}{
		{"dial", "tcp", "[2001:db8::1]:80", syscall.ENETUNREACH, "the host has no IPv6 address"},
		{"dial", "udp6", "[2001:db8::1]:80", syscall.ENETUNREACH, "the host has no IPv6 address"},
		{"dial", "tcp", "127.0.0.1:80", syscall.ECONNREFUSED, "loopback addresses are the kernel's"},
		{"dial", "udp", "127.0.0.53:53", syscall.ECONNREFUSED, "loopback addresses are the kernel's"},
		{"dial", "tcp", "[::1]:80", syscall.ECONNREFUSED, "loopback addresses are the kernel's"},
		{"dial", "tcp", ":80", syscall.ECONNREFUSED, "loopback addresses are the kernel's"},
		{"listen", "tcp", "127.0.0.1:80", syscall.EADDRNOTAVAIL, "loopback addresses are the kernel's"},
		{"listen", "udp", "[::1]:80", syscall.EADDRNOTAVAIL, "loopback addresses are the kernel's"},
		{"listen", "tcp6", ":80", syscall.EADDRNOTAVAIL, "the host has no address for tcp6"},
		{"listen", "udp", "[fd00::1]:80", syscall.EADDRNOTAVAIL, "cannot assign"},
	} {
		var err error
		switch {
		case c.call == "dial":
			_, err = a.Dial(c.network, c.address)
		case isUDP(c.network):
			_, err = a.ListenPacket(t.Context(), c.network, c.address)
		default:
			_, err = a.Listen(t.Context(), c.network, c.address)
		}
		var op *net.OpError
		if !errors.Is(err, c.want) || !errors.As(err, &op) || op.Op != c.call || op.Net != c.network || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s %s %s: %v", c.call, c.network, c.address, err)
		}
	}
}

// The addresses of a host, by its configuration and by the addresses of the interface.
func TestAddressesOfHosts(t *testing.T) {
	p := func(s string) (p netip.Prefix) {
		if s != "" {
			p = netip.MustParsePrefix(s)
		}
		return p
	}
	a := func(s string) (a netip.Addr) {
		if s != "" {
			a = netip.MustParseAddr(s)
		}
		return a
	}
	full := [3]string{"10.0.0.1/24", "fd00::1/64", "fe80::1/64"}
	for _, c := range []struct {
		has         [3]string // IPv4, global and link-local
		addr, addr6 string
		want        string
		err         string
	}{
		{full, "", "", "10.0.0.1/24 [fd00::1/64 fe80::1/64]", ""},
		{[3]string{full[0]}, "", "", "10.0.0.1/24 []", ""},
		{[3]string{"", "", full[2]}, "", "", "invalid Prefix [fe80::1/64]", ""},
		{full, "10.0.0.9", "", "10.0.0.9/24 []", ""},
		{full, "10.0.0.9", "fd00::9", "10.0.0.9/24 [fd00::9/64]", ""},
		{full, "fd00::9", "", "invalid Prefix [fd00::9/64]", ""},
		{full, "fe80::9", "", "invalid Prefix [fe80::9/64]", ""},
		{[3]string{}, "10.0.0.9", "fd00::9", "10.0.0.9/0 [fd00::9/0]", ""},
		{[3]string{}, "", "", "", "has no address to share"},
	} {
		cfg := Config{Addr: a(c.addr), Addr6: a(c.addr6)}
		id := endpoint.Identity{MTU: 1280, Addr: p(c.has[0]), Addr6: p(c.has[1]), LinkLocal: p(c.has[2])}
		v4, v6, err := cfg.addresses(id)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, %q and %q: %v", c.has, c.addr, c.addr6, err)
			}
			continue
		}
		if got := fmt.Sprint(v4, " ", v6); err != nil || got != c.want {
			t.Errorf("%v, %q and %q: %s, %v; want %s", c.has, c.addr, c.addr6, got, err, c.want)
		}
	}
	id := endpoint.Identity{MTU: 1279, Addr: p(full[0]), Addr6: p(full[1])}
	if _, v6, err := new(Config).addresses(id); err != nil || v6 != nil {
		t.Errorf("an MTU that is too small for IPv6: %v, %v", v6, err)
	}
}
