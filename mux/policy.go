//go:build linux

package mux

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/share"
	"github.com/unet-go/unet/internal/xsk"
)

// Owner is the process that an endpoint is opened for.
type Owner struct {
	PID      int
	UID, GID uint32
	Groups   []uint32
	Cgroup   string // path of its version 2 cgroup; "": not known
}

// Policy decides what a user may have. The mux calls it for each request. What was granted
// stays granted when the rules change; rates change with them ([Mux.UpdateRates]). Methods are called from any goroutine.
type Policy interface {
	// Open returns the terms on which an owner may open an endpoint; os.ErrPermission: the
	// owner may not. It does not check the request's tags and geometry.
	Open(o Owner, req endpoint.Request) (Terms, error)
	// Claims returns the rule for the tags of an owner. The error is the reason why there
	// is none.
	Claims(o Owner) (Claims, error)
	// RatesOf returns the limits of what an owner's endpoint may send, and its user; false: there is
	// no rule for the owner any more.
	RatesOf(o Owner) (endpoint.Rates, bool)
}

// Claims is what one user may claim.
type Claims interface {
	// String names the rule in errors.
	String() string
	// Tags is the number of tags that the user may hold at once; 0: no limit. A block
	// counts as endpoint.BlockPorts tags. The limit does not apply to uid 0.
	Tags() int64
	// Permits returns nil if t, a tag without wildcards, may be claimed, else
	// endpoint.ErrTagDenied.
	Permits(t endpoint.Tag) error
	// Choices returns the tags that t may become, each once, in any order;
	// endpoint.ErrTagDenied: there is none. t has an address, and its port or message tag
	// is 0. free: the rule permits every port that the system does not reserve for root, so
	// the kernel may choose one.
	Choices(t endpoint.Tag) (list iter.Seq[endpoint.Tag], free bool, err error)
	// Translated returns nil if t, a tag of ports or an owned address, may be claimed although
	// network address translation of this host may use its ports for other flows, else
	// endpoint.ErrTagDenied. by names the translating rule.
	Translated(t endpoint.Tag, by string) error
}

// Terms are the rights of an endpoint's owner and the limits of its user.
type Terms struct {
	// Rule names the source of the limits in errors.
	Rule string
	// Endpoints and Memory are the number of endpoints and of bytes of segments and rings that
	// the user may have at once; 0: no limit. A socket or segment that is still open after its
	// lease counts (ADR 17). Rings count as far as they have more than an eighth of the segment
	// (ADR 50).
	Endpoints, Memory int64
	// Trusted owners may receive frames of several buffers on a port, such as TSO
	// super-frames of a kernel peer on a virtual link. The kernel relies on the owner's fill
	// ring when it receives them, and can crash if the owner changes the ring at that
	// moment. Super-frames for other owners are segmented (rx_cut), and frames that are
	// still longer than a frame of the segment are dropped (deliver_too_long).
	Trusted bool
	// Infrastructure owners may send from their owned addresses any IP protocol, and UDP as
	// DHCP servers and as routers (RIP). Others may send TCP, other UDP, and ICMP echo and
	// errors.
	Infrastructure bool
	// NoMemoryPaths: the endpoint exchanges no frames with other endpoints by memory, but all by its port.
	NoMemoryPaths bool
	// Rates are the limits of what the endpoint may send, and all endpoints of its user. They are for
	// endpoints on ports; with any, the owner gets no queue.
	Rates endpoint.Rates
	// Registered is the memory that the user may have registered with sockets, in bytes, by
	// the kernel's own count (xsk.Charge); 0: it is not counted. The count includes memory
	// of a closed socket that other sockets share. Register is the command of the process
	// that registers it.
	Registered int64
	Register   []string
}

// maxTx is the largest TX ring of an owner who is not trusted, in entries. The owner can have the
// kernel send a whole ring in one system call (XDP_MAX_TX_SKB_BUDGET), which nothing interrupts
// on a kernel without preemption (ADR 50).
const maxTx = 256

