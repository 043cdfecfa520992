package uplink

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/nat"
)

// lease puts the policy and the errors for applications around the mux's own.
type lease struct {
	endpoint.Lease // the mux's; nil until there is one

	u    *Uplink
	peer control.Peer

	// standsFor is the address that the mux means by a wildcard.
	standsFor func(wildcard netip.Addr) (netip.Addr, error)
	// translation is what network address translation does with an address's ports.
	translation func(netip.Addr) (*nat.Ports, error)

	// One claim or unclaim at a time, so that what held says stays true
	// until the mux has done what was asked.
	turn chan struct{}
	held map[endpoint.Tag]bool
}

func newLease(u *Uplink, peer control.Peer) *lease {
	return &lease{u: u, peer: peer, standsFor: u.mux.WildcardAddr, translation: u.mux.Translation, turn: make(chan struct{}, 1), held: map[endpoint.Tag]bool{}}
}

// hold makes l a lease with tags.
func (l *lease) hold(ml endpoint.Lease, tags []endpoint.Tag) {
	l.Lease = ml
	for _, t := range tags {
		l.held[t] = true
	}
}

// holdsWhole reports whether the endpoint holds a whole address.
func (l *lease) holdsWhole(a netip.Addr) bool { return l.held[endpoint.AddrTag(a)] }

func (l *lease) take(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *lease) give() { <-l.turn }

func (l *lease) Claim(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	if err := l.take(ctx); err != nil {
		return t, err
	}
	defer l.give()
	t, err := l.named(t)
	if err != nil {
		return t, forApplications(err)
	}
	if err := l.allow(t); err != nil {
		return t, err
	}
	claim := l.Lease.Claim
	if wild(t) {
		claim = l.choose
	}
	claimed, err := claim(ctx, t)
	if err != nil {
		return t, forApplications(err)
	}
	l.held[claimed] = true
	return claimed, nil
}

func (l *lease) Unclaim(ctx context.Context, t endpoint.Tag) error {
	if err := l.take(ctx); err != nil {
		return err
	}
	defer l.give()
	if err := l.Lease.Unclaim(ctx, t); err != nil {
		return forApplications(err)
	}
	t.Addr = t.Addr.Unmap()
	delete(l.held, t)
	return nil
}

func (l *lease) Resolve(ctx context.Context, dst netip.Addr) (endpoint.Route, error) {
	r, err := l.Lease.Resolve(ctx, dst)
	return r, forApplications(err)
}

// wild reports whether a tag leaves something to be chosen.
func wild(t endpoint.Tag) bool {
	switch t.Kind {
	case endpoint.TagUDP, endpoint.TagTCP:
		return t.Port == 0 || anyAddr(t)
	case endpoint.TagMessage:
		return t.Message == 0
	}
	return false
}

func anyAddr(t endpoint.Tag) bool { return !t.Addr.IsValid() || t.Addr.Unmap().IsUnspecified() }

// named is t with the address that it is about now, if it has a wildcard there.
// The rule is asked about that one, and the mux gets no wildcard: what it entered
// for one would receive before the rule could be asked.
func (l *lease) named(t endpoint.Tag) (endpoint.Tag, error) {
	if !hasPorts(t) {
		return t, nil
	}
	t.Addr = t.Addr.Unmap()
	if !anyAddr(t) {
		return t, nil
	}
	a, err := l.standsFor(t.Addr)
	if err != nil {
		return t, fmt.Errorf("%v: %w", t, err)
	}
	t.Addr = a
	return t, nil
}

// allow says what the policy has against a claim of t, together with others. One
// with wildcards is allowed if something that it may become is.
//
// Who holds a whole address receives and sends by all of its ports, so these are
// not asked about.
func (l *lease) allow(t endpoint.Tag, with ...endpoint.Tag) error {
	rule, of := l.u.rule(l.peer)
	if rule == nil {
		return refuseUserTag(t, l.u.name, of, l.peer)
	}
	floor := policy.Floor(l.peer.UID)
	if hasPorts(t) && (l.holdsWhole(t.Addr) || slices.Contains(with, endpoint.AddrTag(t.Addr))) {
		return nil
	}
	if wild(t) {
		if rule.Choices(t, floor, policy.FirstUnprivileged()).Count() == 0 {
			return refuseTag(t, rule, of, l.peer)
		}
		return nil
	}
	if !rule.Permits(t, floor) {
		return refuseTag(t, rule, of, l.peer)
	}
	if !hasPorts(t) {
		return nil
	}
	ports, err := l.translation(t.Addr)
	if err != nil {
		return forApplications(err)
	}
	if ports.MayUse(t) {
		return l.exposed(t, rule, of, ports)
	}
	return nil
}

