//go:build linux

package mux

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/mempath"
	"github.com/unet-go/unet/internal/share"
)

// A memory path connects two endpoints on ports of one mux. The mux makes its memory, hands an end to
// each, and counts the memory for the user who asked until the path ends. It does not see the frames. So an
// endpoint whose frames it limits or an operator captures has no paths.
//
// The mux cannot take memory away from a process. A path has ended when the epoch of one of its endpoints
// has changed in the tag table: the other end reads nothing from it then.

const (
	// maxPaths is the number of paths that an endpoint may have.
	maxPaths = 1024
	// An endpoint may ask for pathBurst paths at once, and then for one in each pathInterval: both ends
	// have work with each, and the other one cannot refuse.
	pathBurst    = 64
	pathInterval = 100 * time.Millisecond
)

// memoryPath is a path, or one that is being made. It is in the tables of both endpoints until it ends.
type memoryPath struct {
	id      uint64    // endpoint.Path.ID
	ends    [2]*Lease // the first has asked for it
	counted bool      // its memory counts for the user of the first; Mux.mu is held
}

// OpenPath makes a memory path to another endpoint of the mux; see [endpoint.Lease].
func (l *Lease) OpenPath(ctx context.Context, peer uint64) error {
	if err := l.enter(); err != nil {
		return known(err)
	}
	defer l.m.leave()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p, err := l.reservePath(peer)
	if p == nil || err != nil {
		return err
	}
	if err := l.m.makePath(p); err != nil {
		l.m.mu.Lock()
		l.m.endPathLocked(p)
		l.m.mu.Unlock()
		return fmt.Errorf("%w: %w", endpoint.ErrNoPath, known(err))
	}
	return nil
}

// reservePath enters a path into the tables, so that whatever ends it from now on finds it. It returns
// nil and no error if there is one. A rate cannot appear meanwhile: rates.set ends the paths before it
// unlocks m.rates.
func (l *Lease) reservePath(peer uint64) (*memoryPath, error) {
	m := l.m
	m.rates.mu.Lock()
	defer m.rates.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	other := m.leases[peer]
	switch {
	case l.closed:
		return nil, endpoint.ErrLeaseClosed
	case m.table == nil:
		return nil, fmt.Errorf("%w: unetd has no directory for a tag table", endpoint.ErrNoPath)
	case other == nil:
		return nil, fmt.Errorf("%w: there is no endpoint %d on %s", endpoint.ErrNoPath, peer, m.up.Name)
	case other == l:
		return nil, fmt.Errorf("%w: endpoint %d is the one that asks", endpoint.ErrNoPath, peer)
	case l.paths[peer] != nil:
		return nil, nil
	}
	for _, e := range []*Lease{l, other} {
		if why := e.noPathLocked(); why != "" { // +checklocksignore: both are leases of this mux
			return nil, fmt.Errorf("%w: endpoint %d %s", endpoint.ErrNoPath, e.id, why)
		}
	}
	if !l.asks.pass(time.Now()) {
		return nil, fmt.Errorf("%w: %w: endpoint %d has asked for too many in a short time", endpoint.ErrNoPath, endpoint.ErrBusy, l.id)
	}
	p := &memoryPath{id: rand.Uint64() >> 11, ends: [2]*Lease{l, other}}
	l.paths[peer], other.paths[l.id] = p, p
	return p, nil
}

// noPathLocked is why an endpoint gets no path now; empty: it gets one, as far as the policy permits it.
// m.rates.mu is held, too.
//
// +checklocks:l.m.mu
func (l *Lease) noPathLocked() string {
	switch {
	case l.closed || !l.leased:
		return "has no lease"
	case l.attach == endpoint.AttachQueue:
		return "is on a queue"
	case l.rates != endpoint.Rates{}:
		return "is limited in what it sends"
	case l.captures+l.m.captures > 0:
		return "is captured"
	case len(l.paths) >= maxPaths:
		return fmt.Sprintf("has %d paths, and may have no more", maxPaths)
	case !l.offers.Taken():
		return "takes none now: its process has not asked for any, or has not taken the last ones yet"
	}
	return ""
}

// makePath makes a path that is in the tables, and hands it to both ends.
func (m *Mux) makePath(p *memoryPath) (err error) {
	var terms [2]Terms
	for i, l := range p.ends { // the owners do not change: both have a lease
		if terms[i], err = m.policy.Open(l.owner, endpoint.Request{}); err != nil || terms[i].NoMemoryPaths { // +checklocksignore: see above
			return fmt.Errorf("the policy permits none to endpoint %d", l.id)
		}
	}
	a, b, err := mempath.Make()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err = m.countPathLocked(p, terms[0]); err != nil {
		return errors.Join(err, a.Close(), b.Close())
	}
	one, two := p.ends[0], p.ends[1]
	a.ID, a.Peer, a.Epoch, a.PeerEpoch = p.id, two.id, m.table.Epoch(one.id), m.table.Epoch(two.id)
	b.ID, b.Peer, b.Epoch, b.PeerEpoch = p.id, one.id, a.PeerEpoch, a.Epoch
	if !one.offers.Taken() || !two.offers.Taken() || !one.offers.Give(a) {
		return errors.Join(errNotTaken, a.Close(), b.Close())
	}
	if !two.offers.Give(b) { // its loop has just ended; the process that gets a finds the other end absent
		return errors.Join(errNotTaken, b.Close())
	}
	return nil
}

