//go:build linux

package policy

import (
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// Authority is the policy in force for one interface, as a [mux.Policy]. Its errors name what an
// operator has to change.
type Authority struct {
	Source    *Source
	Interface string
	AltNames  []string // other names of the interface, as ip link shows them
	Log       *slog.Logger

	// Register is mux.Terms.Register. MaxCharge is the largest amount of registered memory
	// that the kernel can count for a user, in bytes.
	Register  []string
	MaxCharge int64

	natWarned sync.Map // set of natWarning
}

// RegisteredTimes is the ratio of the limit of registered memory to a rule's memory. The kernel's
// count also has memory that the mux does not count, is for all interfaces together, and
// decreases later than that of the mux.
const RegisteredTimes = 4

// natWarning is the key of a warning that is logged once.
type natWarning struct{ rule, by string }

// rule returns the rule that now applies to an owner (nil: none), and its policy.
func (a *Authority) rule(o mux.Owner) (*Rule, *Policy) {
	p := a.Source.Policy()
	return p.Match(o, a.Interface, a.AltNames...), p
}

// HasRule reports whether there is a rule for an owner.
func (a *Authority) HasRule(o mux.Owner) bool {
	r, _ := a.rule(o)
	return r != nil
}

// noRule is the error if there is no rule for a user.
func (a *Authority) noRule(of *Policy, o mux.Owner) error {
	if of.File == "" {
		return fmt.Errorf("uid %d on %s: without a policy file only uid 0 gets endpoints: ask an operator to write %s and to reload unetd", o.UID, a.Interface, DefaultFile)
	}
	if slices.ContainsFunc(of.Rules, func(r *Rule) bool { return r.Cgroups != nil }) {
		return fmt.Errorf("no rule of %s is for uid %d in cgroup %q on %s: ask an operator to add one and to reload unetd", of, o.UID, o.Cgroup, a.Interface)
	}
	return fmt.Errorf("no rule of %s is for uid %d on %s: ask an operator to add one and to reload unetd", of, o.UID, a.Interface)
}

// Open implements mux.Policy.
func (a *Authority) Open(o mux.Owner, req endpoint.Request) (mux.Terms, error) {
	r, of := a.rule(o)
	switch {
	case r == nil:
		return mux.Terms{}, fmt.Errorf("%w: %w", os.ErrPermission, a.noRule(of, o))
	case r.Endpoints == 0:
		return mux.Terms{}, fmt.Errorf("%w: %s gives uid %d no endpoints on %s", os.ErrPermission, r.nameIn(of), o.UID, a.Interface)
	case req.Attach == endpoint.AttachQueue && !r.Trusted:
		return mux.Terms{}, fmt.Errorf("%w: %s gives uid %d no queues of %s: attach to a port, or ask an operator for trusted: true",
			os.ErrPermission, r.nameIn(of), o.UID, a.Interface)
	case req.Attach == endpoint.AttachQueue && !r.Queues.Has(req.Queue):
		return mux.Terms{}, fmt.Errorf("%w: %s does not give uid %d queue %d of %s (queues: %v): ask for one of these, or ask an operator to add it",
			os.ErrPermission, r.nameIn(of), o.UID, req.Queue, a.Interface, r.Queues)
	}
	t := mux.Terms{Rule: r.nameIn(of), Endpoints: max(r.Endpoints, 0), Memory: max(r.Memory, 0), Trusted: r.Trusted, Infrastructure: r.Infrastructure, NoMemoryPaths: r.NoMemoryPaths, Rates: r.Rates}
	if r.Memory != Unlimited && r.Memory <= a.MaxCharge/RegisteredTimes {
		t.Registered, t.Register = RegisteredTimes*r.Memory, a.Register
	}
	return t, nil
}

// Claims implements mux.Policy.
func (a *Authority) Claims(o mux.Owner) (mux.Claims, error) {
	r, of := a.rule(o)
	if r == nil {
		return nil, a.noRule(of, o)
	}
	return newClaims(a, r, of, o.UID), nil
}

// RatesOf implements mux.Policy.
func (a *Authority) RatesOf(o mux.Owner) (endpoint.Rates, bool) {
	r, _ := a.rule(o)
	if r == nil {
		return endpoint.Rates{}, false
	}
	return r.Rates, true
}

// MayAsk returns nil if an owner is an operator: root, the uid of unetd, and users whose rule has
// operator: true.
func (a *Authority) MayAsk(o mux.Owner) error {
	if o.UID == 0 || int(o.UID) == os.Geteuid() {
		return nil
	}
	if r, _ := a.rule(o); r != nil && r.Operator {
		return nil
	}
	return fmt.Errorf("%w: uid %d is not an operator: run it as root, or ask an operator for operator: true in a rule", os.ErrPermission, o.UID)
}

// claims is what a rule permits one user.
type claims struct {
	a   *Authority
	r   *Rule
	of  *Policy
	uid uint32
	// first is FirstUnprivileged, read once: a request can have a thousand tags, and the mux waits meanwhile.
	first func() uint16
}

func newClaims(a *Authority, r *Rule, of *Policy, uid uint32) *claims {
	return &claims{a, r, of, uid, sync.OnceValue(FirstUnprivileged)}
}

// floor is Floor for the user.
func (c *claims) floor() uint16 {
	if c.uid == 0 {
		return 1
	}
	return c.first()
}

func (c *claims) String() string { return c.r.nameIn(c.of) }

func (c *claims) Tags() int64 { return max(c.r.Ports, 0) }

func (c *claims) Permits(t endpoint.Tag) error {
	if !c.r.Permits(t, c.floor()) {
		return c.refuse(t)
	}
	return nil
}

func (c *claims) Choices(t endpoint.Tag) (iter.Seq[endpoint.Tag], bool, error) {
	choices := c.r.Choices(t, c.floor(), c.first())
	count := choices.Count()
	if count == 0 {
		return nil, false, c.refuse(t)
	}
	start := rand.Uint64N(count)
	return func(yield func(endpoint.Tag) bool) {
		for i := range count {
			if !yield(choices.At((start + i) % count)) {
				return
			}
		}
	}, choices.Free, nil
}

func (c *claims) refuse(t endpoint.Tag) error {
	why := "ask an operator to add it to the tags of the rule"
	if isGroup(t.Addr) {
		why += ", which has to name groups: * does not stand for them"
	}
	if t.Port != 0 && c.r.Choices(t, 1, 1).Count() > 0 {
		why = fmt.Sprintf("its port * does not stand for ports below %d: ask an operator to name the port in the rule", c.floor())
	}
	return fmt.Errorf("%w: %v: %v does not permit it to uid %d: %s", endpoint.ErrTagDenied, t, c, c.uid, why)
}

// Translated permits ports that network address translation may give to other flows, whose answers
// the endpoint would get, if the rule has nat: warn. It logs that once for each rule and
// translating rule.
func (c *claims) Translated(t endpoint.Tag, by string) error {
	if c.r.NATWarn {
		if _, warned := c.a.natWarned.LoadOrStore(natWarning{c.r.Name, by}, true); !warned {
			c.a.Log.Warn("ports are claimed that network address translation may use for other flows, whose traffic can then reach the endpoint; logged once",
				"interface", c.a.Interface, "tag", t, "uid", c.uid, "rule", c.r.Name, "by", by)
		}
		return nil
	}
	what := "this port"
	switch {
	case t.Kind == endpoint.TagAddr:
		what = "this address"
	case t.Block:
		what = "ports of this block"
	case t.Port == 0:
		what = "every port that the rule permits"
	}
	return fmt.Errorf("%w: %v: network address translation on this host may use %s for other flows (%s): ask an operator to keep it to a range of ports (masquerade to :40000-65535), or for nat: warn in %v",
		endpoint.ErrTagDenied, t, what, by, c)
}

// nameIn names a rule in errors.
func (r *Rule) nameIn(p *Policy) string {
	if p.File == "" {
		return p.String()
	}
	return fmt.Sprintf("rule %s of %s", r.Name, p)
}
