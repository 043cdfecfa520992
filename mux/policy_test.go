//go:build linux

package mux_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/nat/nattest"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// rule permits the tags of a list.
type rule struct {
	list  []endpoint.Tag
	free  bool // result of Choices: the mux may choose other tags
	tags  int64
	asked int // number of choices used

	translated error // result of Translated
}

func (r *rule) String() string { return "rule r" }
func (r *rule) Tags() int64    { return r.tags }

func (r *rule) Permits(t endpoint.Tag) error {
	if !slices.Contains(r.list, t) {
		return fmt.Errorf("%w: %v", endpoint.ErrTagDenied, t)
	}
	return nil
}

func (r *rule) Choices(t endpoint.Tag) (iter.Seq[endpoint.Tag], bool, error) {
	return func(yield func(endpoint.Tag) bool) {
		for _, one := range r.list {
			if one.Kind != t.Kind || one.Block != t.Block {
				continue
			}
			if r.asked++; !yield(one) {
				return
			}
		}
	}, r.free, nil
}

func (r *rule) Translated(endpoint.Tag, string) error { return r.translated }

func messages(from, n uint32) (list []endpoint.Tag) {
	for i := range n {
		list = append(list, endpoint.MessageTag(from+i))
	}
	return list
}

// A wildcard gets the first tag that the rule permits and that is not held. Any other error than that a tag is
// held ends the search.
func TestWildcardChoosesFreeTagOfRule(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a, other := l.open(), l.open(messages(1, 499)...)
	r := &rule{list: messages(1, 500)}
	l.policy.claims = r
	if got, err := a.lease.Claim(t.Context(), endpoint.MessageTag(0)); err != nil || got != endpoint.MessageTag(500) {
		t.Errorf("the only free tag: %v, %v", got, err)
	}
	if _, err := a.lease.Claim(t.Context(), endpoint.MessageTag(0)); !errors.Is(err, endpoint.ErrTagHeld) || !strings.HasSuffix(err.Error(), "msg:0: all that rule r permits") {
		t.Errorf("when no tag is free: %v", err)
	}
	// A port that a program has is skipped too.
	r.list = nil
	for port := range uint16(10) {
		at := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), 7000+port)
		r.list = append(r.list, endpoint.UDPTag(at))
		if port < 9 {
			kernelUDP(t, l.A, at.String())
		}
	}
	if got, err := a.lease.Claim(t.Context(), udpTag("0.0.0.0:0")); err != nil || got != udpTag("10.0.0.1:7009") {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := a.lease.Claim(t.Context(), udpTag("10.0.0.1:0")); !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("%v", err)
	}
	testutil.Must(t, other.lease.Close())
	testutil.Must(t, a.lease.Close())
	b := l.open()
	testutil.Must(t, l.mux.CloseTagTable())
	r.list, r.asked = messages(1, 500), 0
	if _, err := b.lease.Claim(t.Context(), endpoint.MessageTag(0)); err == nil || errors.Is(err, endpoint.ErrTagHeld) || r.asked != 1 {
		t.Errorf("%v after %d tags of the rule, want another error after the first", err, r.asked)
	}
}

// A port that the kernel chooses and the rule does not permit is not claimed.
func TestPortChosenOutsideRuleIsRefused(t *testing.T) {
	l := openLab(t, mux.ModeAuto)
	a := l.open()
	before := listObjects(t, l.A)
	l.policy.claims = &rule{list: []endpoint.Tag{udpTag("10.0.0.1:1")}, free: true}
	if got, err := a.lease.Claim(t.Context(), udpTag("10.0.0.1:0")); !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("%v, %v", got, err)
	}
	l.wantClaims(0)
	wantObjects(t, l.A, before)
}

