//go:build linux

package main

import (
	"strings"
	"testing"

	"github.com/unet-go/unet/examples/internal/lab"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// The text that the client sends comes back by the server's READ and WRITE.
func TestRping(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	hostA, a := lab.Open(t, pair.A)
	_, b := lab.Open(t, pair.B)
	for _, size := range []int{32, 64, 5000} {
		o := options{addr: hostA.Addr(), port: 7174, size: size, count: 3, verbose: true, check: true}
		server, client := lab.NewOutput(), lab.NewOutput()
		served := make(chan error, 1)
		o.server = true
		go func() { served <- play(t.Context(), a, o, server) }()
		select {
		case <-server.Listening:
		case err := <-served:
			t.Fatal(err)
		}
		o.server, o.client = false, true
		testutil.Must(t, play(t.Context(), b, o, client))
		testutil.Must(t, <-served)
		for _, ping := range []string{"ping data: rdma-ping-0: ABC", "ping data: rdma-ping-2: CDE"} {
			if !strings.Contains(client.String(), ping) || !strings.Contains(server.String(), "server "+ping) {
				t.Errorf("%d bytes: the client printed\n%s, the server\n%s", size, client, server)
			}
		}
	}
}