// boundTx bounds the TX ring of a geometry. asked is the size that was asked for; 0: the default.
func (t *Terms) boundTx(g *endpoint.Geometry, asked uint32) error {
	switch {
	case t.Trusted:
	case asked == 0:
		g.TxSize = min(g.TxSize, maxTx)
	case asked > maxTx:
		return fmt.Errorf("%w: tx ring of %d entries: at most %d for a user who is not trusted (%s): ask for fewer, or ask an operator for trusted: true", endpoint.ErrGeometry, asked, maxTx, t.Rule)
	}
	return nil
}

// countedMemory is the memory of an endpoint that counts for its user, in bytes: the segment, and
// what the kernel allocates for rings and frames beyond an eighth of the segment. So an endpoint of
// the default geometry counts as its segment, and a user never has more than 9/8 of its limit.
func countedMemory(p *xsk.Params) int64 {
	const free = 8
	segment := int64(p.FrameSize) * int64(p.FrameCount)
	return segment + max(0, p.KernelMemory()-segment/free)
}

// Permit returns a policy that permits every user every tag, on these terms.
func Permit(t Terms) Policy { return permit(t) }

type permit Terms

func (p permit) Open(Owner, endpoint.Request) (Terms, error) { return Terms(p), nil }
func (p permit) Claims(Owner) (Claims, error)                { return p, nil }
func (p permit) RatesOf(Owner) (endpoint.Rates, bool)        { return p.Rates, true }
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

// String writes s in the largest unit of which it is a multiple: 8MiB.
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

// Limits are the limits of all endpoints together; 0: no limit. Package share divides them among
// users. A block counts as endpoint.BlockPorts tags.
type Limits struct {
	Endpoints int64
	Memory    int64 // bytes of segments and rings, as those of Terms
	Tags      int64 // at most MaxTags
}

// MaxTags is the number of tags for which the kernel's tables have room.
const MaxTags = bpf.Tags

// barredFor is the time for which a user gets no endpoint after one was revoked. It limits
// the rate of attempts to change a fill ring between its check and the kernel's read (ADR 11).
const barredFor = time.Minute

// ledger counts what each user has. An endpoint counts from its request until its socket and
// its segment are closed, which may be long after the end of its lease (ADR 17). A tag counts
// while it is held. Endpoints taken over from another process count, also beyond the limits.
type ledger struct {
	limits                  Limits
	endpoints, memory, tags *share.Shares
	groups                  *share.Shares // tags of groups, also counted in tags
	ports                   map[hostPorts]*share.Shares
	bars                    map[uint32]time.Time // until when a user gets no endpoint
}

// hostPorts are the ports of a protocol on an address of the host, which endpoints share.
type hostPorts struct {
	kind endpoint.TagKind
	addr netip.Addr
}

func newLedger(l Limits) *ledger {
	l.Tags = min(l.Tags, MaxTags)
	return &ledger{
		limits:    l,
		endpoints: share.New(share.Limits{What: "endpoints", Total: l.Endpoints}),
		memory: share.New(share.Limits{
			What: "of memory in segments and rings", Total: l.Memory, Least: endpoint.Geometry{}.WithDefaults().SegmentSize(),
			Text:   func(n int64) string { return Size(n).String() },
			Remedy: "try later, or ask an operator to raise the limit of the memory cgroup of unetd (MemoryMax)",
		}),
		tags:   share.New(share.Limits{What: "tags", Total: l.Tags, Least: endpoint.BlockPorts}),
		groups: share.New(share.Limits{What: "tags of groups", Total: bpf.Groups, PerUser: groupsPerUID}),
		ports:  map[hostPorts]*share.Shares{},
		bars:   map[uint32]time.Time{},
	}
}

