//go:build linux

package session

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	. "github.com/unet-go/unet/internal/protocoltest"
	"github.com/unet-go/unet/mux"
)

// A lease continues with the next unetd: the endpoint has the same tags, and no descriptor of earlier connections is
// open.
func TestLeaseContinuesWithNextUnetd(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	ctx := context.Background()
	g, l := mustOpen(t, d.socket, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(7)}})
	for i := range uint32(5) {
		d.kill()
		if l.Err() != nil {
			t.Fatalf("the lease ended with unetd: %v", l.Err())
		}
		d.start()
		if _, err := l.Claim(ctx, endpoint.MessageTag(100+i)); err != nil {
			t.Fatal(err)
		}
		if r, err := l.Resolve(ctx, netip.Addr{}, remoteAddr); err != nil || r.NextHop != remoteAddr {
			t.Fatalf("Resolve: %+v, %v", r, err)
		}
	}
	want := map[endpoint.Tag]bool{endpoint.MessageTag(7): true}
	for i := range uint32(5) {
		want[endpoint.MessageTag(100+i)] = true
	}
	if got := p.tagsOf(1); !maps.Equal(got, want) {
		t.Errorf("tags %v, want %v", got, want)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	p.awaitClosed()
	if err := l.Err(); !errors.Is(err, endpoint.ErrLeaseClosed) || err.Error() != endpoint.ErrLeaseClosed.Error() {
		t.Errorf("Err after Close: %v", err)
	}
	g.Close()
	d.stop()
	p.awaitGrantsClosed()
}

// The table of connections goes to the unetd that opens the endpoint, and to each that
// it is presented to. The application's own descriptor may be closed meanwhile.
func TestTableIsPresented(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	table, err := datapath.NewConnections()
	if err != nil {
		t.Fatal(err)
	}
	var file syscall.Stat_t
	if err := syscall.Fstat(int(table.File().Fd()), &file); err != nil {
		t.Fatal(err)
	}
	g, l := mustOpen(t, d.socket, endpoint.Request{Connections: table.File()})
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d.kill()
		d.start()
		if _, err := l.Resolve(context.Background(), netip.Addr{}, remoteAddr); err != nil { // it has been presented
			t.Fatal(err)
		}
	}
	p.mu.Lock()
	got := slices.Clone(p.tables)
	p.mu.Unlock()
	if want := slices.Repeat([]uint64{file.Ino}, 3); !slices.Equal(got, want) {
		t.Errorf("tables %v were received, want %v", got, want)
	}
	l.Close()
	p.awaitClosed()
	g.Close()
	d.stop()
	p.awaitGrantsClosed()
}

// Calls that are made or in progress while there is no unetd are completed by the
// next, or end with their context.
func TestCallsWaitForUnetd(t *testing.T) {
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	inside := make(chan struct{}, 10)
	p.hook(hooks{route: func(ctx context.Context, _ netip.Addr) (endpoint.Route, error) {
		inside <- struct{}{}
		<-ctx.Done()
		return endpoint.Route{}, ctx.Err()
	}})
	_, l := mustOpen(t, d.socket, endpoint.Request{})
	var wg sync.WaitGroup
	resolve := func() {
		wg.Go(func() {
			if r, err := l.Resolve(context.Background(), netip.Addr{}, remoteAddr); err != nil || r.NextHop != remoteAddr {
				t.Errorf("Resolve: %+v, %v", r, err)
			}
		})
	}
	for range 5 {
		resolve()
	}
	for range 5 {
		Await(t, "requests", inside)
	}
	p.hook(hooks{})
	d.kill()
	resolve()
	wg.Go(func() {
		if tag, err := l.Claim(context.Background(), endpoint.MessageTag(3)); err != nil || tag != endpoint.MessageTag(3) {
			t.Errorf("Claim: %v, %v", tag, err)
		}
	})
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("cancelled")
	cancelled := make(chan error)
	go func() {
		_, err := l.Resolve(ctx, netip.Addr{}, remoteAddr)
		cancelled <- err
	}()
	go func() {
		_, err := l.Claim(ctx, endpoint.MessageTag(4))
		cancelled <- err
	}()
	go func() { cancelled <- l.Unclaim(ctx, endpoint.MessageTag(5)) }()
	cancel(cause)
	for range 3 {
		if err := <-cancelled; !errors.Is(err, cause) {
			t.Errorf("%v", err)
		}
	}
	d.start()
	wg.Wait()
	if got := p.tagsOf(1); !maps.Equal(got, map[endpoint.Tag]bool{endpoint.MessageTag(3): true}) {
		t.Errorf("tags %v", got)
	}
}

