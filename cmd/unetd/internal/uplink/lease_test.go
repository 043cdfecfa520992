package uplink

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/nat"
	"github.com/unet-go/unet/mux"
)

// fakeMux is a mux's lease: it holds tags, chooses as a mux does, and can be made
// to choose badly.
type fakeMux struct {
	endpoint.Lease // nothing but the methods below is called
	held           map[endpoint.Tag]bool
	addr           netip.Addr // for a wildcard
	port           uint16     // for another
	asked          []string
	entered        []endpoint.Tag // whatever was held, if only for a moment
	err            error
	onClaim        func()
}

// standsFor is the mux's method WildcardAddr.
func (f *fakeMux) standsFor(wildcard netip.Addr) (netip.Addr, error) {
	if wildcard.IsValid() && wildcard.Is4() != f.addr.Is4() {
		return netip.Addr{}, fmt.Errorf("%w: no address", endpoint.ErrTagDenied)
	}
	return f.addr, nil
}

func (f *fakeMux) Claim(_ context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	f.asked = append(f.asked, t.String())
	if anyAddr(t) && hasPorts(t) {
		t.Addr = f.addr
	}
	if hasPorts(t) && t.Port == 0 {
		t.Port = f.port
	}
	if t.Kind == endpoint.TagMessage && t.Message == 0 {
		t.Message = uint32(f.port)
	}
	switch {
	case f.err != nil:
		return t, f.err
	case f.held[t]:
		return t, fmt.Errorf("%w: %v", endpoint.ErrTagHeld, t)
	}
	f.held[t] = true
	f.entered = append(f.entered, t)
	if f.onClaim != nil {
		f.onClaim()
	}
	return t, nil
}

func (f *fakeMux) Unclaim(ctx context.Context, t endpoint.Tag) error {
	f.asked = append(f.asked, "-"+t.String())
	if err := ctx.Err(); err != nil {
		return err
	}
	if !f.held[t] {
		return endpoint.ErrTagDenied
	}
	delete(f.held, t)
	return nil
}

func (f *fakeMux) Resolve(context.Context, netip.Addr) (endpoint.Route, error) {
	return endpoint.Route{}, f.err
}

// leased is a lease of uid 1001 under a policy with these tags.
func leased(t *testing.T, patterns string) (*lease, *fakeMux) {
	t.Helper()
	u := under(t, "rules: [{name: r, users: [1001], endpoints: 1, memory: 1MiB, tags: ["+patterns+"]}]")
	f := &fakeMux{held: map[endpoint.Tag]bool{}, addr: netip.MustParseAddr("10.0.0.1"), port: 40000}
	l := newLease(u, control.Peer{UID: 1001, GID: 77})
	l.standsFor, l.translation = f.standsFor, func(netip.Addr) (*nat.Ports, error) { return nil, nil }
	l.hold(f, nil)
	return l, f
}

// Where the rule permits whatever there is to choose, the mux chooses. Otherwise
// it is asked for what the rule permits, until something is free.
func TestChoose(t *testing.T) {
	ctx := context.Background()
	l, f := leased(t, `"udp:*:*", "msg:*"`)
	for text, want := range map[string]string{"udp:10.0.0.1:0": "udp:10.0.0.1:40000", "msg:0": "msg:40000"} {
		if got, err := l.Claim(ctx, tag(t, text)); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	if fmt.Sprint(f.asked) != "[udp:10.0.0.1:0 msg:0]" && fmt.Sprint(f.asked) != "[msg:0 udp:10.0.0.1:0]" {
		t.Errorf("%v", f.asked)
	}

	l, _ = leased(t, `"udp:*:7000-7003", "msg:5-7", "tcp:*:6400-6600"`)
	for want := range 4 { // each once
		if got, err := l.Claim(ctx, tag(t, "udp:10.0.0.1:0")); err != nil || got.Port < 7000 || got.Port > 7003 {
			t.Errorf("claim %d: %v, %v", want, got, err)
		}
	}
	_, err := l.Claim(ctx, tag(t, "udp:10.0.0.1:0"))
	if !errors.Is(err, endpoint.ErrTagHeld) || !strings.Contains(err.Error(), "udp:10.0.0.1:0: all that rule r of ") {
		t.Errorf("when all are held: %v", err)
	}
	if got, err := l.Claim(ctx, tag(t, "msg:0")); err != nil || got.Message < 5 || got.Message > 7 {
		t.Errorf("%v, %v", got, err)
	}
	var blocks []string
	for range 3 {
		got, err := l.Claim(ctx, tag(t, "tcp:10.0.0.1:0-63"))
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, got.String())
	}
	slices.Sort(blocks)
	if fmt.Sprint(blocks) != "[tcp:10.0.0.1:6400-6463 tcp:10.0.0.1:6464-6527 tcp:10.0.0.1:6528-6591]" {
		t.Errorf("%v", blocks)
	}
	// What others hold is asked about, and not for ever.
	l, f = leased(t, `"msg:1-1000"`)
	for n := range uint32(1001) {
		f.held[endpoint.MessageTag(n)] = n != 500
	}
	l.held[endpoint.MessageTag(7)] = true
	if _, err := l.Claim(ctx, tag(t, "msg:0")); err != nil && (!errors.Is(err, endpoint.ErrTagHeld) || !strings.Contains(err.Error(), "msg:0: 256 that rule r of ") || len(f.asked) != maxTries || slices.Contains(f.asked, "msg:7")) {
		t.Errorf("%v after %d", err, len(f.asked))
	}
	// Any other error ends the search.
	f.err = mux.ErrTableFull
	f.asked = nil
	if _, err := l.Claim(ctx, tag(t, "msg:0")); !errors.Is(err, control.ErrBusy) || len(f.asked) != 1 {
		t.Errorf("%v after %v", err, f.asked)
	}
}