// The tags of the open and those claimed later count together. Tags that were given back, refused, or
// ended with their lease do not count.
func TestLimitOfTagsOfUser(t *testing.T) {
	t.Parallel()
	l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}
	l.openConfig(mux.Config{Limits: mux.Limits{Tags: 6}})
	l.policy.tags = 4
	ctx, busy := t.Context(), endpoint.ErrBusy
	openAs := func(uid uint32, tags []endpoint.Tag) error {
		g, lease, err := l.openAs(mux.Owner{UID: uid}, mux.Terms{}, endpoint.Request{Geometry: small, Tags: tags})
		if err == nil {
			err = errors.Join(lease.Close(), g.Close())
		}
		return err
	}
	open := func(tags []endpoint.Tag) error { return openAs(1002, tags) }
	if err := open(messages(1, 5)); !errors.Is(err, busy) {
		t.Errorf("open with 5 tags: %v", err)
	}
	g, a, err := l.openAs(mux.Owner{UID: 1001}, mux.Terms{}, endpoint.Request{Geometry: small, Tags: messages(1, 3)})
	testutil.Must(t, err)
	other := l.open()
	for range 5 { // refused, so it does not count
		if _, err := other.lease.Claim(ctx, endpoint.MessageTag(1)); !errors.Is(err, endpoint.ErrTagHeld) {
			t.Fatalf("Claim: %v", err)
		}
	}
	claim := func(n uint32) error {
		_, err := a.Claim(ctx, endpoint.MessageTag(n))
		return err
	}
	testutil.Must(t, claim(4))
	if err := claim(5); !errors.Is(err, busy) || !strings.Contains(err.Error(), "4 of at most 4 tags") {
		t.Errorf("fifth tag: %v", err)
	}
	if err := a.Unclaim(ctx, endpoint.MessageTag(9)); err == nil {
		t.Error("a tag was given back that is not held")
	}
	if err := claim(5); !errors.Is(err, busy) {
		t.Errorf("after that: %v", err)
	}
	testutil.Must(t, a.Unclaim(ctx, endpoint.MessageTag(4)))
	if err := claim(5); err != nil {
		t.Errorf("fifth tag in the fourth's place: %v", err)
	}
	// All users together have at most six tags.
	if err := open(messages(20, 3)); !errors.Is(err, busy) {
		t.Errorf("open beyond the tags of all: %v", err)
	}
	testutil.Must(t, open(messages(20, 2)))
	testutil.Must(t, errors.Join(a.Close(), g.Close()))
	if err := open([]endpoint.Tag{endpoint.MessageTag(1), endpoint.MessageTag(2), addrTag("10.0.0.2")}); !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("%v", err)
	}
	testutil.Must(t, open(messages(1, 4)))
	if n := l.mux.CountedClaims(); n != 0 {
		t.Errorf("%d claims are counted", n)
	}
}

// A block counts as its ports, and the rule limits the tags of a user.
func TestBlockCountsAllItsPorts(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	l.policy.tags = 2*endpoint.BlockPorts + 1
	ctx := t.Context()
	as := func(uid uint32, tags ...endpoint.Tag) (*endpoint.Grant, *mux.Lease, error) {
		return l.openAs(mux.Owner{UID: uid}, mux.Terms{}, endpoint.Request{Geometry: small, Tags: tags})
	}
	block := func(port uint16) endpoint.Tag { return udpBlock(fmt.Sprintf("10.0.0.1:%d", port)) }
	if _, _, err := as(1001, block(6400), block(6464), block(6528)); !errors.Is(err, endpoint.ErrBusy) {
		t.Errorf("open with three blocks: %v", err)
	}
	g, a, err := as(1001, block(6400))
	testutil.Must(t, err)
	any, err := a.Claim(ctx, block(0))
	testutil.Must(t, err)
	g2, b, err := as(1001)
	testutil.Must(t, err)
	if _, err := b.Claim(ctx, block(0)); !errors.Is(err, endpoint.ErrBusy) || !strings.Contains(err.Error(), "uid 1001 has 128 of at most 129 tags") {
		t.Errorf("third block, of another lease: %v", err)
	}
	for _, uid := range []uint32{1002, 0} { // another user has a limit of its own, root has none
		g, l, err := as(uid, block(7040), block(7104))
		testutil.Must(t, err)
		_, err = l.Claim(ctx, block(0))
		if (err == nil) != (uid == 0) {
			t.Errorf("third block of uid %d: %v", uid, err)
		}
		testutil.Must(t, errors.Join(l.Close(), g.Close()))
	}
	if _, err := b.Claim(ctx, endpoint.MessageTag(1)); err != nil {
		t.Errorf("one tag: %v", err)
	}
	testutil.Must(t, a.Unclaim(ctx, any))
	for i := range uint32(endpoint.BlockPorts) {
		if _, err := a.Claim(ctx, endpoint.MessageTag(10+i)); err != nil {
			t.Fatalf("tag %d in a block's place: %v", i, err)
		}
	}
	if _, err := b.Claim(ctx, endpoint.MessageTag(2)); !errors.Is(err, endpoint.ErrBusy) {
		t.Errorf("one more: %v", err)
	}
	testutil.Must(t, errors.Join(a.Close(), b.Close(), g.Close(), g2.Close()))
}

