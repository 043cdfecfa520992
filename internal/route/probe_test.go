//go:build linux

package route_test

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/wire"
)

// A permanent neighbour is not probed; another one is.
func TestPermanentNeighbourIsNotProbed(t *testing.T) {
	p, r, uplink := resolver(t)
	ifindex := uplink.Attrs().Index
	x := wire.LinkAddr{2, 0, 0, 0, 0, 0x77}
	setNeigh(t, p, ifindex, "10.0.0.77", netlink.NUD_PERMANENT, x)
	setNeigh(t, p, ifindex, "10.0.0.78", netlink.NUD_STALE, x)
	nextARP := captureARP(t, p.B)
	for _, a := range []string{"10.0.0.77", "10.0.0.78"} {
		if got, err := r.Resolve(t.Context(), netip.Addr{}, netip.MustParseAddr(a)); err != nil || got.LinkAddr != x {
			t.Errorf("%s: %+v, %v", a, got, err)
		}
	}
	// The first probe is to the known MAC address, the second to all hosts.
	for _, want := range []wire.LinkAddr{x, wire.Broadcast} {
		eth := nextARP()
		arp, err := wire.ParseARP(eth.Payload)
		if err != nil || eth.Dst != want || arp.Op() != wire.ARPRequest || arp.TargetAddr() != [4]byte{10, 0, 0, 78} ||
			arp.SenderAddr() != p.A.Addr.Addr().As4() || arp.SenderLink() != p.A.LinkAddr || eth.Src != p.A.LinkAddr {
			t.Errorf("sent %+v, %v; want an ARP request for 10.0.0.78 to %v", eth, err, want)
		}
	}
}

// Many calls of Resolve cause few probes.
func TestManyResolvesCauseOneProbe(t *testing.T) {
	p, r, uplink := resolver(t)
	setNeigh(t, p, uplink.Attrs().Index, "10.0.0.78", netlink.NUD_STALE, wire.LinkAddr{2, 0, 0, 0, 0, 0x77})
	nextARP := captureARP(t, p.B)
	for i := range 50 {
		_, err := r.Resolve(t.Context(), netip.Addr{}, netip.MustParseAddr("10.0.0.78"))
		if i > 0 && errors.Is(err, endpoint.ErrUnreachable) {
			break // the first probe was 50 ms ago and has no answer, so the entry is not usable any more
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := r.Probes(); n != 1 {
		t.Errorf("%d hops were probed, want 1", n)
	}
	if eth := nextARP(); eth.Dst.IsGroup() {
		t.Errorf("the first probe was sent to a group: %+v", eth)
	}
	if eth := nextARP(); !eth.Dst.IsGroup() {
		t.Errorf("the second probe was sent to one host: %+v", eth)
	}
}

// captureARP receives all ARP that reaches a host, also for other hosts.
func captureARP(t *testing.T, h *netlab.Host) (next func() wire.Ethernet) {
	t.Helper()
	var sock *os.File
	do(t, h, func() error {
		link, err := netlink.LinkByName(h.Interface)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		sock = os.NewFile(uintptr(fd), "arp")
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: unix.ETH_P_ARP>>8 | unix.ETH_P_ARP<<8&0xff00, Ifindex: link.Attrs().Index})
	})
	t.Cleanup(func() { sock.Close() })
	return func() wire.Ethernet {
		t.Helper()
		buf := make([]byte, 128)
		sock.SetReadDeadline(time.Now().Add(testTimeout))
		n, err := sock.Read(buf)
		if err != nil {
			t.Fatalf("no ARP: %v", err)
		}
		var eth wire.Ethernet
		if err := eth.Parse(buf[:n]); err != nil {
			t.Fatal(err)
		}
		return eth
	}
}
