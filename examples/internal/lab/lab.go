//go:build linux

// Package lab opens hosts for the tests of examples, and reads what a server prints.
package lab

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/verbs"
)

// Mux makes a mux on a host. It is closed when the test ends.
func Mux(t *testing.T, at *netlab.Host) *mux.Mux {
	t.Helper()
	m, err := mux.Open(mux.Config{Interface: at.Interface, NetNS: at.NS})
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, m.Close()) })
	return m
}

// Host makes a mux on a host, and opens an endpoint of it for sockets. Both are closed when the
// test ends.
func Host(t *testing.T, at *netlab.Host) *unet.Host {
	t.Helper()
	m := Mux(t, at)
	grant, lease, err := m.OpenEndpoint(t.Context(), endpoint.Request{})
	testutil.Must(t, err)
	h, err := unet.New(t.Context(), grant, lease, unet.HostConfig{})
	if err != nil {
		testutil.Must(t, errors.Join(err, grant.Close(), lease.Close()))
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// Open is [Host], and a context of verbs over it.
func Open(t *testing.T, at *netlab.Host) (*unet.Host, *verbs.Context) {
	t.Helper()
	h := Host(t, at)
	c, err := verbs.Open(t.Context(), h, verbs.Config{})
	testutil.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return h, c
}

// RequirePostgres skips the test on a machine without PostgreSQL's server, or fails it if
// UNET_REQUIRE_TOOLS=1.
func RequirePostgres(t *testing.T) {
	t.Helper()
	_, err := exec.LookPath("initdb")
	debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err == nil || debian != nil {
		return
	}
	if os.Getenv("UNET_REQUIRE_TOOLS") == "1" {
		t.Fatalf("%v: apt install postgresql", err)
	}
	t.Skipf("%v: apt install postgresql", err)
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
