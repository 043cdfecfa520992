//go:build linux

package mux_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

func TestClaims(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	kernelUDP(t, l.A, "10.0.0.1:5300")
	kernelUDP(t, l.A, "0.0.0.0:5301")
	a := l.open(udpTag("10.0.0.1:7000"), endpoint.MessageTag(7), addrTag("10.0.0.77"), udpTag("10.0.0.77:9"))
	b := l.open()
	ctx := t.Context()
	held, denied := endpoint.ErrTagHeld, endpoint.ErrTagDenied
	for _, c := range []struct {
		by   *app
		tag  endpoint.Tag
		want error
	}{
		{b, udpTag("10.0.0.1:7000"), held},
		{b, udpTag("0.0.0.0:7000"), held},
		{a, udpTag("10.0.0.1:7000"), held}, // the second time
		{b, udpTag("10.0.0.1:5300"), held}, // by a kernel program
		{b, udpTag("10.0.0.1:5301"), held}, // by one on all addresses
		{b, udpTag("10.0.0.2:7000"), denied},
		{b, udpTag("127.0.0.1:7000"), denied},
		{b, udpTag("10.0.0.77:10"), held}, // the owned address is another's
		{b, udpTag("10.0.0.78:10"), denied},
		{b, udpTag("[::1]:7000"), denied},
		{b, endpoint.MessageTag(7), held},
		{b, addrTag("10.0.0.77"), held},
		{b, addrTag("10.0.0.1"), denied},  // the host's own
		{b, addrTag("127.0.0.1"), denied}, // of another interface
		{b, addrTag("10.0.1.1"), denied},  // not on this network
		{b, addrTag("10.0.0.0"), denied},
		{b, addrTag("10.0.0.255"), denied},
		{b, addrTag("0.0.0.0"), denied},
		{b, addrTag("224.0.0.1"), denied},
		{b, addrTag("::1"), denied},
		{b, endpoint.Tag{}, denied},
		{b, endpoint.Tag{Kind: endpoint.TagAddr}, denied},
	} {
		if got, err := c.by.lease.Claim(ctx, c.tag); !errors.Is(err, c.want) {
			t.Errorf("claim %v: %v, %v; want %v", c.tag, got, err, c.want)
		}
	}

	// Wildcards.
	for _, c := range []struct {
		by   *app
		tag  endpoint.Tag
		addr string
	}{
		{b, udpTag("0.0.0.0:0"), "10.0.0.1"},
		{b, udpTag("10.0.0.1:0"), "10.0.0.1"},
		{b, endpoint.Tag{Kind: endpoint.TagUDP}, "10.0.0.1"},
		{a, udpTag("10.0.0.77:0"), "10.0.0.77"},
	} {
		got, err := c.by.lease.Claim(ctx, c.tag)
		if err != nil || got.Addr != netip.MustParseAddr(c.addr) || got.Port == 0 {
			t.Errorf("claim %v: %v, %v", c.tag, got, err)
		}
	}
	if got, err := b.lease.Claim(ctx, endpoint.MessageTag(0)); err != nil || got.Message == 0 {
		t.Errorf("claim any message tag: %v, %v", got, err)
	}

	// The kernel does not use claimed ports, and can use them afterwards.
	bind := func() error {
		return l.A.Do(func() error {
			c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 7000})
			if err == nil {
				c.Close()
			}
			return err
		})
	}
	if bind() == nil {
		t.Error("a kernel program got a claimed port")
	}
	if err := b.lease.Unclaim(ctx, udpTag("10.0.0.1:7000")); !errors.Is(err, denied) {
		t.Errorf("unclaim another's tag: %v", err)
	}
	testutil.Must(t, a.lease.Unclaim(ctx, udpTag("10.0.0.1:7000")))
	testutil.Must(t, bind())
	if _, err := b.lease.Claim(ctx, udpTag("10.0.0.1:7000")); err != nil {
		t.Errorf("claim what was given back: %v", err)
	}
	if err := a.lease.Unclaim(ctx, addrTag("10.0.0.77")); !errors.Is(err, denied) {
		t.Errorf("unclaim an address on which a port is held: %v", err)
	}

	// A claim takes effect at once, and so does its end.
	peer := kernelUDP(t, l.B, "10.0.0.2:9000")
	sendTo(t, peer, "10.0.0.1:7000", "to b")
	b.recv()
	testutil.Must(t, b.lease.Unclaim(ctx, udpTag("10.0.0.1:7000")))
	passed := l.count()["rx_pass"]
	l.wantIncrements("a port given back", "rx_", func() {
		sendTo(t, peer, "10.0.0.1:7000", "to nobody")
		l.await("rx_pass", passed+1)
	}, "rx_pass")
	b.wantNothing("after the tag was given back")

	testutil.Must(t, a.lease.Close())
	if _, err := b.lease.Claim(ctx, addrTag("10.0.0.77")); err != nil {
		t.Errorf("claim an address whose lease was closed: %v", err)
	}
	for _, err := range []error{
		a.lease.Unclaim(ctx, endpoint.MessageTag(7)),
		func() error { _, err := a.lease.Claim(ctx, endpoint.MessageTag(7)); return err }(),
		func() error {
			_, err := a.lease.Resolve(ctx, netip.Addr{}, netip.MustParseAddr("10.0.0.2"))
			return err
		}(),
	} {
		if !errors.Is(err, endpoint.ErrLeaseClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

// A request gets all of its tags or none, in any order.
func TestRequestGetsAllTagsOrNone(t *testing.T) {
	l := openLab(t, mux.ModeAuto)
	want := []endpoint.Tag{udpTag("10.0.0.77:9"), endpoint.MessageTag(7), addrTag("10.0.0.77"), udpTag("10.0.0.1:7000")}
	if a := l.open(want...); !slices.Equal(a.grant.Tags, want) {
		t.Errorf("tags %v, want %v", a.grant.Tags, want)
	}
	before := listObjects(t, l.A)
	_, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: []endpoint.Tag{
		endpoint.MessageTag(8), udpTag("10.0.0.1:7001"), addrTag("10.0.0.78"), endpoint.MessageTag(7)}})
	if !errors.Is(err, endpoint.ErrTagHeld) {
		t.Fatalf("got %v", err)
	}
	wantObjects(t, l.A, before)
	l.open(endpoint.MessageTag(8), udpTag("10.0.0.1:7001"), addrTag("10.0.0.78")) // none of the refused request is held
}

