//go:build linux

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/unet-go/unet/examples/internal/lab"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// Each kind of queue pair, on two hosts: as many messages arrive as were asked for, and what comes
// back is what was sent.
func TestPingpong(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	hostA, a := lab.Open(t, pair.A)
	hostB, b := lab.Open(t, pair.B)
	for _, kind := range []string{"rc", "uc", "ud", "srq"} {
		for _, events := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s events %v", kind, events), func(t *testing.T) {
				o := options{kind: kind, port: 18515, size: 1000, mtu: 256, depth: 20, iters: 50, qps: 3, events: events}
				if kind != "ud" {
					o.size = 3000
				}
				testutil.Must(t, o.validate(0))
				server, client := lab.NewOutput(), lab.NewOutput()
				served := make(chan error, 1)
				go func() { served <- play(t.Context(), hostA, a, o, server) }()
				select {
				case <-server.Listening:
				case err := <-served:
					t.Fatal(err)
				}
				o.host, o.check = hostA.Addr().String(), true
				testutil.Must(t, o.validate(1))
				testutil.Must(t, play(t.Context(), hostB, b, o, client))
				testutil.Must(t, <-served)
				for _, out := range []string{server.String(), client.String()} {
					if !strings.Contains(out, fmt.Sprintf("%d bytes in", 2*50*o.size)) || !strings.Contains(out, "50 iters in") {
						t.Errorf("%s", out)
					}
				}
			})
		}
	}
}