// The rule is asked about the address that a wildcard stands for, and the mux gets
// that address by its name.
func TestWildcardAddress(t *testing.T) {
	ctx := context.Background()
	l, f := leased(t, `"udp:10.0.0.1:7000", "udp:10.0.0.2:*", "udp:10.0.0.5:53"`)
	got, err := l.Claim(ctx, tag(t, "udp:0.0.0.0:0"))
	if err != nil || got.String() != "udp:10.0.0.1:7000" {
		t.Errorf("%v, %v", got, err)
	}
	f.addr = netip.MustParseAddr("10.0.0.2")
	if got, err = l.Claim(ctx, endpoint.Tag{Kind: endpoint.TagUDP}); err != nil || got.String() != "udp:10.0.0.2:40000" {
		t.Errorf("of either family: %v, %v", got, err)
	}
	if got, err = l.Claim(ctx, tag(t, "udp:0.0.0.0:7000")); err != nil || got.String() != "udp:10.0.0.2:7000" {
		t.Errorf("a port by its number: %v, %v", got, err)
	}
	if fmt.Sprint(f.asked) != "[udp:10.0.0.1:7000 udp:10.0.0.2:0 udp:10.0.0.2:7000]" {
		t.Errorf("%v", f.asked)
	}
	if _, err = l.Claim(ctx, tag(t, "udp:[::]:7000")); !errors.Is(err, endpoint.ErrTagDenied) || !strings.Contains(err.Error(), "udp:[::]:7000: ") {
		t.Errorf("where there is no such address: %v", err)
	}
}

// What a wildcard stands for and the rule does not permit is never held, not even
// for a moment, however the wildcard is written.
func TestWildcardNeverEntersForbidden(t *testing.T) {
	ctx := context.Background()
	l, f := leased(t, `"udp:10.0.0.5:53", "udp:10.0.0.5:*", "tcp:10.0.0.4/30:7000-7003"`)
	mapped := netip.AddrFrom16(netip.IPv4Unspecified().As16())
	for range 50 {
		for _, wildcard := range []endpoint.Tag{
			tag(t, "udp:0.0.0.0:53"), tag(t, "udp:0.0.0.0:0"), tag(t, "udp:0.0.0.0:0-63"), tag(t, "udp:0.0.0.0:6400-6463"),
			tag(t, "tcp:0.0.0.0:7000"), tag(t, "tcp:0.0.0.0:0"),
			{Kind: endpoint.TagUDP, Port: 53}, {Kind: endpoint.TagUDP},
			{Kind: endpoint.TagUDP, Addr: mapped, Port: 53}, {Kind: endpoint.TagTCP, Addr: mapped},
		} {
			_, err := l.Claim(ctx, wildcard)
			if !errors.Is(err, endpoint.ErrTagDenied) || !strings.Contains(err.Error(), ":10.0.0.1:") || !strings.Contains(err.Error(), "rule r of ") {
				t.Fatalf("%v: %v", wildcard, err)
			}
		}
	}
	if len(f.asked) != 0 || len(f.entered) != 0 {
		t.Errorf("asked for %v, which held %v", f.asked, f.entered)
	}
	f.addr = netip.MustParseAddr("10.0.0.5")
	if got, err := l.Claim(ctx, tag(t, "udp:0.0.0.0:53")); err != nil || got.String() != "udp:10.0.0.5:53" {
		t.Errorf("%v, %v", got, err)
	}
	for range 4 {
		if _, err := l.Claim(ctx, endpoint.Tag{Kind: endpoint.TagTCP, Addr: mapped}); err != nil {
			t.Error(err)
		}
	}
	rule, _ := l.u.rule(l.peer)
	for _, e := range f.entered {
		if !rule.Permits(e, policy.Floor(1001)) {
			t.Errorf("%v was held", e)
		}
	}
}

