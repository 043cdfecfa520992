//go:build linux

package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/examples/internal/lab"
	"github.com/unet-go/unet/internal/netlab"
)

// kernelNetwork is package net on a host of the test.
type kernelNetwork struct {
	unet.Network
	host *netlab.Host
}

func (o kernelNetwork) ListenPacket(_ context.Context, _, _ string) (net.PacketConn, error) {
	return o.host.ListenUDP(netip.AddrPortFrom(o.host.Addr.Addr(), 0).String())
}

// serveAt serves on a host until the test ends, and returns when the group is joined.
func serveAt(t *testing.T, network unet.Network, join func() (net.PacketConn, error), name string) {
	t.Helper()
	member, err := join()
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- serve(t.Context(), network, member, name) }()
	t.Cleanup(func() {
		member.Close()
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	})
}

// A service on unet is found from kernel sockets, and one on kernel sockets from unet.
func TestFind(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	group := netip.MustParseAddrPort("239.1.2.3:5000")
	host, kernel := lab.Host(t, pair.A), kernelNetwork{host: pair.B}
	serveAt(t, host, func() (net.PacketConn, error) { return join(host, group) }, "on unet")
	serveAt(t, kernel, func() (c net.PacketConn, err error) {
		err = pair.B.Do(func() error {
			i, err := net.InterfaceByName(pair.B.Interface)
			if err == nil {
				c, err = net.ListenMulticastUDP("udp4", i, net.UDPAddrFromAddrPort(group))
			}
			return err
		})
		return c, err
	}, "on the kernel")
	for name, network := range map[string]unet.Network{"unet": host, "the kernel": kernel} {
		found, err := find(t.Context(), network, group)
		slices.Sort(found)
		if want := []string{"on the kernel at 10.0.0.2", "on unet at 10.0.0.1"}; err != nil || !slices.Equal(found, want) {
			t.Errorf("from %s: found %q, %v; want %q", name, found, err, want)
		}
	}
}