// An endpoint that is taken over keeps its tags, also beyond the present limits, and they count: no
// other tags can be claimed until it has given back enough.
func TestTagsTakenOverCount(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	c := l.serve(order{})
	tags := messages(1, 10)
	a := l.openIn(c, endpoint.Request{Tags: tags})
	c.kill()
	l.openConfig(mux.Config{Pin: l.pin, Limits: mux.Limits{Tags: 9}})
	l.present(a)
	ctx := t.Context()
	if _, err := a.lease.Claim(ctx, endpoint.MessageTag(11)); !errors.Is(err, endpoint.ErrBusy) || !strings.Contains(err.Error(), "10 of at most 9 tags") {
		t.Errorf("Claim: %v", err)
	}
	b := l.open() // a request without tags is not limited
	if _, err := b.lease.Claim(ctx, endpoint.MessageTag(11)); !errors.Is(err, endpoint.ErrBusy) {
		t.Errorf("another's tag: %v", err)
	}
	for _, tag := range tags[:2] {
		testutil.Must(t, a.lease.Unclaim(ctx, tag))
	}
	if _, err := a.lease.Claim(ctx, endpoint.MessageTag(11)); err != nil {
		t.Errorf("Claim: %v", err)
	}
	if _, err := a.lease.Claim(ctx, endpoint.MessageTag(12)); !errors.Is(err, endpoint.ErrBusy) {
		t.Errorf("Claim: %v", err)
	}
	testutil.Must(t, a.lease.Close())
	l.open(tags[:9]...)
}

