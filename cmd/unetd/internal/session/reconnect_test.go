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

// The lease continues with the next unetd: the endpoint and its tags are the same, and no
// descriptor of earlier connections is left.
func TestUnetdDies(t *testing.T) {
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
		if r, err := l.Resolve(ctx, remoteAddr); err != nil || r.NextHop != remoteAddr {
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
	p.noCopies()
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
		if _, err := l.Resolve(context.Background(), remoteAddr); err != nil { // it has been presented
			t.Fatal(err)
		}
	}
	p.mu.Lock()
	got := slices.Clone(p.tables)
	p.mu.Unlock()
	if want := slices.Repeat([]uint64{file.Ino}, 3); !slices.Equal(got, want) {
		t.Errorf("tables %v have come, want %v", got, want)
	}
	l.Close()
	p.awaitClosed()
	g.Close()
	d.stop()
	p.noCopies()
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
			if r, err := l.Resolve(context.Background(), remoteAddr); err != nil || r.NextHop != remoteAddr {
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
	enough := errors.New("enough")
	impatient := make(chan error)
	go func() {
		_, err := l.Resolve(ctx, remoteAddr)
		impatient <- err
	}()
	go func() {
		_, err := l.Claim(ctx, endpoint.MessageTag(4))
		impatient <- err
	}()
	go func() { impatient <- l.Unclaim(ctx, endpoint.MessageTag(5)) }()
	cancel(enough)
	for range 3 {
		if err := <-impatient; !errors.Is(err, enough) {
			t.Errorf("%v", err)
		}
	}
	d.start()
	wg.Wait()
	if got := p.tagsOf(1); !maps.Equal(got, map[endpoint.Tag]bool{endpoint.MessageTag(3): true}) {
		t.Errorf("tags %v", got)
	}
}

// Close of a lease does not wait for a unetd that is stopped or busy. Such a unetd reclaims
// the endpoint later.
func TestCloseOfAStuckUnetd(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	stuck := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(stuck) })
	p.hook(hooks{close: func() { <-stuck }})
	socket, stop := start(t, &Server{Provider: p})
	g, l := mustOpen(t, socket, endpoint.Request{})
	t.Cleanup(goOn)
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
		t.Error("reclaimed by a unetd that is stuck")
	}
	goOn()
	<-p.closed
	g.Close()
	stop()
}

// Close needs no unetd.
func TestCloseWithoutUnetd(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	g, l := mustOpen(t, d.socket, endpoint.Request{})
	d.kill()
	waiting := make(chan error, 1)
	go func() {
		_, err := l.Resolve(context.Background(), remoteAddr)
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
	p.noCopies()
}

// Close while the endpoint is being presented: in any case the endpoint is reclaimed.
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

// There is no timeout for the answer to present: closing the connection would end the lease.
func TestPresentIsSlow(t *testing.T) {
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
	if _, err := l.Resolve(ctx, remoteAddr); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Resolve: %v", err)
	}
	close(release)
	if _, err := l.Resolve(context.Background(), remoteAddr); err != nil {
		t.Error(err)
	}
}

// The socket is found again from another working directory.
func TestRelativeSocket(t *testing.T) {
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	t.Chdir(filepath.Dir(d.socket))
	_, l := mustOpen(t, filepath.Base(d.socket), endpoint.Request{})
	d.kill()
	t.Chdir("/")
	d.start()
	if _, err := l.Resolve(context.Background(), remoteAddr); err != nil {
		t.Error(err)
	}
}
