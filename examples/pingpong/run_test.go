package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/verbs"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, at *netlab.Host) (*unet.Host, *verbs.Context) {
	t.Helper()
	var m *mux.Mux
	must(t, at.Do(func() (err error) {
		m, err = mux.Open(mux.Config{Interface: at.Interface})
		return err
	}))
	t.Cleanup(func() { must(t, m.Close()) })
	grant, lease, err := m.OpenEndpoint(t.Context(), endpoint.Request{})
	must(t, err)
	h, err := unet.New(t.Context(), grant, lease, unet.Config{})
	if err != nil {
		must(t, errors.Join(err, grant.Close(), lease.Close()))
	}
	t.Cleanup(func() { h.Close() })
	c, err := verbs.Open(t.Context(), h, verbs.Config{})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return h, c
}

// output is what a server prints; listening is closed when it says so.
type output struct {
	bytes.Buffer
	listening chan struct{}
}

func (o *output) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("listening on")) {
		close(o.listening)
	}
	return o.Buffer.Write(b)
}

// Each kind of queue pair, on two hosts: as many messages arrive as were asked for, and what comes
// back is what was sent.
func TestPingpong(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	hostA, a := open(t, pair.A)
	hostB, b := open(t, pair.B)
	for _, kind := range []string{"rc", "uc", "ud", "srq"} {
		for _, events := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s events %v", kind, events), func(t *testing.T) {
				o := options{kind: kind, port: 18515, size: 1000, mtu: 256, depth: 20, iters: 50, qps: 3, events: events}
				if kind != "ud" {
					o.size = 3000
				}
				must(t, o.validate(0))
				server, client := &output{listening: make(chan struct{})}, &output{}
				served := make(chan error, 1)
				go func() { served <- play(t.Context(), hostA, a, o, server) }()
				select {
				case <-server.listening:
				case err := <-served:
					t.Fatal(err)
				}
				o.host, o.check = hostA.Addr().String(), true
				must(t, o.validate(1))
				must(t, play(t.Context(), hostB, b, o, client))
				must(t, <-served)
				for _, out := range []string{server.String(), client.String()} {
					if !strings.Contains(out, fmt.Sprintf("%d bytes in", 2*50*o.size)) || !strings.Contains(out, "50 iters in") {
						t.Errorf("%s", out)
					}
				}
			})
		}
	}
}