// Claim and Unclaim end with their context.
func TestClaimEndsWithItsContext(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a := l.open(endpoint.MessageTag(2))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.lease.Claim(ended, endpoint.MessageTag(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Claim: %v", err)
	}
	if err := a.lease.Unclaim(ended, endpoint.MessageTag(2)); !errors.Is(err, context.Canceled) {
		t.Errorf("Unclaim: %v", err)
	}
	l.wantClaims(0, endpoint.MessageTag(2))
}

// translate adds rules of network address translation to a host, and returns a host behind it.
func translate(t *testing.T, h *netlab.Host, rules func(*nattest.Table)) (inner *netlab.Host) {
	t.Helper()
	inner, err := nattest.Inner(h)
	testutil.Must(t, err)
	t.Cleanup(func() { inner.Close() })
	testutil.Must(t, h.Do(func() error {
		table, err := nattest.NewTable("nat")
		if err != nil {
			return err
		}
		rules(table)
		return table.Flush()
	}))
	return inner
}

// exchange sends a datagram, answers it from another socket, and waits for the answer.
func exchange(t *testing.T, client *net.UDPConn, to string, server *net.UDPConn) (seenAs netip.AddrPort) {
	t.Helper()
	sendTo(t, client, to, "question")
	from := readFrom(t, server, "question")
	_, err := server.WriteToUDPAddrPort([]byte("answer"), from)
	testutil.Must(t, err)
	testutil.Must(t, client.SetReadDeadline(time.Now().Add(testTimeout)))
	readFrom(t, client, "answer")
	return from
}

// A port of a masqueraded flow of another host cannot be claimed, by number or in a block, and is not
// chosen, so that the answers of the flow go on arriving.
func TestClaimOfMasqueradedPortIsRefused(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	inner := translate(t, l.A, func(table *nattest.Table) {
		table.Rule(nftables.ChainHookPostrouting, nattest.OIFName(expr.CmpOpEq, l.A.Interface), nattest.Masquerade())
	})
	sysctl(t, l.A, "netfilter/nf_conntrack_udp_timeout", "3600") // by default a flow without answers is forgotten after 30 s
	server := kernelUDP(t, l.B, "10.0.0.2:9000")
	client := kernelUDP(t, inner, nattest.InnerAddr+":7001")
	if seen := exchange(t, client, "10.0.0.2:9000", server); seen != netip.MustParseAddrPort("10.0.0.1:7001") {
		t.Fatalf("masqueraded as %v", seen)
	}
	a := l.open()
	for _, tag := range []endpoint.Tag{udpTag("10.0.0.1:7001"), udpBlock("10.0.0.1:6976")} {
		if _, err := a.lease.Claim(t.Context(), tag); !errors.Is(err, endpoint.ErrTagHeld) {
			t.Errorf("claim %v: %v", tag, err)
		}
	}
	exchange(t, client, "10.0.0.2:9000", server)
	a.wantNothing("of the flow")
	for _, tag := range []endpoint.Tag{tcpTag("10.0.0.1:7001"), udpTag("10.0.0.1:7002"), udpBlock("10.0.0.1:7040")} {
		if _, err := a.lease.Claim(t.Context(), tag); err != nil {
			t.Errorf("claim %v, which the flow does not use: %v", tag, err)
		}
	}

	// Ports that the kernel would choose.
	sysctl(t, l.A, "ipv4/ip_local_port_range", "40000 40003")
	for _, port := range []string{"40000", "40002", "40003"} {
		exchange(t, kernelUDP(t, inner, nattest.InnerAddr+":"+port), "10.0.0.2:9000", server)
	}
	// The answer of package nat is up to a second old. A port that was given back stays bound until other threads
	// and processes that are being started have closed their copies of the descriptor, so the reason counts.
	testutil.Eventually(t, "the last flow is known", func() bool {
		_, err := a.lease.Claim(t.Context(), udpTag("10.0.0.1:40003"))
		if err == nil {
			testutil.Must(t, a.lease.Unclaim(t.Context(), udpTag("10.0.0.1:40003")))
		}
		return errors.Is(err, endpoint.ErrTagHeld) && strings.Contains(err.Error(), "translation")
	})
	if got, err := a.lease.Claim(t.Context(), udpTag("10.0.0.1:0")); err != nil || got != udpTag("10.0.0.1:40001") {
		t.Errorf("chosen %v, %v", got, err)
	}
	if got, err := a.lease.Claim(t.Context(), udpTag("10.0.0.1:0")); !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("when no other is left, got %v, %v", got, err)
	}
}

