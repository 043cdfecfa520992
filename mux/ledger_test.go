//go:build linux

package mux

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/share"
)

const mib = 1 << 20

func busyWith(err error, text string) bool {
	return errors.Is(err, endpoint.ErrBusy) && strings.Contains(err.Error(), text)
}

func TestLimitsOfAUser(t *testing.T) {
	g := newLedger(Limits{})
	terms := Terms{Rule: "rule web", Endpoints: 2, Memory: 20 * mib}
	if err := g.open(7, 8*mib, terms); err != nil {
		t.Fatal(err)
	}
	if err := g.open(7, 13*mib, terms); !busyWith(err, "uid 7 has 8MiB of at most 20MiB of memory in segments and rings (rule web) and asks for 13MiB;") {
		t.Errorf("%v", err)
	}
	if err := g.open(7, 12*mib, terms); err != nil { // exactly the limit
		t.Fatal(err)
	}
	if err := g.open(7, 1, terms); !busyWith(err, "uid 7 has 2 of at most 2 endpoints (rule web);") {
		t.Errorf("%v", err)
	}
	if err := g.open(8, 20*mib, terms); err != nil { // another user
		t.Error(err)
	}
	g.uncount(8, Usage{1, 20 * mib, 0})
	if err := g.open(7, 1<<40, Terms{}); err != nil {
		t.Error(err)
	}
	g.uncount(7, Usage{1, 1 << 40, 0})
	g.uncount(7, Usage{1, 12 * mib, 0})
	if err := g.open(7, 12*mib, terms); err != nil {
		t.Error(err)
	}
	// A lowered limit prevents new endpoints only.
	if err := g.open(7, 0, Terms{Endpoints: 5, Memory: mib}); !busyWith(err, "") {
		t.Errorf("%v", err)
	}
	g.uncount(7, Usage{1, 8 * mib, 0})
	g.uncount(7, Usage{1, 12 * mib, 0})
	if len(g.users()) != 0 {
		t.Errorf("%+v", g)
	}
}

