//go:build linux

package main

import (
	"bytes"
	"context"
	"net"
	"testing"

	"github.com/unet-go/unet/examples/internal/lab"
	"github.com/unet-go/unet/internal/netlab"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// lines passes on what is written, so that a test can wait for it.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(bytes.TrimSpace(b))
	return len(b), nil
}

// TestHealth makes calls between unet and gRPC on kernel sockets, in both roles.
func TestHealth(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	host := lab.Host(t, pair.A)
	kernelListener, err := pair.B.Listen("tcp", "10.0.0.2:7000")
	if err != nil {
		t.Fatal(err)
	}
	unetListener, err := host.Listen(t.Context(), "tcp", "10.0.0.1:7000")
	if err != nil {
		t.Fatal(err)
	}
	kernelDial := func(_ context.Context, network, address string) (net.Conn, error) {
		return pair.B.Dial(network, address)
	}
	t.Run("server on unet", func(t *testing.T) { calls(t, unetListener, kernelDial) })
	t.Run("client on unet", func(t *testing.T) { calls(t, kernelListener, host.DialContext) })
}

func calls(t *testing.T, listener net.Listener, dial dialFunc) {
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, listener) }()
	address := listener.Addr().String()

	checked := make(lines, 1)
	if err := call(t.Context(), dial, "check", address, checked); err != nil {
		t.Fatal(err)
	}
	if s := <-checked; s != "SERVING" {
		t.Errorf("check: %s, want SERVING", s)
	}

	watched := make(lines, 10)
	ended := make(chan error, 1)
	go func() { ended <- call(t.Context(), dial, "watch", address, watched); close(watched) }()
	if s := <-watched; s != "SERVING" {
		t.Errorf("watch: %s, want SERVING", s)
	}
	end()
	if err := <-served; err != nil {
		t.Errorf("server: %v", err)
	}
	// The last status and the end of the connection are sent at the same time.
	for s := range watched {
		if s != "NOT_SERVING" {
			t.Errorf("watch while the server ends: %s, want NOT_SERVING", s)
		}
	}
	if err := <-ended; status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
		t.Errorf("watch after the server: %v, want Unavailable or Canceled", err)
	}
}
