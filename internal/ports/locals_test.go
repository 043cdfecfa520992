package ports

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/unet-go/unet/endpoint"
)

// grantingLease grants every tag that is free, and denies those at one address.
type grantingLease struct {
	endpoint.Lease
	deny netip.Addr
	held []endpoint.Tag
	next uint16
}

// free is the next port that is granted for port 0.
func (l *grantingLease) free() uint16 { return 20000 + l.next }

func (l *grantingLease) Claim(_ context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	if t.Addr == l.deny {
		return t, endpoint.ErrTagDenied
	}
	if t.Port == 0 {
		t.Port = l.free()
		l.next++
	}
	if slices.Contains(l.held, t) {
		return t, endpoint.ErrTagHeld
	}
	l.held = append(l.held, t)
	return t, nil
}

func (l *grantingLease) Unclaim(_ context.Context, t endpoint.Tag) error {
	i := slices.Index(l.held, t)
	if i < 0 {
		return errors.New("not held")
	}
	l.held = slices.Delete(l.held, i, i+1)
	return nil
}

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
		some, bound, err := NewLocals(nil, false, addrsOf(c.has)...).ForListen(c.network, asked)
		var got []string
		for _, l := range some {
			got = append(got, l.Addr.String())
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
		got, err := NewLocals(nil, false, addrsOf(c.has)...).ForDial(asked, netip.MustParseAddr(c.remote))
		if !errors.Is(err, c.err) || err == nil && got.Addr.String() != c.want {
			t.Errorf("%s, from %q to %s: %v, %v; want %s, %v", c.has, c.asked, c.remote, got, err, c.want, c.err)
		}
	}
}

// A listener gets the same port at all addresses. If a free port is held by another endpoint at one
// address, another port is tried. Addresses that the policy denies are left out. All tags are given
// back.
func TestOnePortAtAllAddresses(t *testing.T) {
	lease := &grantingLease{}
	all := NewLocals(lease, false, addrsOf("10.0.0.1 fd00::1 fe80::1")...)
	tag := func(i int, port uint16) endpoint.Tag {
		return endpoint.TCPTag(netip.AddrPortFrom(all[i].Addr, port))
	}
	wantHeld := func(port uint16, want ...bool) {
		t.Helper()
		for i, w := range want {
			if held := slices.Contains(lease.held, tag(i, port)); held != w {
				t.Errorf("%v is held: %v", tag(i, port), held)
			}
		}
	}
	port, release, err := all.Get(t.Context(), TCP, 80, false)
	if err != nil || port != 80 {
		t.Fatalf("port %d, %v", port, err)
	}
	wantHeld(80, true, true, true)
	release()
	wantHeld(80, false, false, false)

	// Another endpoint has the port at the last address.
	if _, err := lease.Claim(t.Context(), tag(2, 80)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := all.Get(t.Context(), TCP, 80, false); !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("a port that is held at one address: %v", err)
	}
	wantHeld(80, false, false, true)

	// The first free port is held at the last address.
	if _, err := lease.Claim(t.Context(), tag(2, lease.free())); err != nil {
		t.Fatal(err)
	}
	port, release, err = all.Get(t.Context(), TCP, 0, false)
	if err != nil || port == 0 {
		t.Fatalf("port %d, %v", port, err)
	}
	wantHeld(port, true, true, true)
	release()
	wantHeld(port, false, false, false)

	lease.deny = all[1].Addr
	port, release, err = all.Get(t.Context(), TCP, 81, false)
	if err != nil || port != 81 {
		t.Fatalf("with an address denied: port %d, %v", port, err)
	}
	wantHeld(81, true, false, true)
	release()
	if _, _, err := all[1:2].Get(t.Context(), TCP, 81, false); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("all addresses denied: %v", err)
	}
}
