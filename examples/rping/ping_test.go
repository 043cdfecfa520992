package main

import (
	"bytes"
	"errors"
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

// The text that the client sends comes back by the server's READ and WRITE.
func TestRping(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	hostA, a := open(t, pair.A)
	_, b := open(t, pair.B)
	for _, size := range []int{32, 64, 5000} {
		o := options{addr: hostA.Addr(), port: 7174, size: size, count: 3, verbose: true, check: true}
		server, client := &output{listening: make(chan struct{})}, &output{}
		served := make(chan error, 1)
		o.server = true
		go func() { served <- play(t.Context(), a, o, server) }()
		select {
		case <-server.listening:
		case err := <-served:
			t.Fatal(err)
		}
		o.server, o.client = false, true
		must(t, play(t.Context(), b, o, client))
		must(t, <-served)
		for _, ping := range []string{"ping data: rdma-ping-0: ABC", "ping data: rdma-ping-2: CDE"} {
			if !strings.Contains(client.String(), ping) || !strings.Contains(server.String(), "server "+ping) {
				t.Errorf("%d bytes: the client printed\n%s, the server\n%s", size, client, server)
			}
		}
	}
}