// portsOf is the shares of the ports of a tag's address, which is one of the host.
func (g *ledger) portsOf(t endpoint.Tag) *share.Shares {
	of := hostPorts{t.Kind, t.Addr}
	if g.ports[of] == nil {
		protocol := "UDP"
		if t.Kind == endpoint.TagTCP {
			protocol = "TCP"
		}
		g.ports[of] = share.New(share.Limits{What: fmt.Sprintf("%s ports of %v", protocol, t.Addr), Total: allPorts, Least: endpoint.BlockPorts})
	}
	return g.ports[of]
}

// of is what a user has.
func (g *ledger) of(uid uint32) Usage {
	u := share.ByUID(uid)
	return Usage{g.endpoints.Held(u), g.memory.Held(u), g.tags.Held(u)}
}

// users is what each user has who has something.
func (g *ledger) users() map[uint32]Usage {
	all := map[uint32]Usage{}
	for _, s := range []*share.Shares{g.endpoints, g.memory, g.tags} {
		s.Each(func(u share.User, _ int64) { all[u.UID] = Usage{} })
	}
	for uid := range all {
		all[uid] = g.of(uid)
	}
	return all
}

// count adds to what a user has.
func (g *ledger) count(uid uint32, more Usage) {
	u := share.ByUID(uid)
	g.endpoints.Add(u, more.Endpoints)
	g.memory.Add(u, more.Memory)
	g.tags.Add(u, more.Tags)
}

// uncount is the inverse of count.
func (g *ledger) uncount(uid uint32, less Usage) {
	u := share.ByUID(uid)
	g.endpoints.Return(u, less.Endpoints)
	g.memory.Return(u, less.Memory)
	g.tags.Return(u, less.Tags)
}

func (g *ledger) bar(uid uint32, until time.Time) {
	if uid != 0 {
		g.bars[uid] = until
	}
}

// open counts an endpoint, or returns why its user gets none now (endpoint.ErrBusy).
func (g *ledger) open(uid uint32, bytes int64, t Terms) error {
	if until, barred := g.bars[uid]; barred {
		if left := time.Until(until); left > 0 {
			return fmt.Errorf("%w: an endpoint of uid %d was revoked (the log of unetd says why): try again in %v", endpoint.ErrBusy, uid, left.Round(time.Second))
		}
		delete(g.bars, uid)
	}
	switch has := g.of(uid); {
	case t.Endpoints != 0 && has.Endpoints >= t.Endpoints:
		return fmt.Errorf("%w: uid %d has %d of at most %d endpoints (%s); one that was closed counts until its socket and its segment are closed and unmapped: end one, or ask an operator for more",
			endpoint.ErrBusy, uid, has.Endpoints, t.Endpoints, t.Rule)
	case t.Memory != 0 && bytes > t.Memory-has.Memory:
		return fmt.Errorf("%w: uid %d has %v of at most %v of memory in segments and rings (%s) and asks for %v; that of an endpoint that was closed counts until it is unmapped: end one, ask for less, or ask an operator for more",
			endpoint.ErrBusy, uid, Size(has.Memory), Size(t.Memory), t.Rule, Size(bytes))
	}
	u := share.ByUID(uid)
	if err := g.endpoints.Take(u, 1); err != nil {
		return err
	}
	if err := g.memory.Take(u, bytes); err != nil {
		g.endpoints.Return(u, 1)
		return err
	}
	return nil
}

// room returns nil if a user may hold n more tags, else endpoint.ErrBusy. most is the
// policy's limit for the user; 0: no limit.
func (g *ledger) room(uid uint32, n, most int64) error {
	u := share.ByUID(uid)
	if has := g.tags.Held(u); n != 0 && uid != 0 && most != 0 && n > most-has {
		return fmt.Errorf("%w: uid %d has %d of at most %d tags (a block of ports is %d): give some back, or try later", endpoint.ErrBusy, uid, has, most, endpoint.BlockPorts)
	}
	return g.tags.Room(u, n)
}

// costOf is the number that tags count as.
func costOf(tags ...endpoint.Tag) int64 {
	n := len(tags)
	for _, t := range tags {
		if t.Block {
			n += endpoint.BlockPorts - 1
		}
	}
	return int64(n)
}
