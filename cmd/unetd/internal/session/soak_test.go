//go:build linux

package session

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	. "github.com/unet-go/unet/internal/protocoltest"
)

// unetd is killed and started again 200 times during the calls of three applications, which cancel some of their
// calls. At the end each endpoint has exactly the tags that its application has claimed.
func TestRestartsOfUnetdDuringCalls(t *testing.T) {
	const restarts, applications, workers = 200, 3, 4
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	var progress atomic.Uint64 // calls that have ended, or are in a hook that waits for unetd's end

	// One call in eight waits for the end of unetd, before it has had its effect or after.
	maybeBlock := func(ctx context.Context) error {
		if rand.IntN(8) == 0 {
			progress.Add(1)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	p.hook(hooks{
		claim:   func(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) { return t, maybeBlock(ctx) },
		unclaim: func(ctx context.Context, _ endpoint.Tag) error { return maybeBlock(ctx) },
		done:    func(ctx context.Context) { _ = maybeBlock(ctx) },
		route: func(ctx context.Context, dst netip.Addr) (endpoint.Route, error) {
			return endpoint.Route{NextHop: dst}, maybeBlock(ctx)
		},
	})

	var wg sync.WaitGroup
	stop, cancel := context.WithCancel(context.Background())
	defer cancel()
	leases := make([]*control.Lease, applications)
	models := make([][]map[endpoint.Tag]bool, applications)
	for a := range leases {
		g, l := mustOpen(t, d.socket, endpoint.Request{})
		g.Close()
		leases[a] = l
		for w := range workers {
			model := make(map[endpoint.Tag]bool)
			models[a] = append(models[a], model)
			wg.Go(func() {
				for stop.Err() == nil {
					makeCall(t, l, model, uint32(1+w))
					progress.Add(1)
				}
			})
		}
		(&noticeLog{}).collect(t, l)
	}
	var before uint64
	for i := range restarts {
		// unetd is killed during calls, before all leases have been presented, or when all
		// calls in progress wait for its end.
		target := progress.Load() + uint64(i%20)
		for idle := 0; progress.Load() < target && idle < 50; time.Sleep(200 * time.Microsecond) {
			if idle++; progress.Load() != before {
				before, idle = progress.Load(), 0
			}
			for a, l := range leases {
				if l.Err() != nil {
					t.Fatalf("the lease of application %d ended before restart %d: %v", a, i, l.Err())
				}
			}
		}
		d.kill()
		if i == restarts-1 {
			p.hook(hooks{})
			cancel()
		}
		d.start()
	}
	wg.Wait()
	held := make([]map[endpoint.Tag]bool, applications)
	for a, l := range leases {
		// A cancelled call may still be in progress. Calls are made one at a time, so this one
		// waits for it.
		if err := l.Unclaim(context.Background(), endpoint.MessageTag(1<<31)); err == nil || errors.Is(err, endpoint.ErrLeaseClosed) {
			t.Errorf("application %d: %v", a, err)
		}
		want := make(map[endpoint.Tag]bool)
		for _, model := range models[a] {
			maps.Copy(want, model)
		}
		if got := p.tagsOf(uint64(a + 1)); !maps.Equal(got, want) {
			t.Errorf("application %d has %d tags, has claimed %d: %v, %v", a, len(got), len(want), got, want)
		}
		held[a] = want
	}
	// A claim whose request is lost is made again, and does not return a tag that is held already.
	for _, tag := range []endpoint.Tag{endpoint.MessageTag(0), endpoint.UDPTag(netip.AddrPortFrom(localAddr, 0))} {
		lost, done := make(chan struct{}, applications), make(chan struct{}, applications)
		p.hook(hooks{claim: func(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
			lost <- struct{}{}
			<-ctx.Done()
			return t, ctx.Err()
		}})
		for a, l := range leases {
			go func() {
				got, err := l.Claim(context.Background(), tag)
				if err != nil || held[a][got] || !fits(got, tag) {
					t.Errorf("application %d: claim of %v: %v, %v", a, tag, got, err)
				}
				done <- struct{}{}
			}()
		}
		for range leases {
			Await(t, "a claim", lost)
		}
		p.hook(hooks{})
		d.kill()
		d.start()
		for range leases {
			Await(t, "the end of a claim", done)
		}
	}
	for _, l := range leases {
		l.Close()
	}
	d.stop()
	p.awaitGrantsClosed()
}

// makeCall makes one random call. model are the tags that this worker holds. worker is in the message tags that only
// this worker claims.
func makeCall(t *testing.T, l *control.Lease, model map[endpoint.Tag]bool, worker uint32) {
	ctx, cancel := context.Background(), func() {}
	if rand.IntN(4) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(3000))*time.Microsecond)
	}
	defer cancel()
	timedOut := func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }
	switch choice := rand.IntN(8); {
	case choice < 2:
		dst := netip.AddrFrom4([4]byte{10, 0, 0, byte(rand.IntN(256))})
		if r, err := l.Resolve(ctx, netip.Addr{}, dst); !timedOut(err) && (err != nil || r.NextHop != dst) {
			t.Errorf("Resolve: %+v, %v", r, err)
		}
	case choice < 5 && len(model) < 20:
		tag := endpoint.MessageTag(worker<<24 + rand.Uint32N(30))
		switch rand.IntN(4) {
		case 0:
			tag = endpoint.MessageTag(0)
		case 1:
			tag = endpoint.UDPTag(netip.AddrPortFrom(localAddr, 0))
		}
		got, err := l.Claim(ctx, tag)
		switch {
		case err == nil && (model[got] || !fits(got, tag)):
			t.Errorf("Claim(%v): %v", tag, got)
		case err == nil:
			model[got] = true
		case errors.Is(err, endpoint.ErrTagHeld) && model[tag], timedOut(err):
		default:
			t.Errorf("Claim(%v): %v", tag, err)
		}
	case len(model) > 0:
		held := slices.Collect(maps.Keys(model))
		tag := held[rand.IntN(len(held))]
		if tag.Kind != endpoint.TagMessage || tag.Message>>24 != worker {
			// Another worker may get it as soon as it is free, so this one does not repeat
			// a call that it has cancelled.
			ctx = context.Background()
		}
		err := l.Unclaim(ctx, tag)
		if timedOut(err) { // the call may have taken effect, or take effect later
			if err = l.Unclaim(context.Background(), tag); err != nil && err.Error() == "no such tag" {
				err = nil
			}
		}
		if err != nil {
			t.Errorf("Unclaim(%v): %v", tag, err)
		}
		delete(model, tag)
	}
}

// fits reports whether a claim of a tag or wildcard can return got.
func fits(got, claimed endpoint.Tag) bool {
	if claimed.Kind == endpoint.TagMessage {
		return got == claimed || claimed.Message == 0 && got.Kind == claimed.Kind
	}
	return got.Kind == claimed.Kind && got.Addr == claimed.Addr && got.Port != 0
}