// The limits of all users apply with any rule, and include endpoints taken over from another process.
func TestLimitsOfAllUsers(t *testing.T) {
	g := newLedger(Limits{Endpoints: 2})
	for uid := range uint32(2) {
		if err := g.open(uid, 1, Terms{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.open(0, 1, Terms{}); !busyWith(err, "all users have 2 of at most 2 endpoints") {
		t.Errorf("%v", err)
	}
	g.uncount(0, Usage{1, 1, 0})
	if err := g.open(7, 1, Terms{}); err != nil {
		t.Error(err)
	}

	g = newLedger(Limits{Memory: 100})
	g.count(3, Usage{1, 30, 0})
	if err := g.open(1, 60, Terms{}); err != nil {
		t.Fatal(err)
	}
	if err := g.open(0, 11, Terms{}); !busyWith(err, "memory cgroup") {
		t.Errorf("%v", err)
	}
	if err := g.open(2, 10, Terms{}); !busyWith(err, "memory cgroup") { // a sixteenth is for root
		t.Errorf("%v", err)
	}
	if err := g.open(0, 10, Terms{}); err != nil {
		t.Error(err)
	}
	g.uncount(1, Usage{1, 60, 0})
	if err := g.open(2, 54, Terms{}); err != nil {
		t.Error(err)
	}
}

// An endpoint is refused exactly if a model says that it exceeds a limit, in any order of opening and freeing.
func TestLedgerAgainstAModel(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	g := newLedger(Limits{})
	type one struct {
		uid   uint32
		bytes int64
	}
	var open []one
	for range 20000 {
		if random.IntN(2) == 0 {
			o := one{uint32(random.IntN(3)), int64(random.IntN(100))}
			var model Usage
			for _, e := range open {
				if e.uid == o.uid {
					model.Endpoints, model.Memory = model.Endpoints+1, model.Memory+e.bytes
				}
			}
			err := g.open(o.uid, o.bytes, Terms{Endpoints: 20, Memory: 500})
			if fits := model.Endpoints < 20 && model.Memory+o.bytes <= 500; fits != (err == nil) {
				t.Fatalf("%+v, %+v: %v", model, o, err)
			}
			if err == nil {
				open = append(open, o)
			}
		} else if len(open) > 0 {
			i := random.IntN(len(open))
			g.uncount(open[i].uid, Usage{1, open[i].bytes, 0})
			open = append(open[:i], open[i+1:]...)
		}
	}
}

// A user of whom an endpoint was revoked gets no endpoint for a time. This does not apply to root.
func TestUserOfRevokedEndpointIsRefused(t *testing.T) {
	g := newLedger(Limits{})
	g.bar(7, time.Now().Add(time.Hour))
	g.bar(8, time.Now().Add(-time.Second))
	g.bar(0, time.Now().Add(time.Hour))
	if err := g.open(7, 1, Terms{}); !busyWith(err, "an endpoint of uid 7 was revoked") {
		t.Errorf("%v", err)
	}
	for _, uid := range []uint32{0, 8, 9} {
		if err := g.open(uid, 1, Terms{}); err != nil {
			t.Errorf("uid %d: %v", uid, err)
		}
	}
}

// A user and all users have limits of tags; that of a user does not apply to root.
func TestLimitsOfTags(t *testing.T) {
	g := newLedger(Limits{Tags: 100})
	g.count(7, Usage{Tags: 30})
	for _, c := range []struct {
		uid     uint32
		n, most int64
		want    string // "": there is room
	}{
		{7, 20, 0, ""},
		{7, 11, 40, "uid 7 has 30 of at most 40 tags"},
		{7, 0, 10, ""}, // needs none
		{0, 51, 10, ""},
	} {
		err := g.room(c.uid, c.n, c.most)
		if (err == nil) != (c.want == "") || err != nil && !busyWith(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	g.count(9, Usage{Tags: 65})
	if err := g.room(0, 6, 0); !busyWith(err, "all users have 95 of at most 100 tags") {
		t.Errorf("%v", err)
	}
}

func TestTextOfSize(t *testing.T) {
	for n, want := range map[Size]string{0: "0", 1: "1", 1023: "1023", 1024: "1KiB", 1536: "1536", 3 << 19: "1536KiB", 8 << 20: "8MiB", 1 << 40: "1024GiB"} {
		if got := n.String(); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// An endpoint counts as its segment, and its rings as far as they exceed an eighth of it.
func TestCountedMemory(t *testing.T) {
	count := func(g endpoint.Geometry) int64 {
		p := paramsOf(g.WithDefaults(), Terms{})
		return countedMemory(&p)
	}
	if n := count(endpoint.Geometry{}); n != 8*mib {
		t.Errorf("an endpoint of the default geometry counts as %v", Size(n))
	}
	// 16 bytes for an entry of the receive ring, and twice for one of the transmit ring; 8 for the others.
	if n := count(endpoint.Geometry{FrameCount: 16, FillSize: 1 << 16, CompletionSize: 1 << 16, RxSize: 1 << 16, TxSize: 1 << 16}); n < 4*mib || n > 4*mib+128<<10 {
		t.Errorf("a segment of 32 KiB with the largest rings counts as %v", Size(n))
	}
	random := rand.New(rand.NewPCG(5, 6))
	for range 10000 {
		g := endpoint.Geometry{FrameSize: 2048 << random.IntN(2), FrameCount: 16 + random.Uint32N(1<<random.IntN(18)), FillSize: 1 << random.IntN(17), CompletionSize: 1 << random.IntN(17),
			RxSize: 1 << random.IntN(17), TxSize: 1 << random.IntN(17)}
		p := paramsOf(g, Terms{})
		all := g.SegmentSize() + p.KernelMemory()
		if n := count(g); n < g.SegmentSize() || 9*n < 8*all || n > all {
			t.Fatalf("%+v counts as %d of %d bytes", g, n, all)
		}
	}
}

// The transmit ring of an owner who is not trusted is bounded: by default silently, and if another size
// was asked for by an error.
func TestBoundOfTransmitRings(t *testing.T) {
	for _, c := range []struct {
		trusted     bool
		asked, want uint32 // 0: refused
	}{{false, 0, maxTx}, {false, maxTx, maxTx}, {false, 64, 64}, {false, 2 * maxTx, 0}, {false, 1 << 16, 0}, {true, 0, endpoint.DefaultRingSize}, {true, 1 << 16, 1 << 16}} {
		g := endpoint.Geometry{TxSize: c.asked}.WithDefaults()
		err := (&Terms{Trusted: c.trusted, Rule: "rule web"}).boundTx(&g, c.asked)
		if c.want == 0 && !errors.Is(err, endpoint.ErrGeometry) || c.want != 0 && (err != nil || g.TxSize != c.want) {
			t.Errorf("trusted %v, %d entries: %d, %v", c.trusted, c.asked, g.TxSize, err)
		}
	}
}

// Whatever some users hold, one who has nothing gets an endpoint with memory and tags.
func TestLedgerLeavesAShare(t *testing.T) {
	const segment = 8 * mib
	g := newLedger(Limits{Endpoints: 64, Memory: 64 * segment, Tags: 16384})
	block := endpoint.UDPTag(netip.MustParseAddrPort("10.0.0.1:4096")).AsBlock()
	for uid := uint32(1); uid <= 12; uid++ {
		for g.open(uid, segment, Terms{}) == nil {
		}
		for g.room(uid, costOf(block), 8192) == nil {
			g.count(uid, Usage{Tags: costOf(block)})
		}
		for ports := g.portsOf(block); ports.Take(share.ByUID(uid), costOf(block)) == nil; {
		}
		for g.groups.Take(share.ByUID(uid), 1) == nil {
		}
	}
	for _, uid := range []uint32{0, 100, 101} {
		err := errors.Join(g.open(uid, segment, Terms{}), g.room(uid, costOf(block), 8192), g.portsOf(block).Room(share.ByUID(uid), costOf(block)), g.groups.Room(share.ByUID(uid), 1))
		if err != nil {
			t.Errorf("uid %d: %v", uid, err)
		}
		g.count(uid, Usage{Tags: costOf(block)})
	}
}
