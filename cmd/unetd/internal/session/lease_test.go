//go:build linux

package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
	"github.com/unet-go/unet/mux"
)

// The calls of a lease, and what the provider and the application get.
func TestOpenClaimResolveClose(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p})
	defer stop()
	req := endpoint.Request{
		Attach: endpoint.AttachQueue, Queue: 3, Huge: true,
		Geometry: endpoint.Geometry{FrameSize: 4096, FrameCount: 64, RxSize: 128},
		Tags:     []endpoint.Tag{endpoint.MessageTag(9), endpoint.AddrTag(netip.MustParseAddr("10.0.0.9"))},
	}
	var mu sync.Mutex
	var received endpoint.Request
	var peer mux.Owner
	p.hook(hooks{open: func(_ context.Context, p mux.Owner, r endpoint.Request) error {
		mu.Lock()
		defer mu.Unlock()
		peer, received = p, r
		return nil
	}})
	g, l := mustOpen(t, socket, req)
	mu.Lock()
	if !reflect.DeepEqual(received, req) {
		t.Errorf("the provider received %+v, want %+v", received, req)
	}
	if peer.PID != os.Getpid() || peer.UID != uint32(os.Getuid()) || peer.GID != uint32(os.Getgid()) || peer.Groups[0] != peer.GID {
		t.Errorf("peer %+v", peer)
	}
	mu.Unlock()
	if g.ID != 1 || g.Attach != endpoint.AttachQueue || g.Geometry != req.Geometry.WithDefaults() || !reflect.DeepEqual(g.Tags, req.Tags) {
		t.Errorf("grant %+v", g)
	}
	if id := g.Identity; id.Interface != "eth0" || id.LinkAddr.String() != "02:00:00:00:00:01" || fmt.Sprint(id.Addrs) != "[10.0.0.1/24]" ||
		id.MTU != 1500 || !id.PartialChecksums || id.Mode != "tcx" {
		t.Errorf("identity %+v", id)
	}

	// The descriptors are those of the provider, in order, with close-on-exec.
	if b, err := io.ReadAll(io.NewSectionReader(g.Segment, 0, 100)); err != nil || string(b) != "segment" {
		t.Errorf("segment has %q, %v", b, err)
	}
	if _, err := g.XSK.WriteString("x"); err != nil {
		t.Errorf("first descriptor is not the socket: %v", err)
	}
	for _, f := range []*os.File{g.XSK, g.Segment} {
		raw, err := f.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var fdFlags, flags int
		_ = raw.Control(func(fd uintptr) {
			fdFlags, _ = unix.FcntlInt(fd, unix.F_GETFD, 0)
			flags, _ = unix.FcntlInt(fd, unix.F_GETFL, 0)
		})
		if fdFlags&unix.FD_CLOEXEC == 0 || flags&unix.O_NONBLOCK != 0 {
			t.Errorf("%s: descriptor flags %#x, file flags %#x", f.Name(), fdFlags, flags)
		}
	}

	ctx := context.Background()
	tag, err := l.Claim(ctx, endpoint.UDPTag(netip.AddrPortFrom(localAddr, 0)))
	if err != nil || tag.Port != 40001 {
		t.Errorf("Claim: %v, %v", tag, err)
	}
	if _, err := l.Claim(ctx, tag); !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("second Claim: %v", err)
	}
	if err := l.Unclaim(ctx, tag); err != nil {
		t.Errorf("Unclaim: %v", err)
	}
	if err := l.Unclaim(ctx, tag); err == nil || err.Error() != "no such tag" {
		t.Errorf("second Unclaim: %v", err)
	}
	r, err := l.Resolve(ctx, netip.Addr{}, remoteAddr)
	if err != nil || r.NextHop != remoteAddr || r.Source != localAddr || r.MTU != 1500 || r.LinkAddr[5] != 2 {
		t.Errorf("Resolve: %+v, %v", r, err)
	}

	if err := l.Close(); err != nil {
		t.Error(err)
	}
	select { // the endpoint has been reclaimed when Close returns
	case <-p.closed:
	default:
		t.Error("Close returned before the lease was closed")
	}
	Await(t, "Done", l.Done())
	if _, err := l.Claim(ctx, tag); !errors.Is(err, endpoint.ErrLeaseClosed) {
		t.Errorf("Claim after Close: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	p.awaitGrantsClosed()
}

// The application gets the errors of the provider with their sentinels and texts.
func TestErrorsReachApplication(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p})
	_, l := mustOpen(t, socket, endpoint.Request{})
	for _, sentinel := range []error{
		endpoint.ErrTagHeld, endpoint.ErrTagDenied, endpoint.ErrTag, endpoint.ErrGeometry, endpoint.ErrUnreachable,
		endpoint.ErrLeaseClosed, endpoint.ErrHugePages, endpoint.ErrBusy, os.ErrPermission, errors.ErrUnsupported, endpoint.ErrNotPresentable, endpoint.ErrLeased,
	} {
		sent := fmt.Errorf("claim: %w: because", sentinel)
		if sentinel != endpoint.ErrLeaseClosed { // see TestRequestMeetsEndOfLease
			p.hook(hooks{claim: func(context.Context, endpoint.Tag) (endpoint.Tag, error) { return endpoint.Tag{}, sent }})
			_, err := l.Claim(context.Background(), endpoint.MessageTag(1))
			if !errors.Is(err, sentinel) || err.Error() != sent.Error() {
				t.Errorf("sent %v, got %v", sent, err)
			}
		}
		p.hook(hooks{open: func(context.Context, mux.Owner, endpoint.Request) error { return sent }})
		if _, _, err := control.Open(context.Background(), socket, endpoint.Request{}); !errors.Is(err, sentinel) ||
			!strings.Contains(err.Error(), sent.Error()) || !strings.Contains(err.Error(), socket) {
			t.Errorf("Open: sent %v, got %v", sent, err)
		}
	}
	p.hook(hooks{claim: func(context.Context, endpoint.Tag) (endpoint.Tag, error) {
		return endpoint.Tag{}, errors.Join(errors.New(strings.Repeat("é", 700)), unix.EIO)
	}})
	_, err := l.Claim(context.Background(), endpoint.MessageTag(1))
	var e *protocol.Error
	if !errors.As(err, &e) || e.Code != "internal" || e.Unwrap() != nil || len(e.Message) > protocol.MaxMessage+3 || strings.ContainsRune(e.Message, '\uFFFD') {
		t.Errorf("%#v", err)
	}
	p.hook(hooks{claim: func(context.Context, endpoint.Tag) (endpoint.Tag, error) {
		return endpoint.Tag{}, errors.Join(errors.New("one"), errors.New("two"))
	}})
	if _, err := l.Claim(context.Background(), endpoint.MessageTag(1)); err == nil || err.Error() != "one; two" {
		t.Errorf("%v", err)
	}
}

