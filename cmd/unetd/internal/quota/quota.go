// Package quota counts the endpoints of each user and the memory of their
// segments, from the request to open one until nothing of it is left. The
// limits are not its own: whoever reserves says which one holds for it.
package quota

import (
	"fmt"
	"sync"
	"time"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/control"
)

// Limit is what one user may have at once. policy.Unlimited is no limit.
type Limit struct {
	Endpoints int64
	Bytes     int64 // of segments
}

// use is what is there.
type use struct{ endpoints, bytes int64 }

// held is an endpoint that counts.
type held struct {
	uid   uint32
	bytes int64
}

// Table counts. Its zero value is ready. Its methods may be called from any
// goroutine.
type Table struct {
	Endpoints int64 // that all users may have at once; 0: no limit
	Bytes     int64 // the same, of their segments

	mu    sync.Mutex
	all   use
	byUID map[uint32]use // users with nothing have no entry
	byID  map[uint64]held
	bars  map[uint32]time.Time // users who get nothing until then
	// An endpoint can be gone before whoever opened it has told its number.
	// While any is being opened, what is freed unknown is remembered.
	opening int
	early   map[uint64]bool
}

// Reservation is an endpoint that counts already and has no number yet.
type Reservation struct {
	t *Table
	h held
}

// Reserve counts an endpoint of a user, or returns an error that is
// control.ErrBusy. rule names the limit's origin. Bind or Cancel must follow.
func (t *Table) Reserve(uid uint32, bytes int64, limit Limit, rule string) (*Reservation, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	has := t.byUID[uid]
	if until, barred := t.bars[uid]; barred {
		if left := time.Until(until); left > 0 {
			return nil, fmt.Errorf("%w: an endpoint of uid %d was revoked (the log of unetd says why): try again in %v", control.ErrBusy, uid, left.Round(time.Second))
		}
		delete(t.bars, uid)
	}
	switch {
	case limit.Endpoints != policy.Unlimited && has.endpoints >= limit.Endpoints:
		return nil, fmt.Errorf("%w: uid %d has %d of at most %d endpoints (%s); one that was closed counts until its socket and its segment are closed and unmapped: end one, or ask an operator for more",
			control.ErrBusy, uid, has.endpoints, limit.Endpoints, rule)
	case limit.Bytes != policy.Unlimited && bytes > limit.Bytes-has.bytes:
		return nil, fmt.Errorf("%w: uid %d has %s of at most %s of memory in segments (%s) and asks for %s; that of an endpoint that was closed counts until it is unmapped: end one, ask for less, or ask an operator for more",
			control.ErrBusy, uid, policy.Bytes(has.bytes), policy.Bytes(limit.Bytes), rule, policy.Bytes(bytes))
	case t.Endpoints != 0 && t.all.endpoints >= t.Endpoints:
		return nil, fmt.Errorf("%w: all users have %d of at most %d endpoints: try later", control.ErrBusy, t.all.endpoints, t.Endpoints)
	case t.Bytes != 0 && bytes > t.Bytes-t.all.bytes:
		return nil, fmt.Errorf("%w: all users have %s of at most %s of memory in segments, which is what the memory cgroup of unetd allows: try later, or ask an operator to raise its limit (MemoryMax)",
			control.ErrBusy, policy.Bytes(t.all.bytes), policy.Bytes(t.Bytes))
	}
	h := held{uid, bytes}
	t.add(h)
	t.opening++
	return &Reservation{t, h}, nil
}

// Bar lets a user, who is not uid 0, open nothing until a time.
func (t *Table) Bar(uid uint32, until time.Time) {
	if uid == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bars == nil {
		t.bars = map[uint32]time.Time{}
	}
	t.bars[uid] = until
}

func (t *Table) add(h held) {
	if t.byUID == nil {
		t.byUID = map[uint32]use{}
	}
	t.all = use{t.all.endpoints + 1, t.all.bytes + h.bytes}
	u := t.byUID[h.uid]
	t.byUID[h.uid] = use{u.endpoints + 1, u.bytes + h.bytes}
}

func (t *Table) remove(h held) {
	t.all = use{t.all.endpoints - 1, t.all.bytes - h.bytes}
	u := t.byUID[h.uid]
	u = use{u.endpoints - 1, u.bytes - h.bytes}
	if u.endpoints < 0 || u.bytes < 0 {
		panic("BUG: more endpoints freed than there were")
	}
	if t.byUID[h.uid] = u; u == (use{}) {
		delete(t.byUID, h.uid)
	}
}

// opened ends an opening. t.mu is held.
func (t *Table) opened() {
	if t.opening--; t.opening == 0 {
		t.early = nil
	}
}

// Bind tells the number of the endpoint, which counts until Freed.
func (r *Reservation) Bind(id uint64) {
	t := r.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.early[id] {
		t.remove(r.h)
	} else {
		t.put(id, r.h)
	}
	t.opened()
}

func (t *Table) put(id uint64, h held) {
	if t.byID == nil {
		t.byID = map[uint64]held{}
	}
	t.byID[id] = h
}

// Cancel says that there is no endpoint.
func (r *Reservation) Cancel() {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	r.t.remove(r.h)
	r.t.opened()
}

// Endpoint is one that is there already.
type Endpoint struct {
	ID    uint64
	UID   uint32
	Bytes int64
}

// Adopt calls list, and counts what it returns, whatever the limits are. What
// is freed meanwhile does not count.
func (t *Table) Adopt(list func() []Endpoint) {
	t.mu.Lock()
	t.opening++
	t.mu.Unlock()
	found := list()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range found {
		if h := (held{e.UID, e.Bytes}); !t.early[e.ID] {
			t.add(h)
			t.put(e.ID, h)
		}
	}
	t.opened()
}

// Freed says that nothing is left of an endpoint. It is called once for each.
func (t *Table) Freed(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h, known := t.byID[id]; known {
		delete(t.byID, id)
		t.remove(h)
	} else if t.opening > 0 {
		if t.early == nil {
			t.early = map[uint64]bool{}
		}
		t.early[id] = true
	}
}