// exposed is about a claim of ports that network address translation may use for others.
func (l *lease) exposed(t endpoint.Tag, rule *policy.Rule, of *policy.Policy, ports *nat.Ports) error {
	if !rule.NATWarn {
		return refuseNAT(t, rule, of, ports)
	}
	l.u.warnOfNAT(t, rule, ports, l.peer)
	return nil
}

func hasPorts(t endpoint.Tag) bool { return t.Kind == endpoint.TagUDP || t.Kind == endpoint.TagTCP }

// maxTries bounds how many tags are tried that turn out to be held by others.
const maxTries = 256

// firstBlock is the first port of the blocks among which the mux chooses. Unlike
// the kernel, which chooses its ports, it does not look at which are kept for root.
const firstBlock = 1 << 15

// choose claims something that t, of which the port or the message tag is a
// wildcard, may become within the rule.
//
// If the rule permits whatever there is to choose, the mux chooses, since it
// knows what is free. Otherwise it is asked for one permitted tag after another,
// beginning with a random one. Either way it enters nothing that the rule does not
// permit: a tag is effective at once, and the application could guess it.
func (l *lease) choose(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	rule, of := l.u.rule(l.peer)
	if rule == nil {
		return t, refuseUserTag(t, l.u.name, of, l.peer)
	}
	if hasPorts(t) && l.holdsWhole(t.Addr) {
		return l.Lease.Claim(ctx, t)
	}
	floor, dynamic := policy.Floor(l.peer.UID), policy.FirstUnprivileged()
	choices := rule.Choices(t, floor, dynamic)
	if choices.Count() == 0 {
		return t, refuseTag(t, rule, of, l.peer)
	}
	if hasPorts(t) {
		ports, err := l.translation(t.Addr)
		if err != nil {
			return t, err
		}
		if ports.MayUseBy() != "" {
			if clear := choices.Without(ports.MayUse); clear.Count() > 0 {
				choices = clear
			} else if err := l.exposed(t, rule, of, ports); err != nil {
				return t, err
			}
		}
	}
	if choices.Free && (!t.Block || dynamic <= firstBlock) {
		claimed, err := l.Lease.Claim(ctx, t)
		if err == nil && !rule.Permits(claimed, floor) {
			return t, l.giveBack(ctx, claimed, refuseTag(t, rule, of, l.peer))
		}
		return claimed, err
	}
	tries := 0
	count := choices.Count()
	start := rand.Uint64N(count)
	for i := range count {
		candidate := choices.At((start + i) % count)
		if l.held[candidate] {
			continue
		}
		if tries++; tries > maxTries {
			return t, fmt.Errorf("%w: %v: %d that %s permits were tried", endpoint.ErrTagHeld, t, maxTries, nameRule(rule, of))
		}
		claimed, err := l.Lease.Claim(ctx, candidate)
		if !errors.Is(err, endpoint.ErrTagHeld) {
			return claimed, err
		}
	}
	return t, fmt.Errorf("%w: %v: all that %s permits", endpoint.ErrTagHeld, t, nameRule(rule, of))
}

// giveBackWithin bounds how long the mux may take to take a tag back.
const giveBackWithin = 10 * time.Second

// giveBack undoes a claim of the mux's choice that the rule does not permit after
// all: meanwhile the system has got more ports that it does not keep for root. It
// does so also when nobody waits for the claim any more.
func (l *lease) giveBack(ctx context.Context, t endpoint.Tag, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackWithin)
	defer cancel()
	if err := l.Lease.Unclaim(ctx, t); err != nil {
		return errors.Join(why, fmt.Errorf("%v could not be given back: %w", t, err))
	}
	return why
}
