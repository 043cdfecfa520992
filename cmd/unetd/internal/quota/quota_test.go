package quota

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/control"
)

const mib = 1 << 20

func TestLimits(t *testing.T) {
	var q Table
	limit := Limit{Endpoints: 2, Bytes: 20 * mib}
	reserve := func(uid uint32, bytes int64) (*Reservation, error) { return q.Reserve(uid, bytes, limit, "rule web") }
	first, err := reserve(7, 8*mib)
	if err != nil {
		t.Fatal(err)
	}
	first.Bind(1)
	if _, err := reserve(7, 13*mib); !errors.Is(err, control.ErrBusy) || !strings.Contains(err.Error(), "uid 7 has 8MiB of at most 20MiB of memory in segments (rule web) and asks for 13MiB;") {
		t.Errorf("%v", err)
	}
	second, err := reserve(7, 12*mib) // just
	if err != nil {
		t.Fatal(err)
	}
	// Counted before it is bound.
	if _, err := reserve(7, 1); !errors.Is(err, control.ErrBusy) || !strings.Contains(err.Error(), "uid 7 has 2 of at most 2 endpoints (rule web);") {
		t.Errorf("%v", err)
	}
	if r, err := reserve(8, 20*mib); err != nil { // another user
		t.Error(err)
	} else {
		r.Cancel()
	}
	if r, err := q.Reserve(7, 1<<40, Limit{policy.Unlimited, policy.Unlimited}, "x"); err != nil {
		t.Error(err)
	} else {
		r.Cancel()
	}
	second.Cancel()
	if r, err := reserve(7, 12*mib); err != nil {
		t.Error(err)
	} else {
		r.Bind(2)
	}
	q.Freed(1)
	if r, err := reserve(7, 8*mib); err != nil {
		t.Error(err)
	} else {
		r.Cancel()
	}
	// A limit that was lowered keeps new ones out, and nothing else.
	if _, err := q.Reserve(7, 0, Limit{Endpoints: 5, Bytes: mib}, "x"); !errors.Is(err, control.ErrBusy) {
		t.Errorf("%v", err)
	}
	q.Freed(2)
	if len(q.byUID)+len(q.byID)+len(q.early) != 0 || q.opening != 0 || q.all != (use{}) {
		t.Errorf("%+v", &q)
	}
}

// All users together have a limit that no rule lifts.
func TestLimitOfAll(t *testing.T) {
	q := Table{Endpoints: 2}
	none := Limit{policy.Unlimited, policy.Unlimited}
	for uid := range uint32(2) {
		r, err := q.Reserve(uid, 1, none, "")
		if err != nil {
			t.Fatal(err)
		}
		r.Bind(uint64(uid))
	}
	if _, err := q.Reserve(0, 1, none, ""); !errors.Is(err, control.ErrBusy) || !strings.Contains(err.Error(), "all users have 2 of at most 2 endpoints") {
		t.Errorf("%v", err)
	}
	q.Freed(0)
	if r, err := q.Reserve(7, 1, none, ""); err != nil {
		t.Error(err)
	} else {
		r.Cancel()
	}
}

// What is freed before its number was told counts no longer, and numbers that
// nobody has told are forgotten.
func TestFreedEarly(t *testing.T) {
	var q Table
	r, err := q.Reserve(1, 10, Limit{policy.Unlimited, policy.Unlimited}, "")
	if err != nil {
		t.Fatal(err)
	}
	q.Freed(3)
	q.Freed(4)
	r.Bind(3)
	if len(q.byUID)+len(q.byID)+len(q.early) != 0 || q.opening != 0 {
		t.Errorf("%+v", &q)
	}
	q.Freed(5)
	q.Adopt(func() []Endpoint {
		q.Freed(6)
		return []Endpoint{{5, 1, 10}, {6, 1, 10}}
	})
	if q.byUID[1] != (use{1, 10}) || len(q.early) != 0 {
		t.Errorf("%+v", &q)
	}
	q.Freed(5)
	if len(q.byUID)+len(q.byID) != 0 {
		t.Errorf("%+v", &q)
	}
}

// In any order of opening and freeing, what is counted is what is there.
func TestAgainstModel(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var q Table
	type open struct {
		r *Reservation
		h held
	}
	var opening []open
	there := map[uint64]held{}
	next := uint64(0)
	for range 20000 {
		switch random.IntN(4) {
		case 0:
			h := held{uint32(random.IntN(3)), int64(random.IntN(100))}
			r, err := q.Reserve(h.uid, h.bytes, Limit{20, 500}, "")
			var model use
			for _, o := range opening {
				if o.h.uid == h.uid {
					model.endpoints, model.bytes = model.endpoints+1, model.bytes+o.h.bytes
				}
			}
			for _, o := range there {
				if o.uid == h.uid {
					model.endpoints, model.bytes = model.endpoints+1, model.bytes+o.bytes
				}
			}
			if fits := model.endpoints < 20 && model.bytes+h.bytes <= 500; fits != (err == nil) {
				t.Fatalf("%+v, %+v: %v", model, h, err)
			}
			if err == nil {
				opening = append(opening, open{r, h})
			}
		case 1, 2:
			if len(opening) == 0 {
				continue
			}
			i := random.IntN(len(opening))
			o := opening[i]
			opening = append(opening[:i:i], opening[i+1:]...)
			next++
			switch random.IntN(3) {
			case 0:
				o.r.Cancel()
			case 1:
				q.Freed(next)
				o.r.Bind(next)
			default:
				o.r.Bind(next)
				there[next] = o.h
			}
		default:
			for id := range there {
				delete(there, id)
				q.Freed(id)
				break
			}
		}
	}
}

// All users together have a bound of bytes too, which takes in what was adopted.
func TestBytesOfAll(t *testing.T) {
	q := Table{Bytes: 100}
	unlimited := Limit{policy.Unlimited, policy.Unlimited}
	q.Adopt(func() []Endpoint { return []Endpoint{{ID: 7, UID: 3, Bytes: 30}} })
	first, err := q.Reserve(1, 60, unlimited, "rule a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Reserve(0, 11, unlimited, "rule b"); !errors.Is(err, control.ErrBusy) || !strings.Contains(err.Error(), "memory cgroup") {
		t.Errorf("%v", err)
	}
	if _, err := q.Reserve(2, 10, unlimited, "rule b"); err != nil {
		t.Error(err)
	}
	first.Cancel()
	if _, err := q.Reserve(0, 60, unlimited, "rule b"); err != nil {
		t.Error(err)
	}
}