// Close of a lease does not wait for a unetd that hangs, which reclaims the endpoint later.
func TestCloseWhileUnetdHangs(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	blocked := make(chan struct{})
	unblock := sync.OnceFunc(func() { close(blocked) })
	p.hook(hooks{close: func() { <-blocked }})
	socket, stop := start(t, &Server{Provider: p})
	g, l := mustOpen(t, socket, endpoint.Request{})
	t.Cleanup(unblock)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	Await(t, "Close", closed)
	Await(t, "Done", l.Done())
	if err := l.Err(); !errors.Is(err, endpoint.ErrLeaseClosed) {
		t.Errorf("ended by %v", err)
	}
	if len(p.closed) != 0 {
		t.Error("a unetd that hangs has reclaimed the endpoint")
	}
	unblock()
	p.awaitClosed()
	g.Close()
	stop()
}

// Close works without a unetd, and ends calls that wait for one.
func TestCloseWithoutUnetd(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	g, l := mustOpen(t, d.socket, endpoint.Request{})
	d.kill()
	waiting := make(chan error, 1)
	go func() {
		_, err := l.Resolve(context.Background(), netip.Addr{}, remoteAddr)
		waiting <- err
	}()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-waiting; !errors.Is(err, endpoint.ErrLeaseClosed) {
		t.Errorf("Resolve: %v", err)
	}
	if err := l.Err(); !errors.Is(err, endpoint.ErrLeaseClosed) {
		t.Errorf("Err: %v", err)
	}
	g.Close()
	p.awaitGrantsClosed()
}

// The endpoint of a lease that is closed while it is being presented is reclaimed.
func TestCloseWhilePresenting(t *testing.T) {
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	_, l := mustOpen(t, d.socket, endpoint.Request{})
	d.kill()
	inside := make(chan struct{})
	p.hook(hooks{present: func(ctx context.Context, _ mux.Owner, _ *os.File) error {
		close(inside)
		<-ctx.Done() // the application's end of the connection is closed
		return nil   // too late for the provider to stop
	}})
	d.start()
	Await(t, "present", inside)
	l.Close()
	p.awaitClosed()
	if p.tagsOf(1) != nil {
		t.Error("the endpoint is still there")
	}
}

// There is no timeout for the answer to present, because closing the connection would end the lease.
func TestPresentHasNoTimeout(t *testing.T) {
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	_, l := mustOpen(t, d.socket, endpoint.Request{})
	d.kill()
	inside, release := make(chan struct{}), make(chan struct{})
	p.hook(hooks{present: func(context.Context, mux.Owner, *os.File) error {
		close(inside)
		<-release
		return nil
	}})
	d.start()
	Await(t, "present", inside)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := l.Resolve(ctx, netip.Addr{}, remoteAddr); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Resolve: %v", err)
	}
	close(release)
	if _, err := l.Resolve(context.Background(), netip.Addr{}, remoteAddr); err != nil {
		t.Error(err)
	}
}

// The socket is found again from another working directory.
func TestReconnectToRelativePath(t *testing.T) {
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	t.Chdir(filepath.Dir(d.socket))
	_, l := mustOpen(t, filepath.Base(d.socket), endpoint.Request{})
	d.kill()
	t.Chdir("/")
	d.start()
	if _, err := l.Resolve(context.Background(), netip.Addr{}, remoteAddr); err != nil {
		t.Error(err)
	}
}
