//go:build linux

package session

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
)

// Resolve asks again while unetd answers that it is busy, until it is cancelled or the lease is closed.
func TestResolveWhileBusy(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p})
	_, l := mustOpen(t, socket, endpoint.Request{})
	var tries atomic.Int32
	p.hook(hooks{route: func(_ context.Context, dst netip.Addr) (endpoint.Route, error) {
		if tries.Add(1) < 4 {
			return endpoint.Route{}, protocol.Busy("many others resolve")
		}
		return endpoint.Route{NextHop: dst}, nil
	}})
	r, err := l.Resolve(context.Background(), netip.Addr{}, remoteAddr)
	if err != nil || r.NextHop != remoteAddr || tries.Load() != 4 {
		t.Errorf("Resolve: %v, %v after %d requests", r, err, tries.Load())
	}

	asked := make(chan struct{}, 1)
	p.hook(hooks{route: func(context.Context, netip.Addr) (endpoint.Route, error) {
		select {
		case asked <- struct{}{}:
		default:
		}
		return endpoint.Route{}, protocol.Busy("many others resolve")
	}})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-asked
		cancel()
	}()
	if _, err := l.Resolve(ctx, netip.Addr{}, remoteAddr); !errors.Is(err, context.Canceled) {
		t.Errorf("Resolve that was cancelled: %v", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := l.Resolve(context.Background(), netip.Addr{}, remoteAddr); !errors.Is(err, endpoint.ErrLeaseClosed) {
			t.Errorf("Resolve of a lease that is closed meanwhile: %v", err)
		}
	}()
	<-asked
	l.Close()
	Await(t, "the end of Resolve", ended)
}

// A claim does not wait for resolves that are not answered: some of the requests in progress cannot be resolves.
func TestClaimWhileResolvesWait(t *testing.T) {
	p := newFakeProvider(t)
	inside := make(chan struct{}, 2*protocol.MaxRequests)
	p.hook(hooks{route: func(ctx context.Context, _ netip.Addr) (endpoint.Route, error) {
		inside <- struct{}{}
		<-ctx.Done()
		return endpoint.Route{}, context.Cause(ctx)
	}})
	socket, _ := start(t, &Server{Provider: p})
	_, l := mustOpen(t, socket, endpoint.Request{})
	ctx, cancel := context.WithCancel(context.Background())
	var callers sync.WaitGroup
	for range 2 * protocol.MaxRequests {
		callers.Go(func() {
			if _, err := l.Resolve(ctx, netip.Addr{}, remoteAddr); !errors.Is(err, context.Canceled) {
				t.Errorf("Resolve: %v", err)
			}
		})
	}
	for range protocol.MaxRequests - slotsForClaims {
		Await(t, "a resolve", inside)
	}
	tag, err := l.Claim(context.Background(), endpoint.MessageTag(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unclaim(context.Background(), tag); err != nil {
		t.Fatal(err)
	}
	if len(inside) != 0 {
		t.Errorf("%d more resolves in progress than %d", len(inside), protocol.MaxRequests-slotsForClaims)
	}
	cancel()
	callers.Wait()
}
