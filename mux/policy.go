package mux

import (
	"fmt"
	"iter"
	"math/rand/v2"

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
