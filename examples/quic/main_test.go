//go:build linux

package main

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/unet-go/unet/examples/internal/lab"
	"github.com/unet-go/unet/internal/netlab"
)

// TestEcho has QUIC between unet and kernel sockets, in both roles.
func TestEcho(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	host := lab.Host(t, pair.A)
	onUnet := func(port string) net.PacketConn {
		conn, err := listenPacket(t.Context(), host, ":"+port)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	onKernel := func(port string) net.PacketConn {
		conn, err := pair.B.ListenUDP("10.0.0.2:" + port)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	for _, c := range []struct {
		name           string
		server, client net.PacketConn
	}{
		{"server on unet", onUnet("7000"), onKernel("0")},
		{"client on unet", onKernel("7000"), onUnet("0")},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- serve(ctx, c.server) }()
			times, err := ping(ctx, c.client, c.server.LocalAddr().String(), 1000)
			if err != nil || len(times) != 1000 {
				t.Errorf("%d echoes of 1000, %v", len(times), err)
			}
			end()
			if err := <-served; !errors.Is(err, context.Canceled) {
				t.Errorf("server: %v", err)
			}
		})
	}
}
