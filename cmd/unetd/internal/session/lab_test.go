//go:build linux

package session

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	. "github.com/unet-go/unet/internal/protocoltest"
)

// slotsForClaims is how many of the requests in progress of a control.Lease cannot be resolves.
const slotsForClaims = 4

var (
	localAddr  = netip.MustParseAddr("10.0.0.1")
	remoteAddr = netip.MustParseAddr("10.0.0.2")
)

// start runs s until stop is called, or the test ends. stop returns when Serve has returned.
func start(t testing.TB, s *Server) (socket string, stop func()) {
	t.Helper()
	socket, ln := Listen(t)
	return socket, serve(t, s, ln)
}

// serve is start with a listener.
func serve(t testing.TB, s *Server, ln *net.UnixListener) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-served:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(TestTimeout):
			t.Error("Serve did not return")
		}
	})
	t.Cleanup(stop)
	return stop
}

// daemon is a unetd that can be killed and started again. Its provider stays.
type daemon struct {
	t      testing.TB
	p      *fakeProvider
	limits Limits
	socket string
	stop   func()
}

func newDaemon(t testing.TB, p *fakeProvider) *daemon {
	d := &daemon{t: t, p: p, socket: filepath.Join(t.TempDir(), "s")}
	d.start()
	return d
}

func (d *daemon) start() {
	d.t.Helper()
	d.stop = serve(d.t, &Server{Provider: d.p, Limits: d.limits, Keep: true}, ListenAt(d.t, d.socket))
}

// kill ends it as SIGKILL does: its connections and its socket are closed without an
// answer, and the results of calls in progress are lost.
func (d *daemon) kill() {
	d.stop()
	d.p.abandon()
}

// mustOpen opens an endpoint until the test ends.
func mustOpen(t testing.TB, socket string, req endpoint.Request) (*endpoint.Grant, *control.Lease) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), TestTimeout)
	defer cancel()
	g, l, err := control.Open(ctx, socket, req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close(); l.Close() })
	return g, l
}

// until polls until a condition is true.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(TestTimeout); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", TestTimeout, what)
		}
	}
}

// fdOf is the descriptor of a file that is not in the poller.
func fdOf(t testing.TB, f *os.File) (fd int) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(of uintptr) { fd = int(of) }); err != nil {
		t.Fatal(err)
	}
	return fd
}