// A choice outside the rule is given back, also when the application has gone
// meanwhile.
func TestChoiceOutsideRuleIsGivenBack(t *testing.T) {
	if policy.FirstUnprivileged() == 1 {
		t.Skip("this system keeps no ports for root")
	}
	l, f := leased(t, `"udp:*:*"`)
	f.port = 1
	ctx, cancel := context.WithCancel(context.Background())
	f.onClaim = cancel
	if _, err := l.Claim(ctx, tag(t, "udp:10.0.0.1:0")); !errors.Is(err, endpoint.ErrTagDenied) || len(f.held) != 0 || len(l.held) != 0 {
		t.Errorf("%v, held %v", err, f.held)
	}
}

// Who holds a whole address has all of its ports, as long as it does.
func TestPortsOfWholeAddress(t *testing.T) {
	ctx := context.Background()
	l, f := leased(t, `"addr:10.0.0.128/25", "udp:10.0.0.1:7000"`)
	port, anyPort := tag(t, "tcp:10.0.0.130:80"), tag(t, "udp:10.0.0.130:0")
	for _, p := range []endpoint.Tag{port, anyPort} {
		if _, err := l.Claim(ctx, p); !errors.Is(err, endpoint.ErrTagDenied) {
			t.Errorf("%v without the address: %v", p, err)
		}
	}
	whole := tag(t, "addr:10.0.0.130")
	if _, err := l.Claim(ctx, whole); err != nil {
		t.Fatal(err)
	}
	for _, p := range []endpoint.Tag{port, anyPort} {
		got, err := l.Claim(ctx, p)
		if err != nil {
			t.Errorf("%v on the address: %v", p, err)
		}
		if err := l.Unclaim(ctx, got); err != nil {
			t.Error(err)
		}
	}
	if err := l.Unclaim(ctx, whole); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Claim(ctx, port); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("after the address was given back: %v", err)
	}
	// In a request to open they stand beside the address.
	if err := newLease(l.u, l.peer).allow(port, port, whole); err != nil {
		t.Errorf("beside the address: %v", err)
	}
	// An endpoint that is presented brings its addresses with it.
	again := newLease(l.u, l.peer)
	again.hold(f, []endpoint.Tag{whole})
	if _, err := again.Claim(ctx, port); err != nil {
		t.Errorf("after present: %v", err)
	}
}

// A rule that is gone since the endpoint was opened permits no more tags, and
// takes none away.
func TestClaimAfterReload(t *testing.T) {
	l, _ := leased(t, `"msg:*"`)
	one := tag(t, "msg:1")
	if _, err := l.Claim(context.Background(), one); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.u.policy.Policy().File, []byte("rules: []"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.u.policy.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Claim(context.Background(), tag(t, "msg:2")); !errors.Is(err, endpoint.ErrTagDenied) || !strings.Contains(err.Error(), "msg:2: no rule of ") {
		t.Errorf("%v", err)
	}
	if err := l.Unclaim(context.Background(), one); err != nil {
		t.Errorf("%v", err)
	}
}

// Also what comes after the open has codes, and ends with its context.
func TestErrorsOfLease(t *testing.T) {
	ctx := context.Background()
	l, f := leased(t, `"msg:*"`)
	f.err = unix.EMFILE
	if _, err := l.Claim(ctx, tag(t, "msg:1")); !errors.Is(err, control.ErrBusy) {
		t.Errorf("Claim: %v", err)
	}
	if _, err := l.Resolve(ctx, netip.Addr{}); !errors.Is(err, control.ErrBusy) {
		t.Errorf("Resolve: %v", err)
	}
	l.turn <- struct{}{}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := l.Claim(ended, tag(t, "msg:1")); !errors.Is(err, context.Canceled) {
		t.Errorf("Claim: %v", err)
	}
	if err := l.Unclaim(ended, tag(t, "msg:1")); !errors.Is(err, context.Canceled) {
		t.Errorf("Unclaim: %v", err)
	}
}
