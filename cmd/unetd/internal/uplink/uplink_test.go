//go:build linux

package uplink

import (
	"bytes"
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

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
)

// openWithPolicy returns Uplinks with a policy ("": the built-in one) and one interface with the address
// 10.0.0.1, which has the name eth0 in the policy.
func openWithPolicy(t *testing.T, text string) *Uplinks {
	t.Helper()
	pair := netlab.RequirePair(t, netlab.Config{})
	file := ""
	if text != "" {
		file = filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	s, err := policy.OpenSource(file, filepath.Join(t.TempDir(), "none"), policy.SystemNames(), log)
	if err != nil {
		t.Fatal(err)
	}
	us := &Uplinks{source: s, log: log}
	a := &policy.Authority{Source: s, Interface: "eth0", Log: log}
	err = pair.A.Do(func() error {
		u, err := openUplink(mux.Config{Interface: pair.A.Interface, Policy: a, Log: log}, a)
		us.list = []*Uplink{u}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := us.Close(); err != nil {
			t.Error(err)
		}
	})
	return us
}

func tag(t *testing.T, text string) endpoint.Tag {
	t.Helper()
	parsed, err := endpoint.ParseTag(text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

var geometry = endpoint.Geometry{FrameCount: 64, FillSize: 32, CompletionSize: 32, RxSize: 32, TxSize: 32}

// openLease opens an endpoint of a user, with tags.
func openLease(t *testing.T, u *Uplinks, uid uint32, tags ...endpoint.Tag) endpoint.Lease {
	t.Helper()
	g, l, err := u.OpenEndpoint(t.Context(), mux.Owner{UID: uid, GID: 77}, endpoint.Request{Geometry: geometry, Tags: tags})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(l.Close(), g.Close()); err != nil {
			t.Error(err)
		}
	})
	return l
}

// leaseUnderRule is a lease of uid 1001 under a rule with these tags. uid 1002 may claim all ports and message tags.
func leaseUnderRule(t *testing.T, patterns string) (*Uplinks, endpoint.Lease) {
	t.Helper()
	u := openWithPolicy(t, "rules: [{name: r, users: [1001], endpoints: 4, memory: 1MiB, tags: ["+patterns+`]},
		{name: all, users: [1002], endpoints: 4, memory: 1MiB, tags: ["udp:*:1-65535", "tcp:*:1-65535", "msg:*"]}]`)
	return u, openLease(t, u, 1001)
}

// A claim of any port, block or message tag gets a permitted one, each once, until none is free.
func TestClaimOfAnyTag(t *testing.T) {
	ctx := context.Background()
	_, l := leaseUnderRule(t, `"udp:*:*", "msg:*"`)
	if got, err := l.Claim(ctx, tag(t, "udp:10.0.0.1:0")); err != nil || got.Port < 32768 { // as the kernel chooses
		t.Errorf("%v, %v", got, err)
	}
	if got, err := l.Claim(ctx, tag(t, "msg:0")); err != nil || got.Message == 0 {
		t.Errorf("%v, %v", got, err)
	}

	u, l := leaseUnderRule(t, `"udp:*:7000-7003", "msg:5-7", "tcp:*:6400-6600"`)
	for n := range 4 {
		if got, err := l.Claim(ctx, tag(t, "udp:10.0.0.1:0")); err != nil || got.Port < 7000 || got.Port > 7003 {
			t.Errorf("claim %d: %v, %v", n, got, err)
		}
	}
	_, err := l.Claim(ctx, tag(t, "udp:10.0.0.1:0"))
	if !errors.Is(err, endpoint.ErrTagHeld) || !strings.Contains(err.Error(), "udp:10.0.0.1:0: all that rule r of ") {
		t.Errorf("when all are held: %v", err)
	}
	openLease(t, u, 1002, tag(t, "msg:5"), tag(t, "msg:7"))
	if got, err := l.Claim(ctx, tag(t, "msg:0")); err != nil || got.Message != 6 {
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
}

// A wildcard address is checked as the address that it stands for, in each notation. A tag that the rule does not
// permit is not held at any time: another user can always claim it.
func TestForbiddenTagIsNeverHeld(t *testing.T) {
	ctx := context.Background()
	u, l := leaseUnderRule(t, `"udp:10.0.0.1:7000", "udp:10.0.0.5:53", "udp:10.0.0.5:*", "tcp:10.0.0.4/30:7000-7003"`)
	if got, err := l.Claim(ctx, tag(t, "udp:0.0.0.0:0")); err != nil || got.String() != "udp:10.0.0.1:7000" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := l.Claim(ctx, tag(t, "udp:[::]:7000")); !errors.Is(err, endpoint.ErrTagDenied) || !strings.Contains(err.Error(), "udp:[::]:7000: ") {
		t.Errorf("where there is no such address: %v", err)
	}
	// Another user, with another rule, can always claim these.
	other := openLease(t, u, 1002)
	done := make(chan error)
	stop := make(chan struct{})
	go func() {
		forbidden := []endpoint.Tag{endpoint.UDPTag(netip.MustParseAddrPort("10.0.0.1:53")), endpoint.TCPTag(netip.MustParseAddrPort("10.0.0.1:7000"))}
		for {
			for _, t := range forbidden {
				_, err := other.Claim(ctx, t)
				if err == nil {
					err = other.Unclaim(ctx, t)
				}
				if err != nil {
					done <- err
					return
				}
			}
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
		}
	}()
	mapped := netip.AddrFrom16(netip.IPv4Unspecified().As16())
	for range 50 {
		for _, wildcard := range []endpoint.Tag{
			tag(t, "udp:0.0.0.0:53"), tag(t, "udp:0.0.0.0:0-63"), tag(t, "udp:0.0.0.0:6400-6463"),
			tag(t, "tcp:0.0.0.0:7000"), tag(t, "tcp:0.0.0.0:0"),
			{Kind: endpoint.TagUDP, Port: 53}, {Kind: endpoint.TagTCP},
			{Kind: endpoint.TagUDP, Addr: mapped, Port: 53}, {Kind: endpoint.TagTCP, Addr: mapped},
		} {
			_, err := l.Claim(ctx, wildcard)
			if !errors.Is(err, endpoint.ErrTagDenied) || !strings.Contains(err.Error(), ":10.0.0.1:") || !strings.Contains(err.Error(), "rule r of ") {
				t.Fatalf("%v: %v", wildcard, err)
			}
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Errorf("the other user: %v", err)
	}
	if e := u.muxes()[0].Endpoints()[0]; fmt.Sprint(e.Tags) != "[udp:10.0.0.1:7000]" {
		t.Errorf("%v is held", e.Tags)
	}
}

// The holder of an owned address can claim all of its ports, as long as it holds the address.
func TestPortsOfOwnedAddress(t *testing.T) {
	ctx := context.Background()
	u, l := leaseUnderRule(t, `"addr:10.0.0.128/25", "udp:10.0.0.1:7000"`)
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
	openLease(t, u, 1001, port, whole) // in one request
}

// A rule that was removed since the endpoint was opened permits no more tags; held tags stay.
func TestClaimAfterReload(t *testing.T) {
	u, l := leaseUnderRule(t, `"msg:*"`)
	one := tag(t, "msg:1")
	if _, err := l.Claim(context.Background(), one); err != nil {
		t.Fatal(err)
	}
	source := u.source
	if err := os.WriteFile(source.Policy().File, []byte("rules: []"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := source.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Claim(context.Background(), tag(t, "msg:2")); !errors.Is(err, endpoint.ErrTagDenied) || !strings.Contains(err.Error(), "msg:2: no rule of ") {
		t.Errorf("%v", err)
	}
	if err := l.Unclaim(context.Background(), one); err != nil {
		t.Errorf("%v", err)
	}
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

// A refusal of the policy names the rule and what to do.
func TestRefusals(t *testing.T) {
	u, builtIn := openWithPolicy(t, users), openWithPolicy(t, "")
	file := u.source.Policy().File
	first := policy.FirstUnprivileged()
	for _, c := range []struct {
		u    *Uplinks
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
		{u, 1001, endpoint.Request{}, endpoint.ErrBusy, "busy: uid 1001 has 0 of at most 1MiB of memory in segments and rings (rule web of " + file +
			") and asks for 8MiB; that of an endpoint that was closed counts until it is unmapped: end one, ask for less, or ask an operator for more"},
		{u, 1001, endpoint.Request{Tags: []endpoint.Tag{tag(t, fmt.Sprintf("udp:10.0.0.1:%d", first-1))}}, endpoint.ErrTagDenied,
			fmt.Sprintf("tag not allowed: udp:10.0.0.1:%d: rule web of %s does not permit it to uid 1001: its port * does not stand for ports below %d: ask an operator to name the port in the rule", first-1, file, first)},
	} {
		if first == 1 && strings.Contains(c.want, "its port *") {
			continue // this system keeps no ports for root
		}
		_, _, err := c.u.OpenEndpoint(context.Background(), mux.Owner{UID: c.uid, GID: 77}, c.req)
		if !errors.Is(err, c.is) || err.Error() != c.want {
			t.Errorf("uid %d, %+v:\n got %v\nwant %s", c.uid, c.req, err, c.want)
		}
	}
}

// Operators are root, the user of unetd, and users whose rule says so.
func TestOperatorsMayAsk(t *testing.T) {
	u := openWithPolicy(t, users)
	for uid, may := range map[uint32]bool{0: true, uint32(os.Geteuid()): true, 1001: false, 1002: true, 1003: false} {
		err := u.MayAsk(mux.Owner{UID: uid, GID: 77})
		if (err == nil) != may || err != nil && (!errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "operator: true")) {
			t.Errorf("uid %d: %v", uid, err)
		}
	}
}

// If no tag table can be made, the interface is served without one.
func TestUplinkWithoutTagTable(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	var log bytes.Buffer
	cfg := mux.Config{Interface: pair.A.Interface, Pin: netlab.BPFFS(t), Dir: filepath.Join(t.TempDir(), "missing"), Log: slog.New(slog.NewTextHandler(&log, nil))}
	err := pair.A.Do(func() error {
		u, err := openUplink(cfg, nil)
		if err != nil {
			return err
		}
		return u.end((*mux.Mux).Close)
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "no memory paths"); n != 1 {
		t.Errorf("%d log lines about the lack of memory paths, want one:\n%s", n, &log)
	}
}