// A wildcard stands for an address that the uplink has at the time of the claim.
func TestClaimOfWildcardWithoutAddressIsRefused(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	addrOff(t, l.A, l.A.Interface, "10.0.0.1/24")
	a := l.open(endpoint.MessageTag(7))
	if _, err := a.lease.Claim(t.Context(), udpTag("0.0.0.0:7000")); !errors.Is(err, endpoint.ErrTagDenied) {
		t.Errorf("got %v", err)
	}
}

// claimModel is a simple model of all claims and bound ports.
type claimModel struct {
	lab      *lab
	rng      *rand.Rand
	leases   []*app
	tags     map[endpoint.Tag]*app
	programs map[int]program
	reserved int // descriptors
}

var (
	modelShared = []string{"10.0.0.1", "10.0.0.9", "fd00::1"}
	modelOwned  = []string{"10.0.0.77", "fd00::77"}
	modelPorts  = []uint16{39999, 40000, 40031, 40063, 40064, 40127}
)

func pick[T any](rng *rand.Rand, list []T) T { return list[rng.IntN(len(list))] }

func modelKind(p program) endpoint.TagKind {
	if p.network[:3] == "tcp" {
		return endpoint.TagTCP
	}
	return endpoint.TagUDP
}

// conflicts reports whether a program has, or would have, a port of a tag.
func (m *claimModel) conflicts(p program, tag endpoint.Tag) bool {
	at := netip.MustParseAddrPort(p.at)
	if modelKind(p) != tag.Kind || at.Port() < tag.Port || at.Port() > tag.LastPort() {
		return false
	}
	both := len(p.network) == 3
	return at.Addr() == tag.Addr || at.Addr().IsUnspecified() && (both || at.Addr().Is4() == tag.Addr.Is4())
}

// exclude reports whether two programs cannot have their ports at the same time.
func exclude(p, q program) bool {
	a, b := netip.MustParseAddrPort(p.at), netip.MustParseAddrPort(q.at)
	if modelKind(p) != modelKind(q) || a.Port() != b.Port() {
		return false
	}
	sameFamily := len(p.network) == 3 || len(q.network) == 3 || a.Addr().Is4() == b.Addr().Is4()
	return sameFamily && (a.Addr() == b.Addr() || a.Addr().IsUnspecified() || b.Addr().IsUnspecified())
}

// shared reports whether the kernel has an address too.
func shared(tag endpoint.Tag) bool {
	for _, a := range modelShared {
		if tag.Addr == netip.MustParseAddr(a) {
			return true
		}
	}
	return false
}

