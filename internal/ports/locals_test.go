package ports

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/proto/tcp"
)

// grantingLease grants every tag that is free, and denies those at one address.
type grantingLease struct {
	endpoint.Lease
	deny netip.Addr
	slow time.Duration // that a claim takes
	mu   sync.Mutex
	held []endpoint.Tag
	next uint16
}

// free is the next port that is granted for port 0.
func (l *grantingLease) free() uint16 { return 20000 + l.next }

func (l *grantingLease) Claim(_ context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	time.Sleep(l.slow)
	if t.Addr == l.deny {
		return t, endpoint.ErrTagDenied
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.Port == 0 {
		t.Port = l.free()
		if l.next++; t.Block {
			t = t.AsBlock()
		}
	}
	if slices.Contains(l.held, t) {
		return t, endpoint.ErrTagHeld
	}
	l.held = append(l.held, t)
	return t, nil
}

func (l *grantingLease) Unclaim(_ context.Context, t endpoint.Tag) error {
	l.mu.Lock()
	defer l.mu.Unlock()
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

// The addresses that listeners of each network get, what they are bound to, and what they show.
func TestAddressesOfListeners(t *testing.T) {
	const both = "10.0.0.1 10.9.0.1 fd00::1 fe80::1"
	for _, c := range []struct {
		has, network, asked string
		want, bound, shown  string
	}{
		{both, "tcp", "", both, "::", "::"},
		{both, "tcp", "0.0.0.0", both, "::", "::"},
		{both, "tcp", "::", both, "::", "::"},
		{both, "tcp4", "", "10.0.0.1 10.9.0.1", "0.0.0.0", "::"},
		{both, "udp6", "::", "fd00::1 fe80::1", "::", "::"},
		{both, "tcp", "10.9.0.1", "10.9.0.1", "10.9.0.1", "10.9.0.1"},
		{both, "tcp", "::ffff:10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1"},
		{both, "tcp", "fd00::1", "fd00::1", "fd00::1", "fd00::1"},
		{both, "tcp6", "fe80::1%eth0", "fe80::1", "fe80::1", "fe80::1"},
		{both, "tcp", "10.0.0.2", "", "", ""},
		{both, "tcp6", "10.0.0.1", "", "", ""},
		{both, "tcp4", "fd00::1", "", "", ""},
		{both, "tcp", "127.0.0.1", "", "", ""},
		{both, "tcp", "::1", "", "", ""},
		{"10.0.0.1", "tcp", "", "10.0.0.1", "::", "10.0.0.1"},
		{"10.0.0.1 fe80::1", "udp4", "", "10.0.0.1", "0.0.0.0", "10.0.0.1"},
		{"fd00::1", "udp", "", "fd00::1", "::", "fd00::1"},
	} {
		var asked netip.Addr
		if c.asked != "" {
			asked = netip.MustParseAddr(c.asked)
		}
		lease := &grantingLease{}
		of := map[byte]func(*Local) *Ports{'t': TCP, 'u': UDP}[c.network[0]]
		at, _, err := NewLocals(lease, false, addrsOf(c.has)...).Listen(t.Context(), of, c.network, netip.AddrPortFrom(asked, 80))
		name := fmt.Sprintf("%s: %s %q", c.has, c.network, c.asked)
		if c.want == "" {
			if !errors.Is(err, syscall.EADDRNOTAVAIL) || asked.IsLoopback() != errors.Is(err, errLoopback) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var got []string
		for _, tag := range lease.held {
			got = append(got, tag.Addr.String())
		}
		if want := (Binding{netip.MustParseAddr(c.bound), netip.MustParseAddr(c.shown), 80}); err != nil || strings.Join(got, " ") != c.want || at != want {
			t.Errorf("%s: %v at %v, %v; want %s at %v", name, got, at, err, c.want, want)
		}
	}
}

// The local address of connected sockets that ask for one.
func TestAddressesOfDials(t *testing.T) {
	all := NewLocals(nil, false, addrsOf("10.0.0.1 10.9.0.1 fd00::1 fe80::1")...)
	for _, c := range []struct {
		asked, remote string
		want          string
		err           error
	}{
		{"", "192.0.2.1", "", nil},
		{"::", "192.0.2.1", "", nil},
		{"0.0.0.0", "2001:db8::1", "", nil},
		{"10.9.0.1", "192.0.2.1", "10.9.0.1", nil},
		{"fe80::1", "2001:db8::1", "fe80::1", nil},
		{"10.0.0.1", "2001:db8::1", "", syscall.EINVAL},
		{"10.0.0.2", "192.0.2.1", "", syscall.EADDRNOTAVAIL},
		{"", "127.0.0.1", "", errLoopback},
		{"", "::1", "", syscall.ECONNREFUSED},
		{"", "0.0.0.0", "", syscall.ECONNREFUSED},
	} {
		var asked netip.Addr
		if c.asked != "" {
			asked = netip.MustParseAddr(c.asked)
		}
		got, err := all.ForDial(asked, netip.MustParseAddr(c.remote))
		if !errors.Is(err, c.err) || err == nil && (got == nil) != (c.want == "") || got != nil && got.Addr.String() != c.want {
			t.Errorf("from %q to %s: %v, %v; want %s, %v", c.asked, c.remote, got, err, c.want, c.err)
		}
	}
}

// A listener gets the same port at all addresses. If a free port is held by another endpoint at one
// address, another port is tried. Addresses that the policy denies are left out. All tags are given
// back.
func TestOnePortAtAllAddresses(t *testing.T) {
	lease := &grantingLease{}
	addrs := addrsOf("10.0.0.1 fd00::1 fe80::1")
	all := NewLocals(lease, false, addrs...)
	get := func(port uint16) (uint16, func(), error) {
		at, release, err := all.Listen(t.Context(), TCP, "tcp", netip.AddrPortFrom(netip.Addr{}, port))
		return at.Port, release, err
	}
	tag := func(i int, port uint16) endpoint.Tag { return endpoint.TCPTag(netip.AddrPortFrom(addrs[i], port)) }
	wantHeld := func(port uint16, want ...bool) {
		t.Helper()
		for i, w := range want {
			if held := slices.Contains(lease.held, tag(i, port)); held != w {
				t.Errorf("%v is held: %v", tag(i, port), held)
			}
		}
	}
	port, release, err := get(80)
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
	if _, _, err := get(80); !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("a port that is held at one address: %v", err)
	}
	wantHeld(80, false, false, true)

	// The first free port is held at the last address.
	if _, err := lease.Claim(t.Context(), tag(2, lease.free())); err != nil {
		t.Fatal(err)
	}
	port, release, err = get(0)
	if err != nil || port == 0 {
		t.Fatalf("port %d, %v", port, err)
	}
	wantHeld(port, true, true, true)
	release()
	wantHeld(port, false, false, false)

	lease.deny = addrs[1]
	port, release, err = get(81)
	if err != nil || port != 81 {
		t.Fatalf("with an address denied: port %d, %v", port, err)
	}
	wantHeld(81, true, false, true)
	release()
	if _, _, err := NewLocals(lease, false, addrs[1]).Listen(t.Context(), TCP, "tcp", netip.MustParseAddrPort("[::]:81")); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("all addresses denied: %v", err)
	}
}

// A listener at all addresses gets its port at one that comes, and gives it back with one that goes. So
// do the blocks of outgoing sockets. A claim that ends after the address or the listener has gone is undone.
func TestListenersFollowAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := &grantingLease{}
		all := NewLocals(lease, false, addrsOf("10.0.0.1")...)
		want := func(what, tags string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for _, tag := range lease.held {
				got = append(got, tag.String())
			}
			slices.Sort(got)
			if strings.Join(got, " ") != tags {
				t.Errorf("%s: %v, want %s", what, got, tags)
			}
		}
		a, b, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fd00::1")
		at, release4, err := all.Listen(t.Context(), TCP, "tcp4", netip.MustParseAddrPort("0.0.0.0:80"))
		if err != nil {
			t.Fatal(err)
		}
		_, releaseUDP, err := all.Listen(t.Context(), UDP, "udp", netip.MustParseAddrPort("[::]:53"))
		if err != nil || at.Port != 80 {
			t.Fatal(at, err)
		}
		want("at first", "tcp:10.0.0.1:80 udp:10.0.0.1:53")
		all.Add(lease, b)
		all.Add(lease, six)
		want("two more", "tcp:10.0.0.1:80 tcp:10.9.0.1:80 udp:10.0.0.1:53 udp:10.9.0.1:53 udp:[fd00::1]:53")
		all.Add(lease, b)
		want("known already", "tcp:10.0.0.1:80 tcp:10.9.0.1:80 udp:10.0.0.1:53 udp:10.9.0.1:53 udp:[fd00::1]:53")
		all.Remove(a)
		want("one has gone", "tcp:10.9.0.1:80 udp:10.9.0.1:53 udp:[fd00::1]:53")
		releaseUDP()
		want("one listener is closed", "tcp:10.9.0.1:80")

		dialled := all.At(b).TCP.Choose
		if err := all.At(b).TCP.Obtain(t.Context(), all.At(b).TCP.Changes()); err != nil {
			t.Fatal(err)
		}
		port := dialled(func(blocks []tcp.PortBlock) uint16 { return blocks[0].First })
		left := all.At(b)
		all.Remove(b)
		want("with a block in use", fmt.Sprintf("tcp:10.9.0.1:%d-%d", port, port+endpoint.BlockPorts-1))
		left.TCP.Release(port)
		want("with none", "")

		lease.slow = time.Second
		all.Add(lease, a)
		synctest.Wait() // the claim is in progress
		all.Remove(a)
		time.Sleep(2 * time.Second)
		want("the address went during the claim", "")
		all.Add(lease, six)
		all.Add(lease, a)
		synctest.Wait()
		release4()
		time.Sleep(2 * time.Second)
		want("the listener was closed during the claim", "")

		// Without an address a listener waits for one.
		all.Remove(a)
		all.Remove(six)
		at, release, err := all.Listen(t.Context(), TCP, "tcp", netip.MustParseAddrPort("[::]:7000"))
		if err != nil || at.Shown != netip.IPv6Unspecified() {
			t.Fatal(at, err)
		}
		any, releaseAny, err := all.Listen(t.Context(), TCP, "tcp", netip.MustParseAddrPort("[::]:0"))
		if err != nil || any.Port < firstDynamic {
			t.Fatal(any, err)
		}
		all.Add(lease, a)
		time.Sleep(2 * time.Second)
		want("the first address comes", fmt.Sprintf("tcp:10.0.0.1:%d tcp:10.0.0.1:7000", any.Port))
		releaseAny()
		all.Suspend(a)
		if _, err := all.ForBind("tcp", a); !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("a suspended address: %v", err)
		}
		want("suspended", "tcp:10.0.0.1:7000")
		all.Add(lease, a)
		if _, err := all.ForBind("tcp", a); err != nil {
			t.Errorf("back: %v", err)
		}
		release()
		want("in the end", "")
	})
}
