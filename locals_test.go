package unet

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/ports"
)

// A zone is the host's if it is the name or the number of its interface.
func TestZonesOfTheInterface(t *testing.T) {
	h, _, _ := newSharedMemHosts(t, "fd00::%d/64", "fe80::%d/64")
	h.uplinks[0].zones = [2]string{"eth0", "7"}
	for zone, ok := range map[string]bool{"": true, "eth0": true, "7": true, "eth1": false, "70": false} {
		ours, theirs := netip.MustParseAddr("fe80::1").WithZone(zone), netip.MustParseAddr("fe80::2").WithZone(zone)
		_, release, err := h.listenAt(t.Context(), ports.TCP, "tcp", netip.AddrPortFrom(ours, 80))
		if err == nil {
			release()
		}
		if ok != (err == nil) || !ok && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("listen at %v: %v", ours, err)
		}
		_, call, err := h.dialFrom(t.Context(), ports.TCP, netip.AddrPortFrom(ours, 0), theirs)
		if ok != (err == nil) || !ok && (!errors.Is(err, syscall.EADDRNOTAVAIL) || call != "bind") {
			t.Errorf("dial from %v: %v", ours, err)
		}
		_, call, err = h.dialFrom(t.Context(), ports.TCP, netip.AddrPort{}, theirs)
		if ok != (err == nil) || !ok && (!errors.Is(err, syscall.ENETUNREACH) || call != "connect") {
			t.Errorf("dial to %v: %v", theirs, err)
		}
	}
	if _, _, err := h.dialFrom(t.Context(), ports.TCP, netip.AddrPort{}, netip.MustParseAddr("fd00::2%eth1")); err != nil {
		t.Errorf("a zone of an address that is not link-local: %v", err)
	}
}

// Addresses in the text of a dial or a listen, by network. Names are not looked up here.
func TestLookupOfAddresses(t *testing.T) {
	h := &Host{locals: ports.NewLocals(nil, false, netip.MustParseAddr("10.0.0.1"))}
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
	full := []string{"10.0.0.1/24", "10.0.0.2/25", "fd00::1/64", "fe80::1/64"}
	for _, c := range []struct {
		has   []string // the interface
		addrs string
		mtu   uint32
		want  string
	}{
		{full, "", 1500, "10.0.0.1/24 10.0.0.2/25 fd00::1/64 fe80::1/64"},
		{full, "", 1279, "10.0.0.1/24 10.0.0.2/25"}, // too small for IPv6
		{full[3:], "", 1500, "fe80::1/64"},
		{full, "10.0.0.9", 1500, "10.0.0.9/25"},
		{full, "10.0.0.200 fd00::9", 1500, "10.0.0.200/24 fd00::9/64"},
		{full, "fe80::9", 1500, "fe80::9/64"},
		{nil, "10.0.0.9 fd00::9", 1500, "10.0.0.9/32 fd00::9/128"},
		{nil, "", 1500, ""},
	} {
		var cfg HostConfig
		for _, text := range strings.Fields(c.addrs) {
			cfg.Addrs = append(cfg.Addrs, netip.MustParseAddr(text))
		}
		id := endpoint.Identity{MTU: c.mtu}
		for _, text := range c.has {
			id.Addrs = append(id.Addrs, netip.MustParsePrefix(text))
		}
		var got []string
		for _, p := range cfg.addresses(id) {
			got = append(got, p.String())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%v, %q, MTU %d: %v, want %s", c.has, c.addrs, c.mtu, got, c.want)
		}
	}
}
