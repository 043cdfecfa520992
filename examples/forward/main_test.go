//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/unet-go/unet/examples/internal/lab"
	"github.com/unet-go/unet/internal/netlab"
)

// TestForward sends 4 MB each way through the proxy, in both directions: a client and an echo
// server on kernel sockets, the proxy on unet towards one of them. The echo ends after the end of
// what was sent, so half a connection has to be closed through the proxy.
func TestForward(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	host := lab.Host(t, pair.A)
	kernelDial := func(_ context.Context, network, address string) (net.Conn, error) {
		return pair.A.Dial(network, address)
	}
	t.Run("in", func(t *testing.T) {
		listener, err := host.Listen(t.Context(), "tcp", "10.0.0.1:7000")
		if err != nil {
			t.Fatal(err)
		}
		through(t, listener, kernelDial, pair.A, "127.0.0.1:7001", pair.B)
	})
	t.Run("out", func(t *testing.T) {
		listener, err := pair.A.Listen("tcp", "127.0.0.1:7000")
		if err != nil {
			t.Fatal(err)
		}
		through(t, listener, host.DialContext, pair.B, "10.0.0.2:7001", pair.A)
	})
}

func through(t *testing.T, listener net.Listener, dial dialFunc, serverAt *netlab.Host, server string, clientAt *netlab.Host) {
	t.Helper()
	echo, err := serverAt.ServeEcho(server)
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- forward(ctx, listener, dial, server) }()

	conn, err := clientAt.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sent := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{1}).Read(sent)
	go func() {
		conn.Write(sent)
		conn.(*net.TCPConn).CloseWrite()
	}()
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes of %d have come back, %v", len(got), len(sent), err)
	}

	// A connection that is open when the proxy ends is closed.
	open, err := clientAt.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := open.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := open.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	end()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the proxy: %v", err)
	}
	if n, err := open.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes from a proxy that has ended", n)
	}
}
