package mux

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/unet-go/unet/endpoint"
)

// Owner is the process that an endpoint is opened for.
type Owner struct {
	PID      int
	UID, GID uint32
	Groups   []uint32
}

// Policy says who may have what. The mux asks it about each request, by the rules of that
// moment. It does not ask again about what was granted: no change of the rules takes
// anything away. Methods are called from any goroutine.
type Policy interface {
	// Open says on which terms an owner may open an endpoint, or why not
	// (os.ErrPermission). It is not about the request's tags and geometry.
	Open(o Owner, req endpoint.Request) (Terms, error)
	// Claims is the rule for the tags of an owner, or the reason why there is none.
	Claims(o Owner) (Claims, error)
}

// Claims is what one user may claim.
type Claims interface {
	// String names the rule in errors.
	String() string
	// Tags is how many tags the user may hold at once, a block counting as
	// endpoint.BlockPorts; 0: any number. It does not bind uid 0.
	Tags() int64
	// Permits is nil for a tag without wildcards that may be claimed, else
	// endpoint.ErrTagDenied.
	Permits(t endpoint.Tag) error
	// Choices are the tags that t may become, whose address is given and whose port or
	// message tag is 0, each once, in any order; endpoint.ErrTagDenied: none. free says
	// that the rule permits every port of those that anybody may choose, so that the
	// kernel can be asked for a free one.
	Choices(t endpoint.Tag) (list iter.Seq[endpoint.Tag], free bool, err error)
	// Translated is nil if t may be claimed although network address translation of this
	// host may use its ports for others, else endpoint.ErrTagDenied. by says what translates.
	Translated(t endpoint.Tag, by string) error
}

// Terms are what an endpoint's owner is trusted with, and the limits of its user.
type Terms struct {
	// Rule names where the limits come from, in errors.
	Rule string
	// Endpoints and Memory are how many endpoints, and how many bytes of segments, the
	// user may have at once; 0: any number. What lingers after its lease counts (ADR 17).
	Endpoints, Memory int64
	// Trusted owners may receive frames of several buffers on a port, as a kernel
	// peer on a virtual link sends them (TSO). The kernel's way of receiving those
	// relies on the owner's fill ring: one who changes it at the right moment brings
	// the kernel down. Everybody else's super-frames are cut on the way (rx_cut), and
	// what is longer than a frame of the segment even so is dropped (deliver_too_long).
	Trusted bool
	// Infrastructure owners may send from their whole addresses what only the
	// infrastructure of a network sends: any IP protocol, and UDP as servers of DHCP and
	// as routers (RIP). Others may send UDP, TCP, and echo and errors of ICMP.
	Infrastructure bool
	// Registered is how much memory the owner's user may have registered with
	// sockets in all, in bytes, by the kernel's own count (xsk.Charge); 0: it is not
	// counted. That includes what outlives its socket in others that share its
	// memory. Register is the command of the process that registers it.
	Registered int64
	Register   []string
}

// Permit is a policy by which everybody may claim every tag, on these terms.
func Permit(t Terms) Policy { return permit(t) }

type permit Terms

func (p permit) Open(Owner, endpoint.Request) (Terms, error) { return Terms(p), nil }
func (p permit) Claims(Owner) (Claims, error)                { return p, nil }
func (p permit) String() string                              { return "the mux" }
func (p permit) Tags() int64                                 { return 0 }
func (p permit) Permits(endpoint.Tag) error                  { return nil }
func (p permit) Translated(t endpoint.Tag, by string) error  { return nil }

func (p permit) Choices(t endpoint.Tag) (iter.Seq[endpoint.Tag], bool, error) {
	return func(yield func(endpoint.Tag) bool) {
		for n := rand.Uint32(); t.Kind == endpoint.TagMessage; n++ {
			if n != 0 && !yield(endpoint.MessageTag(n)) {
				return
			}
		}
	}, true, nil
}

// Size is a number of bytes.
type Size int64

// String gives it in the largest unit that it is a multiple of: 8MiB.
func (s Size) String() string {
	for _, unit := range []struct {
		shift uint
		name  string
	}{{30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if s != 0 && s&(1<<unit.shift-1) == 0 {
			return fmt.Sprintf("%d%s", s>>unit.shift, unit.name)
		}
	}
	return fmt.Sprintf("%d", int64(s))
}

// Limits are what all endpoints may have together, whatever the policy gives each user.
// 0: no limit. A block counts as endpoint.BlockPorts tags.
type Limits struct {
	Endpoints  int64
	Memory     int64 // bytes of segments
	Tags       int64
	TagsPerUID int64 // tags of one user; it does not bind uid 0
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

// room returns nil if a user may hold n more tags, else endpoint.ErrBusy. most is the
// policy's limit for the user; 0: no limit.
func (g *ledger) room(uid uint32, n, most int64) error {
	most = atMost(most, g.limits.TagsPerUID)
	has := g.byUID[uid].tags
	switch {
	case n == 0:
	case uid != 0 && most != 0 && n > most-has:
		return fmt.Errorf("%w: uid %d has %d of at most %d tags (a block of ports is %d): give some back, or try later", endpoint.ErrBusy, uid, has, most, endpoint.BlockPorts)
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
