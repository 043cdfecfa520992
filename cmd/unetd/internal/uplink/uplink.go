//go:build linux

package uplink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netns"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// Uplink is an interface with a mux on it. When the interface is gone or has another MAC address,
// the leases of the mux end, and a new mux is opened as soon as that is possible.
type Uplink struct {
	cfg       mux.Config // with NetNS, which end closes
	authority *policy.Authority

	cancel context.CancelFunc
	kept   chan struct{} // closed when keep has ended

	mu sync.Mutex
	// +checklocks:mu
	mux *mux.Mux // nil: the interface cannot be used
	// +checklocks:mu
	why error // if mux is nil
}

// openUplink attaches to an interface of the calling thread's namespace, or takes over what another
// unetd has pinned for it.
func openUplink(cfg mux.Config, a *policy.Authority) (_ *Uplink, err error) {
	if cfg.NetNS, err = netns.Get(); err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	u := &Uplink{cfg: cfg, authority: a, kept: make(chan struct{})}
	if u.mux, err = openMux(cfg); err != nil {
		cfg.NetNS.Close()
		return nil, explainOpen(cfg.Interface, err)
	}
	var ctx context.Context
	ctx, u.cancel = context.WithCancel(context.Background())
	go u.keep(ctx, u.mux)
	return u, nil
}

// openMux opens a mux, without a tag table if there can be none.
func openMux(cfg mux.Config) (*mux.Mux, error) {
	m, err := mux.Open(cfg)
	if errors.Is(err, mux.ErrTagTable) {
		cfg.Log.Info("endpoints of this host get no memory paths to each other", "interface", cfg.Interface, "error", err)
		cfg.Dir = ""
		m, err = mux.Open(cfg)
	}
	return m, err
}

// Pauses between attempts to open an interface again. While there is no interface of that name, only
// the first is used.
const (
	shortestPause = 100 * time.Millisecond
	longestPause  = 10 * time.Second
)

// keep replaces a mux that has failed, until ctx ends.
func (u *Uplink) keep(ctx context.Context, m *mux.Mux) {
	defer close(u.kept)
	log, name := u.cfg.Log, u.cfg.Interface
	for m != nil {
		select {
		case <-ctx.Done():
			return
		case why := <-m.Failed():
			log.Error("endpoints cannot use the interface any more; it is served again when that is possible", "interface", name, "error", why)
			u.set(nil, why)
			if err := m.Close(); err != nil {
				log.Warn("not everything was detached from an interface that cannot be used any more", "interface", name, "error", err)
			}
			if m = u.reopen(ctx); m != nil && ctx.Err() == nil {
				log.Info("the interface is served again", "interface", name)
			}
		}
	}
}

// reopen tries until there is a mux. It returns nil if ctx ends first.
func (u *Uplink) reopen(ctx context.Context) *mux.Mux {
	logged := ""
	for pause := shortestPause; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		m, err := openMux(u.cfg)
		switch {
		case err == nil:
			u.set(m, nil)
			return m
		case errors.Is(err, mux.ErrNoInterface):
			pause = shortestPause
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		err = explainOpen(u.cfg.Interface, err)
		u.set(nil, err)
		if text := err.Error(); text != logged {
			u.cfg.Log.Warn("the interface cannot be served yet", "interface", u.cfg.Interface, "error", err)
			logged = text
		}
		pause = min(2*pause, longestPause)
	}
}

func (u *Uplink) set(m *mux.Mux, why error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mux, u.why = m, why
}

// current is the mux. The error is an endpoint.ErrBusy if the interface cannot be used.
func (u *Uplink) current() (*mux.Mux, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mux == nil {
		return nil, protocol.Busy("%s cannot be used now: %v", u.cfg.Interface, u.why)
	}
	return u.mux, nil
}

// forApplications adds what the application's user can do about an error of the mux.
func forApplications(err error) error {
	switch {
	case errors.Is(err, mux.ErrFillRings):
		return fmt.Errorf("%w: ask an operator for trusted: true, or to start unetd with --unchecked-fill-rings", err)
	case errors.Is(err, xsk.ErrTable):
		return fmt.Errorf("%w: %w", protocol.ErrProtocol, err)
	}
	return err
}

// describe describes the uplink to an operator.
func (u *Uplink) describe() endpoint.Uplink {
	u.mu.Lock()
	m, why := u.mux, u.why
	u.mu.Unlock()
	if m == nil {
		return endpoint.Uplink{Interface: u.cfg.Interface, Unusable: protocol.Message(why)}
	}
	return m.Uplink()
}

// How well an interface suits an address.
const (
	strange  = iota // it is not in a subnet of the interface
	inSubnet        // it is
	own             // it is an address of the interface
)