// A port that is forwarded to another host cannot be claimed, so that its packets go on arriving.
func TestClaimOfForwardedPortIsRefused(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	inner := translate(t, l.A, func(table *nattest.Table) {
		table.Rule(nftables.ChainHookPrerouting, nattest.Protocol(expr.CmpOpEq, unix.IPPROTO_UDP), nattest.DPort(expr.CmpOpEq, 8080), nattest.DNAT(nattest.InnerAddr+":80"))
		table.Rule(nftables.ChainHookPrerouting, nattest.Protocol(expr.CmpOpEq, unix.IPPROTO_TCP), nattest.DPort(expr.CmpOpEq, 8081), nattest.Redirect(81))
	})
	a := l.open()
	for _, tag := range []endpoint.Tag{udpTag("10.0.0.1:8080"), udpBlock("10.0.0.1:8064"), tcpTag("10.0.0.1:8081")} {
		if _, err := a.lease.Claim(t.Context(), tag); !errors.Is(err, endpoint.ErrTagHeld) {
			t.Errorf("claim %v: %v", tag, err)
		}
	}
	exchange(t, kernelUDP(t, l.B, "10.0.0.2:9000"), "10.0.0.1:8080", kernelUDP(t, inner, nattest.InnerAddr+":80"))
	for _, tag := range []endpoint.Tag{tcpTag("10.0.0.1:8080"), udpTag("10.0.0.1:8081"), udpTag("10.0.0.1:80")} {
		if _, err := a.lease.Claim(t.Context(), tag); err != nil {
			t.Errorf("claim %v, which is not forwarded: %v", tag, err)
		}
	}
}

// An address that translation gives to flows cannot be claimed as a whole.
func TestClaimOfTranslatedAddressIsRefused(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	translate(t, l.A, func(table *nattest.Table) {
		table.Rule(nftables.ChainHookPostrouting, nattest.SNAT("10.0.0.77", 0, 0))
		table.Rule(nftables.ChainHookPostrouting, nattest.Masquerade())
	})
	a := l.open()
	if _, err := a.lease.Claim(t.Context(), addrTag("10.0.0.77")); !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("an address that a rule gives: %v", err)
	}
	if _, err := a.lease.Claim(t.Context(), addrTag("10.0.0.78")); err != nil {
		t.Errorf("another one: %v", err)
	}
}

// Rules of translation that cannot be read may name an address, so the policy decides whether it can be
// claimed.
func TestPolicyDecidesWhenRulesCannotBeRead(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	err := l.A.Do(nattest.LegacyTable)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("this kernel does not have iptables-legacy")
	}
	testutil.Must(t, err)
	a, tag := l.open(), addrTag("10.0.0.79")
	r := &rule{list: []endpoint.Tag{tag}, translated: fmt.Errorf("%w: by the rule", endpoint.ErrTagDenied)}
	l.policy.claims = r
	if _, err := a.lease.Claim(t.Context(), tag); !errors.Is(err, r.translated) {
		t.Errorf("got %v, want the rule's error", err)
	}
	r.translated = nil
	if _, err := a.lease.Claim(t.Context(), tag); err != nil {
		t.Errorf("permitted by the rule: %v", err)
	}
}

// Rings count for their user, from the open until nothing is left of the endpoint.
func TestRingsCount(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	large := endpoint.Geometry{FrameCount: 16, FillSize: 1 << 16, CompletionSize: 1 << 16, RxSize: 1 << 16}
	owner, terms := mux.Owner{UID: 1001}, mux.Terms{Memory: 3 << 20}
	g, lease, err := l.openAs(owner, terms, endpoint.Request{Geometry: large})
	testutil.Must(t, err)
	if g.Geometry.TxSize != 256 {
		t.Errorf("a transmit ring of %d entries", g.Geometry.TxSize)
	}
	if _, bytes := l.mux.Counted(1001); bytes < 2<<20 || bytes > 3<<20 {
		t.Errorf("%d bytes count", bytes)
	}
	if _, _, err := l.openAs(owner, terms, endpoint.Request{Geometry: large}); !errors.Is(err, endpoint.ErrBusy) {
		t.Errorf("a second endpoint: %v", err)
	}
	large.TxSize = 1024
	if _, _, err := l.openAs(owner, mux.Terms{}, endpoint.Request{Geometry: large}); !errors.Is(err, endpoint.ErrGeometry) {
		t.Errorf("a transmit ring of 1,024 entries: %v", err)
	}
	testutil.Must(t, errors.Join(lease.Close(), g.Close()))
	testutil.Eventually(t, "the memory to be given back", func() bool {
		endpoints, bytes := l.mux.Counted(1001)
		return endpoints == 0 && bytes == 0
	})
}