// want is the expected result of a claim without wildcards.
func (m *claimModel) want(by *app, tag endpoint.Tag) error {
	if !shared(tag) && tag.Kind != endpoint.TagAddr {
		switch m.tags[endpoint.AddrTag(tag.Addr)] {
		case nil:
			return endpoint.ErrTagDenied
		case by:
		default:
			return endpoint.ErrTagHeld
		}
	}
	for held := range m.tags {
		if held.Kind == tag.Kind && held.Addr == tag.Addr && tag.Port <= held.LastPort() && held.Port <= tag.LastPort() {
			return endpoint.ErrTagHeld
		}
	}
	for _, p := range m.programs {
		if shared(tag) && m.conflicts(p, tag) {
			return endpoint.ErrTagHeld
		}
	}
	return nil
}

// sockets is the number of descriptors of a claim.
func sockets(tag endpoint.Tag) int {
	switch {
	case tag.Kind == endpoint.TagAddr && tag.Addr.Is6():
		return 1
	case tag.Kind == endpoint.TagAddr || !shared(tag):
		return 0
	}
	return int(tag.LastPort()-tag.Port) + 1
}

func (m *claimModel) give(by *app, tag endpoint.Tag) {
	m.tags[tag] = by
	m.reserved += sockets(tag)
}

func (m *claimModel) take(tag endpoint.Tag) {
	delete(m.tags, tag)
	m.reserved -= sockets(tag)
}

// claim makes a random claim.
func (m *claimModel) claim() {
	t := m.lab.t
	by := pick(m.rng, m.leases)
	tag := endpoint.Tag{Kind: pick(m.rng, []endpoint.TagKind{endpoint.TagUDP, endpoint.TagTCP})}
	tag.Addr = netip.MustParseAddr(pick(m.rng, append(modelShared, modelOwned...)))
	tag.Port = pick(m.rng, modelPorts)
	if m.rng.IntN(3) == 0 {
		tag = tag.AsBlock()
	}
	if m.rng.IntN(300) == 0 { // seldom: the claim of an owned address waits for probes
		tag = endpoint.AddrTag(netip.MustParseAddr(pick(m.rng, modelOwned)))
	}
	any := tag.Kind != endpoint.TagAddr && m.rng.IntN(4) == 0
	if any {
		tag.Port = 0
	}
	got, err := by.lease.Claim(t.Context(), tag)
	if any && err == nil {
		if got.Kind != tag.Kind || got.Addr != tag.Addr || got.Block != tag.Block || got.Port < 32768 {
			t.Fatalf("claim %v: %v", tag, got)
		}
		tag = got
	}
	want := m.want(by, tag)
	if any && want == nil && err != nil || !errors.Is(err, want) || err == nil && got != tag {
		t.Fatalf("claim %v: %v, %v; want %v", tag, got, err, want)
	}
	if err == nil {
		m.give(by, tag)
	}
}

// unclaim gives back a random tag, most often a held one.
func (m *claimModel) unclaim() {
	t := m.lab.t
	by := pick(m.rng, m.leases)
	for tag, holder := range m.tags {
		if m.rng.IntN(5) != 0 {
			by = holder
		}
		want := error(nil)
		if holder != by {
			want = endpoint.ErrTagDenied
		}
		for other := range m.tags {
			if tag.Kind == endpoint.TagAddr && other.Kind != endpoint.TagAddr && other.Addr == tag.Addr {
				want = endpoint.ErrTagDenied // a port of the address is held
			}
		}
		if err := by.lease.Unclaim(t.Context(), tag); !errors.Is(err, want) {
			t.Fatalf("unclaim %v: %v, want %v", tag, err, want)
		}
		if want == nil {
			m.take(tag)
		}
		return
	}
}

// bind starts a program.
func (m *claimModel) bind() {
	t := m.lab.t
	p := pick(m.rng, []program{
		{network: "udp4", at: "10.0.0.1"}, {network: "udp4", at: "0.0.0.0"}, {network: "udp6", at: "fd00::1"}, {network: "udp6", at: "::"}, {network: "udp", at: "::"},
		{network: "tcp4", at: "10.0.0.9"}, {network: "tcp4", at: "0.0.0.0"}, {network: "tcp6", at: "fd00::1"}, {network: "tcp6", at: "::"}, {network: "tcp", at: "::"},
	})
	p.at = netip.AddrPortFrom(netip.MustParseAddr(p.at), pick(m.rng, modelPorts)).String()
	p.listen = p.network[:3] == "tcp" && m.rng.IntN(2) == 0
	var want error
	for tag := range m.tags {
		if shared(tag) && m.conflicts(p, tag) {
			want = unix.EADDRINUSE
		}
	}
	for _, q := range m.programs {
		if exclude(p, q) {
			want = unix.EADDRINUSE
		}
	}
	fd, err := p.start(m.lab.A)
	if !errors.Is(err, want) {
		t.Fatalf("%v: %v, want %v, beside %v and %v", p, err, want, m.tags, m.programs)
	}
	if err == nil {
		m.programs[fd] = p
	}
}