// addresses are those of the interface, if it can be used. They are read from the kernel.
func (u *Uplink) addresses() []netip.Prefix {
	m, err := u.current()
	if err != nil {
		return nil
	}
	prefixes, err := m.Addresses()
	if err != nil {
		return nil
	}
	return prefixes
}

// suits reports how well an interface with these addresses suits an address.
func suits(prefixes []netip.Prefix, a netip.Addr) int {
	best := strange
	for _, p := range prefixes {
		switch {
		case p.Addr() == a.Unmap():
			return own
		case p.Contains(a.Unmap()) && !a.IsLinkLocalUnicast():
			best = inSubnet
		}
	}
	return best
}

// end ends keep, and then calls f with the mux, if there is one.
func (u *Uplink) end(f func(*mux.Mux) error) error {
	u.cancel()
	<-u.kept
	var err error
	if m, _ := u.current(); m != nil {
		err = f(m)
	}
	return errors.Join(err, u.cfg.NetNS.Close())
}

// maxChoices is how many tags with addresses a request may have for which several uplinks are named. More fit no record.
const maxChoices = 64

// named is the uplink of a name. The error is an endpoint.ErrUplink if it is not served.
func (us *Uplinks) named(name string) (*Uplink, error) {
	i := slices.IndexFunc(us.list, func(u *Uplink) bool {
		return u.cfg.Interface == name || slices.Contains(u.authority.AltNames, name)
	})
	if i < 0 {
		return nil, fmt.Errorf("%w: this unetd does not serve %q: choose one of %s", endpoint.ErrUplink, name, us.names())
	}
	return us.list[i], nil
}

// choose is the uplink for a request: the one that it names, else the one that suits the addresses of
// its tags, else the only one of which the policy gives the user an endpoint. The error is an
// endpoint.ErrUplink if these are none or several; of several that can be used now it is an endpoint.UplinksError.
func (us *Uplinks) choose(peer mux.Owner, req endpoint.Request) (*Uplink, error) {
	if req.Interface != "" {
		return us.named(req.Interface)
	}
	if len(us.list) == 1 {
		return us.list[0], nil
	}
	addressed := func(t endpoint.Tag) bool {
		return t.Kind != endpoint.TagMessage && t.Addr.IsValid() && !t.Addr.IsUnspecified()
	}
	prefixes := map[*Uplink][]netip.Prefix{}
	if slices.ContainsFunc(req.Tags, addressed) {
		for _, u := range us.list {
			prefixes[u] = u.addresses()
		}
	}
	var chosen, other *Uplink
	byUplink, strangers, count := map[*Uplink][]endpoint.Tag{}, false, 0
	for _, t := range req.Tags {
		if !addressed(t) {
			continue
		}
		fit := func(u *Uplink) int { return suits(prefixes[u], t.Addr) }
		best := slices.MaxFunc(us.list, func(a, b *Uplink) int { return cmp.Compare(fit(a), fit(b)) })
		switch {
		case fit(best) == strange:
			strangers = true
			continue
		case chosen == nil:
			chosen = best
		case chosen != best && other == nil:
			other = best
		}
		byUplink[best] = append(byUplink[best], t)
		count++
	}
	switch {
	case other != nil:
		several := error(endpoint.ErrUplink)
		if !strangers && count <= maxChoices {
			several = us.severalOf(us.list, byUplink)
		}
		return nil, fmt.Errorf("%w: tags with addresses of %s and of %s: an endpoint is on one interface", several, chosen.cfg.Interface, other.cfg.Interface)
	case chosen != nil:
		return chosen, nil
	}
	var may []*Uplink
	var refused error
	for _, u := range us.list {
		if _, err := u.authority.Open(peer, req); err == nil {
			may = append(may, u)
		} else if refused == nil {
			refused = err
		}
	}
	if len(prefixes) > 0 { // the address can be that of an interface that is gone
		for _, u := range may {
			if _, err := u.current(); err != nil {
				return nil, err
			}
		}
	}
	switch len(may) {
	case 0:
		return nil, refused
	case 1:
		return may[0], nil
	}
	several := error(endpoint.ErrUplink)
	if len(prefixes) == 0 {
		several = us.severalOf(may, nil)
	}
	return nil, fmt.Errorf("%w: this unetd serves %s: name one (Config.Interface, UNET_INTERFACE)", several, us.names())
}

// severalOf is the error for a request for which there are several uplinks: those that can be used now, and, unless tags is nil, have some.
func (us *Uplinks) severalOf(list []*Uplink, tags map[*Uplink][]endpoint.Tag) error {
	e := new(endpoint.UplinksError)
	for _, u := range list {
		if _, err := u.current(); err == nil && (tags == nil || tags[u] != nil) {
			e.Uplinks = append(e.Uplinks, endpoint.UplinkChoice{Interface: u.cfg.Interface, Tags: tags[u]})
		}
	}
	return e
}