// Invalid arguments are errors, whether the application's side or unetd finds them, and do not end the lease.
func TestInvalidArguments(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p})
	_, l := mustOpen(t, socket, endpoint.Request{})
	ctx := context.Background()
	if _, err := l.Claim(ctx, endpoint.Tag{}); !errors.Is(err, endpoint.ErrTag) {
		t.Errorf("no tag: %v", err)
	}
	if _, err := l.Claim(ctx, endpoint.UDPTag(netip.AddrPort{})); !errors.Is(err, endpoint.ErrTag) {
		t.Errorf("tag without an address: %v", err)
	}
	if _, err := l.Resolve(ctx, netip.Addr{}, netip.Addr{}); !errors.Is(err, endpoint.ErrUnreachable) {
		t.Errorf("no address: %v", err)
	}
	if _, err := l.Resolve(ctx, netip.Addr{}, remoteAddr); err != nil {
		t.Errorf("the lease has ended: %v", err)
	}
	if _, _, err := control.Open(ctx, socket, endpoint.Request{Geometry: endpoint.Geometry{FrameSize: 3000}}); !errors.Is(err, endpoint.ErrGeometry) {
		t.Errorf("geometry: %v", err)
	}
	if _, _, err := control.Open(ctx, socket, endpoint.Request{Tags: make([]endpoint.Tag, 1)}); !errors.Is(err, endpoint.ErrTag) {
		t.Errorf("open with no tag: %v", err)
	}
	many := make([]endpoint.Tag, protocol.MaxTags+1)
	for i := range many {
		many[i] = endpoint.MessageTag(uint32(i))
	}
	if _, _, err := control.Open(ctx, socket, endpoint.Request{Tags: many}); !errors.Is(err, protocol.ErrProtocol) {
		t.Errorf("too many tags: %v", err)
	}
	g, _ := mustOpen(t, socket, endpoint.Request{Tags: many[:protocol.MaxTags]})
	if !slices.Equal(g.Tags, many[:protocol.MaxTags]) {
		t.Errorf("the tags of the grant are not the %d of the request, but %d: %v", protocol.MaxTags, len(g.Tags), g.Tags)
	}
}

