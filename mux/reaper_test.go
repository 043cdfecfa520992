package mux_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// Ports that are deleted together go, and no other device does.
func TestPortsAreDeletedTogether(t *testing.T) {
	l := openLab(t, mux.ModeGeneric)
	must(t, l.A.Do(func() error {
		other := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other", Group: 5}, PeerName: "end"}
		return errors.Join(netlink.LinkAdd(other), netlink.LinkSetGroup(other, 5))
	}))
	before := look(t, l.A)
	open := func() (leases []*mux.Lease) {
		for range 12 {
			g, lease, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small})
			must(t, err)
			t.Cleanup(func() { g.Close() })
			leases = append(leases, lease)
		}
		return leases
	}
	stays := l.open(udpTag("10.0.0.1:7000"))
	var all sync.WaitGroup
	for _, lease := range open() {
		all.Go(func() {
			if err := lease.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if now := look(t, l.A); len(now.links) != len(before.links)+1 {
		t.Errorf("left: %v, before: %v", now.links, before.links)
	}
	b := kernelUDP(t, l.B, "10.0.0.2:0")
	l.echo(b, stays, "still there")
	open()
	must(t, l.mux.Close())
	if now := look(t, l.A); !slices.Equal(now.links, before.links) {
		t.Errorf("left: %v, before: %v", now.links, before.links)
	}
}
