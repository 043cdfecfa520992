package mux_test

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
)

// claimModel is who has what, in the simplest way to say it.
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
	modelWhole  = []string{"10.0.0.77", "fd00::77"}
	modelPorts  = []uint16{39999, 40000, 40031, 40063, 40064, 40127}
)

func pick[T any](rng *rand.Rand, list []T) T { return list[rng.IntN(len(list))] }

func modelKind(p program) endpoint.TagKind {
	if p.network[:3] == "tcp" {
		return endpoint.TagTCP
	}
	return endpoint.TagUDP
}

// meet says whether a program has a port of a tag's, or would have.
func (m *claimModel) meet(p program, tag endpoint.Tag) bool {
	at := netip.MustParseAddrPort(p.at)
	if modelKind(p) != tag.Kind || at.Port() < tag.Port || at.Port() > tag.LastPort() {
		return false
	}
	both := len(p.network) == 3
	return at.Addr() == tag.Addr || at.Addr().IsUnspecified() && (both || at.Addr().Is4() == tag.Addr.Is4())
}

// disturb says whether two programs cannot have what they want at once.
func disturb(p, q program) bool {
	a, b := netip.MustParseAddrPort(p.at), netip.MustParseAddrPort(q.at)
	if modelKind(p) != modelKind(q) || a.Port() != b.Port() {
		return false
	}
	sameFamily := len(p.network) == 3 || len(q.network) == 3 || a.Addr().Is4() == b.Addr().Is4()
	return sameFamily && (a.Addr() == b.Addr() || a.Addr().IsUnspecified() || b.Addr().IsUnspecified())
}

// shared says whether the kernel has an address too.
func shared(tag endpoint.Tag) bool {
	for _, a := range modelShared {
		if tag.Addr == netip.MustParseAddr(a) {
			return true
		}
	}
	return false
}

// want is the answer to a claim without wildcards.
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
		if shared(tag) && m.meet(p, tag) {
			return endpoint.ErrTagHeld
		}
	}
	return nil
}

// sockets is how many descriptors a claim takes.
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

// claim makes a claim at random.
func (m *claimModel) claim() {
	t := m.lab.t
	by := pick(m.rng, m.leases)
	tag := endpoint.Tag{Kind: pick(m.rng, []endpoint.TagKind{endpoint.TagUDP, endpoint.TagTCP})}
	tag.Addr = netip.MustParseAddr(pick(m.rng, append(modelShared, modelWhole...)))
	tag.Port = pick(m.rng, modelPorts)
	if m.rng.IntN(3) == 0 {
		tag = tag.AsBlock()
	}
	if m.rng.IntN(300) == 0 { // it takes long
		tag = endpoint.AddrTag(netip.MustParseAddr(pick(m.rng, modelWhole)))
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

// unclaim gives back something at random, most often something that is held.
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
				want = endpoint.ErrTagDenied // it stands on it
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
		if shared(tag) && m.meet(p, tag) {
			want = unix.EADDRINUSE
		}
	}
	for _, q := range m.programs {
		if disturb(p, q) {
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

// Whatever is claimed, given back and bound in whatever order, every answer is
// the model's.
func TestClaimsAgainstAModel(t *testing.T) {
	for seed := range uint64(4) {
		l := openLab6(t)
		onDevice(t, l.A, l.A.Interface, addAddress("10.0.0.9/24"))
		m := &claimModel{lab: l, rng: rand.New(rand.NewPCG(seed, 1)), tags: map[endpoint.Tag]*app{}, programs: map[int]program{}}
		m.leases = []*app{l.open(), l.open(addrTag(modelWhole[0]), addrTag(modelWhole[1])), l.open()}
		m.give(m.leases[1], addrTag(modelWhole[0]))
		m.give(m.leases[1], addrTag(modelWhole[1]))
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
