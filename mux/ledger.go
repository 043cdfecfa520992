package mux

import (
	"fmt"
	"time"

	"github.com/unet-go/unet/endpoint"
)

// Limits are what all endpoints may have together, whatever the policy gives each user.
// 0: no limit. A block counts as endpoint.BlockPorts tags.
type Limits struct {
	Endpoints    int64
	Memory       int64 // bytes of segments
	Tags         int64
	TagsPerUID   int64 // of them, those of one user; it does not bind uid 0
	TagsPerLease int64 // of them, those of one lease
}

// barredFor is how long a user gets no endpoint after one was revoked: each attempt to
// harm the host by a race costs that.
const barredFor = time.Minute

// use is what endpoints have: their number, bytes of segments, and tags.
type use struct{ endpoints, bytes, tags int64 }

// ledger counts what each user has. An endpoint counts from the request until nothing of
// it is left, which may be long after the end of its lease (ADR 17); a tag counts while
// it is held. What was taken over from another process counts, whatever the limits are.
type ledger struct {
	limits Limits
	all    use
	byUID  map[uint32]use       // users with nothing have no entry
	bars   map[uint32]time.Time // users who get no endpoint until then
}

// count adds to what a user has.
func (g *ledger) count(uid uint32, more use) {
	g.all = use{g.all.endpoints + more.endpoints, g.all.bytes + more.bytes, g.all.tags + more.tags}
	u := g.byUID[uid]
	u = use{u.endpoints + more.endpoints, u.bytes + more.bytes, u.tags + more.tags}
	if u.endpoints < 0 || u.bytes < 0 || u.tags < 0 {
		panic("BUG: a user has less than nothing")
	}
	if g.byUID[uid] = u; u == (use{}) {
		delete(g.byUID, uid)
	}
}

// uncount is the inverse.
func (g *ledger) uncount(uid uint32, less use) {
	g.count(uid, use{-less.endpoints, -less.bytes, -less.tags})
}

func (g *ledger) bar(uid uint32, until time.Time) {
	if uid != 0 {
		g.bars[uid] = until
	}
}

// open counts an endpoint, or says why its user gets none now (endpoint.ErrBusy).
func (g *ledger) open(uid uint32, bytes int64, t Terms) error {
	if until, barred := g.bars[uid]; barred {
		if left := time.Until(until); left > 0 {
			return fmt.Errorf("%w: an endpoint of uid %d was revoked (the log of unetd says why): try again in %v", endpoint.ErrBusy, uid, left.Round(time.Second))
		}
		delete(g.bars, uid)
	}
	has := g.byUID[uid]
	switch {
	case t.Endpoints != 0 && has.endpoints >= t.Endpoints:
		return fmt.Errorf("%w: uid %d has %d of at most %d endpoints (%s); one that was closed counts until its socket and its segment are closed and unmapped: end one, or ask an operator for more",
			endpoint.ErrBusy, uid, has.endpoints, t.Endpoints, t.Rule)
	case t.Memory != 0 && bytes > t.Memory-has.bytes:
		return fmt.Errorf("%w: uid %d has %v of at most %v of memory in segments (%s) and asks for %v; that of an endpoint that was closed counts until it is unmapped: end one, ask for less, or ask an operator for more",
			endpoint.ErrBusy, uid, Size(has.bytes), Size(t.Memory), t.Rule, Size(bytes))
	case g.limits.Endpoints != 0 && g.all.endpoints >= g.limits.Endpoints:
		return fmt.Errorf("%w: all users have %d of at most %d endpoints: try later", endpoint.ErrBusy, g.all.endpoints, g.limits.Endpoints)
	case g.limits.Memory != 0 && bytes > g.limits.Memory-g.all.bytes:
		return fmt.Errorf("%w: all users have %v of at most %v of memory in segments, which is what the memory cgroup of unetd allows: try later, or ask an operator to raise its limit (MemoryMax)",
			endpoint.ErrBusy, Size(g.all.bytes), Size(g.limits.Memory))
	}
	g.count(uid, use{endpoints: 1, bytes: bytes})
	return nil
}

// room says why n tags more cannot be held (endpoint.ErrBusy): by a lease that has some,
// or by its user, who may have so many; 0: any number.
func (g *ledger) room(uid uint32, lease, n, most int64) error {
	most = atMost(most, g.limits.TagsPerUID)
	has := g.byUID[uid].tags
	switch {
	case n == 0:
	case g.limits.TagsPerLease != 0 && n > g.limits.TagsPerLease-lease:
		return fmt.Errorf("%w: the endpoint has %d of at most %d tags (a block of ports is %d): give some back, or open another endpoint",
			endpoint.ErrBusy, lease, g.limits.TagsPerLease, endpoint.BlockPorts)
	case uid != 0 && most != 0 && n > most-has:
		return fmt.Errorf("%w: uid %d has %d of at most %d tags: give some back, or try later", endpoint.ErrBusy, uid, has, most)
	case g.limits.Tags != 0 && n > g.limits.Tags-g.all.tags:
		return fmt.Errorf("%w: all applications have %d of at most %d tags: try later", endpoint.ErrBusy, g.all.tags, g.limits.Tags)
	}
	return nil
}

// atMost is the smaller of two limits, of which 0 is none.
func atMost(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// costOf is what tags count.
func costOf(tags ...endpoint.Tag) int64 {
	n := len(tags)
	for _, t := range tags {
		if t.Block {
			n += endpoint.BlockPorts - 1
		}
	}
	return int64(n)
}