// A child process inherits no descriptor of a lease, neither of the first connection nor of
// a later one.
func TestDescriptorsAreCloseOnExec(t *testing.T) {
	inherited := OpenDescriptors(t)
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	_, l := mustOpen(t, d.socket, endpoint.Request{})
	d.kill()
	d.start()
	if _, err := l.Resolve(context.Background(), netip.Addr{}, remoteAddr); err != nil {
		t.Fatal(err)
	}
	for _, open := range OpenDescriptors(t) {
		number, _, _ := strings.Cut(open, "=")
		fd, err := strconv.Atoi(number)
		if err != nil {
			t.Fatal(err)
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 && !slices.Contains(inherited, open) {
			t.Errorf("a child process would inherit descriptor %s", open)
		}
	}
}

// Each caller gets the answer to its request, in whatever order they come. Callers beyond the limit of requests wait.
func TestConcurrentRequests(t *testing.T) {
	p := newFakeProvider(t)
	release := make(chan struct{})
	inside := make(chan struct{}, 1000)
	p.hook(hooks{route: func(ctx context.Context, dst netip.Addr) (endpoint.Route, error) {
		inside <- struct{}{}
		<-release
		return endpoint.Route{NextHop: dst, Source: localAddr}, nil
	}})
	socket, _ := start(t, &Server{Provider: p})
	_, l := mustOpen(t, socket, endpoint.Request{})
	var wg sync.WaitGroup
	for i := range 3 * protocol.MaxRequests {
		wg.Go(func() {
			dst := netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})
			if r, err := l.Resolve(context.Background(), netip.Addr{}, dst); err != nil || r.NextHop != dst {
				t.Errorf("Resolve(%v): %+v, %v", dst, r, err)
			}
		})
	}
	for range protocol.MaxRequests - slotsForClaims {
		Await(t, "requests to arrive", inside)
	}
	close(release)
	wg.Wait()
}

