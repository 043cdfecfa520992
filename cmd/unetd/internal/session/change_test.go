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

// A claim or an unclaim whose answer is lost takes effect exactly once, whether unetd was killed before or after
// it had taken effect. A claim of any port or message tag returns the tag that the endpoint has got.
func TestClaimsAcrossRestartOfUnetd(t *testing.T) {
	udp := endpoint.UDPTag(netip.AddrPortFrom(localAddr, 0))
	held := endpoint.UDPTag(netip.AddrPortFrom(localAddr, 40001))
	for _, applied := range []bool{false, true} { // before unetd is killed
		for _, c := range []struct {
			name    string
			tag     endpoint.Tag
			unclaim bool
			err     error          // nil: success
			want    []endpoint.Tag // of the endpoint at the end
			result  endpoint.Tag
		}{
			{name: "claim", tag: endpoint.MessageTag(9), result: endpoint.MessageTag(9), want: []endpoint.Tag{endpoint.MessageTag(7), held, endpoint.MessageTag(9)}},
			{name: "claim any message tag", tag: endpoint.MessageTag(0), result: endpoint.MessageTag(1000), want: []endpoint.Tag{endpoint.MessageTag(7), held, endpoint.MessageTag(1000)}},
			{name: "claim any port", tag: udp, result: endpoint.UDPTag(netip.AddrPortFrom(localAddr, 40002)),
				want: []endpoint.Tag{endpoint.MessageTag(7), held, endpoint.UDPTag(netip.AddrPortFrom(localAddr, 40002))}},
			{name: "claim any block", tag: udp.AsBlock(), result: endpoint.UDPTag(netip.AddrPortFrom(localAddr, 32768)).AsBlock(),
				want: []endpoint.Tag{endpoint.MessageTag(7), held, endpoint.UDPTag(netip.AddrPortFrom(localAddr, 32768)).AsBlock()}},
			{name: "claim what is held", tag: held, err: endpoint.ErrTagHeld, want: []endpoint.Tag{endpoint.MessageTag(7), held}},
			{name: "unclaim", tag: held, unclaim: true, result: held, want: []endpoint.Tag{endpoint.MessageTag(7)}},
			{name: "unclaim what is not held", tag: endpoint.MessageTag(9), unclaim: true, err: errAny, want: []endpoint.Tag{endpoint.MessageTag(7), held}},
		} {
			t.Run(fmt.Sprintf("%s, applied=%v", c.name, applied), func(t *testing.T) {
				DescriptorLeaks(t)
				p := newFakeProvider(t)
				d := newDaemon(t, p)
				g, l := mustOpen(t, d.socket, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(7), held}})
				inside := make(chan struct{}, 1)
				block := blockUntilCancelled(inside)
				switch {
				case applied && c.err == nil:
					p.hook(hooks{done: func(ctx context.Context) { _ = block(ctx) }})
				default: // before the call takes effect, or in place of the error
					p.hook(hooks{
						claim:   func(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) { return t, block(ctx) },
						unclaim: func(ctx context.Context, _ endpoint.Tag) error { return block(ctx) },
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
					t.Fatalf("the call did not wait for the next unetd: %+v", r)
				default:
				}
				d.start()
				r := <-results
				if c.err == nil && (r.err != nil || r.tag != c.result) || c.err != nil && (r.err == nil || c.err != errAny && !errors.Is(r.err, c.err)) {
					t.Errorf("%+v, want %v, %v", r, c.result, c.err)
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
				p.awaitGrantsClosed()
			})
		}
	}
}

// errAny stands for any error.
var errAny = errors.New("any error")

// blockUntilCancelled returns a function for hooks that sends on inside and waits until the request is cancelled.
func blockUntilCancelled(inside chan<- struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		inside <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
}

// A claim that its caller has cancelled is undone before the next claim, also if its answer
// was lost.
func TestCancelledClaimAcrossRestartOfUnetd(t *testing.T) {
	for _, applied := range []bool{false, true} { // before unetd is killed
		p := newFakeProvider(t)
		d := newDaemon(t, p)
		_, l := mustOpen(t, d.socket, endpoint.Request{})
		inside := make(chan struct{}, 1)
		block := blockUntilCancelled(inside)
		if applied {
			p.hook(hooks{done: func(ctx context.Context) { _ = block(ctx) }})
		} else {
			p.hook(hooks{claim: func(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) { return t, block(ctx) }})
		}
		ctx, cancel := context.WithCancel(context.Background())
		returned := make(chan error, 1)
		go func() {
			_, err := l.Claim(ctx, endpoint.MessageTag(5))
			returned <- err
		}()
		Await(t, "the claim", inside)
		cancel()
		if err := <-returned; !errors.Is(err, context.Canceled) {
			t.Errorf("Claim: %v", err)
		}
		p.hook(hooks{})
		d.kill()
		d.start()
		if _, err := l.Claim(context.Background(), endpoint.MessageTag(6)); err != nil {
			t.Error(err)
		}
		if got := p.tagsOf(1); !maps.Equal(got, map[endpoint.Tag]bool{endpoint.MessageTag(6): true}) {
			t.Errorf("applied=%v: tags %v", applied, got)
		}
	}
}

// The endpoint has lost a tag while there was no unetd. A later claim of this tag is made again by the next unetd
// if its answer is lost, and succeeds.
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
	if _, err := l.Resolve(ctx, netip.Addr{}, remoteAddr); err != nil {
		t.Fatal(err)
	}
	inside := make(chan struct{}, 1)
	block := blockUntilCancelled(inside)
	p.hook(hooks{done: func(ctx context.Context) { _ = block(ctx) }})
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
