//go:build linux

package main

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
)

// After unetd was killed a host answers a peer that it has not heard of before, over UDP and TCP, and
// goes on when the next unetd is there.
func TestNewPeersAreAnsweredWithoutUnetd(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	d := s.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	host, err := unet.Open(ctx, unet.Config{Socket: s.socket})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	notices := make(chan endpoint.NoticeKind, 100)
	changes := host.Notices(ctx)
	go func() {
		for n := range changes {
			notices <- n.Kind
		}
	}()
	awaitNotice := func(kind endpoint.NoticeKind) {
		t.Helper()
		for {
			select {
			case got := <-notices:
				if got == kind {
					return
				}
			case <-ctx.Done():
				t.Fatalf("no notice %d", kind)
			}
		}
	}
	u, err := host.ListenPacket(ctx, "udp", ":7000")
	if err != nil {
		t.Fatal(err)
	}
	l, err := host.Listen(ctx, "tcp", ":7000")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 100)
		for {
			n, from, err := u.ReadFrom(buf)
			if err != nil {
				return
			}
			u.WriteTo(buf[:n], from)
		}
	}()
	go echoConnections(l)
	echo := func(c net.Conn) {
		t.Helper()
		c.SetDeadline(time.Now().Add(testTimeout))
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 5)
		if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "hello" {
			t.Fatalf("%s: %q, %v", c.LocalAddr().Network(), buf, err)
		}
	}
	d.kill()
	awaitNotice(endpoint.NoticeUnetdGone)
	var peers []net.Conn
	for _, network := range []string{"udp", "tcp"} {
		c, err := pair.B.Dial(network, "10.0.0.1:7000")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		echo(c)
		peers = append(peers, c)
	}
	s.serve(t)
	awaitNotice(endpoint.NoticeUnetdBack)
	for _, c := range peers {
		echo(c)
	}
}