var errNotTaken = busy("too many paths wait to be taken")

// countPathLocked counts the memory of a path for the user of the end that has asked for it: the other one cannot refuse.
//
// +checklocks:m.mu
func (m *Mux) countPathLocked(p *memoryPath, terms Terms) error {
	if p.ends[0].paths[p.ends[1].id] != p {
		return errors.New("it was ended while it was made")
	}
	if err := m.users.openPath(p.ends[0].uid, terms); err != nil {
		return err
	}
	p.counted = true
	return nil
}

// openPath counts the memory of a path, or returns why its user gets none now (endpoint.ErrBusy).
func (g *ledger) openPath(uid uint32, t Terms) error {
	if has := g.of(uid).Memory; t.Memory != 0 && mempath.Size > t.Memory-has {
		return fmt.Errorf("%w: uid %d has %v of at most %v of memory", endpoint.ErrBusy, uid, Size(has), Size(t.Memory))
	}
	return g.memory.Take(share.ByUID(uid), mempath.Size)
}

// ClosePath ends a memory path for both ends; see [endpoint.Lease].
func (l *Lease) ClosePath(_ context.Context, id uint64) error {
	if err := l.enter(); err != nil {
		return known(err)
	}
	defer l.m.leave()
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.closed {
		return endpoint.ErrLeaseClosed
	}
	for _, p := range l.paths {
		if p.id == id {
			l.m.endPathLocked(p)
			break
		}
	}
	return nil
}

// endPathLocked takes a path out of the tables, unless that was done. What an end has been handed stays with
// its process.
//
// +checklocks:m.mu
func (m *Mux) endPathLocked(p *memoryPath) {
	one, two := p.ends[0], p.ends[1]
	if one.paths[two.id] != p {
		return
	}
	delete(one.paths, two.id)
	delete(two.paths, one.id)
	if p.counted {
		m.users.uncount(one.uid, Usage{Memory: mempath.Size})
	}
}

// endPathsLocked ends all paths of an endpoint, also those that it has closed and that the other end still reads.
//
// +checklocks:m.mu
func (m *Mux) endPathsLocked(l *Lease) {
	if m.table != nil {
		m.table.Bump(l.id)
	}
	m.forgetPathsLocked(l)
}

// forgetPathsLocked takes the paths of an endpoint out of the tables, and leaves them in effect.
//
// +checklocks:m.mu
func (m *Mux) forgetPathsLocked(l *Lease) {
	for _, p := range l.paths {
		m.endPathLocked(p)
	}
}

// Capture ends the memory paths of an endpoint (nil: of all), and gives it none until stop is called: all
// its frames pass the programs of the mux meanwhile. The error is endpoint.ErrNoEndpoint if no lease has this number.
func (m *Mux) Capture(id *uint64) (stop func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	captures := &m.captures
	if id != nil {
		l := m.leases[*id]
		if l == nil {
			return nil, fmt.Errorf("%w: %d", endpoint.ErrNoEndpoint, *id)
		}
		captures = &l.captures // +checklocksignore: a lease of this mux
		m.endPathsLocked(l)
	} else {
		for _, l := range m.leases {
			m.endPathsLocked(l)
		}
	}
	*captures++
	return sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		*captures--
	}), nil
}

// updatePaths ends the paths of an endpoint if the policy does not permit them now.
func (l *Lease) updatePaths() {
	m := l.m
	o, _ := l.holder()
	if t, err := m.policy.Open(o, endpoint.Request{}); err != nil || !t.NoMemoryPaths {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !l.closed {
		m.endPathsLocked(l)
	}
}

// pathGate limits how often an endpoint asks for paths.
type pathGate struct{ due time.Time } // of the next path at the rate of one in each pathInterval

// pass counts a path, or returns false if it is one too many.
func (g *pathGate) pass(now time.Time) bool {
	if g.due.Before(now) {
		g.due = now
	}
	if g.due.Sub(now) > (pathBurst-1)*pathInterval {
		return false
	}
	g.due = g.due.Add(pathInterval)
	return true
}

// Paths returns the memory paths of the endpoint; see [endpoint.Lease].
func (l *Lease) Paths(ctx context.Context) iter.Seq[*endpoint.Path] { return l.offers.Paths(ctx) }
