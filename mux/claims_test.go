package mux_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

func TestClaims(t *testing.T) {
	l := openLab(t, mux.ModeGeneric)
	kernelUDP(t, l.A, "10.0.0.1:5300")
	kernelUDP(t, l.A, "0.0.0.0:5301")
	a := l.open(udpTag("10.0.0.1:7000"), endpoint.MessageTag(7), addrTag("10.0.0.77"), udpTag("10.0.0.77:9"))
	b := l.open()
	ctx := t.Context()
	held, denied := endpoint.ErrTagHeld, endpoint.ErrTagDenied
	for _, c := range []struct {
		by   *app
		tag  endpoint.Tag
		want error
	}{
		{b, udpTag("10.0.0.1:7000"), held},
		{b, udpTag("0.0.0.0:7000"), held},
		{a, udpTag("10.0.0.1:7000"), held}, // twice is once too often
		{b, udpTag("10.0.0.1:5300"), held}, // by a kernel program
		{b, udpTag("10.0.0.1:5301"), held}, // by one on all addresses
		{b, udpTag("10.0.0.2:7000"), denied},
		{b, udpTag("127.0.0.1:7000"), denied},
		{b, udpTag("10.0.0.77:10"), held}, // the whole address is another's
		{b, udpTag("10.0.0.78:10"), denied},
		{b, udpTag("[::1]:7000"), denied},
		{b, endpoint.MessageTag(7), held},
		{b, addrTag("10.0.0.77"), held},
		{b, addrTag("10.0.0.1"), denied},  // the host's own
		{b, addrTag("127.0.0.1"), denied}, //
		{b, addrTag("10.0.1.1"), denied},  // not on this network
		{b, addrTag("10.0.0.0"), denied},
		{b, addrTag("10.0.0.255"), denied},
		{b, addrTag("0.0.0.0"), denied},
		{b, addrTag("224.0.0.1"), denied},
		{b, addrTag("::1"), denied},
		{b, endpoint.Tag{}, denied},
		{b, endpoint.Tag{Kind: endpoint.TagAddr}, denied},
	} {
		if got, err := c.by.lease.Claim(ctx, c.tag); !errors.Is(err, c.want) {
			t.Errorf("claim %v: %v, %v; want %v", c.tag, got, err, c.want)
		}
	}

	// Wildcards.
	for _, c := range []struct {
		by   *app
		tag  endpoint.Tag
		addr string
	}{
		{b, udpTag("0.0.0.0:0"), "10.0.0.1"},
		{b, udpTag("10.0.0.1:0"), "10.0.0.1"},
		{b, endpoint.Tag{Kind: endpoint.TagUDP}, "10.0.0.1"},
		{a, udpTag("10.0.0.77:0"), "10.0.0.77"},
	} {
		got, err := c.by.lease.Claim(ctx, c.tag)
		if err != nil || got.Addr != netip.MustParseAddr(c.addr) || got.Port == 0 {
			t.Errorf("claim %v: %v, %v", c.tag, got, err)
		}
	}
	if got, err := b.lease.Claim(ctx, endpoint.MessageTag(0)); err != nil || got.Message == 0 {
		t.Errorf("claim any message tag: %v, %v", got, err)
	}

	// The kernel leaves claimed ports alone, and has them back afterwards.
	bind := func() error {
		return l.A.Do(func() error {
			c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 7000})
			if err == nil {
				c.Close()
			}
			return err
		})
	}
	if bind() == nil {
		t.Error("a kernel program got a claimed port")
	}
	if err := b.lease.Unclaim(ctx, udpTag("10.0.0.1:7000")); !errors.Is(err, denied) {
		t.Errorf("unclaim another's tag: %v", err)
	}
	must(t, a.lease.Unclaim(ctx, udpTag("10.0.0.1:7000")))
	must(t, bind())
	if _, err := b.lease.Claim(ctx, udpTag("10.0.0.1:7000")); err != nil {
		t.Errorf("claim what was given back: %v", err)
	}
	if err := a.lease.Unclaim(ctx, addrTag("10.0.0.77")); !errors.Is(err, denied) {
		t.Errorf("unclaim an address on which a port is held: %v", err)
	}

	// A tag takes effect at once, and so does its end.
	peer := kernelUDP(t, l.B, "10.0.0.2:9000")
	sendTo(t, peer, "10.0.0.1:7000", "to b")
	b.recv()
	must(t, b.lease.Unclaim(ctx, udpTag("10.0.0.1:7000")))
	passed := l.count()["rx_pass"]
	l.moved("a port given back", "rx_", func() {
		sendTo(t, peer, "10.0.0.1:7000", "to nobody")
		l.await("rx_pass", passed+1)
	}, "rx_pass")
	b.nothing("after the tag was given back")

	must(t, a.lease.Close())
	if _, err := b.lease.Claim(ctx, addrTag("10.0.0.77")); err != nil {
		t.Errorf("claim an address whose lease was closed: %v", err)
	}
	for _, err := range []error{
		a.lease.Unclaim(ctx, endpoint.MessageTag(7)),
		func() error { _, err := a.lease.Claim(ctx, endpoint.MessageTag(7)); return err }(),
		func() error { _, err := a.lease.Resolve(ctx, netip.MustParseAddr("10.0.0.2")); return err }(),
	} {
		if !errors.Is(err, endpoint.ErrLeaseClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

// The tags of a request come together or not at all, in any order.
func TestClaimsOfARequest(t *testing.T) {
	l := openLab(t, mux.ModeGeneric)
	want := []endpoint.Tag{udpTag("10.0.0.77:9"), endpoint.MessageTag(7), addrTag("10.0.0.77"), udpTag("10.0.0.1:7000")}
	if a := l.open(want...); !slices.Equal(a.grant.Tags, want) {
		t.Errorf("tags %v, want %v", a.grant.Tags, want)
	}
	before := look(t, l.A)
	_, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: []endpoint.Tag{
		endpoint.MessageTag(8), udpTag("10.0.0.1:7001"), addrTag("10.0.0.78"), endpoint.MessageTag(7)}})
	if !errors.Is(err, endpoint.ErrTagHeld) {
		t.Fatalf("got %v", err)
	}
	wantTraces(t, l.A, before)
	l.open(endpoint.MessageTag(8), udpTag("10.0.0.1:7001"), addrTag("10.0.0.78")) // none was kept
}

// A wildcard follows the uplink's addresses as they are now.
func TestUplinkWithoutAddress(t *testing.T) {
	l := openLab(t, mux.ModeGeneric)
	must(t, l.A.Do(func() error {
		link, err := netlink.LinkByName(l.A.Interface)
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		return netlink.AddrDel(link, &addrs[0])
	}))
	a := l.open(endpoint.MessageTag(7))
	if _, err := a.lease.Claim(t.Context(), udpTag("0.0.0.0:7000")); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("got %v", err)
	}
}
