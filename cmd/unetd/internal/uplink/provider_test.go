package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// under is an uplink eth0 without a mux, and with a policy; "" is the built-in one.
func under(t *testing.T, text string) *Uplink {
	t.Helper()
	file := ""
	if text != "" {
		file = filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := policy.OpenSource(file, filepath.Join(t.TempDir(), "none"), policy.SystemNames(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return &Uplink{name: "eth0", policy: s}
}

func tag(t *testing.T, text string) endpoint.Tag {
	t.Helper()
	parsed, err := endpoint.ParseTag(text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

const users = `
rules:
  - name: web
    users: [1001]
    interfaces: [eth0]
    tags: ["udp:*:7000-7003", "tcp:10.0.0.1:*", "udp:*:*", "addr:10.0.0.128/25", "msg:1-3"]
    endpoints: 1
    memory: 1MiB
  - {name: watcher, users: [1002], operator: true}
  - {name: elsewhere, users: [1003], interfaces: [eth1], tags: ["msg:*"], endpoints: 1, memory: 1MiB}
`

// What the policy is against is refused before the mux is asked (there is none),
// and the answer says by which rule and what to do.
func TestRefusals(t *testing.T) {
	u, builtIn := under(t, users), under(t, "")
	file := u.policy.Policy().File
	first := policy.FirstUnprivileged()
	for _, c := range []struct {
		u    *Uplink
		uid  uint32
		req  endpoint.Request
		is   error
		want string
	}{
		{builtIn, 1001, endpoint.Request{}, os.ErrPermission, "permission denied: uid 1001 on eth0: without a policy file only uid 0 gets endpoints: ask an operator to write /etc/unet/policy.yaml and to reload unetd"},
		{u, 0, endpoint.Request{}, os.ErrPermission, "permission denied: no rule of " + file + " is for uid 0 on eth0: ask an operator to add one and to reload unetd"},
		{u, 1003, endpoint.Request{}, os.ErrPermission, "permission denied: no rule of " + file + " is for uid 1003 on eth0: ask an operator to add one and to reload unetd"},
		{u, 1002, endpoint.Request{}, os.ErrPermission, "permission denied: rule watcher of " + file + " gives uid 1002 no endpoints on eth0"},
		{u, 1001, endpoint.Request{Attach: endpoint.AttachQueue}, os.ErrPermission, "permission denied: rule web of " + file + " gives uid 1001 no queues of eth0: attach to a port, or ask an operator for trusted: true"},
		{u, 1001, endpoint.Request{Tags: []endpoint.Tag{tag(t, "msg:1"), tag(t, "msg:4")}}, endpoint.ErrTagDenied,
			"tag not allowed: msg:4: rule web of " + file + " does not permit it to uid 1001: ask an operator to add it to the tags of the rule"},
		{u, 1001, endpoint.Request{Tags: []endpoint.Tag{tag(t, "tcp:10.0.0.2:0")}}, endpoint.ErrTagDenied,
			"tag not allowed: tcp:10.0.0.2:0: rule web of " + file + " does not permit it to uid 1001: ask an operator to add it to the tags of the rule"},
		{u, 1001, endpoint.Request{Geometry: endpoint.Geometry{FrameCount: 1}}, endpoint.ErrGeometry, "unusable segment geometry: 1 frames: want at least 16"},
		{u, 1001, endpoint.Request{}, control.ErrBusy, "busy: uid 1001 has 0 of at most 1MiB of memory in segments (rule web of " + file +
			") and asks for 8MiB; that of an endpoint that was closed counts until it is unmapped: end one, ask for less, or ask an operator for more"},
		{u, 1001, endpoint.Request{Tags: []endpoint.Tag{tag(t, fmt.Sprintf("udp:10.0.0.1:%d", first-1))}}, endpoint.ErrTagDenied,
			fmt.Sprintf("tag not allowed: udp:10.0.0.1:%d: rule web of %s does not permit it to uid 1001: its port * does not stand for ports below %d: ask an operator to name the port in the rule", first-1, file, first)},
	} {
		if first == 1 && strings.Contains(c.want, "its port *") {
			continue // this system keeps no ports for root
		}
		_, _, err := c.u.OpenEndpoint(context.Background(), control.Peer{UID: c.uid, GID: 77}, c.req)
		if !errors.Is(err, c.is) || err.Error() != c.want {
			t.Errorf("uid %d, %+v:\n got %v\nwant %s", c.uid, c.req, err, c.want)
		}
	}
}

func TestWhoMayAsk(t *testing.T) {
	u := under(t, users)
	for uid, may := range map[uint32]bool{0: true, uint32(os.Geteuid()): true, 1001: false, 1002: true, 1003: false} {
		err := u.mayAsk(control.Peer{UID: uid, GID: 77})
		if (err == nil) != may || err != nil && !errors.Is(err, os.ErrPermission) {
			t.Errorf("uid %d: %v", uid, err)
		}
	}
	if _, err := u.Endpoints(control.Peer{UID: 1001}); !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "operator: true") {
		t.Errorf("Endpoints: %v", err)
	}
	if _, err := u.Counters(control.Peer{UID: 1001}); !errors.Is(err, os.ErrPermission) {
		t.Errorf("Counters: %v", err)
	}
}

// fakeMux is a mux's lease: it holds tags, chooses as a mux does, and can be made
// to choose badly.
type fakeMux struct {
	endpoint.Lease // nothing but the methods below is called
	held           map[endpoint.Tag]bool
	addr           netip.Addr // for a wildcard
	port           uint16     // for another
	asked          []string
	err            error
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
	return t, nil
}

func (f *fakeMux) Unclaim(_ context.Context, t endpoint.Tag) error {
	f.asked = append(f.asked, "-"+t.String())
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

// The mux chooses the address, so the rule is asked again about its choice.
func TestWildcardAddress(t *testing.T) {
	ctx := context.Background()
	l, f := leased(t, `"udp:10.0.0.1:7000", "udp:10.0.0.2:*"`)
	got, err := l.Claim(ctx, tag(t, "udp:0.0.0.0:0"))
	if err != nil || got.String() != "udp:10.0.0.1:7000" {
		t.Errorf("%v, %v", got, err)
	}
	if len(f.held) != 1 {
		t.Errorf("held: %v after %v", f.held, f.asked)
	}
	f.addr = netip.MustParseAddr("10.0.0.3")
	_, err = l.Claim(ctx, tag(t, "udp:0.0.0.0:0"))
	if !errors.Is(err, endpoint.ErrTagDenied) || !strings.Contains(err.Error(), "udp:10.0.0.3:0: rule r of ") || len(f.held) != 1 {
		t.Errorf("%v, held %v", err, f.held)
	}
	// By its number, the port alone is not the question either.
	_, err = l.Claim(ctx, tag(t, "udp:0.0.0.0:7000"))
	if !errors.Is(err, endpoint.ErrTagDenied) || len(f.held) != 1 {
		t.Errorf("%v, held %v", err, f.held)
	}
	if _, err = l.Claim(ctx, tag(t, "udp:[::]:7000")); !errors.Is(err, endpoint.ErrTagDenied) || !strings.Contains(err.Error(), "udp:[::]:7000: rule r of ") {
		t.Errorf("%v", err)
	}
	// A choice outside the rule is given back, whatever made the mux choose so.
	l, f = leased(t, `"udp:*:*"`)
	f.port = 1
	if policy.FirstUnprivileged() > 1 {
		if _, err = l.Claim(ctx, tag(t, "udp:10.0.0.1:0")); !errors.Is(err, endpoint.ErrTagDenied) || len(f.held) != 0 {
			t.Errorf("%v, held %v", err, f.held)
		}
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
