package uplink

import (
	"context"
	"errors"
	"math"
	"os"
	"sync/atomic"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/cmd/unetd/internal/quota"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// OpenEndpoint makes an endpoint for an application, within the rule that is for it.
func (u *Uplink) OpenEndpoint(ctx context.Context, peer control.Peer, req endpoint.Request) (*endpoint.Grant, endpoint.Lease, error) {
	grant, l, err := u.open(ctx, peer, req)
	count(&u.granted, &u.refused, err)
	return grant, l, err
}

// count counts a request for a lease.
func count(done, refused *atomic.Uint64, err error) {
	if err != nil {
		done = refused
	}
	done.Add(1)
}

func (u *Uplink) open(ctx context.Context, peer control.Peer, req endpoint.Request) (*endpoint.Grant, endpoint.Lease, error) {
	rule, of := u.rule(peer)
	switch {
	case rule == nil:
		return nil, nil, refuseUser(u.name, of, peer)
	case rule.Endpoints == 0:
		return nil, nil, refuseEndpoints(u.name, rule, of, peer)
	case req.Attach == endpoint.AttachQueue && !rule.Trusted:
		return nil, nil, refuseQueue(u.name, rule, of, peer)
	}
	geometry := req.Geometry.WithDefaults()
	if err := geometry.Validate(); err != nil {
		return nil, nil, err
	}
	l := newLease(u, peer)
	var now, later []int // of the tags, by index: those that are what they say, and those that are to be chosen
	for i, t := range req.Tags {
		if err := l.allow(t, req.Tags...); err != nil {
			return nil, nil, err
		}
		if wild(t) {
			later = append(later, i)
		} else {
			now = append(now, i)
		}
	}
	tags := req.Tags
	req.Tags = nil
	for _, i := range now {
		req.Tags = append(req.Tags, tags[i])
	}

	place, err := u.quota.Reserve(peer.UID, geometry.SegmentSize(), quota.Limit{Endpoints: rule.Endpoints, Bytes: rule.Memory}, nameRule(rule, of))
	if err != nil {
		return nil, nil, err
	}
	grant, ml, err := u.mux.OpenEndpointFor(ctx, owner(peer), u.terms(rule), req)
	if err != nil {
		place.Cancel()
		return nil, nil, forApplications(err)
	}
	place.Bind(grant.ID)
	l.hold(ml, grant.Tags)
	granted := make([]endpoint.Tag, len(tags))
	for n, i := range now {
		granted[i] = grant.Tags[n]
	}
	for _, i := range later {
		if granted[i], err = l.Claim(ctx, tags[i]); err != nil {
			return nil, nil, errors.Join(err, l.Close(), grant.Close())
		}
	}
	grant.Tags = granted
	return grant, l, nil
}

// Tags is how many tags the rule that is for an application permits its user.
func (u *Uplink) Tags(peer control.Peer) int {
	switch rule, _ := u.rule(peer); {
	case rule == nil:
		return policy.DefaultPorts // what is refused is the claim itself
	case rule.Ports == policy.Unlimited:
		return math.MaxInt
	default:
		return int(rule.Ports)
	}
}

// Present gives an application the lease of an endpoint that it had from another
// unetd. The policy is not asked: what it granted stays granted.
func (u *Uplink) Present(ctx context.Context, peer control.Peer, sock, connections *os.File) (endpoint.Info, endpoint.Lease, error) {
	e, ml, err := u.mux.Present(ctx, owner(peer), sock, connections)
	count(&u.presented, &u.refused, err)
	if err != nil {
		return endpoint.Info{}, nil, forApplications(err)
	}
	l := newLease(u, peer)
	l.hold(ml, e.Tags)
	return e, l, nil
}

// Endpoints lists all endpoints.
func (u *Uplink) Endpoints(peer control.Peer) ([]endpoint.Info, error) {
	if err := u.mayAsk(peer); err != nil {
		return nil, err
	}
	return u.mux.Endpoints(), nil
}

// Counters reads all counters: the programs', then those of leases.
func (u *Uplink) Counters(peer control.Peer) ([]endpoint.Counter, error) {
	if err := u.mayAsk(peer); err != nil {
		return nil, err
	}
	all, err := u.mux.Counters()
	if err != nil {
		return nil, err
	}
	return append(all,
		endpoint.Counter{Name: "lease_granted", Help: "endpoints opened since unetd was started", Value: u.granted.Load()},
		endpoint.Counter{Name: "lease_presented", Help: "endpoints of an earlier unetd whose applications have come to this one", Value: u.presented.Load()},
		endpoint.Counter{Name: "lease_refused", Help: "requests of these two kinds that were answered by an error", Value: u.refused.Load()},
	), nil
}

// registeredTimes is how many times a rule's memory the kernel may count for a user.
// The kernel counts what the quota cannot see, but for all interfaces together, and
// gives back a moment after the quota does.
const registeredTimes = 4

func (u *Uplink) terms(r *policy.Rule) mux.Terms {
	t := mux.Terms{Trusted: r.Trusted, Infrastructure: r.Infrastructure}
	if r.Memory != policy.Unlimited && r.Memory <= u.maxCharge/registeredTimes {
		t.Registered, t.Register = registeredTimes*r.Memory, u.register
	}
	return t
}

func owner(peer control.Peer) mux.Owner {
	return mux.Owner{PID: peer.PID, UID: peer.UID}
}
