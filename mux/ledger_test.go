//go:build linux

package mux

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
)

const mib = 1 << 20

func newLedger(l Limits) *ledger {
	return &ledger{limits: l, byUID: map[uint32]Usage{}, bars: map[uint32]time.Time{}}
}

func busyWith(err error, text string) bool {
	return errors.Is(err, endpoint.ErrBusy) && strings.Contains(err.Error(), text)
}

func TestLimitsOfAUser(t *testing.T) {
	g := newLedger(Limits{})
	terms := Terms{Rule: "rule web", Endpoints: 2, Memory: 20 * mib}
	if err := g.open(7, 8*mib, terms); err != nil {
		t.Fatal(err)
	}
	if err := g.open(7, 13*mib, terms); !busyWith(err, "uid 7 has 8MiB of at most 20MiB of memory in segments (rule web) and asks for 13MiB;") {
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
	if len(g.byUID) != 0 || g.all != (Usage{}) {
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
	if err := g.open(2, 10, Terms{}); err != nil {
		t.Error(err)
	}
	g.uncount(1, Usage{1, 60, 0})
	if err := g.open(0, 60, Terms{}); err != nil {
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
	g := newLedger(Limits{Tags: 100, TagsPerUID: 50})
	g.count(7, Usage{Tags: 30})
	for _, c := range []struct {
		uid     uint32
		n, most int64
		want    string // "": there is room
	}{
		{7, 20, 0, ""},
		{7, 21, 0, "uid 7 has 30 of at most 50 tags"},
		{7, 11, 40, "uid 7 has 30 of at most 40 tags"},
		{7, 21, 90, "uid 7 has 30 of at most 50 tags"},
		{7, 0, 10, ""}, // needs none
		{0, 51, 10, ""},
	} {
		err := g.room(c.uid, c.n, c.most)
		if (err == nil) != (c.want == "") || err != nil && !busyWith(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	g.count(9, Usage{Tags: 65})
	if err := g.room(0, 6, 0); !busyWith(err, "all applications have 95 of at most 100 tags") {
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