// A caller that cancels its request returns. The lease goes on, and the late answer is discarded.
func TestCancelledRequestKeepsLease(t *testing.T) {
	p := newFakeProvider(t)
	inside, release := make(chan struct{}), make(chan struct{})
	p.hook(hooks{route: func(context.Context, netip.Addr) (endpoint.Route, error) {
		inside <- struct{}{}
		<-release
		return endpoint.Route{NextHop: remoteAddr}, nil
	}})
	socket, _ := start(t, &Server{Provider: p})
	_, l := mustOpen(t, socket, endpoint.Request{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := l.Resolve(ctx, netip.Addr{}, remoteAddr); !errors.Is(err, context.Canceled) {
			t.Errorf("Resolve: %v", err)
		}
	}()
	Await(t, "the request", inside)
	cancel()
	Await(t, "the caller", done)
	if _, err := l.Claim(context.Background(), endpoint.MessageTag(1)); err != nil {
		t.Errorf("Claim: %v", err)
	}
	close(release) // the late answer is read and discarded
	go func() { <-inside }()
	if r, err := l.Resolve(context.Background(), netip.Addr{}, remoteAddr); err != nil || r.NextHop != remoteAddr {
		t.Errorf("Resolve: %v, %v", r, err)
	}
	if _, err := l.Resolve(ctx, netip.Addr{}, remoteAddr); !errors.Is(err, context.Canceled) {
		t.Errorf("Resolve with a context that has ended: %v", err)
	}
}

// A claim that succeeds after its caller has returned is undone before the next claim.
func TestAbandonedClaimIsGivenBack(t *testing.T) {
	p := newFakeProvider(t)
	inside, release := make(chan struct{}), make(chan struct{})
	p.hook(hooks{claim: func(_ context.Context, t endpoint.Tag) (endpoint.Tag, error) {
		inside <- struct{}{}
		<-release
		return t, nil
	}})
	socket, _ := start(t, &Server{Provider: p})
	_, l := mustOpen(t, socket, endpoint.Request{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := l.Claim(ctx, endpoint.MessageTag(5)); !errors.Is(err, context.Canceled) {
			t.Errorf("Claim: %v", err)
		}
	}()
	Await(t, "the claim", inside)
	cancel()
	Await(t, "the caller", done)
	close(release)
	go func() { <-inside }()
	// fakeLease refuses a tag that is held, so this needs the unclaim.
	if _, err := l.Claim(context.Background(), endpoint.MessageTag(5)); err != nil {
		t.Errorf("Claim again: %v", err)
	}
}

// When unetd stops, requests in progress are cancelled and end with ErrLeaseClosed, the lease is closed, and the
// grant stays open.
func TestLeaseEndsWhenUnetdStops(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	inside := make(chan struct{}, 10)
	cancelled := make(chan struct{}, 10)
	p.hook(hooks{route: func(ctx context.Context, _ netip.Addr) (endpoint.Route, error) {
		inside <- struct{}{}
		<-ctx.Done()
		cancelled <- struct{}{}
		return endpoint.Route{}, ctx.Err()
	}})
	socket, stop := start(t, &Server{Provider: p})
	g, l := mustOpen(t, socket, endpoint.Request{})
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if _, err := l.Resolve(context.Background(), netip.Addr{}, remoteAddr); !errors.Is(err, endpoint.ErrLeaseClosed) {
				t.Errorf("pending: %v", err)
			}
		})
	}
	for range 5 {
		Await(t, "requests", inside)
	}
	stop()
	select {
	case <-p.closed:
	default:
		t.Error("Serve returned before the lease was closed")
	}
	for range 5 {
		Await(t, "cancellation", cancelled)
	}
	wg.Wait()
	Await(t, "Done", l.Done())
	if err := l.Unclaim(context.Background(), endpoint.MessageTag(1)); !errors.Is(err, endpoint.ErrLeaseClosed) || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("later: %v", err)
	}
	if err := l.Err(); !errors.Is(err, endpoint.ErrLeaseClosed) || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("Err: %v", err)
	}
	if _, err := g.XSK.WriteString("x"); err != nil {
		t.Errorf("the granted socket: %v", err)
	}
	l.Close()
	g.Close()
	p.awaitGrantsClosed()
	if _, _, err := control.Open(context.Background(), socket, endpoint.Request{}); err == nil || !strings.Contains(err.Error(), "unetd is not running at "+socket) {
		t.Errorf("Open: %v", err)
	}
}

// The endpoint of an Open that was cancelled is reclaimed.
func TestCancelledOpenIsReclaimed(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	inside := make(chan struct{})
	p.hook(hooks{open: func(ctx context.Context, _ mux.Owner, _ endpoint.Request) error {
		close(inside)
		<-ctx.Done() // the application's end closes the connection
		return nil   // too late for the provider to stop
	}})
	socket, _ := start(t, &Server{Provider: p})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-inside
		cancel()
	}()
	if _, _, err := control.Open(ctx, socket, endpoint.Request{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Open: %v", err)
	}
	p.awaitClosed()
	p.awaitGrantsClosed()
}
