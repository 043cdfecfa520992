// Package lab opens hosts with verbs for the tests of examples, and reads what a server prints.
package lab

import (
	"bytes"
	"errors"
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

// Open makes a mux, an endpoint and a context of verbs on a host. All are closed when the test ends.
func Open(t *testing.T, at *netlab.Host) (*unet.Host, *verbs.Context) {
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

// Output is what a program prints.
type Output struct {
	bytes.Buffer
	Listening chan struct{} // closed when a server prints that it listens
}

// NewOutput is an empty output.
func NewOutput() *Output { return &Output{Listening: make(chan struct{})} }

func (o *Output) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("listening on")) {
		close(o.Listening)
	}
	return o.Buffer.Write(b)
}