// end ends a program.
func (m *claimModel) end() {
	for fd := range m.programs {
		unix.Close(fd)
		delete(m.programs, fd)
		return
	}
}

// reopen closes a lease with all that it holds.
func (m *claimModel) reopen() {
	i := m.rng.IntN(len(m.leases))
	for tag, by := range m.tags {
		if by == m.leases[i] {
			m.take(tag)
		}
	}
	m.leases[i].close()
	m.leases[i] = m.lab.open()
}

// compare compares the model with the tables.
func (m *claimModel) compare() {
	list := make([]endpoint.Tag, 0, len(m.tags))
	for tag := range m.tags {
		list = append(list, tag)
	}
	m.lab.wantClaims(m.reserved, list...)
}

// Random claims, returns and binds have the results of the model.
func TestClaimsAgainstAModel(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	addrOn(t, l.A, l.A.Interface, "10.0.0.9/24")
	for seed := range uint64(4) { // each ends without claims
		m := &claimModel{lab: l, rng: rand.New(rand.NewPCG(seed, 1)), tags: map[endpoint.Tag]*app{}, programs: map[int]program{}}
		m.leases = []*app{l.open(), l.open(addrTag(modelOwned[0]), addrTag(modelOwned[1])), l.open()}
		m.give(m.leases[1], addrTag(modelOwned[0]))
		m.give(m.leases[1], addrTag(modelOwned[1]))
		for range 500 {
			switch n := m.rng.IntN(100); {
			case n < 45:
				m.claim()
			case n < 75:
				m.unclaim()
			case n < 87:
				m.bind()
			case n < 98:
				m.end()
			default:
				m.reopen()
			}
		}
		m.compare()
		for len(m.programs) > 0 {
			m.end()
		}
		for range m.leases {
			m.reopen()
		}
		for _, a := range m.leases {
			a.close()
		}
		l.wantClaims(0)
		if n := l.mux.CountedClaims(); n != 0 {
			t.Errorf("%d entries of the indexes are left", n)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// owners has the ports that an endpoint or a program has now. Each reports its ports itself.
type owners struct {
	t   *testing.T
	mu  sync.Mutex
	has map[endpoint.Tag]bool // by single port
}

func each(tag endpoint.Tag, f func(endpoint.Tag)) {
	for port := int(tag.Port); port <= int(tag.LastPort()); port++ {
		f(endpoint.Tag{Kind: tag.Kind, Addr: tag.Addr, Port: uint16(port)})
	}
}

func (o *owners) given(tag endpoint.Tag) {
	o.mu.Lock()
	defer o.mu.Unlock()
	each(tag, func(port endpoint.Tag) {
		if o.has[port] {
			o.t.Errorf("%v was given twice", port)
		}
		o.has[port] = true
	})
}

// returned is called before a tag is given back.
func (o *owners) returned(tag endpoint.Tag) {
	o.mu.Lock()
	defer o.mu.Unlock()
	each(tag, func(port endpoint.Tag) { delete(o.has, port) })
}

// worker claims and unclaims for an endpoint of its own, which it sometimes closes.
func (o *owners) worker(l *lab, rng *rand.Rand) error {
	for range 3 {
		g, lease, err := l.mux.OpenEndpoint(context.Background(), endpoint.Request{Geometry: small})
		if err != nil {
			return err
		}
		var mine []endpoint.Tag
		for range 60 {
			if i := rng.IntN(len(mine) + 2); i < len(mine) {
				o.returned(mine[i])
				if err := lease.Unclaim(context.Background(), mine[i]); err != nil {
					return err
				}
				mine = append(mine[:i], mine[i+1:]...)
				continue
			}
			tag := endpoint.Tag{Kind: pick(rng, []endpoint.TagKind{endpoint.TagUDP, endpoint.TagTCP}),
				Addr: pick(rng, []netip.Addr{l.A.Addr.Addr(), l.A.Addr6.Addr()}), Port: pick(rng, modelPorts)}
			if rng.IntN(2) == 0 {
				tag = tag.AsBlock()
			}
			if rng.IntN(4) == 0 {
				tag.Port = 0
			}
			got, err := lease.Claim(context.Background(), tag)
			switch {
			case err == nil:
				o.given(got)
				mine = append(mine, got)
			case !errors.Is(err, endpoint.ErrTagHeld):
				return err
			}
		}
		for _, tag := range mine {
			o.returned(tag)
		}
		if err := errors.Join(lease.Close(), g.Close()); err != nil {
			return err
		}
	}
	return nil
}

// user is a program of the kernel's network stack that binds ports and closes them.
func (o *owners) user(h *netlab.Host, rng *rand.Rand) error {
	for range 300 {
		p := program{network: pick(rng, []string{"udp4", "tcp4"}), at: netip.AddrPortFrom(h.Addr.Addr(), pick(rng, modelPorts)).String()}
		fd, err := p.start(h)
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			return err
		}
		tag := endpoint.Tag{Kind: modelKind(p), Addr: h.Addr.Addr(), Port: netip.MustParseAddrPort(p.at).Port()}
		o.given(tag)
		o.returned(tag)
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	return nil
}

// Endpoints and programs of the kernel's stack claim and bind the same ports at the same time: each
// port has one owner at any time, and at the end nothing is left.
func TestConcurrentClaimsOfSamePorts(t *testing.T) {
	openLastingDescriptors(t)
	l := openLab6(t)
	before := listObjects(t, l.A)
	o := &owners{t: t, has: map[endpoint.Tag]bool{}}
	var all sync.WaitGroup
	start := func(what string, f func() error) {
		all.Go(func() {
			if err := f(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	for i := range uint64(6) {
		start("an endpoint", func() error { return o.worker(l, rand.New(rand.NewPCG(i, 2))) })
	}
	for i := range uint64(2) {
		start("a program", func() error { return o.user(l.A, rand.New(rand.NewPCG(i, 3))) })
	}
	all.Wait()
	l.wantClaims(0)
	if n := l.mux.CountedClaims(); n != 0 {
		t.Errorf("%d entries of the indexes are left", n)
	}
	wantObjects(t, l.A, before)
}

// Requests at the same time get no more tags together than one after the other.
func TestLimitOfTagsInParallel(t *testing.T) {
	t.Parallel()
	l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}
	const most, each = 128, 40
	l.openConfig(mux.Config{Limits: mux.Limits{Tags: most}})
	var all sync.WaitGroup
	var refused atomic.Int32
	for i := range 8 {
		all.Go(func() {
			var tags []endpoint.Tag
			for port := range each {
				tags = append(tags, udpTag(fmt.Sprintf("10.0.0.1:%d", 7000+100*i+port)))
			}
			g, lease, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: tags})
			if err != nil {
				if !errors.Is(err, endpoint.ErrBusy) {
					t.Error(err)
				}
				refused.Add(1)
				return
			}
			t.Cleanup(func() { testutil.Must(t, errors.Join(g.Close(), lease.Close())) })
		})
	}
	all.Wait()
	if got := 8 - int(refused.Load()); got*each > most {
		t.Errorf("%d requests for %d tags were granted, of at most %d tags", got, each, most)
	}
}

// A lease that is closed during a claim keeps nothing.
func TestClaimsDuringCloseOfLease(t *testing.T) {
	openLastingDescriptors(t)
	l := openLab6(t)
	before := listObjects(t, l.A)
	for range 20 {
		g, lease, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small})
		testutil.Must(t, err)
		var all sync.WaitGroup
		for _, tag := range []endpoint.Tag{tcpBlock("10.0.0.1:0"), udpBlock("[fd00::1]:40000"), tcpTag("[::]:0"), endpoint.MessageTag(0), addrTag("fd00::77")} {
			all.Go(func() {
				for {
					got, err := lease.Claim(context.Background(), tag)
					if err == nil && tag.Kind != endpoint.TagMessage {
						err = lease.Unclaim(context.Background(), got)
					}
					if errors.Is(err, endpoint.ErrLeaseClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		testutil.Eventually(t, "a claim", func() bool {
			held, _, _, err := l.mux.Claims()
			return err != nil || len(held) > 2
		})
		testutil.Must(t, lease.Close())
		all.Wait()
		l.wantClaims(0)
		testutil.Must(t, g.Close())
	}
	wantObjects(t, l.A, before)
}
