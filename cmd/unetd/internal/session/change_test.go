//go:build linux

package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"github.com/unet-go/unet/endpoint"
	. "github.com/unet-go/unet/internal/protocoltest"
)

// A claim or an unclaim whose answer is lost takes effect exactly once, whether unetd died
// before it or after. A claimed wildcard returns the tag that the endpoint has got.
func TestChangesAcrossDeath(t *testing.T) {
	udp := endpoint.UDPTag(netip.AddrPortFrom(localAddr, 0))
	held := endpoint.UDPTag(netip.AddrPortFrom(localAddr, 40001))
	for _, acted := range []bool{false, true} {
		for _, c := range []struct {
			name    string
			tag     endpoint.Tag
			unclaim bool
			is      error // nil: success
			want    []endpoint.Tag
			gives   endpoint.Tag
		}{
			{name: "claim", tag: endpoint.MessageTag(9), gives: endpoint.MessageTag(9), want: []endpoint.Tag{endpoint.MessageTag(7), held, endpoint.MessageTag(9)}},
			{name: "claim any message tag", tag: endpoint.MessageTag(0), gives: endpoint.MessageTag(1000), want: []endpoint.Tag{endpoint.MessageTag(7), held, endpoint.MessageTag(1000)}},
			{name: "claim any port", tag: udp, gives: endpoint.UDPTag(netip.AddrPortFrom(localAddr, 40002)),
				want: []endpoint.Tag{endpoint.MessageTag(7), held, endpoint.UDPTag(netip.AddrPortFrom(localAddr, 40002))}},
			{name: "claim any block", tag: udp.AsBlock(), gives: endpoint.UDPTag(netip.AddrPortFrom(localAddr, 32768)).AsBlock(),
				want: []endpoint.Tag{endpoint.MessageTag(7), held, endpoint.UDPTag(netip.AddrPortFrom(localAddr, 32768)).AsBlock()}},
			{name: "claim what is held", tag: held, is: endpoint.ErrTagHeld, want: []endpoint.Tag{endpoint.MessageTag(7), held}},
			{name: "unclaim", tag: held, unclaim: true, gives: held, want: []endpoint.Tag{endpoint.MessageTag(7)}},
			{name: "unclaim what is not held", tag: endpoint.MessageTag(9), unclaim: true, is: errAny, want: []endpoint.Tag{endpoint.MessageTag(7), held}},
		} {
			t.Run(fmt.Sprintf("%s, acted=%v", c.name, acted), func(t *testing.T) {
				DescriptorLeaks(t)
				p := newFakeProvider(t)
				d := newDaemon(t, p)
				g, l := mustOpen(t, d.socket, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(7), held}})
				inside := make(chan struct{}, 1)
				stuck := func(ctx context.Context) error {
					inside <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				}
				switch {
				case acted && c.is == nil:
					p.hook(hooks{done: func(ctx context.Context) { _ = stuck(ctx) }})
				default: // before, or in place of the error
					p.hook(hooks{
						claim:   func(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) { return t, stuck(ctx) },
						unclaim: func(ctx context.Context, _ endpoint.Tag) error { return stuck(ctx) },
					})
				}
				type result struct {
					tag endpoint.Tag
					err error
				}
				results := make(chan result, 1)
				go func() {
					if c.unclaim {
						results <- result{c.tag, l.Unclaim(context.Background(), c.tag)}
					} else {
						tag, err := l.Claim(context.Background(), c.tag)
						results <- result{tag, err}
					}
				}()
				Await(t, "the request", inside)
				p.hook(hooks{})
				d.kill()
				select {
				case r := <-results:
					t.Fatalf("it did not wait for the next unetd: %+v", r)
				default:
				}
				d.start()
				r := <-results
				if c.is == nil && (r.err != nil || r.tag != c.gives) || c.is != nil && (r.err == nil || c.is != errAny && !errors.Is(r.err, c.is)) {
					t.Errorf("%+v, want %v, %v", r, c.gives, c.is)
				}
				want := make(map[endpoint.Tag]bool)
				for _, tag := range c.want {
					want[tag] = true
				}
				if got := p.tagsOf(1); !maps.Equal(got, want) {
					t.Errorf("tags %v, want %v", got, want)
				}
				l.Close()
				g.Close()
				d.stop()
				p.noCopies()
			})
		}
	}
}

var errAny = errors.New("any error")

// A claim that its caller has cancelled is undone before the next claim, also if its answer
// was lost.
func TestAbandonedClaimAcrossDeath(t *testing.T) {
	for _, acted := range []bool{false, true} {
		p := newFakeProvider(t)
		d := newDaemon(t, p)
		_, l := mustOpen(t, d.socket, endpoint.Request{})
		inside := make(chan struct{}, 1)
		stuck := func(ctx context.Context) error {
			inside <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}
		if acted {
			p.hook(hooks{done: func(ctx context.Context) { _ = stuck(ctx) }})
		} else {
			p.hook(hooks{claim: func(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) { return t, stuck(ctx) }})
		}
		ctx, cancel := context.WithCancel(context.Background())
		left := make(chan error, 1)
		go func() {
			_, err := l.Claim(ctx, endpoint.MessageTag(5))
			left <- err
		}()
		Await(t, "the claim", inside)
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("Claim: %v", err)
		}
		p.hook(hooks{})
		d.kill()
		d.start()
		if _, err := l.Claim(context.Background(), endpoint.MessageTag(6)); err != nil {
			t.Error(err)
		}
		if got := p.tagsOf(1); !maps.Equal(got, map[endpoint.Tag]bool{endpoint.MessageTag(6): true}) {
			t.Errorf("acted=%v: tags %v", acted, got)
		}
	}
}

// A claim of a tag that the endpoint has lost while there was no unetd is not answered with
// the old claim.
func TestClaimOfLostTag(t *testing.T) {
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	ctx := context.Background()
	tag := endpoint.MessageTag(7)
	_, l := mustOpen(t, d.socket, endpoint.Request{Tags: []endpoint.Tag{tag}})
	d.kill()
	p.mu.Lock()
	delete(p.endpoints[1].tags, tag)
	p.mu.Unlock()
	d.start()
	if _, err := l.Resolve(ctx, remoteAddr); err != nil {
		t.Fatal(err)
	}
	inside := make(chan struct{}, 1)
	p.hook(hooks{done: func(ctx context.Context) {
		inside <- struct{}{}
		<-ctx.Done()
	}})
	claimed := make(chan error, 1)
	go func() {
		_, err := l.Claim(ctx, tag)
		claimed <- err
	}()
	Await(t, "the claim", inside)
	p.hook(hooks{})
	d.kill()
	d.start()
	if err := <-claimed; err != nil {
		t.Errorf("Claim: %v", err)
	}
}
